"""Calendars: an edit writes their version, and makes their users due."""

from __future__ import annotations

from typing import Any

from redbeat.management import calendars as second
from redbeat.storage.store import Store
from tests.edition import calendars, edits, saving
from tests.edition.beat.checks import naming_wrong_types
from tests.edition.storage.store import Store as ThirdStore

from . import replace


def save_calendar(self: Any, name: str, text: str) -> None:
    with naming_wrong_types(self.client, self.keys):
        calendars.save(ThirdStore(self.client, self.keys), name, text)


def delete_calendar(self: Any, name: str) -> bool:
    return calendars.delete(ThirdStore(self.client, self.keys), name)


def make_due(_store: Any, entries: Any) -> None:
    if entries:
        edits.make_due(saving.store_of(entries[0].app), [entry.key for entry in entries])


def install() -> None:
    """Let calendars of the second edition be those of the third."""
    replace(Store, {"save_calendar": save_calendar, "delete_calendar": delete_calendar})
    second.make_due = second.rescore = make_due  # type: ignore[assignment, attr-defined]
