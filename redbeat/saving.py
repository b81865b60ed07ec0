"""How an entry is written: the last writer wins, but runs recorded meanwhile are kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from .due import DueEntry
from .errors import DecodeError, InvalidEntryError
from .history import History, encode_meta
from .occurrences import aware
from .records import CLOCK_AHEAD, HISTORY_DIFFERS, SAVED
from .store import Store
from .zones import from_timestamp

__all__ = ("SavedEntry",)

#: How often a write is tried again when the entry ran in between, before it insists.
SAVE_ATTEMPTS = 5


class SavedEntry(DueEntry):
    """The side of an entry that knows what of it is stored.

    It remembers the history it was made from. A write names that history, is refused where another
    one is stored by now, takes that one over but for what was changed here, and tries again.
    """

    def history_text(self) -> str:
        """Return the history as stored in ``meta``."""
        if self.total_run_count:
            return encode_meta(self.last_run_at, self.total_run_count)
        return encode_meta(self.last_run_at)

    def _check_history(self) -> None:
        last_run_at: Any = self.last_run_at
        count: Any = self.total_run_count
        if last_run_at is not None and not isinstance(last_run_at, datetime):
            problem = f"must be a datetime or None, not {last_run_at!r:.60}"
            raise InvalidEntryError("last_run_at", problem)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidEntryError(
                "total_run_count", f"must be a number of runs, 0 at least, not {count!r:.60}"
            )

    def _write(self, store: Store, key: str, definition: str = "", policy: str = "") -> None:
        """Store definition and history, or only the history when ``definition`` is empty.

        Nothing is written for an entry that is gone, unless there is a definition. One round trip,
        one more for each run that was recorded meanwhile, and one more for a new entry when the
        clock of this host is ahead of Redis: it counts from the time of Redis then.
        """
        self._check_history()
        for attempt in range(SAVE_ATTEMPTS + 1):
            fresh = self._seen_meta is None
            meta = self.history_text() if fresh or self._history_changed() else ""
            seen = None if attempt == SAVE_ATTEMPTS else self._seen_meta or ""
            code, stored, runtime = store.save(
                key, definition, policy, meta, "", seen, self._stored_score(), self._made_up()
            )
            if code == SAVED:
                self._saved(meta)
                return
            if code == HISTORY_DIFFERS:
                self._merge(stored, runtime)
            elif code == CLOCK_AHEAD:
                self.last_run_at = from_timestamp(float(stored))
                self._known_history = (self.last_run_at, self.total_run_count)
            elif definition:
                self._seen_meta = None  # deleted meanwhile: stored anew, with its history
            else:
                return

    def _made_up(self) -> datetime | None:
        """Return the instant from which a new entry counts when nobody has chosen it."""
        last_run_at = self.last_run_at
        if last_run_at is None or self._seen_meta is not None or self._history_changed():
            return None
        return aware(last_run_at)

    def _history_changed(self) -> bool:
        known, count = self._known_history
        return self.total_run_count != count or not _same(self.last_run_at, known)

    def _saved(self, meta: str) -> None:
        if not _same(self.last_run_at, self._known_history[0]):
            self.scheduled_at = None
        if meta:
            self._seen_meta = meta
        self._known_history = (self.last_run_at, self.total_run_count)

    def _merge(self, meta: str, runtime: str) -> None:
        """Take over the stored history, but for what was changed here."""
        known_last, known_count = self._known_history
        mine_last, mine_count = self.last_run_at, self.total_run_count
        try:
            stored = History.read(meta, runtime)
        except DecodeError:
            self._seen_meta = meta
            self._known_history = (mine_last, -1)  # unreadable: ours replaces it
            return
        self.adopt(stored, meta)
        if not _same(mine_last, known_last):
            self.last_run_at = mine_last
        if mine_count != known_count:
            self.total_run_count = mine_count


def _same(one: Any, other: Any) -> bool:
    """Whether two histories tell the same instant; both hours that a clock repeats differ."""
    if one is None or other is None:
        return one is other
    return aware(one) == aware(other)
