"""Tests of the limited list of upcoming runs."""

from __future__ import annotations

import json
import math
import time
from datetime import datetime, timedelta, timezone
from itertools import chain, takewhile
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, solar

from redbeat import RedBeatSchedulerEntry, rrule
from redbeat.decoder import encode
from redbeat.management.forecast import Periods, minutes_between
from redbeat.management.schedule import Schedule
from tests.conftest import Make
from tests.stored import put_failing, put_hold, put_nominal

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
    minutes = Periods(NOON, NOON, timedelta(minutes=1), found.until)
    load = minutes.count(chain.from_iterable(found.runs.values()))
    assert set(load[1:-1]) == {180}


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
    minutes = Periods(NOON, NOON, timedelta(minutes=1), NOON + timedelta(minutes=3.5))
    assert minutes.count(chain.from_iterable(runs.values())) == [2, 0, 1, 0]


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
    load = schedule.load(Periods(NOON, start, length, start + number * length))
    assert found.complete
    assert load.complete
    for name, counts in load.entries.items():
        periods = [(at - start) // length for at in found.runs[name] if at >= start]
        assert list(counts) == [periods.count(period) for period in range(number)], name
    assert sum(load.counts) == sum(at >= start for runs in found.runs.values() for at in runs)
    assert set(load.entries) == set(found.runs)


@pytest.fixture
def spread_out(schedule: Schedule, make: Make) -> datetime:
    """Store more entries than a page holds, which run at the full hour or delayed from it.

    The nominal instant of many runs has passed at the time that is returned, and their due times
    are later. The order of the due times differs from the order of the nominal instants.
    """
    later = datetime.now(timezone.utc) + timedelta(hours=2)
    now = later.replace(minute=20, second=0, microsecond=0)
    ran = now - timedelta(minutes=20, seconds=1)
    entries = [make("minutely", 60.0, last_run_at=ran)]
    for number in range(130):
        hourly = crontab(minute="0")
        often = 1800.0 + number
        entries += [
            make(f"plain{number}", hourly, last_run_at=ran),
            make(f"spread{number}", hourly, last_run_at=ran, spread=3600),
            make(f"interval{number}", often, last_run_at=ran, spread=1500),
            make(f"jitter{number}", hourly, last_run_at=ran, jitter=900),
            make(f"last{number}", hourly, last_run_at=ran, spread=3600, max_runs=1),
        ]
    schedule.save_all(entries)
    return now


def test_delayed_runs_are_in_order_of_their_due_times(
    schedule: Schedule, spread_out: datetime
) -> None:
    until = spread_out + timedelta(hours=2)
    all_runs = sorted(
        (at, name)
        for name, entry in schedule.items()
        for at in takewhile(until.__gt__, (run.due_at for run in entry.due_after(spread_out)))
    )
    assert schedule.upcoming(len(all_runs), spread_out) == all_runs
    found = schedule.forecast(until, spread_out)
    assert found.complete
    assert sorted((at, name) for name, runs in found.runs.items() for at in runs) == all_runs


def test_an_entry_is_due_at_its_first_upcoming_run(
    schedule: Schedule, spread_out: datetime
) -> None:
    delayed = [
        (record.name, record.due_at, record.entry)
        for record in schedule.records("*1*")
        if record.entry is not None and record.due_at is not None and record.due_at > spread_out
    ]
    assert len(delayed) > 50
    for name, due_at, entry in delayed:
        assert abs(entry.upcoming(1, spread_out)[0] - due_at) < timedelta(milliseconds=1), name
        if name.startswith("last"):
            assert len(entry.upcoming(5, spread_out)) == 1


def test_counts_include_the_spread(schedule: Schedule, spread_out: datetime) -> None:
    start, length, number = spread_out - timedelta(minutes=5), timedelta(minutes=10), 20
    found = schedule.forecast(start + number * length, spread_out)
    for totals in (False, True):
        load = schedule.load(Periods(spread_out, start, length, found.until), "[ilmps]*", totals)
        assert set(load.entries) == {name for name in found.runs if not name.startswith("j")}
        for name, counts in load.entries.items():
            periods = [(at - start) // length for at in found.runs[name]]
            expected = [periods.count(period) for period in range(number)]
            assert list(counts) == ([sum(expected)] if totals else expected), name


@pytest.mark.parametrize("spread", [0, 600])
def test_entries_that_never_ran_share_no_run_with_others(
    schedule: Schedule, make: Make, spread: float
) -> None:
    for name, ran in (("a", None), ("b", NOON - timedelta(hours=1))):
        make(name, crontab(minute="0"), last_run_at=ran, spread=spread)
    since = NOON + timedelta(minutes=20)
    found = schedule.forecast(since + timedelta(hours=3), since)
    load = schedule.load(minutes_between(since, found.until), totals=True)
    assert {name: len(runs) for name, runs in found.runs.items()} == {"a": 3, "b": 3}
    assert {name: sum(counts) for name, counts in load.entries.items()} == {"a": 3, "b": 3}


def test_the_last_period_may_be_shorter(schedule: Schedule, make: Make) -> None:
    make("minutely", 60)
    make("often", 7.5)
    make("noon", crontab(minute="0"))
    start, end = NOON - timedelta(minutes=40), NOON + timedelta(minutes=30, seconds=20)
    found = schedule.forecast(end, NOON)
    load = schedule.load(Periods(NOON, start, timedelta(hours=1), end), "*o*", totals=True)
    assert {name: list(found.runs[name]) for name in ("often", "noon") if name in found.runs}
    assert dict(load.entries) == {
        name: [len(runs)] for name, runs in found.runs.items() if "o" in name
    }
    early = sum(at < NOON + timedelta(minutes=20) for at in found.runs["often"])
    assert load.counts == [early, len(found.runs["often"]) - early]


def test_totals_have_the_same_counts_as_single_entries(schedule: Schedule, make: Make) -> None:
    now = datetime.now(timezone.utc)
    for number, every in enumerate([0.5, 7, 7, 7.25, 45, 59, 60, 61, 3600]):
        make(f"e{number}", every, last_run_at=now - timedelta(seconds=number * 0.3))
    make("from-tomorrow", 7, last_run_at=now + timedelta(days=1))
    make("few", 7, max_runs=12)
    make("crontab", crontab(minute="*/7"))
    make("ends", 30, end_time=now + timedelta(hours=2))
    start = now.replace(second=0, microsecond=0)
    periods = Periods(now, start, timedelta(minutes=1), now + timedelta(hours=25))
    single, total = schedule.load(periods), schedule.load(periods, totals=True)
    assert total.counts == single.counts
    assert dict(total.entries) == {name: [sum(each)] for name, each in single.entries.items()}
    assert list(total.entries) == list(single.entries)


@pytest.mark.long
def test_a_week_of_many_entries_is_counted_to_its_end(schedule: Schedule, make: Make) -> None:
    first = make("first", 10)
    entries = [
        type(first)(f"e{number}", "proj.note", 5.0 + number % 50, app=first.app)
        for number in range(5000)
    ]
    schedule.save_all(entries)
    now = datetime.now(timezone.utc)
    load = schedule.load(Periods(now, now, timedelta(hours=2), now + timedelta(weeks=1)))
    assert load.complete
    assert len(load.entries) == 5001
    assert min(load.counts) > 0.9 * max(load.counts)


class Own(RedBeatSchedulerEntry):
    """A class of a project, whose entries are made before their runs are counted."""


def interval_text(every: object) -> dict[str, object]:
    """Return the stored form of an interval."""
    return {"__type__": "interval", "every": every, "relative": False}


#: Changes of a definition that make most entries unreadable.
CHANGES: list[dict[str, Any]] = [
    *(
        {"schedule": interval_text(every)}
        for every in (1e300, math.nan, math.inf, -5.0, 1e-9, 3e10)
    ),
    *({"schedule": {"__type__": "crontab", **wrong}} for wrong in ({"minute": "99"}, {"x": 1})),
    {"schedule": {"__type__": "interval", "every": 60.0, "evry": 1}},
    {"schedule": {"__type__": "interval", "every": 60.0, "relative": []}},
    *({"task": 5}, {"args": "x"}, {"options": {"queue": 5}}, {"enabled": 1}, {"max_run": 5}),
    *({"policy": text} for text in ("{", '{"timezone": "No/Where"}', '{"overlap": 5}')),
    *({"policy": text} for text in ('{"timezone": "Asia/Tokyo"}', '{"overlap": "skip"}')),
    {"schedule": {"__type__": "crontab"}, "policy": '{"timezone": "No/Where"}'},
]


@pytest.mark.parametrize("minutes", [1, 15, 120])
def test_rows_are_counted_as_their_entries_are(
    app: Celery, make: Make, redis_client: redis.Redis, minutes: int
) -> None:
    schedule, now = Schedule(app), datetime.now(timezone.utc)
    for every in (0.5, 7, 60, 90, 600, 3600, 86_400, 100_000):
        make(f"every-{every}", every)
        make(f"late-{every}", every, last_run_at=now - timedelta(seconds=3.3 * every))
        make(f"limited-{every}", every, max_runs=5)
        make(f"ran-{every}", every, last_run_at=now - timedelta(seconds=200))
        put_nominal(redis_client, f"redbeat:ran-{every}", now.timestamp() - 200.25)
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        make(f"night-{zone}", crontab(minute="30", hour="2"), timezone=zone)
        make(f"often-{zone}", crontab(minute="*/20"), timezone=zone, misfire_grace_time=60)
    make("off", 60).pause()
    make("spread", 3600, spread=600)
    make("start", 60, start_time=now + timedelta(hours=2))
    make("solar", solar("sunset", 48.86, 2.35, app=app))
    make("relative", rrule("HOURLY"))
    make("held", 60)
    put_hold(redis_client, "redbeat:held", time.time() + 60)
    make("retried", 60)
    put_failing(redis_client, "redbeat:retried", 2, time.time() - 90, "OSError")
    texts = {
        "text": "{",
        "other": json.dumps({"name": "x", "task": "t", "schedule": interval_text(60)}),
        "odd": json.dumps({"name": "odd", "task": "t", "schedule": {"__type__": "crontab"}}),
        "wrong": json.dumps({"name": "wrong", "task": "t", "schedule": interval_text("60")}),
        "off-too": json.dumps(
            {"name": "off-too", "task": "t", "enabled": False, "schedule": interval_text(60.0)}
        ),
    }
    fields: dict[str, dict[Any, Any]] = {name: {"definition": text} for name, text in texts.items()}
    for number, change in enumerate(CHANGES):
        changed = {"name": f"odd-{number}", "task": "t", "schedule": interval_text(60.0), **change}
        policy = changed.pop("policy", None)
        fields[f"odd-{number}"] = {"definition": json.dumps(changed)}
        fields[f"odd-{number}"] |= {} if policy is None else {"policy": policy}
    ran = now - timedelta(seconds=30)
    meta = encode({"last_run_at": ran, "total_run_count": 1}, "meta")
    for name, stored in fields.items():
        redis_client.hset(f"redbeat:{name}", mapping={**stored, "meta": meta})
        redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": ran.timestamp() + 60})
    since = datetime.now(timezone.utc)
    start = since.replace(second=0, microsecond=0) + timedelta(minutes=1)
    length = timedelta(minutes=minutes)
    periods = Periods(since, start, length, start + 24 * length - timedelta(seconds=10))
    found, expected = schedule.load(periods), Schedule(app, Own).load(periods)
    assert {**found.entries} == {**expected.entries}
    assert list(found.counts) == list(expected.counts)
    assert [found.entry(name).name for name in found.entries] == [*found.entries]
    assert "off-too" not in found.entries
