"""What the options of an entry mean: its schedule, its zone, its times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Final

from celery.schedules import BaseSchedule

from redbeat.calendar.zones import zone_named
from redbeat.cli.console import Console
from redbeat.cli.options import CLEARED, bad
from redbeat.presentation.rule_text import BAD_RULE, KINDS, make_schedule

__all__ = ("schedule_from", "settings_from", "with_queue", "zone_from")

#: The attributes of an entry that have an option of the same name.
SAME_NAME: Final = (
    *("args", "kwargs", "options", "timezone", "max_runs", "on_finish", "misfire_grace_time"),
    *("coalesce", "catch_up_limit", "jitter", "overlap", "overlap_timeout", "delivery"),
)


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
    kinds = [kind for kind in KINDS if given[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give one of --{kinds[0]} and --{kinds[1]}, not both"
        raise bad(console.ctx, kinds[1], problem)
    if not kinds:
        return None
    kind = kinds[0]
    value = "\n".join(given[kind]) if kind == "rrule" else given[kind]
    try:
        return make_schedule(kind, value, zone_from(console, timezone), console.app)
    except BAD_RULE as error:
        raise bad(console.ctx, kind, error) from error


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


def with_queue(options: Mapping[str, Any] | None, queue: Any) -> dict[str, Any]:
    """Return options of a task with another queue, or with none where it is :data:`CLEARED`."""
    rest = {name: value for name, value in (options or {}).items() if name != "queue"}
    return rest if queue is CLEARED else {**rest, "queue": queue}
