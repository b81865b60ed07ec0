"""The operations that applications, operators and programs in other languages run on entries."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import (
    Calendar,
    RedBeatScheduler,
    RedBeatSchedulerEntry,
    Schedule,
    clocked,
    register_schedule_type,
    rrule,
    rruleset,
)
from tests.simulation.clocks import SECOND
from tests.simulation.record import Action
from tests.simulation.scenario import Step
from tests.simulation.world import World

PREFIX: Final = "redbeat:"
SCHEDULE: Final = "redbeat::schedule"
WAKEUP: Final = "redbeat::wakeup"

NAN: Final = float("nan")

#: The fields of a scenario's entry that become arguments of a RedBeat entry.
PASSED_ON: Final = (
    "catch_up_limit",
    "coalesce",
    "delivery",
    "exclude",
    "jitter",
    "max_runs",
    "misfire_grace_time",
    "on_finish",
    "overlap",
    "spread",
    "timezone",
)


@dataclass
class Application:
    """A program that uses RedBeat; its plain Redis client acts as a program without RedBeat."""

    app: Celery
    world: World
    client: redis.Redis

    def load(self, step: Step) -> RedBeatSchedulerEntry:
        """Return a stored entry; raise ``KeyError`` if it does not exist."""
        key = RedBeatSchedulerEntry.generate_key(self.app, step.entry)
        return RedBeatSchedulerEntry.from_key(key, app=self.app)

    def define(self, step: Step, action: Action) -> dict[str, Any]:
        """Return the fields of a new entry, and record them for the oracle."""
        made_at = (self.world.now - self.world.start) / SECOND
        action.definition = {**step.fields, "made_at": made_at}
        return fields_of(step.fields, action.version, self.world.now)


def save(by: Application, step: Step, action: Action) -> None:
    """Create a new entry object and save it."""
    RedBeatSchedulerEntry(step.entry, app=by.app, **by.define(step, action)).save()


def edit(by: Application, step: Step, action: Action) -> None:
    """Load an entry, change its arguments, and save it."""
    entry = by.load(step)
    entry.kwargs = {**entry.kwargs, "version": action.version}
    entry.save()


def reset(by: Application, step: Step, action: Action) -> None:
    """Load an entry, reset its run count, and save it."""
    entry = by.load(step)
    entry.kwargs = {**entry.kwargs, "version": action.version}
    entry.total_run_count = 0
    entry.save()


def backfill(by: Application, step: Step, _action: Action) -> int:
    """Backfill the span from ``since`` to the present; return the number of runs."""
    now = datetime.fromtimestamp(by.world.now / SECOND, timezone.utc)
    start = datetime.fromtimestamp(by.world.start / SECOND, timezone.utc)
    since = start + timedelta(seconds=step.fields["since"])
    return len(by.load(step).backfill(since, now, rate=100).instants)


def save_calendar(by: Application, step: Step, _action: Action) -> None:
    """Save a calendar with the name ``entry``."""
    Schedule(by.app).save_calendar(Calendar(step.entry, step.fields["days"]))


def raw_save(by: Application, step: Step, action: Action) -> None:
    """Write an entry as the manual describes for other languages.

    An existing entry is changed in place and keeps its history and its stored policy. With
    ``anew``, the same transaction deletes the old entry first. With ``quiet``, no beat is woken.
    """
    fields = by.define(step, action)
    key = PREFIX + step.entry
    definition: dict[str, Any] = {
        "name": step.entry,
        "task": fields["task"],
        "kwargs": fields["kwargs"],
        "schedule": schedule_text(step.fields, by.world.now),
        **{name: step.fields[name] for name in PASSED_ON if name in step.fields},
    }
    with by.client.pipeline() as pipe:
        if step.fields.get("anew"):
            pipe.delete(key)
        pipe.hset(key, "definition", json.dumps(definition))
        look_at(pipe, step, action)
        pipe.execute()


def raw_delete(by: Application, step: Step, _action: Action) -> None:
    """Delete an entry as the manual describes for other languages."""
    with by.client.pipeline() as pipe:
        pipe.zrem(SCHEDULE, PREFIX + step.entry)
        pipe.delete(PREFIX + step.entry)
        pipe.execute()


def raw_disable(by: Application, step: Step, _action: Action) -> None:
    """Disable an entry as the manual describes for other languages."""
    by.client.hset(PREFIX + step.entry, "definition", definition_with(by, step, enabled=False))


def raw_enable(by: Application, step: Step, action: Action) -> None:
    """Enable an entry as the manual describes for other languages."""
    text = definition_with(by, step, enabled=True)
    with by.client.pipeline() as pipe:
        pipe.hset(PREFIX + step.entry, "definition", text)
        look_at(pipe, step, action)
        pipe.execute()


def definition_with(by: Application, step: Step, enabled: bool) -> str:
    """Return a stored definition with ``enabled``; raise ``KeyError`` if the entry is missing."""
    text = by.client.hget(PREFIX + step.entry, "definition")
    if text is None:
        raise KeyError(step.entry)
    return json.dumps({**json.loads(text), "enabled": enabled})


def raw_run(by: Application, step: Step, action: Action) -> None:
    """Run an entry now as the manual describes for other languages: delete its run history."""
    if not by.client.exists(PREFIX + step.entry):
        raise KeyError(step.entry)
    with by.client.pipeline() as pipe:
        pipe.hdel(PREFIX + step.entry, "meta")
        look_at(pipe, step, action)
        pipe.execute()


def look_at(pipe: Any, step: Step, action: Action) -> None:
    """Add the commands that make beats look at an entry now: its score is 0 or the present."""
    pipe.zadd(SCHEDULE, {PREFIX + step.entry: time.time() if action.version % 2 else 0})
    if not step.fields.get("quiet"):
        pipe.publish(WAKEUP, "due")


OPERATIONS: Final[dict[str, Callable[[Application, Step, Action], Any]]] = {
    "save": save,
    "rearm": save,
    "edit": edit,
    "reset": reset,
    "pause": lambda by, step, _action: by.load(step).pause(),
    "resume": lambda by, step, _action: by.load(step).resume(),
    "trigger": lambda by, step, _action: by.load(step).trigger(),
    "backfill": backfill,
    "calendar": save_calendar,
    "delete": lambda by, step, _action: by.load(step).delete(),
    "raw save": raw_save,
    "raw delete": raw_delete,
    "raw disable": raw_disable,
    "raw enable": raw_enable,
    "raw run": raw_run,
}


def fields_of(fields: dict[str, Any], version: int, now: int) -> dict[str, Any]:
    """Return the arguments of the entry in a scenario, created at the true time ``now``."""
    instant = datetime.fromtimestamp(now / SECOND, timezone.utc)
    answer = {"answer": fields["answer"]} if "answer" in fields else {}
    expiry = {"expires": fields["expires"]} if "expires" in fields else {}
    return {
        "task": fields.get("task", "proj.run"),
        "schedule": schedule_of(fields, instant),
        "kwargs": {"version": version, "takes": fields.get("takes", 0), **answer, **expiry},
        "options": expiry,
        **{name: fields[name] for name in PASSED_ON if name in fields},
        **{
            f"{name}_time": instant + timedelta(seconds=fields[name])
            for name in ("start", "end")
            if name in fields
        },
    }


def schedule_of(fields: dict[str, Any], now: datetime) -> Any:
    """Return the schedule object that a scenario describes."""
    return SCHEDULES[fields["kind"]](fields, now)


def crontab_of(fields: dict[str, Any], _now: datetime) -> crontab:
    names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    return crontab(**{name: fields[name] for name in names if name in fields})


def rrule_of(fields: dict[str, Any], now: datetime) -> rrule:
    more = {name: fields[name] for name in ("count", *BY) if name in fields}
    start = now.replace(microsecond=0) + timedelta(seconds=1 - fields.get("past", 0))
    if "zone" in fields:
        start = start.astimezone(ZoneInfo(fields["zone"]))
    return rrule(fields["freq"], start, interval=fields["interval"], **more)


#: The fields that choose some times of a rule.
BY: Final = ("byhour", "byminute", "bysecond")


def rruleset_of(fields: dict[str, Any], now: datetime) -> rruleset:
    """Return the rule, with a date 100 minutes after its start, and without its second run."""
    rule = rrule_of(fields, now)
    excluded = rule.dtstart + timedelta(hours=fields["interval"])
    return rruleset([rule], [rule.dtstart + timedelta(minutes=100)], [excluded])


SCHEDULES: Final[dict[str, Callable[[dict[str, Any], datetime], Any]]] = {
    "every": lambda fields, _now: timedelta(seconds=fields["seconds"]),
    "relative": lambda fields, _now: schedule(timedelta(seconds=fields["seconds"]), relative=True),
    "crontab": crontab_of,
    "rrule": rrule_of,
    "rruleset": rruleset_of,
    "clocked": lambda fields, now: clocked(now + timedelta(seconds=fields["after"])),
    "solar": lambda _fields, _now: solar("sunset", 52.52, 13.41),
    "own": lambda fields, _now: OwnSchedule(fields["answer"], fields["after"]),
    "subclass": lambda fields, _now: SubclassOfInterval(fields["seconds"]),
    "foreign": lambda fields, _now: ForeignSchedule(fields["seconds"], fields["missing_on"]),
}


def schedule_text(fields: dict[str, Any], now: int) -> dict[str, Any]:
    """Return a schedule in the JSON form that programs in other languages write."""
    if fields["kind"] == "every":
        return {"__type__": "interval", "every": fields["seconds"]}
    if fields["kind"] == "rrule":
        names = ("freq", "interval", "count", *BY)
        text = {**{name: fields[name] for name in names if name in fields}, "dtstart_tz": 0}
        return {"__type__": "rrule", **text, "dtstart": now // SECOND + 1 - fields.get("past", 0)}
    return {"__type__": "crontab", "minute": fields["minute"]}


class OwnSchedule(schedule):
    """A user-defined schedule class: an interval of 3 s that fails after some time."""

    def __init__(self, answer: str, after: float) -> None:
        super().__init__(run_every=3.0)
        self.answer = answer
        self.bad_from = time.time() + after

    def is_due(self, last_run_at: datetime) -> Any:
        if time.time() < self.bad_from:
            return super().is_due(last_run_at)
        if self.answer == "raises":
            raise ZeroDivisionError("a defect of the schedule")
        if self.answer == "offline":
            raise ConnectionError("the calendar of holidays does not answer")
        return False, NAN


class SubclassOfInterval(schedule):
    """A user-defined schedule class with its own ``is_due``, which does what Celery's does."""

    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at)


class OwnEntry(RedBeatSchedulerEntry):
    """A user-defined entry class that returns a wait of NaN seconds on request."""

    def is_due(self) -> Any:
        due, seconds = super().is_due()
        return due, NAN if self.kwargs.get("answer") else seconds


class OwnScheduler(RedBeatScheduler):
    """A scheduler that uses :class:`OwnEntry`."""

    Entry = OwnEntry


class ForeignSchedule(schedule):
    """An interval that needs a package, which is missing on one host."""

    def __init__(self, seconds: float, missing_on: str) -> None:
        super().__init__(run_every=seconds)
        self.missing_on = missing_on


def load_foreign(fields: dict[str, Any]) -> ForeignSchedule:
    """Return the stored schedule; raise an error on the host without the package."""
    if socket.gethostname() == fields["missing_on"]:
        raise ImportError("No module named 'almanac'")
    return ForeignSchedule(fields["seconds"], fields["missing_on"])


def dump_foreign(stored: ForeignSchedule) -> dict[str, Any]:
    return {"seconds": stored.run_every.total_seconds(), "missing_on": stored.missing_on}


register_schedule_type("foreign", ForeignSchedule, dump_foreign, load_foreign)
