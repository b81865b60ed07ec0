"""How an entry is written: the last writer wins, but runs recorded meanwhile are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from secrets import token_urlsafe
from time import time
from typing import Any

from celery.utils.log import get_logger

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage.records import (
    CLOCK_AHEAD,
    CONFLICT,
    HISTORY_DIFFERS,
    SAME,
    SAVED,
    Saved,
    Writing,
)
from redbeat.storage.store import Store
from redbeat.timing import asks_itself

from .due import PARKED, DueEntry, has_clock
from .history import History, encode_meta
from .merging import Texts, after_saved_anew
from .occurrences import aware, same_instant
from .pauses import Pause
from .planning import Plan

__all__ = ("SavedEntry", "new_identity", "save_batch", "save_batches")

logger = get_logger("celery.beat")

#: How often a write is tried again when the entry ran in between, before it insists.
SAVE_ATTEMPTS = 5

#: Seconds by which a score may differ from what was written: it has six decimals.
SCORE_PRECISION = 2e-6


class SavedEntry(DueEntry):
    """The side of an entry that knows what of it is stored.

    It remembers the history it was made from. A write names that history, is refused where another
    one is stored by now, takes that one over but for what was changed here, and tries again.
    An entry that has finished begins again where it is saved with another schedule or history.
    """

    #: What tells the stored entry from one of the same name that was deleted; "" for none.
    _identity = ""

    #: The identity that the entry gets if it is new, as long as it is not known to be saved.
    _new_identity = ""

    #: The definition and policy that a refused write found, None where there was none.
    _found_texts: Texts | None = None

    #: Last run and run count as they were before this write began the entry again, None for none.
    _before_arming: tuple[Any, int] | None = None

    #: Whether it stands in ``beat_schedule``; then its arguments may be computed at each dispatch.
    _static = False

    def _own_key(self) -> str:
        raise NotImplementedError

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

    def _write(self, store: Store, asked: Writing) -> None:
        """Store texts and history, or only the history when there is no definition.

        Nothing is written for an entry that is gone, unless there is a definition. One round trip,
        one more for each run that was recorded meanwhile, one more for a new object that changes
        what is stored under its name, and one more for a new entry when the clock of this host is
        ahead of Redis: it counts from the time of Redis then.
        """
        self._check_history()
        save_batch(store, [(self, asked)])

    def _with_history(self, asked: Writing, now: datetime, insist: bool) -> Writing:
        """Return what is asked for with history and score as they are at ``now``, UTC.

        With ``insist`` it is written whatever history is stored.
        """
        old, new = self._found_texts or self._seen_texts, (asked.definition, asked.policy)
        self._arm(old, new if asked.definition else old, now)
        fresh = self._seen_meta is None
        meta = self.history_text() if fresh or self._history_changed() else ""
        seen = None if insist else self._seen_meta or ""
        if asked.definition and not self._static:
            self._new_identity = self._new_identity or new_identity()
        key, definition, policy, _, runtime, *_, believed, history, _ = asked
        texts = (key, definition, policy, meta, runtime)
        score, since = self._score_at(now), self._made_up()
        return Writing(*texts, seen, score, since, believed, history, self._new_identity)

    def _score_at(self, now: datetime) -> float | None:
        """Return the score to store, by the clock of the schedule where it has one of its own."""
        usual = type(self).default_now is DueEntry.default_now and not has_clock(self.schedule)
        return self._stored_score(now if usual and self.run is None else None)

    def _written(self, writing: Writing, saved: Saved) -> bool:
        """Take note of what became of a write; False when it is to be tried again."""
        code = saved.code
        if code == SAVED:
            self._saved(writing, saved.identity)
        elif code == HISTORY_DIFFERS:
            self._merge(saved, (saved.definition, saved.policy))
        elif code == SAME:
            self._merge(saved, (writing.definition, writing.policy))
            if not self._history_changed() and self._is_right(saved.score):
                as_stored = writing._replace(meta=saved.meta, score=float(saved.score))
                self._saved(as_stored, saved.identity)
                return True
        elif code == CLOCK_AHEAD:
            self._count_from(from_timestamp(float(saved.score)))
        elif code == CONFLICT:
            raise ConflictError(str(self.name))
        elif writing.definition:
            self._seen_meta = None  # deleted meanwhile: stored anew, with its history
        else:
            return True
        return code == SAVED

    def _made_up(self) -> datetime | None:
        """Return the instant from which an entry counts when nobody has chosen it."""
        before = self._before_arming
        if before is not None and self.last_run_at is not None:
            chosen = same_instant(before[0], self.last_run_at)
            return None if chosen else aware(self.last_run_at)
        if self._seen_meta is not None or self.last_run_at is None or self._history_changed():
            return None
        return aware(self.last_run_at)

    def _count_from(self, now: datetime) -> None:
        self.last_run_at = now
        if self._before_arming is None:
            self._known_history = (now, self.total_run_count)

    def _history_changed(self) -> bool:
        known, count = self._known_history
        return self.total_run_count != count or not same_instant(self.last_run_at, known)

    def _is_right(self, stored: str) -> bool:
        """Whether a stored score is what would be written; one that is up by now is due at once."""
        if not stored:
            return False
        score, found = self._stored_score(), float(stored)
        if score is None:
            parked = found == PARKED and not self.verdict().due
            return parked or 0 <= found <= time()
        return abs(found - score) < SCORE_PRECISION

    def _saved(self, writing: Writing, identity: str | None) -> None:
        if not same_instant(self.last_run_at, self._known_history[0]):
            self.scheduled_at = None
        if writing.meta:
            self._seen_meta = writing.meta
        is_new = not (self._found_texts or self._seen_texts)[0]
        if writing.definition and not is_new and (writing.score is None or writing.score < 0):
            self._tell_if_finished()
        self._found_texts = self._before_arming = None
        if writing.definition:
            self._seen_texts = (writing.definition, writing.policy)
            self._identity = writing.identity if identity is None else identity
            self._new_identity = ""
            self._pause = Pause.of_entry(self)
        self._known_history = (self.last_run_at, self.total_run_count)

    def _arm(self, old: Texts, new: Texts, now: datetime) -> bool:
        """Have an entry that has finished begin again where it is saved so that it runs again.

        ``old`` are the stored definition and policy, empty for a new entry, and ``now`` is UTC.
        A run count that was changed here stands. Returns whether it begins again. No round trip.
        """
        last, count = self._known_history
        if not old[0] or not count or self.total_run_count != count:
            return False
        history = History(self.last_run_at, count, self.scheduled_at)
        rewritten = not same_instant(self.last_run_at, last)
        begun = after_saved_anew(history, old, new, now, rewritten, self._foreign_fields)
        if begun is history:
            return False
        self._before_arming = (self.last_run_at, count)
        self.last_run_at, self.total_run_count, self.scheduled_at = begun
        return True

    def _tell_if_finished(self) -> None:
        """Log that an enabled entry does not run although it was saved. No round trip."""
        if self.enabled and self._has_finished():
            logger.warning(
                "Entry %s stays finished: nothing is left to run. To run it again, save it with "
                "another schedule, max_runs or last_run_at, or with total_run_count = 0",
                self.name,
            )

    def _has_finished(self) -> bool:
        """Whether nothing is left after the last run, whatever the time is."""
        if self.runs_left == 0:
            return True
        anchor = self.anchor
        if anchor is None or asks_itself(self.schedule):
            return False
        policy, zone = self._rules()
        return Plan(self.schedule, zone, policy, str(self.name)).after(anchor) is None

    def _merge(self, found: Saved, texts: Texts) -> None:
        """Take over the stored history, but for what was changed here; note the stored texts."""
        meta, self._found_texts = found.meta, texts
        if self._before_arming is not None:
            self.last_run_at, self.total_run_count = self._before_arming
            self._before_arming = None
        known_last, known_count = self._known_history
        mine_last, mine_count = self.last_run_at, self.total_run_count
        try:
            stored = self._history_in(meta, found.runtime)
        except DecodeError:
            self._seen_meta = meta
            self._known_history = (mine_last, -1)  # unreadable: ours replaces it
            return
        self.adopt(meta, *stored)
        if not same_instant(mine_last, known_last):
            self.last_run_at = mine_last
        if mine_count != known_count:
            self.total_run_count = mine_count


def new_identity() -> str:
    """Return the identity of a new entry."""
    return token_urlsafe(6)


#: Entries and what is asked to be written of them, at most 500.
Batch = Sequence[tuple[SavedEntry, Writing]]


def save_batches(store: Store, batches: Iterable[Batch]) -> None:
    """Write entries whose histories are valid; while Redis writes a batch the next is made ready.

    One round trip for each batch, and more as in :func:`save_batch`. Raises
    :exc:`InvalidEntryError`; then nothing is written of that batch, nor of those after it.
    """
    finish: Callable[[], None] | None = None
    for batch in batches:
        try:
            writings = ready(batch)
        finally:
            if finish is not None:
                finish()
        finish = partial(settle, store, batch, writings, store.begin_save_all(writings))
    if finish is not None:
        finish()


def save_batch(store: Store, asked: Batch, attempts: int = SAVE_ATTEMPTS) -> None:
    """Write entries whose histories are valid.

    One round trip, and one more when runs were recorded meanwhile, or when new objects change what
    is stored; some more where that goes on. Raises :exc:`InvalidEntryError`; then nothing is
    written.
    """
    writings = ready(asked, insist=not attempts)
    settle(store, asked, writings, partial(store.save_all, writings), attempts)


def ready(asked: Batch, insist: bool = False) -> list[Writing]:
    """Return what to write; with ``insist`` whatever history is stored."""
    now = datetime.now(UTC)  # once for all: in the zone of the app it takes a while
    return [entry._with_history(writing, now, insist) for entry, writing in asked]


def settle(
    store: Store,
    asked: Batch,
    writings: Sequence[Writing],
    answer: Callable[[], list[Saved]],
    attempts: int = SAVE_ATTEMPTS,
) -> None:
    """Take note of what became of each, and try those again that ran meanwhile."""
    tried = zip(asked, writings, answer(), strict=True)
    left = [item for item, writing, saved in tried if not item[0]._written(writing, saved)]
    if left and attempts:
        save_batch(store, left, attempts - 1)
