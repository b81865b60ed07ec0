"""Which entries are looked for."""

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
    """What an entry must be like; None for whatever.

    ``due_before`` is UNIX seconds. See :meth:`~redbeat.schedule.Schedule.records`.
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
        """Return the filter of these arguments; raises :exc:`InvalidEntryError`."""
        before = None if due_before is None else aware(due_before).timestamp()
        wanted = (
            None if states is None else frozenset((states,) if isinstance(states, str) else states)
        )
        if wanted and not wanted <= set(STATES):
            problem = f"must be of {', '.join(STATES)}, not {', '.join(wanted - set(STATES))}"
            raise InvalidEntryError("states", problem)
        return cls(pattern, task, enabled, static, before, wanted)

    def admits(self, name: str, row: Row) -> bool:
        """Return whether a row may be wanted, as far as that can be told without decoding it."""
        if self.pattern is not None and not fnmatchcase(name, self.pattern):
            return False
        if self.static is not None and row.static is not self.static:
            return False
        if self.due_before is None:
            return True
        return row.score is not None and 0 <= row.score < self.due_before

    def takes(self, record: Record) -> bool:
        """Return whether a record whose row was admitted is wanted."""
        entry = record.entry
        if self.states is not None and record.state not in self.states:
            return False
        if self.enabled is not None and (entry is None or entry.enabled is not self.enabled):
            return False
        return self.task is None or (entry is not None and fnmatchcase(str(entry.task), self.task))

    def ends_before(self, after: Cursor) -> bool:
        """Return whether nothing that comes after this place is wanted."""
        score = float(after[0])
        return self.due_before is not None and (score < 0 or score >= self.due_before)


#: Members that are listed in one round trip.
LISTED: Final = 10_000

#: Entries that are read for one page of a filter, at most.
LOOKED_AT: Final = 2_000

#: Entries that are sorted by what only their texts tell, at most.
SORTED: Final = 5_000

#: The states of entries that are parked, once a beat has seen them.
PARKED_STATES: Final = frozenset({PAUSED, FINISHED, QUARANTINED})

#: What a page may be sorted by; ``-`` in front is the other way round.
SORTS: Final = ("due", "-due", "name", "-name", "task", "-task", "state", "-state", "last", "-last")

#: Those that keys and scores tell, so that any number of entries can be sorted.
CHEAP: Final = ("due", "name")

Member = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for.

    Attributes:
        name, task: what the name, the name of the task must hold; with ``*`` or ``?`` a pattern it
            must be like. Upper and lower case are the same.
        state: one of :data:`~redbeat.entries.status.STATES`, None for any.
        static: whether it is static, None for both.
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
        """Whether a page of it is a page of the sorted set."""
        return self == Query()

    def takes(self, record: Record) -> bool:
        """Return whether a record whose name was chosen is wanted."""
        if self.state is not None and record.state != self.state:
            return False
        if not self.task:
            return True
        return record.entry is not None and like(str(record.entry.task), self.task)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of entries.

    Attributes:
        records: the entries.
        now: the time of Redis, UNIX seconds; 0 when no entry was read.
        after: the place from which the next page goes on, None for the last one.
        cut: whether the page is not full because too much was looked at, or, without a place to go
            on from, because there are too many entries to sort.
    """

    records: list[Record]
    now: float = 0.0
    after: str | None = None
    cut: bool = False


def like(text: str, wanted: str) -> bool:
    """Return whether a text holds what is wanted, or is like it where that is a pattern."""
    text, wanted = text.casefold(), wanted.casefold()
    return fnmatchcase(text, wanted) if set("*?") & set(wanted) else wanted in text


def browse(schedule: Schedule, query: Query, after: str | None = None, limit: int = 50) -> Found:
    """Return a page of entries; ``after`` is what the page before gave.

    Raises :exc:`InvalidEntryError` for an ``after`` that no page gave.
    """
    if query.plain:
        page = store_of(schedule.app).page(_cursor(after), limit)
        place = f"{page.after[0]} {page.after[1]}" if page.after else None
        return Found(_records(schedule, page), page.now, place)
    members = _members(schedule, query)
    if query.sort.lstrip("-") not in CHEAP:
        return _sorted_by_text(schedule, query, members, after, limit)
    key = _order(query)
    members.sort(key=key, reverse=query.sort.startswith("-"))
    return _looked_through(schedule, query, _rest(members, key, query, after), limit)


def record_of(schedule: Schedule, name: str) -> tuple[Page, Record | None]:
    """Return the row of one entry in a page, and its record, None for an unknown one.

    One round trip. An entry that cannot be read has a record too.
    """
    page = store_of(schedule.app).read([schedule._key(name)])
    return page, next(iter(_records(schedule, page)), None)


def _records(schedule: Schedule, page: Page) -> list[Record]:
    """Return the records of a page, but for what was deleted since its key was listed."""
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
    """Return the score and the key in a place; raises :exc:`InvalidEntryError`."""
    if after is None:
        return None
    score, space, key = after.partition(" ")
    try:
        float(score)
    except ValueError:
        space = ""
    if not space:
        raise InvalidEntryError("after", f"{after!r:.60} is no place; begin with the first page")
    return score, key


def _members(schedule: Schedule, query: Query) -> list[Member]:
    """Return key and score of the members whose names are wanted, in no order.

    One that is moved while this goes on may be left out, or be there twice: it is a look.
    """
    store = store_of(schedule.app)
    prefix, statics = store.keys.prefix, set[str]()
    if query.static is not None:
        statics = store.static_names()
    found: dict[str, float] = {}
    for offset in range(0, 1 << 40, LISTED):
        chunk = store.ranked(offset, LISTED)
        for key, score in chunk:
            name = key.removeprefix(prefix)
            if query.name and not like(printable(name), query.name):
                continue
            if query.static is None or (name in statics) is query.static:
                found[key] = score
        if len(chunk) < LISTED:
            break
    return list(found.items())


def _order(query: Query) -> Callable[[Member], Any]:
    if query.sort.endswith("name"):
        return lambda member: member[0]
    parked_first = query.state in PARKED_STATES
    # With a score of its own, where one looks for it: what is paused is among the first.
    own = DISABLED if query.state == PAUSED else None
    return lambda member: (
        member[1] != own,
        (member[1] >= 0) is parked_first,
        member[1],
        member[0],
    )


def _rest(
    members: list[Member], key: Callable[[Member], Any], query: Query, after: str | None
) -> list[Member]:
    """Return what comes after a place, in members that are sorted."""
    cursor = _cursor(after)
    if cursor is None:
        return members
    place = key((cursor[1], float(cursor[0])))
    if query.sort.startswith("-"):
        return [member for member in members if key(member) < place]
    return [member for member in members if key(member) > place]


def _looked_through(schedule: Schedule, query: Query, members: list[Member], limit: int) -> Found:
    wanted, now = list[Record](), 0.0
    size = limit if query.state is None and not query.task else BATCH
    for looked_at, batch in enumerate(batches(members, size)):
        page = store_of(schedule.app).read([key for key, _ in batch])
        now = page.now
        wanted += filter(query.takes, _records(schedule, page))
        if len(wanted) > limit:
            return Found(wanted[:limit], now, _place(schedule, members, wanted[limit - 1]))
        last = looked_at * size + len(batch)
        if last < len(members) and (len(wanted) == limit or last >= LOOKED_AT):
            key, score = batch[-1]
            return Found(wanted, now, f"{score!r} {key}", len(wanted) < limit)
    return Found(wanted, now)


def _place(schedule: Schedule, members: list[Member], record: Record) -> str:
    prefix = store_of(schedule.app).keys.prefix
    key, score = next(m for m in members if printable(m[0].removeprefix(prefix)) == record.name)
    return f"{score!r} {key}"


def _sorted_by_text(
    schedule: Schedule, query: Query, members: list[Member], after: str | None, limit: int
) -> Found:
    """Return a page in an order that needs all entries; the place is the rank in that order."""
    if len(members) > SORTED:
        return Found([], cut=True)
    if after is not None and not after.isdecimal():
        raise InvalidEntryError("after", f"{after!r:.60} is no place; begin with the first page")
    wanted, now = list[Record](), 0.0
    for batch in batches([key for key, _ in members]):
        page = store_of(schedule.app).read(batch)
        now = page.now
        wanted += filter(query.takes, _records(schedule, page))
    by = BY[query.sort.lstrip("-")]
    wanted.sort(key=lambda record: (by(record), record.name), reverse=query.sort.startswith("-"))
    first = int(after or 0)
    place = str(first + limit) if first + limit < len(wanted) else None
    return Found(wanted[first : first + limit], now, place)


def _last(record: Record) -> Any:
    return (record.entry and last_run(record.entry)) or EPOCH


BY: Final[dict[str, Callable[[Record], Any]]] = {
    "task": lambda record: "" if record.entry is None else str(record.entry.task),
    "state": lambda record: record.state,
    "last": _last,
}
