"""Tests of backfills: spans of a schedule whose runs a beat sends later."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry, rrule
from redbeat.entries.backfill import Backfill
from redbeat.entries.state import State
from redbeat.errors import InvalidEntryError
from tests.samples import long
from tests.scheduler.clients import CountingRedis
from tests.scheduler.conftest import (
    Clock,
    RecordingScheduler,
    World,
    counting,
    wire,
)
from tests.stored import put_state

from .conftest import Make, RoundTrips

__all__ = ("counting", "wire")

UTC = timezone.utc
HOUR = timedelta(hours=1)


def tick_until(scheduler: RecordingScheduler, done: Callable[[], bool], most: int = 300) -> None:
    for _ in range(most):
        if done():
            return
        scheduler.tick()
    raise AssertionError("the backfill did not end")


def finish(scheduler: RecordingScheduler, entry: RedBeatSchedulerEntry) -> list[datetime]:
    """Tick until all backfills of the entry have finished; return the instants of the messages."""
    tick_until(scheduler, lambda: all(one.finished for one in entry.backfills))
    return [sent.scheduled_at for sent in scheduler.sent]


@pytest.fixture
def ran(world: World, make: Make) -> RedBeatSchedulerEntry:
    """An hourly entry that ran half an hour ago, after a gap of 20 hours."""
    return make("a", last_run_at=world.ago(1800)).save()


def last_run(entry: RedBeatSchedulerEntry) -> datetime:
    assert entry.last_run_at is not None
    return entry.last_run_at.astimezone(UTC)


def score_of(world: World) -> float:
    score = world.score("a")
    assert score is not None
    return score


def test_the_runs_of_a_span_are_sent_with_their_ids(
    ran: RedBeatSchedulerEntry, world: World
) -> None:
    last, scheduler = last_run(ran), world.scheduler()
    before = world.client.hgetall("redbeat:a")
    plan = ran.backfill(last - 5 * HOUR, last, rate=1000)
    assert plan.instants == [last - number * HOUR for number in (5, 4, 3, 2, 1)]
    assert finish(scheduler, ran) == plan.instants
    assert [sent.id for sent in scheduler.sent] == [ran.task_id_of(at) for at in plan.instants]
    for sent in scheduler.sent:
        headers = sent.options["headers"]
        assert headers["backfilled"] is True
        assert "triggered" not in headers
    after = world.client.hgetall("redbeat:a")
    for field in ("meta", "definition"):
        assert after.get(field) == before.get(field)
    assert abs(score_of(world) - (last + HOUR).timestamp()) < 1e-3
    assert ran.history == []
    (progress,) = ran.backfills
    assert (progress.sent, progress.total, progress.left) == (5, 5, ())


def test_a_second_request_adds_nothing(make: Make, world: World) -> None:
    ran = make("a", last_run_at=world.ago(1800)).save()
    last, scheduler = last_run(ran), world.scheduler()
    ran.backfill(last - 5 * HOUR, last, rate=1000)
    waiting = ran.backfill(last - 5 * HOUR, last)  # before the first run
    assert (waiting.instants, waiting.left_out, waiting.backfill) == ([], 5, None)
    finish(scheduler, ran)
    again = ran.backfill(last - 7 * HOUR, last - 2 * HOUR, rate=1000)
    assert (again.instants, again.left_out) == ([last - 7 * HOUR, last - 6 * HOUR], 3)
    finish(scheduler, ran)
    assert len(scheduler.sent) == 7
    assert ran.backfill(last - 7 * HOUR, last).instants == []
    forgotten = ran.backfill(last - 7 * HOUR, last, again=True, dry_run=True)
    assert (forgotten.left_out, len(forgotten.instants)) == (0, 7)


def test_what_still_waits_is_not_sent_again(make: Make, world: World) -> None:
    ran = make("a", last_run_at=world.ago(1800)).save()
    last, scheduler = last_run(ran), world.scheduler()
    ran.backfill(last - 5 * HOUR, last, rate=1000)
    again = ran.backfill(last - 6 * HOUR, last, rate=1000, again=True)
    assert (again.instants, again.left_out) == ([last - 6 * HOUR], 5)
    finish(scheduler, ran)
    assert len(scheduler.sent) == 6


def test_runs_in_the_history_and_runs_to_come_are_left_out(make: Make, world: World) -> None:
    start = world.ago(4.5 * 3600)
    entry = make("a", last_run_at=start, coalesce="all", catch_up_limit=9)
    entry.save()
    scheduler = world.scheduler()
    tick_until(scheduler, lambda: len(scheduler.sent) == 4)
    found = entry.backfill(start - 2 * HOUR, start + 9 * HOUR, dry_run=True)
    grid = start.astimezone(UTC)
    assert found.instants == [grid - 2 * HOUR, grid - HOUR, grid]
    assert found.left_out == 4
    assert found.until == grid + 4 * HOUR + timedelta(microseconds=1)
    overdue = make("b", last_run_at=start).save()
    assert overdue.backfill(start + HOUR, start + 9 * HOUR).instants == []


@pytest.mark.parametrize(
    ("fields", "by_schedule"),
    [({}, 1), ({"coalesce": "all", "catch_up_limit": 2}, 2), ({"misfire_grace_time": 60}, 0)],
)
def test_runs_that_an_entry_which_never_ran_catches_up_are_left_out(
    make: Make, world: World, fields: dict[str, Any], by_schedule: int
) -> None:
    """The schedule has yet to send them. Each run has one message."""
    start = world.ago(5 * 3600 + 1800).astimezone(UTC).replace(microsecond=0)
    entry = make("a", schedule=rrule("HOURLY", dtstart=start), **fields).save()
    world.client.hdel("redbeat:a", "meta")  # as other programs add entries
    plan = entry.backfill(start, start + 9 * HOUR, rate=1000)
    assert plan.instants == [start + number * HOUR for number in range(6 - by_schedule)]
    scheduler = world.scheduler()
    sent = finish(scheduler, entry)
    assert sorted(sent) == [start + number * HOUR for number in range(6)]


@pytest.mark.parametrize("before", [True, False])
def test_a_pause_stops_a_backfill(ran: RedBeatSchedulerEntry, world: World, before: bool) -> None:
    last, scheduler = last_run(ran), world.scheduler()
    if before:
        ran.pause()
    ran.backfill(last - 5 * HOUR, last, rate=1000)
    ran.pause()
    for _ in range(5):
        scheduler.tick()
    assert scheduler.sent == []
    assert world.score("a") == -2
    ran.trigger()
    for _ in range(5):
        scheduler.tick()
    assert len(scheduler.sent) == 1
    ran.resume()
    assert len(finish(scheduler, ran)) == 6


def test_a_backfill_can_be_cancelled(ran: RedBeatSchedulerEntry, world: World) -> None:
    last, scheduler = last_run(ran), world.scheduler()
    ran.backfill(last - 5 * HOUR, last, rate=0.01)
    for _ in range(3):
        scheduler.tick()
    (ended,) = ran.cancel_backfill()
    assert (ended.sent, ended.total) == (1, 5)
    (left,) = ran.backfills
    assert (left.sent, left.total, left.finished) == (1, 1, True)
    assert ran.cancel_backfill() == []
    scheduler.tick()
    assert abs(score_of(world) - (last + HOUR).timestamp()) < 1e-3
    assert ran.backfill(last - 5 * HOUR, last, rate=1000).left_out == 1
    assert len(finish(scheduler, ran)) == 5


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_each_delivery_sends_each_run_once(make: Make, world: World, delivery: str) -> None:
    entry = make("a", last_run_at=world.ago(1800), delivery=delivery).save()
    plan = entry.backfill(last_run(entry) - 5 * HOUR, last_run(entry), rate=1000)
    assert finish(world.scheduler(), entry) == plan.instants


def test_a_beat_that_exits_after_a_message_repeats_its_id(
    ran: RedBeatSchedulerEntry, world: World
) -> None:
    plan = ran.backfill(last_run(ran) - 3 * HOUR, last_run(ran), rate=1000)
    first, second = world.scheduler(), world.scheduler()

    def exit_at_second_run(_task: str) -> None:
        if first.sent:
            raise SystemExit(1)

    first.before_send = exit_at_second_run
    with pytest.raises(SystemExit):
        tick_until(first, lambda: len(first.sent) > 1)
    first.close()
    finish(second, ran)
    ids = [sent.id for scheduler in (first, second) for sent in scheduler.sent]
    assert ids == [ran.task_id_of(at) for at in plan.instants]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("until", {"until": -6}),
        ("until", {"since": -5, "until": -5}),
        long("until", {"since": -30, "schedule": 1}),
        ("since", {"since": -24 * 365 * 70}),
        ("rate", {"rate": 0}),
        ("rate", {"rate": float("nan")}),
        ("rate", {"rate": float("inf")}),
    ],
)
def test_a_wrong_request_is_refused(
    make: Make, world: World, field: str, arguments: dict[str, Any]
) -> None:
    entry = make("a", schedule=arguments.get("schedule", 3600)).save()
    last = last_run(entry)
    since, until = (
        last + arguments.get(name, hours) * HOUR for name, hours in (("since", -5), ("until", 0))
    )
    with pytest.raises(InvalidEntryError) as raised:
        entry.backfill(since, until, rate=arguments.get("rate", 10))
    assert raised.value.field == field
    assert world.waiting("a") == 0


class WithClock(RedBeatSchedulerEntry):
    """An entry whose schedule has its own clock, so that only its ``is_due`` decides."""

    @classmethod
    def from_definition(cls, app: Any, definition: str, policy: str = "") -> WithClock:
        entry = super().from_definition(app, definition, policy)
        entry.schedule.nowfun = lambda: datetime.now(UTC)
        return entry


def test_a_schedule_with_its_own_clock_is_refused(make: Make, world: World) -> None:
    last = last_run(make("a").save())
    entry = WithClock.from_key("redbeat:a", app=world.app)
    with pytest.raises(InvalidEntryError, match="schedule: the class has its own is_due"):
        entry.backfill(last - HOUR, last)


def test_round_trips(ran: RedBeatSchedulerEntry, trips: RoundTrips) -> None:
    last = last_run(ran)
    ran.backfill(last - 5 * HOUR, last, rate=0.01)
    trips.take()
    ran.backfill(last - 5 * HOUR, last, dry_run=True)
    assert 0 < trips.take() <= 2
    ran.backfill(last - 6 * HOUR, last)
    assert 0 < trips.take() <= 3
    assert ran.backfills
    assert trips.take() == 1
    ran.cancel_backfill()
    assert 0 < trips.take() <= 2


def test_many_entries_take_no_more_round_trips(
    make: Make, world: World, counting: CountingRedis
) -> None:
    def tick_with(number: int) -> int:
        names = [f"{number}-{place}" for place in range(number)]
        entries = [make(name, last_run_at=world.ago(1800)).save() for name in names]
        for entry in entries:
            entry.backfill(last_run(entry) - 3 * HOUR, last_run(entry), rate=1000)
        before = counting.trips
        scheduler.tick()
        assert len(scheduler.sent) == 3 * number
        scheduler.sent.clear()
        return counting.trips - before

    scheduler = world.scheduler(clock=Clock())  # a slow machine takes more, smaller turns
    scheduler.tick()
    assert tick_with(40) <= tick_with(1) + 1


#: An hour of a backfill, and what another program may store in place of one of its parts.
VALID: list[Any] = ["r", 0.0, 3600.0, 10.0, 1, 9, [[60.0, 3600.0]], 1.0]
NAN, INF = float("nan"), float("inf")
HOSTILE: list[tuple[int, Any]] = [
    *((0, ""), (0, 5), (0, "r" * 201), (0, None)),
    *((1, NAN), (1, "0"), (1, None), (2, INF), (2, 1e20)),
    *((3, 1e-9), (3, 0), (3, -1.0), (3, NAN), (3, INF), (3, "10"), (3, True), (3, None)),
    *((4, -1), (4, 1.0), (4, "1"), (5, True), (5, 10**30), (5, None)),
    *((6, []), (6, [[0.0, 1.0]] * 101), (6, [[NAN, 1.0]]), (6, [[0.0]]), (6, 5), (6, None)),
    *((7, NAN), (7, INF), (7, "1"), (7, None)),
]


@pytest.mark.parametrize(("part", "value"), HOSTILE)
def test_a_backfill_as_another_program_writes_it(
    ran: RedBeatSchedulerEntry, world: World, part: int, value: Any
) -> None:
    hostile = [*VALID[:part], value, *VALID[part + 1 :]]
    put_state(world.client, "redbeat:a", waiting=[hostile])
    assert State.read(world.client.hget("redbeat:a", "beat_state"), None).problem
    assert ran.backfills == []
    assert ran.cancel_backfill() == []
    last, scheduler = last_run(ran), world.scheduler()
    ran.backfill(last - 3 * HOUR, last, rate=1000)
    assert len(finish(scheduler, ran)) == 3


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6, 7])
def test_a_backfill_that_lacks_parts_cannot_be_read(number: int) -> None:
    assert State.read(json.dumps({"waiting": [VALID[:number]]}), None).problem
    assert not State.read(json.dumps({"waiting": [VALID]}), None).problem


def test_the_longest_backfill_reads_back() -> None:
    since = datetime(9999, 12, 1, 1, 2, 3, 456_789, UTC)
    spans = tuple((since + number * HOUR, since + (number + 1) * HOUR) for number in range(100))
    one = Backfill("r" * 200, since, since + 99 * HOUR, 1e300, 3, 9, spans, since.timestamp())
    # A float has fewer digits than the microseconds of this instant.
    read = State.read(State(waiting=(one,)).text(), None)
    assert State.read(read.text(), None) == read
    assert (read.problem, len(read.backfills)) == ("", 1)
