"""What can be done with an entry beside saving it: pause, resume, trigger, ask how it is."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from redbeat.config import ensure_conf
from redbeat.errors import InvalidEntryError
from redbeat.management.states import EntryStatus, Record
from redbeat.storage.reading import not_an_entry

from .access import store_of
from .nominal import nominal
from .occurrences import task_id_of
from .pauses import Pause, resumed
from .pausing import Texts, pause_entries, resume_entries
from .runs import Occurrence, read_history
from .saving import SavedEntry

__all__ = ("OperatedEntry",)

#: Triggered runs of one entry that may wait for a beat.
MAX_TRIGGERS: Final = 100

#: What becomes of a trigger, as ``trigger.lua`` returns it.
UNKNOWN, QUARANTINED, TOO_MANY, NOT_A_HASH = 0, -1, -2, -3


class OperatedEntry(SavedEntry):
    """The side of an entry that operators use. All of it is about the entry that is stored.

    Each verb raises KeyError when there is no such entry.
    """

    def pause(self, note: str | None = None, by: str | None = None) -> None:
        """Let the entry rest until :meth:`resume`; ``note`` says why, ``by`` who did it.

        It is then not enabled, for RedBeat 2 as well, and stays so when a beat starts, also if it
        is in ``beat_schedule``, until it is changed there. Triggered runs are still sent. What else
        was changed here is not saved. Two round trips, more when others write to it meanwhile.
        """
        self._stands(pause_entries(store_of(self.app), [self._own_key()], note, by))

    def resume(self) -> None:
        """End a pause, or enable an entry that is disabled.

        Of the runs it missed one is made up for, unless the entry says otherwise. Two round trips,
        more when others write to it meanwhile.
        """
        store, keys = store_of(self.app), [self._own_key()]
        self._stands(resume_entries(store, keys, self.app, type(self)))

    def _stands(self, changed: Mapping[str, Texts]) -> None:
        """Take over what a pause changed; a change of somebody else's still is one."""
        texts = changed.get(self._own_key())
        if texts is None:
            raise KeyError(self.name)
        self._pause = Pause.read(texts[1])
        self.enabled = self._pause is None
        if self._seen_texts[0] and resumed(*self._seen_texts) == resumed(*texts):
            self._seen_texts = texts

    def trigger(self) -> str:
        """Have a beat send the task once, as soon as it can; return the task id.

        The message has the header ``triggered``, and ``scheduled_at`` is when this was called. The
        schedule, the last run and the run count are not touched, and a paused entry runs too. Each
        call is a run; at most 100 wait for a beat. Raises :exc:`InvalidEntryError` for more, and
        for an entry in quarantine. One round trip.
        """
        run_id, key = uuid.uuid4().hex[:12], self._own_key()
        code = store_of(self.app).trigger(key, run_id, MAX_TRIGGERS)
        if code == UNKNOWN:
            raise KeyError(self.name)
        if code == QUARANTINED:
            raise InvalidEntryError("name", f"{self.name!r} is in quarantine; repair it first")
        if code == TOO_MANY:
            problem = f"{MAX_TRIGGERS} runs of {self.name!r} wait already; is a beat at work?"
            raise InvalidEntryError("trigger", problem)
        if code == NOT_A_HASH:
            raise InvalidEntryError("name", not_an_entry(key))
        return self.task_id_of(run_id)

    def task_id_of(self, run: datetime | str) -> str:
        """Return the task id of the run that is due at an instant, or that has this trigger id."""
        given = (self.options or {}).get("task_id")
        if given:
            return str(given)
        if isinstance(run, datetime):
            return self.own_task_id(run)
        return self.derived_id(f"trigger {run}")

    def own_task_id(self, scheduled_at: datetime) -> str:
        """Return the task id of the run that is due at an instant, whatever the options say."""
        return self.derived_id(nominal(scheduled_at).iso)

    def derived_id(self, occurrence: str) -> str:
        """Return the task id of an occurrence: an instant in UTC, ISO 8601, or ``trigger <id>``."""
        # The id of a trigger is random, and known to objects that were never loaded.
        identity = "" if occurrence.startswith("trigger ") else self._identity
        return task_id_of(ensure_conf(self.app).key_prefix, str(self.name), occurrence, identity)

    @property
    def history(self) -> list[Occurrence]:
        """The last runs, the latest first; ``redbeat_history_size`` at most. One round trip."""
        size = ensure_conf(self.app).history_size
        lines, self._identity = store_of(self.app).history(self._own_key())
        return read_history(lines, self.own_task_id)[:size]

    @property
    def status(self) -> EntryStatus:
        """What state the stored entry is in, and why. One round trip."""
        page = store_of(self.app).read([self._own_key()])
        row: Any = page.rows[0]
        if row.definition is None and row.score is None:
            raise KeyError(self.name)
        cls: Any = type(self)
        return Record.read(row, str(self.name), page.now, self.app, cls).status(row)
