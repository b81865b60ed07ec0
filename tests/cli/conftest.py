"""Fixtures for the commands, run in this process or in their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from tests.cli.commands import CommandResult, run_command

Run = Callable[..., CommandResult]


@pytest.fixture
def run(app: Celery) -> Run:
    """Run `celery redbeat ...` in this process, on the empty schedule of `app`."""

    def run(*args: str, **options: Any) -> CommandResult:
        return run_command(app, *args, **options)

    return run


@pytest.fixture
def tokyo(app: Celery) -> None:
    """Set the app's time zone to Tokyo; list this fixture before those that make entries."""
    app.conf.timezone = "Asia/Tokyo"
