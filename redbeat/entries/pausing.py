"""Pausing and resuming entries that are stored, whatever else of them changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from redbeat.errors import ConflictError, DecodeError
from redbeat.storage.records import CONFLICT, SAVED, Writing
from redbeat.storage.rows import Row
from redbeat.storage.store import Store, batches

from .due import DISABLED
from .pauses import paused, resumed

if TYPE_CHECKING:
    from .saving import SavedEntry

__all__ = ("Texts", "pause_entries", "resume_entries")

#: Definition and policy.
Texts = tuple[str, str]

#: How often a change is tried again when somebody else was faster.
ATTEMPTS = 5


def pause_entries(
    store: Store, keys: Iterable[str], note: str | None, by: str | None = None
) -> dict[str, Texts]:
    """Pause entries; return the texts of those found, by key. Two round trips per 500."""
    now = datetime.now(timezone.utc)

    def change(row: Row) -> Writing:
        texts = paused(row.definition or "", row.policy, note, now, by)
        return Writing(row.key, *texts, score=DISABLED)

    return _change(store, keys, change)


def resume_entries(
    store: Store, keys: Iterable[str], app: Any, entry_class: type[SavedEntry]
) -> dict[str, Texts]:
    """Resume entries; return the texts of those found, by key. Two round trips per 500."""

    def change(row: Row) -> Writing:
        texts = resumed(row.definition or "", row.policy)
        try:
            definition, policy = texts
            loads: Any = entry_class
            entry = loads.from_texts(app, definition, row.meta, policy, row.runtime)
            entry._tell_if_finished()
            return Writing(row.key, *texts, score=entry._stored_score())
        except DecodeError:  # a beat will say so
            return Writing(row.key, *texts)

    return _change(store, keys, change)


def _change(
    store: Store, keys: Iterable[str], change: Callable[[Row], Writing]
) -> dict[str, Texts]:
    done: dict[str, Texts] = {}
    for batch in batches(keys):
        left: list[str] = list(dict.fromkeys(batch))
        for _ in range(ATTEMPTS):
            left = _change_once(store, left, change, done)
            if not left:
                break
        else:
            raise ConflictError(left[0].removeprefix(store.keys.prefix))
    return done


def _change_once(
    store: Store, keys: list[str], change: Callable[[Row], Writing], done: dict[str, Texts]
) -> list[str]:
    """Change entries that are readable; return the keys of those that others changed meanwhile."""
    writings = []
    for row in store.read(keys).rows:
        if row.problem or row.definition is None:
            continue
        try:
            writing = change(row)
        except (ValueError, TypeError):  # no JSON, or no object
            continue
        believed = (row.definition, row.policy)
        if (writing.definition, writing.policy) == believed:
            done[row.key] = believed
        else:
            writings.append(writing._replace(seen=None, believed=believed))
    results = store.save_all(writings) if writings else []
    changed = []
    for writing, (code, *_) in zip(writings, results, strict=True):
        if code == SAVED:
            done[writing.key] = (writing.definition, writing.policy)
        elif code == CONFLICT:
            changed.append(writing.key)
    return changed
