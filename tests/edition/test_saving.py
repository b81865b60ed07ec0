"""Programs save, pause, delete and request on a real server, together with beats and each other."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import fakeredis
import pytest
import redis
from celery import Celery
from redis.exceptions import ResponseError

from redbeat import ConflictError, DecodeError, InvalidEntryError, RedBeatSchedulerEntry
from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import Trigger
from redbeat.entries.history import History, encode_meta, encode_runtime
from redbeat.entries.runs import nominal
from redbeat.schedules.calendars import Calendar
from redbeat.storage.records import HISTORY_DIFFERS, SAVED, Keys, Writing
from redbeat.storage.store import store_of as second_store_of
from tests.deployments import PREFIX
from tests.edition import edits, importing, run_requests, saving
from tests.edition.beat.load import state_of
from tests.edition.state import (
    Failing,
    Hold,
    Pause,
    Quarantine,
    Results,
    Running,
    State,
    digest_of_meta,
    history_line,
    read_inbox,
    trigger_line,
)
from tests.edition.storage.rows import Change, Reply, Request, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.test_beat import HookedScheduler
from tests.edition.words import DONE, TRIGGER
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.standalone, pytest.mark.long]

KEYS = Keys.under(PREFIX)
HOUR = 3600.0

Hook = Callable[[], object]


class HookedStore(Store):
    """A store that calls a hook before each turn, and loses replies as a client with retries does.

    Attributes:
        turns: the number of turns.
        before: what to call before the next turns, one after another.
        lost: the same, between a turn whose reply is lost and its repetition.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        super().__init__(client, keys, repeats=True)
        self.turns = 0
        self.before: list[Hook | None] = []
        self.lost: list[Hook | None] = []

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        self.turns += 1
        hook = self.before.pop(0) if self.before else None
        if hook is not None:
            hook()
        lost = self.lost.pop(0) if self.lost else None
        if lost is not None:
            super().begin_turn(request)()
            lost()
        return super().begin_turn(request)


def nothing() -> None:
    """Between a lost reply and the repetition nothing happens."""


@dataclass
class World:
    """A schedule, what programs do to it, and what beats would store."""

    app: Celery
    client: Any
    other: Store = field(init=False)
    store: HookedStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = HookedStore(self.client, KEYS)
        self.other = Store(self.client, KEYS)

    @property
    def now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    def entry(self, name: str = "a", every: Any = HOUR, **more: Any) -> Any:
        return RedBeatSchedulerEntry(name, "proj.note", every, app=self.app, **more)

    def save(self, *entries: Any, **more: Any) -> int:
        """Save entries, and return the number of round trips."""
        before = self.store.turns
        saving.save(self.store, entries, **more)
        return self.store.turns - before

    def saved(self, name: str = "a", every: Any = HOUR, **more: Any) -> Any:
        entry = self.entry(name, every, **more)
        self.save(entry)
        return entry

    def load(self, name: str = "a") -> Any:
        key = self.key(name)
        return saving.load(self.other, self.app, key, RedBeatSchedulerEntry)

    def key(self, name: str = "a") -> str:
        return f"{PREFIX}{name}"

    def stored(self, name: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.client.hgetall(self.key(name))
        return found

    def definition(self, name: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.client.hget(self.key(name), "definition"))
        return found

    def row(self, name: str = "a") -> Row:
        return saving.read(self.other, [self.key(name)])[self.key(name)]

    def state(self, name: str = "a") -> State:
        return State.read(*self.client.hmget(self.key(name), "beat_state", "meta"))

    def score(self, name: str = "a") -> float | None:
        found: float | None = self.client.zscore(KEYS.schedule, self.key(name))
        return found

    def is_due(self, name: str = "a") -> bool:
        score = self.score(name)
        return score is not None and 1 < score <= self.now

    def put_state(self, name: str = "a", score: float | None = None, **fields: Any) -> State:
        """Store a state as a beat does."""
        row, mark = self.row(name), new_mark()
        state = state_of(row)
        for field_name, value in fields.items():
            setattr(state, field_name, value)
        state.sign(mark, hold="hold" in fields)
        change = Change(
            row.key, mark, digest_of(row), set={"beat_state": state.text()}, score=score
        )
        assert self.other.turn(Request("beat", None, [change])).answers[0].word == DONE
        return state

    def run(self, name: str = "a", at: float | None = None, count: int | None = None) -> None:
        """Record a run as a beat does."""
        row, mark, now = self.row(name), new_mark(), self.now
        state, at = state_of(row), now if at is None else at
        runs = json.loads(row.meta or "{}").get("total_run_count", 0) + 1
        meta = encode_meta(from_timestamp(now), runs if count is None else count)
        state.meta, state.at, state.hold = digest_of_meta(meta), at, None
        state.sign(mark, run=True)
        line = history_line(at, now, "")
        fields = {"beat_state": state.text(), "meta": meta}
        change = Change(row.key, mark, digest_of(row), set=fields, score=at + HOUR, line=line)
        assert self.other.turn(Request("beat", None, [change])).answers[0].word == DONE

    def trigger(self, name: str = "a") -> None:
        self.other.say(self.key(name), trigger_line(new_mark(), self.now), kind=TRIGGER)

    def aside(self, what: str) -> Any:
        key = f".{PREFIX}:{what}"
        kind = self.client.type(key)
        if kind == "zset":
            return self.client.zrange(key, 0, -1)
        return sorted(self.client.hkeys(key) if kind == "hash" else self.client.smembers(key))


@pytest.fixture
def world(app: Celery, redis_client: Any) -> World:
    return World(app, redis_client)


def near(instant: float, seconds: float = 0.001) -> Any:
    """Return what equals an instant; a relative tolerance would be half an hour."""
    return pytest.approx(instant, rel=0, abs=seconds)


def hold_at(until: float) -> Hold:
    return Hold("scheduled", until - 30, "the-id", until)


# -- saves ---------------------------------------------------------------------------------------


def test_a_new_entry_takes_one_round_trip(world: World) -> None:
    entry = world.entry(max_runs=5)
    assert world.save(entry) == 1
    assert world.definition()["task"] == "proj.note"
    assert set(world.stored()) == {"definition", "meta", "policy", "beat_state"}
    state = world.state()
    assert state.identity == entry.saved_state.identity != ""
    marks, meta = state.marks, digest_of_meta(world.stored()["meta"])
    assert state == State(marks, state.identity, meta)
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)


def test_a_static_entry_has_no_identity(world: World) -> None:
    entry = world.entry()
    entry.is_static = True
    world.save(entry)
    assert world.state().identity == ""
    assert world.save(entry) == 1


def test_an_entry_is_loaded_as_it_was_saved(world: World) -> None:
    world.saved(args=[1], max_runs=5)
    world.run(at=1000.0)
    entry = world.load()
    assert (entry.args, entry.max_runs, entry.total_run_count) == ([1], 5, 1)
    assert entry.scheduled_at == from_timestamp(1000.0)
    with pytest.raises(KeyError):
        world.load("unknown")
    world.client.set(world.key("text"), "text")
    with pytest.raises(DecodeError):
        world.load("text")


def test_a_loaded_and_a_saved_entry_take_one_round_trip(world: World) -> None:
    entry = world.saved()
    for number in range(4):
        entry = world.load() if number == 2 else entry
        entry.args = [number]
        assert world.save(entry) == 1
        assert world.definition()["args"] == [number]


def test_a_new_object_over_a_stored_entry_keeps_what_beats_know(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now - 60)
    waiting = (Trigger("t1", from_timestamp(5.0)),)
    running, results = Running("r", world.now + 60), Results(5.0, 2, 4.0)
    world.put_state(running=running, waiting=waiting, ids=("x",), results=results)
    before = world.state()

    new = world.entry(args=[2])
    assert world.save(new) == 2
    state = world.state()
    assert new.total_run_count == 1
    assert new.saved_state.identity == entry.saved_state.identity
    assert world.definition()["args"] == [2]
    assert state.marks.run == before.marks.run
    state.marks = before.marks
    assert state == before


def test_an_entry_that_the_second_edition_loaded_is_saved(world: World) -> None:
    world.saved()
    world.run()
    entry = RedBeatSchedulerEntry.from_key(world.key(), app=world.app)
    entry.args = [7]
    assert world.save(entry) == 2
    assert world.definition()["args"] == [7]
    assert entry.total_run_count == world.load().total_run_count == 1


def test_a_run_between_load_and_save_stays(world: World) -> None:
    entry = world.saved()
    entry.kwargs = {"x": 1}
    at = world.now - 10
    world.store.before = [lambda: world.run(at=at), lambda: world.run(at=at + 1)]
    assert world.save(entry) == 3
    assert entry.total_run_count == 2
    assert world.state().at == at + 1
    assert world.score() == near(at + 1 + HOUR)
    assert world.definition()["kwargs"] == {"x": 1}


def test_the_last_writer_wins(world: World) -> None:
    world.saved()
    one, two = world.load(), world.load()
    one.args, two.args, two.kwargs = [1], [2], {"two": 2}
    world.store.before = [lambda: saving.save(world.other, [two])]
    world.save(one)
    assert world.definition()["args"] == [1]
    assert world.definition()["kwargs"] == {}


def test_the_first_writer_wins_if_unchanged(world: World) -> None:
    world.saved()
    one, two = world.load(), world.load()
    one.args, two.args = [1], [2]
    world.save(two, if_unchanged=True)
    with pytest.raises(ConflictError):
        world.save(one, if_unchanged=True)
    assert world.definition()["args"] == [2]


def test_runs_are_no_conflict(world: World) -> None:
    entry = world.saved()
    entry.args = [1]
    world.store.before = [world.run, world.run]
    world.save(entry, if_unchanged=True)
    assert world.definition()["args"] == [1]
    assert entry.total_run_count == 2


def test_a_new_entry_conflicts_with_one_of_its_name_if_unchanged(world: World) -> None:
    world.saved()
    with pytest.raises(ConflictError):
        world.save(world.entry(), if_unchanged=True)


def test_a_deleted_entry_conflicts_if_unchanged(world: World) -> None:
    entry = world.saved()
    edits.delete(world.other, [entry.key])
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=True)
    assert not world.stored()


def test_a_save_of_a_deleted_entry_stores_it_anew(world: World) -> None:
    entry = world.saved()
    world.run()
    entry = world.load()
    edits.delete(world.other, [entry.key])
    assert world.save(entry) == 2
    assert world.load().total_run_count == 1
    assert world.load().saved_state.identity == entry.saved_state.identity


def test_the_last_try_insists_and_leaves_the_state_to_beats(world: World) -> None:
    entry = world.saved()
    entry.args = [9]
    world.store.before = [world.run] * 6
    assert world.save(entry) == 6
    assert world.definition()["args"] == [9]
    assert world.load().total_run_count == 6
    assert world.is_due()
    entry.args = [10]
    assert world.save(entry) == 2, "the entry does not know what beats stored"


def test_if_unchanged_never_insists(world: World) -> None:
    entry = world.saved()
    entry.args = [9]
    world.store.before = [world.run] * 6
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=True)
    assert world.definition()["args"] is None


def test_the_store_of_a_program_repeats_what_a_broken_connection_lost(world: World) -> None:
    """The server does not answer, and the connection breaks."""
    store, entry = saving.store_of(world.app), world.entry()
    saving.save(store, [entry])
    entry.args = [1]

    def kill_the_waiting() -> bool:
        clients = world.client.client_list()
        found = [one["id"] for one in clients if one["cmd"] == "evalsha" and "b" in one["flags"]]
        return any(world.client.client_kill_filter(_id=number) for number in found)

    with ThreadPoolExecutor(1) as pool:
        world.client.client_pause(60_000, all=False)
        try:
            saving_now = pool.submit(saving.save, store, [entry])
            wait_until(kill_the_waiting, 60)
        finally:
            world.client.client_unpause()
        saving_now.result()
    assert world.definition()["args"] == [1]


def test_a_repeated_save_finds_its_mark(world: World) -> None:
    entry = world.entry()
    world.store.lost = [nothing]
    assert world.save(entry) == 1
    text = world.stored()["beat_state"]
    world.store.lost = [nothing]
    entry.args = [3]
    assert world.save(entry, if_unchanged=True) == 1
    assert world.stored()["beat_state"] != text
    assert world.definition()["args"] == [3]


def test_a_run_between_a_lost_reply_and_the_repetition_is_no_conflict(world: World) -> None:
    entry = world.entry()
    world.store.lost = [world.run]
    world.save(entry, if_unchanged=True)
    assert entry.total_run_count == world.load().total_run_count == 1
    identity = world.state().identity
    entry.args, world.store.lost = [4], [world.run]
    world.save(entry, if_unchanged=True)
    assert world.definition()["args"] == [4]
    assert world.state().identity == identity
    assert entry.total_run_count == 2


def test_anothers_equal_entry_is_a_conflict_for_a_new_one(world: World) -> None:
    world.store.before = [lambda: saving.save(world.other, [world.entry()])]
    with pytest.raises(ConflictError):
        world.save(world.entry(), if_unchanged=True)


def test_a_last_run_of_the_program_begins_a_new_grid(world: World) -> None:
    world.saved()
    world.run(at=world.now - 100)
    world.put_state(hold=hold_at(world.now + 30), failing=Failing(1.0, 1, "x"), due=5.0)
    entry, held = world.load(), world.state().marks.hold
    entry.last_run_at = from_timestamp(world.now - 1000)
    world.save(entry)
    state = world.state()
    assert (state.at, state.due, state.hold, state.failing) == (None, None, None, None)
    assert state.marks.hold == held, "its owner still records the run"
    assert state.meta == digest_of_meta(world.stored()["meta"])
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)
    assert world.load().anchor == entry.last_run_at


def test_a_last_run_that_the_program_set_survives_a_run_meanwhile(world: World) -> None:
    entry = world.saved()
    entry.last_run_at = chosen = datetime(2026, 1, 1, tzinfo=UTC)
    world.store.before = [world.run]
    world.save(entry)
    assert world.load().last_run_at == chosen
    assert world.load().total_run_count == 1


def test_a_run_count_of_the_program_keeps_the_grid(world: World) -> None:
    world.saved()
    at = world.now - 100
    world.run(at=at)
    entry = world.load()
    entry.total_run_count = 40
    world.save(entry)
    assert world.load().total_run_count == 40
    assert world.state().at == at
    assert world.score() == near(at + HOUR)


def test_a_history_that_cannot_be_read_is_replaced(world: World) -> None:
    entry = world.saved()
    world.client.hset(entry.key, "meta", "{broken")
    world.save(entry)
    assert world.load().last_run_at == entry.last_run_at


def test_a_finished_entry_starts_again_with_another_schedule(world: World) -> None:
    world.saved(max_runs=1)
    world.run()
    entry = world.load()
    entry.schedule = world.entry("b", 1800.0).schedule
    world.store.before = [lambda: world.put_state(running=Running("r", world.now + 9))]
    world.save(entry)
    assert entry.total_run_count == world.load().total_run_count == 0
    assert world.state().at is None
    assert world.state().running is not None
    score = world.score()
    assert score is not None
    assert world.now < score <= world.now + 1800


def test_an_entry_that_stays_finished_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.saved(max_runs=1)
    world.run()
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    assert "stays finished" in caplog.text
    assert world.is_due(), "a beat decides by the clock of Redis"


def test_a_default_last_run_of_a_clock_that_is_ahead_is_corrected(world: World) -> None:
    entry = world.entry()
    entry.last_run_at = ahead = datetime.now(UTC) + timedelta(hours=5)
    entry.saved_state = entry.saved_state._replace(last_run_at=ahead)
    assert world.save(entry) == 2
    assert world.load().last_run_at.timestamp() == near(world.now, 600)
    score = world.score()
    assert score is not None
    assert score <= world.now + HOUR


def test_a_last_run_ahead_that_the_program_set_is_kept(world: World) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=5)
    assert world.save(world.entry(last_run_at=ahead)) == 1
    assert world.load().last_run_at == ahead


def test_a_waiting_trigger_makes_the_entry_due(world: World) -> None:
    world.saved()
    world.put_state(waiting=(Trigger("t", from_timestamp(1.0)),), score=world.now + 99)
    world.save(world.load())
    assert world.is_due()


def test_a_due_entry_that_is_saved_unchanged_stays_as_late_as_it_is(world: World) -> None:
    entry = world.saved(last_run_at=from_timestamp(world.now - 2 * HOUR))
    due = world.now - HOUR
    world.put_state(score=due)
    world.save(world.entry())
    assert world.score() == near(due)
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    assert world.score() != near(due)


def test_a_program_that_reschedules_an_entry(world: World) -> None:
    entry = world.saved()
    entry.args = ["not saved"]
    entry.last_run_at = from_timestamp(world.now - 60)
    world.store.before = [world.run]
    saving.reschedule(world.store, entry)
    assert world.store.turns == 3
    loaded = world.load()
    assert (loaded.last_run_at, loaded.total_run_count) == (entry.last_run_at, 1)
    assert loaded.args is None
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)
    edits.delete(world.other, [entry.key])
    saving.reschedule(world.store, entry)
    saving.reschedule(world.store, world.entry())
    assert not world.stored()
    saved = world.saved("b")
    edits.pause(world.other, [saved.key], None, None)
    saving.reschedule(world.store, saved)
    assert world.state("b").pause is not None
    world.store.before = [lambda: world.run("b")] * 5
    saving.reschedule(world.store, saved)
    world.store.before = [lambda: world.run("b")] * 6
    with pytest.raises(ConflictError):
        saving.reschedule(world.store, saved)


def test_a_program_that_reschedules_an_entry_ends_what_was_decided(world: World) -> None:
    world.saved()
    world.run(at=world.now - 60)
    world.put_state(hold=hold_at(world.now + 30), due=5.0)
    world.put_state(quarantine=Quarantine(1.0, "x"), failing=Failing(1.0, 1, "x"))
    entry, marks = world.load(), world.state().marks
    entry.last_run_at = from_timestamp(world.now)
    saving.reschedule(world.store, entry)
    state = world.state()
    assert (state.at, state.hold, state.failing, state.due, state.quarantine) == (None,) * 5
    assert state.marks.hold == marks.hold
    assert world.load().anchor == entry.last_run_at


def test_a_run_that_no_beat_records(world: World) -> None:
    entry = world.saved(last_run_at=from_timestamp(world.now - HOUR - 60))
    entry.scheduled_at = from_timestamp(world.now - 60)
    entry.last_run_at, entry.total_run_count = from_timestamp(world.now), 1
    known = entry.saved_state
    entry.saved_state = known.with_history(known.meta, entry.last_run_at, 1, known.identity)
    world.store.before = [world.run]
    saving.record_run(world.store, entry)
    loaded = world.load()
    assert (loaded.last_run_at, loaded.total_run_count) == (entry.last_run_at, 1)
    assert loaded.scheduled_at == entry.scheduled_at
    assert world.score() == near(entry.scheduled_at.timestamp() + HOUR)


def test_a_fake_redis(app: Celery) -> None:
    with closing(fakeredis.FakeRedis(decode_responses=True)) as client:
        world = World(app, client)
        entry = world.saved()
        entry.args = [1]
        world.save(entry, if_unchanged=True)
        world.save(world.entry(args=[2]))
        assert world.definition()["args"] == [2]
        with pytest.raises(ConflictError):
            world.save(entry, if_unchanged=True)
        client.set(world.key("b"), "text")
        with pytest.raises(InvalidEntryError, match="is not an entry"):
            world.saved("b")
        edits.pause_entry(world.store, entry)
        assert world.score() == -2


def test_what_is_left_in_the_inbox_makes_the_entry_due(world: World) -> None:
    entry = world.saved()
    entry.args = [1]
    world.store.before = [world.trigger]
    assert world.save(entry) == 1
    assert world.is_due()
    assert "inbox" in world.stored()


def test_a_backfill_is_looked_at_when_it_is_ready(world: World) -> None:
    entry, ready = world.saved(), world.now + 30
    span = (from_timestamp(0.0), from_timestamp(10.0))
    world.put_state(waiting=(Backfill("b", *span, 1.0, 0, 1, (span,), ready),))
    entry.args = [1]
    world.save(entry)
    assert world.score() == near(ready)
    entry.enabled = False
    world.save(entry)
    assert world.score() == -2, "backfills wait while the entry is disabled"


@pytest.mark.parametrize("left", [30.0, -30.0])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_hold_keeps_the_score_and_the_decided_run(
    world: World, left: float, enabled: bool
) -> None:
    world.saved()
    until = world.now + left
    held = world.put_state(hold=hold_at(until), score=until)
    entry = world.load()
    entry.args, entry.enabled = [5], enabled
    assert world.save(entry) == 1
    assert world.score() == near(until)
    state = world.state()
    assert state.hold == held.hold
    assert state.marks.hold == held.marks.hold


def test_quarantine_and_failures_go_with_a_save(world: World) -> None:
    entry = world.saved()
    world.put_state(quarantine=Quarantine(1.0, "x"), failing=Failing(1.0, 3, "y"), score=-1)
    index = [["HSET", "quarantine", entry.key, "{}"], ["ZADD", "failing", "1", entry.key]]
    world.other.turn(Request("beat", None, [Change("", index=index)]))
    world.save(world.load())
    state = world.state()
    assert (state.quarantine, state.failing) == (None, None)
    assert not world.aside("quarantine")
    assert not world.aside("failing")
    score = world.score()
    assert score is not None
    assert score > world.now


def test_a_disabled_entry_keeps_its_pause_and_an_enabled_one_ends_it(world: World) -> None:
    world.saved()
    world.put_state(results=Results(5.0, 3, 1.0))
    edits.pause(world.other, [world.key()], "why", "me")
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    pause = world.state().pause
    assert pause is not None
    assert pause[1:] == ("why", "me")
    assert "pause" not in world.stored().get("policy", "")
    entry.max_runs = -1
    with pytest.raises(InvalidEntryError):
        world.save(entry)
    assert entry.saved_state.pause is not None
    entry.max_runs = None
    entry.enabled = True
    world.save(entry)
    state = world.state()
    assert state.pause is None
    assert state.results == Results(5.0, 0, state.results.since)
    assert state.results.since != 1.0, "a success is expected from now on"


def test_a_definition_that_cannot_be_read_was_not_paused(world: World) -> None:
    entry = world.saved()
    world.put_state(results=Results(5.0, 3, 1.0))
    world.client.hset(entry.key, "definition", "{broken")
    world.save(entry)
    assert world.state().results.failures == 3
    assert world.definition()["name"] == "a"


def test_five_hundred_entries_are_one_turn(world: World) -> None:
    entries = [world.entry(f"e{number}") for number in range(501)]
    assert world.save(*entries) == 2
    assert world.client.zcard(KEYS.schedule) == 501
    for entry in entries:
        entry.args = [1]
    assert world.save(*entries) == 2


def test_an_invalid_entry_stores_none(world: World) -> None:
    with pytest.raises(InvalidEntryError):
        world.save(world.entry(), world.entry("b", max_runs=-1))
    assert not world.client.exists(KEYS.schedule)


def test_a_key_that_is_not_a_hash_is_an_error_and_the_others_are_saved(world: World) -> None:
    world.client.set(world.key("b"), "text")
    stored = world.saved("c")
    stored.args = [1]
    world.store.before = [lambda: world.run("c")]
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        world.save(world.entry("a"), world.entry("b"), stored)
    assert world.stored("a")
    assert world.definition("c")["args"] == [1]
    assert world.client.get(world.key("b")) == "text"
    edits.delete(world.other, [world.key("c")])
    world.client.set(world.key("c"), "text")
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        world.save(stored)


def test_what_a_deleted_entry_has_left_is_not_the_new_ones(world: World) -> None:
    left = {
        "meta": "{}",
        "beat_state": "x",
        "inbox": "[1]",
        "history": "[2]",
        "waits": "3",
        "policy": "4",
    }
    world.client.hset(world.key(), mapping=left)
    assert world.save(world.entry()) == 3
    assert set(world.stored()) == {"definition", "meta", "beat_state"}
    assert world.state().identity


def test_a_copy_with_another_name_is_another_entry(world: World) -> None:
    world.saved()
    world.run()
    entry = world.load()
    entry.name = "b"
    assert world.save(entry) == 1
    assert world.load("b").total_run_count == 1
    assert world.state("b").identity != world.state("a").identity


def test_a_change_of_the_zone_is_noted_until_the_next_run(world: World) -> None:
    entry = world.saved(timezone="Europe/Vienna")
    entry.timezone = "Asia/Tokyo"
    world.save(entry)
    change = world.state().change
    assert change is not None
    assert change.timezone == "Europe/Vienna"
    entry.timezone = "America/Lima"
    world.save(entry)
    assert world.state().change == entry.timing_change == world.load().timing_change
    assert entry.timing_change.timezone == "Europe/Vienna"


def test_an_expected_success_is_watched(world: World) -> None:
    world.app.redbeat_tracks_runs = True
    entry = world.saved(expect_within=60)
    assert world.state().results.since is not None
    assert world.aside("expected") == [entry.key]
    entry.expect_within = None
    world.save(entry)
    assert world.aside("expected") == []


def put_calendar(world: World, days: int = 0) -> None:
    """Store a calendar that excludes the next ``days``, as a program does."""
    today = datetime.now(UTC).date()
    calendar = Calendar("holidays", [today + timedelta(days=number) for number in range(days)])
    second_store_of(world.app).save_calendar("holidays", calendar.to_json())
    world.client.set(f".{PREFIX}:calendars-version", new_mark())


def test_calendars_are_read_before_the_save(world: World) -> None:
    with pytest.raises(InvalidEntryError, match="there is no calendar"):
        world.save(world.entry(exclude=["holidays"]))
    assert not world.stored()
    put_calendar(world)
    entry = world.entry(exclude=["holidays"])
    assert world.save(entry) == 2
    assert world.aside("calendar-users") == [entry.key]


def test_a_calendar_that_changes_during_a_save_is_read_again(world: World) -> None:
    put_calendar(world)
    entry = world.entry(exclude=["holidays"])
    world.save(entry)
    entry.args = [1]
    world.store.before = [None, lambda: put_calendar(world, days=3)]
    assert world.save(entry, if_unchanged=True) == 4
    score = world.score()
    assert score is not None
    assert score > world.now + 86400


def test_a_save_wakes_beats_up_for_what_is_due_soon(world: World) -> None:
    with closing(world.client.pubsub()) as heard:
        heard.subscribe(KEYS.wakeup)
        assert heard.get_message(timeout=10)["type"] == "subscribe"
        world.saved("later")
        world.saved("soon", 2.0)
        assert heard.get_message(timeout=10)["data"] == "due"
        assert heard.get_message(timeout=0) is None
        world.saved("after it", 3.0)
        assert heard.get_message(timeout=0) is None
        world.client.zadd(f".{PREFIX}:beats", {"one": world.now, "two": world.now})
        world.saved("of another share", 3.5)
        assert heard.get_message(timeout=10)["data"] == "due"


@pytest.fixture
def full(app: Celery) -> Iterator[World]:
    """A schedule on a server of its own, whose memory a test can fill."""
    with (
        RedisServer("--maxmemory-policy", "noeviction") as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        yield World(app, client)


def test_memory_is_full(full: World) -> None:
    entry = full.saved()
    before = full.stored()
    full.client.config_set("maxmemory", 1)
    entry.args = [1]
    with pytest.raises(ResponseError):
        full.save(entry)
    with pytest.raises(ResponseError):
        edits.pause(full.store, [entry.key], None, None)
    assert full.stored() == before
    full.client.config_set("maxmemory", 0)
    assert full.save(entry) == 1
    assert full.definition()["args"] == [1]


# -- pause and resume ----------------------------------------------------------------------------


def test_a_pause_and_its_end(world: World) -> None:
    entry = world.saved(max_runs=3)
    world.run()
    at = world.state().at
    edits.pause_entry(world.store, entry, "too loud", "me")
    assert world.store.turns == 3
    assert world.definition()["enabled"] is False
    assert world.score() == -2
    pause = world.state().pause
    assert pause is not None
    assert pause == Pause(pause.since, "too loud", "me")
    assert pause.since <= world.now
    assert (entry.enabled, entry.saved_state.pause.note) == (False, "too loud")
    assert world.load().saved_state.pause.by == "me"

    world.put_state(results=Results(None, 4, 1.0))
    edits.resume_entry(world.store, entry)
    assert world.definition()["enabled"] is True
    assert world.state().pause is None
    assert world.state().results.failures == 0
    assert entry.enabled
    assert entry.saved_state.pause is None
    assert at is not None
    assert world.score() == near(at + HOUR)
    world.save(entry, if_unchanged=True)


def test_a_pause_and_a_release_keep_the_policy(world: World) -> None:
    begins = from_timestamp(world.now + 5 * HOUR)
    entry = world.saved(start_time=begins)
    policy, score = world.stored()["policy"], world.score()
    edits.pause_entry(world.store, entry)
    assert world.stored()["policy"] == policy
    entry.args = [1]
    world.save(entry, if_unchanged=True)
    edits.resume_entry(world.store, entry)
    assert world.stored()["policy"] == policy
    assert score is not None
    assert world.score() == near(score)
    edits.release(world.store, [entry.key])
    assert world.stored()["policy"] == policy


def test_a_pause_does_not_save_what_the_program_changed(world: World) -> None:
    entry, other = world.saved(), world.load()
    other.args = [2]
    world.save(other)
    entry.args = [1]
    edits.pause_entry(world.store, entry)
    assert world.definition()["args"] == [2]
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=True)


def test_missing_and_unreadable_entries_are_not_paused(world: World) -> None:
    entry = world.entry()
    with pytest.raises(KeyError):
        edits.pause_entry(world.store, entry)
    with pytest.raises(KeyError):
        edits.resume_entry(world.store, entry)
    world.client.set(world.key("text"), "text")
    world.client.hset(world.key("list"), "definition", "[]")
    world.saved("good")
    keys = [world.key(name) for name in ("text", "list", "gone", "good")]
    assert list(edits.pause(world.store, keys, None, None)) == [world.key("good")]
    world.client.hset(world.key("good"), "definition", '{"enabled": false, "name": "good"}')
    assert list(edits.resume(world.store, keys, world.app, RedBeatSchedulerEntry)) == [keys[-1]]
    assert world.is_due("good"), "a beat reports what is wrong"


def test_an_edit_during_a_pause_is_kept(world: World) -> None:
    entry = world.saved()

    def edit() -> None:
        other = world.load()
        other.args = [8]
        saving.save(world.other, [other])

    world.store.before = [None, edit, world.run]
    edits.pause_entry(world.store, entry)
    assert world.definition()["args"] == [8]
    assert world.definition()["enabled"] is False
    assert world.load().total_run_count == 1


def test_a_pause_gives_up_after_some_tries(world: World) -> None:
    entry = world.saved()
    world.store.before = [world.run] * 9
    with pytest.raises(ConflictError):
        edits.pause_entry(world.store, entry)
    assert world.definition()["enabled"] is True


@pytest.mark.parametrize("resumes", [False, True])
def test_a_lost_reply_of_a_pause(world: World, resumes: bool) -> None:
    entry = world.saved(enabled=not resumes)
    world.store.lost = [nothing, nothing]
    if resumes:
        edits.resume_entry(world.store, entry)
    else:
        edits.pause_entry(world.store, entry)
    assert world.definition()["enabled"] is resumes


def test_a_first_run_keeps_its_time_through_a_pause(world: World) -> None:
    definition = json.dumps({"name": "a", "task": "t", "schedule": {"__type__": "interval",
                             "every": 60, "relative": False}, "args": [], "kwargs": {},
                             "options": {}, "enabled": True})  # fmt: skip
    due = world.now + 500
    world.client.hset(world.key(), "definition", definition)
    world.client.zadd(KEYS.schedule, {world.key(): due})
    edits.pause(world.store, [world.key()], None, None)
    assert world.state().due == near(due)
    edits.resume(world.store, [world.key()], world.app, RedBeatSchedulerEntry)
    assert world.score() == near(due)


def test_entries_are_made_due(world: World) -> None:
    entry, due = world.saved(last_run_at=from_timestamp(world.now), exclude=()), world.now + 500
    never = world.saved("b")
    world.client.hdel(never.key, "meta")
    world.client.zadd(KEYS.schedule, {never.key: due})
    made = edits.make_due(world.store, [entry.key, never.key, world.key("gone")])
    assert made[entry.key].definition == entry.seen_texts[0]
    assert list(made) == [entry.key, never.key]
    assert world.is_due("a")
    assert world.is_due("b")
    assert world.state("b").due == near(due)


def test_a_resumed_entry_is_put_into_the_schedule(world: World) -> None:
    entry = world.saved()
    world.client.zrem(KEYS.schedule, entry.key)
    edits.resume_entry(world.store, entry)
    assert world.score() is not None
    turns = world.store.turns
    edits.resume_entry(world.store, entry)
    assert world.store.turns == turns + 1, "there is nothing to do"


def test_an_entry_out_of_the_schedule_is_paused(world: World) -> None:
    entry = world.saved()
    world.client.zrem(KEYS.schedule, entry.key)
    edits.pause_entry(world.store, entry)
    assert world.score() == -2


def test_a_pause_leaves_a_hold_and_a_trigger(world: World) -> None:
    entry = world.saved()
    until = world.now + 30
    world.put_state(hold=hold_at(until), score=until)
    edits.pause_entry(world.store, entry)
    assert world.score() == near(until)
    world.put_state(hold=None, waiting=(Trigger("t", from_timestamp(1.0)),))
    edits.pause_entry(world.store, entry)
    assert world.is_due(), "triggered runs are sent while the entry is paused"


def test_a_quarantined_entry_is_released(world: World) -> None:
    entry = world.saved()
    world.put_state(quarantine=Quarantine(1.0, "x"), score=-1)
    world.client.hset(f".{PREFIX}:quarantine", entry.key, "{}")
    assert list(edits.release(world.store, [entry.key, world.key("gone")])) == [entry.key]
    assert world.state().quarantine is None
    assert not world.aside("quarantine")
    assert world.is_due()
    assert world.stored()["definition"] == world.load().seen_texts[0]


# -- delete and pop ------------------------------------------------------------------------------


def test_a_deletion_drops_everything(world: World) -> None:
    entry = world.saved()
    world.trigger()
    for name in ("failing", "expected"):
        world.client.zadd(f".{PREFIX}:{name}", {entry.key: 1})
    world.client.hset(f".{PREFIX}:quarantine", entry.key, "{}")
    world.client.set(world.key("text"), "text")
    keys = [entry.key, world.key("gone"), world.key("text")]
    assert edits.delete(world.store, keys) == 2
    assert world.store.turns == 2
    assert not world.client.exists(*keys, KEYS.schedule)
    for name in ("failing", "expected", "inbox", "quarantine"):
        assert not world.aside(name)
    with pytest.raises(InvalidEntryError):
        edits.delete(world.store, [KEYS.schedule])


def test_an_unchanged_entry_is_deleted(world: World) -> None:
    entry = world.saved()
    world.trigger()
    texts = entry.seen_texts
    assert not edits.delete_unchanged(world.store, entry.key, ("{}", ""))
    world.store.before, world.store.lost = [None, world.run], [None, None, nothing]
    assert edits.delete_unchanged(world.store, entry.key, texts)
    assert edits.delete_unchanged(world.store, entry.key, texts)
    assert not world.stored()


def test_one_of_two_pops_the_entry(world: World) -> None:
    entry = world.saved()
    found: list[Row | None] = []
    world.store.before = [None, lambda: found.append(edits.pop(world.other, entry.key))]
    assert edits.pop(world.store, entry.key) is None
    (row,) = found
    assert row is not None
    assert row.definition == entry.seen_texts[0]
    assert not world.stored()
    assert world.score() is None


def test_a_pop_finds_what_it_deleted_before_the_reply_was_lost(world: World) -> None:
    entry = world.saved()
    world.trigger()
    world.store.before, world.store.lost = [None, world.run], [None, None, nothing]
    row = edits.pop(world.store, entry.key)
    assert row is not None
    assert saving.entry_of(row, world.app, RedBeatSchedulerEntry).total_run_count == 1
    assert not world.stored()
    assert edits.pop(world.store, entry.key) is None


def test_an_entry_made_again_after_a_lost_reply_is_not_popped(world: World) -> None:
    entry = world.saved()
    world.store.lost = [None, lambda: saving.save(world.other, [world.entry(args=[2])])]
    row = edits.pop(world.store, entry.key)
    assert row is not None
    assert row.definition == entry.seen_texts[0]
    assert world.definition()["args"] == [2]


def test_what_cannot_be_read_is_not_popped(world: World) -> None:
    world.client.set(world.key(), "text")
    with pytest.raises(DecodeError):
        edits.pop(world.store, world.key())
    assert world.client.get(world.key()) == "text"


def test_static_entries_are_pruned(world: World) -> None:
    world.saved("a")
    world.saved("b")
    world.client.sadd(KEYS.statics, "a", "b")
    edits.prune(world.store, ["a", "gone"])
    assert world.client.smembers(KEYS.statics) == {"b"}
    assert not world.stored("a")
    assert world.stored("b")


def test_members_without_an_entry_are_forgotten(world: World) -> None:
    world.saved("there")
    world.client.set(world.key("text"), "text")
    world.client.hset(world.key("left"), "meta", "{}")
    names = ["gone", "left", "there", "text"]
    members = ["name", *map(world.key, names)]
    world.client.zadd(KEYS.schedule, dict.fromkeys(members, 5))
    assert edits.forget(world.store, members) == members[:3]
    assert sorted(world.client.zrange(KEYS.schedule, 0, -1)) == sorted(members[3:])
    assert world.is_due("there")
    assert not world.stored("left")
    assert world.client.get(world.key("text")) == "text"


# -- requests ------------------------------------------------------------------------------------


def test_a_run_is_requested(world: World) -> None:
    entry = world.saved()
    task_id = run_requests.request_run(world.store, entry)
    ((kind, run_id, _),) = json.loads(world.stored()["inbox"])
    assert kind == TRIGGER
    assert task_id == entry.task_id_of(run_id)


def test_a_hundred_runs_may_wait_in_state_and_inbox(world: World) -> None:
    entry = world.saved()
    waiting = tuple(Trigger(f"t{number}", from_timestamp(1.0)) for number in range(98))
    world.put_state(waiting=waiting)
    run_requests.request_run(world.store, entry)
    run_requests.request_run(world.store, entry)
    with pytest.raises(InvalidEntryError, match="100 runs of 'a' are waiting"):
        run_requests.request_run(world.store, entry)


def test_a_run_is_refused(world: World) -> None:
    entry = world.entry()
    with pytest.raises(KeyError):
        run_requests.request_run(world.store, entry)
    world.save(entry)
    world.save(world.entry("b"))
    world.client.zrem(KEYS.schedule, world.key("b"))
    with pytest.raises(InvalidEntryError, match="is not scheduled"):
        run_requests.request_run(world.store, world.entry("b"))
    edits.resume_entry(world.store, world.entry("b"))
    world.client.hset(f".{PREFIX}:quarantine", world.key("b"), "{}")
    with pytest.raises(InvalidEntryError, match="quarantine"):
        run_requests.request_run(world.store, world.entry("b"))
    world.client.set(world.key("c"), "text")
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        run_requests.request_run(world.store, world.entry("c"))


class SlowStore(HookedStore):
    """A store in which an entry is deleted between the two steps of a request."""

    def say(self, key: str, line: str, **options: Any) -> str:
        if not options.get("doubt"):
            edits.delete(Store(self.client, KEYS), [key])
        return super().say(key, line, **options)


def test_an_entry_that_is_deleted_before_its_run_is_requested(world: World) -> None:
    entry = world.saved()
    world.put_state(waiting=(Trigger("t", from_timestamp(1.0)),))
    with pytest.raises(KeyError):
        run_requests.request_run(SlowStore(world.client, KEYS), entry)
    assert not world.stored()


def span_of(world: World, hours: int = 5) -> tuple[datetime, datetime]:
    """Return a span of hours before the last run."""
    until = from_timestamp(world.now)
    return until - timedelta(hours=hours), until


def test_a_backfill_is_requested_once(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    span = span_of(world)
    rehearsed = run_requests.request_backfill(world.store, entry, *span, dry_run=True)
    assert not world.state().waiting
    plan = run_requests.request_backfill(world.store, entry, *span)
    assert plan.instants == rehearsed.instants
    assert len(plan.instants) in (4, 5)
    assert world.state().waiting == (plan.backfill,)
    assert world.is_due()
    again = run_requests.request_backfill(world.store, entry, *span)
    assert again.backfill is None
    assert again.left_out == plan.left_out + len(plan.instants)


def test_two_requests_of_a_span_are_one_backfill(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    span = span_of(world)

    def request() -> None:
        run_requests.request_backfill(world.other, entry, *span)

    world.store.before = [None, request]
    plan = run_requests.request_backfill(world.store, entry, *span)
    assert plan.backfill is None
    assert len(world.state().waiting) == 1


def test_a_backfill_during_a_hold_waits_for_its_end(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    until = world.now + 30
    world.put_state(hold=hold_at(until), score=until)
    world.store.lost = [None, nothing]
    run_requests.request_backfill(world.store, entry, *span_of(world))
    assert world.score() == near(until)
    assert len(world.state().waiting) == 1


def test_backfills_are_cancelled(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    assert run_requests.cancel_backfills(world.store, entry) == []
    plan = run_requests.request_backfill(world.store, entry, *span_of(world))
    world.put_state(waiting=(*world.state().waiting, Trigger("t", from_timestamp(1.0))))
    world.store.before = [None, world.run]
    assert run_requests.cancel_backfills(world.store, entry) == [plan.backfill]
    assert [one.id for one in world.state().waiting] == ["t"]
    plan = run_requests.request_backfill(world.store, entry, *span_of(world))
    world.client.zrem(KEYS.schedule, entry.key)
    assert run_requests.cancel_backfills(world.store, entry) == [plan.backfill]
    assert world.score() is None, "to cancel does not schedule"


def test_a_backfill_is_refused(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now)
    since, until = span_of(world)
    for bad in ((until, since), (datetime(1960, 1, 1, tzinfo=UTC), until)):
        with pytest.raises(InvalidEntryError):
            run_requests.request_backfill(world.store, entry, *bad)
    with pytest.raises(InvalidEntryError, match="rate"):
        run_requests.request_backfill(world.store, entry, since, until, rate=0)
    world.put_state(quarantine=Quarantine(1.0, "x"))
    with pytest.raises(InvalidEntryError, match="quarantine"):
        run_requests.request_backfill(world.store, entry, since, until)
    world.put_state(quarantine=None)
    world.client.zrem(KEYS.schedule, entry.key)
    with pytest.raises(InvalidEntryError, match="is not scheduled"):
        run_requests.request_backfill(world.store, entry, since, until)
    edits.resume_entry(world.store, entry)
    world.store.before = [world.run] * 9
    with pytest.raises(ConflictError):
        run_requests.request_backfill(world.store, entry, since, until)
    world.store.before = [None, lambda: edits.delete(world.other, [entry.key])]
    with pytest.raises(KeyError):
        run_requests.request_backfill(world.store, entry, since, until)


# -- all at once ---------------------------------------------------------------------------------


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


def test_programs_and_beats_at_once_lose_nothing(world: World) -> None:
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
    assert [said.id for said in read_inbox(row.inbox)] == IDS
    assert not state_of(row).problem


def recorded(store: Store, key: str) -> bool:
    """Record a run as a beat does; return False if the entry was changed in between."""
    row, mark = saving.read(store, [key])[key], new_mark()
    state, history = state_of(row), History.read(row.meta or "")
    meta = encode_meta(history.last_run_at, history.total_run_count + 1)
    state.meta = digest_of_meta(meta)
    state.sign(mark, run=True)
    fields = {"beat_state": state.text(), "meta": meta}
    change = Change(key, mark, digest_of(row), set=fields, score=1.0)
    return store.turn(Request("beat", None, [change])).answers[0].word == DONE


# -- together with a beat ------------------------------------------------------------------------


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

    def test_a_save_that_insists_keeps_the_record(self, world: World, beat: Any) -> None:
        entry = overdue(world)
        entry.args = [2]

        def insist() -> None:
            row = world.row()
            world.store.before = [lambda: touch(world)] * 5
            assert world.save(entry) == 6
            assert world.state().hold == state_of(row).hold

        before_change(beat, "meta", insist)
        tick_until(beat, lambda: world.load().total_run_count == 1)
        assert messages_of(beat) == [[1]]
        assert world.definition()["args"] == [2]


def touch(world: World) -> None:
    """Let what a save expects be another text, without another meaning."""
    policy = world.client.hget(world.key(), "policy") or "{}"
    world.client.hset(world.key(), "policy", f"{policy} ")


def test_requests_are_sent(world: World, beat: Any) -> None:
    entry = world.saved(args=[1])
    tick_until(beat, lambda: beat.beat.available)
    run_requests.request_run(world.store, entry)
    tick_until(beat, lambda: len(messages_of(beat)) == 1)
    since = entry.last_run_at - timedelta(hours=3)
    plan = run_requests.request_backfill(world.store, entry, since, entry.last_run_at, rate=1000)
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
    plan = run_requests.request_backfill(world.store, entry, *span)
    (stored,) = world.state().waiting
    assert plan.backfill is not None
    assert isinstance(stored, Backfill)
    assert (plan.backfill.id, len(plan.instants)) == (stored.id, stored.total)


def test_a_backfill_is_planned_again_after_a_run(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now - 2 * HOUR)
    span = span_of(world)
    world.store.before = [None, world.run]
    plan = run_requests.request_backfill(world.store, entry, *span)
    assert world.state().waiting == (plan.backfill,)


def test_a_save_of_many_names_the_entry_that_is_refused(world: World) -> None:
    entries = [world.entry("a"), world.entry("b")]
    entries[1].last_run_at = "never"
    with pytest.raises(InvalidEntryError, match="b: last_run_at"):
        saving.save_all(world.store, entries)
    assert not world.stored()
    assert saving.save_all(world.store, [world.entry(args=[1]), world.entry(args=[2])]) == 1
    assert world.definition()["args"] == [2]


def test_an_edit_of_calendars_ends_a_quarantine(world: World) -> None:
    entry = world.saved()
    world.put_state(quarantine=Quarantine(1.0, "why"), score=-1.0)
    world.client.hset(f".{PREFIX}:quarantine", entry.key, "{}")
    edits.make_due(world.store, [entry.key])
    assert (world.state().quarantine, world.aside("quarantine")) == (None, [])
    assert world.is_due()


def test_a_check_can_refuse_a_pop(world: World) -> None:
    entry = world.saved()

    def check(row: Row) -> None:
        raise LookupError(row.key)

    with pytest.raises(LookupError):
        edits.pop(world.store, entry.key, check)
    assert world.stored()


def test_a_save_if_unchanged_of_an_object_that_only_knows_the_texts(world: World) -> None:
    entry = world.saved()
    planned = world.entry(args=[1])
    planned.saved_state = planned.saved_state._replace(texts=entry.seen_texts)
    world.save(planned, if_unchanged=True)
    assert world.definition()["args"] == [1]
    planned = world.entry(args=[2])
    planned.saved_state = planned.saved_state._replace(texts=entry.seen_texts)
    with pytest.raises(ConflictError):
        world.save(planned, if_unchanged=True)
    edits.delete(world.other, [entry.key])
    with pytest.raises(ConflictError):
        world.save(planned, if_unchanged=True)
    assert not world.stored()


def test_an_imported_entry_has_the_history_and_the_pause_of_its_file(world: World) -> None:
    meta, key = encode_meta(from_timestamp(100.5), 3), world.key()
    runtime = encode_runtime(nominal(from_timestamp(100.0)), from_timestamp(100.5))
    since = "1970-01-01T00:01:00+00:00"
    pause = {"note": "why", "since": since, "of": "", "by": "ann"}
    policy = json.dumps({"max_runs": 9, "pause": pause})
    definition, _ = world.entry(enabled=False).texts()
    lines = "100 +0.5\n90 +0.1"
    texts = (definition, policy, meta, runtime)
    writing = Writing(key, *texts, seen=None, score=-2.0, history=lines, identity="an-id")
    assert importing.save_imported(world.store, [writing])[0].code == SAVED
    state = world.state()
    assert (state.at, state.identity, state.pause) == (100.0, "an-id", Pause(60.0, "why", "ann"))
    assert json.loads(world.stored()["policy"]) == {"max_runs": 9}
    assert json.loads(world.stored()["history"]) == lines.split("\n")
    assert (world.load().total_run_count, world.score()) == (3, -2)


def test_an_imported_entry_that_was_created_meanwhile_is_left_alone(world: World) -> None:
    definition, policy = world.entry(args=[1]).texts()
    writing = Writing(world.key(), definition, policy, "{}")
    world.saved()
    assert importing.save_imported(world.store, [writing])[0].code == HISTORY_DIFFERS
    assert world.definition()["args"] != [1]
