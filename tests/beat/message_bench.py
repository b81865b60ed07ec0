"""A bench for the tests of rendered messages: what Celery makes, and what is rendered."""

# ruff: noqa: SLF001 - the tests look at private attributes of Celery, kombu and Messages

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kombu
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule

from redbeat.beat.broker import checked_producer
from redbeat.beat.message import Messages, retry_options, sendable_options
from redbeat.beat.pipes import Capture
from redbeat.entries.decide import Plan
from redbeat.entries.definition import evaluated
from redbeat.entries.policy import Policy
from redbeat.entries.run import Rule

#: Whether kombu can send bodies that are not encoded. Kombu 5.3 can not.
SENDS_TEXT = kombu.VERSION >= (5, 4)

AT = "2026-12-01T00:00:00+00:00"


def rule_of(name: str = "a", task: str = "tasks.a", **more: Any) -> Rule:
    """Return a rule without a stored text, which is therefore the same only as itself."""
    fields: dict[str, Any] = {"args": [1, "two"], "kwargs": {"three": 3}, "options": {}}
    fields |= {"enabled": True, "schedule": None, "policy": Policy(), "policy_text": ""}
    fields |= {"plan": Plan(schedule(60)), "definition": ""}
    return Rule(key=f"redbeat:{name}", name=name, task=task, **{**fields, **more})


#: The settings of RedBeat that have a say in messages.
CONF: Any = SimpleNamespace(task_allowlist=None)


class Bench:
    """An app whose messages are captured, with what renders them."""

    def __init__(self, app: Celery, conf: Any = CONF) -> None:
        self.app, self.conf = app, conf
        self.connection = app.connection_for_write()
        self.scheduler = Scheduler(app, lazy=True)
        producer_class = checked_producer(app.amqp.Producer)
        self.producer = producer_class(self.connection, auto_declare=False)
        self.messages = Messages(app, conf)
        self.chance = 0.5  # no message is compared by chance
        self.messages._random = lambda: self.chance
        #: How many messages Celery made.
        self.made = 0
        #: Changes the commands of the messages that Celery makes.
        self.change: Callable[[list[Any]], list[Any]] = lambda commands: commands

    @property
    def differs(self) -> bool:
        """Whether a rendered message was not the same as Celery's."""
        return bool(self.messages._distrusted)

    def why_not(self, rule: Rule) -> str:
        """Return why Celery makes the messages of a rule, "" if they are rendered."""
        return self.messages.why_not(rule)

    def begin(self, *, few: bool = False) -> None:
        self.messages.begin(None if few else self.producer)

    def by_celery(self, rule: Rule, headers: dict[str, Any], task_id: str) -> list[list[Any]]:
        """Return the commands of a message that Celery made."""
        self.made += 1
        chosen = rule.options or {}
        options = retry_options(sendable_options(chosen), at_most_once=False)
        own = chosen.get("headers") or {}
        options["headers"] = {**headers, **dict(own), "celery_beat_task": True}
        options.update(task_id=task_id, producer=self.producer)
        args, kwargs = evaluated(rule.args, rule.kwargs)
        args, kwargs = list(args or ()), dict(kwargs or {})
        task = self.app.tasks.get(rule.task)
        capture = Capture(self.producer.channel)
        with capture:
            if task:
                task.apply_async(args, kwargs, **options)
            else:
                self.scheduler.send_task(rule.task, args, kwargs, **options)
        return self.change(capture.commands)

    def push(
        self, rule: Rule, task_id: str = "id-1", at: str = AT, /, **extra: Any
    ) -> list[list[Any]]:
        """Return the commands of a message, whoever makes it."""
        headers = {"scheduled_at": at, "periodic_task_name": rule.name, **extra}
        task_id = (rule.options or {}).get("task_id") or task_id
        commands = self.messages.render(rule, headers, task_id)
        if commands is None:
            commands = self.by_celery(rule, headers, task_id)
            self.messages.learn(rule, headers, task_id, commands)
        return commands

    def learn(self, *rules: Rule) -> None:
        """Let Celery make as many messages as are compared first."""
        self.begin()
        for rule in rules:
            self.push(rule, "id-2")
            self.push(rule, "id-3")
        self.made = 0

    def renders(self, rule: Rule) -> bool:
        """Begin a turn and push a message; return whether it is rendered."""
        self.begin()
        before = self.made
        self.push(rule, "id-4")
        return self.made == before

    def both(
        self, rule: Rule, task_id: str = "id-1", at: str = AT, /, **extra: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return a rendered message and the one that Celery makes with the same delivery tag."""
        before = self.made
        rendered = self.push(rule, task_id, at, **extra)
        assert self.made == before, self.why_not(rule) or "not learned"
        tag = json.loads(rendered[0][2])["properties"]["delivery_tag"]
        self.producer.channel._next_delivery_tag = lambda: tag
        headers = {"scheduled_at": at, "periodic_task_name": rule.name, **extra}
        try:
            task_id = (rule.options or {}).get("task_id") or task_id
            return rendered, self.by_celery(rule, headers, task_id)
        finally:
            del self.producer.channel._next_delivery_tag
            self.made = before
