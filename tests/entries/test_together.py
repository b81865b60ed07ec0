"""Programs and beats change the same entries at the same time."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis

from redbeat import ConflictError, RedBeatSchedulerEntry
from redbeat.calendar.zones import from_timestamp
from redbeat.entries import changes, edits, saving
from redbeat.entries.backfill import Backfill
from redbeat.entries.history import History, encode_meta
from redbeat.entries.state import State, digest_of_meta, read_inbox, trigger_line
from redbeat.storage.rows import Change, Request, digest_of, new_mark
from redbeat.storage.store import Store
from redbeat.storage.words import DONE, TRIGGER
from tests.beat.worlds import HookedScheduler
from tests.entries.worlds import HOUR, KEYS, Hook, World, near, span_of
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.standalone

IDS = [f"t{number}" for number in range(20)]


def record_runs(world: World, store: Store) -> None:
    for _ in IDS:
        while not recorded(store, world.key()):
            pass


def edit_loaded(world: World, store: Store) -> None:
    for name in IDS:
        one = saving.load(store, world.app, world.key(), RedBeatSchedulerEntry)
        one.args = [name]
        saving.save(store, [one])


def replace_stored(world: World, store: Store) -> None:
    for name in IDS:
        saving.save(store, [world.entry(kwargs={"name": name})])


def pause_and_resume(world: World, store: Store) -> None:
    for _ in IDS:
        with suppress(ConflictError):
            edits.pause(store, [world.key()], "why", None)
        with suppress(ConflictError):
            edits.resume(store, [world.key()], world.app, RedBeatSchedulerEntry)


def ask_for_runs(world: World, store: Store) -> None:
    for name in IDS:
        assert store.say(world.key(), trigger_line(name, 1.0), kind=TRIGGER) == DONE


@pytest.mark.long
def test_programs_and_beats_at_once_lose_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the others may come first more often than a program tries.
    monkeypatch.setattr(changes, "ATTEMPTS", 10_000)
    identity = world.saved().saved_state.identity
    jobs = [record_runs, edit_loaded, replace_stored, pause_and_resume, ask_for_runs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        stores = [Store(world.client, KEYS, repeats=True) for _ in jobs]
        works = zip(jobs, stores, strict=True)
        for done in [pool.submit(job, world, store) for job, store in works]:
            done.result()
    loaded, row = world.load(), world.row()
    assert loaded.total_run_count == len(IDS)
    assert loaded.saved_state.identity == identity
    assert [said.trigger and said.trigger.id for said in read_inbox(row.inbox)] == IDS
    assert not State.of(row).problem


def recorded(store: Store, key: str) -> bool:
    """Record a run as a beat does; return False if the entry was changed in between."""
    (row,), mark = store.read([key]).rows, new_mark()
    state, history = State.of(row), History.read(row.meta or "")
    meta = encode_meta(history.last_run_at, history.total_run_count + 1)
    state.meta = digest_of_meta(meta)
    state.sign(mark, run=True)
    fields = {"beat_state": state.text(), "meta": meta}
    change = Change(key, mark, digest_of(row), set=fields, score=1.0)
    return store.turn(Request("beat", None, [change])).answers[0].word == DONE


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The URL of a broker on another server: each run is held while it is published."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def beat(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A beat; the schedule's own server is the broker, unless the test says elsewhere."""
    url = request.getfixturevalue(getattr(request, "param", "redis_url"))
    world.app.conf.broker_url = url
    beat = HookedScheduler(world.app)
    yield beat
    beat.store.before.clear()
    beat.close()


def messages_of(beat: Any) -> list[Any]:
    """Return the arguments of the sent messages."""
    with redis.Redis.from_url(beat.app.conf.broker_url) as client:
        found = [json.loads(raw) for raw in reversed(client.lrange("celery", 0, -1))]
    return [json.loads(base64.b64decode(message["body"]))[0] for message in found]


def tick_until(beat: Any, done: Callable[[], bool]) -> None:
    def tick() -> bool:
        beat.tick()
        return done()

    wait_until(tick, 60)


def before_change(beat: Any, name: str, hook: Hook) -> None:
    """Call ``hook`` before the beat's first change that sets a field of an entry."""

    def call(request: Request) -> None:
        if any(name in change.set for change in request.changes):
            beat.store.before.clear()
            hook()

    beat.store.before.append(call)


def overdue(world: World, **more: Any) -> Any:
    """Return a saved entry that is due."""
    return world.saved(last_run_at=from_timestamp(world.now - HOUR - 1), args=[1], **more)


def test_a_save_between_look_and_change_is_sent(world: World, beat: Any) -> None:
    entry = overdue(world)
    entry.args = [2]
    before_change(beat, "meta", lambda: world.save(entry))
    tick_until(beat, lambda: world.load().total_run_count == 1)
    assert messages_of(beat) == [[2]]
    assert world.definition()["args"] == [2]


def test_a_new_last_run_between_look_and_change_is_obeyed(world: World, beat: Any) -> None:
    entry = overdue(world)
    entry.last_run_at = from_timestamp(world.now)
    asked: list[int] = []
    before_change(beat, "meta", lambda: asked.append(world.save(entry)))
    tick_until(beat, lambda: bool(asked))
    beat.tick()
    assert messages_of(beat) == []
    assert world.load().total_run_count == 0


@pytest.mark.long
@pytest.mark.parametrize("beat", ["elsewhere"], indirect=True)
class TestPublished:
    """The run is published already, and its record is on its way."""

    def test_a_save_keeps_the_record(self, world: World, beat: Any) -> None:
        entry = overdue(world, max_runs=2)
        entry.args = [2]
        before_change(beat, "meta", lambda: world.save(entry))
        tick_until(beat, lambda: world.load().total_run_count == 1)
        assert messages_of(beat) == [[1]]
        assert world.definition()["args"] == [2]
        assert world.state().hold is None
        score = world.score()
        assert score is not None
        assert score > world.now

    def test_a_new_last_run_wins(self, world: World, beat: Any) -> None:
        entry = overdue(world)
        entry.last_run_at = chosen = from_timestamp(world.now - 60)
        before_change(beat, "meta", lambda: world.save(entry))
        tick_until(beat, lambda: world.load().total_run_count == 1)
        assert messages_of(beat) == [[1]]
        assert world.load().last_run_at == chosen
        assert world.score() == near(chosen.timestamp() + HOUR)

    def test_a_pause_keeps_the_record(self, world: World, beat: Any) -> None:
        entry = overdue(world)
        before_change(beat, "meta", lambda: edits.pause_entry(world.store, entry))
        tick_until(beat, lambda: world.load().total_run_count == 1)
        assert messages_of(beat) == [[1]]
        assert world.definition()["enabled"] is False
        assert world.score() == -2
        edits.resume_entry(world.store, entry)
        score = world.score()
        assert score is not None
        assert score > world.now
        beat.tick()
        assert messages_of(beat) == [[1]]

    def test_a_deleted_entry_stays_deleted(self, world: World, beat: Any) -> None:
        entry = overdue(world)
        gone: list[int] = []
        before_change(beat, "meta", lambda: gone.append(edits.delete(world.store, [entry.key])))
        tick_until(beat, lambda: bool(gone))
        beat.tick()
        assert messages_of(beat) == [[1]]
        assert not world.stored()


def test_requests_are_sent(world: World, beat: Any) -> None:
    entry = world.saved(args=[1])
    tick_until(beat, lambda: beat.beat.available)
    edits.request_run(world.store, entry)
    tick_until(beat, lambda: len(messages_of(beat)) == 1)
    since = entry.last_run_at - timedelta(hours=3)
    plan = edits.request_backfill(world.store, entry, since, entry.last_run_at, rate=1000)
    tick_until(beat, lambda: len(messages_of(beat)) == 1 + len(plan.instants))
    assert plan.instants


def test_a_backfill_whose_reply_is_lost_and_that_a_beat_has_begun_is_not_planned_again(
    world: World,
) -> None:
    entry = world.saved()
    world.run(at=world.now)
    span = span_of(world)

    def begin() -> None:
        (waiting,) = world.state().waiting
        assert isinstance(waiting, Backfill)
        world.put_state(waiting=(waiting.after_run(span[0], world.now),))

    world.store.lost = [None, begin]
    plan = edits.request_backfill(world.store, entry, *span)
    (stored,) = world.state().waiting
    assert plan.backfill is not None
    assert isinstance(stored, Backfill)
    assert (plan.backfill.id, len(plan.instants)) == (stored.id, stored.total)


def test_a_backfill_is_planned_again_after_a_run(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now - 2 * HOUR)
    span = span_of(world)
    world.store.before = [None, world.run]
    plan = edits.request_backfill(world.store, entry, *span)
    assert world.state().waiting == (plan.backfill,)
    assert (world.state().at or 0) > world.now - HOUR, "the run is still recorded"
