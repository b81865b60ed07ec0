"""The commands ``celery redbeat list``, ``show`` and ``history``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import click

from redbeat import DecodeError, Occurrence, Record, RedBeatSchedulerEntry
from redbeat.entries.status import LAST_RESULTS, NOT_SCHEDULED, PAUSED, STATES, EntryState
from redbeat.management import as_json, find, forecast
from redbeat.presentation import describe, rule_text, text
from redbeat.printing import plural
from redbeat.storage.words import SILENCE
from redbeat.transfer.entry_file import CALL

from .command import Console, command
from .edit import OPTION_OF, warn_of_unknown_names
from .operate import progress_text
from .options import INSTANT, entry_argument, existing, load, match_option, option, wide_option

#: The columns of a list and of a history, apart from the one whose title has the zone.
LISTED: Final = ("NAME", "TASK", "SCHEDULE", "STATE", "LAST RESULT", "KIND")
TITLES: Final = ("DISPATCHED", "LATE", "OUTCOME", "RESULT", "TASK ID")

#: The columns of a list that a terminal may cut, with their shortest widths.
CUT: Final = {"NAME": 20, "TASK": 12, "SCHEDULE": 12}

#: The app that Celery makes for a command without -A has this name.
DEFAULT_APP: Final = "default"


@command("list")
@match_option
@option("--task", metavar="GLOB", help="List only entries whose task name matches this pattern.")
@option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    example="paused",
    help="List only entries in this state. Repeat the option for several states.",
)
@option(
    "--last-result",
    type=click.Choice(LAST_RESULTS),
    example="failed",
    help="List only entries whose last run ended so, as workers report it.",
)
@option(
    "--static/--dynamic",
    default=None,
    show_default=False,
    help="List only static entries (those of beat_schedule), or only dynamic entries.",
)
@option(
    "--due-before",
    type=INSTANT,
    example="2026-12-31T09:00",
    help="List only entries that are due before this time (ISO 8601).",
)
@option("--limit", type=click.IntRange(1), example="20", help="Maximum number of entries to list.")
@option(
    "--sort",
    type=click.Choice(tuple(find.ORDERS)),
    default="due",
    example="name",
    help=f"Sort order. Any but 'due' is for up to {find.SORTED:,} entries.",
)
@wide_option
def list_(
    console: Console,
    match: str | None,
    states: tuple[EntryState, ...],
    limit: int | None,
    sort: str,
    **filters: Any,
) -> None:
    """List entries, the next due entry first."""
    found = console.schedule.records(match, states=states or STATES, **filters)
    records = islice(found, limit) if sort == "due" else islice(find.in_order(found, sort), limit)
    titles = (*LISTED, f"DUE ({console.zone})", "WHEN", "RUNS")
    row = partial(_row, console)
    optional = ("KIND", "RUNS", "TASK", "WHEN", "LAST RESULT")
    count = console.items(records, as_json.record_json, titles, row, "", optional, CUT)
    if not count and not console.as_json:
        console.note(_nothing(console))
    if count:
        _warn_if_stopped(console)
    if count == limit:
        console.note(f"Stopped at --limit {limit}; there may be more entries")


def _nothing(console: Console) -> str:
    """Return where no entry was found, or what to correct."""
    count, where = console.store.members(), console.where
    if count:
        return f"None of the {plural(count, 'entry', 'entries')} {where} matches"
    if console.app.main == DEFAULT_APP:
        where += "; the option -A is missing: celery -A proj redbeat list"
    return f"No entries {where}"


@command("show")
@entry_argument
@wide_option
def show(console: Console, name: str) -> None:
    """Show all details of an entry, with times in its own time zone."""
    try:
        entry = load(console, name)
    except DecodeError:
        _show_unreadable(console, name)
        raise
    static = bool(find.static_among(console.store, [name]))
    with existing(console, name):
        if console.as_json:
            console.emit(as_json.entry_json(entry, static))
            return
        occurrences = entry.history
        console.fields(_fields(console, entry, occurrences, static))
    if occurrences:
        console.write()
        _print_history(console, entry, occurrences)
    warn_of_unknown_names(console, [entry])
    _warn_if_stopped(console)


def _show_unreadable(console: Console, name: str) -> None:
    page, record = find.record_of(console.schedule, name)
    if record is None:
        return
    if console.as_json:
        console.emit(as_json.unreadable_json(record, page.rows[0]))
        return
    texts = ((field.capitalize(), text) for field, text in page.rows[0].texts.items())
    state, since = console.state(record.state), console.when(record.quarantined_since)
    console.fields([("Name", record.name), ("State", state), ("Since", since), *texts])


@command("history")
@entry_argument
@wide_option
def history(console: Console, name: str) -> None:
    """Show the last runs of an entry, the most recent first."""
    entry = load(console, name)
    _print_history(console, entry, entry.history)


def _row(console: Console, record: Record) -> tuple[str, ...]:
    kind = "static" if record.static else "dynamic"
    about = console.state(record.state), console.state(record.last_result or "-"), kind
    entry = record.entry
    if entry is None:
        return record.name, "-", record.problem or "-", *about, "-", "-", "-"
    return (
        record.name,
        str(entry.task),
        describe.timing_text(entry),
        *about,
        console.time(record.due_at),
        text.due(record.due_at, console.now) if record.due_at else "-",
        str(entry.total_run_count),
    )


def _fields(
    console: Console, entry: RedBeatSchedulerEntry, occurrences: list[Occurrence], static: bool
) -> Iterator[tuple[str, str | list[str]]]:
    yield "Name", str(entry.name)
    zone = forecast.zone_of(entry)
    when = partial(console.when, zone=zone)
    # In the syntax of the command-line options, such as --task and --args.
    yield "Task", str(entry.task)
    yield "Schedule", rule_text.schedule_text(entry.schedule)
    definition = describe.stored(entry)
    for name in CALL:
        yield name.capitalize(), json.dumps(definition[name]) if definition[name] else ""
    for name, value in describe.policy(entry).items():
        label = OPTION_OF.get(name, name).replace("_", " ").capitalize()
        yield label, text.plain_text(value)
    offset = entry.spread_offset
    yield "Offset", f"{text.duration(offset)} after each nominal time" if offset else ""
    yield "Kind", "static, from beat_schedule" if static else "dynamic"
    status = entry.status
    yield "State", console.state(status.state)
    yield "Reason", console.local(status.reason or "", zone)
    failing = status.failing
    if failing is not None:
        yield "First error", f"{when(failing.first_at)}: {failing.first_error}"
        yield "Next attempt", when(failing.next_attempt_at) or "now"
    yield "Note", status.note or ""
    yield "Due", when(status.due_at)
    yield "Last result", console.state(status.last_result or "")
    yield "Last run", when(describe.last_run(entry, occurrences)) or "never"
    yield "Runs", str(entry.total_run_count)
    yield "Backfill", [progress_text(console, one, zone) for one in entry.backfills]
    yield "Last success", when(status.last_success)
    yield "Failures in a row", str(status.consecutive_failures or "")
    if status.overdue:
        overdue = describe.overdue_text(status.overdue)
        yield "Overdue", f"the entry {console.local(overdue, zone)}"
    upcoming, problem = forecast.upcoming_or_problem(entry, as_json.UPCOMING)
    waits = status.state in (PAUSED, NOT_SCHEDULED)
    title = "Upcoming, if resumed" if waits else "Upcoming"
    yield title, [when(instant) for instant in upcoming]
    yield "Problem", problem or ""
    why = console.schedule.why_not_rendered(entry)
    yield "Messages", f"made by Celery: {why}" if why else "rendered"


def _warn_if_stopped(console: Console) -> None:
    """Warn if runs wait because no beat can send them. Takes two round trips."""
    current = console.schedule.status()
    if (current.most_late or 0.0) > SILENCE:
        for one in current.problems:
            if one.stops or one.kind == "beats":
                console.warn(f"{one.problem}; {one.remedy}")


def _print_history(
    console: Console, entry: RedBeatSchedulerEntry, occurrences: Sequence[Occurrence]
) -> None:
    zone = forecast.zone_of(entry)

    def row(item: Occurrence) -> tuple[str, ...]:
        return (
            console.time(item.scheduled_at, zone),
            console.time(item.dispatched_at, zone),
            text.duration(entry.lateness_of(item)),
            describe.outcome_text(item),
            describe.result_text(item.result) or "-",
            *((item.task_id or "-",) if console.wide else ()),
        )

    def as_object(item: Occurrence) -> dict[str, Any]:
        return {"name": str(entry.name), **as_json.occurrence_json(item)}

    titles = (f"SCHEDULED ({zone})", *TITLES[: None if console.wide else -1])
    nothing = f"{entry.name} has no recorded runs yet"
    optional = ("DISPATCHED", "LATE")
    console.items(occurrences, as_object, titles, row, nothing, optional, {"RESULT": 30})
