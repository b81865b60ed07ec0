"""What the options of an entry mean: its schedule, its zone, its times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Final

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from redbeat.calendar.zones import zone_key, zone_named
from redbeat.cli.console import Console
from redbeat.cli.definitions import SCHEDULES
from redbeat.cli.options import CLEARED, bad
from redbeat.ical import from_ical
from redbeat.instant import clocked
from redbeat.schedules import RuleSchedule

__all__ = ("has_own_zone", "schedule_from", "settings_from", "with_queue", "zone_from")

#: The attributes of an entry that have an option of the same name.
SAME_NAME: Final = (
    *("args", "kwargs", "options", "timezone", "max_runs", "on_finish", "misfire_grace_time"),
    *("coalesce", "catch_up_limit", "jitter", "overlap", "overlap_timeout", "delivery"),
)

PLACE: Final = 3


def zone_from(console: Console, name: Any) -> tzinfo:
    """Return the zone in which what was given is read: ``--timezone``, else the app's."""
    if not name or name is CLEARED:
        return console.zone
    try:
        return zone_named(name)
    except ValueError as error:
        raise bad(console.ctx, "timezone", error) from error


def schedule_from(console: Console, given: Mapping[str, Any], timezone: Any) -> BaseSchedule | None:
    """Return the schedule that was asked for, None where no option says one.

    ``timezone`` is the name of the zone of the entry.
    """
    kinds = [kind for kind in SCHEDULES if given[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give one of --{kinds[0]} and --{kinds[1]}, not both"
        raise bad(console.ctx, kinds[1], problem)
    if not kinds:
        return None
    kind = kinds[0]
    try:
        return MAKERS[kind](console, given[kind], zone_from(console, timezone))
    except (ImproperlyConfigured, ParseException, TypeError, ValueError) as error:
        raise bad(console.ctx, kind, error) from error


def _every(console: Console, seconds: float, _zone: tzinfo) -> BaseSchedule:
    if not seconds:
        raise ValueError("must be above 0 seconds")
    return schedule(seconds, app=console.app)


def _cron(console: Console, text: str, _zone: tzinfo) -> BaseSchedule:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(
            f"{text!r} has {len(fields)} fields, not 5: minute, hour, day of month, month, day of "
            "week"
        )
    minute, hour, day_of_month, month_of_year, day_of_week = fields
    return crontab(
        minute=minute,
        hour=hour,
        day_of_month=day_of_month,
        month_of_year=month_of_year,
        day_of_week=day_of_week,
        app=console.app,
    )


def _rrule(_console: Console, lines: Sequence[str], zone: tzinfo) -> BaseSchedule:
    text = "\n".join(lines)
    key = zone_key(zone)
    # Without a start a rule has no zone of its own; one with a count has to say its start.
    if "DTSTART" not in text.upper() and "COUNT" not in text.upper() and key not in (None, "UTC"):
        text = f"DTSTART;TZID={key}:19700101T000000\n{text}"
    return from_ical(text)


def _at(console: Console, moment: datetime, zone: tzinfo) -> BaseSchedule:
    return clocked(moment if moment.tzinfo else moment.replace(tzinfo=zone), app=console.app)


def _solar(console: Console, text: str, _zone: tzinfo) -> BaseSchedule:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != PLACE:
        raise ValueError(f"{text!r} is not EVENT,LAT,LON")
    event, latitude, longitude = parts
    return solar(event, float(latitude), float(longitude), app=console.app)


MAKERS: Final[dict[str, Callable[[Console, Any, tzinfo], BaseSchedule]]] = {
    "every": _every,
    "cron": _cron,
    "rrule": _rrule,
    "at": _at,
    "solar": _solar,
}


def settings_from(console: Console, given: Mapping[str, Any], timezone: Any) -> dict[str, Any]:
    """Return the attributes of an entry that were given, but for its schedule and its queue.

    The value of one that is to be as if it was never given is :data:`CLEARED`.
    """
    zone = zone_from(console, timezone)
    found = {name: given[name] for name in SAME_NAME if given[name] is not None}
    for name, option in (("start_time", "start"), ("end_time", "end")):
        moment = given[option]
        if moment is not None:
            found[name] = moment if moment is CLEARED else console.instant(moment, zone)
    if given["paused"]:
        found["enabled"] = False
    return found


def has_own_zone(when: Any) -> bool:
    """Whether a schedule does not ask for the ``timezone`` of its entry."""
    return isinstance(when, (schedule, solar, RuleSchedule))


def with_queue(options: Mapping[str, Any] | None, queue: Any) -> dict[str, Any]:
    """Return options of a task with another queue, or with none where it is :data:`CLEARED`."""
    rest = {name: value for name, value in (options or {}).items() if name != "queue"}
    return rest if queue is CLEARED else {**rest, "queue": queue}
