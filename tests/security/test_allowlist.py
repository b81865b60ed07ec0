"""Tests that ``redbeat_task_allowlist`` limits all tasks that an entry can send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, signature

from redbeat import RedBeatSchedulerEntry
from redbeat.config import RedBeatConfig
from redbeat.errors import ConfigurationError, InvalidEntryError
from redbeat.schedulers import RedBeatScheduler
from tests.scheduler.conftest import SCHEDULE, RecordingScheduler, World, interval_json

PATTERNS = ["tasks.*", "proj.report"]

#: Options with which a message makes a worker run other tasks than the entry's task.
SIDEWAYS: dict[str, dict[str, Any]] = {
    "callback": {"link": [dict(signature("evil"))]},
    "one callback": {"link": dict(signature("evil"))},
    "errback": {"link_error": [dict(signature("evil"))]},
    "chain": {"chain": [dict(signature("evil"))]},
    "chord": {"chord": dict(signature("evil"))},
    "callback of a callback": {
        "link": [dict(signature("tasks.good", options={"link": [dict(signature("evil"))]}))]
    },
    "group": {
        "link": [{"subtask_type": "group", "task": "tasks.g", "kwargs": {"tasks": [{"task": 1}]}}]
    },
    "header": {"headers": {"task": "evil"}},
    "header as a pair": {"headers": [["task", "evil"]]},
    "second header as a pair": {"headers": [["task", "tasks.a"], ["task", "evil"]]},
}


@pytest.fixture
def limited(world: World) -> World:
    """Return a world whose beat may send only the tasks that match `PATTERNS`."""
    world.app.conf.redbeat_task_allowlist = PATTERNS
    return world


@pytest.mark.parametrize("task", ["tasks.a", "tasks.", "tasks.deep.er", "proj.report"])
def test_a_task_that_matches(limited: World, task: str) -> None:
    limited.put("good", task=task)
    scheduler = limited.scheduler()
    scheduler.tick()
    assert [message.task for message in scheduler.sent] == [task]
    RedBeatSchedulerEntry("saved", task, 60, app=limited.app).save()
    assert limited.client.exists("redbeat:saved")


@pytest.mark.parametrize(
    "task", ["evil", "xtasks.a", "Tasks.a", "proj.report.x", "proj.reports", "tasks", "os.system"]
)
def test_a_task_that_does_not_match(
    limited: World, log: pytest.LogCaptureFixture, task: str
) -> None:
    limited.put("bad", task=task)
    limited.put("good")
    scheduler = limited.scheduler()
    scheduler.tick()
    assert scheduler.names == ["good"]
    assert limited.quarantine() == {}
    (line,) = [text for text in log.messages if "redbeat:bad" in text]
    assert "is left to other beats" in line
    assert f"task: the task {task!r} matches no pattern of redbeat_task_allowlist" in line
    with pytest.raises(InvalidEntryError, match=r"^task: .*redbeat_task_allowlist") as caught:
        RedBeatSchedulerEntry("new", task, 60, app=limited.app).save()
    assert caught.value.field == "task"
    assert not limited.client.exists("redbeat:new")


@pytest.mark.parametrize("how", SIDEWAYS)
def test_options_cannot_bypass_the_list(
    limited: World, log: pytest.LogCaptureFixture, how: str
) -> None:
    options = SIDEWAYS[how]
    limited.put("bad", options=options)
    scheduler = limited.scheduler()
    scheduler.tick()
    assert scheduler.sent == []
    assert ": options: the task " in log.text
    with pytest.raises(InvalidEntryError, match=r"^options: .*redbeat_task_allowlist"):
        RedBeatSchedulerEntry("new", "tasks.a", 60, app=limited.app, options=options).save()


def test_options_that_a_subclass_adds_are_checked_too(
    limited: World, log: pytest.LogCaptureFixture
) -> None:
    """The beat checks the final message, including headers that subclasses add."""

    class Own(RecordingScheduler):
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            entry.options["headers"] = [("task", "evil")]
            return super().apply_async(entry, *args, **kwargs)

    limited.put("a", task="tasks.a")
    scheduler = limited.scheduler_of(Own)
    scheduler.tick()
    assert scheduler.sent == []
    assert "redbeat_task_allowlist" in log.text


def test_callbacks_that_match(limited: World) -> None:
    options = {"link": [dict(signature("proj.report"))], "headers": {"trace": {"id": 5}}}
    RedBeatSchedulerEntry("a", "tasks.a", 60, app=limited.app, options=options).save()
    limited.put("b", options=options)
    scheduler = limited.scheduler()
    scheduler.tick()
    assert scheduler.names == ["b"]


def test_a_static_entry_that_does_not_match(limited: World, log: pytest.LogCaptureFixture) -> None:
    limited.app.conf.beat_schedule = {
        "bad": {"task": "evil", "schedule": 60},
        "good": {"task": "tasks.a", "schedule": 60},
    }
    limited.scheduler().tick()
    assert limited.client.sismember("redbeat::statics", "good")
    assert not limited.client.exists("redbeat:bad")
    assert "Static entry bad is not scheduled: task: " in log.text


def test_an_entry_runs_after_a_save_of_another_task(limited: World) -> None:
    limited.put("a", interval_json(3600), limited.ago(7200), task="evil")
    scheduler = limited.scheduler()
    scheduler.tick()
    assert scheduler.sent == []
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=limited.app)
    entry.task = "tasks.a"
    entry.save()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert limited.quarantine() == {}


def test_by_default_every_task_is_allowed(world: World) -> None:
    world.put("a", task="evil", options={"headers": {"task": "x"}})
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_an_empty_list_allows_none(world: World) -> None:
    world.app.conf.redbeat_task_allowlist = []
    with pytest.raises(InvalidEntryError, match="task"):
        RedBeatSchedulerEntry("a", "", 60, app=world.app).save()
    with pytest.raises(InvalidEntryError, match="allowlist"):
        RedBeatSchedulerEntry("a", "t", 60, app=world.app).save()


@pytest.mark.parametrize("value", ["tasks.*", [""], [None], [5], {"a": 1}, True])
def test_an_impossible_list_is_refused(value: Any) -> None:
    app = Celery("allow", broker="redis://h", set_as_current=False)
    app.conf.redbeat_task_allowlist = value
    with pytest.raises(ConfigurationError, match=r"redbeat_task_allowlist.*list of patterns"):
        RedBeatConfig(app)


def test_upper_case_spelling() -> None:
    app = Celery("allow", broker="redis://h", set_as_current=False)
    app.conf.update({"CELERY_REDBEAT_TASK_ALLOWLIST": ["a"], "REDBEAT_TASK_ALLOWLIST": ["b"]})
    allowlist = RedBeatConfig(app).task_allowlist
    assert allowlist is not None
    assert json.dumps(allowlist.patterns) == '["b"]'


@pytest.mark.parametrize("patterns", [["evil"], ["tasks.*", "e*"], None])
def test_a_beat_with_another_list_sends_it(limited: World, patterns: list[str] | None) -> None:
    limited.put("a", interval_json(3600), limited.ago(7200), task="evil")
    limited.put("broken", {"__type__": "crontab", "minute": "never"})
    first = limited.scheduler()
    first.tick()
    first.close()
    assert list(limited.quarantine()) == ["redbeat:broken"]
    limited.app.conf.redbeat_task_allowlist = patterns
    del limited.app.redbeat_conf
    # Skip the delay after which a beat checks the entry again.
    limited.client.zadd(SCHEDULE, {"redbeat:a": 1}, xx=True)
    second = limited.scheduler()
    second.tick()
    assert second.names == ["a"]


class TestTheFinalMessage:
    """The producer of the beat checks the message that is about to leave, however it was made."""

    @pytest.fixture(params=["at_least_once", "at_most_once"])
    def sending(self, limited: World, request: pytest.FixtureRequest, redis_url: str) -> World:
        """Return a world whose beat sends to a real queue, with each kind of delivery."""
        limited.app.conf.update(broker_url=redis_url, redbeat_delivery=request.param)
        return limited

    @pytest.mark.parametrize("how", ["headers", "callbacks", "another task"])
    def test_user_code_cannot_bypass_the_list(
        self, sending: World, log: pytest.LogCaptureFixture, how: str
    ) -> None:
        """This scheduler replaces the whole method that sends, as programs for RedBeat 2 do."""
        additions: dict[str, dict[str, Any]] = {
            "headers": {"headers": [{"task": "tasks.a", "evil": 1}]},
            "callbacks": {"link": [signature("evil")]},
            "another task": {},
        }

        class Own(RedBeatScheduler):
            def apply_async(
                self,
                entry: Any,
                producer: Any = None,
                advance: bool = True,  # noqa: ARG002 - Celery's argument
                **_: Any,
            ) -> Any:
                task = "evil" if how == "another task" else entry.task
                return self.send_task(task, [], {}, producer=producer, **additions[how])

        sending.put("a", task="tasks.a")
        scheduler = sending.scheduler_of(Own)
        scheduler.tick()
        assert sending.client.llen("celery") == 0
        assert "redbeat_task_allowlist" in log.text
        assert "The tick failed" not in log.text

    def test_what_is_allowed_is_sent(self, sending: World) -> None:
        options = {"link": [dict(signature("proj.report"))], "headers": {"trace": 1}}
        sending.put(
            "a", task="tasks.a", options=options, kwargs={"task": "evil"}, args=[["task", 1]]
        )
        sending.scheduler_of(RedBeatScheduler).tick()
        assert sending.client.llen("celery") == 1


def test_headers_whose_pairs_are_objects(limited: World) -> None:
    """Python makes {"task": "evil"} of these headers, although no key has that value."""
    options = {"headers": [{"task": "tasks.a", "evil": 1}]}
    with pytest.raises(InvalidEntryError, match=r"^options\.headers: "):
        RedBeatSchedulerEntry("new", "tasks.a", 60, app=limited.app, options=options).save()
    limited.put("bad", task="tasks.a", options=options)
    scheduler = limited.scheduler()
    scheduler.tick()
    assert scheduler.sent == []
    assert list(limited.quarantine()) == ["redbeat:bad"]
