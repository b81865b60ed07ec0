"""The commands ``celery redbeat calendars`` and ``celery redbeat calendar``."""

from __future__ import annotations

from typing import Any

import click

from redbeat import Calendar, InvalidEntryError
from redbeat.management.as_json import calendar_json
from redbeat.printing import plural

from .command import Console, Exit, command, failure
from .options import argument, flag, option, option_error, wide_option

TITLES = ("NAME", "ZONE", "DAYS", "RULES")


@command("calendars")
@wide_option
def calendars(console: Console) -> None:
    """List the calendars. A calendar contains days on which entries do not run."""
    found = [one for _, one in sorted(console.schedule.calendars.items())]
    nothing = "There are no calendars; add a calendar with: calendar NAME --day 2026-12-25"
    cut = {"NAME": 20, "DAYS": 10, "RULES": 10}
    console.items(found, calendar_json, TITLES, _row, nothing, cut=cut)


def _row(one: Calendar) -> tuple[str, ...]:
    days = ", ".join("/".join(day) if isinstance(day, list) else str(day) for day in one.days)
    rules = "; ".join(rule.replace("\n", " ") for rule in one.rules)
    return one.name, one.zone or "of the entry", days or "-", rules or "-"


@command("calendar")
@argument("name", help="Name of the calendar.")
@option(
    "--day",
    "days",
    multiple=True,
    metavar="DAY",
    example="2026-12-25",
    help="Excluded day, or the first and last day of a span: 2026-12-24/2027-01-01. Repeat the "
    "option for several days.",
)
@option(
    "--rule",
    "rules",
    multiple=True,
    metavar="RULE",
    example="'FREQ=WEEKLY;BYDAY=SA,SU'",
    help="RFC 5545 rule whose occurrences are excluded days. Repeat the option for several rules.",
)
@option("--zone", metavar="ZONE", example="Europe/Paris", help="Time zone of the excluded days.")
@option(
    "--ical", type=click.File("rb"), help="Exclude the days of the events in this iCalendar file."
)
@flag("--delete", "Delete the calendar, unless an entry uses the calendar.")
def calendar(
    console: Console,
    name: str,
    days: tuple[str, ...],
    rules: tuple[str, ...],
    zone: str | None,
    ical: Any,
    delete: bool,
) -> None:
    """Store or delete the calendar NAME.

    A stored calendar replaces an earlier calendar of the same name. A changed calendar takes effect
    at once on all entries that use the calendar.
    """
    if delete:
        if days or rules or zone or ical is not None:
            problem = "--delete deletes the whole calendar; give no other option, or omit --delete"
            raise click.UsageError(problem, console.ctx)
        _delete(console, name)
        return
    given: list[Any] = [day.split("/") if "/" in day else day for day in days]
    try:
        if ical is not None:
            events = Calendar.from_ical(name, ical.read(), zone).days
            if not events:
                raise InvalidEntryError("ical", "contains no event; use another file")
            given += events
        one = Calendar(name, given, rules, zone)
    except InvalidEntryError as error:
        field = "ical" if ical is not None and error.field == "days" else error.field
        raise option_error(console.ctx, field, error.problem, example=True) from error
    if not (days or rules or ical is not None):
        problem = (
            "Give --day, --rule, --ical or --delete; for example: --day 2026-12-25. To list the "
            "stored calendars, run: celery redbeat calendars"
        )
        raise click.UsageError(problem, console.ctx)
    count = console.schedule.save_calendar(one)
    text = f"Saved the calendar {name}; used by {plural(count, 'entry', 'entries')}"
    console.result({"name": name, "action": "saved", "entries": count}, text)


def _delete(console: Console, name: str) -> None:
    try:
        existed = console.schedule.delete_calendar(name)
    except InvalidEntryError as error:
        raise failure(f"The calendar {name!r} {error.problem}", Exit.CONFLICT) from error
    if not existed:
        raise failure(f"There is no calendar {name!r}", Exit.NOT_FOUND)
    console.result({"name": name, "action": "deleted"}, f"Deleted the calendar {name}")
