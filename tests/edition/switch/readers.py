"""Readers: pages, counts, status and history come from ``state``.

The tools still ask a row for fields of the second edition; :class:`SecondRow` has them until the
tools use :mod:`tests.edition.status`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from redbeat.calendar.zones import from_timestamp
from redbeat.entries import overdue
from redbeat.entries.backfill import Backfill
from redbeat.entries.history import History, encode_runtime
from redbeat.entries.pauses import Pause
from redbeat.entries.runs import nominal
from redbeat.entries.status import Record
from redbeat.entries.templates import Templates
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError
from redbeat.storage.reading import Reading as SecondReading
from redbeat.storage.shards import ShardedStore
from redbeat.transfer import importing, jsonlines
from tests.edition import status
from tests.edition.beat.load import state_of
from tests.edition.state import State
from tests.edition.storage import reading

from . import replace


class SecondRow(reading.Shown):
    """A row with the fields that tools of the second edition ask for."""

    @property
    def _kept(self) -> State:
        return status.shown_state(self.stored, time.time())

    @property
    def claim(self) -> str:
        hold = self._kept.hold
        return "" if hold is None else f"held {hold.at} {hold.until}"

    @property
    def running(self) -> str:
        running = self._kept.running
        return "" if running is None else f"{running.id} {running.until}"

    @property
    def trigger(self) -> str:
        return " ".join(
            one.token if isinstance(one, Backfill) else f"{one.id}:{one.at.timestamp()}"
            for one in self._kept.waiting
        )

    @property
    def identity(self) -> str:
        return state_of(self.stored).identity

    @property
    def failing(self) -> str:
        failing = self._kept.failing
        if failing is None:
            return ""
        head = f"{failing.attempts} {failing.since} {failing.last}"
        return json.dumps([head, failing.first or failing.reason, failing.reason])

    @property
    def runtime(self) -> str:
        kept, text = self._kept, ""
        try:
            last = History.read(self.meta).last_run_at
        except DecodeError:
            return ""
        if kept.at is not None and last is not None:
            text = encode_runtime(nominal(from_timestamp(kept.at)), last)
        return kept.change.added_to(text) if kept.change is not None else text


def past(self: ShardedStore, key: str) -> Any:
    store: Any
    store, own_key = self._place(key)
    return store.past(own_key)


def history(self: Any, key: str) -> tuple[str, str, str]:
    found = self.past(key)
    return found.lines, "", state_of(found.row).identity


_write_line = jsonlines.write_line


def write_line(name: str, row: SecondRow, history: bool = False) -> str:
    exported: Any = row._replace(policy=status.exported_policy(row))
    return _write_line(name, exported, history)


_validated = importing.Importer._validated  # noqa: SLF001 - moves with the module


def validated(self: importing.Importer, incoming: Any) -> Iterator[Any]:
    for line, entry, definition, policy in _validated(self, incoming):
        yield line, entry, definition, status.with_pause(policy, Pause.of_entry(entry))


def has_same_texts(self: importing.Ready) -> bool:
    row: Any = self.row
    if row.definition != self.definition:
        return False
    return status.exported_policy(row) == self.policy


def install() -> None:
    """Let readers of the second edition read what the third stores."""
    reading.Shown = SecondRow  # type: ignore[misc]
    names = ("_ask", "read", "page", "_page", "counts", "past", "_note_side_error")
    replace(SecondReading, {name: vars(reading.Reading)[name] for name in names})
    replace(SecondReading, {"history": history})
    replace(ShardedStore, {"past": past})
    replace(Record, {"read": staticmethod(status.record_of), "status": status.status_of})
    replace(Templates, {"with_history": status.entry_with_history})
    replace(importing.Importer, {"_validated": validated})
    replace(importing.Ready, {"has_same_texts": property(has_same_texts)})
    jsonlines.write_line = write_line  # type: ignore[assignment]
    overdue.overdue_of = status.overdue_of  # type: ignore[assignment]
    replace(RedBeatSchedulerEntry, {"history": property(status.history_of)})
