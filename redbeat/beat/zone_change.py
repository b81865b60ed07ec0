"""A change of the app's time zone: the next runs that depend on it are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.log import get_logger

from redbeat.calendar.zones import zone_key
from redbeat.entries.saving import save_batch
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.storage.records import Writing
from redbeat.storage.rows import Row
from redbeat.storage.store import Store

__all__ = ("follow_time_zone",)

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
        count, after = 0, None
        while True:
            page = store.page(after)
            batch = [entry for row in page.rows for entry in _dependent(row, app, make)]
            try:
                if batch:
                    save_batch(store, [(entry, _score_of(entry)) for entry in batch])
            except ConflictError:
                continue  # one was edited just now: read again what is stored
            count, after = count + len(batch), page.after
            yield
            if after is None:
                break
        logger.warning("beat: Computed the next runs of %d entries in %s", count, zone)
    store.note_time_zone(zone)


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
