"""The commands ``celery redbeat upcoming`` and ``simulate``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any, Final

import click

from redbeat import RedBeatSchedulerEntry
from redbeat.calendar.zones import zone_key
from redbeat.management import as_json, forecast
from redbeat.presentation import describe, text
from redbeat.transfer.entry_file import attributes_of, read_entry_file

from . import import_export, options
from .command import Console, command
from .edit import as_option_errors, schedule_options, table_from

#: How a table marks the runs if it compares the rules before and after a change.
MARKS: Final = {
    forecast.SAME: "",
    forecast.REMOVED: "- only before",
    forecast.ADDED: "+ only after",
}

#: The format of the files of ``plan`` and ``apply``.
PLAN: Final = "plan"

#: How many runs of an entry ``upcoming`` shows at least, if there are other entries.
FEW: Final = 3


@command("upcoming")
@options.argument(
    "name", metavar="[NAME]", required=False, help="An entry.", shell_complete=options.entry_names
)
@options.match_option
@options.option(
    "-n",
    "--number",
    type=click.IntRange(1),
    default=20,
    help="Maximum number of runs to print.",
)
@options.option(
    "--until",
    type=options.INSTANT,
    example="2026-12-31T09:00",
    help="Print no run after this time (ISO 8601).",
)
def upcoming(
    console: Console, name: str | None, match: str | None, number: int, until: datetime | None
) -> None:
    """Show the next runs of all entries, or of the entry NAME.

    Of an entry that would fill the page, the first runs are shown, and its schedule instead of the
    others. A run is due at its scheduled time plus the offsets of spread and jitter.
    """
    if name is not None and match is not None:
        raise options.option_error(console.ctx, "match", "give either NAME or --match, not both")
    left_out: dict[tuple[datetime, str], str] = {}
    if name is None and console.as_json:
        runs = console.schedule.upcoming(number, until=until, pattern=match)
    elif name is None:
        runs, left_out = _shared(console, number, until, match)
    else:
        entry = options.load(console, name)
        if not entry.enabled:
            problem = "the runs take place only if you resume the entry first"
            console.warn(f"{name} is paused: {problem}")
        runs = [(at, name) for at in entry.upcoming(number) if until is None or at <= until]
    shown = 4 if left_out else 3
    titles = (f"DUE ({console.zone})", "WHEN", "NAME", "THEN")[:shown]

    def row(run: tuple[datetime, str]) -> tuple[str, ...]:
        at, name = run
        return (console.time(at), text.due(at, console.now), name, left_out.get(run, ""))[:shown]

    cut = {"NAME": 20, "THEN": 12}
    console.items(
        runs, lambda run: as_json.upcoming_json(*run), titles, row, "No upcoming runs", cut=cut
    )


def _shared(
    console: Console, number: int, until: datetime | None, match: str | None
) -> tuple[list[tuple[datetime, str]], dict[tuple[datetime, str], str]]:
    """Return the next runs, few of each entry, so that none hides the others.

    Also returns the schedules of entries with more runs on the page, by the last one that is shown.
    """
    find = partial(console.schedule.upcoming, number, until=until, pattern=match)
    shares = range(FEW, max(FEW, number) + 1)
    each = shares[bisect_left(shares[:-1], number, key=lambda share: len(find(each=share)))]
    runs, left_out = find(each=each), {}
    counts, last = Counter(name for _, name in runs), {name: at for at, name in runs}
    for name in (name for name in counts if counts[name] == each):
        entry = console.schedule.get(name)
        later = entry.upcoming(1, last[name]) if entry else []
        if entry and later and later[0] <= runs[-1][0]:
            left_out[last[name], name] = describe.timing_text(entry)
    return runs, left_out


@command("simulate")
@options.entry_arguments
@options.period_options(required=True)
@options.option(
    "--file",
    metavar="FILE",
    example="billing.toml",
    help="Compare the stored rules with the rules in FILE, a file for the command apply or import.",
)
@options.option(
    "--format",
    "file_format",
    type=click.Choice((PLAN, *import_export.FORMATS)),
    default=PLAN,
    help="Format of FILE.",
)
@schedule_options
def simulate(
    console: Console,
    names: tuple[str, ...],
    since: datetime,
    until: datetime,
    file: str | None,
    file_format: str,
    **values: Any,
) -> None:
    """Show the past or future runs of a period.

    Without NAME, all enabled entries are simulated. If schedule options or --file define new rules,
    the command compares the runs under the new rules with the runs under the stored rules.
    The simulation assumes that a beat is always on time.
    """
    options.check_period(console, since, until)
    changes = _changes(console, names, file, file_format, values)
    wanted = list(names) or (None if file is None else list(changes))
    try:
        with as_option_errors(console.ctx):
            found = console.schedule.simulate(since, until, wanted, changes)
    except KeyError as error:
        raise options.not_found(console, str(error.args[0])) from None
    _warn(console, names, found, until)
    if console.as_json:
        console.emit(_json(found))
    else:
        _print(console, found)


def _changes(
    console: Console,
    names: tuple[str, ...],
    file: str | None,
    file_format: str,
    values: dict[str, Any],
) -> dict[str, Any]:
    given = [name for name, value in values.items() if value not in (None, ())]
    if given and file is not None:
        problem = f"give --file or --{given[0]}, not both"
        raise options.option_error(console.ctx, "file", problem)
    if file is not None:
        return _entries_in(console, file, file_format)
    if not given:
        return {}
    if not names:
        raise click.UsageError(f"--{given[0]} needs the names of the entries with the new rule")
    with as_option_errors(console.ctx):
        table = table_from(console, values)
        zone = table.get("timezone")
        return {name: attributes_of(console.app, name, table, zone) for name in names}


def _entries_in(console: Console, file: str, file_format: str) -> dict[str, RedBeatSchedulerEntry]:
    with options.reading(file):
        if file_format == PLAN:
            items = read_entry_file(console.schedule, file).items
        else:
            items = list(import_export.read_source(file_format, console.schedule, file))
    for item in items:
        if item.problem:
            raise options.option_error(console.ctx, "file", f"{item.where}: {item.problem}")
    return {str(item.entry.name): item.entry for item in items if item.entry}


def _warn(
    console: Console, names: tuple[str, ...], found: forecast.Simulation, until: datetime
) -> None:
    if not found.all_entries:
        number = f"{len(found.entries):,}"
        console.warn(f"too many entries: only {number} are simulated; name the entries to simulate")
    if found.until != until:
        end = console.time(found.until)
        console.warn(f"too many runs: the simulation ends at {end}, not at {console.time(until)}")
    if names and not console.as_json:
        for name in names:
            entry = found.entries[name]
            if not entry.enabled:
                console.warn(f"{name} is paused, but the simulation treats the entry as enabled")


# -- output ------------------------------------------------------------------------------------


def _print(console: Console, found: forecast.Simulation) -> None:
    compared = any(entry.after is not None for entry in found.entries.values())
    titles = [f"SCHEDULED ({console.zone})", "LOCAL", "NAME"] + (["CHANGE"] if compared else [])
    rows = [
        (change.at, [console.time(change.at), _clock_text(change), f"({zone})", ""])
        for zone, change in _clock_changes(found)
    ]
    for name, entry in found.entries.items():
        for run, kind in entry.runs():
            at = run.scheduled_at
            rows.append((at, [console.time(at), _local(at, entry.zone), name, MARKS[kind]]))
    if not any(entry.before or entry.after for entry in found.entries.values()):
        console.note("No runs in this period")
        return
    # The sort is stable, so a DST change comes before a run at the same time.
    rows.sort(key=lambda item: item[0])
    console.table(titles, [row[: len(titles)] for _, row in rows])
    for name, entry in found.entries.items():
        if entry.after is not None:
            same, removed, added = entry.count().values()
            changed = f"{removed} only before the change, {added} only after"
            console.note(f"Runs of {name}: {same} unchanged, {changed}")


def _clock_changes(found: forecast.Simulation) -> list[tuple[str, forecast.ClockChange]]:
    changes = found.clock_changes()
    return [(zone, change) for zone in changes for change in changes[zone]]


def _local(instant: datetime, zone: tzinfo) -> str:
    """Return a wall-clock time with its UTC offset, such as ``Sun 02:30:00 +01:00``."""
    local = text.in_zone(instant, zone)
    return f"{local:%a %H:%M:%S} {_offset(local.utcoffset() or timedelta())}"


def _offset(offset: timedelta) -> str:
    return str(timezone(offset)).removeprefix("UTC") or "+00:00"


def _clock_text(change: forecast.ClockChange) -> str:
    later = change.offset_after > change.offset_before
    return f"-- clocks go {'forward' if later else 'back'} to {_offset(change.offset_after)}"


def _json(found: forecast.Simulation) -> dict[str, Any]:
    return {
        "since": describe.iso(found.since),
        "until": describe.iso(found.until),
        "complete": found.complete,
        "clock_changes": [
            {
                "zone": zone,
                "at": describe.iso(change.at),
                "utc_offset_before": _offset(change.offset_before),
                "utc_offset_after": _offset(change.offset_after),
            }
            for zone, change in _clock_changes(found)
        ],
        "entries": [_entry_json(name, entry) for name, entry in found.entries.items()],
    }


def _entry_json(name: str, entry: forecast.EntrySimulation) -> dict[str, Any]:
    return {
        "name": name,
        "timezone": zone_key(entry.zone) or str(entry.zone),
        "enabled": entry.enabled,
        "compared": entry.after is not None,
        **entry.count(),
        "runs": [
            {
                "scheduled_at": describe.iso(run.scheduled_at),
                "local": text.in_zone(run.scheduled_at, entry.zone).isoformat(),
                "due_at": describe.iso(run.due_at),
                "change": change,
            }
            for run, change in entry.runs()
        ],
    }
