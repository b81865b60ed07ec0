"""The command ``celery redbeat backfill``."""

from __future__ import annotations

import re
import time
from datetime import datetime, tzinfo
from typing import Final

import click

from redbeat.config import ensure_conf
from redbeat.entries.backfill import BACKFILL_RATE, Backfill, Planned
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.as_json import progress_json
from redbeat.presentation.describe import iso
from redbeat.presentation.text import duration
from redbeat.printing import plural

from . import options
from .command import Console, command, progress
from .edit import as_option_errors
from .options import entry_argument, existing, option

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
@entry_argument
@options.period_options(required=False)
@option(
    "--rate",
    type=options.Parsed("rate", rate_from),
    default=f"{BACKFILL_RATE:g}/s",
    metavar="N/s",
    help="Maximum rate: N runs per second (N/s), per minute (N/m) or per hour (N/h).",
)
@option("--dry-run", is_flag=True, help="List the runs to send, but send nothing.")
@option("--again", is_flag=True, help="Also send runs that finished backfills have already sent.")
@option("--wait", is_flag=True, help="Wait until all runs are sent, and show the progress.")
@option("--cancel", is_flag=True, help="Cancel the remaining runs of the backfills of NAME.")
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
    with existing(console, name):
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
