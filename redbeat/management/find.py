"""Searches of entries: filters for ``Schedule.records``, and sorted pages for the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redbeat.calendar.zones import EPOCH
from redbeat.entries.decide import DISABLED, aware
from redbeat.entries.status import FINISHED, PAUSED, QUARANTINED, STATES, Record
from redbeat.errors import InvalidEntryError
from redbeat.presentation.describe import last_run
from redbeat.storage.quarantine import printable
from redbeat.storage.reading import BATCH, batches
from redbeat.storage.store import store_of
from redbeat.storage.wire import Cursor, Page, Row

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = ("SORTS", "Filter", "Found", "Query", "browse", "record_of")


class Filter(NamedTuple):
    """The conditions of :meth:`~redbeat.schedule.Schedule.records`; None means no condition.

    ``due_before`` is in UNIX seconds.
    """

    pattern: str | None = None
    task: str | None = None
    enabled: bool | None = None
    static: bool | None = None
    due_before: float | None = None
    states: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        pattern: str | None,
        task: str | None,
        enabled: bool | None,
        static: bool | None,
        due_before: datetime | None,
        states: Iterable[str] | None,
    ) -> Filter:
        """Return a filter; raise :exc:`InvalidEntryError` for an unknown state."""
        before = None if due_before is None else aware(due_before).timestamp()
        state_set = (
            None if states is None else frozenset((states,) if isinstance(states, str) else states)
        )
        if state_set and not state_set <= set(STATES):
            unknown = ", ".join(state_set - set(STATES))
            raise InvalidEntryError("states", f"must be among {', '.join(STATES)}, not {unknown}")
        return cls(pattern, task, enabled, static, before, state_set)

    def admits(self, name: str, row: Row) -> bool:
        """Return whether a row meets the conditions on name, static flag and due time."""
        if self.pattern is not None and not fnmatchcase(name, self.pattern):
            return False
        if self.static is not None and row.static is not self.static:
            return False
        if self.due_before is None:
            return True
        return row.score is not None and 0 <= row.score < self.due_before

    def takes(self, record: Record) -> bool:
        """Return whether a record meets the conditions on state, enabled flag and task."""
        entry = record.entry
        if self.states is not None and record.state not in self.states:
            return False
        if self.enabled is not None and (entry is None or entry.enabled is not self.enabled):
            return False
        return self.task is None or (entry is not None and fnmatchcase(str(entry.task), self.task))

    def ends_before(self, after: Cursor) -> bool:
        """Return whether no entry after this cursor can be due before ``due_before``."""
        score = float(after[0])
        return self.due_before is not None and (score < 0 or score >= self.due_before)


#: Number of members of the sorted set to read per round trip.
LIST_CHUNK: Final = 10_000

#: Maximum number of entries to read for one page.
MAX_READ: Final = 2_000

#: Maximum number of entries to sort by any other key, which requires reading all entries.
SORTED: Final = 5_000

#: The states whose entries have a negative score.
PARKED_STATES: Final = frozenset({PAUSED, FINISHED, QUARANTINED})

#: The sort keys; a leading ``-`` reverses the order.
SORTS: Final = ("due", "-due", "name", "-name", "task", "-task", "state", "-state", "last", "-last")

#: Sort keys that need only the sorted set, so the number of entries to sort is not limited.
CHEAP: Final = ("due", "name")

#: A member of the sorted set: the key of an entry and its score.
Member = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Query:
    """A search of the dashboard.

    Attributes:
        name: text that the name must contain, or a pattern with ``*`` or ``?``. Case is ignored.
        task: text that the task name must contain, or a pattern; see ``name``.
        state: one of :data:`~redbeat.entries.status.STATES`, or None for all states.
        static: True for static entries only, False for dynamic entries only, None for both.
        sort: one of :data:`SORTS`.
    """

    name: str = ""
    task: str = ""
    state: str | None = None
    static: bool | None = None
    sort: str = "due"

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise InvalidEntryError("sort", f"must be one of {', '.join(SORTS)}")
        if self.state is not None and self.state not in STATES:
            raise InvalidEntryError("state", f"must be one of {', '.join(STATES)}")

    @property
    def plain(self) -> bool:
        """Whether the query has no condition and sorts by due time.

        The pages of such a query can be read directly from the sorted set.
        """
        return self == Query()

    def takes(self, record: Record) -> bool:
        """Return whether a record meets the conditions on state and task."""
        if self.state is not None and record.state != self.state:
            return False
        if not self.task:
            return True
        return record.entry is not None and like(str(record.entry.task), self.task)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of search results.

    Attributes:
        records: the entries on the page.
        now: the time of Redis in UNIX seconds; 0 if no entry was read.
        after: the cursor of the next page, or None on the last page.
        cut: whether the page is incomplete. If ``after`` is set, the search stopped after
            ``MAX_READ`` entries. If ``after`` is None, there are more than ``SORTED`` entries to
            sort.
    """

    records: list[Record]
    now: float = 0.0
    after: str | None = None
    cut: bool = False


def like(text: str, pattern: str) -> bool:
    """Return whether ``text`` contains ``pattern``, or matches a pattern with ``*`` or ``?``."""
    text, pattern = text.casefold(), pattern.casefold()
    return fnmatchcase(text, pattern) if set("*?") & set(pattern) else pattern in text


def browse(schedule: Schedule, query: Query, after: str | None = None, limit: int = 50) -> Found:
    """Return a page of entries; ``after`` is the cursor that the previous page returned.

    Raises :exc:`InvalidEntryError` for an invalid cursor.
    """
    if query.plain:
        page = store_of(schedule.app).page(_cursor(after), limit)
        next_cursor = f"{page.after[0]} {page.after[1]}" if page.after else None
        return Found(_records(schedule, page), page.now, next_cursor)
    members = _members(schedule, query)
    if query.sort.lstrip("-") not in CHEAP:
        return _sorted_by_text(schedule, query, members, after, limit)
    sort_key = _member_sort_key(query)
    members.sort(key=sort_key, reverse=query.sort.startswith("-"))
    return _first_page(schedule, query, _members_after(members, sort_key, query, after), limit)


def record_of(schedule: Schedule, name: str) -> tuple[Page, Record | None]:
    """Return a page that contains only this entry, and its record (None for an unknown name).

    An unreadable entry has a record too. Takes one round trip.
    """
    page = store_of(schedule.app).read([schedule._key(name)])
    return page, next(iter(_records(schedule, page)), None)


def _records(schedule: Schedule, page: Page) -> list[Record]:
    """Return the records of a page; skip entries that were deleted during the search."""
    prefix = store_of(schedule.app).keys.prefix
    return [
        Record.read(
            row,
            printable(row.key.removeprefix(prefix)),
            page.now,
            schedule.app,
            schedule.entry_class,
        )
        for row in page.rows
        if row.definition is not None or row.score is not None
    ]


def _cursor(after: str | None) -> Cursor | None:
    """Return the score and the key that a cursor contains.

    Raises :exc:`InvalidEntryError` for an invalid cursor.
    """
    if after is None:
        return None
    score, space, key = after.partition(" ")
    try:
        float(score)
    except ValueError:
        space = ""
    if not space:
        raise InvalidEntryError(
            "after", f"{after!r:.60} is not a valid cursor; start with the first page"
        )
    return score, key


def _members(schedule: Schedule, query: Query) -> list[Member]:
    """Return the members that meet the conditions on name and static flag, in no special order.

    Takes one round trip per 10,000 members. If the score of a member changes between two round
    trips, that member may be missing.
    """
    store = store_of(schedule.app)
    prefix, statics = store.keys.prefix, set[str]()
    if query.static is not None:
        statics = store.static_names()
    members: dict[str, float] = {}
    for offset in range(0, 1 << 40, LIST_CHUNK):
        chunk = store.ranked(offset, LIST_CHUNK)
        for key, score in chunk:
            name = key.removeprefix(prefix)
            if query.name and not like(printable(name), query.name):
                continue
            if query.static is None or (name in statics) is query.static:
                members[key] = score
        if len(chunk) < LIST_CHUNK:
            break
    return list(members.items())


def _member_sort_key(query: Query) -> Callable[[Member], Any]:
    if query.sort.endswith("name"):
        return lambda member: member[0]
    parked_first = query.state in PARKED_STATES
    # Paused entries have the score DISABLED. A search for paused entries reads that score first.
    first_score = DISABLED if query.state == PAUSED else None
    return lambda member: (
        member[1] != first_score,
        (member[1] >= 0) is parked_first,
        member[1],
        member[0],
    )


def _members_after(
    members: list[Member], sort_key: Callable[[Member], Any], query: Query, after: str | None
) -> list[Member]:
    """Return the members that follow the cursor in sort order."""
    cursor = _cursor(after)
    if cursor is None:
        return members
    position = sort_key((cursor[1], float(cursor[0])))
    if query.sort.startswith("-"):
        return [member for member in members if sort_key(member) < position]
    return [member for member in members if sort_key(member) > position]


def _first_page(schedule: Schedule, query: Query, members: list[Member], limit: int) -> Found:
    """Return a page with the first ``limit`` of the sorted members that match the query."""
    matching, now = list[Record](), 0.0
    size = limit if query.state is None and not query.task else BATCH
    for batch_index, batch in enumerate(batches(members, size)):
        page = store_of(schedule.app).read([key for key, _ in batch])
        now = page.now
        matching += filter(query.takes, _records(schedule, page))
        if len(matching) > limit:
            next_cursor = _cursor_of(schedule, members, matching[limit - 1])
            return Found(matching[:limit], now, next_cursor)
        read_count = batch_index * size + len(batch)
        if read_count < len(members) and (len(matching) == limit or read_count >= MAX_READ):
            key, score = batch[-1]
            return Found(matching, now, f"{score!r} {key}", len(matching) < limit)
    return Found(matching, now)


def _cursor_of(schedule: Schedule, members: list[Member], record: Record) -> str:
    prefix = store_of(schedule.app).keys.prefix
    key, score = next(m for m in members if printable(m[0].removeprefix(prefix)) == record.name)
    return f"{score!r} {key}"


def _sorted_by_text(
    schedule: Schedule, query: Query, members: list[Member], after: str | None, limit: int
) -> Found:
    """Return a page in an order for which all matching entries must be read.

    The cursor is the number of entries on all previous pages.
    """
    if len(members) > SORTED:
        return Found([], cut=True)
    if after is not None and not after.isdecimal():
        raise InvalidEntryError(
            "after", f"{after!r:.60} is not a valid cursor; start with the first page"
        )
    matching, now = list[Record](), 0.0
    for batch in batches([key for key, _ in members]):
        page = store_of(schedule.app).read(batch)
        now = page.now
        matching += filter(query.takes, _records(schedule, page))
    value = RECORD_VALUES[query.sort.lstrip("-")]
    matching.sort(
        key=lambda record: (value(record), record.name), reverse=query.sort.startswith("-")
    )
    first = int(after or 0)
    next_cursor = str(first + limit) if first + limit < len(matching) else None
    return Found(matching[first : first + limit], now, next_cursor)


def _last_run_of(record: Record) -> Any:
    return (record.entry and last_run(record.entry)) or EPOCH


#: Sort key -> a function that returns the value of a record to sort by.
RECORD_VALUES: Final[dict[str, Callable[[Record], Any]]] = {
    "task": lambda record: "" if record.entry is None else str(record.entry.task),
    "state": lambda record: record.state,
    "last": _last_run_of,
}
