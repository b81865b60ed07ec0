"""A store whose entries are distributed over several shards.

An operation on one entry uses only the shard of the entry. An operation on a list of entries uses
only the shards of these entries. An operation on the whole schedule uses every shard. The docstring
of each method in :class:`Store` gives the number of round trips per shard.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from redbeat.codec.stored import bytes_of, score_in, seconds_in, whole_in

from .layout import Layout
from .reading import BATCH, LAST_TICK, REPORTS_SINCE, START, batches
from .records import Keys, Saved, StaticRow, Swept, Writing
from .wire import Counts, Cursor, Page, Presence, Row

if TYPE_CHECKING:
    from .store import Store

T = TypeVar("T")

#: Minimum number of entries that :meth:`ShardedStore.page` requests from each shard at once.
SMALLEST_PART = 20


@dataclass(frozen=True)
class ShardedKeys(Keys):
    """The keys of a schedule with several shards.

    Most keys have the base prefix, but the key of an entry begins with the prefix of the shard of
    the entry.
    """

    layout: Layout = field(default=Layout("", 1), compare=False)

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.layout.key_of(name)

    def name_of(self, key: str) -> str:
        """Return the name of the entry with the key ``key``."""
        return self.layout.name_of(key)


def _by_key(name: str) -> Callable[..., Any]:
    """Return a method that calls the method ``name`` of the shard that has an entry.

    The first argument of the method is the key of the entry.
    """

    def method(self: ShardedStore, key: str, *args: Any, **more: Any) -> Any:
        store, own_key = self._place(key)
        return getattr(store, name)(own_key, *args, **more)

    return method


def _by_first(name: str) -> Callable[..., Any]:
    """Return a method that calls the method ``name`` of the first shard."""

    def method(self: ShardedStore, *args: Any) -> Any:
        return getattr(self.shards[0], name)(*args)

    return method


class ShardedStore:
    """A :class:`Store` for a schedule with several shards.

    Methods that only a beat uses are missing, because a beat uses the store of one shard at a time.
    ``make`` is a function that returns the store of the shard with a given number.
    """

    def __init__(self, client: Any, keys: ShardedKeys, make: Callable[[int], Store]) -> None:
        self.client = client
        self.keys = keys
        self.layout = keys.layout
        self._make = make

    @cached_property
    def shards(self) -> list[Store]:
        """The store of each shard."""
        return [self._make(number) for number in range(self.layout.shards)]

    @property
    def round_trips(self) -> int:
        """The number of round trips to Redis so far, without retries."""
        return sum(store.round_trips for store in self.shards)

    def _place(self, key: str) -> tuple[Store, str]:
        """Return the store of the shard of an entry, and the entry key with its prefix."""
        number, name = self.layout.split(key)
        return self.shards[number], self.layout.prefixes[number] + name

    def _parts(
        self, items: Iterable[T], key_of: Callable[[T], str]
    ) -> Iterator[tuple[Store, list[tuple[int, T]]]]:
        """Yield the store of each shard that has some of the ``items``, with these items.

        Each yielded item is a pair of the position in ``items`` and the item itself.
        """
        parts: defaultdict[int, list[tuple[int, T]]] = defaultdict(list)
        for position, item in enumerate(items):
            parts[self.layout.split(key_of(item))[0]].append((position, item))
        for number, part in parts.items():
            yield self.shards[number], part

    def _gather(self, name: str, items: Iterable[T], key_of: Callable[[T], str]) -> list[Any]:
        """Call the method ``name`` of each shard with the items of the shard; return all results.

        The called method must accept a list and return a list.
        """
        return [
            result
            for store, part in self._parts(items, key_of)
            for result in getattr(store, name)([item for _, item in part])
        ]

    # -- single entries ----------------------------------------------------------------------

    load, history = _by_key("load"), _by_key("history")
    save, delete, pop = _by_key("save"), _by_key("delete"), _by_key("pop")
    delete_unchanged = _by_key("delete_unchanged")
    end_run, trigger = _by_key("end_run"), _by_key("trigger")
    replace_waiting = _by_key("replace_waiting")

    def rank(self, key: str) -> int | None:
        """Return the position of an entry in the order of scores, from 0.

        Returns None if the entry is not in the schedule. Entries of other shards with the same
        score are counted as later entries. Takes two round trips for the shard of the entry, and
        one round trip for each other shard.
        """
        own, own_key = self._place(key)
        rank, score = own.rank(own_key), own.read([own_key]).rows[0].score
        if rank is None or score is None:
            return None
        return rank + sum(store.count_below(score) for store in self.shards if store is not own)

    # -- lists of entries --------------------------------------------------------------------

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the order of ``keys``."""
        rows: list[Row | None] = [None] * len(keys)
        now = 0.0
        for store, part in self._parts(keys, str):
            for batch in batches(part):
                page = store.read([self._place(key)[1] for _, key in batch])
                now = max(now, page.now)
                for (position, _), row in zip(batch, page.rows, strict=True):
                    rows[position] = row
        return Page(now or self.time(), [row for row in rows if row is not None], None)

    def save_all(self, writings: Sequence[Writing]) -> list[Saved]:
        """Write entries. If a key is not a hash, entries of other shards may still be written."""
        return self.begin_save_all(writings)()

    def begin_save_all(self, writings: Sequence[Writing]) -> Callable[[], list[Saved]]:
        """Send entries to Redis, and return a function that waits for the results.

        This method itself waits for the results of all shards except the last shard. If two
        requests ran at the same time, they could need more connections than the pool has.
        """
        found: dict[int, Saved] = {}
        read_last: Callable[[], None] = found.clear
        for store, part in self._parts(writings, lambda writing: writing.key):
            read_last()
            own = [item._replace(key=self._place(item.key)[1]) for _, item in part]
            read_last = partial(_keep, found, part, store.begin_save_all(own))

        def results() -> list[Saved]:
            read_last()
            return [found[position] for position in range(len(writings))]

        return results

    def sync_statics(
        self, rows: Sequence[StaticRow], lock_key: None, token: str
    ) -> list[int] | None:
        """Write the static entries that are missing or changed; see :meth:`Store.sync_statics`."""
        codes = [0] * len(rows)
        for store, part in self._parts(rows, lambda row: row.key):
            own = [replace(row, key=self._place(row.key)[1]) for _, row in part]
            found = store.sync_statics(own, lock_key, token)
            if found is None:
                return None
            for (position, _), code in zip(part, found, strict=True):
                codes[position] = code
        return codes

    def delete_all(self, keys: Sequence[str]) -> int:
        """Delete entries and their histories; return how many entries existed."""
        return sum(
            store.delete_all([self._place(key)[1] for _, key in part])
            for store, part in self._parts(keys, str)
        )

    def review(self, digests: Iterable[tuple[str, str]]) -> list[str]:
        """Release quarantined entries that changed in Redis; return their keys."""
        return self._gather("review", digests, lambda digest: digest[0])

    def forget(self, members: Sequence[str]) -> list[str]:
        """Remove from the schedule the keys whose hash does not exist; return the removed keys."""
        return self._gather("forget", members, str)

    def note_calendar_users(self, keys: Sequence[str]) -> None:
        """Record that the entries with these ``keys`` have calendars."""
        for store, part in self._parts(keys, str):
            store.note_calendar_users([key for _, key in part])

    def forget_calendar_users(self, keys: Sequence[str]) -> None:
        """Record that the entries with these ``keys`` have no calendars."""
        for store, part in self._parts(keys, str):
            store.forget_calendar_users([key for _, key in part])

    # -- the whole schedule, in due order ----------------------------------------------------

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return a page of entries in due order. Usually takes one round trip per shard."""
        name = "" if after is None else self.keys.name_of(after[1])
        begin = None if after is None else self._due_order(score_in(after[0]), name)
        mean = limit / self.layout.shards
        size = min(limit, max(SMALLEST_PART, math.ceil(mean + 2 * math.sqrt(mean)))) + 1
        nows: list[float] = []

        def rows(store: Store) -> Iterator[tuple[Any, Row]]:
            cursor = None if after is None else (after[0], store.keys.prefix + name)
            while True:
                page = store.page(cursor, size, history)
                nows.append(page.now)
                for row in page.rows:
                    order = self._due_order(row.score or 0.0, self.keys.name_of(row.key))
                    if begin is None or order > begin:
                        yield order, row
                cursor = page.after
                if cursor is None:
                    return

        ordered = merge(*map(rows, self.shards), key=lambda pair: pair[0])
        found = [row for _, row in islice(ordered, limit + 1)]
        more = len(found) > limit
        last = found[limit - 1] if more else None
        return Page(max(nows), found[:limit], (repr(last.score), last.key) if last else None)

    def _due_order(self, score: float, name: str) -> tuple[bool, float, bytes]:
        """Return the key by which pages sort entries, independently of the number of shards."""
        return score < 0, score, bytes_of(name)

    def _by_score(self, pair: tuple[str, float]) -> tuple[float, bytes]:
        return pair[1], bytes_of(self.keys.name_of(pair[0]))

    def ranked(self, offset: int, limit: int) -> list[tuple[str, float]]:
        """Return at most ``limit`` pairs (entry key, score) in order of score.

        Entries that are never due come first. Takes one round trip per shard, and one more round
        trip per 500 skipped pairs.
        """
        size = min(offset + limit, BATCH)

        def pairs(store: Store) -> Iterator[tuple[str, float]]:
            start = 0
            while found := store.ranked(start, size):
                yield from found
                start += size

        ordered = merge(*map(pairs, self.shards), key=self._by_score)
        return list(islice(ordered, offset, offset + limit))

    def due(self, now: float) -> list[tuple[str, float]]:
        """Return (key, score) for all entries due at ``now`` and for the next entry, in due order.

        Takes two round trips per shard, and one more round trip per 2000 due entries of a shard.
        """
        each = (pair for store in self.shards for pair in store.due(now))
        pairs = sorted(each, key=self._by_score)
        due = [pair for pair in pairs if pair[1] <= now]
        return due + pairs[len(due) : len(due) + 1]

    # -- the whole schedule, in any order ----------------------------------------------------

    def _chained(self, cursor: str, read: Callable[[Store, str], tuple[str, T]]) -> tuple[str, T]:
        """Call ``read`` for the part of a scan at ``cursor``; return the next cursor and the part.

        A cursor contains the number of a shard, a colon, and the cursor within the shard.
        """
        number, _, own = cursor.partition(":")
        after, found = read(self.shards[int(number)], own or START)
        if after not in (START, ""):
            return f"{number}:{after}", found
        following = int(number) + 1
        return START if following == self.layout.shards else f"{following}:{START}", found

    def scan(self, cursor: str = START, text: str = "*") -> tuple[str, list[tuple[str, float]]]:
        """Return the next cursor of a scan, and pairs (entry key, score) in no special order."""
        return self._chained(cursor, lambda store, own: store.scan(own, text))

    def scan_all(self, text: str = "*") -> Iterator[tuple[str, float]]:
        """Yield the pairs (entry key, score) of all parts of a :meth:`scan`."""
        for store in self.shards:
            yield from store.scan_all(text)

    def calendar_users(self, cursor: str) -> tuple[str, list[str]]:
        """Return the next cursor, and a page of the keys of entries with calendars."""
        return self._chained(cursor, lambda store, own: store.calendar_users(own))

    def sweep(self, cursor: str) -> Swept:
        """Scan a page of keys; see :meth:`Store.sweep`."""

        def read(store: Store, own: str) -> tuple[str, Swept]:
            page = store.sweep(own)
            return page.cursor, page

        after, page = self._chained(cursor, read)
        return page._replace(cursor=after)

    def count_below(self, score: float) -> int:
        """Return the number of entries whose score is lower than ``score``."""
        return sum(store.count_below(score) for store in self.shards)

    def members(self) -> int:
        """Return the number of entries."""
        return sum(store.members() for store in self.shards)

    def static_names(self) -> set[str]:
        """Return the names of all static entries."""
        return set().union(*(store.static_names() for store in self.shards))

    def static_among(self, names: Iterable[str]) -> set[str]:
        """Return which of the ``names`` are names of static entries.

        Takes at most one round trip per shard for every 500 names.
        """
        pages = map(self.read, batches(map(self.keys.entry, names)))
        return {self.keys.name_of(row.key) for page in pages for row in page.rows if row.static}

    def quarantined(self, limit: int | None = None) -> dict[str, str]:
        """Return at most ``limit`` quarantined entries (default: all) as key -> JSON note."""
        found = (pair for store in self.shards for pair in store.quarantined(limit).items())
        return dict(islice(found, limit))

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        The beats come from the first shard, because every beat works on the first shard. Also
        returns the keys of all entries that may be overdue.
        """
        each = [
            store.counts(lock_key and self.layout.lock_key(number, lock_key), disabled, within)
            for number, store in enumerate(self.shards)
        ]
        expected = [key for counts in each for key in counts.expected]
        for store, counts in zip(self.shards, each, strict=True):
            found = len(counts.expected)
            while found and found % BATCH == 0:
                more = store.expected_after(counts.now, found)
                expected += more
                if not more:
                    break
                found += len(more)
        total = Counts._make(
            sum(column) if isinstance(column[0], int) else column[0]
            for column in zip(*each, strict=True)
        )
        return total._replace(
            first_due=min(
                (counts.first_due for counts in each if counts.first_due is not None), default=None
            ),
            problem=next((counts.problem for counts in each if counts.problem), ""),
            holders=[counts.holder for counts in each],
            sizes=[counts.members for counts in each],
            expected=expected,
        )

    def expected_after(self, _now: float, _offset: int) -> list[str]:
        """Return no keys; :meth:`counts` already returns all keys of entries that may be overdue.

        No round trip.
        """
        return []

    def stats(self) -> dict[str, str]:
        """Return the counters of all beats, added up over the shards."""
        return total_stats(self.shards)

    def reports_since(self) -> float | None:
        """Return when a worker first reported the end of a run, in UNIX seconds.

        Returns None if no worker has reported a run.
        """
        found = [since for store in self.shards if (since := store.reports_since()) is not None]
        return min(found, default=None)

    def eviction(self) -> tuple[int, str]:
        """Return maxmemory in bytes and the eviction policy of one server of the cluster.

        If a server can evict entries, the method returns the values of this server.
        """
        found = [store.eviction() for store in self.shards]
        return max(found, key=lambda one: bool(one[0]) and one[1].startswith("allkeys-"))

    # -- calendars, which are stored in every shard ------------------------------------------

    def save_calendar(self, name: str, text: str) -> None:
        """Store a calendar as JSON in every shard."""
        for store in self.shards:
            store.save_calendar(name, text)

    def delete_calendar(self, name: str) -> bool:
        """Delete a calendar in every shard; return whether the calendar existed."""
        return sum(store.delete_calendar(name) for store in self.shards) > 0

    # -- values from the first shard, and locks ----------------------------------------------

    calendars = _by_first("calendars")
    time, server, noted = _by_first("time"), _by_first("server"), _by_first("noted")

    def beats(self, within: float) -> list[Presence]:
        """Return the beats that were seen in the last ``within`` seconds. Two round trips.

        The list ends with the beat that was seen last.
        """
        return self.shards[0].beats(within)

    def lock_holder(self, key: str) -> str:
        """Return the token of the beat that holds the lock of the first shard.

        Returns "" if the lock is free.
        """
        return self.shards[0].lock_holder(self.layout.lock_key(0, key))

    def lock_holders(self, key: str) -> list[str]:
        """Return the token of each beat that holds the lock of at least one shard."""
        found = [
            store.lock_holder(self.layout.lock_key(number, key))
            for number, store in enumerate(self.shards)
        ]
        return [*dict.fromkeys(filter(None, found))]

    def lock_left(self, key: str) -> float | None:
        """Return the seconds until the lock of the first shard expires.

        Returns None if the lock is free.
        """
        return self.shards[0].lock_left(self.layout.lock_key(0, key))


def _keep(
    found: dict[int, Saved], part: Sequence[tuple[int, Writing]], read: Callable[[], list[Saved]]
) -> None:
    """Wait for the results of ``part``, and add each result to ``found`` under its position."""
    found.update(zip((position for position, _ in part), read(), strict=True))


def total_stats(stores: Iterable[Store]) -> dict[str, str]:
    """Return the stats of a schedule, with the counters of all ``stores`` added up.

    Takes one round trip per about 2000 fields of a store.
    """
    stats: dict[str, str] = {}
    for store in stores:
        for name, text in store.stats().items():
            stats[name] = _total(name, stats[name], text) if name in stats else text
    return stats


def _total(name: str, one: str, other: str) -> str:
    """Combine the values ``one`` and ``other`` of a field of the stats into one value."""
    if name in (LAST_TICK, REPORTS_SINCE):
        choose = max if name == LAST_TICK else min
        return choose(one, other, key=lambda text: seconds_in(text) or 0.0)
    first, second = whole_in(one), whole_in(other)
    return one if first is None or second is None else str(first + second)
