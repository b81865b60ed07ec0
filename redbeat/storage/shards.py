"""A store whose entries are distributed over several shards.

An operation on one entry uses only the shard of the entry. An operation on a list of entries uses
only the shards of these entries. An operation on the whole schedule uses every shard. The docstring
of each method in :class:`Store` gives the number of round trips per shard.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from redbeat.codec.stored import bytes_of, score_in
from redbeat.storage.reading import BATCH, Counts, Cursor, Page, Past, Shown

from .keys import ShardedKeys
from .reading import Reading
from .rows import Answer, Change, Reply, Request

if TYPE_CHECKING:
    from .store import Store

#: Minimum number of entries that :meth:`ShardedStore.page` requests from each shard at once.
SMALLEST_PART = 20


class ShardedStore(Reading):
    """A :class:`Store` for a schedule with several shards, whose stores are the ``parts``.

    Methods that only a beat uses are missing, because a beat uses the store of one shard at a time.
    """

    def __init__(self, client: Any, keys: ShardedKeys, parts: Sequence[Store]) -> None:
        super().__init__(client, keys)
        self.layout = keys.layout
        self.parts: Sequence[Store] = parts

    def part_of(self, key: str) -> Store:
        """Return the store of the shard that has the entry with a key."""
        return self.parts[self.layout.split(key)[0]]

    def _own_key(self, key: str) -> str:
        """Return a key with the prefix of its shard: programs may make it of the base prefix."""
        shard, name = self.layout.split(key)
        return self.layout.prefixes[shard] + name

    # -- changes ----------------------------------------------------------------------------

    def turn(self, request: Request) -> Reply:
        """Carry out the changes of a request, each in its part. One round trip per part.

        A change without a key is carried out in every part. A request that looks needs ``only``.
        """
        looks = None if request.look is None else self.layout.split(request.look.only)[0]
        shares: dict[int, list[int]] = {}
        if looks is not None or not request.changes:
            shares[looks or 0] = []
        for number, change in enumerate(request.changes):
            own = self.layout.split(change.key)[0]
            for shard in [own] if change.key else range(len(self.parts)):
                shares.setdefault(shard, []).append(number)
        answers: dict[int, Answer] = {}
        replies = []
        for shard, numbers in shares.items():
            changes = [self._own_change(request.changes[number]) for number in numbers]
            look = request.look if shard == looks else None
            reply = self.parts[shard].turn(request._replace(changes=changes, look=look))
            answers.update(zip(numbers, reply.answers, strict=True))
            replies.append(reply)
        return replies[-1]._replace(
            now=max(reply.now for reply in replies),
            answers=[answers[number] for number in range(len(request.changes))],
            rows=[row for reply in replies for row in reply.rows],
        )

    def _own_change(self, change: Change) -> Change:
        key = change.key and self._own_key(change.key)
        return change if key == change.key else replace(change, key=key)

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Carry out :meth:`turn`, and return a function that returns its reply."""
        reply = self.turn(request)
        return lambda: reply

    # -- single entries ----------------------------------------------------------------------

    def past(self, key: str) -> Past:
        """Return what is stored about the runs of an entry."""
        return self.part_of(key).past(key)

    def say(self, key: str, line: str, **more: Any) -> str:
        """Append a line to the inbox of an entry; see :meth:`Store.say`."""
        return self.part_of(key).say(self._own_key(key), line, **more)

    def rank(self, key: str) -> int | None:
        """Return the position of an entry in the order of scores, from 0.

        Returns None if the entry is not in the schedule. Entries of other shards with the same
        score are counted as later entries. Takes two round trips for the shard of the entry, and
        one round trip for each other shard.
        """
        own = self.part_of(key)
        rank, score = own.rank(key), own.read([key]).rows[0].score
        if rank is None or score is None:
            return None
        return rank + sum(store.count_below(score) for store in self.parts if store is not own)

    # -- lists of entries --------------------------------------------------------------------

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the order of ``keys``."""
        shares: defaultdict[int, dict[int, str]] = defaultdict(dict)
        for position, key in enumerate(keys):
            shares[self.layout.split(key)[0]][position] = self._own_key(key)
        found, now = dict[int, Shown](), 0.0
        for shard, share in shares.items():
            page = self.parts[shard].read(list(share.values()))
            now = max(now, page.now)
            found.update(zip(share, page.rows, strict=True))
        return Page(now or self.time(), [found[position] for position in range(len(keys))], None)

    # -- the whole schedule, in due order ----------------------------------------------------

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return a page of entries in due order. Usually takes one round trip per shard."""
        name = "" if after is None else self.keys.name_of(after[1])
        begin = None if after is None else self._due_order(score_in(after[0]), name)
        mean = limit / self.layout.shards
        size = min(limit, max(SMALLEST_PART, math.ceil(mean + 2 * math.sqrt(mean)))) + 1
        nows: list[float] = []

        def rows(store: Store) -> Iterator[tuple[Any, Shown]]:
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

        ordered = merge(*map(rows, self.parts), key=lambda pair: pair[0])
        found = [row for _, row in islice(ordered, limit + 1)]
        last = found[limit - 1] if len(found) > limit else None
        return Page(max(nows), found[:limit], (repr(last.score), last.key) if last else None)

    def _due_order(self, score: float, name: str) -> tuple[bool, float, bytes]:
        """Return the key by which pages sort entries, independently of the number of shards."""
        return score < 0, score, bytes_of(name)

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        The beats come from the first shard, because every beat works on the first shard. Also
        returns the keys of all entries that may be overdue.
        """
        each = [
            store.counts(lock_key and self.layout.lock_key(number, lock_key), disabled, within)
            for number, store in enumerate(self.parts)
        ]
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
            perhaps_failing=[row for counts in each for row in counts.perhaps_failing],
            expected=[key for counts in each for key in counts.expected],
        )

    # -- the lock of the first shard ---------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Return the token of the beat that holds the lock, or "" if the lock is free."""
        return self.parts[0].lock_holder(self.layout.lock_key(0, key))

    def lock_left(self, key: str) -> float | None:
        """Return the seconds until the lock expires, or None if the lock is free."""
        return self.parts[0].lock_left(self.layout.lock_key(0, key))
