"""The schedule as a mapping, and what tools do with many entries: changes of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, cast

from redbeat.codec.stored import bytes_of
from redbeat.config import key_aside
from redbeat.entries import pauses
from redbeat.entries import save as second_save
from redbeat.entries.history import Texts
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError
from redbeat.management import apply, prefixes
from redbeat.schedule import Schedule
from redbeat.settings import MISSING
from redbeat.storage.records import SAVED, Saved, StaticRow, Writing
from redbeat.storage.shards import ShardedStore
from redbeat.storage.store import Store as SecondStore
from tests.edition import edits, saving
from tests.edition.beat.load import state_of
from tests.edition.importing import save_imported
from tests.edition.prefixes import with_task_ids
from tests.edition.storage.parts import Parts
from tests.edition.storage.rows import Change, Row
from tests.edition.storage.store import Store
from tests.edition.words import INBOX, STATICS

from . import replace

# -- the mapping -----------------------------------------------------------------------------------


def contains(self: Schedule, name: object) -> bool:
    try:
        key = self._key(name)
        row = next(iter(saving.read(saving.store_of(self.app), [key]).values()), None)
    except KeyError:
        return False
    return row is not None and row.definition is not None


def delete_item(self: Schedule, name: str) -> None:
    if not edits.delete(saving.store_of(self.app), [self._own_key(name)]):
        raise KeyError(name)


def pop(self: Schedule, name: str, default: Any = MISSING) -> Any:
    def load(row: Row) -> Any:
        return saving.entry_of(row, self.app, self.entry_class)

    try:
        if self.entry_class.loads_itself():
            self[name]  # the class has something to say about the entry
        row = edits.pop(saving.store_of(self.app), self._key(name), load)
        if row is None:
            raise KeyError(name)
    except KeyError:
        if default is MISSING:
            raise
        return default
    return load(row)


def save_all(self: Schedule, entries: Iterable[RedBeatSchedulerEntry]) -> int:
    return saving.save_all(saving.store_of(self.app), entries)


def delete_all(self: Schedule, names: Iterable[str]) -> int:
    return edits.delete(saving.store_of(self.app), map(self._own_key, names))


def pause_all(self: Schedule, names: Iterable[str], note: str | None = None) -> int:
    return len(edits.pause(saving.store_of(self.app), map(self._own_key, names), note, None))


def resume_all(self: Schedule, names: Iterable[str]) -> int:
    keys = map(self._own_key, names)
    return len(edits.resume(saving.store_of(self.app), keys, self.app, self.entry_class))


# -- functions and methods of the store that tools use --------------------------------------------


def third(store: Any) -> Store:
    """Return the store of the third edition in place of one of the second."""
    if isinstance(store, ShardedStore):
        parts = Parts(store.client, store.keys, lambda number: third(store.shards[number]))
        return cast("Store", parts)
    return Store(store.client, store.keys, repeats=True)


def _texts(rows: dict[str, Row]) -> dict[str, Texts]:
    return {key: (row.definition or "", row.policy or "") for key, row in rows.items()}


def pause_entries(
    store: Any, keys: Iterable[str], note: str | None, by: str | None = None
) -> dict[str, Texts]:
    return _texts(edits.pause(third(store), keys, note, by))


def resume_entries(store: Any, keys: Iterable[str], app: Any, entry_class: Any) -> dict[str, Texts]:
    return _texts(edits.resume(third(store), keys, app, entry_class))


def save_batches(store: Any, batches: Iterable[Iterable[tuple[Any, Any]]], *_: Any) -> None:
    for batch in batches:
        saving.save_all(third(store), [entry for entry, _ in batch])


def planned(
    managed_by: str | None, name: str, entry: Any, row: Any, adopt: bool
) -> apply.PlannedChange:
    """As in the second edition, but a paused entry has its pause in ``state``."""
    problem = apply.obstacle(row)
    if row.definition is None:
        return apply.PlannedChange(name, "created", entry, problem, row)
    kept = copy(entry)
    if state_of(row.stored).pause is not None:
        kept.enabled = False
    unchanged = row.score is not None and not problem and apply._same_texts(row, kept)  # noqa: SLF001
    if managed_by is not None:
        entry = kept
        entry.saved_state = entry.saved_state._replace(texts=(row.definition, row.policy))
        with suppress(DecodeError):  # ignore an unreadable history: a beat reports the problem
            entry.recall(row.meta, row.runtime)
        if not (problem or unchanged or adopt):
            problem = apply._claim_of_others(managed_by, entry, row)  # noqa: SLF001
    action = "unchanged" if unchanged else "changed"
    return apply.PlannedChange(name, action, entry, problem, row)


def delete(self: SecondStore, key: str) -> bool:
    return bool(edits.delete(third(self), [key]))


def delete_keys(self: SecondStore, keys: Sequence[str]) -> int:
    return edits.delete(third(self), keys)


def delete_unchanged(self: SecondStore, key: str, definition: str, policy: str) -> bool:
    return edits.delete_unchanged(third(self), key, (definition, policy))


def save_writings(self: SecondStore, writings: Sequence[Writing]) -> list[Saved]:
    if writings and not writings[0].definition:  # the doctor wants beats to look at entries
        edits.make_due(third(self), [writing.key for writing in writings])
        return [Saved(SAVED)] * len(writings)
    return save_imported(third(self), writings)


def begin_save_writings(
    self: SecondStore, writings: Sequence[Writing]
) -> Callable[[], list[Saved]]:
    results = save_writings(self, writings)
    return lambda: results


def sync_statics(self: SecondStore, rows: Sequence[StaticRow], *_: Any) -> list[int]:
    """Mark imported entries as static."""
    index = [["SADD", STATICS, row.name] for row in rows]
    saving.apply(third(self), [Change("", index=index)])
    return [0] * len(rows)


def review(self: SecondStore, digests: Iterable[tuple[str, str]]) -> list[str]:
    return list(edits.release(third(self), [key for key, _ in digests]))


def forget(self: SecondStore, members: Sequence[str]) -> list[str]:
    return edits.forget(third(self), members)


_write_rest = prefixes._write_rest  # noqa: SLF001 - moves with the module


def write_rest(pipe: Any, keys: Any, entry: Any, with_fields: bool) -> None:
    _write_rest(pipe, keys, entry, with_fields)
    if with_fields and INBOX.encode() in entry.fields:
        key = bytes_of(keys.prefix) + entry.name
        pipe.execute_command("ZADD", key_aside(keys.prefix, INBOX), 0, key)


def install() -> None:
    """Let a schedule of the second edition, and its tools, edit what the third stores."""
    methods = (pop, save_all, delete_all, pause_all, resume_all)
    replace(Schedule, {one.__name__: one for one in methods})
    replace(Schedule, {"__contains__": contains, "__delitem__": delete_item})
    replace(SecondStore, {one.__name__: one for one in (delete, delete_unchanged, review, forget)})
    replace(SecondStore, {"delete_all": delete_keys, "sync_statics": sync_statics})
    replace(SecondStore, {"save_all": save_writings, "begin_save_all": begin_save_writings})
    modules: list[tuple[Any, str, Any]] = [
        (apply, "_planned", planned),
        (pauses, "pause_entries", pause_entries),
        (pauses, "resume_entries", resume_entries),
        (prefixes, "_with_task_ids", with_task_ids),
        (prefixes, "_write_rest", write_rest),
        (second_save, "save_batches", save_batches),
    ]
    for module, name, function in modules:
        setattr(module, name, function)
