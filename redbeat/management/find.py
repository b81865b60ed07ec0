"""Searches for entries: the filters of ``Schedule.records``, and sorted pages for the dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from heapq import merge, nsmallest
from itertools import chain, islice
from math import ceil, sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from redbeat.calendar.zones import EPOCH
from redbeat.codec.stored import bytes_of, score_in
from redbeat.connection.retrying import is_retriable
from redbeat.entries import status
from redbeat.entries.policy import in_utc
from redbeat.errors import InvalidEntryError
from redbeat.presentation.describe import last_run
from redbeat.printing import encodable, get_logger
from redbeat.storage import reading
from redbeat.storage.reading import BATCH, Cursor, Page, Reading, batches
from redbeat.storage.rows import Row
from redbeat.storage.store import Store, store_of

if TYPE_CHECKING:
    from redbeat.management.schedule import Schedule

logger = get_logger("celery.beat")


#: How many entries :func:`page_of` requests from each shard at once, at least.
SMALLEST_PART: Final = 20


class Filter(NamedTuple):
    """The filter of :meth:`~redbeat.Schedule.records`; a field that is None matches all.

    ``due_before`` is in UNIX seconds. With ``fold``, patterns are those of :func:`like`, which
    ignores case.
    """

    pattern: str | None = None
    task: str | None = None
    enabled: bool | None = None
    static: bool | None = None
    due_before: float | None = None
    states: Set[str] | None = None
    fold: bool = False
    last_result: str | None = None

    @classmethod
    def of(
        cls,
        pattern: str | None,
        due_before: datetime | None = None,
        states: Iterable[str] | None = None,
        last_result: str | None = None,
        **others: Any,
    ) -> Filter:
        """Return a filter; raise :exc:`InvalidEntryError` for an invalid value."""
        before = None if due_before is None else in_utc("due_before", due_before).timestamp()
        if isinstance(states, str):
            states = (states,)
        state_set = None if states is None else frozenset(states)
        for state in state_set or ():
            check_choice("states", state, status.STATES)
        check_choice("last_result", last_result, status.LAST_RESULTS)
        return cls(pattern, due_before=before, states=state_set, last_result=last_result, **others)

    @property
    def plain(self) -> bool:
        """Whether all entries match."""
        return self._replace(fold=False) == Filter()

    @property
    def one_state(self) -> str | None:
        """The state, if a single one is the only condition."""
        states = self.states or ()
        return next(iter(states)) if len(states) == 1 and self._replace(states=None).plain else None

    @property
    def parked(self) -> bool:
        """Whether all matching entries are never due."""
        return self.states is not None and self.states <= PARKED_STATES

    @property
    def decodes(self) -> bool:
        """Whether only decoded entries tell if they match."""
        return any(each is not None for each in (self.states, self.task, self.last_result))

    def matches(self, text: str, pattern: str | None) -> bool:
        if pattern is None:
            return True
        return like(text, pattern) if self.fold else fnmatchcase(text, pattern)

    def admits(self, name: str, static: bool, score: float | None) -> bool:
        """Return whether an entry may match, as far as the sorted set and the statics tell."""
        if not self.matches(name, self.pattern) or self.static not in (None, static):
            return False
        return self.admits_score(score)

    def admits_score(self, score: float | None) -> bool:
        if self.due_before is not None:
            return score is not None and 0 <= score < self.due_before
        return score is None or score >= 0 or self.states != {status.SCHEDULED}

    def admits_texts(self, row: Row) -> bool:
        """Return whether the last result can match, without decoding the row."""
        return self.last_result is None or f'"{self.last_result}"' in f"{row.state}{row.inbox}"

    def takes(self, record: status.Record) -> bool:
        """Return whether a decoded entry matches what the other methods cannot tell."""
        entry = record.entry
        if self.last_result not in (None, record.last_result):
            return False
        if self.states is not None and record.state not in self.states:
            return False
        if self.enabled is not None and (entry is None or entry.enabled is not self.enabled):
            return False
        return self.task is None or (entry is not None and self.matches(str(entry.task), self.task))


def check_choice(field: str, value: str | None, known: Sequence[str]) -> None:
    """Raise :exc:`InvalidEntryError` for an unknown value."""
    if value is not None and value not in known:
        raise InvalidEntryError(field, f"must be one of {', '.join(known)}")


#: The cursor before all entries that are never due.
PARKED_START: Final[Cursor] = "-1e300", ""

#: Maximum number of matching names in memory.
MAX_MATCHES: Final = 20_000

#: Maximum number of entries to read for one page, and of those that are not decoded.
MAX_READ: Final = 2_000
MAX_SKIMMED: Final = 20_000

#: Maximum number of entries to sort in another order than that of the sorted set.
SORTED: Final = 5_000

TOO_MANY: Final = (
    f"works for up to {SORTED:,} entries, and more match; narrow the search, or keep the due order"
)

#: The states whose entries have a negative score.
PARKED_STATES: Final = frozenset({status.PAUSED, status.FINISHED, status.QUARANTINED})

#: The states that are looked for in due order, because no side key lists their entries.
WALKED: Final = (status.SCHEDULED, status.RUNNING, status.PAUSED, status.FINISHED)

#: The score in cursors for entries that are not in the sorted set.
OUTSIDE: Final = float("-inf")

#: The value of a record to sort by, for each order.
ORDERS: Final[dict[str, Callable[[status.Record], Any]]] = {
    "due": lambda record: (record.due_at is None, record.due_at or EPOCH),
    "name": lambda record: record.name,
    "task": lambda record: "" if record.entry is None else str(record.entry.task),
    "state": lambda record: record.state,
    "last": lambda record: (record.entry and last_run(record.entry)) or EPOCH,
}

#: The orders of the dashboard; a leading ``-`` reverses one.
SORTS: Final = tuple(chain.from_iterable((order, f"-{order}") for order in ORDERS))

#: A cursor: a score, as Redis or Python formats it, a space and a key.
CURSOR: Final = re.compile(
    r"(-?(?:inf|[0-9]{1,20}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)) (.+)", re.S
)

NO_CURSOR: Final = "is not a valid cursor; start with the first page"

#: A key and its score in the sorted set.
Member = tuple[str, float]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A page of search results.

    Attributes:
        records: the entries on the page.
        now: the time of Redis in UNIX seconds; 0 if no entry was read.
        after: the cursor of the next page, None on the last page.
        cut: whether the search stopped after ``MAX_READ`` entries; ``after`` continues it.
        total: the number of matching entries on all pages, None if unknown.
    """

    records: list[status.Record]
    now: float = 0.0
    after: str | None = None
    cut: bool = False
    total: int | None = None


def like(text: str, pattern: str) -> bool:
    """Return whether a text contains ``pattern`` or, if this has ``*`` or ``?``, matches it.

    Case is ignored.
    """
    text, pattern = text.casefold(), pattern.casefold()
    return fnmatchcase(text, pattern) if set("*?") & set(pattern) else pattern in text


def literal_in(pattern: str, fold: bool = False) -> str:
    """Return the longest ASCII text that all matches of a wildcard pattern contain.

    With ``fold``, case is ignored, and letters that can equal a non-ASCII character don't count:
    for example, "ss" equals "ß".
    """
    # Stop at a bracket: its expression can match several characters.
    return max(LITERALS[fold].findall(pattern.partition("[")[0]), key=len, default="")


#: ASCII text without wildcards; with ``fold``, also without letters that can equal a non-ASCII
#: character.
LITERALS: Final = (
    re.compile(r"[ -)+->@-~]+"),
    re.compile(r"[ -)+->@BCDEGMOPQRUVXZ\\-`bcdegmopqruvxz{-~]+"),
)


def glob_of(pattern: str, fold: bool = False) -> str:
    """Return a Redis glob pattern for all keys whose name can match ``pattern``.

    It has wildcards only at its ends, as Redis is slow for some patterns with wildcards in the
    middle.
    """
    text = reading.GLOB_SPECIAL.sub(reading.ESCAPED, literal_in(pattern, fold))
    if fold:
        text = re.sub("[A-Za-z]", lambda found: f"[{found[0].upper()}{found[0].lower()}]", text)
    return f"*{text}*" if text else "*"


def page_of(
    store: Reading, after: Cursor | None = None, limit: int = BATCH, history: bool = False
) -> Page:
    """Return a page of entries in due order. Usually one round trip per shard."""
    if len(store.parts) == 1:
        return store.page(after, limit, history)
    name_of, due_order = store.keys.name_of, _due_order(store.keys.name_of, False)
    begin = None if after is None else due_order((after[1], score_in(after[0])))
    mean = limit / len(store.parts)
    size = min(limit, max(SMALLEST_PART, ceil(mean + 2 * sqrt(mean)))) + 1
    nows: list[float] = []

    def rows(part: Reading) -> Iterator[tuple[Any, Row]]:
        cursor = None if after is None else (after[0], part.keys.prefix + name_of(after[1]))
        while True:
            page = part.page(cursor, size, history)
            nows.append(page.now)
            for row in page.rows:
                order = due_order((row.key, row.due or 0.0))
                if begin is None or order > begin:
                    yield order, row
            cursor = page.after
            if cursor is None:
                return

    ordered = merge(*map(rows, store.parts), key=itemgetter(0))
    found = [row for _, row in islice(ordered, limit + 1)]
    last = found[limit - 1] if len(found) > limit else None
    return Page(max(nows), found[:limit], (last.score, last.key) if last else None)


def pages_of(
    store: Reading, after: Cursor | None = None, history: bool = False, limit: int = BATCH
) -> Iterator[Page]:
    """Yield the pages of a schedule in due order, from a cursor to the end.

    One page is in memory at a time. Takes one round trip per ``limit`` entries.
    """
    page = page_of(store, after, limit, history)
    yield page
    while page.after is not None:
        page = page_of(store, page.after, limit, history)
        yield page


class Search:
    """Reads the entries that match a filter, each exactly once."""

    def __init__(self, schedule: Schedule, filters: Filter) -> None:
        self._schedule = schedule
        self.store = store_of(schedule.app)
        #: Converts keys to entry names.
        self.keys = self.store.keys
        self.filters = filters
        #: The time of Redis at the last read, in UNIX seconds; 0 before.
        self.now = 0.0
        #: Hashes of the keys that were read, which need less memory than the keys.
        self._seen: set[int] = set()
        #: The number of members that :meth:`members` has yielded.
        self.count = 0
        #: Whether several pages were read: an entry may have moved to another page in between.
        self._moving = False

    def pages(self) -> Iterator[list[status.Record]]:
        """Yield the records in due order; see :meth:`~redbeat.Schedule.records`."""
        keys, states = self._matching_keys(), self.filters.states
        if keys is not None:
            yield from map(self.read, batches(keys))
            return
        if self.filters.parked:
            yield from map(self.records_on, self.walk(PARKED_START))
        if states not in ({status.FINISHED}, {status.NOT_SCHEDULED}):
            yield from map(self.records_on, self.walk(None))
            missed = self._missed() if self._moving else ()
            yield from map(self.read, batches(missed))
        yield from map(self.read, batches(self._outside()))

    def members(self) -> Iterator[Member]:
        """Yield the members that match by name and static flag, in any order.

        Takes one round trip per 2000 entries, and one more for a condition on the static flag.
        """
        filters, name_of, seen = self.filters, self.keys.name_of, set[int]()
        statics = set[str]() if filters.static is None else self.store.static_names()
        index = "failing" if filters.states == {status.FAILING} else "schedule"
        scans = self.store.scan(glob_of(filters.pattern or "", filters.fold), index)
        if filters.states == {status.QUARANTINED}:
            scans = iter([[(key, -1.0) for key in self.store.quarantined()]])
        inside = () if filters.states == {status.NOT_SCHEDULED} else chain.from_iterable(scans)
        for key, score in chain(inside, ((key, OUTSIDE) for key in self._outside())):
            name, number = name_of(key), hash(key)
            is_static = None if filters.static is None else name in statics
            if (
                is_static is filters.static
                and filters.matches(encodable(name), filters.pattern)
                and number not in seen
            ):
                seen.add(number)
                self.count += 1
                yield key, score

    def _outside(self) -> Iterator[str]:
        """Yield the keys that are not in the sorted set, which takes a scan of all keys."""
        filters = self.filters
        if filters.due_before is not None or status.NOT_SCHEDULED not in (filters.states or ()):
            return
        try:
            for part in self.store.parts:
                yield from chain.from_iterable(outside(part))
        except ResponseError as error:
            if is_retriable(error):
                raise
            logger.warning("redbeat: Cannot scan for entries that are not scheduled: %s", error)

    def read(self, keys: Sequence[str]) -> list[status.Record]:
        """Return the matching records in the order of ``keys``. Takes one round trip."""
        return self.records_on(self.store.read(keys))

    def _matching_keys(self) -> list[str] | None:
        """Return the keys that can match, in due order; None if all entries must be read."""
        if glob_of(self.filters.pattern or "") == "*":
            return None
        found = list(islice(self.members(), MAX_MATCHES + 1))
        if len(found) > MAX_MATCHES:
            return None
        return [key for key, _ in sorted(found, key=_due_order(self.keys.name_of, False))]

    def walk(self, after: Cursor | None, limit: int = BATCH) -> Iterator[Page]:
        """Yield pages up to the last one that can contain a match."""
        for page in pages_of(self.store, after, limit=limit):
            yield page
            if page.after is None or not self.filters.admits_score(score_in(page.after[0])):
                return
            self._moving = True

    def _missed(self) -> Iterator[str]:
        """Yield the keys of entries that were missed because they moved to an earlier page."""
        for key, score in chain.from_iterable(self.store.scan()):
            if self.filters.admits_score(score) and hash(key) not in self._seen:
                yield key

    def records_on(self, page: Page) -> list[status.Record]:
        filters, name_of, self.now = self.filters, self.keys.name_of, page.now
        new = {hash(row.key): row for row in page.rows}
        rows = [
            row
            for number, row in new.items()
            if number not in self._seen
            and filters.admits(encodable(name_of(row.key)), row.static, row.due)
            and filters.admits_texts(row)
        ]
        self._seen.update(new)
        found = records_in(self._schedule, page._replace(rows=rows))
        return list(filter(filters.takes, found))


def few(found: Iterable[T]) -> list[T]:
    """Raise :exc:`InvalidEntryError` for more than :data:`SORTED` items."""
    items = list(islice(found, SORTED + 1))
    if len(items) > SORTED:
        raise InvalidEntryError("sort", TOO_MANY)
    return items


def in_order(records: Iterable[status.Record], sort: str) -> list[status.Record]:
    """Return all records in one of the :data:`SORTS`, and by name."""
    value = ORDERS[sort.removeprefix("-")]
    return sorted(
        few(records),
        key=lambda record: (value(record), record.name),
        reverse=sort.startswith("-"),
    )


def browse(
    schedule: Schedule,
    filters: Filter,
    sort: str = "due",
    after: str | None = None,
    limit: int = 50,
    skip: int = 0,
) -> Found:
    """Return a page of entries in one of the :data:`SORTS`, from the cursor ``after``.

    The cursor is that of the previous page. Without one, the page begins after the first ``skip``
    entries, unless the filter has a condition on state or task. Raises :exc:`InvalidEntryError` for
    an invalid cursor.
    """
    search = Search(schedule, filters)
    if sort != "due":
        return _sorted(search, sort, str(skip) if after is None else after, limit)
    cursor, total, scores = _cursor(after), None, dict[str, str]()
    most = MAX_READ if filters.last_result is None else MAX_SKIMMED
    if filters.plain and (cursor is not None or not skip):
        pages = search.walk(cursor, limit)
    elif filters.one_state in WALKED:
        # Entries that are never due come first in the sorted set.
        pages = search.walk(cursor or (PARKED_START if filters.parked else None))
    else:
        first = 0 if filters.decodes or cursor is not None else skip
        members = _following(search, cursor, first + most + limit)[first:]
        scores = {key: repr(score) for key, score in members}
        pages = _pages(search, scores, BATCH if filters.decodes else limit)
        total = None if filters.decodes else search.count
    return replace(_first_page(search, pages, scores, limit, most), total=total)


def _following(search: Search, after: Cursor | None, most: int) -> list[Member]:
    """Return the first members after a cursor, by due time and name.

    Those that are never due come last, unless no others match.
    """
    place = _due_order(search.keys.name_of, search.filters.parked)
    members: Iterable[Member] = search.members()
    if after is not None:
        last = place((after[1], score_in(after[0])))
        members = (member for member in members if place(member) > last)
    return nsmallest(most, members, place)


def _pages(search: Search, scores: Mapping[str, str], size: int) -> Iterator[Page]:
    keys = [*scores]
    for batch in batches(keys, size):
        last = batch[-1]
        after = None if last == keys[-1] else (scores[last], last)
        yield search.store.read(batch)._replace(after=after)


def _first_page(
    search: Search, pages: Iterable[Page], scores: Mapping[str, str], limit: int, most: int
) -> Found:
    """Return the first ``limit`` entries that match; look at about ``most``.

    ``scores`` has the places of keys that may have moved since.
    """
    found, looked_at = list[status.Record](), 0
    for page in pages:
        found += search.records_on(page)
        looked_at += len(page.rows)
        if len(found) > limit:
            last = found[limit - 1].key
            places = {**{row.key: row.score for row in page.rows}, **scores}
            return Found(found[:limit], page.now, f"{places[last]} {last}")
        is_full = len(found) == limit == len(page.rows)
        if page.after is not None and (is_full or looked_at >= most):
            return Found(found, page.now, " ".join(page.after), len(found) < limit)
    return Found(found, search.now)


def record_of(schedule: Schedule, name: str) -> tuple[Page, status.Record | None]:
    """Return a page with only this entry, and its record; None for an unknown name.

    An unreadable entry has a record, too. Takes one round trip.
    """
    page = store_of(schedule.app).read([schedule._key(name)])
    return page, next(iter(records_in(schedule, page)), None)


def records_in(schedule: Schedule, page: Page) -> list[status.Record]:
    """Return the records of a page, without entries that were deleted during the search."""
    name_of = store_of(schedule.app).keys.name_of
    return [
        status.record_of(row, encodable(name_of(row.key)), page.now, schedule._entry_of)
        for row in page.rows
        if row.definition is not None or row.score
    ]


def _cursor(after: str | None) -> Cursor | None:
    if after is None:
        return None
    found = CURSOR.fullmatch(after)
    if found is None:
        raise InvalidEntryError("after", f"{after!r:.60} {NO_CURSOR}")
    return found[1], found[2]


def _due_order(name_of: Callable[[str], str], parked_first: bool) -> Callable[[Member], Any]:
    """Sort by due time and name; entries that are never due come first or last."""
    return lambda each: ((each[1] >= 0) is parked_first, each[1], bytes_of(name_of(each[0])))


def _sorted(search: Search, sort: str, after: str, limit: int) -> Found:
    """Return a page in another order than that of the sorted set: all matches are read.

    The cursor is the number of entries on all previous pages.
    """
    if not re.fullmatch("[0-9]{1,9}", after):
        raise InvalidEntryError("after", f"{after!r:.60} {NO_CURSOR}")
    keys = [key for key, _ in few(search.members())]
    matching = in_order(chain.from_iterable(map(search.read, batches(keys))), sort)
    first = int(after)
    following = str(first + limit) if first + limit < len(matching) else None
    return Found(matching[first : first + limit], search.now, following, total=len(matching))


def static_among(store: Store, names: Iterable[str]) -> set[str]:
    """Which of the ``names`` are those of static entries.

    One round trip per 500 names, for each shard.
    """
    pages = map(store.read, batches(map(store.keys.entry, names)))
    return {store.keys.name_of(row.key) for page in pages for row in page.rows if row.static}


def outside(store: Store) -> Iterator[list[str]]:
    """Keys of entries that are stored but not in the sorted set, and of unreadable ones.

    Two or three round trips per about 1000 keys of the database.
    """
    for rows in reading.rows_outside(store):
        yield [
            row.key
            for row in rows
            if reading.is_entry(store, row)
            or (row.definition is not None and reading.definition_of(row).get("name") is None)
        ]
