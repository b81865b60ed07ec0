"""Counts of entries that are gone: removed from Redis now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from celery.utils.log import get_logger

from redbeat.storage.store import Store

__all__ = ("Upkeep",)

logger = get_logger("celery.beat")

#: Seconds between two looks.
INTERVAL: Final = 600.0


class Upkeep:
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
