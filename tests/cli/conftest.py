"""The commands, run in this process or in one of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from tests.cli.commands import Ran, run_command

Run = Callable[..., Ran]


@pytest.fixture
def run(app: Celery) -> Run:
    """Run `celery redbeat ...` in this process, on the empty schedule of `app`."""

    def run(*args: str, **options: Any) -> Ran:
        return run_command(app, *args, **options)

    return run


@pytest.fixture
def tokyo(app: Celery) -> None:
    """Have the app live in Tokyo; for tests that ask for it before an entry."""
    app.conf.timezone = "Asia/Tokyo"
