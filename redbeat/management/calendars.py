"""Stores and deletes calendars, and computes the next runs of the entries that use a calendar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from redbeat.calendar.steps import LIMIT, Steps
from redbeat.entries.calendars import readable_calendars
from redbeat.entries.save import make_due, rescore
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, InvalidEntryError, TooManyStepsError
from redbeat.printing import get_logger
from redbeat.schedules.calendars import Calendar
from redbeat.storage.reading import BATCH, START, batches
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
    return store_calendar(schedule, calendar, check_calendar(schedule, calendar))


def store_calendar(schedule: Schedule, calendar: Calendar, rescored: bool) -> int:
    """Store a calendar; return the number of entries that name it.

    If ``rescored`` is false, these entries become due at once, so that a beat computes their next
    runs.
    """
    store_of(schedule.app).save_calendar(calendar.name, calendar.to_json())
    users, count = _Users(schedule), 0
    for batch in users.of(calendar.name):
        if rescored:
            users.rescore(batch)
        else:
            make_due(store_of(schedule.app), batch)
        count += len(batch)
    return count


def check_calendar(
    schedule: Schedule, calendar: Calendar, others: Mapping[str, Calendar] | None = None
) -> bool:
    """Check whether the entries that name a calendar have a next run with it.

    Raises :exc:`InvalidEntryError` with the names of entries whose next run could be computed until
    now, but not with ``calendar``. ``others`` are calendars that will be stored too. The check ends
    after :data:`CHECKED` steps; returns False if it did not reach all entries.
    """
    users, left, bad = _Users(schedule), CHECKED, dict[str, TooManyStepsError]()
    planned = {**(others or {}), calendar.name: calendar}
    for batch in users.of(calendar.name):
        names = {name for entry in batch for name in entry.policy.exclude}
        stored, _ = readable_calendars(store_of(schedule.app), names)
        for entry in batch:
            with Steps() as steps:
                error = _problem(entry, {**stored, **planned})
            if error is not None and _problem(entry, stored) is None:
                bad[str(entry.name)] = error
            left -= LIMIT - steps.left
            if left < 0:
                break
        if left < 0:
            break
    for name, error in bad.items():
        more = f" and {len(bad) - 1} more" if bad.keys() - {name} else ""
        problem = f"would leave {name!r}{more} without a next run: {error.problem}"
        raise InvalidEntryError("calendar", problem)
    return left >= 0


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
    users = [entry for batch in _Users(schedule).of(name) for entry in batch]
    if users:
        others = f" and {len(users) - 1} more" if users[1:] else ""
        problem = f"is the calendar of {users[0].name!r}{others}; remove the calendar from exclude"
        raise InvalidEntryError(name, problem)
    return store_of(schedule.app).delete_calendar(name)


class _Users:
    """Finds the entries that use a calendar, and updates the scores of these entries."""

    def __init__(self, schedule: Schedule) -> None:
        self._app, self._entry_class = schedule.app, schedule.entry_class
        self._store = store_of(schedule.app)

    def of(self, name: str) -> Iterator[list[RedBeatSchedulerEntry]]:
        """Yield the entries that use the calendar ``name``, as lists of at most 500 entries.

        RedBeat stores the keys of entries with calendars in a Redis set. If an entry no longer has
        calendars, this method removes the key of the entry from the Redis set. Takes two round
        trips per 500 keys of the Redis set.
        """
        cursor = START
        while True:
            cursor, keys = self._store.calendar_users(cursor)
            for some in batches(keys, BATCH):
                entries, others = self._among(some)
                if others:
                    self._store.forget_calendar_users(others)
                users = [entry for entry in entries if name in entry.policy.exclude]
                if users:
                    yield users
            if cursor == START:
                return

    def _among(self, keys: list[str]) -> tuple[list[RedBeatSchedulerEntry], list[str]]:
        """Return the entries with calendars among ``keys``, and the keys of the other entries.

        A missing entry counts as an entry without calendars.
        """
        entries, others = [], []
        for row in self._store.read(keys).rows:
            if row.definition is None or '"exclude"' not in f"{row.policy}{row.definition}":
                others.append(row.key)
                continue
            texts = row.definition, row.meta, row.policy, row.runtime
            try:
                entries.append(self._entry_class.from_texts(self._app, *texts))
            except Exception as error:  # a beat quarantines the entry and logs the reason
                logger.debug("beat: Cannot load %s: %r", row.key, error)
        return entries, others

    def rescore(self, entries: list[RedBeatSchedulerEntry]) -> None:
        """Compute and store the scores of entries; a quarantined entry leaves the quarantine."""
        try:
            rescore(self._store, entries)
        except ConflictError:  # another program changed an entry, so load the entries again
            for entry in self._among([entry.key for entry in entries])[0]:
                self.rescore([entry])
