"""Scores that a change has made wrong: of the app's time zone, or of the clock of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.log import get_logger

from redbeat.calendar.zones import zone_key
from redbeat.entries.history import History
from redbeat.entries.occurrences import CLOCK_STEP, aware
from redbeat.entries.saving import save_batch
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, DecodeError
from redbeat.management.states import claimed_until
from redbeat.storage.records import Writing
from redbeat.storage.rows import Page, Row
from redbeat.storage.store import Store

from .exchange import LONGEST_LEASE

__all__ = ("follow_clock", "follow_time_zone")

logger = get_logger("celery.beat")


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
