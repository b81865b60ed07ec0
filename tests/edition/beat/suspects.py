"""Finds the entry whose loading or sending ended a beat's process, and blames no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from redbeat.printing import get_logger
from tests.edition.storage.rows import Change, Hand
from tests.edition.words import HANDS

logger = get_logger("celery.beat")

#: Why an entry is set aside that beats had in hand alone when their processes ended.
ENDED_A_BEAT = "the processes of two beats ended while they had only this entry in hand"

#: After this number of beats that had it alone, an entry is set aside.
ENOUGH = 2


class Suspects:
    """The entries that a vanished beat had in hand.

    The beat after it looks at each of them alone, and notes that in Redis. An entry that two beats
    had alone when they vanished is set aside. A pod that was killed with entries in hand harms none
    of them, and hardly so if others are killed right after it.
    """

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._tokens: list[str] = []
        self._alone: Counter[str] = Counter()
        #: The entries to set aside without loading them.
        self.guilty: set[str] = set()

    def note(self, hands: Iterable[Hand]) -> None:
        """Take in the notes of vanished beats."""
        for token, keys, alone in hands:
            if token in self._tokens:
                continue
            self._tokens.append(token)
            self._keys += [key for key in keys if key not in self._keys]
            if alone:
                self._alone.update(keys)
                self.guilty.update(key for key in keys if self._alone[key] >= ENOUGH)
            else:
                logger.warning(
                    "beat: A beat vanished with %d entries in hand; looking at each of them alone",
                    len(keys),
                )

    def next(self) -> str:
        """Return the key of the entry to look at next, alone; "" if there is none."""
        return self._keys.pop() if self._keys else ""

    def looked_at(self, key: str) -> None:
        """Note that a program with a loop of its own has looked at an entry, alone."""
        if key in self._keys:
            self._keys.remove(key)

    def done(self) -> list[Change]:
        """Return the changes that forget the notes, once each entry was looked at."""
        if self._keys or not self._tokens:
            return []
        tokens, self._tokens = self._tokens, []
        self.guilty.clear()
        self._alone.clear()
        return [Change("", index=[["HDEL", HANDS, token] for token in tokens])]
