"""RedBeat sends messages with its own code, but they are the same as Celery's."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import kombu.messaging
import pytest
from celery import Task
from celery.beat import Scheduler, SchedulingError

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatScheduler

from .conftest import RecordingScheduler, World, interval_json


class Recorded(Task):
    """A task that records its calls."""

    abstract = True
    calls: ClassVar[list[tuple[Any, ...]]]

    def apply_async(self, *args: Any, **options: Any) -> None:
        self.calls.append((args, options))


def entry_of(world: World, **more: Any) -> RedBeatSchedulerEntry:
    """Return a new entry. It shares no mutable object with other entries."""
    fields = {"schedule": 60.0, "args": (1, "two"), "kwargs": {"three": 3}, **more}
    return RedBeatSchedulerEntry("a", "tasks.a", app=world.app, **fields)


def send_both(world: World, scheduler: RecordingScheduler, **more: Any) -> None:
    """Send an entry with RedBeat's ``apply_async``, then with Celery's."""
    own, celerys = entry_of(world, **more), entry_of(world, **more)
    scheduler.apply_async(own, producer=scheduler.producer, advance=False)
    Scheduler.apply_async(scheduler, celerys, producer=scheduler.producer, advance=False)


def of_the_user(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options and headers that the user set, without the ones that RedBeat adds."""
    headers = options.get("headers", {})
    own = {"scheduled_at", "periodic_task_name", "celery_beat_task"}
    kept = {name: value for name, value in headers.items() if name not in own}
    return {name: value for name, value in options.items() if name in ("queue", "expires")} | kept


@pytest.mark.parametrize(
    "more",
    [{}, {"args": None, "kwargs": None}, {"options": {"queue": "q", "headers": {"x": 1}}}],
    ids=["arguments", "none", "options"],
)
def test_a_task_the_app_does_not_know(world: World, more: dict[str, Any]) -> None:
    scheduler = world.scheduler()
    send_both(world, scheduler, **more)
    ours, celerys = scheduler.sent
    assert (ours.task, ours.args, ours.kwargs) == (celerys.task, celerys.args, celerys.kwargs)
    assert type(ours.args) is type(celerys.args)
    assert of_the_user(ours.options) == of_the_user(celerys.options)
    assert ours.options["headers"]["celery_beat_task"] is True


def test_a_task_of_the_app(world: World) -> None:
    class Own(Recorded):
        name = "tasks.a"
        calls: ClassVar[list[tuple[Any, ...]]] = []

    world.app.register_task(Own())
    scheduler = world.scheduler()
    send_both(world, scheduler)
    (ours, our_options), (celerys, celerys_options) = Own.calls
    assert ours == celerys == ([1, "two"], {"three": 3})
    assert of_the_user(our_options) == of_the_user(celerys_options)
    assert our_options["producer"] is celerys_options["producer"]
    assert scheduler.sent == []


def test_an_error_is_raised_as_celery_does(world: World) -> None:
    scheduler = world.scheduler()

    def refuse(_task: str) -> None:
        raise ValueError("no such queue")

    scheduler.before_send = refuse
    with pytest.raises(SchedulingError, match="apply scheduled task a: no such queue") as caught:
        scheduler.apply_async(entry_of(world), producer=scheduler.producer, advance=False)
    assert isinstance(caught.value.__cause__, ValueError)


class Syncing(RecordingScheduler):
    """A scheduler that records each call of ``sync()``."""

    synced: list[int]

    def sync(self) -> None:
        self.synced.append(len(self.sent))


def test_sync_is_called_after_the_configured_number_of_tasks(world: World) -> None:
    scheduler = world.scheduler_of(Syncing, sync_every_tasks=2)
    scheduler.synced = []
    scheduler.tick()
    assert scheduler.synced == [0]  # Celery also syncs in the first tick
    for names in ("ab", "c", "de"):
        for name in names:
            world.put(name, interval_json(3600), world.ago(3700))
        scheduler.tick()
    assert scheduler.synced == [0, 2, 5]


def test_plain_runs_count_for_sync(world: World) -> None:
    class Plain(RedBeatScheduler):
        syncs = 0

        def sync(self) -> None:
            self.syncs += 1

    world.app.conf.broker_url = "memory://"
    scheduler = world.scheduler_of(Plain, sync_every_tasks=2)
    scheduler.tick()
    for names, syncs in (("ab", 2), ("c", 2), ("d", 3)):
        for name in names:
            world.put(name, interval_json(3600), world.ago(3700))
        scheduler.tick()
        assert scheduler.syncs == syncs


def test_a_sync_that_fails_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RecordingScheduler):
        failing = True

        def sync(self) -> None:
            if self.failing:
                raise OSError("disk full")

    world.put("a", interval_json(3600), world.ago(3700))
    scheduler = world.scheduler_of(Failing)
    with caplog.at_level(logging.ERROR, "celery.beat"):
        scheduler.tick()
    scheduler.failing = False
    assert scheduler.names == ["a"]
    assert "sync() failed" in caplog.text


def of_class(**attributes: Any) -> type[RecordingScheduler]:
    """Return a scheduler class with these attributes."""
    return type("Own", (RecordingScheduler,), attributes)


def test_attributes_of_a_class_apply_unless_set_elsewhere(world: World) -> None:
    class Producer(kombu.messaging.Producer):
        """A producer of a program."""

    attributes = {"sync_every_tasks": 2, "max_interval": 7, "lock_timeout": 90, "sync_every": 40}
    cls = of_class(Producer=Producer, **attributes)

    def values(**arguments: Any) -> dict[str, Any]:
        scheduler = world.scheduler_of(cls, **arguments)
        assert isinstance(scheduler.producer, Producer)
        return {name: getattr(scheduler, name) for name in attributes}

    assert values() == attributes
    assert values(max_interval=None, sync_every_tasks=None) == attributes
    world.app.conf.update(beat_sync_every=3, beat_max_loop_interval=8, redbeat_lock_timeout=95)
    settings = {"sync_every_tasks": 3, "max_interval": 8, "lock_timeout": 95, "sync_every": 40}
    del world.app.redbeat_conf  # a new process
    assert values() == settings
    given = {"sync_every_tasks": 4, "max_interval": 9, "lock_timeout": 99}
    assert values(**given) == {**settings, **given}


def test_the_sync_of_a_class_is_called_after_its_number_of_tasks(world: World) -> None:
    class Twice(Syncing):
        sync_every_tasks = 2

    scheduler = world.scheduler_of(Twice)
    scheduler.synced = []
    for name in ("", "ab", "c"):
        for each in name:
            world.put(each, interval_json(3600), world.ago(3700))
        scheduler.tick()
    assert scheduler.synced == [0, 2]


ENTRIES = {"job": {"task": "t", "schedule": 60}}


def assigns(scheduler: Any) -> None:
    scheduler.schedule = ENTRIES


def sets_data(scheduler: Any) -> None:
    scheduler.data = ENTRIES


def adds_an_item(scheduler: Any) -> None:
    scheduler.schedule["job"] = scheduler.Entry("job", "t", 60, app=scheduler.app)


#: What setup_schedule() does in Celery's guide and in Celery's own schedulers.
WAYS = {
    "schedule['job'] ": lambda scheduler: scheduler.merge_inplace(ENTRIES),
    "schedule.update()": lambda scheduler: scheduler.schedule.update(ENTRIES),
    "schedule['job']": adds_an_item,
    "an assignment to schedule": assigns,
    "an assignment to schedule or data": sets_data,
}


@pytest.mark.parametrize("way", WAYS)
def test_entries_that_would_not_be_stored_are_warned_about(
    world: World, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Celery keeps a mapping in the scheduler, RedBeat the entries in Redis."""

    def setup_schedule(scheduler: Any) -> None:
        scheduler._store = {"entries": ENTRIES}  # noqa: SLF001 - as Celery's PersistentScheduler
        WAYS[way](scheduler)
        scheduler.install_default_entries(scheduler.schedule)
        scheduler.sync()

    scheduler = world.scheduler_of(of_class(setup_schedule=setup_schedule))
    scheduler.tick()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"beat: {way}")
    assert "adds no entries: call update_from_dict()" in line


def test_entries_that_are_given_later_are_warned_about(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = world.scheduler()
    scheduler.schedule = {}
    assert caplog.messages == []
    scheduler.schedule = ENTRIES
    world.scheduler(schedule=ENTRIES)
    assert [text for text in caplog.messages if "update_from_dict()" not in text] == []
    assert len(caplog.messages) == 2


def test_entries_that_are_merged_into_an_own_mapping_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(RecordingScheduler):
        @property
        def schedule(self) -> Any:
            return self.data

        def setup_schedule(self) -> None:
            self.merge_inplace(ENTRIES)
            self.data["job"].last_run_at = None

    scheduler = world.scheduler_of(Own)
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["job"]
    assert caplog.messages == []
