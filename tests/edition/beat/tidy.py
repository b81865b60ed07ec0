"""Removes from side keys what belongs to deleted entries, and entries that fail no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from redbeat.codec.stored import bytes_of, text_of
from redbeat.config import key_aside
from redbeat.metrics.counters import split
from redbeat.printing import get_logger
from redbeat.storage.wire import pairs_of
from tests.edition.state import State
from tests.edition.storage.portions import ask, ask_aside, read_rows
from tests.edition.storage.store import Store
from tests.edition.words import BEATS, EXPECTED, FAILING, STATS

logger = get_logger("celery.beat")

#: Seconds between two times at which an idle beat tidies up.
TIDY_INTERVAL: Final = 600.0

#: How many fields or members one portion reads.
PORTION: Final = 500

#: A beat whose time is further in the future, in seconds, was written by another program.
LARGEST_STEP: Final = 60.0


class Tidy:
    """Tidies the side keys of one schedule up, a portion at a time.

    The counts of single entries stay while the schedule has at most ``most_entries``. ``clock``
    returns monotonic seconds.
    """

    def __init__(self, store: Store, most_entries: int, clock: Callable[[], float]) -> None:
        self._store, self._client = store, store.client
        self._most, self._clock = most_entries, clock
        self._begun = clock()
        self._portions: Iterator[None] | None = None

    def run(self, now: float, members: int) -> None:
        """Do a portion if it is time. Two or three round trips for a portion, else none.

        ``now`` is the time of Redis in UNIX seconds; the schedule has ``members`` entries.
        """
        if self._portions is None and self._clock() - self._begun >= TIDY_INTERVAL:
            self._begun = self._clock()
            self._portions = self._all(now, members)
        if self._portions is not None and next(self._portions, self) is self:
            self._portions = None

    def _all(self, now: float, members: int) -> Iterator[None]:
        future = f"{now + LARGEST_STEP:.0f}"
        ask_aside(self._client, "ZREMRANGEBYSCORE", self._key(BEATS), future, "+inf")
        for fields in self._scan("HSCAN", STATS):
            self._forget_counts(fields, all_of_them=members > self._most)
            yield
        for keys in self._scan("ZSCAN", FAILING):
            rows = read_rows(self._store, keys)
            over = [row.key for row in rows if State.read(row.state, row.meta).failing is None]
            self._remove("ZREM", FAILING, over)
            yield
        for keys in self._scan("ZSCAN", EXPECTED):
            self._remove("ZREM", EXPECTED, self._gone(keys))
            yield

    def _forget_counts(self, fields: Sequence[str], *, all_of_them: bool) -> None:
        names = {field: found[1] for field in fields if (found := split(field)) is not None}
        keys = {field: self._store.keys.entry(name) for field, name in names.items()}
        gone = set(keys.values()) if all_of_them else set(self._gone([*set(keys.values())]))
        over = [field for field, key in keys.items() if key in gone]
        self._remove("HDEL", STATS, over)
        if over:
            logger.debug("beat: Removed %d metrics counters of deleted entries", len(over))

    def _key(self, name: str) -> str:
        return key_aside(self._store.keys.prefix, name)

    def _scan(self, command: str, name: str) -> Iterator[list[str]]:
        """Yield the fields or members of a side key in portions. One round trip each."""
        cursor: Any = 0
        while True:
            reply = ask_aside(self._client, command, self._key(name), cursor, "COUNT", PORTION)
            cursor, found = reply or (0, ())
            yield [text_of(field) for field, _ in pairs_of(found)]
            if int(cursor) == 0:
                return

    def _gone(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are not in the schedule. One round trip; none without keys."""
        schedule = self._store.keys.schedule
        scores = ask(self._client, *(("ZSCORE", schedule, bytes_of(key)) for key in keys))
        return [key for key, score in zip(keys, scores, strict=True) if score is None]

    def _remove(self, command: str, name: str, fields: Sequence[str]) -> None:
        if fields:
            ask_aside(self._client, command, self._key(name), *map(bytes_of, fields))
