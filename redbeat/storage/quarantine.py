"""Quarantine entries that no beat can read, and release them when they change in Redis."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from redbeat.codec.stored import bytes_of, record_in, string_in
from redbeat.printing import get_logger

from .reading import START
from .records import Claim, calendars_read
from .store import Store

logger = get_logger("celery.beat")

#: Seconds between two reviews of the quarantine, and the maximum duration of a review in seconds.
REVIEW_INTERVAL: Final = 5.0
REVIEW_TIME: Final = 0.05

#: Maximum length of the reason for a quarantine in a log line or a note, in characters.
LONGEST_REASON: Final = 500

#: Maximum length of the names of the calendars of an entry in a note, with a digest.
LONGEST_NAMES: Final = 1 << 20

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
        if claim.calendars:
            note["calendars"] = claim.calendars
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
        quarantined entries, or three if some of them have calendars.
        """
        began = self._clock()
        if not size or began - self._reviewed_at < REVIEW_INTERVAL:
            return False
        self._reviewed_at, released = began, False
        while True:
            self._cursor, notes = self._store.quarantine_page(self._cursor)
            for key in self._store.review(self._digests(notes)):
                logger.info("beat: Entry %s was changed and leaves the quarantine", key)
                released = True
            if self._cursor == START or self._clock() - began >= REVIEW_TIME:
                return released

    def _digests(self, notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the key and the digest of each quarantined entry.

        The digest is "", which no entry has, if the note has none or if a calendar was changed.
        """
        records = {key: record_in(note) for key, note in notes.items()}
        read = {
            key: string_in(record.get("calendars"), LONGEST_NAMES)
            for key, record in records.items()
        }
        names = {key: text.split(",")[1:] for key, text in read.items()}
        wanted = {name for each in names.values() for name in each}
        texts = self._store.calendars(wanted) if wanted else {}
        for key, record in records.items():
            same = not read[key] or read[key] == calendars_read(texts, names[key])
            yield key, string_in(record.get("digest"), LONGEST_REASON) if same else ""
