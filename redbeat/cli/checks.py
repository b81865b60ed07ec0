"""Prints warnings about entries that are valid, but probably not what their author wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.names import UsedNames
from redbeat.presentation.describe import rule_of
from redbeat.presentation.rule_text import cron_warning
from redbeat.printing import plural

from .command import Console

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


def warn_of_unknown_names(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Print a warning for each unknown task and each unknown option."""
    if not entries:
        return
    used = UsedNames(console.app)
    if used.error:
        why = f"because the tasks cannot be loaded: {used.error}"
        console.warn(f"task names are not checked, {why}")
    for entry in entries:
        used.note(entry)
    found = used.warnings()
    for warning in found[:MAX_PRINTED]:
        console.warn(warning)
    if len(found) > MAX_PRINTED:
        names = "other unknown name is", "other unknown names are"
        console.warn(f"{plural(len(found) - MAX_PRINTED, *names)} not listed")


def warn_of_schedules(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Print a warning for each crontab that cron runs on other days, and each time in the past."""
    for entry in entries:
        kind, text = rule_of(entry.schedule) or ("", "")
        if kind == "cron" and (warning := cron_warning(text)):
            console.warn(f"{entry.name}: {warning}")
        if kind == "at" and (at := entry.schedule.clocked_time) < console.now:
            soon = "at once" if entry.enabled else "when it is resumed"
            runs = "never runs" if entry.due_at is None else f"runs {soon}"
            console.warn(f"{entry.name}: its time is {console.when(at)}, so it {runs}")
