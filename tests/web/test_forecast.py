"""Tests of the limited list of upcoming runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import crontab

from redbeat.management.forecast import per_minute
from redbeat.schedule import Schedule
from tests.conftest import Make

NOON = datetime(2036, 1, 1, 12, tzinfo=timezone.utc)


def test_the_forecast_equals_upcoming(schedule: Schedule, make: Make) -> None:
    make("often", crontab())
    make("hourly", crontab(minute="30"))
    make("limited", crontab(), max_runs=3)
    make("asleep", crontab()).pause()
    until = NOON + timedelta(hours=3)
    found = schedule.forecast(until, NOON)
    expected = schedule.upcoming(10_000, after=NOON, until=until - timedelta(microseconds=1))
    flat = sorted((at, name) for name, runs in found.runs.items() for at in runs)
    assert flat == sorted(expected)
    assert found.complete
    assert list(found.runs)[-1] == "hourly"


def test_no_run_within_the_span(schedule: Schedule, make: Make) -> None:
    make("yearly", crontab(minute="0", hour="0", day_of_month="1", month_of_year="6"))
    found = schedule.forecast(NOON + timedelta(days=1), NOON)
    assert (dict(found.runs), found.complete) == ({}, True)


@pytest.mark.long
def test_too_many_runs_shorten_the_forecast(schedule: Schedule, make: Make) -> None:
    for name in ("a", "b", "c"):
        make(name, 1)
    found = schedule.forecast(NOON + timedelta(hours=12), NOON)
    assert not found.complete
    assert 10_000 < sum(map(len, found.runs.values())) <= 100_000
    minutes = int((found.until - NOON).total_seconds() // 60)
    load = per_minute(found.runs, NOON, minutes)
    assert set(load[1:]) == {180}


@pytest.mark.long
def test_too_many_entries_shorten_the_forecast(schedule: Schedule, make: Make) -> None:
    now = datetime.now(timezone.utc)
    first = make("first", 20_000)
    entries = [
        type(first)(
            f"e{number}",
            "proj.note",
            20_000,
            app=first.app,
            last_run_at=now + timedelta(seconds=number - 10_000),
        )
        for number in range(6000)
    ]
    schedule.save_all(entries)
    found = schedule.forecast(now + timedelta(days=1), now)
    assert not found.complete
    assert now + timedelta(seconds=14_500) < found.until < now + timedelta(seconds=15_700)
    assert len(found.runs) == -((now - found.until) // timedelta(seconds=1)) - 10_000


def test_the_load_of_minutes() -> None:
    before = NOON - timedelta(seconds=1)
    runs = {"a": [before, NOON, NOON + timedelta(seconds=59)], "b": [NOON + timedelta(minutes=2)]}
    assert per_minute(runs, NOON, 4) == [2, 0, 1, 0]


def test_the_counts_of_periods_are_those_of_the_forecast(schedule: Schedule, make: Make) -> None:
    start = NOON + timedelta(seconds=30)
    make("often", crontab())
    make("tokyo", crontab(minute="*/20", hour="*/5"), timezone="Asia/Tokyo")
    make("seven", 7.5)
    make("few", 60, max_runs=40)
    make("ends", 60, end_time=NOON + timedelta(hours=2))
    make("late", crontab(minute="1"), start_time=NOON + timedelta(hours=5))
    make("asleep", 60).pause()
    length, number = timedelta(minutes=15), 40
    found = schedule.forecast(start + number * length, NOON)
    load = schedule.load(start, length, number, NOON)
    assert found.complete
    assert load.complete
    for name, counts in load.entries.items():
        periods = [(at - start) // length for at in found.runs[name] if at >= start]
        assert list(counts) == [periods.count(period) for period in range(number)], name
    assert sum(load.counts) == sum(at >= start for runs in found.runs.values() for at in runs)
    assert set(load.entries) == set(found.runs)


@pytest.mark.long
def test_a_week_of_many_entries_is_counted_to_its_end(schedule: Schedule, make: Make) -> None:
    first = make("first", 10)
    entries = [
        type(first)(f"e{number}", "proj.note", 5.0 + number % 50, app=first.app)
        for number in range(5000)
    ]
    schedule.save_all(entries)
    now = datetime.now(timezone.utc)
    load = schedule.load(now, timedelta(hours=2), 84, now)
    assert load.complete
    assert len(load.entries) == 5001
    assert min(load.counts) > 0.9 * max(load.counts)
