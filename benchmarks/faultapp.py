"""The Celery app for the beats of RedBeat 3 and RedBeat 2 in the fault scenarios."""

from __future__ import annotations

import json
import os

from celery import Celery

app = Celery("faultapp", broker=os.environ["BENCHMARK_BROKER"])
app.conf.update(
    timezone="UTC",
    result_expires=None,
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ["BENCHMARK_SETTINGS"]),
)
