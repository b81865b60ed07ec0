"""The commands ``pause``, ``resume``, ``trigger``, ``delete`` and ``backfill``."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Any, Final

import click

from redbeat import Backfill, DecodeError, InvalidEntryError, Planned, RedBeatSchedulerEntry
from redbeat.config import ensure_conf
from redbeat.entries import edits
from redbeat.entries.backfill import BACKFILL_RATE
from redbeat.management.as_json import progress_json
from redbeat.management.find import record_of, static_among
from redbeat.presentation.describe import iso
from redbeat.presentation.text import duration
from redbeat.printing import encodable, plural

from . import options
from .command import Console, Exit, command, failure, progress
from .edit import as_option_errors
from .options import flag, option

#: Maximum number of names to print before a question.
MAX_PRINTED: Final = 10

#: Adds the argument NAME and the options ``--match`` and ``--yes`` to a command.
names_or_pattern: Final = options.options(
    options.entry_arguments,
    options.match_option,
    flag("--yes", "Do not ask for confirmation.", "-y"),
)


def select_names(
    console: Console,
    verb: str,
    paused: bool | None = None,
    *,
    names: Sequence[str],
    match: str | None,
    yes: bool,
) -> list[str]:
    """Return the names of the selected entries; end the command if there are none.

    With ``match``, the user must confirm ``verb`` unless ``yes`` is true, and ``paused=True``
    selects only paused entries, ``paused=False`` all others, including unreadable ones.
    """
    if bool(names) == bool(match):
        problem = "Give either names or --match; for example: --match 'billing-*'"
        raise click.UsageError(problem, console.ctx)
    if names:
        for name in names:
            if name not in console.schedule:
                raise options.not_found(console, name)
        return list(dict.fromkeys(names))
    name_of = console.store.keys.name_of
    # Take the names from the keys: the name of a record is escaped, and may be that of another
    # entry.
    matching = [
        name_of(record.key)
        for record in console.schedule.records(pattern=match)
        if paused is None or paused is (record.entry is not None and not record.entry.enabled)
    ]
    if not matching:
        raise failure(f"No entry matches {match!r}", Exit.NOT_FOUND)
    if not yes:
        confirm(console, verb, matching)
    return matching


def confirm(console: Console, verb: str, names: Sequence[str]) -> None:
    """End the command unless the user answers yes."""
    for name in names[:MAX_PRINTED]:
        console.note(f"  {name}")
    if len(names) > MAX_PRINTED:
        console.note(f"  and {len(names) - MAX_PRINTED} more")
    target = f"{len(names)} entries" if len(names) > 1 else "this entry"
    click.confirm(f"{verb} {target}?", abort=True, err=True)


def report(console: Console, action: str, names: Iterable[str], **details: str) -> None:
    suffix = "".join(f" ({value})" for value in details.values())
    for name in names:
        text = f"{action.capitalize()} {name}{suffix}"
        console.result({"name": encodable(name), "action": action, **details}, text)


def not_done(console: Console, action: str, left: Sequence[str], reason: str = "") -> str:
    """Return the message about the entries that are ``left``; ``reason`` is that of the first."""
    others = f" and {plural(len(left) - 1, 'other entry', 'other entries')}" if left[1:] else ""
    reason = reason or options.problem_in(record_of(console.schedule, left[0])[1])
    return f"{left[0]!r}{others} {'were' if others else 'was'} not {action}: {reason}"


def report_changed(
    console: Console, action: str, names: Sequence[str], changed: Container[str]
) -> None:
    """Report the entries whose keys are in ``changed``; fail if some are not."""
    entry_key = console.store.keys.entry
    report(console, action, [name for name in names if entry_key(name) in changed])
    left = [name for name in names if entry_key(name) not in changed]
    if left:
        raise failure(not_done(console, action, left), Exit.UNREADABLE)


@command("pause")
@names_or_pattern
@option("--note", help="Reason for the pause, which 'show' and the dashboard display.")
def pause(console: Console, note: str | None, **selection: Any) -> None:
    """Pause entries until they are resumed."""
    names = select_names(console, "Pause", paused=False, **selection)
    store = console.store
    changed = edits.pause(store, map(store.keys.entry, names), note, None)
    report_changed(console, "paused", names, changed)


@command("resume")
@names_or_pattern
def resume(console: Console, **selection: Any) -> None:
    """Resume paused entries.

    An entry that missed runs during the pause catches up only one run.
    """
    names = select_names(console, "Resume", paused=True, **selection)
    store, schedule = console.store, console.schedule
    keys = map(store.keys.entry, names)
    changed = edits.resume(store, keys, schedule.app, schedule.entry_class)
    report_changed(console, "resumed", names, changed)


@command("trigger")
@names_or_pattern
def trigger(console: Console, **selection: Any) -> None:
    """Run entries now, in addition to their schedule."""
    failed: dict[str, Exception] = {}
    for name in select_names(console, "Trigger", **selection):
        try:
            task_id = console.schedule[name].trigger()
        except (KeyError, DecodeError, InvalidEntryError) as error:
            failed[name] = error
        else:
            report(console, "triggered", [name], task_id=task_id)
    if failed:
        first = next(iter(failed.values()))
        refusal = first.problem if isinstance(first, InvalidEntryError) else ""
        message = not_done(console, "triggered", [*failed], refusal)
        raise failure(message, Exit.CONFLICT if refusal else Exit.UNREADABLE)


@command("delete")
@names_or_pattern
def delete(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Delete entries and their run histories."""
    selected = select_names(console, "Delete", names=names, match=match, yes=yes)
    if names and not yes:
        confirm(console, "Delete", selected)
    statics = static_among(console.store, selected)
    count = console.schedule.delete_all(selected)
    if count < len(selected):
        message = f"Deleted {count} of {len(selected)} entries; the other entries are already gone"
        raise failure(message, Exit.CONFLICT)
    report(console, "deleted", selected)
    for name in [name for name in selected if name in statics][:1]:
        console.warn(f"{name} is in beat_schedule: the next start of a beat adds the entry again")


# -- backfills -------------------------------------------------------------------------------------

#: Seconds between two looks at the progress.
POLL: Final = 0.5


#: The units of time in a rate, in seconds.
UNITS: Final = {"s": 1, "m": 60, "h": 3600}


def rate_from(text: str) -> float:
    """Convert a text such as ``10/s``, ``10`` or ``30/m`` to runs per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([smh]))?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate")
    return float(match[1]) / UNITS[match[2] or "s"]


@command("backfill")
@options.entry_argument
@options.period_options(required=False)
@option(
    "--rate",
    type=options.Parsed("rate", rate_from),
    default=f"{BACKFILL_RATE:g}/s",
    metavar="N/s",
    help="Maximum rate: N runs per second (N/s), per minute (N/m) or per hour (N/h).",
)
@flag("--dry-run", "List the runs to send, but send nothing.")
@flag("--again", "Also send runs that finished backfills have already sent.")
@flag("--wait", "Wait until all runs are sent, and show the progress.")
@flag("--cancel", "Cancel the remaining runs of the backfills of NAME.")
def backfill(
    console: Console,
    name: str,
    since: datetime | None,
    until: datetime | None,
    rate: float,
    dry_run: bool,
    again: bool,
    wait: bool,
    cancel: bool,
) -> None:
    """Send the missed runs of the entry NAME in a span of time.

    The command requests the runs, and a beat sends them. Each run has the same task id as if a
    beat had sent the run on time. Runs that were already sent, according to the history or an
    earlier backfill, are not sent again.
    Without --from and --to, the command shows the progress of the backfills of NAME.
    """
    entry = options.load(console, name)
    if (since is None) != (until is None):
        problem = "Give both --from and --to to send runs, or neither option to see the progress"
        raise click.UsageError(problem, console.ctx)
    if cancel and since is not None:
        raise options.option_error(console.ctx, "cancel", "cannot be combined with --from and --to")
    with options.existing(console, name):
        if cancel:
            for one in entry.cancel_backfill():
                text = f"Cancelled {name}: {progress_text(console, one)}"
                console.result({"name": name, "action": "cancelled", **progress_json(one)}, text)
            return
        if since is not None and until is not None:
            options.check_period(console, since, until)
            with as_option_errors(console.ctx):
                plan = entry.backfill(since, until, rate, again, dry_run)
            _report_plan(console, entry, plan, until, dry_run)
        if wait and not dry_run:
            _wait(console, entry)
        elif since is None:
            _show(console, name, entry.backfills)


def _report_plan(
    console: Console, entry: RedBeatSchedulerEntry, plan: Planned, end: datetime, dry_run: bool
) -> None:
    name = str(entry.name)
    count = len(plan.instants)
    if console.as_json:
        span = {"since": iso(plan.since), "until": iso(plan.until)}
        counts = {"runs": count, "left_out": plan.left_out}
        console.emit({"name": name, "dry_run": dry_run, **counts, **span})
    if dry_run:
        console.items(
            plan.instants,
            lambda at: {"scheduled_at": iso(at), "task_id": entry.task_id_of(at)},
            (f"SCHEDULED ({console.zone})", "TASK ID"),
            lambda at: (console.time(at), entry.task_id_of(at)),
        )
    if plan.until < end:
        console.warn(
            f"the backfill ends at {console.time(plan.until)}, because the schedule itself will "
            "send later runs"
        )
    size = ensure_conf(console.app).history_size
    runs = entry.history
    if count and len(runs) >= size > 0 and plan.since < runs[-1].scheduled_at:
        console.warn(
            f"the history contains only the last {plural(size, 'run')}, so runs before "
            f"{console.time(runs[-1].scheduled_at)} count as not sent"
        )
    if not entry.enabled and count and not dry_run:
        console.warn(f"{name} is paused: a beat sends the runs after you resume the entry")
    text = f"{name}: {plural(count, 'run')} {'would' if dry_run else 'will'} be sent"
    if plan.left_out:
        text += f", {plural(plan.left_out, 'run')} skipped (sent or requested earlier)"
    console.note(text)


def progress_text(console: Console, one: Backfill, zone: tzinfo | None = None) -> str:
    span = f"{console.time(one.since, zone)} to {console.time(one.until, zone)}"
    if one.finished:
        return f"{span}: {one.sent} of {one.total} runs sent, finished"
    left = duration((one.total - one.sent) / one.rate)
    return f"{span}: {one.sent} of {one.total} runs sent, about {left} left"


def _show(console: Console, name: str, backfills: list[Backfill]) -> None:
    for one in backfills:
        if console.as_json:
            console.emit({"name": name, **progress_json(one)})
        else:
            console.write(progress_text(console, one))
    if not backfills:
        console.note(f"{name} has no backfills")


def _wait(console: Console, entry: RedBeatSchedulerEntry) -> None:
    """Show a progress bar until the entry's backfills have finished."""
    waiting = [one for one in entry.backfills if not one.finished]
    ids, total = {one.id for one in waiting}, sum(one.total for one in waiting)
    shown = 0
    with progress(console, "Sending", total) as advance:
        while waiting:
            time.sleep(POLL)
            backfills = [one for one in entry.backfills if one.id in ids]
            waiting = [one for one in backfills if not one.finished]
            sent = sum(one.sent for one in backfills)
            advance(sent - shown)
            shown = sent
    _show(console, str(entry.name), [one for one in entry.backfills if one.id in ids])
