"""The beat lock decides which beat leads and when a standby takes over."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import pytest

from redbeat import RedBeatScheduler
from redbeat.beat.beat import STANDBY_POLL
from redbeat.schedulers import acquire_distributed_beat_lock
from redbeat.storage.words import SILENCE

from .conftest import LOCK, QUARANTINE, Clock, RecordingScheduler, World, once


def lock_of(scheduler: RedBeatScheduler) -> str:
    """Return the lock token of a scheduler."""
    assert scheduler.lock is not None
    return scheduler.lock.token


class TestLeading:
    def test_the_first_leads_the_second_stands_by(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        leader, standby = world.scheduler(), world.scheduler()
        leader.tick()
        world.put("a")
        assert standby.tick() == STANDBY_POLL
        assert standby.sent == []
        assert not world.is_held("a")
        leader.tick()
        assert leader.names == ["a"]
        assert world.client.get(LOCK) == lock_of(leader)
        messages = [record.getMessage() for record in log.records]
        assert messages.count("beat: Acquired lock") == 1
        assert messages.count("beat: Acquiring lock...") == 2

    def test_ttl_is_the_timeout_and_renewed_by_ticks(self, world: World) -> None:
        scheduler = world.scheduler(lock_timeout=40)
        scheduler.tick()
        world.client.pexpire(LOCK, 10_000)
        scheduler.tick()
        assert 39_000 < world.client.pttl(LOCK) <= 40_000

    def test_close_releases_and_the_standby_takes_over(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        leader, standby = world.scheduler(), world.scheduler()
        leader.tick()
        standby.tick()
        leader.close()
        assert world.client.get(LOCK) is None
        assert "beat: Releasing lock" in log.text
        world.put("a")
        standby.tick()
        assert standby.names == ["a"]

    def test_expired_lock_is_taken_again(self, world: World) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        world.client.delete(LOCK)
        world.put("a")
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.client.get(LOCK) == lock_of(scheduler)

    def test_a_key_that_is_no_lock_is_reported_and_stays(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        """RedBeat 2 can store an entry named `:lock` under the key of the lock."""
        world.client.hset(LOCK, "definition", "{}")
        scheduler = world.scheduler()
        scheduler.tick()
        scheduler.tick()
        assert log.text.count("not a lock") == 1
        assert LOCK in log.text
        world.client.delete(LOCK)
        world.put("a")
        scheduler.tick()
        assert scheduler.names == ["a"]


class TestDeadLeader:
    def watch(self, world: World, standby: RecordingScheduler, clock: Clock, ttl: float) -> float:
        """Tick until ``standby`` leads, for at most ``ttl`` seconds. Return the seconds waited."""
        waited = 0.0
        while waited < ttl:
            standby.tick()
            if world.client.get(LOCK) == lock_of(standby):
                return waited
            clock.advance(1.0)
            waited += 1.0
            world.client.pexpire(LOCK, world.client.pttl(LOCK) - 1000)
        return waited

    @pytest.mark.parametrize(("timeout", "expected"), [(1500, SILENCE), (12, 12)])
    def test_a_dead_leader_is_replaced(
        self, world: World, clock: Clock, timeout: float, expected: float
    ) -> None:
        dead = world.scheduler(lock_timeout=timeout)
        dead.tick()
        standby = world.scheduler_of(RecordingScheduler, clock, lock_timeout=timeout)
        waited = self.watch(world, standby, clock, timeout)
        assert expected - 1 <= waited <= expected + 1

    def test_a_leader_that_renews_is_not_replaced(self, world: World, clock: Clock) -> None:
        leader = world.scheduler()
        leader.tick()
        standby = world.scheduler_of(RecordingScheduler, clock)
        for second in range(100):
            standby.tick()
            clock.advance(1.0)
            world.client.pexpire(LOCK, world.client.pttl(LOCK) - 1000)
            if second % 5 == 0:
                leader.tick()
        assert world.client.get(LOCK) == lock_of(leader)

    def test_time_without_a_look_at_the_lock_does_not_count_as_silence(
        self, world: World, clock: Clock
    ) -> None:
        """Setup: no beat can reach Redis for longer than the takeover delay.

        Invariant: the standby does not take the lock from the leader when Redis is back.
        """
        leader = world.scheduler()
        leader.tick()
        standby = world.scheduler_of(RecordingScheduler, clock)
        standby.tick()
        clock.advance(2 * SILENCE)
        world.client.pexpire(LOCK, world.client.pttl(LOCK) - int(2 * SILENCE * 1000))
        standby.tick()
        standby.tick()
        assert world.client.get(LOCK) == lock_of(leader)

    def test_the_lock_of_another_program_is_waited_for(self, world: World, clock: Clock) -> None:
        world.client.set(LOCK, "token-of-redbeat-2", px=1_500_000)
        standby = world.scheduler_of(RecordingScheduler, clock)
        self.watch(world, standby, clock, 100)
        assert world.client.get(LOCK) == "token-of-redbeat-2"

    def test_a_replaced_leader_that_comes_back_sends_nothing(
        self, world: World, clock: Clock
    ) -> None:
        stale = world.scheduler()
        stale.tick()
        heir = world.scheduler_of(RecordingScheduler, clock)
        self.watch(world, heir, clock, 100)
        world.put("a")
        assert stale.tick() == STANDBY_POLL
        assert stale.sent == []
        heir.tick()
        heir.tick()
        assert heir.names == ["a"]
        stale.close()
        assert world.client.get(LOCK) == lock_of(heir)


def tick_all(beats: list[RecordingScheduler]) -> None:
    """Call ``tick()`` of each beat."""
    for beat in beats:
        beat.tick()


class TestWithoutLock:
    @pytest.mark.long
    def test_beats_share_the_work(self, world: World) -> None:
        """Each occurrence is sent exactly once, by any of the beats."""
        world.app.conf.redbeat_lock_key = None
        beats = [world.scheduler() for _ in range(3)]
        for beat in beats:
            beat.tick()
        world.put_many(3000)  # one beat has at most two looks of 500 entries in hand
        sent: Counter[str] = Counter()
        for beat in beats:
            others = [other for other in beats if other is not beat]
            beat.before_send = once(partial(tick_all, others))
        for _ in range(3):
            for beat in beats:
                beat.tick()
        for beat in beats:
            sent.update(message.id for message in beat.sent)
        assert len(sent) == 3000
        assert set(sent.values()) == {1}
        assert sum(1 for beat in beats if beat.sent) > 1
        assert all(beat.lock is None for beat in beats)
        assert world.client.get(LOCK) is None


class TestApi:
    def test_acquire_extend_and_release_as_embedders_use_them(self, world: World) -> None:
        scheduler = world.scheduler(lock_timeout=100)
        lock = scheduler.lock
        assert lock is not None
        assert not lock.owned()
        assert lock.acquire()
        assert lock.owned()
        assert lock.extend(10)
        assert 9000 < world.client.pttl(LOCK) <= 10_000
        assert lock.extend()
        assert world.client.pttl(LOCK) > 90_000
        assert lock.release()
        assert not lock.owned()
        assert not lock.extend()
        assert not lock.release()

    def test_acquire_waits_for_the_given_time(self, world: World) -> None:
        world.client.set(LOCK, "another", px=60_000)
        lock = world.scheduler().lock
        assert lock is not None
        start = time.monotonic()
        assert not lock.acquire(blocking_timeout=1)
        assert 1 <= time.monotonic() - start < 30

    def test_a_tick_goes_on_with_a_lock_acquired_before(self, world: World) -> None:
        scheduler = world.scheduler()
        acquire_distributed_beat_lock(scheduler)
        assert world.client.get(LOCK) == lock_of(scheduler)
        world.put("a")
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_acquire_distributed_beat_lock_acquires_the_lock_of_a_service(
        self, world: World
    ) -> None:
        class Service:
            scheduler = world.scheduler()

        acquire_distributed_beat_lock(Service())
        assert world.client.get(LOCK) == lock_of(Service.scheduler)

    def test_acquire_distributed_beat_lock_ignores_other_schedulers(self, world: World) -> None:
        class Service:
            scheduler = object()

        acquire_distributed_beat_lock(Service())
        acquire_distributed_beat_lock(None)
        world.app.conf.redbeat_lock_key = None
        acquire_distributed_beat_lock(world.scheduler())
        assert world.client.get(LOCK) is None


def test_a_lock_that_a_failed_script_took_is_released(world: World) -> None:
    """The script takes the lock before it comes to the key of another type."""
    world.client.zadd(QUARANTINE, {"x": 1})
    beat = world.scheduler()
    beat.tick()
    assert world.client.get(LOCK) == lock_of(beat)
    beat.close()
    assert not world.client.exists(LOCK)
