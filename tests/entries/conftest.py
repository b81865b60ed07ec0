"""Fixtures for tests of stored entries."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from tests.entries.worlds import World


@pytest.fixture
def world(app: Celery, redis_client: Any) -> World:
    """An empty schedule, as programs and beats change it."""
    return World(app, redis_client)
