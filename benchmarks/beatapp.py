"""The Celery app for measured beats of RedBeat 3 and RedBeat 2."""

from __future__ import annotations

import json
import os

from celery import Celery

REDIS = os.environ["BENCHMARK_REDIS"]

app = Celery("beatapp", broker=os.environ.get("BENCHMARK_BROKER", REDIS))
app.conf.update(
    timezone="UTC",
    result_expires=None,
    redbeat_redis_url=REDIS,
    **json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}")),
)
