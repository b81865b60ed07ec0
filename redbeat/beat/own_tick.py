"""Sends one entry at a time, for programs with a ``tick`` or a mapping of entries of their own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from redbeat.beat.waits import should_log
from redbeat.codec.stored import text_of
from redbeat.config import key_aside
from redbeat.entries.history import History
from redbeat.entry import RedBeatSchedulerEntry, is_redbeat_entry
from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.storage.commands import ask, ask_aside
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Look, Row
from redbeat.storage.store import Store
from redbeat.storage.words import INBOX

from .own_code import OwnCode

if TYPE_CHECKING:
    from .beat import Beat

logger = get_logger("celery.beat")

#: The seconds to wait for an entry that cannot say when it is due, or was not looked at.
AGAIN: Final = 1.0

#: The error about an entry of another class whose ``is_due()`` raises.
NOT_AN_ENTRY: Final = (
    "beat: Entry %s of the schedule does not run: is_due() of class %s raised %s. An entry must be "
    "a RedBeatSchedulerEntry, or a ScheduleEntry of Celery"
)


def due_rows(store: Store) -> tuple[list[Row], float]:
    """Return the rows of all entries that are to be looked at and of the next one, and the time.

    Those that are due come first, in due order. The time is that of Redis, in UNIX seconds. Four
    round trips, and more for many entries.
    """
    now, keys = store.time(), store.keys
    inbox = ("ZRANGEBYSCORE", key_aside(keys.prefix, INBOX), "-inf", now)
    said = ask_aside(store.client, *inbox) or []
    due, following = ask(
        store.client,
        ("ZRANGEBYSCORE", keys.schedule, 0, now),
        ("ZRANGEBYSCORE", keys.schedule, f"({now!r}", "+inf", "LIMIT", 0, 1),
    )
    return read_rows(store, dict.fromkeys(map(text_of, (*due, *said, *following)))), now


class OwnTick:
    """Sends the entries that a program passes to ``maybe_due``, which may be of any class."""

    def __init__(self, beat: Beat, scheduler: Any, own: OwnCode) -> None:
        self._beat = beat
        self._scheduler = scheduler
        self._own = own
        #: How often in a row ``is_due()`` of entries of other classes has raised, by name.
        self._unanswered: Counter[str] = Counter()

    def run(self, entry: Any, options: dict[str, Any]) -> float | None:
        """Send an entry if it is due; return the seconds until it is due again, None for never.

        ``options`` are arguments of ``apply_async``.
        """
        stored = is_redbeat_entry(entry)
        due, seconds = self._scheduler.is_due(entry) if stored else self._ask(entry)
        if not (due or (stored and entry.put_up)):
            self._beat.hear_answers()
            return seconds
        look = Look(only=entry.key) if stored else None
        reply = self._beat.look(look)
        if reply is not None:
            self._beat.prepare(reply)
            if stored and not reply.rows:  # a new leader looks at nothing in its first turn
                reply = self._beat.look(look)
        if reply is None:
            return self._beat.stand_by()
        if not stored:
            after: float | None = self._scheduler.send_if_due(entry, **options)
            return after
        if not reply.rows:
            return AGAIN
        row = reply.rows[0]
        if row.definition is None and not row.problem:
            return self._send_unstored(entry, options) if due else seconds
        self._own.caller = entry, options
        try:
            score = self._beat.run_row(row.key, reply)
        finally:
            self._own.caller = None
        return self._beat.wait_for(score)

    def _ask(self, entry: Any) -> tuple[bool, float | None]:
        """Return what ``is_due()`` of an entry of another class returns; False if it raises."""
        name = str(getattr(entry, "name", entry))
        try:
            answer: tuple[bool, float | None] = self._scheduler.is_due(entry)
        except Exception as error:
            self._unanswered[name] += 1
            if self._unanswered[name] == 1 or should_log(self._unanswered[name]):
                logger.error(NOT_AN_ENTRY, name, type(entry).__name__, described(error))
            return False, AGAIN
        self._unanswered.pop(name, None)
        return answer

    def _send_unstored(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Send an entry that only the program has; its object remembers the run."""
        decision, count = entry.decision(), entry.total_run_count + 1
        seconds: float | None = self._scheduler.send_if_due(entry, **options)
        nominal = decision.anchor or decision.scheduled_at
        entry.adopt(History(entry.default_now(), count, nominal))
        return seconds
