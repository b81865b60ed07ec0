"""The beat lock: who leads, when a standby takes over, and what a beat does that loses it."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime, timezone

import pytest
from redis.exceptions import LockNotOwnedError

from redbeat import BeatInfo, RedBeatScheduler, active_beats, current_leader
from redbeat.beat.beat import STANDBY_POLL
from redbeat.errors import ConfigurationError
from redbeat.schedulers import acquire_distributed_beat_lock
from redbeat.settings import AT_MOST_ONCE
from redbeat.storage.words import SEEN_WITHIN, SILENCE
from tests.deployments import PREFIX

from .clients import Wire
from .conftest import LOCK, QUARANTINE, Clock, RecordingScheduler, World, void


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


# -- what a loss of the lock does ------------------------------------------------------------------


BEATS = f".{PREFIX}:beats"


def take_lock(world: World) -> bool:
    """Overwrite the lock with the token of another beat."""
    return bool(world.client.set(LOCK, "another", px=60_000))


def lose_lock_between_turns(world: World, wire: Wire) -> None:
    """Take the lock after the beat holds its first runs, before its next request."""
    wire.before_command(lambda: take_lock(world), lambda: world.is_held("e0"))


def unrecorded(world: World, scheduler: RecordingScheduler) -> list[str]:
    """Return the names of the entries whose run was sent and not recorded."""
    return [name for name in scheduler.names if not world.run_count(name)]


class TestStandby:
    def test_standing_by_is_the_default_is_logged_and_ends_with_the_lead(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        take_lock(world)
        world.put("a")
        assert [scheduler.tick() for _ in range(3)] == [STANDBY_POLL] * 3
        assert scheduler.sent == []
        assert log.text.count(f"Lost the lock {LOCK} to another, standing by") == 1
        world.client.delete(LOCK)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert log.text.count("beat: Acquired lock") == 2

    def test_runs_sent_while_the_lock_was_lost_are_recorded(self, world: World, wire: Wire) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        world.put_many(600)
        lose_lock_between_turns(world, wire)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.sent
        assert unrecorded(world, scheduler) == []


class TestExit:
    @pytest.fixture
    def scheduler(
        self,
        world: World,
        clock: Clock,
        wire: Wire,  # noqa: ARG002
    ) -> RecordingScheduler:
        """A leader that exits when it loses the lock."""
        world.app.conf.redbeat_on_lock_lost = "exit"
        scheduler = world.scheduler(clock=clock)
        scheduler.tick()
        return scheduler

    def test_a_loss_of_all_data_ends_the_beat(
        self, world: World, scheduler: RecordingScheduler
    ) -> None:
        """The beat exits, so that a restarted program registers all its entries again."""
        world.put("a", score=world.now() + 900)
        scheduler.tick()
        world.client.flushall()
        with pytest.raises(LockNotOwnedError, match="vanished"):
            scheduler.tick()

    def test_the_error_names_the_lock_and_its_holder(
        self, world: World, scheduler: RecordingScheduler
    ) -> None:
        take_lock(world)
        world.put("a")
        with pytest.raises(LockNotOwnedError, match=f"{LOCK}.*another"):
            scheduler.tick()
        assert scheduler.sent == []
        assert not world.is_held("a")

    @pytest.mark.parametrize("delivery", ["at_least_once", AT_MOST_ONCE])
    def test_records_first_what_was_sent(
        self, world: World, scheduler: RecordingScheduler, delivery: str
    ) -> None:
        world.put("a", delivery=delivery)
        scheduler.before_send = lambda _task: void(take_lock(world))
        with pytest.raises(LockNotOwnedError):
            assert [scheduler.tick(), scheduler.tick()]
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert not world.is_held("a")

    def test_a_beat_that_never_led_does_not_exit(self, world: World) -> None:
        world.app.conf.redbeat_on_lock_lost = "exit"
        take_lock(world)
        scheduler = world.scheduler()
        assert [scheduler.tick(), scheduler.tick()] == [STANDBY_POLL] * 2
        world.client.delete(LOCK)
        world.put("a")
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_an_unknown_choice_is_an_error_at_start(self, world: World) -> None:
        world.app.conf.redbeat_on_lock_lost = "die"
        with pytest.raises(ConfigurationError, match=r"redbeat_on_lock_lost.*standby, exit"):
            world.scheduler()


class TestWhoLeads:
    def test_without_a_beat_there_is_no_leader(self, world: World) -> None:
        assert current_leader(world.app) is None
        assert active_beats(world.app) == []

    def test_a_leading_process_is_described(self, world: World) -> None:
        started = datetime.now(timezone.utc).replace(microsecond=0)
        scheduler, standby = world.scheduler(), world.scheduler()
        scheduler.tick()
        standby.tick()
        assert scheduler.lock is not None
        leader = current_leader(world.app)
        assert leader is not None
        assert (leader.host, leader.pid) == (socket.gethostname(), os.getpid())
        assert leader.token == scheduler.lock.token == world.client.get(LOCK)
        assert leader.since is not None
        assert started <= leader.since <= datetime.now(timezone.utc)
        assert active_beats(world.app) == [leader]

    @pytest.mark.parametrize(
        "token",
        [
            *("c0ffee00c0ffee00c0ffee00c0ffee00", "x", "a:b:c:d:e", "redbeat3:", b"\xff\xfe"),
            *("redbeat3:h:p:s:t", "h:1:99999999999999999999:t", "naïve ☃", "host:17:1700000000:a"),
        ],
    )
    def test_a_foreign_token_is_shown_without_details(
        self, world: World, token: str | bytes
    ) -> None:
        world.client.set(LOCK, token)
        leader = current_leader(world.app)
        assert leader is not None
        assert (leader.host, leader.pid, leader.since) == (None, None, None)
        assert isinstance(token, bytes) or leader == BeatInfo(token)
        assert active_beats(world.app) == [leader]

    def test_a_token_with_colons_in_its_host(self, world: World) -> None:
        world.client.set(LOCK, "redbeat3:fe80::1:17:1700000000:0123456789abcdef")
        leader = current_leader(world.app)
        assert leader is not None
        assert (leader.host, leader.pid) == ("fe80::1", 17)
        assert leader.since == datetime.fromtimestamp(1_700_000_000, timezone.utc)


class TestBeatsWithoutLock:
    @pytest.fixture(autouse=True)
    def _no_lock(self, world: World) -> None:
        world.app.conf.redbeat_lock_key = None

    def test_all_are_active_and_none_leads(self, world: World) -> None:
        beats = [world.scheduler() for _ in range(3)]
        assert active_beats(world.app) == []
        for number, beat in enumerate(beats, 1):
            beat.tick()
            assert len(active_beats(world.app)) == number
        assert current_leader(world.app) is None
        found = active_beats(world.app)
        assert {(beat.host, beat.pid) for beat in found} == {(socket.gethostname(), os.getpid())}
        assert len({beat.token for beat in found}) == 3
        assert all(beat.since is not None for beat in found)

    def test_a_closed_beat_is_not_listed(self, world: World) -> None:
        stays, goes = world.scheduler(), world.scheduler()
        stays.tick()
        goes.tick()
        goes.close()
        assert len(active_beats(world.app)) == 1
        stays.close()
        assert active_beats(world.app) == []
        assert not world.client.exists(BEATS)

    def test_a_killed_beat_is_not_listed_after_some_seconds(self, world: World) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        (token,) = world.client.zrange(BEATS, 0, -1)
        world.client.zadd(BEATS, {token: world.now() - SEEN_WITHIN + 3})
        assert [beat.token for beat in active_beats(world.app)] == [token]
        world.client.zadd(BEATS, {token: world.now() - SEEN_WITHIN - 3})
        assert active_beats(world.app) == []
