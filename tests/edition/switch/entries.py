"""Entries: what they store and read is a change or a row."""

from __future__ import annotations

from typing import Any

from redbeat.codec.stored import text_of
from redbeat.config import real_app
from redbeat.entries.backfill import BACKFILL_RATE
from redbeat.entries.definition import decode_definition
from redbeat.entries.history import decode_meta
from redbeat.entries.save import check_history
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError
from redbeat.storage.reading import not_an_entry
from tests.edition import edits, run_requests, saving
from tests.edition.storage.rows import Row

from . import replace


def from_key(cls: type[Any], key: Any, app: Any = None) -> Any:
    app = real_app(app)
    return saving.load(saving.store_of(app), app, text_of(key), cls)


def save(self: Any, if_unchanged: bool = False) -> Any:
    saving.save(saving.store_of(self.app), [self], if_unchanged=if_unchanged)
    return self


_texts = RedBeatSchedulerEntry.texts


def texts(self: Any) -> tuple[str, str]:
    """Return definition and policy; the pause is in ``state``."""
    known = self.saved_state
    self.saved_state = known._replace(pause=None)
    try:
        return _texts(self)
    finally:
        self.saved_state = known


def load_definition(key: Any, app: Any = None, definition: Any = None) -> dict[str, Any]:
    if definition is None:
        definition = _row(key, app).definition
    if definition is None:
        raise KeyError(key)
    return decode_definition(definition)


def load_meta(key: Any, app: Any = None) -> dict[str, Any]:
    return decode_meta(_row(key, app).meta or "")


def _row(key: Any, app: Any) -> Row:
    store, text = saving.store_of(real_app(app)), text_of(key)
    row = next(iter(saving.read(store, [text]).values()), Row(text))
    if row.problem:
        raise DecodeError("definition", not_an_entry(text))
    return row


def delete(self: Any) -> None:
    edits.delete(saving.store_of(self.app), [self.writable_key()])
    self.saved_state = self.saved_state._replace(new_identity="")


def pause(self: Any, note: str | None = None, by: str | None = None) -> None:
    edits.pause_entry(saving.store_of(self.app), self, note, by)


def resume(self: Any) -> None:
    edits.resume_entry(saving.store_of(self.app), self)


def trigger(self: Any) -> str:
    return run_requests.request_run(saving.store_of(self.app), self)


def backfill(
    self: Any,
    since: Any,
    until: Any,
    rate: float = BACKFILL_RATE,
    again: bool = False,
    dry_run: bool = False,
) -> Any:
    store = saving.store_of(self.app)
    return run_requests.request_backfill(
        store, self, since, until, rate=rate, again=again, dry_run=dry_run
    )


def cancel_backfill(self: Any) -> Any:
    return run_requests.cancel_backfills(saving.store_of(self.app), self)


def backfills(self: Any) -> Any:
    return run_requests.stored_backfills(saving.store_of(self.app), self)


def reschedule(self: Any, last_run_at: Any = None) -> None:
    self.last_run_at = last_run_at or self.default_now()
    self.scheduled_at = None
    check_history(self)
    saving.reschedule(saving.store_of(self.app), self)


def record_run(self: Any) -> None:
    saving.record_run(saving.store_of(self.app), self)


def install() -> None:
    """Let entries of the second edition be stored as those of the third."""
    methods = (save, texts, delete, pause, resume, trigger, backfill, cancel_backfill, reschedule)
    replace(RedBeatSchedulerEntry, {one.__name__: one for one in methods})
    static = (load_definition, load_meta)
    replace(RedBeatSchedulerEntry, {one.__name__: staticmethod(one) for one in static})
    replace(RedBeatSchedulerEntry, {"backfills": property(backfills)})
    replace(RedBeatSchedulerEntry, {"from_key": classmethod(from_key), "_record_run": record_run})
