"""The first run of a new entry is neither skipped nor repeated."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry, clocked, rrule
from tests.deployments import PREFIX

from .conftest import World

MINUTE = timedelta(minutes=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


def save(world: World, when: Any, **more: Any) -> None:
    RedBeatSchedulerEntry("new", "tasks.echo", when, app=world.app, **more).save()


def static(world: World, when: Any, **more: Any) -> None:
    world.app.conf.beat_schedule = {"new": {"task": "tasks.echo", "schedule": when, **more}}


@pytest.mark.parametrize("make", [save, static])
class TestFirstRun:
    @pytest.mark.parametrize("ago", [timedelta(seconds=1), timedelta(days=400)], ids=str)
    def test_an_instant_that_has_passed_is_run_once(
        self, world: World, make: Any, ago: timedelta
    ) -> None:
        instant = now() - ago
        make(world, clocked(instant))
        scheduler = world.scheduler()
        for _ in range(3):
            scheduler.tick()
        assert [message.scheduled_at for message in scheduler.sent] == [instant]
        assert world.client.zscore(f"{PREFIX}:schedule", f"{PREFIX}new") == -1

    def test_a_rule_without_a_start_runs_at_its_creation(self, world: World, make: Any) -> None:
        rule = rrule("DAILY")
        make(world, rule)
        scheduler = world.scheduler()
        for _ in range(3):
            scheduler.tick()
        assert [message.scheduled_at for message in scheduler.sent] == [rule.start]

    def test_a_rule_whose_start_is_long_ago_catches_up_nothing(
        self, world: World, make: Any
    ) -> None:
        start = (now() - timedelta(days=1) + 30 * MINUTE).replace(microsecond=0)
        make(world, rrule("DAILY", dtstart=start))
        scheduler = world.scheduler()
        scheduler.tick()
        assert scheduler.sent == []
        score = world.client.zscore(f"{PREFIX}:schedule", f"{PREFIX}new")
        assert score == (start + timedelta(days=1)).timestamp()

    def test_a_rule_that_begins_later_waits(self, world: World, make: Any) -> None:
        start = (now() + 5 * MINUTE).replace(microsecond=0)
        make(world, rrule("DAILY", dtstart=start))
        scheduler = world.scheduler()
        scheduler.tick()
        assert scheduler.sent == []
        assert world.client.zscore(f"{PREFIX}:schedule", f"{PREFIX}new") == start.timestamp()

    def test_an_interval_waits_for_its_length(self, world: World, make: Any) -> None:
        make(world, schedule(60))
        scheduler = world.scheduler()
        scheduler.tick()
        assert scheduler.sent == []


def test_a_new_entry_with_a_last_run_counts_from_it(world: World) -> None:
    instant = now() - MINUTE
    save(world, clocked(instant), last_run_at=now())
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.sent == []


@pytest.mark.parametrize(
    ("policy", "runs"), [({}, 1), ({"coalesce": "all", "catch_up_limit": 10}, 3)]
)
def test_the_first_run_is_due_at_a_score_with_many_digits(
    world: World, policy: dict[str, Any], runs: int
) -> None:
    """Since version 7.2, Redis returns some scores to scripts in the form 1.7956626498554249e+9.

    Nearly every ``time.time()`` of another program is such a score.
    """
    due = int(world.now()) - 150 + 0.3333333
    world.put("new", score=due)
    world.client.hset(f"{PREFIX}new", "policy", json.dumps(policy))
    scheduler = world.scheduler()
    for _ in range(4):
        scheduler.tick()
    sent = [message.scheduled_at.timestamp() for message in scheduler.sent]
    assert sent == pytest.approx([due + 60 * number for number in range(runs)], abs=1e-5)
