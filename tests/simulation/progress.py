"""Finds beats that read an entry again and again although nothing changes.

Only replies to beats and stored hashes are examined. An entry was read if its definition is in a
reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

#: How often a beat may read an entry within one second without progress.
MOST_READS: Final = 20
#: Reads before the state of an entry is kept for comparison: a beat may record the last run and
#: wait for a change.
FIRST_READS: Final = 5
SECOND: Final = 1_000_000

#: The name in a definition.
NAME: Final = re.compile(rb'"name": ?"([^"\\]+)"')

#: The parts of what beats keep that change without progress: who has the entry, and what went
#: wrong.
NO_PROGRESS: Final = ("m", "hold", "failing", "running")


@dataclass(slots=True)
class Reads:
    """The reads of an entry by a beat since ``first``, in microseconds."""

    first: int
    count: int = 0
    before: dict[bytes, bytes] = field(default_factory=dict)


class Progress:
    """Counts how often each beat reads each entry.

    Arguments:
        stored: returns the hash of the entry with a name.
        found: called with the names of the beat and of the entry, once for each pair.
    """

    def __init__(
        self,
        stored: Callable[[str], dict[bytes, bytes]],
        found: Callable[[str, str], Any],
    ) -> None:
        self._stored, self._found = stored, found
        self._reads: dict[tuple[str, str], Reads] = {}
        self._reported: set[tuple[str, str]] = set()

    def replied(self, reader: str, reply: bytes, now: int) -> None:
        """Examine a reply to a process at ``now``, in microseconds."""
        if reader.startswith("beat"):
            for name in set(NAME.findall(reply)):
                self._read(reader, name.decode(), now)

    def _read(self, beat: str, name: str, now: int) -> None:
        reads = self._reads.get((beat, name))
        if reads is None or now - reads.first > SECOND:
            reads = self._reads[beat, name] = Reads(now)
        reads.count += 1
        if reads.count == FIRST_READS:
            reads.before = self._state(name)
        elif reads.count > FIRST_READS + MOST_READS:
            if reads.before == self._state(name) and (beat, name) not in self._reported:
                self._reported.add((beat, name))
                self._found(beat, name)
            del self._reads[beat, name]

    def _state(self, name: str) -> dict[bytes, bytes]:
        kept = dict(self._stored(name))
        if b"beat_state" in kept:
            state = json.loads(kept[b"beat_state"])
            parts = [item for item in state.items() if item[0] not in NO_PROGRESS]
            kept[b"beat_state"] = json.dumps(parts).encode()
        return kept
