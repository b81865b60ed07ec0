"""Entries that cannot be understood: kept, reported, and tried again when their text changes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable

from celery.utils.log import get_logger

from .records import Claim
from .store import Store

__all__ = ("Quarantine", "shown")

logger = get_logger("celery.beat")

#: Seconds between two looks at what is set aside.
REVIEW_INTERVAL = 5.0

#: What stands for the digest of a key that is not a hash.
NO_HASH = "not-a-hash"


def shown(key: str) -> str:
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
        self._notes: list[tuple[str, str, str]] = []

    def add(self, claim: Claim, claim_id: str, reason: str, now: float) -> None:
        """Set an entry aside at the next :meth:`flush`; ``now`` in UNIX seconds."""
        logger.error("beat: Entry %s is quarantined: %s", shown(claim.key), reason)
        note = json.dumps({"reason": reason, "since": now, "digest": digest_of(claim)})
        self._notes.append((claim.key, "" if claim.definition is None else claim_id, note))

    def flush(self) -> None:
        """Write what was added. No round trip when nothing was, else one per 500."""
        if self._notes:
            self._store.park(self._notes)
            self._notes = []

    def review(self, size: int) -> bool:
        """Release what was repaired, at most every few seconds. Two round trips when it looks.

        ``size`` is the number of entries that are set aside. True when something was released.
        """
        if not size or self._clock() - self._reviewed_at < REVIEW_INTERVAL:
            return False
        self._reviewed_at = self._clock()
        digests = [(key, _digest_in(note)) for key, note in self._store.quarantined().items()]
        released = self._store.review(digests)
        for key in released:
            logger.info("beat: Entry %s was changed and leaves the quarantine", shown(key))
        return bool(released)


def _digest_in(note: str) -> str:
    try:
        return str(json.loads(note)["digest"])
    except (ValueError, TypeError, KeyError):
        return ""
