"""Beats on a schedule with shards: who has which shard, and what happens when a beat stops."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule as interval

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat.parts import LOOK_INTERVAL, PartedBeat, owners
from redbeat.beat.upkeep import INTERVAL
from redbeat.config import ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.metrics.beats import active_beats, current_leader
from redbeat.metrics.snapshot import take_snapshot
from redbeat.storage.keys import Layout
from redbeat.storage.reading import Presence
from redbeat.storage.store import store_of
from tests.deployments import PREFIX
from tests.samples import long
from tests.waiting import wait_until

from .clients import Wire
from .conftest import Clock, RecordingScheduler, World

SHARDS = 8
PREFIXES = Layout(PREFIX, SHARDS).prefixes

#: With any larger number of rounds, beats that agree change nothing more.
ROUNDS = 12


# -- the assignment ----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 5, 16, 256])
@pytest.mark.parametrize("beats", [1, 2, 3, 7, 20])
def test_shares_differ_by_at_most_one(beats: int, shards: int) -> None:
    tokens = [f"beat-{number}" for number in range(beats)]
    for first in ("", "beat-0", "unknown"):
        result = owners(tokens, shards, first)
        counts = Counter(dict.fromkeys(tokens, 0))
        counts.update(result)
        assert len(result) == shards
        assert set(counts) == set(tokens)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert result == owners(tokens[::-1], shards, first)
        assert first not in tokens or result[0] == first


def test_few_shards_move_when_a_beat_comes() -> None:
    tokens = [f"beat-{number}" for number in range(8)]
    before, after = owners(tokens[:7], 256), owners(tokens, 256)
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert moved < 256 / 3  # at least 32 must move


# -- beats ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _shards(world: World) -> None:
    world.app.conf.redbeat_shards = SHARDS


def shards_of(scheduler: RecordingScheduler) -> PartedBeat:
    beat = scheduler.beat
    assert isinstance(beat, PartedBeat)
    return beat


def start(world: World) -> RecordingScheduler:
    return world.scheduler(clock=Clock())


def pass_time(beat: RecordingScheduler) -> None:
    """Advance the clock of a beat by the interval of its looks at the other beats."""
    assert isinstance(beat.clock, Clock)
    beat.clock.advance(LOOK_INTERVAL)


def run(beats: Sequence[RecordingScheduler], rounds: int = ROUNDS) -> None:
    """Tick all beats in turn; each round takes as long as a beat waits for its next look."""
    for _ in range(rounds):
        for beat in beats:
            beat.tick()
            pass_time(beat)


def token_of(beat: RecordingScheduler) -> str:
    (token,) = {lock.token for lock in shards_of(beat).locks if lock}
    return token


def leads(beat: RecordingScheduler) -> set[int]:
    """Return the shards whose locks this beat holds."""
    return {number for number, lock in enumerate(shards_of(beat).locks) if lock and lock.leading}


def woken_by(beat: RecordingScheduler) -> set[int]:
    """Return the shards on which this beat works, whose messages wake it up."""
    beats = shards_of(beat)
    return {number for number, prefix in enumerate(PREFIXES) if beats.wake(f"{prefix}:wakeup")}


def save(world: World, number: int) -> set[str]:
    """Save entries that are due now, and return their names."""
    entries = [
        RedBeatSchedulerEntry(
            f"e{each}", "t", interval(3600), app=world.app, last_run_at=world.ago(4000)
        )
        for each in range(number)
    ]
    Schedule(world.app).save_all(entries)
    return {str(entry.name) for entry in entries}


def test_beats_share_the_shards_and_nothing_is_sent_twice(world: World) -> None:
    beats = [start(world)]
    run(beats)
    beats += [start(world), start(world)]
    run(beats)
    held = [leads(beat) for beat in beats]
    assert sorted(map(len, held)) == [2, 3, 3]
    assert set().union(*held) == set(range(SHARDS))
    names = save(world, 60)
    run(beats, 6)
    sent = [name for beat in beats for name in beat.names]
    assert sorted(sent) == sorted(names)
    assert all(beat.names for beat in beats)


def test_the_shards_of_a_beat_that_stops_go_to_the_others(world: World) -> None:
    beats = [start(world), start(world), start(world)]
    run(beats)
    beats.pop(1).close()
    run(beats, 4)
    assert sorted(len(leads(beat)) for beat in beats) == [4, 4]


@pytest.mark.parametrize("dead", [0, long(1)])
def test_the_shards_of_a_dead_beat_are_taken_over(world: World, dead: int) -> None:
    """The first beat holds the lock of the first shard, the second one only other locks."""
    beats = [start(world), start(world)]
    run(beats)
    victim = beats.pop(dead)
    had = leads(victim)
    assert len(had) == 4
    run(beats, 5)
    assert not leads(beats[0]) & had, "a beat that is only slow keeps its shards"
    (key,) = (f".{prefix}:beats" for prefix in PREFIXES[:1])
    token = f"{token_of(victim)} lock"
    world.client.zadd(key, {token: world.now() - 21})
    # The lock of the first shard is watched as always: 20 looks of a second.
    run(beats, 24 if dead == 0 else 4)
    assert leads(beats[0]) == set(range(SHARDS))


def test_an_empty_list_of_beats_takes_no_shard_from_a_live_beat(world: World) -> None:
    """For example after data loss: locks of live beats are not taken over at once."""
    beats = [start(world), start(world)]
    run(beats)
    held = [leads(beat) for beat in beats]
    world.client.delete(f".{PREFIXES[0]}:beats")
    beats[1].tick()
    pass_time(beats[1])
    run(beats)
    assert [leads(beat) for beat in beats] == held


def test_without_a_lock_beats_share_the_shards(world: World) -> None:
    world.app.conf.redbeat_lock_key = None
    beats = [start(world), start(world)]
    run(beats)
    owned = [woken_by(beat) for beat in beats]
    assert set().union(*owned) == set(range(SHARDS))
    assert owned[0] & owned[1] <= {0}
    names = save(world, 60)
    run(beats, 6)
    assert sorted(name for beat in beats for name in beat.names) == sorted(names)


def test_static_entries_are_written_and_removed(world: World) -> None:
    world.app.conf.beat_schedule = {
        f"s{number}": {"task": "t", "schedule": 60} for number in range(20)
    }
    beat = start(world)
    schedule = Schedule(world.app)
    assert len(schedule) == 20
    assert store_of(world.app).static_names() == {f"s{number}" for number in range(20)}
    run([beat], 3)
    world.app.conf.beat_schedule = {"s7": {"task": "t", "schedule": 60}}
    beat.setup_schedule()
    run([beat], 3)
    assert [record.name for record in schedule.records()] == ["s7"]


def test_a_message_wakes_the_beat_that_has_the_shard(world: World) -> None:
    beats = [start(world), start(world)]
    run(beats)
    for number, prefix in enumerate(PREFIXES):
        woken = [shards_of(beat).wake(f"{prefix}:wakeup") for beat in beats]
        assert woken == [number == 0 or number in leads(beat) for beat in beats]
    assert not shards_of(beats[0]).wake("unknown")


def test_the_status_names_the_beats_of_all_shards(world: World) -> None:
    beats = [start(world), start(world)]
    run(beats)
    status = Schedule(world.app).status()
    assert status.leader is not None
    assert len(status.beats) == 2
    assert [beat.token for beat in active_beats(world.app)] == [
        status.leader.token,
        *({token_of(beat) for beat in beats} - {status.leader.token}),
    ]
    assert current_leader(world.app) == active_beats(world.app)[0]
    assert not status.standbys
    assert [shard.beat for shard in status.shards] == [
        next(token_of(beat) for beat in beats if number in leads(beat)) for number in range(SHARDS)
    ]


def test_counters_add_up(world: World) -> None:
    save(world, 30)
    beat = start(world)
    run([beat])
    assert shards_of(beat).totals()["dispatched"] == 30
    assert shards_of(beat).health.ready().ok
    snapshot = take_snapshot(store_of(world.app), ensure_conf(world.app))
    assert snapshot.totals(100)["dispatched"] == 30


def test_redis_is_away_for_a_moment(world: World, wire: Wire) -> None:
    """No shard is tried again at once, then each is; nothing is lost or sent twice."""
    beat = start(world)
    run([beat])
    names = save(world, 40)
    away = [True]

    def fail() -> None:
        if away:
            wire.before_command(fail)
            raise redis.ConnectionError("away")

    wire.before_command(fail)
    wake_all(beat)
    for _ in range(20):
        assert beat.tick() > 0, "tried again at once"
        pass_time(beat)
    assert not shards_of(beat).available
    assert not shards_of(beat).health.ready().ok
    away.clear()

    def is_back() -> bool:  # a thread finds out
        run([beat], 1)
        return len(beat.names) >= len(names) and shards_of(beat).health.ready().ok

    wait_until(is_back)
    assert sorted(beat.names) == sorted(names)
    assert shards_of(beat).available
    assert shards_of(beat).health.ready().ok


def wake_all(beat: RecordingScheduler) -> None:
    """Do what a message on the wake-up channel of each shard does."""
    for prefix in PREFIXES:
        shards_of(beat).wake(f"{prefix}:wakeup")


def test_a_failed_look_at_the_other_beats_is_repeated(
    world: World, wire: Wire, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = start(world)
    run([beat])
    with monkeypatch.context() as patch:
        first = beat.stores[0]
        read = first.beats

        def fail(within: float) -> list[Presence]:
            wire.cut()
            return read(within)

        patch.setattr(first, "beats", fail)
        beat.tick()
    assert "Cannot read which beats are active" in log.text
    other = start(world)

    def share() -> bool:  # a thread finds out that the server answers
        run([beat, other], 1)
        return leads(beat) | leads(other) == set(range(SHARDS)) and bool(leads(other))

    wait_until(share)


def test_a_close_without_redis_raises_once(world: World, wire: Wire) -> None:
    beat = start(world)
    run([beat])
    world.schedulers.remove(beat)
    calls = []

    def fail() -> None:
        calls.append(1)
        wire.before_command(fail)
        raise redis.ConnectionError("away")

    wire.before_command(fail)
    wake_all(beat)
    beat.tick()
    calls.clear()
    with pytest.raises(redis.ConnectionError):
        shards_of(beat).release_lock()
    assert len(calls) < SHARDS, "a server that is away is tried once, not for each shard"


def test_one_entry_is_run_in_its_shard(world: World) -> None:
    """A program calls ``maybe_due`` for each entry, as Celery's own tick does."""
    names = save(world, 12)
    beat = start(world)
    beat.tick()  # takes the lock of the first shard
    schedule = Schedule(world.app)
    for name in sorted(names - set(beat.names)):
        beat.maybe_due(schedule[name], producer=beat.producer)
        beat.maybe_due(schedule[name], producer=beat.producer)
    assert sorted(beat.names) == sorted(names)
    assert all(entry.total_run_count == 1 for entry in schedule.values())


def test_a_lock_of_the_program_is_refused(world: World) -> None:
    beat = start(world)
    beat.lock = world.client.lock("mine")
    with pytest.raises(ConfigurationError, match="redbeat_shards"):
        beat.tick()


def test_a_schedule_of_the_program_is_refused(app: Celery) -> None:
    class Own(RecordingScheduler):
        @property
        def schedule(self) -> dict[str, Any]:
            return {}

    with pytest.raises(ConfigurationError, match="redbeat_shards"):
        Own(app)


def test_a_stop_signal_ends_the_tick_after_the_shard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick returns although other shards are due, and the handler runs at its end."""
    beat = start(world)
    run([beat])
    save(world, 60)
    monkeypatch.setattr(beat, "before_send", lambda _task: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(7)))
    try:
        with pytest.raises(SystemExit):
            run([beat], 6)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert 0 < len(beat.names) < 60
    beat.close()
    total = sum(entry.total_run_count for entry in Schedule(world.app).values())
    assert total == len(beat.names)


def test_a_shard_puts_its_own_set_back(world: World) -> None:
    """Each shard has its own note, so an entry that a program took out elsewhere stays out."""
    clock = Clock()
    schedule, scheduler = Schedule(world.app), world.scheduler(clock=clock)
    schedule.save_all(
        RedBeatSchedulerEntry(f"e{number}", "t", interval(3600), app=world.app)
        for number in range(16 * SHARDS)
    )
    for _ in range(2):
        clock.advance(1)
        scheduler.tick()
    store: Any = store_of(world.app)
    lost, other = store.parts[0].keys, store.parts[1].keys
    members = world.client.zrange(lost.schedule, 0, -1)
    (out,) = world.client.zrange(other.schedule, 0, 0)
    world.client.zrem(other.schedule, out)
    world.client.delete(lost.schedule)
    for _ in range(3):
        clock.advance(INTERVAL)
        scheduler.tick()
    assert set(world.client.zrange(lost.schedule, 0, -1)) == set(members)
    assert world.client.zscore(other.schedule, out) is None
    assert scheduler.sent == []
