"""The app of the beats that are measured as processes; a script under both interpreters."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("beatapp", broker=os.environ["BENCHMARK_REDIS"])
app.conf.update(timezone="UTC", result_expires=None)
