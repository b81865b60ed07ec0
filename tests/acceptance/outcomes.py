"""Tasks of the project that end in every way; see ``project.py``."""

from __future__ import annotations

import os
import time
from typing import Any

import redbeat.worker
from tests.acceptance.project import app

redbeat.worker.enable(app)


@app.task
def succeed() -> None:
    """Return."""


@app.task
def fail() -> None:
    """Raise an exception."""
    raise ValueError("no room")


@app.task(bind=True, max_retries=3)
def retry(self: Any) -> None:
    """Fail once, then succeed."""
    if not self.request.retries:
        raise self.retry(exc=OSError("away"), countdown=0.2)


@app.task
def take(seconds: float) -> None:
    """Run for ``seconds``."""
    time.sleep(seconds)


@app.task
def leave() -> None:
    """Kill the process that runs this task."""
    os._exit(1)
