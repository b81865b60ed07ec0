"""Tests of which occurrence is due at a given time, and of its task id."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.decide import Decision, Plan, decide, namespace_of, task_id_of
from redbeat.schedules import rrule
from tests.deployments import PREFIX

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(hour: int, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "anchor", "expected"),
    [
        (schedule(3600), at(11, 30), Decision(None, at(12, 30))),
        (schedule(3600), at(11), Decision(at(12), at(13))),
        (schedule(3600), at(10), Decision(at(12), at(13), 1)),
        (schedule(3600), at(10, 30), Decision(at(11, 30), at(12, 30))),
        (schedule(3600), at(5, 15), Decision(at(11, 15), at(12, 15), 5)),
        (crontab(minute=0), at(11), Decision(at(12), at(13))),
        (crontab(minute=0), at(10), Decision(at(12), at(13), 1)),
        (crontab(minute=0), at(3), Decision(at(12), at(13), 8)),
        (crontab(minute=30), at(11, 30), Decision(None, at(12, 30))),
        (crontab(minute=0, hour=9), at(9, day=1), Decision(at(9), at(9, day=3))),
        (rrule("HOURLY", dtstart=at(0)), at(3), Decision(at(12), at(13), 8)),
        (rrule("HOURLY", dtstart=at(0)), at(10), Decision(at(12), at(13), 1)),
        (rrule("HOURLY", dtstart=at(0), count=4), at(1), Decision(at(3), None, 1)),
        (rrule("HOURLY", dtstart=at(0), count=4), at(3), Decision(None, None)),
    ],
)
def test_missed_occurrences_coalesce_into_the_latest_and_are_counted(
    rule: Any, anchor: datetime, expected: Decision
) -> None:
    assert decide(Plan(rule, UTC), anchor, anchor, NOON, NOON) == expected


def test_an_interval_keeps_the_phase_of_its_first_run() -> None:
    assert decide(Plan(schedule(3600), UTC), None, None, NOON, at(10, 20)).next_at == at(12, 20)


def test_an_entry_with_a_future_score_runs_now() -> None:
    assert decide(Plan(schedule(3600), UTC), None, None, NOON, at(13)).scheduled_at == NOON


def test_a_rule_that_never_ran_starts_with_its_first_occurrence() -> None:
    rule = rrule("DAILY", dtstart=at(12), count=2)
    assert decide(Plan(rule, UTC), None, None, at(11), at(11)) == Decision(None, at(12))
    assert decide(Plan(rule, UTC), None, None, NOON, NOON) == Decision(at(12), at(12, day=3))


class Moody(schedule):
    """A schedule class with its own `is_due()`."""

    def is_due(self, last_run_at: datetime) -> Any:
        return (last_run_at < at(0), self.run_every.total_seconds() or None)


def test_is_due_of_a_class_of_the_user_decides() -> None:
    moody = Moody(60, nowfun=lambda: NOON)
    assert decide(Plan(moody), at(1), at(1), NOON, NOON) == Decision(None, NOON + HOUR / 60)
    assert decide(Plan(moody), None, None, NOON, at(11)) == Decision(at(11), NOON + HOUR / 60)
    assert decide(Plan(Moody(0)), at(1), at(1), NOON, NOON) == Decision(None, None)


@pytest.mark.parametrize("name", ["simple", "mit Leerzeichen", "übung", "a:b/c"])
@pytest.mark.parametrize("number", range(40))
def test_a_task_id_is_the_uuid_5_of_the_occurrence(name: str, number: int) -> None:
    instant = (NOON + number * HOUR).isoformat()
    expected = uuid.uuid5(uuid.UUID(bytes=namespace_of("redbeat:")), f"{instant} {name}")
    assert task_id_of("redbeat:", name, instant) == str(expected)


def test_task_ids_differ_by_prefix_name_and_instant() -> None:
    ids = {
        task_id_of(prefix, name, instant)
        for prefix in ("a:", "b:")
        for name in ("x", "y")
        for instant in ("2026-03-02T12:00:00+00:00", "2026-03-02T13:00:00+00:00")
    }
    assert len(ids) == 8


BERLIN = ZoneInfo("Europe/Berlin")
INSTANT = datetime(2026, 10, 25, 0, 30, 0, 120_000, tzinfo=UTC)


@pytest.fixture
def entry(app: Celery) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("a", "t", 60, app=app)


def id_at(occurrence: str) -> str:
    return task_id_of(PREFIX, "a", occurrence, "")


@pytest.mark.parametrize(
    "same",
    [
        INSTANT.replace(tzinfo=None),
        INSTANT.astimezone(timezone(timedelta(hours=-3))),
        INSTANT.astimezone(BERLIN),
    ],
    ids=["naive", "offset", "zone"],
)
def test_equal_instants_have_equal_ids(entry: RedBeatSchedulerEntry, same: datetime) -> None:
    assert entry.own_task_id(same) == entry.own_task_id(INSTANT)
    assert entry.own_task_id(same) == id_at("2026-10-25T00:30:00.120000+00:00")
    later = same + timedelta(microseconds=1)
    assert entry.own_task_id(later) != entry.own_task_id(INSTANT)


def test_both_hours_that_a_clock_repeats_differ(entry: RedBeatSchedulerEntry) -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    assert entry.own_task_id(first) == id_at("2026-10-25T00:30:00+00:00")
    second = first.replace(fold=1)
    assert entry.own_task_id(second) == id_at("2026-10-25T01:30:00+00:00")
