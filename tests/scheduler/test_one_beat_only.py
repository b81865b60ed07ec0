"""A beat that cannot run an entry leaves it to other beats, without quarantine."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX
from tests.waiting import wait_until

from .conftest import SCHEDULE, STATS, RecordingScheduler, World, interval_json


class ColouredEntry(RedBeatSchedulerEntry):
    """An entry with an additional argument."""

    def __init__(self, *args: Any, colour: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.colour = colour


class PickyEntry(RedBeatSchedulerEntry):
    """An entry class whose ``decode_definition`` refuses all definitions."""

    @staticmethod
    def decode_definition(definition: str | bytes) -> dict[str, Any]:
        """Raise an error for every definition."""
        raise LookupError(definition)


class LoadingEntry(RedBeatSchedulerEntry):
    """An entry class whose ``from_key`` refuses to load entries."""

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> Any:  # noqa: ARG003 - callers pass app
        """Raise an error for every key."""
        raise LookupError(key)


class ColouredScheduler(RecordingScheduler):
    """A beat that can run entries with a colour."""

    Entry = ColouredEntry


class PickyScheduler(RecordingScheduler):
    """A beat whose entry class refuses all entries."""

    Entry = PickyEntry


class LoadingScheduler(RecordingScheduler):
    """A beat whose entry class cannot load entries."""

    Entry = LoadingEntry


Case = tuple[type[RecordingScheduler], dict[str, Any], str]

CASES: dict[str, Case] = {
    "a schedule type": (
        RecordingScheduler,
        {"schedule": {"__type__": "lunar", "phase": "full"}},
        "UnknownTypeError",
    ),
    "an argument of the entry class": (RecordingScheduler, {"colour": "red"}, "UnknownTypeError"),
    "a method of the entry class": (PickyScheduler, {}, "UnknownTypeError"),
    "a loader of the entry class": (LoadingScheduler, {}, "LookupError"),
    "the allowlist": (RecordingScheduler, {"task": "evil"}, "NotAllowedError"),
}


def look_again(world: World) -> None:
    """Make the entry due again, despite its back-off."""
    world.client.zadd(SCHEDULE, {f"{PREFIX}odd": 1}, xx=True)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, world: World) -> Case:
    """A scheduler class with a stored entry that it cannot run."""
    found = CASES[request.param]
    if "task" in found[1]:
        world.app.conf.redbeat_task_allowlist = ["tasks.*"]
    world.put("odd", last_run_at=world.ago(90), **found[1])
    return found


def test_the_entry_is_left_to_others_and_logged_once(
    world: World, case: Case, log: pytest.LogCaptureFixture
) -> None:
    scheduler = world.scheduler_of(case[0])
    for _ in range(12):
        scheduler.tick()
        look_again(world)
    assert world.quarantine() == {}
    assert scheduler.sent == []
    (line,) = [text for text in log.messages if f"{PREFIX}odd" in text]
    assert "is left to other beats; this beat tries again within 30 s: " in line
    scheduler.tick()
    wait_until(
        lambda: scheduler.tick() is not None and world.client.hget(STATS, "failed"), 5, "the count"
    )
    assert world.client.hget(STATS, "failed") == "1"


def test_an_entry_that_was_changed_does_not_wait(world: World) -> None:
    world.put("odd", {"__type__": "lunar"})
    scheduler = world.scheduler()
    for _ in range(8):
        scheduler.tick()
        look_again(world)
    world.put("odd")
    scheduler.tick()
    assert scheduler.names == ["odd"]


def test_another_reason_is_logged_too(world: World, log: pytest.LogCaptureFixture) -> None:
    scheduler = world.scheduler()
    for kind in ("lunar", "lunar", "tide", "tide"):
        world.put("odd", {"__type__": kind})
        scheduler.tick()
    assert len([text for text in log.messages if "is left to other beats" in text]) == 2


def test_other_entries_of_the_batch_run(world: World) -> None:
    for number in range(20):
        world.put(f"odd{number}", {"__type__": "lunar"})
        world.put(f"good{number}")
    scheduler = world.scheduler()
    scheduler.tick()
    assert sorted(scheduler.names) == sorted(f"good{number}" for number in range(20))


def test_a_triggered_run_waits_for_a_beat_that_can(world: World) -> None:
    world.app.conf.redbeat_lock_key = None
    world.put("odd", interval_json(3600), last_run_at=world.ago(1), colour="red")
    task_id = ColouredEntry("odd", app=world.app).trigger()
    world.scheduler().tick()
    look_again(world)
    second = world.scheduler_of(ColouredScheduler)
    second.tick()
    assert [message.id for message in second.sent] == [task_id]


class TestWithAnotherBeat:
    @pytest.fixture(autouse=True)
    def without_a_lock(self, world: World) -> None:
        """Disable the lock, so that all beats share the work."""
        world.app.conf.redbeat_lock_key = None

    def test_a_beat_that_leaves_entries_to_others_still_shares_the_work(self, world: World) -> None:
        first, second = world.scheduler(), world.scheduler_of(ColouredScheduler)
        for number in range(40):
            world.put(f"odd{number}", interval_json(3600), world.ago(7200), colour="red")

        first_looks_at = 0.0

        def both() -> bool:
            nonlocal first_looks_at
            if time.monotonic() >= first_looks_at:
                first_looks_at = time.monotonic() + first.tick()
            second.tick()
            return len(second.sent) == 40

        wait_until(both, 10, "all runs")
        assert first.sent == []
        assert world.quarantine() == {}


def test_an_entry_that_no_beat_can_read_is_quarantined(world: World) -> None:
    world.client.hset(f"{PREFIX}odd", "definition", json.dumps({"name": "odd", "colour": "red"}))
    world.client.zadd(SCHEDULE, {f"{PREFIX}odd": 0})
    world.scheduler().tick()
    assert f"{PREFIX}odd" in world.quarantine()
