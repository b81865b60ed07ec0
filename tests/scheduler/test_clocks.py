"""Effects of a wrong clock on a host that saves an entry, or on the Redis server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from redbeat import RedBeatSchedulerEntry, Schedule
from tests.deployments import PREFIX
from tests.stored import put_state
from tests.waiting import wait_until

from .conftest import SCHEDULE, STATS, Clock, RecordingScheduler, World, datetime_json

HOUR = 3600.0
#: The clock of the host is ahead by this many seconds, so it sees the last run as 46 s late.
AHEAD = 2 * HOUR + 45
LIMIT = 30.0


def later(world: World, seconds: float) -> Any:
    return world.ago(-seconds)


POLICIES: dict[str, Callable[[World], dict[str, Any]]] = {
    "too late": lambda _world: {"misfire_grace_time": LIMIT},
    "over": lambda world: {"misfire_grace_time": LIMIT, "end_time": later(world, HOUR)},
}


def saved(entry: RedBeatSchedulerEntry) -> None:
    entry.save()


def saved_as_new_object(entry: RedBeatSchedulerEntry) -> None:
    again = RedBeatSchedulerEntry("a", "t", 60, kwargs={"x": 1}, app=entry.app)
    again.end_time, again.misfire_grace_time = entry.end_time, entry.misfire_grace_time
    again.save()


def rescheduled(entry: RedBeatSchedulerEntry) -> None:
    entry.reschedule(entry.last_run_at)


def resumed(entry: RedBeatSchedulerEntry) -> None:
    entry.pause()
    entry.resume()


def saved_in_bulk(entry: RedBeatSchedulerEntry) -> None:
    Schedule(entry.app).save_all([entry])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("write", [saved, saved_as_new_object, rescheduled, resumed, saved_in_bulk])
def test_a_host_whose_clock_is_ahead_finishes_no_entry(
    world: World, policy: str, write: Callable[[RedBeatSchedulerEntry], None]
) -> None:
    """Setup: an entry is due in 59 s.

    Fault: a host saves the entry. By its wrong clock, the run is too late or the entry has ended.

    Invariant: the next run of the entry does not change.
    """
    ran = world.ago(1)
    fields = POLICIES[policy](world)
    RedBeatSchedulerEntry("a", "t", 60, last_run_at=ran, app=world.app, **fields).save()
    scheduler = world.scheduler()
    scheduler.tick()
    with time_machine.travel(time.time() + AHEAD, tick=True):
        write(RedBeatSchedulerEntry.from_key(f"{PREFIX}a", app=world.app))
    scheduler.tick()
    assert scheduler.sent == []
    next_at = (ran + timedelta(seconds=60)).timestamp()
    assert world.score("a") == pytest.approx(next_at, abs=1e-3)


def test_a_host_whose_clock_is_ahead_finishes_no_entry_that_never_ran(world: World) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    entry = RedBeatSchedulerEntry("a", "t", 60, end_time=later(world, HOUR), app=world.app)
    entry.last_run_at = None
    with time_machine.travel(time.time() + AHEAD, tick=True):
        entry.save()
    scheduler.tick()
    assert scheduler.names == ["a"]


class TestTheClockOfRedisWasAhead:
    """The clock of Redis was an hour ahead until now, so recorded runs are in the future."""

    def ran_in_an_hour(self, world: World, name: str, by_a_beat: bool = True, **more: Any) -> None:
        """Store an entry with a one-minute interval and a last run one hour in the future."""
        ran = later(world, HOUR)
        world.put(name, last_run_at=ran, score=ran.timestamp() + 60, **more)
        if by_a_beat:
            self.recorded(world, name, ran.timestamp())

    @staticmethod
    def recorded(world: World, name: str, at: float) -> None:
        """Store the nominal time of the last run, as the beat that sent it did."""
        put_state(world.client, f"{PREFIX}{name}", at=at, m=["m", "", "m"])

    def leader_of(self, world: World) -> RecordingScheduler:
        """Return a new leader. The stored last tick is one hour ahead of the clock of Redis.

        It is 0.9 s more than one hour ahead, because a slow machine loses time in the test.
        """
        world.client.hset(STATS, "last_tick", world.now() + HOUR + 0.9)
        scheduler = world.scheduler()
        for _ in range(2):
            wait_until(lambda: scheduler.tick() > 0)
        return scheduler

    def test_a_beat_that_begins_to_lead_counts_from_now(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        self.ran_in_an_hour(world, "a")
        scheduler = self.leader_of(world)
        assert scheduler.sent == []
        assert world.score("a") == pytest.approx(world.now() + 60, abs=2)
        assert "The clock of Redis went back by 3600" in log.text
        assert "The last run of entry a" in log.text
        put_state(world.client, f"{PREFIX}a", at=world.field("a", "beat_state")["at"] - 61)
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 1})
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_a_run_that_was_skipped_in_the_future_silences_no_entry(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        """Setup: by the wrong clock, the run was too late, so a beat skipped it."""
        self.ran_in_an_hour(world, "a", misfire_grace_time=10)
        ran = world.ago(30)
        meta = json.dumps({"last_run_at": datetime_json(ran), "total_run_count": 1})
        world.client.hset(f"{PREFIX}a", "meta", meta)
        self.recorded(world, "a", world.now() + HOUR)
        scheduler = self.leader_of(world)
        assert scheduler.sent == []
        assert world.score("a") == pytest.approx(world.now() + 60, abs=2)
        assert "The last run of entry a" in log.text

    def test_a_beat_that_was_at_work_notices(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture
    ) -> None:
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        self.ran_in_an_hour(world, "a")
        clock.advance(HOUR)  # the clock of the beat advances, the clock of Redis does not
        for _ in range(2):
            scheduler.tick()
        assert world.score("a") == pytest.approx(world.now() + 60, abs=2)
        back = re.search(r"The clock of Redis went back by ([\d.]+) s", log.text)
        assert back is not None
        assert float(back[1]) == pytest.approx(HOUR, abs=60)  # an hour less the time of the test

    def test_a_run_recorded_later_is_corrected_too(self, world: World, clock: Clock) -> None:
        """Setup: a run with a future time is recorded after the first correction."""
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        clock.advance(HOUR)
        scheduler.tick()
        self.ran_in_an_hour(world, "a")
        scheduler.tick()
        assert world.score("a") == pytest.approx(world.now() + HOUR + 60, abs=2)
        for _ in range(90):  # in small steps, which are no further jump of Redis's clock
            clock.advance(0.9)
            scheduler.tick()
        assert world.score("a") == pytest.approx(world.now() + 60, abs=5)

    def test_a_history_that_an_application_wrote_is_kept(self, world: World) -> None:
        self.ran_in_an_hour(world, "a", by_a_beat=False)
        before = world.score("a")
        assert before is not None
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 1})
        self.leader_of(world)
        assert world.score("a") == pytest.approx(before, abs=1e-3)

    def test_a_trigger_of_the_wrong_time_runs(self, world: World) -> None:
        self.ran_in_an_hour(world, "a")
        put_state(world.client, f"{PREFIX}a", waiting=[["x", world.now() + HOUR]])
        assert self.leader_of(world).names == ["a"]

    def test_many_entries_are_corrected(self, world: World) -> None:
        world.put_many(1200, score=world.now() + HOUR)
        at = round(later(world, HOUR).timestamp(), 6)
        meta = json.dumps({"last_run_at": datetime_json(later(world, at - world.now()))})
        pipeline = world.client.pipeline()
        for number in range(1200):
            pipeline.hset(f"{PREFIX}e{number}", "meta", meta)
        pipeline.execute()
        for name in ("e0", "e1199"):
            self.ran_in_an_hour(world, name)
        self.leader_of(world)
        for name in ("e0", "e1199"):
            assert world.score(name) == pytest.approx(world.now() + 60, abs=5)
        assert world.score("e7") == pytest.approx(world.now() + HOUR, abs=5)
