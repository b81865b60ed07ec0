"""``BeatLazyFunc`` arguments of static entries are called at each dispatch, and never stored."""

from __future__ import annotations

from typing import Any

import pytest
from celery.beat import BeatLazyFunc

from redbeat import RedBeatSchedulerEntry
from redbeat.codec.types import LazyArgument
from redbeat.entries.definition import LazyArgumentError
from redbeat.errors import InvalidEntryError
from tests.deployments import PREFIX

from .conftest import SCHEDULE, RecordingScheduler, World

KEY = f"{PREFIX}a"

calls: list[int] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Delete the recorded calls before each test."""
    calls.clear()


def number(start: int = 0, step: int = 1) -> int:
    """Return the next number of a sequence, and record the call."""
    calls.append(start + step * len(calls))
    return calls[-1]


def fail() -> None:
    """Raise an error that usually means a network problem."""
    raise ConnectionError("no luck")


LAZY = BeatLazyFunc(number)


def configure(world: World, **fields: Any) -> None:
    """Set ``beat_schedule`` to the entry ``a`` with these fields."""
    world.app.conf.beat_schedule = {"a": {"task": "tasks.a", "schedule": 3600, **fields}}


def make_due(world: World) -> None:
    """Make the entry ``a`` due now."""
    world.put_meta("a", world.ago(4000))
    world.client.zadd(SCHEDULE, {KEY: 0})


def run(world: World, scheduler: RecordingScheduler) -> tuple[Any, Any]:
    """Run the entry ``a``, and return the arguments that were sent."""
    scheduler.tick()
    make_due(world)
    before = len(scheduler.sent)
    scheduler.tick()
    assert len(scheduler.sent) == before + 1
    return scheduler.sent[-1].args, scheduler.sent[-1].kwargs


def test_functions_are_called_at_each_dispatch(world: World) -> None:
    configure(world, args=[LAZY, "x"], kwargs={"n": BeatLazyFunc(number, 100, step=2)})
    scheduler = world.scheduler()
    assert run(world, scheduler) == ([0, "x"], {"n": 102})
    assert run(world, scheduler) == ([2, "x"], {"n": 106})


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_the_stored_definition_contains_only_the_name_of_the_function(
    world: World, delivery: str
) -> None:
    configure(world, args=[BeatLazyFunc(number, 123456)], delivery=delivery)
    run(world, world.scheduler())
    definition = world.field("a", "definition")
    assert definition["args"] == [{"__type__": "lazy", "function": f"{__name__}.number"}]
    assert "123456" not in str(world.dump())


def test_a_dict_of_the_user_that_looks_like_a_function(world: World) -> None:
    mine = {"__type__": "lazy", "function": "mine"}
    configure(world, args=[LAZY, mine], kwargs={"k": mine})
    assert run(world, world.scheduler()) == ([0, mine], {"k": mine})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"args": [1, LAZY]}, "args[1]"),
        ({"kwargs": {"n": [{"m": LAZY}]}}, "kwargs.n[0].m"),
    ],
)
def test_a_dynamic_entry_cannot_have_a_function(world: World, fields: Any, field: str) -> None:
    with pytest.raises(InvalidEntryError, match="only beat_schedule may use") as caught:
        RedBeatSchedulerEntry("a", "tasks.a", 60, app=world.app, **fields).save()
    assert caught.value.field == field
    assert world.dump() == {}


@pytest.mark.parametrize("field", ["args", "kwargs"])
def test_a_function_in_place_of_all_arguments_is_refused(
    world: World, field: str, log: pytest.LogCaptureFixture
) -> None:
    configure(world, **{field: LAZY})
    world.scheduler().tick()
    assert f"Static entry a is not scheduled: {field}: must be" in log.text
    assert not world.client.exists(KEY)


@pytest.mark.parametrize("configured", [None, {"args": ["plain"]}, {"args": []}])
def test_a_beat_without_that_configuration_sends_nothing(
    world: World, log: pytest.LogCaptureFixture, configured: Any
) -> None:
    """A beat without the lazy function logs the reason and retries later. Other entries run."""
    configure(world, args=[LAZY])
    knows = world.scheduler()
    knows.tick()
    knows.close()
    stored = world.client.hgetall(KEY)
    world.app.conf.beat_schedule = {}
    if configured is not None:
        configure(world, **configured)
    other = world.scheduler()
    other.tick()
    world.client.hset(KEY, mapping=stored)
    make_due(world)
    world.put("b", score=world.now())
    other.tick()
    assert other.names == ["b"]
    assert "args[0] must be computed by" in log.text
    assert "the beat_schedule of this beat does not contain this function" in log.text
    assert world.quarantine() == {}
    score = world.score("a")
    assert score is not None
    assert score - world.now() <= 60
    # A beat whose configuration has the function sends the delayed run.
    other.close()
    configure(world, args=[LAZY])
    third = world.scheduler()
    third.tick()
    world.client.zadd(SCHEDULE, {KEY: 0})
    third.tick()
    assert third.sent[-1].args == [0]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_function_that_fails_delays_only_its_own_entry(
    world: World, log: pytest.LogCaptureFixture, delivery: str
) -> None:
    """The beat does not treat the error as a broker error, and retries the run later."""
    configure(world, args=[BeatLazyFunc(fail)], delivery=delivery)
    scheduler = world.scheduler()
    scheduler.tick()
    make_due(world)
    world.put_many(3)
    scheduler.tick()
    assert sorted(scheduler.names) == ["e0", "e1", "e2"]
    assert "fail failed: ConnectionError: no luck" in log.text
    assert "broker" not in log.text
    assert world.run_count("a") == 0
    score = world.score("a")
    assert score is not None
    assert 0 < score - world.now() <= 60


def test_a_failed_publish_calls_the_functions_again(world: World) -> None:
    configure(world, args=[LAZY])
    scheduler = world.scheduler()
    errors = iter([ValueError("once")])

    def fail_once(_task: str) -> None:
        for error in errors:
            raise error

    scheduler.before_send = fail_once
    scheduler.tick()
    make_due(world)
    scheduler.tick()
    assert scheduler.sent == []
    world.client.zadd(SCHEDULE, {KEY: 0})
    scheduler.tick()
    assert scheduler.sent[0].args == [1]


def test_other_programs_can_read_the_description_and_edit_the_rest(world: World) -> None:
    configure(world, args=[LAZY, "x"])
    scheduler = world.scheduler()
    scheduler.tick()
    entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
    assert entry.args == [LazyArgument(f"{__name__}.number"), "x"]
    entry.args[1] = "y"
    entry.save()
    assert run(world, scheduler)[0] == [0, "y"]
    entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
    entry.args = ["plain"]
    entry.save()
    assert run(world, scheduler)[0] == ["plain"]
    assert not world.client.hexists(KEY, "policy")


def test_a_loaded_entry_is_not_sent_with_a_description(world: World) -> None:
    configure(world, args=[LAZY])
    world.scheduler().tick()
    entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
    scheduler = world.scheduler()
    with pytest.raises(LazyArgumentError, match="args"):
        scheduler.apply_async(entry, producer=scheduler.producer, advance=False)
    assert scheduler.sent == []


class Keeping(RecordingScheduler):
    """A scheduler that stores the last entry that it sent in ``kept``."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        self.kept = entry
        return super().apply_async(entry, *args, **kwargs)


def test_an_entry_of_the_configuration_may_be_sent_by_hand(world: World) -> None:
    configure(world, args=[[LAZY]])
    scheduler = world.scheduler_of(Keeping)
    assert run(world, scheduler) == ([[0]], {})
    scheduler.apply_async(scheduler.kept, producer=scheduler.producer, advance=False)
    assert scheduler.sent[-1].args == [[1]]
