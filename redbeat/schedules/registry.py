"""Schedule types of the user's own, stored under a tag like the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from celery.schedules import BaseSchedule, crontab, schedule, solar

from .one_time import clocked
from .rule import rrule
from .rule_set import rruleset

__all__ = (
    "BUILT_IN",
    "RegisteredType",
    "named",
    "of_class",
    "register_schedule_type",
    "tags",
)

#: The values of ``__type__`` that mean something without a registration.
SCHEDULES = ("interval", "crontab", "rrule", "rruleset", "solar", "clocked")
CLASSES = (schedule, crontab, rrule, rruleset, solar, clocked)
BUILT_IN = frozenset({*SCHEDULES, "datetime", "weekday", "verbatim"})

Dump = Callable[[Any], Mapping[str, Any]]
Load = Callable[[dict[str, Any]], Any]


class RegisteredType(NamedTuple):
    """A class of schedules with the two functions that a user gave for it."""

    tag: str
    cls: type[BaseSchedule]
    dump: Dump
    load: Load


_types: dict[str, RegisteredType] = {}


def register_schedule_type(tag: str, cls: type[BaseSchedule], dump: Dump, load: Load) -> None:
    """Let entries have schedules of class ``cls``, stored with ``tag`` as their ``__type__``.

    ``dump(schedule)`` returns a dict of what else is stored, in values that an argument of a task
    may have; ``load(fields)`` gets an equal dict and returns the schedule. Call it in every process
    that saves or reads entries, and in that of beat. Raises ``TypeError`` for what is no class of
    schedules or cannot be called, ``ValueError`` for a tag or class that is taken.
    """
    _check_tag(tag)
    _check_class(cls)
    for name, function in (("dump", dump), ("load", load)):
        if not callable(function):
            raise TypeError(f"{name}: {function!r} cannot be called; give a function")
    _types[tag] = RegisteredType(tag, cls, dump, load)


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag:
        raise ValueError(f"tag: {tag!r} is not a text; use one such as 'business_days'")
    if tag in BUILT_IN:
        raise ValueError(f"tag: {tag!r} is built in; use another one")
    if tag in _types:
        raise ValueError(f"tag: {tag!r} is registered for {_types[tag].cls!r}; use another one")


def _check_class(cls: object) -> None:
    if not isinstance(cls, type) or not issubclass(cls, BaseSchedule):
        raise TypeError(f"cls: {cls!r} is not a subclass of celery.schedules.BaseSchedule")
    if cls in CLASSES:
        raise ValueError(f"cls: {cls!r} is built in; register a subclass of it")
    known = of_class(cls)
    if known is not None:
        raise ValueError(f"cls: {cls!r} is registered as {known.tag!r}")


def tags() -> tuple[str, ...]:
    """What ``__type__`` of a schedule may be."""
    return (*SCHEDULES, *_types)


def named(tag: object) -> RegisteredType | None:
    """The type that was registered under ``tag``."""
    return _types.get(tag) if isinstance(tag, str) else None


def of_class(cls: type) -> RegisteredType | None:
    """The type that was registered for exactly this class."""
    return next((known for known in tuple(_types.values()) if known.cls is cls), None)
