"""Tests of the upcoming runs of an entry whose runs are delayed by spread or jitter."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule as Schedule
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry, clocked, rrule
from redbeat.presentation.describe import timing_text

UTC = timezone.utc
NOON = datetime(2036, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def entry(app: Celery, schedule: Any, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("key", "t", schedule, app=app, **fields)


EACH_HOUR: dict[str, Any] = {"schedule": 3600, "last_run_at": NOON - HOUR}
CRON = {**EACH_HOUR, "schedule": crontab(minute="0")}
#: The arguments of an entry whose occurrence at noon is due later than noon.
DELAYED: dict[str, dict[str, Any]] = {
    "interval": {**EACH_HOUR, "spread": 3600},
    "crontab": {**CRON, "spread": 3600},
    "jitter": {**CRON, "jitter": 3600},
    "several missed": {"schedule": 1800, "last_run_at": NOON - 5 * HOUR, "spread": 1e8},
    "from a start": {
        **EACH_HOUR,
        "last_run_at": NOON - 5.5 * HOUR,
        "start_time": NOON - HOUR,
        "spread": 3600,
    },
    "at its end": {**CRON, "end_time": NOON + timedelta(seconds=1), "spread": 3600},
    "last of its limit": {**EACH_HOUR, "total_run_count": 4, "max_runs": 5, "spread": 3600},
    "first of a rule": {"schedule": rrule("HOURLY", dtstart=NOON - 9 * HOUR), "spread": 3600},
    "single": {"schedule": clocked(NOON), "spread": 3600},
}


@pytest.mark.parametrize("fields", DELAYED.values(), ids=DELAYED.keys())
def test_a_delayed_run_is_upcoming_until_it_is_due(app: Celery, fields: dict[str, Any]) -> None:
    one = entry(app, **fields)
    due_at = one.occurrence_plan().due_at(NOON)
    assert NOON < due_at < NOON + HOUR
    for instant in (NOON - timedelta(seconds=1), NOON, due_at - timedelta(microseconds=1)):
        found = one.upcoming(9, instant)
        assert found[0] == due_at
        last = {"max_runs", "end_time"} & fields.keys() or isinstance(one.schedule, clocked)
        assert len(found) == (1 if last else 9)
    assert due_at not in one.upcoming(2, due_at)


def test_a_run_that_took_place_is_not_upcoming(app: Celery) -> None:
    one = entry(app, crontab(minute="0"), last_run_at=NOON, spread=3600)
    offset = timedelta(seconds=one.spread_offset)
    assert one.upcoming(1, NOON + timedelta(seconds=1)) == [NOON + HOUR + offset]


def test_after_the_last_run_comes_the_next_run(app: Celery) -> None:
    one = entry(app, crontab(minute="0"), last_run_at=NOON, spread=3600)
    assert one.upcoming(1, NOON) == one.upcoming(1, NOON + timedelta(seconds=1))


@pytest.mark.parametrize("schedule", [3600, crontab(minute="0")])
def test_an_overdue_run_does_not_count_as_upcoming(app: Celery, schedule: Any) -> None:
    last = NOON - timedelta(hours=5.5)
    one = entry(app, schedule, last_run_at=last, max_runs=1, spread=60, enabled=False)
    (found,) = one.upcoming(9, NOON + timedelta(minutes=20))
    assert NOON + timedelta(minutes=20) < found < NOON + timedelta(minutes=62)


class Tide(Schedule):
    """A schedule that decides itself when it is due."""

    def is_due(self, *_args: Any) -> tuple[bool, float]:
        return False, 60.0


def test_a_spread_does_not_delay_a_schedule_that_decides_itself(app: Celery) -> None:
    one = entry(app, Tide(app=app), spread=3600)
    assert one.spread_offset == 0
    assert "spread" not in timing_text(one)


class Region(RedBeatSchedulerEntry):
    """A subclass with its own attribute ``spread``."""

    def __init__(self, *args: Any, spread: Any = "north", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spread = spread


def test_an_attribute_of_a_subclass_is_no_spread(app: Celery) -> None:
    one = Region("key", "t", 60, app=app)
    assert (one.spread_offset, timing_text(one)) == (0, "every 1 min")


def test_a_large_spread_of_an_entry_that_has_not_run_for_long(app: Celery) -> None:
    one = entry(app, 1, last_run_at=NOON - timedelta(days=300), spread=1e8, jitter=1e8)
    first, second = one.upcoming(2, NOON)
    assert NOON < first < NOON + timedelta(seconds=1) <= second
