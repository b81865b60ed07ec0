"""Quarantine entries that no beat can read, and release them when they change in Redis."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Final

from redbeat.codec.stored import bytes_of, record_in, string_in
from redbeat.printing import get_logger

from .reading import START
from .records import Claim
from .store import Store

__all__ = ("Quarantine",)

logger = get_logger("celery.beat")

#: Seconds between two reviews of the quarantine, and the maximum duration of a review in seconds.
REVIEW_INTERVAL: Final = 5.0
REVIEW_TIME: Final = 0.05

#: Maximum length of the reason for a quarantine in a log line or a note, in characters.
LONGEST_REASON: Final = 500

#: The value that Redis stores instead of a digest if the key of the entry is not a hash.
NO_HASH = "not-a-hash"


def digest_of(claim: Claim) -> str:
    """Return the digest of an entry's stored JSON; ``review.lua`` computes the same digest."""
    if claim.definition is None:
        return NO_HASH
    text = f"{claim.definition}\n{claim.policy}\n{claim.meta}"
    return hashlib.sha1(bytes_of(text), usedforsecurity=False).hexdigest()


class Quarantine:
    """The quarantined entries of one schedule; ``clock`` returns monotonic seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._reviewed_at = clock()
        self._cursor = START
        self._notes: list[tuple[str, str, str]] = []

    def add(self, claim: Claim, reason: str, now: float) -> None:
        """Log why an entry is quarantined, and queue the entry for the next :meth:`flush`.

        ``now`` is in UNIX seconds.
        """
        reason = string_in(reason, LONGEST_REASON)
        logger.error("beat: Entry %s is quarantined: %s", claim.key, reason)
        note = {"reason": reason, "since": now, "digest": digest_of(claim)}
        claim_id = "" if claim.definition is None else claim.id
        self._notes.append((claim.key, claim_id, json.dumps(note)))

    def flush(self) -> None:
        """Quarantine the queued entries.

        Takes one round trip per 500 queued entries, and no round trip if no entry is queued.
        """
        if self._notes:
            self._store.park(self._notes)
            self._notes = []

    def review(self, size: int) -> bool:
        """Release quarantined entries that changed in Redis; return whether any entry was released.

        ``size`` is the number of quarantined entries. Does nothing if the last review began less
        than :data:`REVIEW_INTERVAL` seconds ago. A review stops after :data:`REVIEW_TIME` seconds,
        and the next review continues with the remaining entries. Takes two round trips per 500
        quarantined entries.
        """
        began = self._clock()
        if not size or began - self._reviewed_at < REVIEW_INTERVAL:
            return False
        self._reviewed_at, released = began, False
        while True:
            self._cursor, notes = self._store.quarantine_page(self._cursor)
            for key in self._store.review((key, _digest_in(note)) for key, note in notes.items()):
                logger.info("beat: Entry %s was changed and leaves the quarantine", key)
                released = True
            if self._cursor == START or self._clock() - began >= REVIEW_TIME:
                return released


def _digest_in(note: str) -> str:
    """Return the digest in a JSON note, or "" if the note has no digest.

    If the note has no digest, a review treats the entry as changed, because no entry has the
    digest "".
    """
    return string_in(record_in(note).get("digest"), LONGEST_REASON)
