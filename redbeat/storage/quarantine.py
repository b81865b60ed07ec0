"""Entries that cannot be run: kept, reported, and tried again when their text changes.

One whose task was not allowed is also tried again when the list of allowed tasks is another.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from redbeat.allowlist import SETTING, TaskAllowlist

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

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        allowlist: TaskAllowlist | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._allowed = allowlist.digest if allowlist else ""
        self._reviewed_at = clock()
        self._notes: list[tuple[str, str, str]] = []

    def add(self, claim: Claim, claim_id: str, reason: str, now: float) -> None:
        """Set an entry aside at the next :meth:`flush`; ``now`` in UNIX seconds."""
        logger.error("beat: Entry %s is quarantined: %s", shown(claim.key), reason)
        note = {"reason": reason, "since": now, "digest": digest_of(claim)}
        if SETTING in reason:
            note["allowlist"] = self._allowed
        whose = "" if claim.definition is None else claim_id
        self._notes.append((claim.key, whose, json.dumps(note)))

    def flush(self) -> None:
        """Write what was added. No round trip when nothing was, else one per 500."""
        if self._notes:
            self._store.park(self._notes)
            self._notes = []

    def review(self, size: int) -> bool:
        """Release what may run by now, at most every few seconds. Two round trips when it looks.

        ``size`` is the number of entries that are set aside. True when something was released.
        """
        if not size or self._clock() - self._reviewed_at < REVIEW_INTERVAL:
            return False
        self._reviewed_at = self._clock()
        notes = {key: _decoded(note) for key, note in self._store.quarantined().items()}
        other_list = {key for key, note in notes.items() if self._is_of_another_list(note)}
        # No text has the digest "", so that the entry counts as changed.
        digests = [
            (key, "" if key in other_list else str(note.get("digest", "")))
            for key, note in notes.items()
        ]
        released = self._store.review(digests)
        for key in released:
            what = f"was refused by another {SETTING}" if key in other_list else "was changed"
            logger.info("beat: Entry %s %s and leaves the quarantine", shown(key), what)
        return bool(released)

    def _is_of_another_list(self, note: dict[str, Any]) -> bool:
        return SETTING in str(note.get("reason")) and note.get("allowlist") != self._allowed


def _decoded(note: str) -> dict[str, Any]:
    try:
        decoded = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
