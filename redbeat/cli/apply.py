"""The commands ``celery redbeat plan`` and ``celery redbeat apply``, which read an entry file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
from celery.exceptions import CeleryCommandException

from redbeat.management.apply import TO_WRITE, Change, PlannedChange, plan_entries
from redbeat.presentation.describe import iso
from redbeat.printing import plural
from redbeat.transfer.entry_file import read_entry_file

from .command import Console, Exit, RedBeatCommand, Styled, command, failure
from .edit import warn_of_schedules, warn_of_unknown_names
from .options import argument, flag, reading

#: The actions of a plan, in the order of a summary.
ACTIONS: Final = ("created", "changed", "unchanged", "removed")

DETAILED: Final = "--detailed-exitcode"

FILE: Final = argument(
    "file", type=click.Path(allow_dash=True), help="TOML or JSON, or - for JSON."
)
ADOPT: Final = flag(
    "--adopt",
    "Take over the entries of FILE that are stored with another owner or without an owner.",
)


class DetailedCommand(RedBeatCommand):
    """Exits with 1 for any error if ``--detailed-exitcode`` is given."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """A usage error is such an error, too."""
        with _failing_with_one(DETAILED in args):
            return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _failing_with_one(ctx.params["detailed_exitcode"]):
            return super().invoke(ctx)


@contextmanager
def _failing_with_one(detailed: bool) -> Iterator[None]:
    try:
        yield
    except (click.ClickException, CeleryCommandException) as error:
        if detailed:
            vars(error)["exit_code"] = Exit.FAILED
        raise


@command("plan", DetailedCommand)
@FILE
@ADOPT
@flag(
    DETAILED,
    "Exit with 0 if nothing would change, 2 if something would change, and 1 for any error.",
)
def plan(console: Console, file: str, adopt: bool, detailed_exitcode: bool) -> None:
    """Show what 'apply FILE' would change, and write nothing.

    FILE contains entries and the name of their owner, in TOML or JSON. If FILE is -, the command
    reads JSON from standard input.
    """
    planned, counts = _plan(console, file, adopt)
    text = f"Plan for {file}: {summary(counts)}; nothing was written"
    console.result({**counts, "dry_run": True}, text)
    _fail_on_conflicts(console, planned)
    if detailed_exitcode and _to_write(planned):
        console.ctx.exit(Exit.DIFFERENT)


@command("apply")
@FILE
@ADOPT
@flag("--dry-run", "Show what would change and write nothing, as 'plan' does.")
@flag("--yes", "Do not ask for confirmation.", "-y")
def apply(console: Console, file: str, adopt: bool, dry_run: bool, yes: bool) -> None:
    """Make the stored entries match FILE.

    The command stores new and changed entries of FILE. The command removes stored entries that
    belong to the owner of FILE but are not in FILE any more. Without --adopt, the command never
    changes entries that have another owner or no owner.
    """
    planned, counts = _plan(console, file, adopt)
    _fail_on_conflicts(console, planned)
    to_write = _to_write(planned)
    if to_write and not (dry_run or yes):
        console.note(f"{file}: {summary(counts)}")
        click.confirm("Apply these changes?", abort=True, err=True)
    conflicts = [] if dry_run else [item for item in to_write if not item.write(console.store)]
    for item in conflicts:
        counts[item.action] -= 1
        console.error(f"{item.name}: the stored entry has changed since the plan")
    done = "Dry run, nothing was written" if dry_run else f"Applied {file}"
    console.result({**counts, "dry_run": dry_run}, f"{done}: {summary(counts)}")
    if conflicts:
        number = plural(len(conflicts), "entry", "entries")
        problem = f"Not written, because somebody else changed the stored entry: {number}"
        raise failure(f"{problem}; run the command again", Exit.CONFLICT)


def _plan(console: Console, file: str, adopt: bool) -> tuple[list[PlannedChange], dict[str, int]]:
    """Return also the number of entries for each action."""
    schedule = console.schedule
    with reading(file):
        content = read_entry_file(schedule, file)
    problems = [f"{item.where}: {item.problem}" for item in content.items if item.problem]
    invalid = plural(len(problems), "invalid entry", "invalid entries")
    message = f"{file}: nothing was written, because the file has {invalid}"
    _fail(console, problems, message, Exit.FAILED)
    entries = {item.where: item.entry for item in content.items if item.entry}
    planned = list(plan_entries(schedule, content.managed_by, entries, adopt))
    for item in planned:
        print_change(console, item.change)
    written = [item.entry for item in planned if item.action in TO_WRITE]
    warn_of_unknown_names(console, written)
    warn_of_schedules(console, written)
    found = Counter(item.action for item in planned)
    return planned, {action: found[action] for action in ACTIONS}


def _fail_on_conflicts(console: Console, planned: list[PlannedChange]) -> None:
    problems = [f"{item.name} {item.problem}" for item in planned if item.problem]
    message = f"Nothing was written: {plural(len(problems), 'conflict')}"
    _fail(console, problems, message, Exit.CONFLICT)


def _fail(console: Console, problems: Sequence[str], message: str, exit_code: Exit) -> None:
    """Print the problems, and end the command if there are any."""
    for problem in problems:
        console.error(problem)
    if problems:
        raise failure(message, exit_code)


def _to_write(planned: list[PlannedChange]) -> list[PlannedChange]:
    return [item for item in planned if item.action != "unchanged"]


# -- output ------------------------------------------------------------------------------------

#: The colours of actions that write something or need attention.
COLORS: Final = {
    "created": "green",
    "copied": "green",
    "changed": "yellow",
    "removed": "red",
    "deleted": "red",
    "different": "red",
    "unreadable": "red",
}

#: The fields that are printed for a new entry.
SHOWN_OF_NEW: Final = ("task", "schedule")

WIDTH: Final = max(map(len, COLORS))


def print_change(console: Console, change: Change) -> None:
    if console.as_json:
        kind = "calendar" if change.is_calendar else "name"
        fields = {name: difference._asdict() for name, difference in change.fields.items()}
        due = {} if change.is_calendar else {"next_run": iso(change.next_run)}
        console.emit({kind: change.name, "action": change.action, "changes": fields, **due})
        return
    action = Styled(change.action.ljust(WIDTH), fg=COLORS.get(change.action))
    parts = list(_details(change))
    if not change.is_calendar and change.action not in ("removed", "deleted", "unreadable"):
        when = console.when(change.next_run)
        parts.append(f"next run {when}" if when else "no next run")
    details = f": {'; '.join(parts)}" if parts else ""
    name = f"calendar {change.name}" if change.is_calendar else change.name
    console.write(action, "  ", name, details)


def _details(change: Change) -> Iterator[str]:
    if change.action == "created" and not change.is_calendar:
        found = [change.fields[name].new for name in SHOWN_OF_NEW if name in change.fields]
        yield ", ".join(map(str, found))
    else:
        for name, difference in change.fields.items():
            yield f"{name}: {_text(difference.old)} -> {_text(difference.new)}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def summary(counts: Mapping[str, int]) -> str:
    """Return the counts as text, such as ``2 created, 1 removed``, or ``nothing``."""
    parts = [f"{count} {action}" for action, count in counts.items() if count]
    return ", ".join(parts) or "nothing"
