"""Stores and deletes calendars, and looks after the entries that use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from redbeat import Calendar, InvalidEntryError, RedBeatSchedulerEntry, TooManyStepsError
from redbeat.calendar.steps import LIMIT, Steps
from redbeat.config import key_aside
from redbeat.entries import changes, edits, saving
from redbeat.entries.calendars import readable_calendars
from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.storage import reading, rows, words
from redbeat.storage.store import Store, store_of

if TYPE_CHECKING:
    from redbeat.management.schedule import Schedule

logger = get_logger("celery.beat")

#: Maximum number of steps to check the entries with a calendar: a few seconds.
CHECKED: Final = 8 * LIMIT


def save_calendar(schedule: Schedule, calendar: Calendar) -> int:
    """Store a calendar, and compute the next run of each entry with it; return how many these are.

    Call it again if it was interrupted. Raises the error of :func:`check_calendar`. Takes one round
    trip, and eight more per 500 entries with calendars.
    """
    check_calendar(schedule, calendar)
    return store_calendar(schedule, calendar)


def store_calendar(schedule: Schedule, calendar: Calendar) -> int:
    """Store a calendar unchecked, and make its entries due; return how many there are."""
    store = store_of(schedule.app)
    write(store, calendar)
    count = 0
    for batch in _users(schedule, calendar.name):
        edits.make_due(store, [entry.key for entry in batch])
        count += len(batch)
    return count


def write(store: Store, calendar: Calendar) -> None:
    """Store a calendar. One round trip.

    The new version makes beats read the calendars again, and voids decisions by the old ones.
    Raises ``ResponseError`` if Redis refuses the write.
    """
    index = [
        ["HSET", words.CALENDAR_TEXTS, calendar.name, calendar.to_json()],
        ["SET", words.CALENDAR_VERSION, rows.new_mark()],
    ]
    reply = changes.apply(store, [rows.Change("", index=index)])
    if reply.side_error:
        raise ResponseError(reply.side_error)


def check_calendar(
    schedule: Schedule, calendar: Calendar, others: Mapping[str, Calendar] | None = None
) -> bool:
    """Check whether the entries with a calendar still have a next run.

    Raises :exc:`InvalidEntryError` with the name of an entry that has a next run as stored, but
    none with the new ``calendar``. ``others`` are calendars that will be stored too. Returns False
    if :data:`CHECKED` steps were not enough to check all entries.
    """
    left = CHECKED
    planned = {**(others or {}), calendar.name: calendar}
    for batch in _users(schedule, calendar.name):
        names = {name for entry in batch for name in entry.effective_policy.exclude}
        stored, _ = readable_calendars(store_of(schedule.app), names)
        for entry in batch:
            with Steps() as steps:
                error = _problem(entry, {**stored, **planned})
            if error is not None and _problem(entry, stored) is None:
                problem = f"would leave {str(entry.name)!r} without a next run: {error.problem}"
                raise InvalidEntryError("calendar", problem)
            left -= LIMIT - steps.left
            if left < 0:
                return False
    return True


def _problem(
    entry: RedBeatSchedulerEntry, calendars: Mapping[str, Calendar]
) -> TooManyStepsError | None:
    """Return why no next run is found in time; beats report all other problems."""
    entry.use_calendars(calendars)
    try:
        entry.decision()
    except TooManyStepsError as error:
        return error
    except (ValueError, ArithmeticError):
        pass
    return None


def delete_calendar(schedule: Schedule, name: str) -> bool:
    """Delete a calendar that no entry uses; return whether it existed.

    Raises :exc:`InvalidEntryError` if an entry still uses it. Takes one round trip, and two more
    per 500 entries with calendars.
    """
    users = [entry for batch in _users(schedule, name) for entry in batch]
    if users:
        others = f" and {len(users) - 1} more" if users[1:] else ""
        problem = f"is the calendar of {users[0].name!r}{others}; remove the calendar from exclude"
        raise InvalidEntryError(name, problem)
    return remove(store_of(schedule.app), name)


def remove(store: Store, name: str) -> bool:
    """Delete a calendar that no entry uses; return whether it existed. One round trip per shard."""
    existed = False
    for part in store.parts:
        prefix = part.keys.prefix
        deleted, _ = reading.ask(
            part.client,
            ("HDEL", key_aside(prefix, words.CALENDAR_TEXTS), name),
            ("SET", key_aside(prefix, words.CALENDAR_VERSION), rows.new_mark()),
        )
        existed = bool(deleted) or existed
    return existed


def _users(schedule: Schedule, name: str) -> Iterator[list[RedBeatSchedulerEntry]]:
    """Yield the entries with a calendar in lists of about 500 at most.

    A Redis set has the keys of all entries with calendars. Takes two round trips per 500 keys.
    """
    store = store_of(schedule.app)
    for keys in store.calendar_users():
        users = list[RedBeatSchedulerEntry]()
        for row in store.read(keys).rows:
            try:
                entry = saving.entry_of(row, schedule.app, schedule.entry_class)
            except Exception as error:  # a beat quarantines the entry and logs the reason
                logger.debug("beat: Cannot load %s: %s", row.key, described(error))
                continue
            if name in entry.effective_policy.exclude:
                users.append(entry)
        if users:
            yield users
