"""Fixtures that run the commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from tests.cli.commands import CommandResult, run_command

Run = Callable[..., CommandResult]


@pytest.fixture
def run(app: Celery) -> Run:
    """Return a function that runs `celery redbeat` in this process, on an empty schedule."""

    def run(*args: str, **options: Any) -> CommandResult:
        return run_command(app, *args, **options)

    return run


@pytest.fixture
def tokyo(app: Celery) -> None:
    """Set the app's time zone to Tokyo; request this fixture before any that creates entries."""
    app.conf.timezone = "Asia/Tokyo"
