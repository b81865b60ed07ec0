"""Removes from side keys what belongs to deleted entries, and entries that fail no longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from redbeat.codec.stored import text_of
from redbeat.entries.state import State
from redbeat.metrics.counters import split
from redbeat.storage import commands, words
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Change, Reply
from redbeat.storage.store import Store

#: Seconds between two times at which a beat tidies up.
TIDY_INTERVAL: Final = 600.0

#: How many fields or members one portion reads.
PORTION: Final = 500

#: A beat whose time is further in the future, in seconds, was written by another program.
LARGEST_STEP: Final = 60.0

#: Reads from a cursor, and returns the next cursor and the changes to make; 0 begins and ends.
Portion = Callable[[int, Reply], tuple[int, list[Change]]]


def portions(store: Store, most_entries: int) -> list[Portion]:
    """Return what tidies up each side key of a schedule, a portion at a time.

    The counts of single entries stay while the schedule has at most ``most_entries``. Each portion
    takes one or two round trips.
    """
    return [
        _beats,
        partial(_counts, store, most_entries),
        partial(_failing, store),
        partial(_expected, store),
    ]


def _beats(_cursor: int, reply: Reply) -> tuple[int, list[Change]]:
    future = f"{reply.now + LARGEST_STEP:.0f}"
    return 0, [Change("", index=[["ZREMRANGEBYSCORE", words.BEATS, future, "+inf"]])]


def _counts(store: Store, most: int, cursor: int, reply: Reply) -> tuple[int, list[Change]]:
    following, fields = _scan(store, "HSCAN", store.keys.stats, cursor)
    names = {field: found[1] for field in fields if (found := split(field)) is not None}
    keys = {field: store.keys.entry(name) for field, name in names.items()}
    rows = read_rows(store, set(keys.values())) if reply.members <= most else ()
    kept = {row.key for row in rows if row.score != ""}
    over = [field for field, key in keys.items() if key not in kept]
    return following, _removal("HDEL", words.STATS, over)


def _failing(store: Store, cursor: int, _reply: Reply) -> tuple[int, list[Change]]:
    following, keys = _scan(store, "ZSCAN", store.keys.failing, cursor)
    rows = read_rows(store, keys)
    over = [row.key for row in rows if State.read(row.state, row.meta).failing is None]
    return following, _removal("ZREM", words.FAILING, over)


def _expected(store: Store, cursor: int, _reply: Reply) -> tuple[int, list[Change]]:
    following, keys = _scan(store, "ZSCAN", store.keys.expected, cursor)
    gone = [row.key for row in read_rows(store, keys) if row.score == ""]
    return following, _removal("ZREM", words.EXPECTED, gone)


def _scan(store: Store, command: str, key: str, cursor: int) -> tuple[int, list[str]]:
    """Return the next cursor, and the next fields or members of a side key. One round trip."""
    scan = (command, key, cursor, "COUNT", PORTION)
    following, found = commands.ask_aside(store.client, *scan) or (0, ())
    return int(following), [text_of(field) for field, _ in commands.pairs_of(found)]


def _removal(command: str, name: str, over: Sequence[str]) -> list[Change]:
    return [Change("", index=[[command, name, *over]])] if over else []
