"""Finds hashes under the prefix that are not in the sorted set of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from redbeat.codec.stored import bytes_of, record_in, text_of
from redbeat.connection.cluster import node_of
from redbeat.storage.commands import ask, pattern_of
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Row

if TYPE_CHECKING:
    from redbeat.storage.store import Store

#: About how many keys a portion of a scan of a tool reads; a beat reads fewer at once.
SCANNED: Final = 1000


def rows_outside(store: Store, cursor: int, count: int = SCANNED) -> tuple[int, list[Row]]:
    """Return the next cursor, 0 at the end, and the hashes outside in a portion of a scan.

    A portion reads about ``count`` keys. Begin with the cursor 0. Two or three round trips.
    """
    node = node_of(store.client, store.keys.schedule)
    pattern = pattern_of(store.keys.prefix)
    scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", count, "TYPE", "hash")
    ((following, found),) = ask(node, scan)
    keys = sorted(_not_members(store, {text_of(key) for key in found}))
    return int(following), read_rows(store, keys)


def _not_members(store: Store, keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys that are not in the schedule, neither as keys nor as names."""
    keys, schedule = list(keys), store.keys.schedule
    names = [store.keys.name_of(key) for key in keys]
    members = map(bytes_of, (*keys, *names))
    scores = ask(store.client, *(("ZSCORE", schedule, member) for member in members))
    for key, as_key, as_name in zip(keys, scores, scores[len(keys) :], strict=False):
        if as_key is None and as_name is None:
            yield key


def is_entry(store: Store, row: Row) -> bool:
    """Return whether the definition has the name of the key; else the hash is of others."""
    name = definition_of(row).get("name")
    return name is not None and store.keys.entry(str(name)) == row.key


def definition_of(row: Row) -> dict[str, Any]:
    """Return the fields of a definition, none if it cannot be read."""
    return record_in(row.definition or "")


def outside(store: Store) -> Iterator[list[str]]:
    """Yield keys of entries that are stored, but not in the sorted set, and of unreadable ones.

    Takes two or three round trips per :data:`SCANNED` keys of the database.
    """
    cursor = 0
    while True:
        cursor, rows = rows_outside(store, cursor)
        yield [
            row.key
            for row in rows
            if is_entry(store, row)
            or (row.definition is not None and definition_of(row).get("name") is None)
        ]
        if not cursor:
            return
