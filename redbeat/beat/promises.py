"""Runs that are sent at most once: recorded first, in small groups, and published then."""

from __future__ import annotations

from collections import deque

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.storage.records import Claim

from .exchange import Exchange
from .hooks import Promise
from .keeper import Keeper

__all__ = ("Promises",)

logger = get_logger("celery.beat")

#: Runs recorded in one go, at the cost of a round trip: a beat that dies loses so many at most.
GROUP = 50


class Promises:
    """What one beat has promised to publish at most once."""

    def __init__(self, keeper: Keeper, exchange: Exchange) -> None:
        self._keeper = keeper
        self._exchange = exchange
        self._made: list[Promise] = []
        self._owed: deque[Promise] = deque()

    def add(self, promise: Promise) -> None:
        """Take a promise; a full group is kept at once, in one round trip."""
        self._made.append(promise)
        if len(self._made) >= GROUP:
            self.keep()

    def keep(self) -> None:
        """Record what was promised and publish what was recorded.

        No round trip when nothing is new, else one. What the broker could not even be offered is
        kept for the next call.
        """
        if self._made:
            self._exchange.hear()
        made, self._made = self._made, []
        if made:
            try:
                recorded = self._exchange.confirm([promise.done for promise in made])
            except (RedisError, OSError):
                for promise in made:
                    promise.report("may be lost: nobody knows whether it is recorded")
                raise
            self._owed += (promise for promise in made if promise.done.key in recorded)
        while self._owed:
            promise = self._owed.popleft()
            if not self._keeper.keep(promise):
                self._owed.appendleft(promise)
                break

    def withdraw(self) -> list[Claim]:
        """Return the claims of promises that are not recorded, and forget these."""
        made, self._made = self._made, []
        return [promise.claim for promise in made]

    def forsake(self) -> None:
        """Report what is recorded and will not be published any more."""
        while self._owed:
            self._keeper.forsake(self._owed.popleft())
