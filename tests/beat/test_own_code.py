"""What users override in sending is found and called; what libraries wrap keeps exactly once."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
import wrapt
from celery import Celery, Task
from celery.beat import Scheduler
from celery.schedules import crontab, schedule
from kombu.messaging import Producer
from sentry_sdk.integrations.celery import _wrap_task_run
from sentry_sdk.integrations.celery.beat import _wrap_beat_scheduler

from redbeat import RedBeatSchedulerEntry, rrule
from redbeat.beat.message import name_run
from redbeat.beat.one_step import OneStep
from redbeat.beat.own_code import OwnCall, OwnCode
from redbeat.beat.send import Sender
from redbeat.config import ensure_conf
from redbeat.entries.run import Rule, Run
from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from tests.beat.sending import (
    AT,
    NOTE,
    Clock,
    Single,
    app_of,
    messages,
    note,
    rule_of,
    run_of,
)

pytestmark = pytest.mark.standalone

SCHEDULER: Any = RedBeatScheduler
TASK: Any = Task
PRODUCER: Any = Producer

#: A wrapper in an installed package, and one in a project.
WRAPPER = """
def wrapper(wrapped, instance=None, args=(), kwargs={}):
    return wrapped(*args, **kwargs)


def around(wrapped):
    def inner(*args, **kwargs):
        return wrapped(*args, **kwargs)

    inner.__wrapped__ = wrapped
    return inner
"""


def code_in(path: str) -> dict[str, Any]:
    """Return the functions of :data:`WRAPPER` as if they stood in the file ``path``."""
    names: dict[str, Any] = {}
    exec(compile(WRAPPER, path, "exec"), names)
    return names


LIBRARY = code_in("/srv/app/lib/python3.12/site-packages/tracer/patch.py")
PROJECT = code_in("/srv/app/proj/patch.py")


class World:
    """An app with a scheduler, and what publishes its runs."""

    def __init__(self, app: Celery, scheduler: type[RedBeatScheduler]) -> None:
        self.app = app
        self.scheduler: Any = scheduler(app, lazy=True)
        self.own = OwnCode(self.scheduler)
        self.sender = Sender(50, Clock())
        self.client: Any = redis.Redis.from_url(str(app.conf.redbeat_redis_url))
        self.one_step = OneStep(self.client, ensure_conf(app), Clock())

    @property
    def producer(self) -> Any:
        return self.scheduler.producer

    def run(
        self, name: str = "a", kind: str = "scheduled", identity: str = "", **fields: Any
    ) -> Run:
        """Return a run of an entry with ``fields``, as a beat loads it."""
        fields = {"task": NOTE, "schedule": schedule(60.0), "args": [1], **fields}
        entry = self.scheduler.Entry(name, app=self.app, **fields)
        definition, policy = entry.texts()
        rule = rule_of(
            *(name, fields["task"]),
            schedule=fields["schedule"],
            definition=definition,
            policy_text=policy,
            args=entry.args,
            kwargs=entry.kwargs,
            options=entry.options,
        )
        run = run_of(name, rule, kind, definition=definition, policy=policy)
        run.state.identity, given = identity, run.task_id
        name_run(run, run.send, "redbeat:")
        run.task_id = given
        return run

    def send(self, run: Run) -> OwnCall:
        """Send a run through the window."""
        call = run.own = self.own.call(run, self.producer)
        self.sender.publish(run, call, self.producer, own=True)
        assert self.sender.finish() == [run]
        return call

    def headers(self) -> list[dict[str, Any]]:
        return [json.loads(text)["headers"] for text in messages(self.client)]

    def close(self) -> None:
        self.sender.close()
        self.one_step.close()
        self.scheduler.close()
        self.client.close()
        self.app.close()


Make = Callable[..., World]


@pytest.fixture
def make_world(redis_url: str) -> Iterator[Make]:
    worlds: list[World] = []

    def make(scheduler: Any = SCHEDULER, **settings: Any) -> World:
        worlds.append(World(app_of(redis_url, **settings), scheduler))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


# -- whose code it is ------------------------------------------------------------------------------


def judged(world: World, rule: Rule | None = None) -> tuple[str, bool, bool]:
    """Return the user's method, whether a run has an entry object, and whether it is plain."""
    rule = rule or rule_of()
    method, others = world.own.part_in(rule)
    return method, world.own.makes_entries, not others


PLAIN = ("", False, True)


def test_a_plain_run_has_no_code_of_others(make_world: Make) -> None:
    assert judged(make_world()) == PLAIN


@pytest.mark.parametrize("name", ["maybe_due", "is_due", "apply_async", "reserve", "send_task"])
def test_a_method_of_a_scheduler(make_world: Make, name: str) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(mine, self), name)(*args, **kwargs)

    mine = type("Mine", (RedBeatScheduler,), {name: method})
    assert judged(make_world(mine)) == (f"Mine.{name}", True, False)


def test_a_tick_of_a_scheduler_needs_no_entry_objects(make_world: Make) -> None:
    class Mine(RedBeatScheduler):
        def tick(self, *args: Any, **kwargs: Any) -> float:
            return super().tick(*args, **kwargs)

    assert judged(make_world(Mine)) == ("Mine.tick", False, False)


def test_a_method_of_a_mixin_and_of_a_base_class(make_world: Make) -> None:
    class Mixin:
        def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
            parent: Any = super()
            return parent.maybe_due(entry, **kwargs)

    class Base(Mixin, RedBeatScheduler): ...

    class Mine(Base): ...

    assert judged(make_world(Mine))[0] == "Mixin.maybe_due"


def test_a_scheduler_that_overrides_nothing_in_sending(make_world: Make) -> None:
    class Mine(RedBeatScheduler):
        maybe_due = RedBeatScheduler.maybe_due
        max_interval = 3

        def setup_schedule(self) -> None:
            super().setup_schedule()

    assert judged(make_world(Mine)) == PLAIN


def test_a_method_of_celery_in_a_subclass_is_not_ours(make_world: Make) -> None:
    class Mine(RedBeatScheduler):
        apply_async = Scheduler.apply_async

    assert judged(make_world(Mine))[0] == "Mine.apply_async"


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function in the usual way: the result has the name and module of the function."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def never(*_: Any, **__: Any) -> None:
    """Take the place of a method."""


WRAPPERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "Sentry": (_wrap_beat_scheduler, False),
    "a library": (LIBRARY["around"], False),
    "wrapt in a library": (lambda f: wrapt.FunctionWrapper(f, LIBRARY["wrapper"]), False),
    "two libraries": (lambda f: LIBRARY["around"](_wrap_beat_scheduler(f)), False),
    "a project": (PROJECT["around"], True),
    "a decorator of a project": (own, True),
    "wrapt in a project": (lambda f: wrapt.FunctionWrapper(f, PROJECT["wrapper"]), True),
    "a library around a project": (lambda f: LIBRARY["around"](PROJECT["around"](f)), True),
    "a project around a library": (lambda f: PROJECT["around"](LIBRARY["around"](f)), True),
    "functools": (lambda f: functools.partialmethod(PROJECT["around"](f)), True),
    "another function": (lambda _: never, True),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_who_replaces_a_method_of_our_class(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wrap, users = WRAPPERS[name]
    monkeypatch.setattr(RedBeatScheduler, "apply_async", wrap(SCHEDULER.apply_async))
    method = "RedBeatScheduler.apply_async" if users else ""
    assert judged(make_world()) == (method, True, False)


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "functools"])
def test_who_replaces_a_method_of_a_scheduler_object(make_world: Make, name: str) -> None:
    wrap, users = WRAPPERS[name]
    world = make_world()
    world.scheduler.apply_async = wrap(world.scheduler.apply_async)
    world.own.refresh()
    method = "RedBeatScheduler.apply_async" if users else ""
    assert judged(world) == (method, True, False)


@pytest.mark.parametrize("wrap", [_wrap_task_run, LIBRARY["around"], PROJECT["around"]])
def test_who_replaces_the_method_of_celerys_task(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    monkeypatch.setattr(Task, "apply_async", wrap(TASK.apply_async))
    users = wrap is PROJECT["around"]
    assert judged(make_world()) == ("Task.apply_async" if users else "", False, False)


def test_a_class_that_is_patched_while_the_beat_runs(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    assert judged(world) == PLAIN
    monkeypatch.setattr(RedBeatScheduler, "maybe_due", PROJECT["around"](SCHEDULER.maybe_due))
    world.own.refresh()
    assert judged(world)[0] == "RedBeatScheduler.maybe_due"
    monkeypatch.undo()
    world.own.refresh()
    assert judged(world) == PLAIN


def test_a_subclass_is_the_users_wherever_it_lives(make_world: Make) -> None:
    mine = type("Packaged", (RedBeatScheduler,), {"maybe_due": LIBRARY["wrapper"]})
    assert judged(make_world(mine))[0] == "Packaged.maybe_due"


@pytest.mark.parametrize("name", ["is_due", "__next__", "_next_instance"])
def test_a_method_of_an_entry_class(make_world: Make, name: str) -> None:
    entry = type("MyEntry", (RedBeatSchedulerEntry,), {name: lambda self, *_: never(self)})
    mine = type("Mine", (RedBeatScheduler,), {"Entry": entry})
    assert judged(make_world(mine)) == (f"MyEntry.{name}", True, False)


def test_an_entry_class_that_only_adds_fields_keeps_exactly_once(make_world: Make) -> None:
    class MyEntry(RedBeatSchedulerEntry):
        colour = "red"

    mine = type("Mine", (RedBeatScheduler,), {"Entry": MyEntry})
    assert judged(make_world(mine)) == ("", True, False)


def test_a_task_with_a_publish_of_its_own_concerns_its_entries_alone(make_world: Make) -> None:
    world = make_world()
    world.app.task(base=Single, shared=False, name="proj.single")(note)
    assert judged(world, rule_of("a", "proj.single")) == ("Single.apply_async", False, False)
    assert judged(world, rule_of("b")) == PLAIN
    assert judged(world, rule_of("c", "proj.unknown")) == PLAIN
    world.app.tasks[NOTE].apply_async = never
    assert judged(world, rule_of("b")) == (f"{NOTE}.apply_async", False, False)


def test_schedules(make_world: Make) -> None:
    class Mine(schedule):
        def is_due(self, last_run_at: datetime) -> Any:
            return super().is_due(last_run_at)

    class Renamed(crontab):
        pass

    world = make_world()
    known = [schedule(9.0), crontab("*/5"), rrule("DAILY", dtstart=AT), Renamed("1")]
    assert [judged(world, rule_of(schedule=one))[0] for one in known] == [""] * 4
    assert judged(world, rule_of(schedule=Mine(9.0))) == ("Mine.is_due", False, True)


def test_eager_tasks_run_in_the_beat(make_world: Make) -> None:
    world = make_world(task_always_eager=True)
    assert judged(world) == ("task_always_eager", False, False)


def test_an_app_that_sends_by_itself_keeps_exactly_once(make_world: Make) -> None:
    world = make_world()
    world.app.send_task = functools.partial(world.app.send_task, priority=1)
    world.own.refresh()
    assert judged(world) == ("", False, False)


def test_a_producer_of_a_program_keeps_exactly_once(make_world: Make) -> None:
    class Mine(RedBeatScheduler):
        @property
        def producer(self) -> Any:
            return super().producer

    class MyProducer(PRODUCER):
        pass

    with_class = type("Mine", (RedBeatScheduler,), {"Producer": MyProducer})
    for mine in (Mine, with_class):
        assert judged(make_world(mine)) == ("", False, False)


def test_exactly_once_is_refused_with_the_name_of_the_method(make_world: Make) -> None:
    class Mine(RedBeatScheduler):
        def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
            return super().maybe_due(entry, **kwargs)

    mine, plain = make_world(Mine), make_world()
    with pytest.raises(ConfigurationError, match=r"Mine\.maybe_due"):
        mine.own.check(True)
    mine.own.check(False)
    plain.own.check(True)


# -- calling it ------------------------------------------------------------------------------------


def test_an_overridden_method_gets_an_entry_with_the_decided_run(make_world: Make) -> None:
    seen: list[Any] = []

    class Mine(RedBeatScheduler):
        def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
            seen.append((entry.name, entry.task, entry.args, entry.is_due().is_due))
            return super().maybe_due(entry, **kwargs)

    world = make_world(Mine)
    run = world.run()
    call = world.send(run)
    assert seen == [("a", NOTE, [1], True)]
    assert (run.error, run.left, call.declined, call.score) == (None, True, False, None)
    assert call.seconds == pytest.approx(59.75)
    (headers,) = world.headers()
    assert headers["scheduled_at"] == "2026-06-01T12:00:00+00:00"
    assert headers["periodic_task_name"] == "a"
    assert run.task_id == headers["id"]


def test_a_library_around_our_method_keeps_exactly_once(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def traced(scheduler: Any, entry: Any, **kwargs: Any) -> Any:
        calls.append(entry.name)
        return original(scheduler, entry, **kwargs)

    original = SCHEDULER.apply_async
    monkeypatch.setattr(RedBeatScheduler, "apply_async", LIBRARY["around"](traced))
    world = make_world()
    run = world.run()
    call = world.own.call(run, world.producer)
    assert world.one_step.capture(run, world.producer, call, own=True)
    assert calls == ["a"]
    assert run.left
    assert [command[:2] for command in run.push] == [["LPUSH", "celery"]]
    assert json.loads(run.push[0][2])["headers"]["id"] == run.task_id
    assert messages(world.client) == []
    assert (call.score, call.meta) == (None, None), "the verdict's rest holds"


@pytest.mark.parametrize(
    ("returned", "wait"), [(7.5, 7.5), (0, 0.05), (float("nan"), 5.0), ("soon", 5.0), (None, None)]
)
def test_a_method_that_says_not_now(make_world: Make, returned: Any, wait: float | None) -> None:
    class Mine(RedBeatScheduler):
        def maybe_due(self, entry: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - it never sends
            return returned

    world = make_world(Mine)
    run = world.run()
    call = world.send(run)
    assert (run.left, run.error, call.declined) == (False, None, True)
    assert call.score == (-1.0 if wait is None else pytest.approx(run.now + wait))


def test_an_entry_class_that_makes_its_successor(make_world: Make) -> None:
    class MyEntry(RedBeatSchedulerEntry):
        def _next_instance(self, *args: Any, **kwargs: Any) -> Any:
            after = super()._next_instance(*args, **kwargs)
            after.total_run_count = 40
            return after

        __next__ = next = _next_instance

        def history_text(self) -> str:
            return json.dumps({**json.loads(super().history_text()), "colour": "red"})

    world = make_world(type("Mine", (RedBeatScheduler,), {"Entry": MyEntry}))
    call = world.send(world.run())
    stored = json.loads(call.meta or "")
    assert (stored["total_run_count"], stored["colour"]) == (40, "red")


def test_an_entry_class_that_chooses_its_next_time(make_world: Make) -> None:
    class Due(RedBeatSchedulerEntry):
        def is_due(self) -> Any:
            return super().is_due()._replace(next=9.0)

    class Score(RedBeatSchedulerEntry):
        @property
        def score(self) -> float:
            return -1.0

    class Broken(RedBeatSchedulerEntry):
        @property
        def due_at(self) -> Any:
            raise ZeroDivisionError

    class Same(RedBeatSchedulerEntry):
        def is_due(self) -> Any:
            return super().is_due()

    found = []
    for entry in (Due, Score, Broken, Same):
        world = make_world(type("Mine", (RedBeatScheduler,), {"Entry": entry}))
        run = world.run()
        call = world.send(run)
        assert run.left
        found.append(call.score and (call.score if call.score < 0 else call.score - run.now))
    assert found == [pytest.approx(9.0), -1.0, None, None]


def test_an_entry_class_that_loads_itself(make_world: Make) -> None:
    class MyEntry(RedBeatSchedulerEntry):
        @classmethod
        def from_key(cls, key: Any, app: Any = None) -> Any:
            return cls("other", NOTE, schedule(60.0), app=app, kwargs={"key": key})

    world = make_world(type("Mine", (RedBeatScheduler,), {"Entry": MyEntry}))
    call = world.send(world.run())
    assert call.entry.kwargs == {"key": "redbeat:a"}
    assert world.headers()[0]["periodic_task_name"] == "other"
