"""Maintenance: entries missing from the sorted set, counts of removed ones, wrong scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from redbeat.calendar.zones import zone_key
from redbeat.connection.retrying import is_retriable
from redbeat.entries.decide import CLOCK_STEP, DISABLED, aware
from redbeat.entries.history import History
from redbeat.entries.status import claimed_until
from redbeat.entry import RedBeatSchedulerEntry, save_batch
from redbeat.errors import ConflictError, DecodeError
from redbeat.storage.quarantine import printable
from redbeat.storage.records import Writing
from redbeat.storage.store import BATCH, Store
from redbeat.storage.wire import Page, Row

from .session import LONGEST_LEASE

__all__ = (
    "StatsCleanup",
    "Sweep",
    "follow_clock",
    "follow_time_zone",
)

logger = get_logger("celery.beat")


#: Seconds between two looks.
INTERVAL: Final = 600.0


class StatsCleanup:
    """Keeps the stats of one schedule small; ``clock`` gives monotonic seconds.

    ``most`` is how many entries there may be for them to be counted one by one.
    """

    def __init__(
        self, store: Store, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._most = most
        self._clock = clock
        self._looked_at = clock()

    def look(self) -> None:
        """Remove what is not needed, when it is time to. One round trip then."""
        if self._clock() - self._looked_at < INTERVAL:
            return
        self._looked_at = self._clock()
        removed = self._store.tidy_stats(self._most)
        logger.debug("beat: Removed %d counts of entries that are gone", removed)


#: Seconds between two looks, of one page each.
LOOK_INTERVAL = 5.0

#: Seconds from the beginning of one pass over all keys to the next, at least.
PASS_INTERVAL = 60.0

#: Disabled entries looked at in one go.
DISABLED_PAGE = 200

START = "0"


class Sweep:
    """Goes through the keys of one schedule, a page at a time.

    It finds hashes that have a definition and are no members of the schedule, because the sorted
    set was lost or a writer died between two commands. They become due now if they are found twice:
    a writer may be between the two. It also finds disabled entries that another program enabled
    without telling the schedule.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._looked_at = clock()
        self._pass_began = float("-inf")
        self._cursor = ""
        self._offset = 0
        self._found: list[str] = []
        self._found_before: list[str] = []
        self._hurry = False
        self._possible = True

    def hurry(self) -> None:
        """Begin a pass now, and go through it without pauses."""
        if self._possible:
            self._hurry, self._cursor, self._pass_began = True, START, self._clock()

    def look(self) -> bool:
        """Look at the next page when it is time to. One round trip then.

        True when another look, or a claim, is to follow at once.
        """
        now = self._clock()
        if now - self._looked_at >= LOOK_INTERVAL:
            self._looked_at = now
            self._found_before += self._found
            self._found = []
            if not self._cursor and now - self._pass_began >= PASS_INTERVAL:
                self._cursor, self._pass_began = START, now
        elif not self._found_before and not (self._hurry and self._cursor):
            return False
        if not self._possible:
            return False
        try:
            return self._look()
        except ResponseError as error:
            if is_retriable(error):
                raise
            self._possible = False
            logger.warning("beat: Cannot look for entries that were lost: %s", error)
            return False

    def _look(self) -> bool:
        known, self._found_before = self._found_before[:BATCH], self._found_before[BATCH:]
        found = self._store.sweep(self._cursor, DISABLED, self._offset, DISABLED_PAGE, known)
        self._cursor = "" if found.cursor == START else found.cursor
        self._found += found.orphans
        self._offset += DISABLED_PAGE - len(found.enabled)
        if self._offset >= found.disabled:
            self._offset = 0
        for key in found.returned:
            logger.warning("beat: Entry %s had lost its place in the schedule", printable(key))
        for key in found.enabled:
            logger.info("beat: Entry %s was enabled by another program", printable(key))
        return bool(found.returned or found.enabled or (self._hurry and self._cursor))


def follow_time_zone(store: Store, app: Any, make: type[RedBeatSchedulerEntry]) -> Iterator[None]:
    """Score entries again when the last beat had another ``timezone`` or ``enable_utc``.

    Crontabs without a time zone of their own and relative intervals are read on the app's clock, so
    the scores that a beat in another zone has stored are wrong. Yields after each batch; a
    caller that stops in between leaves the rest to the next call. One round trip, one more at the
    first start, and two per 500 entries after a change.
    """
    zone = zone_key(app.timezone) or str(app.timezone)
    before = store.time_zone()
    if before == zone:
        return
    if before:
        logger.warning("beat: The time zone changed from %s to %s", before, zone)

        def compute(page: Page) -> int:
            batch = [entry for row in page.rows for entry in _dependent(row, app, make)]
            if batch:
                save_batch(store, [(entry, _score_of(entry)) for entry in batch])
            return len(batch)

        count = 0
        for number in _each_page(store, compute):
            count += number
            yield
        logger.warning("beat: Computed the next runs of %d entries in %s", count, zone)
    store.note_time_zone(zone)


def follow_clock(store: Store) -> Iterator[None]:
    """Make entries due now that wait for a time of the future in which they seem to have run.

    A beat then decides on them by the present. Yields after each batch. One round trip per 500
    entries, two where one of them is made due.
    """

    def put_up(page: Page) -> int:
        keys = [row.key for row in page.rows if _waits_for_the_past(row, page.now)]
        if keys:
            store.save_all([Writing(key, seen=None) for key in keys])
        return len(keys)

    count = 0
    for number in _each_page(store, put_up):
        count += number
        yield
    if count:
        logger.warning(
            "beat: %d entries were at work while the clock was ahead, looking again", count
        )


def _each_page(store: Store, change: Callable[[Page], int]) -> Iterator[int]:
    """Go through the schedule; yield after each page how many entries were changed."""
    after = None
    while True:
        page = store.page(after)
        try:
            count = change(page)
        except ConflictError:
            continue  # one was edited just now: read again what is stored
        after = page.after
        yield count
        if after is None:
            return


def _waits_for_the_past(row: Row, now: float) -> bool:
    """Whether an entry has a run, a claim or a trigger of a time that the clock went back from."""
    step = now + CLOCK_STEP
    if row.definition is None or row.problem or row.score is None or row.score <= step:
        return False
    if row.trigger or claimed_until(row.claim) > step + LONGEST_LEASE:
        return True
    with suppress(DecodeError):
        last, _, scheduled_at = History.read(row.meta, row.runtime)
        if last is not None and scheduled_at is not None:
            return aware(last).timestamp() > step
    return False


def _score_of(entry: RedBeatSchedulerEntry) -> Writing:
    """Return what writes the score of an entry, unless another definition is stored by now."""
    return Writing(entry.key, believed=entry._seen_texts)


def _dependent(
    row: Row, app: Any, make: type[RedBeatSchedulerEntry]
) -> Iterator[RedBeatSchedulerEntry]:
    """Yield the entry of a row if its next run depends on the zone of the app."""
    if row.definition is None or row.problem or row.score is None or row.score < 0:
        return
    try:
        entry = make.from_texts(app, row.definition, row.meta, row.policy, row.runtime)
    except Exception as error:
        logger.debug("beat: Cannot read %s: %r", row.key, error)  # its claim reports it
        return
    when = entry.schedule
    relative = isinstance(when, interval) and not isinstance(when, crontab) and when.relative
    if entry.timezone is None and (isinstance(when, crontab) or relative):
        yield entry
