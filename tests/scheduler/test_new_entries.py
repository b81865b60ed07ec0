"""The first run of a new entry is neither skipped nor repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import time_machine
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatSchedulerEntry, clocked, rrule
from tests.deployments import PREFIX

from .conftest import World, interval_json

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


class Later(schedule):
    """An interval of an hour that begins in 90 minutes."""

    begin = None

    def now(self) -> datetime:
        if self.begin is None:
            self.begin = now() + 90 * MINUTE
        return self.begin


def in_90_minutes() -> datetime:
    return (now() + 90 * MINUTE).replace(microsecond=0)


HOUR = timedelta(hours=1)
#: Schedules of an hour whose clock shows ``begin``.
CLOCKS: dict[str, Callable[[datetime], BaseSchedule]] = {
    "aware": lambda begin: schedule(3600, nowfun=lambda: begin),
    "naive": lambda begin: schedule(3600, nowfun=lambda: begin.replace(tzinfo=None)),
    "relative": lambda begin: schedule(3600, relative=True, nowfun=lambda: begin),
    "crontab": lambda begin: crontab("0", nowfun=lambda: begin),
    "rule": lambda begin: rrule(
        "HOURLY", now().replace(minute=0, second=0, microsecond=0), nowfun=lambda: begin
    ),
    "class": lambda _begin: Later(3600),
}


class TestClockThatShowsItsStart:
    """Programs set when an interval begins by a clock that shows this instant."""

    @pytest.mark.parametrize("make", [save, static])
    @pytest.mark.parametrize("kind", [*CLOCKS])
    def test_the_first_run_follows_an_interval_later(
        self, world: World, make: Any, kind: str
    ) -> None:
        begin = in_90_minutes()
        make(world, CLOCKS[kind](begin))
        world.scheduler().tick()
        first = begin + HOUR
        if kind in ("relative", "crontab", "rule"):
            first = first.replace(minute=0, second=0)
        assert world.score("new") == pytest.approx(first.timestamp(), abs=2)
        stored = RedBeatSchedulerEntry.from_key(f"{PREFIX}new", app=world.app)
        assert stored.upcoming(2) == [
            pytest.approx(at, abs=2 * timedelta(seconds=1)) for at in (first, first + HOUR)
        ]

    def test_a_clock_that_shows_the_past_is_the_last_run(self, world: World) -> None:
        begin = now() - 90 * MINUTE
        save(world, schedule(3600, nowfun=lambda: begin))
        scheduler = world.scheduler()
        scheduler.tick()
        assert [message.scheduled_at for message in scheduler.sent] == [begin + HOUR]

    def test_a_clock_that_shows_the_start_does_not_decide_about_later_runs(
        self, world: World
    ) -> None:
        begin, ran = now() - 10 * HOUR, now() - 90 * MINUTE
        static(world, schedule(3600, nowfun=lambda: begin))
        scheduler = world.scheduler()
        scheduler.tick()
        scheduler.sent.clear()
        world.put_meta("new", ran)
        world.make_due("new")
        scheduler.tick()
        assert [message.scheduled_at for message in scheduler.sent] == [ran + HOUR]

    def test_further_saves_move_nothing(self, world: World) -> None:
        begin, ran = in_90_minutes(), world.ago(60)
        entry = RedBeatSchedulerEntry(
            "new", "t", schedule(3600, nowfun=lambda: begin), app=world.app
        )
        for _ in range(2):
            entry.save()
            assert world.score("new") == (begin + HOUR).timestamp()
        world.put_meta("new", ran)  # as if a beat had run it; a program saves it at each start
        save(world, schedule(3600, nowfun=lambda: begin))
        world.scheduler().tick()
        assert world.score("new") == pytest.approx((ran + HOUR).timestamp(), abs=0.01)

    def test_a_clock_of_a_host_that_is_ahead_is_not_a_start(self, world: World) -> None:
        with time_machine.travel(time.time() + 7200, tick=True):
            save(world, schedule(3600, nowfun=now))
        scheduler = world.scheduler()
        scheduler.tick()
        assert scheduler.sent == []
        assert world.score("new") == world.later(3600)


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


def started(ago: timedelta, **more: Any) -> dict[str, Any]:
    return {"start_time": now() - ago, **more}


#: Two days and 20 minutes ago: the next run of an hourly interval is in 40 minutes.
LONG_AGO = timedelta(days=2, minutes=20)


class TestStartInThePast:
    """The runs of an interval with a ``start_time`` are counted from it, not from a save."""

    @pytest.mark.parametrize("make", [save, static])
    @pytest.mark.parametrize(
        "policy",
        [
            {},
            {"coalesce": "all", "catch_up_limit": 9},
            {"end_time": "2100-01-01T00:00:00Z", "max_runs": 1},
        ],
    )
    @pytest.mark.parametrize(
        ("every", "minutes"), [(HOUR, 40), (7 * HOUR, 40), (timedelta(days=3), 1420)], ids=str
    )
    def test_a_new_entry_runs_next_on_the_grid(
        self, world: World, make: Any, policy: dict[str, Any], every: timedelta, minutes: float
    ) -> None:
        fields = started(LONG_AGO, **policy)
        make(world, schedule(every), **fields)
        scheduler = world.scheduler()
        for _ in range(2):
            scheduler.tick()
            assert scheduler.sent == []
            assert world.score("new") == world.later(60 * minutes)
            if make is save:  # a new object, as at each start of a program
                make(world, schedule(every), **fields)
        entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}new", app=world.app)
        assert entry.upcoming(1)[0].timestamp() == pytest.approx(world.score("new"))

    def test_an_edit_moves_the_runs_to_the_grid(self, world: World) -> None:
        world.put("new", interval_json(3600), world.ago(90 * 60))
        scheduler = world.scheduler()
        scheduler.tick()
        assert len(scheduler.sent) == 1
        entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}new", app=world.app)
        entry.start_time = now() - LONG_AGO
        entry.save()
        scheduler.tick()
        assert len(scheduler.sent) == 1
        assert world.score("new") == world.later(40 * 60)
