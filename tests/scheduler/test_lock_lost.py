"""A leader that loses the lock stands by or exits. The API reports which beat leads."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime, timezone

import pytest
from redis.exceptions import LockNotOwnedError

from redbeat import BeatInfo, active_beats, current_leader
from redbeat.beat.beat import STANDBY_POLL
from redbeat.errors import ConfigurationError
from redbeat.settings import AT_MOST_ONCE
from redbeat.storage.words import SEEN_WITHIN
from tests.deployments import PREFIX

from .clients import Wire
from .conftest import LOCK, Clock, RecordingScheduler, World, void

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

    def test_leaves_the_lock_of_the_other(
        self, world: World, scheduler: RecordingScheduler
    ) -> None:
        take_lock(world)
        with pytest.raises(LockNotOwnedError):
            scheduler.tick()
        scheduler.close()
        assert world.client.get(LOCK) == "another"

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
            *(
                "c0ffee00c0ffee00c0ffee00c0ffee00",
                "x",
                "a:b:c:d:e",
                "redbeat3:",
                "redbeat3:h:p:s:t",
            ),
            *("h:1:99999999999999999999:t", "naïve ☃", "somehost:17:1700000000:abc"),
        ],
    )
    def test_a_foreign_token_is_shown_without_details(self, world: World, token: str) -> None:
        world.client.set(LOCK, token)
        assert current_leader(world.app) == BeatInfo(token)
        assert active_beats(world.app) == [BeatInfo(token)]

    def test_a_token_with_colons_in_its_host(self, world: World) -> None:
        world.client.set(LOCK, "redbeat3:fe80::1:17:1700000000:0123456789abcdef")
        leader = current_leader(world.app)
        assert leader is not None
        assert (leader.host, leader.pid) == ("fe80::1", 17)
        assert leader.since == datetime.fromtimestamp(1_700_000_000, timezone.utc)

    def test_a_token_that_is_not_text_is_shown(self, world: World) -> None:
        world.client.set(LOCK, b"\xff\xfe")
        leader = current_leader(world.app)
        assert leader is not None
        assert (leader.host, leader.pid, leader.since) == (None, None, None)


class TestWithoutLock:
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

    def test_a_leftover_lock_has_no_holder(self, world: World) -> None:
        take_lock(world)
        world.put("a")
        scheduler = world.scheduler()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert current_leader(world.app) is None
        assert all(re.match("redbeat3:", beat.token) for beat in active_beats(world.app))
