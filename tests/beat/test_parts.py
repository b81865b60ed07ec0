"""A schedule with shards: parts of one beat that wait for each other in nothing, and one store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat import parts
from redbeat.beat.parts import PartedBeat
from redbeat.entries import edits, saving
from redbeat.entries.state import end_line
from redbeat.management.apply import delete_unchanged
from redbeat.storage.keys import Layout
from redbeat.storage.rows import Change, Look, Reply, Request
from redbeat.storage.store import ShardedStore, Store, store_of
from redbeat.storage.words import ABSENT, DONE, END
from tests.scheduler.conftest import Clock, on_clock
from tests.schedulers import Scheduler
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.standalone, pytest.mark.long]

SHARDS = 4
LAYOUT = Layout("redbeat:", SHARDS)

#: The names of entries, one in each part.
NAMES = [
    next(f"e{each}" for each in range(1000) if LAYOUT.shard_of(f"e{each}") == number)
    for number in range(SHARDS)
]


class SlowStore(Store):
    """A store that does not answer while its prefix stands in ``silent``.

    The number beside the event is how many turns it still answers.
    """

    silent: ClassVar[dict[str, tuple[threading.Event, Iterator[int]]]] = {}

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        gate, answers = self.silent.get(self.keys.prefix, (None, iter(())))
        if gate is not None and next(answers, None) is None:
            gate.wait()
        return super().begin_turn(request)


class SlowScheduler(Scheduler):
    """A scheduler whose stores may be silent, and which notes what it sends."""

    make_store = SlowStore

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sent: list[str] = []
        super().__init__(*args, **options)

    def send_task(self, *_args: Any, **options: Any) -> None:
        self.sent.append(str(options["headers"]["periodic_task_name"]))


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app whose parts count as on a server each."""
    monkeypatch.setattr(parts, "server_of", lambda store: store.keys.prefix)
    with RedisServer() as server:
        app = Celery("parts", broker="memory://", set_as_current=False)
        app.conf.update(redbeat_redis_url=server.url, redbeat_shards=SHARDS, timezone="UTC")
        yield app
        store_of(app).client.close()
        app.close()


@contextmanager
def silence(number: int, after: int = 0) -> Iterator[threading.Event]:
    """Silence a part after some turns until the end of the context, or until the event is set."""
    gate = threading.Event()
    SlowStore.silent[LAYOUT.prefixes[number]] = gate, iter(range(after))
    try:
        yield gate
    finally:
        SlowStore.silent.clear()
        gate.set()


def parts_of(beat: Any) -> PartedBeat:
    parted: PartedBeat = beat.beat
    return parted


def started(app: Celery, clock: Clock | None = None) -> Any:
    """Return a beat that leads all parts."""
    beat = (SlowScheduler if clock is None else on_clock(SlowScheduler, clock))(app)

    def leads_all() -> bool:
        if clock is not None:
            clock.advance(1)
        beat.tick()
        return all(lock is not None and lock.leading for lock in parts_of(beat).locks)

    wait_until(leads_all)
    return beat


def save_all(app: Celery) -> list[Any]:
    """Save an entry that is due in each part."""
    ran = datetime.now(timezone.utc) - timedelta(seconds=4000)
    entries = [
        RedBeatSchedulerEntry(name, "t", 3600, app=app, last_run_at=ran, total_run_count=1)
        for name in NAMES
    ]
    saving.save(store_of(app), entries)
    return entries


# -- the beat --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2])
def test_a_silent_part_keeps_no_other_waiting(app: Celery, number: int) -> None:
    """Also if it is the first part, which has the list of beats."""
    with closing(started(app)) as beat:
        with silence(number):
            save_all(app)
            others = {name for name in NAMES if name != NAMES[number]}
            wait_until(lambda: beat.tick() is not None and set(beat.sent) == others)
            for _ in range(3):
                assert beat.tick() > 0
        wait_until(lambda: beat.tick() is not None and set(beat.sent) == {*NAMES})
        assert len(beat.sent) == SHARDS


@pytest.mark.parametrize("number", [0, 2])
def test_a_part_that_falls_silent_within_its_tick_keeps_no_other_waiting(
    app: Celery, number: int
) -> None:
    """The part gives out its entry, and does not answer the turn that holds the run."""
    with closing(started(app)) as beat:
        others = {name for name in NAMES if name != NAMES[number]}
        with silence(number, after=1):
            save_all(app)
            wait_until(lambda: beat.tick() is not None and set(beat.sent) == others)
            for _ in range(3):
                assert beat.tick() > 0
        wait_until(lambda: beat.tick() is not None and set(beat.sent) == {*NAMES})
        assert len(beat.sent) == SHARDS


def test_a_beat_ends_while_a_part_is_asked(app: Celery) -> None:
    """What the part answers stays due, and the part has no lock and no note of its entries."""
    beat = started(app)
    with silence(1) as gate:
        save_all(app)
        wait_until(lambda: beat.tick() is not None and len(beat.sent) == SHARDS - 1)
        threading.Timer(0.1, gate.set).start()
        beat.close()
    client, prefix = store_of(app).client, LAYOUT.prefixes[1]
    assert not client.exists(f"{prefix}:lock", f".{prefix}:hands", f".{prefix}:beats")
    with closing(started(app)) as other:
        wait_until(lambda: other.tick() is not None and other.sent == [NAMES[1]])


def test_the_rate_of_late_runs_is_that_of_all_parts(app: Celery) -> None:
    clock = Clock()
    app.conf.redbeat_max_rate = 1
    with closing(started(app, clock)) as beat:
        for entry in save_all(app):
            prefix = LAYOUT.prefixes[LAYOUT.shard_of(entry.name)]
            store_of(app).client.zincrby(f"{prefix}:schedule", -300, entry.key)
            parts_of(beat).wake(f"{prefix}:wakeup")
        began = clock()

        def sends_all() -> bool:
            clock.advance(0.25)
            beat.tick()
            assert len(beat.sent) <= 1 + clock() - began
            return len(beat.sent) == SHARDS

        wait_until(sends_all)


@pytest.mark.parametrize(("most", "threads"), [(None, 4), (5, 3), (3, 1), (2, 1)])
def test_threads_leave_connections_to_others(app: Celery, most: int | None, threads: int) -> None:
    if most is not None:
        app.conf.redbeat_redis_options = {"max_connections": most}
    with closing(started(app)) as beat:
        save_all(app)
        wait_until(lambda: beat.tick() is not None and len(beat.sent) == SHARDS)
        assert getattr(parts_of(beat).executor, "_max_workers", 0) == threads


# -- the store of programs -------------------------------------------------------------------------


def test_changes_go_to_the_parts_of_their_keys(app: Celery) -> None:
    """The answers come in the order of the changes; keys with the base prefix are accepted."""
    store: Any = store_of(app)
    assert isinstance(store, ShardedStore)
    entries = save_all(app)
    keys = [*(entry.key for entry in reversed(entries)), f"redbeat:{NAMES[0]}", "redbeat:missing"]
    changes = [Change(key, expect="-") for key in keys]
    answers = store.turn(Request("program", None, changes)).answers
    names = [answer.row and store.keys.name_of(answer.row.key) for answer in answers]
    assert names == [*reversed(NAMES), NAMES[0], None]
    assert answers[-1].word == ABSENT
    (row,) = store.turn(Request("program", None, [], Look(only=entries[2].key))).rows
    assert row.key == entries[2].key
    assert store.say(f"redbeat:{NAMES[1]}", end_line("id", "", 1.0), kind=END) == DONE
    client = store.client
    assert client.zrange(f".{LAYOUT.prefixes[1]}:inbox", 0, -1) == [entries[1].key]


def test_programs_edit_entries_of_all_parts(app: Celery) -> None:
    entries = save_all(app)
    store = store_of(app)
    assert delete_unchanged(store, entries[3].key, entries[3].seen_texts)
    assert edits.delete(store, [entry.key for entry in entries]) == SHARDS - 1
