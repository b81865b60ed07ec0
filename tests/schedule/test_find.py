"""Searches for entries by filters, states and due times, and for upcoming runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from redbeat import Schedule
from redbeat.errors import InvalidEntryError
from tests.scheduler.conftest import SCHEDULE, World, once

from .conftest import Make, RoundTrips

DAY = timedelta(days=1)


def names(found: Any) -> list[str]:
    return [item.name for item in found]


@pytest.fixture
def filled(schedule: Schedule, make: Make, world: World) -> Schedule:
    """A schedule with static, dynamic, paused and finished entries."""
    world.app.conf.beat_schedule = {"static": {"task": "billing.daily", "schedule": 500}}
    scheduler = world.scheduler()
    scheduler.tick()
    make("billing-a", task="billing.a", schedule=100).save()
    make("billing-b", task="mail.b", schedule=200).save()
    make("off", task="billing.c", enabled=False).save()
    make("done", max_runs=1, total_run_count=1, last_run_at=world.ago(9)).save()
    scheduler.tick()
    return schedule


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["billing-a", "billing-b", "static", "off", "done"]),
        ({"pattern": "billing-*"}, ["billing-a", "billing-b"]),
        ({"pattern": "BILLING-*"}, []),
        ({"task": "billing.*"}, ["billing-a", "static", "off"]),
        ({"enabled": False}, ["off"]),
        ({"enabled": True}, ["billing-a", "billing-b", "static", "done"]),
        ({"static": True}, ["static"]),
        ({"static": False, "task": "billing.*"}, ["billing-a", "off"]),
        ({"states": ["paused"]}, ["off"]),
        ({"states": "finished"}, ["done"]),
        ({"states": ["finished", "paused"]}, ["off", "done"]),
        ({"states": ["running"]}, []),
    ],
)
def test_filters(filled: Schedule, filters: dict[str, Any], expected: list[str]) -> None:
    assert names(filled.find(**filters)) == expected
    assert names(filled.records(**filters)) == expected


def test_due_before(filled: Schedule, world: World) -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=150)
    assert names(filled.find(due_before=soon)) == ["billing-a"]
    assert names(filled.find(due_before=soon.replace(tzinfo=None))) == ["billing-a"]
    world.client.zadd(SCHEDULE, {"redbeat:billing-b": 0})
    assert names(filled.find(due_before=soon)) == ["billing-b", "billing-a"]


def test_an_unknown_state_is_refused(schedule: Schedule) -> None:
    with pytest.raises(InvalidEntryError, match="states: must be one of scheduled, running"):
        schedule.records(states=["asleep"])  # type: ignore[list-item]


def test_a_limit_ends_the_reading(schedule: Schedule, make: Make, trips: RoundTrips) -> None:
    schedule.save_all(make(f"e{number:04}") for number in range(1200))
    trips.take()
    assert len(list(schedule.records(limit=3))) == 3
    assert trips.take() == 1
    assert len(list(schedule.records())) == 1200
    assert 0 < trips.take() <= 3 + 1  # three pages of 500, and a scan of all keys


def test_an_entry_that_is_being_sent_is_running(schedule: Schedule, world: World) -> None:
    world.put("a", last_run_at=world.ago(100), score=world.now() - 40)
    seen: list[tuple[str, datetime | None]] = []
    scheduler = world.scheduler()
    scheduler.before_send = once(
        lambda: seen.extend((found.state, found.due_at) for found in schedule.records())
    )
    scheduler.tick()
    ((state, due_at),) = seen
    assert state == "running"
    assert due_at is not None
    assert due_at < datetime.now(timezone.utc)
    assert [found.state for found in schedule.records()] == ["scheduled"]


def test_quarantined_entries_with_their_reasons(schedule: Schedule, world: World) -> None:
    world.put("bad", schedule={"__type__": "crontab", "minute": "nonsense"})
    world.scheduler().tick()
    (found,) = schedule.records(states=["quarantined"])
    assert (found.name, found.entry, found.due_at) == ("bad", None, None)
    assert "definition.schedule" in str(found.problem)
    ((name, (reason, since)),) = schedule.quarantine().items()
    assert (name, reason) == ("bad", found.problem)
    assert since is not None
    assert abs((since - datetime.now(timezone.utc)).total_seconds()) < 30


def test_upcoming_merges_all_entries(schedule: Schedule, make: Make) -> None:
    make("minute", schedule=crontab()).save()
    make("half", schedule=crontab(minute="*/30")).save()
    make("off", schedule=crontab(), enabled=False).save()
    after = datetime(2100, 1, 1, 0, 28, 30, tzinfo=timezone.utc)
    expected = [
        (datetime(2100, 1, 1, 0, 29, tzinfo=timezone.utc), "minute"),
        (datetime(2100, 1, 1, 0, 30, tzinfo=timezone.utc), "half"),
        (datetime(2100, 1, 1, 0, 30, tzinfo=timezone.utc), "minute"),
        (datetime(2100, 1, 1, 0, 31, tzinfo=timezone.utc), "minute"),
    ]
    assert sorted(schedule.upcoming(4, after=after)) == expected
    until = datetime(2100, 1, 1, 0, 29, tzinfo=timezone.utc)
    assert schedule.upcoming(10, after=after, until=until) == expected[:1]
    assert schedule.upcoming(0, after=after) == []


def test_upcoming_reads_no_more_than_it_needs(
    schedule: Schedule, make: Make, trips: RoundTrips
) -> None:
    schedule.save_all(make(f"e{number:04}", schedule=600 + number) for number in range(1200))
    trips.take()
    assert [name for _, name in schedule.upcoming(3)] == ["e0000", "e0001", "e0002"]
    assert trips.take() == 1
    found = schedule.upcoming(1100)
    assert 0 < trips.take() <= 2
    assert found == sorted(found)
    assert len(found) == 1100
    # The first entries run a second time before the last entries run once.
    assert [name for _, name in found].count("e0000") == 2


def test_status(filled: Schedule, world: World, trips: RoundTrips) -> None:
    world.put("late", last_run_at=world.ago(100), score=world.now() - 40)
    trips.take()
    status = filled.status()
    assert 0 < trips.take() <= 2
    parked = {"paused": 1, "finished": 1, "quarantined": 0}
    assert status.entries == {"scheduled": 4, "failing": 0, **parked}
    assert (status.due_now, status.statics, status.quarantined) == (1, 1, 0)
    assert status.most_late == pytest.approx(40, abs=10)
    assert abs(status.clock_offset) < 1
    assert status.leader is not None
    assert status.leader.pid is not None
    assert status.beats == [status.leader]
    assert status.server["mode"] == "standalone"
    assert status.server["version"]
    assert (status.key_prefix, status.lock_key) == ("redbeat:", "redbeat::lock")


@pytest.mark.usefixtures("no_lock")
def test_status_of_beats_without_a_lock(schedule: Schedule, world: World) -> None:
    for _ in range(2):
        world.scheduler().tick()
    status = schedule.status()
    assert (status.leader, status.lock_key, status.most_late) == (None, None, None)
    assert len(status.beats) == 2


NO_INSTANT = datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("after", lambda schedule: schedule.upcoming(after=NO_INSTANT)),
        ("until", lambda schedule: schedule.upcoming(until=NO_INSTANT)),
        ("until", lambda schedule: schedule.forecast(NO_INSTANT)),
        ("since", lambda schedule: schedule.simulate(NO_INSTANT, NO_INSTANT)),
        ("due_before", lambda schedule: list(schedule.records(due_before=NO_INSTANT))),
        ("after", lambda schedule: schedule["a"].upcoming(after=NO_INSTANT)),
        ("until", lambda schedule: schedule["a"].backfill(NO_INSTANT - DAY, NO_INSTANT)),
    ],
)
def test_a_time_after_the_year_9999_is_an_error(
    schedule: Schedule, make: Make, field: str, call: Callable[[Schedule], object]
) -> None:
    make("a").save()
    with pytest.raises(InvalidEntryError, match=f"^{field}: .* 1 and 9999 in UTC; correct it"):
        call(schedule)


@pytest.mark.parametrize("kind", [3600, crontab(minute=0)])
def test_the_year_1_is_before_all_runs(schedule: Schedule, make: Make, kind: object) -> None:
    entry = make("a", schedule=kind).save()
    first = datetime.min.replace(tzinfo=timezone.utc)
    (due,) = entry.upcoming(1, after=first)
    assert due.year == 1970
    assert schedule.upcoming(1, after=first) == [(due, "a")]


def test_status_of_an_empty_schedule(schedule: Schedule) -> None:
    status = schedule.status()
    assert (status.leader, status.beats, set(status.entries.values())) == (None, [], {0})


def test_entries_that_are_not_scheduled_are_found_by_their_state(
    filled: Schedule, make: Make, world: World
) -> None:
    """Without the state they are left out, because the search would scan all keys of Redis."""
    for name in ("out", "off-out"):
        make(name, task="billing.d", enabled=name == "out").save()
        world.client.zrem(SCHEDULE, f"redbeat:{name}")
    every = names(filled.records())
    assert "out" not in every
    assert sorted(names(filled.records(states=["not scheduled"]))) == ["off-out", "out"]
    assert names(filled.records("out*", states=["not scheduled"])) == ["out"]
    assert names(filled.records(states=["not scheduled"], enabled=False)) == ["off-out"]
    both = names(filled.records(states=["not scheduled", "paused"]))
    assert (both[0], sorted(both)) == ("off", ["off", "off-out", "out"])
    soon = datetime.now(timezone.utc) + timedelta(days=1)
    assert names(filled.records(states=["not scheduled"], due_before=soon)) == []
    (record,) = filled.records("out", states=["not scheduled"])
    assert (record.state, record.due_at) == ("not scheduled", None)
    assert "celery redbeat resume out schedules it" in str(filled["out"].status.reason)
