"""Which entries are looked for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from redbeat.entries.decide import aware
from redbeat.errors import InvalidEntryError
from redbeat.storage.wire import Cursor, Row

from .states import STATES, Record

__all__ = ("Filter",)


class Filter(NamedTuple):
    """What an entry must be like; None for whatever.

    ``due_before`` is UNIX seconds. See :meth:`~redbeat.schedule.Schedule.records`.
    """

    pattern: str | None = None
    task: str | None = None
    enabled: bool | None = None
    static: bool | None = None
    due_before: float | None = None
    states: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        pattern: str | None,
        task: str | None,
        enabled: bool | None,
        static: bool | None,
        due_before: datetime | None,
        states: Iterable[str] | None,
    ) -> Filter:
        """Return the filter of these arguments; raises :exc:`InvalidEntryError`."""
        before = None if due_before is None else aware(due_before).timestamp()
        wanted = (
            None if states is None else frozenset((states,) if isinstance(states, str) else states)
        )
        if wanted and not wanted <= set(STATES):
            problem = f"must be of {', '.join(STATES)}, not {', '.join(wanted - set(STATES))}"
            raise InvalidEntryError("states", problem)
        return cls(pattern, task, enabled, static, before, wanted)

    def admits(self, name: str, row: Row) -> bool:
        """Return whether a row may be wanted, as far as that can be told without decoding it."""
        if self.pattern is not None and not fnmatchcase(name, self.pattern):
            return False
        if self.static is not None and row.static is not self.static:
            return False
        if self.due_before is None:
            return True
        return row.score is not None and 0 <= row.score < self.due_before

    def takes(self, record: Record) -> bool:
        """Return whether a record whose row was admitted is wanted."""
        entry = record.entry
        if self.states is not None and record.state not in self.states:
            return False
        if self.enabled is not None and (entry is None or entry.enabled is not self.enabled):
            return False
        return self.task is None or (entry is not None and fnmatchcase(str(entry.task), self.task))

    def ends_before(self, after: Cursor) -> bool:
        """Return whether nothing that comes after this place is wanted."""
        score = float(after[0])
        return self.due_before is not None and (score < 0 or score >= self.due_before)
