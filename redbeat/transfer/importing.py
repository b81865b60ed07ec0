"""Imports entries into a schedule. Everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from redbeat import Calendar, DecodeError, InvalidEntryError, RedBeatSchedulerEntry, Schedule
from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import array_of
from redbeat.entries import changes, edits, saving
from redbeat.entries.calendars import readable_calendars
from redbeat.entries.history import Texts, new_identity
from redbeat.entries.state import Pause, State, runtime_of, with_runtime
from redbeat.management import apply, calendars, find
from redbeat.printing import printable
from redbeat.storage import reading, rows, store, words

from .incoming import Incoming, Problem, problem_of
from .jsonlines import pause_fields

#: What to do if Redis has a different entry of the same name.
ON_CONFLICT: Final = ("fail", "keep", "replace")

ACTIONS: Final = ("created", "changed", "unchanged", "kept", "removed")

#: The action for a different entry or calendar, with ``fail``.
CONFLICT: Final = "different"

#: Maximum lengths of a problem's position and text, in characters.
MAX_WHERE: Final = 200
MAX_PROBLEM: Final = 700


class Ready(NamedTuple):
    """A valid entry of a source, with its definition and policy as JSON."""

    incoming: Incoming
    entry: RedBeatSchedulerEntry
    texts: Texts

    def has_same_texts(self, row: rows.Row) -> bool:
        pauses = Pause.of_entry(self.entry), State.of(row).pause
        ours, stored = (pause and pause_fields(pause) for pause in pauses)
        return changes.texts_in(row) == self.texts and ours == stored

    def is_same(self, row: rows.Row) -> bool:
        """Return whether a stored entry equals this one, so that nothing has to be written."""
        incoming = self.incoming
        is_static = row.static or not incoming.static
        if not (self.has_same_texts(row) and is_static and incoming.meta in ("", row.meta or "")):
            return False
        stored, runtime = State.of(row), incoming.meta and incoming.runtime
        return not runtime or with_runtime(stored, runtime) == stored

    def change_to_show(self, action: str, row: rows.Row, score: float | None) -> apply.Change:
        """Return the change to show; ``score`` is the one to store, or the stored one."""
        incoming, more = self.incoming, {}
        if incoming.meta and incoming.meta != (row.meta or ""):
            more["meta"] = apply.Difference(row.meta or None, incoming.meta)
        if incoming.static and not row.static:
            more["static"] = apply.Difference(False, True)
        change = apply.change_of(action, row, self.entry, score)
        return change._replace(fields={**change.fields, **more})

    def change(self, row: rows.Row, now: float) -> rows.Change:
        """Return the change that stores the entry over a row; ``now`` is Redis's time."""
        if row.problem:
            raise InvalidEntryError("name", reading.not_an_entry(row.key))
        incoming, entry = self.incoming, copy(self.entry)
        state = State.of(row)
        if row.definition is None:
            state = State(identity=incoming.identity or ("" if incoming.static else new_identity()))
        meta, state = self._with_history(entry, row, state, now)
        state.pause = None if entry.enabled else Pause.of_entry(self.entry) or state.pause
        change = changes.editing(row, state, self.texts, meta or None)
        if incoming.history:
            change.set[words.HISTORY] = array_of(incoming.history)
            change.unset = tuple(field for field in change.unset if field != words.HISTORY)
        if incoming.static:
            change.index.append(["SADD", words.STATICS, str(entry.name)])
        change.add = saving.score_of(entry, state, datetime.now(UTC))
        return change

    def _with_history(
        self, entry: RedBeatSchedulerEntry, row: rows.Row, state: State, now: float
    ) -> tuple[str, State]:
        """Give the entry its history; return the ``meta`` to store ("" for none) and the state.

        If the source has no history, an existing entry keeps its own, and a new entry gets a new
        one. A finished entry starts again if the import changes its schedule, time zone, start or
        end, unless it changes its run history, too.
        """
        meta, is_new = self.incoming.meta, row.definition is None
        if meta:
            state = with_runtime(state, self.incoming.runtime or _runtime_of(entry))
            entry.recall(meta)
            entry.nominal_at = None if state.at is None else from_timestamp(state.at)
        elif not is_new:
            with suppress(DecodeError):  # a beat will quarantine the entry
                saving.recall(entry, row)
        restarts = meta in ("", row.meta) and saving.restart_if_finished(
            entry, self.texts, datetime.now(UTC), changes.texts_in(row)
        )
        if restarts or (is_new and not meta):
            if saving.is_ahead(entry, now):
                entry.last_run_at = from_timestamp(now)
            meta = entry.history_text()
            state = with_runtime(state, _runtime_of(entry))
        if meta:
            state.due, state.hold = None, None
        return meta, state


class Importer:
    """Imports the calendars and entries of a source into a schedule.

    ``on_conflict`` says what happens if Redis has a different entry or calendar of the same name:
    ``fail`` reports a conflict, ``keep`` keeps the stored one, ``replace`` overwrites it. If only
    the run history differs, ``fail`` reports nothing and keeps the stored entry. ``note`` is called
    with the planned change of each valid line, and with each entry to prune. ``skip`` is called
    with the problem of each invalid line; without it, :attr:`problems` collects them.

    A calendar must come before the entries that name it, or be stored already. The entries to write
    are kept in memory, at about 2 KB each.
    """

    def __init__(
        self,
        schedule: Schedule,
        on_conflict: str = "fail",
        note: Callable[[apply.Change], Any] | None = None,
        skip: Callable[[Problem], Any] | None = None,
    ) -> None:
        self._schedule = schedule
        self._store = store.store_of(schedule.app)
        self._on_conflict = on_conflict
        self._note, self._skip = note, skip
        self._names = set[str]()
        self.problems, self.conflicts = list[Problem](), list[Problem]()
        self.skipped = 0
        self.planned: list[Ready] = []
        self._calendars: dict[str, Calendar] = {}
        self._planned_calendars: list[Calendar] = []
        #: How many entries for each action, and how many calendars; in a dry run, as planned.
        self.written = dict.fromkeys((*ACTIONS, "calendars"), 0)

    def check(self, source: Iterable[Incoming], progress: Callable[[int], object] = int) -> None:
        """Check the whole source without writing anything.

        Fills :attr:`problems`, and :attr:`conflicts` with what has the name of a different entry or
        calendar in Redis. Takes one round trip per 500 lines, and one more per 500 stored calendars
        if the source defines or names one.
        """
        for batch in reading.batches(source):
            valid = list(filter(None, map(self._validated, self._entries_of(batch))))
            if valid:
                page = self._store.read([ready.entry.key for ready in valid])
                for ready, row in zip(valid, page.rows, strict=True):
                    self._plan(ready, row, page.now)
            progress(len(batch))

    def write(self, progress: Callable[[int], object] = int) -> None:
        """Write the planned calendars, then the planned entries.

        Takes two round trips per 500 entries, one more for each change of an entry in between, and
        for each calendar those of :func:`~redbeat.management.calendars.store_calendar`.
        """
        for calendar in self._planned_calendars:
            calendars.store_calendar(self._schedule, calendar)
        planned = {ready.entry.key: ready for ready in self.planned}
        for keys in reading.batches(planned):
            changes.change_all(
                self._store, keys, lambda row, now: planned[row.key].change(row, now), new=True
            )
            progress(len(keys))

    def prune(self, dry_run: bool = False) -> None:
        """Delete the dynamic entries that the source doesn't have.

        Takes two round trips per 500 entries.
        """
        name_of = self._store.keys.name_of
        for page in find.pages_of(self._store):
            surplus_keys = [
                row.key
                for row in page.rows
                if not row.static and name_of(row.key) not in self._names
            ]
            self.written["removed"] += len(surplus_keys)
            if self._note is not None:
                for key in surplus_keys:
                    self._note(apply.Change(printable(name_of(key)), "removed"))
            if surplus_keys and not dry_run:
                edits.delete(self._store, surplus_keys)

    # -- checking ------------------------------------------------------------------------------

    def _refuse(self, where: str, text: str) -> None:
        problem = _problem(where, text)
        if self._skip is None:
            self.problems.append(problem)
        else:
            self.skipped += 1
            self._skip(problem)

    def _plan(self, ready: Ready, row: rows.Row, now: float) -> None:
        action, score = self._action(ready, row), row.due
        if action is None:
            return
        if action in apply.TO_WRITE:
            try:
                score = ready.change(row, now).add or None
            except Exception as error:
                self._refuse(ready.incoming.where, problem_of("cannot be scheduled", error))
                return
            self.planned.append(ready)
        if action != CONFLICT:
            self.written[action] += 1
        if self._note is not None:
            self._note(ready.change_to_show(action, row, score))

    def _entries_of(self, batch: Sequence[Incoming]) -> Iterator[Incoming]:
        """Plan a batch's calendars, and yield its entries, with the calendars that they name."""
        known: dict[str, Calendar] = {}
        for incoming in batch:
            if incoming.calendar is not None:
                self._plan_calendar(incoming.where, incoming.calendar)
                known = {}
                continue
            if incoming.entry is not None and incoming.entry.policy_field("exclude"):
                known = known or {**self._stored_calendars[0], **self._calendars}
                incoming.entry.use_calendars(known)
            yield incoming

    @cached_property
    def _stored_calendars(self) -> tuple[dict[str, Calendar], set[str]]:
        """The stored calendars, and the names of those that can't be read."""
        return readable_calendars(self._store)

    def _plan_calendar(self, where: str, calendar: Calendar) -> None:
        name, (stored, unreadable) = calendar.name, self._stored_calendars
        old = stored.get(name)
        if self._calendars.get(name, calendar) != calendar:
            problem = f"calendar: {name!r} is in this source twice, with different content"
            self._refuse(where, problem)
            return
        if name in self._calendars or old == calendar:
            action = "unchanged"
        elif old is None and name not in unreadable:
            action = "created"
        else:
            action = self._on_other(where, f"calendar {name!r}")
        self._calendars[name] = old if action == "kept" and old is not None else calendar
        if action in apply.TO_WRITE:
            try:
                calendars.check_calendar(self._schedule, calendar, self._calendars)
            except InvalidEntryError as error:
                self._refuse(where, f"calendar {name!r}: {error.problem}")
            self._planned_calendars.append(calendar)
            self.written["calendars"] += 1
        if self._note is not None:
            self._note(apply.calendar_change(action, old, calendar))

    def _validated(self, incoming: Incoming) -> Ready | None:
        entry, problem = incoming.entry, incoming.problem
        if entry is not None:
            try:
                entry.is_static = incoming.static
                texts = entry.texts()
                entry.writable_key()
                name = str(entry.name)
                if name in self._names:
                    raise InvalidEntryError("name", f"{name!r} is already used in this source")
                self._names.add(name)
                return Ready(incoming, entry, texts)
            except Exception as error:
                problem = problem_of("cannot be stored", error)
        self._refuse(incoming.where, problem)
        return None

    def _action(self, ready: Ready, row: rows.Row) -> str | None:
        """Return one of :data:`ACTIONS` or CONFLICT, or None for an entry with a problem.

        Problems and conflicts are recorded.
        """
        where, name, mode = ready.incoming.where, ready.entry.name, self._on_conflict
        problem, is_new = apply.obstacle(row, ready.incoming.static), row.definition is None
        if is_new and not problem:
            return "created"
        if ready.is_same(row):
            return "unchanged"
        if not is_new and (mode == "keep" or (mode == "fail" and ready.has_same_texts(row))):
            return "kept"
        if problem:
            separator = ":" if is_new else ""
            self._refuse(where, f"name: {name!r}{separator} {problem}")
            return None
        return self._on_other(where, repr(name))

    def _on_other(self, where: str, what: str) -> str:
        """Return the action for a different entry or calendar; record a conflict."""
        if self._on_conflict == "fail":
            problem = f"{what} is already stored with other content"
            self.conflicts.append(_problem(where, problem))
            return CONFLICT
        return "kept" if self._on_conflict == "keep" else "changed"


def _problem(where: str, text: str) -> Problem:
    return Problem(printable(where, MAX_WHERE), printable(text, MAX_PROBLEM))


def _runtime_of(entry: RedBeatSchedulerEntry) -> str:
    at = entry.nominal_at if entry.last_run_at else None
    return runtime_of(State(at=None if at is None else at.timestamp()))
