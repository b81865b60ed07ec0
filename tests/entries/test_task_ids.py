"""Tests of the task ids that RedBeat computes from nominal times, whatever their zone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.decide import task_id_of
from tests.deployments import PREFIX

UTC = timezone.utc
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
