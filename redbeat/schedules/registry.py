"""The registry of custom schedule types, each of which has its own tag (``__type__``) in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from celery.schedules import BaseSchedule, crontab, schedule, solar

from .one_time import clocked
from .rule import rrule
from .rule_set import rruleset

#: The built-in values of ``__type__`` for schedules, each with its class.
SCHEDULES: Final[dict[str, type[BaseSchedule]]] = {
    "interval": schedule,
    "crontab": crontab,
    "rrule": rrule,
    "rruleset": rruleset,
    "solar": solar,
    "clocked": clocked,
}
#: All built-in values of ``__type__``.
BUILT_IN = frozenset({*SCHEDULES, "datetime", "weekday", "verbatim"})

#: A registered schedule class.
S = TypeVar("S", bound=BaseSchedule)

Dump = Callable[[Any], Mapping[str, Any]]
Load = Callable[[dict[str, Any]], Any]


class RegisteredType(NamedTuple):
    """A custom schedule class, its tag, and the functions that dump and load a schedule."""

    tag: str
    cls: type[BaseSchedule]
    dump: Dump
    load: Load


#: The custom schedule classes by tag.
CUSTOM: Final[dict[str, RegisteredType]] = {}


def register_schedule_type(
    tag: str,
    cls: type[S],
    dump: Callable[[S], Mapping[str, Any]],
    load: Callable[[dict[str, Any]], S],
) -> None:
    """Register the schedule class ``cls`` for entries, with ``tag`` as ``__type__`` in Redis.

    ``dump(schedule)`` returns a dict of the fields to store. The values of the dict may have the
    same types as task arguments. ``load(fields)`` receives the stored fields and returns the
    schedule. Call ``register_schedule_type()`` in each beat, and in each process that saves or
    loads entries.

    Raises ``TypeError`` if ``cls`` is not a schedule class, or if ``dump`` or ``load`` is not
    callable. Raises ``ValueError`` if the tag is invalid, or if the tag or the class is already
    registered.
    """
    _check_tag(tag)
    _check_class(cls)
    for name, function in (("dump", dump), ("load", load)):
        if not callable(function):
            raise TypeError(f"{name}: {function!r} is not callable; give a function")
    CUSTOM[tag] = RegisteredType(tag, cls, dump, load)


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag:
        raise ValueError(f"tag: {tag!r} is not a string; use a tag such as 'business_days'")
    if tag in BUILT_IN:
        raise ValueError(f"tag: {tag!r} is built in; use another tag")
    if tag in CUSTOM:
        raise ValueError(f"tag: {tag!r} is registered for {CUSTOM[tag].cls!r}; use another tag")


def _check_class(cls: object) -> None:
    if not isinstance(cls, type) or not issubclass(cls, BaseSchedule):
        raise TypeError(f"cls: {cls!r} is not a subclass of celery.schedules.BaseSchedule")
    if cls in SCHEDULES.values():
        raise ValueError(f"cls: {cls!r} is built in; register a subclass of it")
    registered = of_class(cls)
    if registered is not None:
        raise ValueError(f"cls: {cls!r} is already registered with the tag {registered.tag!r}")


def tags() -> tuple[str, ...]:
    """Return all valid values of ``__type__`` for a schedule."""
    return (*SCHEDULES, *CUSTOM)


def named(tag: object) -> RegisteredType | None:
    """Return the type that is registered with ``tag``, or None."""
    return CUSTOM.get(tag) if isinstance(tag, str) else None


def of_class(cls: type) -> RegisteredType | None:
    """Return the type that is registered for exactly ``cls`` (not for a base class), or None."""
    return next((item for item in tuple(CUSTOM.values()) if item.cls is cls), None)
