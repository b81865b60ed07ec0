"""Stores and deletes calendars, and computes the next runs of the entries that use a calendar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from redbeat.calendar.steps import LIMIT, Steps
from redbeat.entries import calendars as stored_calendars
from redbeat.entries import edits, saving
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError, TooManyStepsError, described
from redbeat.printing import get_logger
from redbeat.schedules.calendars import Calendar
from redbeat.storage.store import store_of

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

logger = get_logger("celery.beat")

#: Maximum number of steps to check the entries that name a calendar: a few seconds.
CHECKED: Final = 8 * LIMIT


def save_calendar(schedule: Schedule, calendar: Calendar) -> int:
    """Store a calendar, and compute the next run of each entry that names the calendar.

    Returns the number of entries that name the calendar. After an interrupted call, call the
    function again. Raises the error of :func:`check_calendar`. Takes one round trip, and eight more
    round trips per 500 entries with calendars.
    """
    check_calendar(schedule, calendar)
    return store_calendar(schedule, calendar)


def store_calendar(schedule: Schedule, calendar: Calendar) -> int:
    """Store a calendar, and let a beat compute the next runs of the entries that name it.

    Returns the number of these entries.
    """
    store = store_of(schedule.app)
    stored_calendars.save(store, calendar.name, calendar.to_json())
    count = 0
    for batch in _users(schedule, calendar.name):
        edits.make_due(store, [entry.key for entry in batch])
        count += len(batch)
    return count


def check_calendar(
    schedule: Schedule, calendar: Calendar, others: Mapping[str, Calendar] | None = None
) -> bool:
    """Check whether the entries that name a calendar have a next run with it.

    Raises :exc:`InvalidEntryError` with the name of an entry whose next run could be computed until
    now, but not with ``calendar``. ``others`` are calendars that will be stored too. The check ends
    after :data:`CHECKED` steps; returns False if it did not reach all entries.
    """
    left = CHECKED
    planned = {**(others or {}), calendar.name: calendar}
    for batch in _users(schedule, calendar.name):
        names = {name for entry in batch for name in entry.policy.exclude}
        stored, _ = stored_calendars.readable_calendars(store_of(schedule.app), names)
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
    """Return why no next run can be computed with ``calendars``.

    Any other problem of the entry is left to the beats.
    """
    entry.use_calendars(calendars)
    try:
        entry.decision()
    except TooManyStepsError as error:
        return error
    except (ValueError, ArithmeticError):
        pass
    return None


def delete_calendar(schedule: Schedule, name: str) -> bool:
    """Delete a calendar that no entry names; return whether the calendar existed.

    Raises :exc:`InvalidEntryError` if an entry names the calendar. Takes one round trip, and two
    more round trips per 500 entries with calendars.
    """
    users = [entry for batch in _users(schedule, name) for entry in batch]
    if users:
        others = f" and {len(users) - 1} more" if users[1:] else ""
        problem = f"is the calendar of {users[0].name!r}{others}; remove the calendar from exclude"
        raise InvalidEntryError(name, problem)
    return stored_calendars.delete(store_of(schedule.app), name)


def _users(schedule: Schedule, name: str) -> Iterator[list[RedBeatSchedulerEntry]]:
    """Yield the entries that use the calendar ``name``, as lists of about 500 entries at most.

    RedBeat stores the keys of entries with calendars in a Redis set. Takes two round trips per 500
    keys of the Redis set.
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
            if name in entry.policy.exclude:
                users.append(entry)
        if users:
            yield users
