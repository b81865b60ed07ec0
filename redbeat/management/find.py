"""Searches of entries: filters for ``Schedule.records``, and sorted pages for the dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from heapq import nlargest, nsmallest
from itertools import chain, islice
from operator import gt, lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from redbeat.storage.store import store_of

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

logger = get_logger("celery.beat")


class Filter(NamedTuple):
    """A filter for :meth:`~redbeat.schedule.Schedule.records`; a field with None matches all.

    ``due_before`` is in UNIX seconds. If ``fold`` is true, names and tasks are compared with the
    patterns by :func:`like`, which ignores case.
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
            _check("states", state, status.STATES)
        _check("last_result", last_result, status.LAST_RESULTS)
        return cls(pattern, due_before=before, states=state_set, last_result=last_result, **others)

    def matches(self, text: str, pattern: str | None) -> bool:
        """Return whether a text matches a pattern; every text matches the pattern None."""
        if pattern is None:
            return True
        return like(text, pattern) if self.fold else fnmatchcase(text, pattern)

    def admits(self, name: str, static: bool, score: float | None) -> bool:
        """Return whether an entry meets the conditions on name, static flag and due time."""
        if not self.matches(name, self.pattern) or self.static not in (None, static):
            return False
        return self.admits_score(score)

    def admits_score(self, score: float | None) -> bool:
        """Return whether an entry with a given score can meet the conditions of the filter."""
        if self.due_before is not None:
            return score is not None and 0 <= score < self.due_before
        return score is None or score >= 0 or self.states != {status.SCHEDULED}

    def admits_texts(self, row: Row) -> bool:
        """Return whether what beats keep can have the last result; a row is decoded only then."""
        return self.last_result is None or f'"{self.last_result}"' in f"{row.state}{row.inbox}"

    def takes(self, record: status.Record) -> bool:
        """Return whether a record meets the conditions on what is stored in its hash."""
        entry = record.entry
        if self.last_result not in (None, record.last_result):
            return False
        if self.states is not None and record.state not in self.states:
            return False
        if self.enabled is not None and (entry is None or entry.enabled is not self.enabled):
            return False
        return self.task is None or (entry is not None and self.matches(str(entry.task), self.task))


def _check(field: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise InvalidEntryError(field, f"must be one of {', '.join(known)}")


#: The cursor that comes before all entries that are never due.
PARKED_START: Final[Cursor] = "-1e300", ""

#: Maximum number of matching names in memory.
MAX_MATCHES: Final = 20_000

#: Maximum number of entries to read for one page, and of those that are not decoded.
MAX_READ: Final = 2_000
MAX_SKIMMED: Final = 20_000

#: Maximum number of entries to sort by a value that the sorted set lacks, because all entries are
#: read before the sort.
SORTED: Final = 5_000

#: The states whose entries have a negative score.
PARKED_STATES: Final = frozenset({status.PAUSED, status.FINISHED, status.QUARANTINED})

#: The states whose entries the dashboard looks for in due order, as no side key lists them.
WALKED: Final = (status.SCHEDULED, status.RUNNING, status.PAUSED, status.FINISHED)

#: The score in cursors for entries that are not in the sorted set.
OUTSIDE: Final = float("-inf")

#: The sort keys; a leading ``-`` reverses the order.
SORTS: Final = ("due", "-due", "name", "-name", "task", "-task", "state", "-state", "last", "-last")

#: The sort keys for which the number of entries is not limited, because no entries are read before
#: the sort.
CHEAP: Final = ("due", "name")

#: Maximum number of characters of a search text. A search compares the text with the names of all
#: entries, so a long text would be slow.
MAX_SEARCH: Final = 500

#: Matches a cursor, which consists of a score (as formatted by Redis or Python), a space and a key.
CURSOR: Final = re.compile(
    r"(-?(?:inf|[0-9]{1,20}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)) (.+)", re.S
)

NO_CURSOR: Final = "is not a valid cursor; start with the first page"

#: A member of the sorted set: the key of an entry and its score.
Member = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Query:
    """A search of the dashboard.

    Attributes:
        name: text that the entry name must contain, or a pattern with ``*`` or ``?``; case is
            ignored.
        task: text that the task name must contain, or a pattern as in ``name``.
        state: one of :data:`~redbeat.entries.status.STATES`, or None for all states.
        static: whether to find static (true) or dynamic (false) entries, or None for all entries.
        last_result: one of :data:`~redbeat.entries.status.LAST_RESULTS`, or None for all.
        sort: one of :data:`SORTS`.
    """

    name: str = ""
    task: str = ""
    state: str | None = None
    static: bool | None = None
    sort: str = "due"
    last_result: str | None = None

    def __post_init__(self) -> None:
        for field, text in (("name", self.name), ("task", self.task)):
            if len(text) > MAX_SEARCH:
                raise InvalidEntryError(field, f"must have at most {MAX_SEARCH} characters")
        _check("sort", self.sort, SORTS)
        _check("state", self.state, status.STATES)
        _check("last_result", self.last_result, status.LAST_RESULTS)

    @property
    def plain(self) -> bool:
        """Whether the query has no condition and sorts by due time.

        The pages of a plain query can be read directly from the sorted set.
        """
        return self == Query()

    @property
    def filters(self) -> Filter:
        """The conditions of the query as a :class:`Filter`."""
        states = frozenset({self.state}) if self.state else None
        texts = self.name or None, self.task or None
        return Filter(*texts, None, self.static, None, states, True, self.last_result)

    @property
    def decodes(self) -> bool:
        """Whether the conditions can be checked only on decoded entries."""
        return self.state is not None or bool(self.task) or self.last_result is not None


@dataclass(frozen=True, slots=True)
class Found:
    """A page of search results.

    Attributes:
        records: the entries on the page.
        now: the time of Redis in UNIX seconds; 0 if no entry was read.
        after: the cursor of the next page, or None on the last page.
        cut: whether the page is incomplete: because the search stopped after ``MAX_READ`` entries
            (``after`` is set), or because there are more than ``SORTED`` entries to sort
            (``after`` is None).
        total: the number of matching entries on all pages, or None if unknown.
    """

    records: list[status.Record]
    now: float = 0.0
    after: str | None = None
    cut: bool = False
    total: int | None = None


def like(text: str, pattern: str) -> bool:
    """Return whether ``text`` contains ``pattern``, or matches a pattern with ``*`` or ``?``."""
    text, pattern = text.casefold(), pattern.casefold()
    return fnmatchcase(text, pattern) if set("*?") & set(pattern) else pattern in text


def literal_in(pattern: str, fold: bool = False) -> str:
    """Return the longest ASCII text that all matches of a wildcard pattern contain.

    If ``fold`` is true, case is ignored, and the result does not contain letters that can equal a
    non-ASCII character. For example, "ss" equals "ß" if case is ignored.
    """
    # A bracket expression can match several characters, so only the text before the bracket is
    # used.
    return max(LITERALS[fold].findall(pattern.partition("[")[0]), key=len, default="")


#: Patterns that match ASCII text without wildcards. The second pattern, which is used if ``fold``
#: is true, also excludes the letters that can equal a non-ASCII character.
LITERALS: Final = (
    re.compile(r"[ -)+->@-~]+"),
    re.compile(r"[ -)+->@BCDEGMOPQRUVXZ\\-`bcdegmopqruvxz{-~]+"),
)


def glob_of(pattern: str, fold: bool = False) -> str:
    """Return a Redis glob pattern that matches all keys whose name can match ``pattern``.

    The glob pattern has wildcards only at its ends, because Redis is slow for some patterns with
    wildcards in the middle.
    """
    text = reading.GLOB_SPECIAL.sub(reading.ESCAPED, literal_in(pattern, fold))
    if fold:
        text = re.sub("[A-Za-z]", lambda found: f"[{found[0].upper()}{found[0].lower()}]", text)
    return f"*{text}*" if text else "*"


def pages_of(store: Reading, after: Cursor | None = None, history: bool = False) -> Iterator[Page]:
    """Yield the pages of a schedule in due order, from a cursor to the end.

    Only one page is in memory at a time. Takes one round trip per 500 entries.
    """
    page = store.page(after, history=history)
    yield page
    while page.after is not None:
        page = store.page(page.after, history=history)
        yield page


class Search:
    """Reads the entries of a schedule that match a filter, each entry exactly once."""

    def __init__(self, schedule: Schedule, filters: Filter) -> None:
        self._schedule = schedule
        self._store = store_of(schedule.app)
        #: Converts keys to entry names.
        self.keys = self._store.keys
        self._filters = filters
        #: The time of Redis at the last read, in UNIX seconds; 0 before the first read.
        self.now = 0.0
        #: The hashes of the keys that were read, which need less memory than the keys.
        self._seen: set[int] = set()
        #: The number of members that :meth:`members` has yielded.
        self.count = 0
        #: Whether several pages were read: an entry may have moved to another page between two
        #: reads.
        self._moving = False

    def pages(self) -> Iterator[list[status.Record]]:
        """Yield lists of records in due order; see :meth:`~redbeat.Schedule.records`."""
        keys, states = self._matching_keys(), self._filters.states
        if keys is not None:
            yield from map(self.read, batches(keys))
            return
        if states is not None and states <= PARKED_STATES:
            yield from map(self._new_records, self._walk(PARKED_START))
        if states not in ({status.FINISHED}, {status.NOT_SCHEDULED}):
            yield from map(self._new_records, self._walk(None))
            missed = self._missed() if self._moving else ()
            yield from map(self.read, batches(missed))
        yield from map(self.read, batches(self._outside()))

    def members(self) -> Iterator[Member]:
        """Yield the members that meet the conditions on name and static flag, in any order.

        Takes one round trip per 2000 entries, and one more round trip if the filter has a condition
        on the static flag.
        """
        filters, name_of, seen = self._filters, self.keys.name_of, set[int]()
        statics = set[str]() if filters.static is None else self._store.static_names()
        index = "failing" if filters.states == {status.FAILING} else "schedule"
        scans = self._store.scan(glob_of(filters.pattern or "", filters.fold), index)
        if filters.states == {status.QUARANTINED}:
            scans = iter([[(key, -1.0) for key in self._store.quarantined()]])
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
        """Yield the keys that are not in the sorted set, for which all keys must be scanned."""
        filters = self._filters
        if filters.due_before is not None or status.NOT_SCHEDULED not in (filters.states or ()):
            return
        try:
            for part in self._store.parts:
                yield from chain.from_iterable(reading.outside(part))
        except ResponseError as error:
            if is_retriable(error):
                raise
            logger.warning("redbeat: Cannot scan for entries that are not scheduled: %s", error)

    def read(self, keys: Sequence[str]) -> list[status.Record]:
        """Return the matching records in the order of ``keys``. Takes one round trip."""
        return self._new_records(self._store.read(keys))

    def _matching_keys(self) -> list[str] | None:
        """Return the keys that can match the pattern, in due order.

        Returns None if all entries must be read.
        """
        if glob_of(self._filters.pattern or "") == "*":
            return None
        found = list(islice(self.members(), MAX_MATCHES + 1))
        if len(found) > MAX_MATCHES:
            return None
        return [key for key, _ in sorted(found, key=_due_order(self.keys.name_of, False))]

    def _walk(self, after: Cursor | None) -> Iterator[Page]:
        """Yield pages from a cursor to the last page that can contain a match."""
        for page in pages_of(self._store, after):
            yield page
            if page.after is None or not self._filters.admits_score(score_in(page.after[0])):
                return
            self._moving = True

    def _missed(self) -> Iterator[str]:
        """Yield the keys of entries that were not read because they moved to an earlier page."""
        for key, score in chain.from_iterable(self._store.scan()):
            if self._filters.admits_score(score) and hash(key) not in self._seen:
                yield key

    def _new_records(self, page: Page) -> list[status.Record]:
        """Return the matching records of a page, without entries that were already read."""
        filters, name_of, self.now = self._filters, self.keys.name_of, page.now
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


#: Maps the name of each sort order to a function that returns the value of a record to sort by.
ORDERS: Final[dict[str, Callable[[status.Record], Any]]] = {
    "name": lambda record: record.name,
    "task": lambda record: "" if record.entry is None else str(record.entry.task),
    "state": lambda record: record.state,
    "last": lambda record: (record.entry and last_run(record.entry)) or EPOCH,
}


def _record_sort_key(order: str) -> Callable[[status.Record], tuple[Any, str]]:
    return lambda record: (ORDERS[order](record), record.name)


def in_order(
    records: Iterable[status.Record], order: str, limit: int | None = None
) -> list[status.Record]:
    """Return the first ``limit`` records, sorted by ``order`` (see :data:`ORDERS`) and name.

    Only the records of the result are kept in memory.
    """
    key = _record_sort_key(order)
    return sorted(records, key=key) if limit is None else nsmallest(limit, records, key)


def browse(
    schedule: Schedule,
    query: Query,
    after: str | None = None,
    limit: int = 50,
    skip: int = 0,
) -> Found:
    """Return a page of entries; ``after`` is the cursor that the previous page returned.

    Without a cursor, the page begins after the first ``skip`` entries, unless the query has a
    condition on state or task. Raises :exc:`InvalidEntryError` for an invalid cursor.
    """
    if query.plain and (after is not None or not skip):
        page = store_of(schedule.app).page(_cursor(after), limit)
        next_cursor = " ".join(page.after) if page.after else None
        return Found(records_in(schedule, page), page.now, next_cursor)
    if query == Query(state=query.state) and query.state in WALKED:
        return _walked(schedule, query, _cursor(after), limit)
    search = Search(schedule, query.filters)
    members: Iterable[Member] = search.members()
    if query.sort.lstrip("-") not in CHEAP:
        if after is None and skip:
            after = str(skip)
        return _sorted_by_text(search, query, list(islice(members, SORTED + 1)), after, limit)
    sort_key = _member_sort_key(query, search.keys.name_of)
    take = nlargest if query.sort.startswith("-") else nsmallest
    if after is not None or query.decodes:
        skip = 0
    members = _members_after(members, sort_key, query, after)
    most = MAX_READ if query.last_result is None else MAX_SKIMMED
    following = take(skip + most + limit, members, sort_key)
    found = _first_page(search, following[skip:], limit, most, BATCH if query.decodes else limit)
    return found if query.decodes else replace(found, total=search.count)


def _walked(schedule: Schedule, query: Query, after: Cursor | None, limit: int) -> Found:
    """Return a page of the entries in a state, read from the sorted set in its own order.

    The entries that are never due are looked for where the sorted set has them.
    """
    begin = PARKED_START if query.state in PARKED_STATES else None
    found, scores = list[status.Record](), dict[str, str]()
    for page in islice(pages_of(store_of(schedule.app), after or begin), MAX_READ // BATCH):
        found += filter(query.filters.takes, records_in(schedule, page))
        scores |= {row.key: row.score for row in page.rows}
        if len(found) > limit:
            last = found[limit - 1].key
            return Found(found[:limit], page.now, f"{scores[last]} {last}")
    following = " ".join(page.after) if page.after else None
    return Found(found, page.now, following, following is not None)


def record_of(schedule: Schedule, name: str) -> tuple[Page, status.Record | None]:
    """Return a page with only the entry ``name``, and its record (None for an unknown name).

    An unreadable entry also has a record. Takes one round trip.
    """
    page = store_of(schedule.app).read([schedule._key(name)])
    return page, next(iter(records_in(schedule, page)), None)


def records_in(schedule: Schedule, page: Page) -> list[status.Record]:
    """Return the records of a page; skip entries that were deleted during the search."""
    name_of = store_of(schedule.app).keys.name_of
    return [
        status.record_of(row, encodable(name_of(row.key)), page.now, schedule._entry_of)
        for row in page.rows
        if row.definition is not None or row.score
    ]


def _cursor(after: str | None) -> Cursor | None:
    """Return the score and the key that a cursor contains.

    Raises :exc:`InvalidEntryError` for an invalid cursor.
    """
    if after is None:
        return None
    found = CURSOR.fullmatch(after)
    if found is None:
        raise InvalidEntryError("after", f"{after!r:.60} {NO_CURSOR}")
    return found[1], found[2]


def _cursor_at(member: Member) -> str:
    """Return the cursor of the page that begins after a member of the sorted set."""
    key, score = member
    return f"{score!r} {key}"


def _due_order(name_of: Callable[[str], str], parked_first: bool) -> Callable[[Member], Any]:
    """Return a sort key by due time and name; entries that are never due come first or last."""
    return lambda each: ((each[1] >= 0) is parked_first, each[1], bytes_of(name_of(each[0])))


def _member_sort_key(query: Query, name_of: Callable[[str], str]) -> Callable[[Member], Any]:
    if query.sort.endswith("name"):
        return lambda member: name_of(member[0])
    return _due_order(name_of, query.state in PARKED_STATES)


def _members_after(
    members: Iterable[Member], sort_key: Callable[[Member], Any], query: Query, after: str | None
) -> Iterable[Member]:
    """Return the members that follow the cursor in sort order."""
    cursor = _cursor(after)
    if cursor is None:
        return members
    position = sort_key((cursor[1], score_in(cursor[0])))
    follows = lt if query.sort.startswith("-") else gt
    return (member for member in members if follows(sort_key(member), position))


def _first_page(search: Search, members: list[Member], limit: int, most: int, size: int) -> Found:
    """Return a page with the first ``limit`` members that match the search, of ``most`` members.

    ``members`` must be sorted. Takes one round trip per ``size`` members.
    """
    matching, read_count = list[status.Record](), 0
    for batch in batches(members, size):
        matching += search.read([key for key, _ in batch])
        if len(matching) > limit:
            name_of = search.keys.name_of
            last = name_of(matching[limit - 1].key)
            member = next(each for each in members if name_of(each[0]) == last)
            return Found(matching[:limit], search.now, _cursor_at(member))
        read_count += len(batch)
        if read_count < len(members) and (len(matching) == limit or read_count >= most):
            return Found(matching, search.now, _cursor_at(batch[-1]), len(matching) < limit)
    return Found(matching, search.now)


def _sorted_by_text(
    search: Search, query: Query, members: list[Member], after: str | None, limit: int
) -> Found:
    """Return a page of entries in the order of a value that only the hashes contain.

    Reads all matching entries, in one round trip per batch of members. The cursor is the number of
    entries on all previous pages.
    """
    if len(members) > SORTED:
        return Found([], cut=True)
    if after is not None and not re.fullmatch("[0-9]{1,9}", after):
        raise InvalidEntryError("after", f"{after!r:.60} {NO_CURSOR}")
    matching = list(chain.from_iterable(map(search.read, batches(key for key, _ in members))))
    matching.sort(key=_record_sort_key(query.sort.lstrip("-")), reverse=query.sort.startswith("-"))
    first = int(after or 0)
    next_cursor = str(first + limit) if first + limit < len(matching) else None
    return Found(matching[first : first + limit], search.now, next_cursor, total=len(matching))
