"""Prints what an import, a migration or an apply does to each entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from redbeat.management.changes import Change
from redbeat.presentation.describe import iso

from .console import Console, Styled

__all__ = ("print_change", "summary")

#: The colours of actions that write something, or that need attention.
COLORS: Final = {
    "created": "green",
    "copied": "green",
    "changed": "yellow",
    "removed": "red",
    "deleted": "red",
    "different": "red",
    "unreadable": "red",
}

#: The fields of a new entry that are printed.
SHOWN_OF_NEW: Final = ("task", "schedule")

WIDTH: Final = max(map(len, COLORS))


def print_change(console: Console, change: Change) -> None:
    """Print a change as a line, or as an object of JSON."""
    if console.as_json:
        kind = "calendar" if change.is_calendar else "name"
        fields = {name: difference._asdict() for name, difference in change.fields.items()}
        due = {} if change.is_calendar else {"next_run": iso(change.next_run)}
        console.emit({kind: change.name, "action": change.action, "changes": fields, **due})
        return
    action = Styled(change.action.ljust(WIDTH), fg=COLORS.get(change.action))
    parts = list(_details(change))
    if not change.is_calendar and change.action not in ("removed", "deleted", "unreadable"):
        at = change.next_run
        parts.append(f"next run {console.time(at)} {console.zone}" if at else "no next run")
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
    """Return counts by action as text: ``2 created, 1 removed``; ``nothing`` without any."""
    parts = [f"{count} {action}" for action, count in counts.items() if count]
    return ", ".join(parts) or "nothing"
