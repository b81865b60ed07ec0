"""Entries that no beat can run: kept, reported, and tried again when their text changes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Final

from celery.utils.log import get_logger

from .records import Claim
from .store import Store

__all__ = ("Quarantine", "printable")

logger = get_logger("celery.beat")

#: Seconds between two looks at what is set aside, and seconds that one look takes at most.
REVIEW_INTERVAL: Final = 5.0
REVIEW_TIME: Final = 0.05

#: The cursor with which a pass over all of them begins, and ends.
START: Final = "0"

#: What stands for the digest of a key that is not a hash.
NO_HASH = "not-a-hash"


def printable(key: str) -> str:
    """Return a key as it can be logged: bytes that are not UTF-8 are escaped."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def digest_of(claim: Claim) -> str:
    """Return the digest of the texts of an entry, as ``review.lua`` computes it."""
    if claim.definition is None:
        return NO_HASH
    text = f"{claim.definition}\n{claim.policy}\n{claim.meta}"
    return hashlib.sha1(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


class Quarantine:
    """What is set aside in one schedule; ``clock`` gives monotonic seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._reviewed_at = clock()
        self._cursor = START
        self._notes: list[tuple[str, str, str]] = []

    def add(self, claim: Claim, reason: str, now: float) -> None:
        """Set an entry aside at the next :meth:`flush`; ``now`` in UNIX seconds."""
        logger.error("beat: Entry %s is quarantined: %s", printable(claim.key), reason)
        note = {"reason": reason, "since": now, "digest": digest_of(claim)}
        whose = "" if claim.definition is None else claim.id
        self._notes.append((claim.key, whose, json.dumps(note)))

    def flush(self) -> None:
        """Write what was added. No round trip when nothing was, else one per 500."""
        if self._notes:
            self._store.park(self._notes)
            self._notes = []

    def review(self, size: int) -> bool:
        """Release what was changed since it was set aside, at most every few seconds.

        ``size`` is the number of entries that are set aside. True when something was released. Two
        round trips per 500 entries, for :data:`REVIEW_TIME` at most: the next look goes on there.
        """
        began = self._clock()
        if not size or began - self._reviewed_at < REVIEW_INTERVAL:
            return False
        self._reviewed_at, released = began, False
        while True:
            self._cursor, notes = self._store.quarantine_page(self._cursor)
            for key in self._store.review((key, _digest_in(note)) for key, note in notes.items()):
                logger.info("beat: Entry %s was changed and leaves the quarantine", printable(key))
                released = True
            if self._cursor == START or self._clock() - began >= REVIEW_TIME:
                return released


def _digest_in(note: str) -> str:
    """Return the digest in a note, "" where there is none: no text has that."""
    try:
        return str(json.loads(note)["digest"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
