"""The rule of a schedule in plain English, for people who know neither crontabs nor RFC 5545.

What is said is exactly what the rule does. A rule that would need too many words is shown as it is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery.schedules import crontab, schedule, solar

from redbeat.calendar.zones import UTC, zone_named
from redbeat.instant import clocked
from redbeat.registry import of_class
from redbeat.rulesets import rruleset
from redbeat.schedules import rrule
from redbeat.timing import asks_itself
from redbeat.web.cronwords import cron_words
from redbeat.web.rulewords import rule_words, set_words
from redbeat.web.wording import moment, span, zone_label

__all__ = ("in_words",)

#: What a relative interval is rounded to, from the longest.
ROUNDED = (
    (timedelta(days=1), "midnight"),
    (timedelta(hours=1), "the full hour"),
    (timedelta(minutes=1), "the full minute"),
)


def in_words(schedule: Any, timezone: str | None = None) -> str:
    """Return a schedule in English, without a capital and a full stop.

    ``timezone`` is the IANA name of the zone whose clock a crontab is read on; it is named behind
    what depends on it, and the instant of a ``clocked`` is told in it. Rules have a zone of their
    own. A schedule that decides itself when it runs is shown as Python shows it. ``ValueError`` for
    a ``clocked`` and an unknown zone.
    """
    if asks_itself(schedule):
        return _own(schedule)
    return next(words for cls, words in WORDS if isinstance(schedule, cls))(schedule, timezone)


def _interval(when: Any, timezone: str | None) -> str:
    every: timedelta = when.run_every
    if every <= timedelta(0):
        return f"never: {every} is not above 0"
    text = f"every {span(every)}"
    unit = next((unit for size, unit in ROUNDED if every >= size), None)
    if not when.relative or unit is None:
        return text
    return _in_zone(f"{text}, rounded down to {unit}", timezone)


def _crontab(when: Any, timezone: str | None) -> str:
    return _in_zone(cron_words(when), timezone)


def _solar(when: Any, _timezone: str | None) -> str:
    first, _, kind = when.event.partition("_")
    event = "solar noon" if first == "solar" else f"{kind} {first}".strip()
    latitude = _degrees(when.lat, "N", "S")
    return f"at every {event} at {latitude}, {_degrees(when.lon, 'E', 'W')}"


def _degrees(angle: Any, above: str, below: str) -> str:
    number = float(angle)
    return f"{abs(number)}".removesuffix(".0") + f"° {below if number < 0 else above}"


def _clocked(when: clocked, timezone: str | None) -> str:
    own = when.clocked_time
    local = own.astimezone(zone_named(timezone)) if timezone else own
    return f"once, at {moment(local)}, {timezone or zone_label(own.tzinfo or UTC)}"


def _in_zone(text: str, timezone: str | None) -> str:
    return f"{text}, {timezone}" if timezone else text


def _own(when: Any) -> str:
    cls: type = type(when)
    if any("__repr__" in vars(base) for base in cls.__mro__[:-1]):
        return repr(when)
    known = of_class(cls)
    return f"as {known.tag if known else cls.__qualname__} decides"


WORDS: tuple[tuple[type, Callable[[Any, str | None], str]], ...] = (
    (schedule, _interval),
    (crontab, _crontab),
    (solar, _solar),
    (clocked, _clocked),
    (rrule, lambda when, _timezone: rule_words(when)),
    (rruleset, lambda when, _timezone: set_words(when)),
)
