"""Tests that an error about a key of a wrong type names the key and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ResponseError

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.schedules.calendars import Calendar

KEYS = {
    "redbeat::schedule": "a string, but it must be a sorted set",
    ".redbeat::calendars": "a string, but it must be a hash",
    ".redbeat::calendar-users": "a string, but it must be a set",
}

#: The names of the keys have the default prefix.
pytestmark = pytest.mark.standalone


def actions(app: Celery, key: str) -> list[Any]:
    """Return what a program may call that uses this key."""
    entry = RedBeatSchedulerEntry("a", "t", 60, app=app)
    schedule = Schedule(app)
    if key == "redbeat::schedule":
        return [
            entry.save,
            entry.delete,
            lambda: entry.rank,
            lambda: list(schedule),
        ]
    calendar = Calendar("days-off", days=["2030-01-01"])
    return [lambda: schedule.save_calendar(calendar)]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_wrong_type_is_named(app: Celery, redis_client: Any, key: str) -> None:
    for action in actions(app, key):
        redis_client.flushall()
        RedBeatSchedulerEntry("a", "t", 60, app=app).save()
        redis_client.delete(key)
        redis_client.set(key, "x")
        with pytest.raises(ResponseError) as caught:
            action()
        assert f"the key '{key}' is {KEYS[key]}: rename or delete the key" in str(caught.value)
