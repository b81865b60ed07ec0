"""Finds lost entries of a schedule, removes unused counters, and corrects wrong scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from celery import Celery
from celery.schedules import crontab
from celery.schedules import schedule as interval
from redis.exceptions import ResponseError

from redbeat.calendar.zones import from_timestamp, zone_key
from redbeat.connection.retrying import is_retriable
from redbeat.entries.decide import CLOCK_STEP, DISABLED, PARKED, aware
from redbeat.entries.history import Change, History
from redbeat.entries.save import rescore
from redbeat.entries.status import claimed_until
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, DecodeError
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.storage.reading import START, TIME_ZONE
from redbeat.storage.records import Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Page, Row

from .session import LONGEST_LEASE

logger = get_logger("celery.beat")


#: Seconds between two cleanups of the counters.
CLEANUP_INTERVAL: Final = 600.0


class StatsCleanup:
    """Removes the counters of deleted entries from Redis.

    Single entries have counters only while the schedule has at most ``max_entries`` entries.
    ``clock`` returns monotonic seconds.
    """

    def __init__(self, store: Store, max_entries: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._max_entries = max_entries
        self._clock = clock
        self._looked_at = clock()

    def run(self) -> None:
        """Remove the counters of deleted entries every :data:`CLEANUP_INTERVAL` seconds.

        Takes one round trip if the interval has passed since the last cleanup, else none.
        """
        if self._clock() - self._looked_at < CLEANUP_INTERVAL:
            return
        self._looked_at = self._clock()
        removed = self._store.tidy_stats(self._max_entries)
        logger.debug("beat: Removed %d metrics counters of deleted entries", removed)


#: Seconds between two looks of :class:`Sweep`.
PAGE_INTERVAL = 5.0

#: The number of disabled entries that :class:`Sweep` checks with each look.
DISABLED_PAGE = 200


class Sweep:
    """Finds entries of one schedule that no beat can claim.

    Each look finds disabled entries that another program has enabled without a change of their
    scores. A scan of all keys follows, page by page, when the sorted set was lost: it puts back the
    entries that RedBeat 3 had scheduled. The first beat on a schedule also scans once, and logs how
    many entries are stored but not scheduled.

    ``clock`` returns monotonic seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._looked_at = clock()
        self._cursor = self._mark = ""
        self._offset = 0
        self._outside: set[str] = set()
        self._permitted = True

    def run(self) -> bool:
        """Look if :data:`PAGE_INTERVAL` has passed, or scan the next page of keys.

        Returns True if the beat must not sleep now, because there is another page to scan or an
        entry to claim. Takes at most one round trip.
        """
        now = self._clock()
        waits = not self._cursor and now - self._looked_at < PAGE_INTERVAL
        if waits or not self._permitted:
            return False
        self._looked_at = now
        try:
            return self._scan_page()
        except ResponseError as error:
            if is_retriable(error):
                raise
            self._permitted = False
            logger.warning("beat: Cannot scan for lost entries: %s", error)
            return False

    def _scan_page(self) -> bool:
        page = self._store.sweep(self._cursor, self._mark, DISABLED, self._offset, DISABLED_PAGE)
        if page.mark != self._mark:  # the scan has started
            self._outside.clear()
        self._cursor = "" if page.cursor == START else page.cursor
        self._mark = page.mark if self._cursor else ""
        self._outside.update(page.orphans)
        self._offset += DISABLED_PAGE - len(page.enabled)
        if self._offset >= page.disabled:
            self._offset = 0
        for key in page.returned:
            logger.warning("beat: Entry %s was missing in the sorted set and is due now", key)
        for key in page.enabled:
            logger.info("beat: Entry %s was enabled by another program", key)
        if self._outside and not self._cursor:
            logger.warning(
                "beat: %s stored, but not scheduled: see celery redbeat doctor; "
                "celery redbeat resume NAME schedules an entry",
                plural(len(self._outside), "entry is", "entries are"),
            )
            self._outside.clear()
        return bool(page.returned or page.enabled or self._cursor)


def follow_time_zone(
    store: Store, app: Celery, entry_class: type[RedBeatSchedulerEntry]
) -> Iterator[None]:
    """Compute scores again if the last beat used another ``timezone`` or ``enable_utc``.

    Crontabs and relative intervals use the app's time zone if their entry has no time zone. If the
    app's time zone has changed, the stored scores of all entries in the app's time zone are wrong.
    This generator yields after each batch of entries. If the caller stops this generator before the
    end, the next call starts from the first batch.

    Takes one round trip if the time zone has not changed, or two at the first start of a beat.
    After a change of the time zone, takes two round trips, and two more per 500 entries.
    """
    zone = zone_key(app.timezone) or str(app.timezone)
    before = store.noted(TIME_ZONE)
    if before == zone:
        return
    if before:
        logger.warning("beat: The time zone changed from %s to %s", before, zone)

        def compute(page: Page) -> int:
            change = Change(before, None, from_timestamp(page.now))
            rows = (_zone_dependent(row, app, entry_class, change) for row in page.rows)
            batch = [entry for found in rows for entry in found]
            if batch:
                rescore(store, batch)
            return len(batch)

        count = 0
        for number in _each_page(store, compute):
            count += number
            yield
        entries = plural(count, "entry", "entries")
        logger.warning("beat: Computed the next runs of %s in %s", entries, zone)
    store.note(TIME_ZONE, zone)


def follow_clock(store: Store) -> Iterator[None]:
    """Make entries due at once if their last run, skipped run, claim or trigger is in the future.

    Call this function after the clock of Redis was set back, so that a beat decides on the affected
    entries by the corrected time. This generator yields after each batch of entries. Takes one
    round trip per 500 entries, and one more for each batch with changed entries.
    """

    def make_due(page: Page) -> int:
        keys = [row.key for row in page.rows if _has_future_history(row, page.now)]
        if keys:
            store.save_all([Writing(key, seen=None) for key in keys])
        return len(keys)

    count = 0
    for number in _each_page(store, make_due):
        count += number
        yield
    if count:
        entries = plural(count, "entry", "entries")
        logger.warning("beat: Made %s due: the last run lies in the future", entries)


def _each_page(store: Store, change: Callable[[Page], int]) -> Iterator[int]:
    """Call ``change`` for each page of the schedule; yield the number of changed entries."""
    after = None
    while True:
        page = store.page(after)
        try:
            count = change(page)
        except ConflictError:
            continue  # another program changed an entry of this page, so read the page again
        after = page.after
        yield count
        if after is None:
            return


def _has_future_history(row: Row, now: float) -> bool:
    """Return whether the last run, skipped run, claim or trigger of an entry is in the future."""
    step = now + CLOCK_STEP
    if row.definition is None or row.problem or row.score is None or row.score <= step:
        return False
    if row.trigger or claimed_until(row.claim) > step + LONGEST_LEASE:
        return True
    with suppress(DecodeError):
        last, _, scheduled_at = History.read(row.meta, row.runtime)
        if last is not None and scheduled_at is not None:
            return max(aware(last), scheduled_at).timestamp() > step
    return False


def _zone_dependent(
    row: Row, app: Celery, entry_class: type[RedBeatSchedulerEntry], change: Change
) -> Iterator[RedBeatSchedulerEntry]:
    """Yield the entry of a row, with ``change``, if its next run depends on the app's time zone."""
    if row.definition is None or row.problem or row.score is None or row.score == PARKED:
        return
    try:
        entry = entry_class.from_texts(app, row.definition, row.meta, row.policy, row.runtime)
        first = entry.timing_change or change._replace(start_time=entry.policy.start_time)
        entry.timing_change = first._replace(at=change.at)
    except Exception as error:
        # Log only at level DEBUG, because the next claim of the entry logs the error at level
        # ERROR.
        logger.debug("beat: Cannot load %s: %r", row.key, error)
        return
    schedule = entry.schedule
    relative = (
        isinstance(schedule, interval) and not isinstance(schedule, crontab) and schedule.relative
    )
    if entry.timezone is None and (isinstance(schedule, crontab) or relative):
        yield entry
