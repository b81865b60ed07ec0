"""The slow sweep: finds entries that the sorted set does not lead to."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from redbeat.connection.retrying import is_retriable
from redbeat.entries.due import DISABLED
from redbeat.storage.quarantine import shown
from redbeat.storage.store import BATCH, Store

__all__ = ("Sweep",)

logger = get_logger("celery.beat")

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
            logger.warning("beat: Entry %s had lost its place in the schedule", shown(key))
        for key in found.enabled:
            logger.info("beat: Entry %s was enabled by another program", shown(key))
        return bool(found.returned or found.enabled or (self._hurry and self._cursor))
