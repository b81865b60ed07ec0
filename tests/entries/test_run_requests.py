"""Programs request runs and backfills on a real server."""

from __future__ import annotations

from datetime import datetime

import pytest

from redbeat import ConflictError, InvalidEntryError
from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries import edits
from redbeat.entries.decide import Trigger
from redbeat.entries.state import Quarantine
from tests.deployments import PREFIX
from tests.entries.worlds import KEYS, World, hold_at, near, nothing, span_of

pytestmark = pytest.mark.standalone


def test_hundreds_of_runs_may_wait_for_an_earlier_one(world: World) -> None:
    entry = world.saved()
    waiting = [Trigger(f"{number:012}", from_timestamp(1.5e9)) for number in range(1000)]
    world.put_state(waiting=tuple(waiting[:300]))
    edits.request_run(world.store, entry)
    world.put_state(waiting=tuple(waiting))
    with pytest.raises(InvalidEntryError, match="too many runs of 'a' are waiting"):
        edits.request_run(world.store, entry)


def test_a_run_is_refused(world: World) -> None:
    entry = world.entry()
    with pytest.raises(KeyError):
        edits.request_run(world.store, entry)
    world.save(entry)
    world.save(world.entry("b"))
    world.client.zrem(KEYS.schedule, world.key("b"))
    with pytest.raises(InvalidEntryError, match="is not scheduled"):
        edits.request_run(world.store, world.entry("b"))
    edits.resume_entry(world.store, world.entry("b"))
    world.client.hset(f".{PREFIX}:quarantine", world.key("b"), "{}")
    with pytest.raises(InvalidEntryError, match="quarantine"):
        edits.request_run(world.store, world.entry("b"))
    world.client.set(world.key("c"), "text")
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        edits.request_run(world.store, world.entry("c"))


def test_a_backfill_is_requested_once(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    span = span_of(world)
    rehearsed = edits.request_backfill(world.store, entry, *span, dry_run=True)
    assert not world.state().waiting
    plan = edits.request_backfill(world.store, entry, *span)
    assert plan.instants == rehearsed.instants
    assert len(plan.instants) in (4, 5)
    assert world.state().waiting == (plan.backfill,)
    assert world.is_due()
    again = edits.request_backfill(world.store, entry, *span)
    assert again.backfill is None
    assert again.left_out == plan.left_out + len(plan.instants)


def test_two_requests_of_a_span_are_one_backfill(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    span = span_of(world)

    def request() -> None:
        edits.request_backfill(world.other, entry, *span)

    world.store.before = [None, request]
    plan = edits.request_backfill(world.store, entry, *span)
    assert plan.backfill is None
    assert len(world.state().waiting) == 1


def test_a_backfill_during_a_hold_waits_for_its_end(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    until = world.now + 30
    world.put_state(hold=hold_at(until), score=until)
    world.store.lost = [None, nothing]
    edits.request_backfill(world.store, entry, *span_of(world))
    assert world.score() == near(until)
    assert len(world.state().waiting) == 1


def test_backfills_are_cancelled(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    assert edits.cancel_backfills(world.store, entry) == []
    with pytest.raises(KeyError):
        edits.cancel_backfills(world.store, world.entry("gone"))
    plan = edits.request_backfill(world.store, entry, *span_of(world))
    world.put_state(waiting=(*world.state().waiting, Trigger("t", from_timestamp(1.0))))
    world.store.before = [None, world.run]
    assert edits.cancel_backfills(world.store, entry) == [plan.backfill]
    assert [one.id for one in world.state().waiting] == ["t"]
    plan = edits.request_backfill(world.store, entry, *span_of(world))
    world.client.zrem(KEYS.schedule, entry.key)
    assert edits.cancel_backfills(world.store, entry) == [plan.backfill]
    assert world.score() is None, "to cancel does not schedule"


def test_a_backfill_is_refused(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    since, until = span_of(world)
    for bad in ((until, since), (datetime(1960, 1, 1, tzinfo=UTC), until)):
        with pytest.raises(InvalidEntryError):
            edits.request_backfill(world.store, entry, *bad)
    with pytest.raises(InvalidEntryError, match="rate"):
        edits.request_backfill(world.store, entry, since, until, rate=0)
    world.put_state(quarantine=Quarantine(1.0, "x"))
    with pytest.raises(InvalidEntryError, match="quarantine"):
        edits.request_backfill(world.store, entry, since, until)
    world.put_state(quarantine=None)
    world.client.zrem(KEYS.schedule, entry.key)
    with pytest.raises(InvalidEntryError, match="is not scheduled"):
        edits.request_backfill(world.store, entry, since, until)
    edits.resume_entry(world.store, entry)
    world.store.before = [world.run] * 21
    with pytest.raises(ConflictError):
        edits.request_backfill(world.store, entry, since, until)
    world.store.before = [None, lambda: edits.delete(world.other, [entry.key])]
    with pytest.raises(KeyError):
        edits.request_backfill(world.store, entry, since, until)
