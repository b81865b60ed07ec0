"""Runs and calls for the tests of what publishes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery, Task
from celery.result import AsyncResult
from celery.schedules import schedule
from kombu.exceptions import OperationalError
from redis import Redis

from redbeat.calendar.zones import UTC
from redbeat.entries.decide import Plan
from redbeat.entries.history import History
from redbeat.entries.policy import DEFAULT
from redbeat.entries.run import Rule, Run
from redbeat.entries.state import State
from redbeat.entries.verdicts import Known, Rest, Send, Verdict
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.rows import Row

#: When the runs are due.
AT = datetime(2026, 6, 1, 12, tzinfo=UTC)

#: When the entries are due after that.
NEXT = AT + timedelta(minutes=1)

#: The task that all apps of these tests have.
NOTE = "proj.note"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Closed:
    """A producer that cannot open a channel."""

    @property
    def channel(self) -> Any:
        raise OperationalError("refused")


def rule_of(name: str = "a", task: str = NOTE, **more: Any) -> Rule:
    """Return a rule that runs ``task`` every minute."""
    every = more.pop("schedule", schedule(60.0))
    fields: dict[str, Any] = {
        "args": [1],
        "kwargs": {},
        "options": {},
        "enabled": True,
        "policy": DEFAULT,
        "definition": "",
        "policy_text": "",
        **more,
    }
    plan = Plan(every, UTC, fields["policy"], name)
    fields["asks"] = asks_itself(every)
    return Rule(f"redbeat:{name}", name, task, schedule=every, plan=plan, **fields)


def run_of(name: str = "a", rule: Rule | None = None, kind: str = "scheduled", **row: Any) -> Run:
    """Return a run of an entry that is due at :data:`AT`, with the id ``<name>-id``."""
    due = AT.timestamp()
    rule = rule or rule_of(name)
    stored = Row(rule.key, str(due), **row)
    state = State()
    send = Send(kind, AT, "" if kind == "scheduled" else "t1", 0, None)
    known = Known(rule, rule.plan, History(), state, due + 0.25, due)
    verdict = Verdict(send, Rest(NEXT.timestamp(), state), known)
    run = Run(stored, rule, state, History(), due + 0.25, verdict)
    run.task_id = f"{name}-id"
    return run


def app_of(url: str, **settings: Any) -> Celery:
    """Return an app with the task :data:`NOTE`, whose broker and schedule are at ``url``."""
    app = Celery("sending", broker=url, set_as_current=False)
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None, **settings)
    app.task(name=NOTE, shared=False)(note)
    return app


def note(*_: Any, **__: Any) -> None:
    """The body of the tasks of these tests."""


def call_of(app: Celery, run: Run, producer: Any, **options: Any) -> Callable[[], Any]:
    """Return the call with which a beat publishes a plain run."""
    options = {"task_id": run.task_id, **options}
    task = app.tasks[run.rule.task]
    return partial(task.apply_async, run.rule.args, run.rule.kwargs, producer=producer, **options)


class Single(Task):
    """A task that sends no copy of a waiting message, but returns the result of that message."""

    waiting = "older-id"

    def apply_async(self, *_args: Any, **_options: Any) -> Any:
        return AsyncResult(self.waiting, app=self.app)


class Renamed(Task):
    """A task whose messages have an id that the task chooses."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().apply_async(args, kwargs, **{**options, "task_id": "chosen-id"})


class Elsewhere(Task):
    """A task that publishes on a connection of its own."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        with self.app.connection_for_write() as own, self.app.amqp.Producer(own) as other:
            return super().apply_async(args, kwargs, **{**options, "producer": other})


def messages(client: Redis, queue: str = "celery") -> list[Any]:
    """Return the messages in a queue, oldest first."""
    texts: Any = client.lrange(queue, 0, -1)
    return list(reversed(texts))


def put(producer: Any) -> None:
    """Put a message into the queue ``celery``, without a publish of kombu."""
    with producer.channel.conn_or_acquire() as client:
        client.lpush("celery", "{}")
