"""Imports entries into a schedule. All entries are checked before the first entry is written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import array_of
from redbeat.entries import changes, edits, saving
from redbeat.entries.calendars import readable_calendars
from redbeat.entries.history import new_identity
from redbeat.entries.pauses import Pause, with_pause, without_pause
from redbeat.entries.state import State, runtime_of, with_runtime
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.management import apply
from redbeat.management.apply import Change, Difference
from redbeat.management.calendars import check_calendar, store_calendar
from redbeat.management.find import KeySet, pages_of
from redbeat.printing import printable
from redbeat.schedules.calendars import Calendar
from redbeat.storage import commands, rows, store, views, words

from .incoming import Incoming, Problem, problem_of, unexpected

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

#: What to do with an entry if Redis has a different entry with the same name.
ON_CONFLICT: Final = ("fail", "keep", "replace")

#: What an import does with an entry.
ACTIONS: Final = ("created", "changed", "unchanged", "kept", "removed")

#: The action for an entry or a calendar that differs, if this ends the import.
CONFLICT: Final = "different"

#: Maximum number of problems to keep in memory. Problems beyond this maximum are counted, but not
#: kept.
MAX_KEPT: Final = 100

#: Maximum lengths of the position and of the text of a problem, in characters.
MAX_WHERE: Final = 200
MAX_PROBLEM: Final = 700


@dataclass
class Problems:
    """The first :data:`MAX_KEPT` problems of a kind, and the number of all problems.

    If ``report`` is given, it is called with each problem at once, and only ``skipped`` counts the
    problems.
    """

    kept: list[Problem] = field(default_factory=list)
    count: int = 0
    skipped: int = 0
    report: Callable[[Problem], Any] | None = None

    def add(self, where: str, text: str) -> None:
        """Count a problem, and report it or keep it."""
        problem = Problem(printable(where, MAX_WHERE), printable(text, MAX_PROBLEM))
        if self.report is not None:
            self.report(problem)
            self.skipped += 1
            return
        self.count += 1
        if self.count <= MAX_KEPT:
            self.kept.append(problem)


class Ready(NamedTuple):
    """A valid entry, its definition and policy as JSON, and the row that Redis has for its name."""

    incoming: Incoming
    entry: RedBeatSchedulerEntry
    definition: str
    policy: str
    row: views.Shown

    @property
    def is_new(self) -> bool:
        """Whether Redis has no entry with the name of the imported entry."""
        return self.row.definition is None

    @property
    def has_same_texts(self) -> bool:
        """Whether the stored entry has the definition and policy of the imported entry."""
        if self.row.definition != self.definition:
            return False
        return with_pause(self.row.policy, changes.state_of(self.row.stored).pause) == self.policy

    @property
    def is_same(self) -> bool:
        """Whether the stored entry equals the imported entry, so that no write is needed."""
        incoming, row = self.incoming, self.row
        is_static = row.static or not incoming.static
        if not (self.has_same_texts and is_static and incoming.meta in ("", row.meta)):
            return False
        if not (incoming.meta and incoming.runtime):
            return True
        stored = changes.state_of(row.stored)
        return with_runtime(stored, incoming.runtime) == stored

    def change(self, action: str, score: float | None) -> Change:
        """Return the change to show; ``score`` is the one to store, or the stored one."""
        incoming, row, more = self.incoming, self.row, {}
        if incoming.meta and incoming.meta != row.meta:
            more["meta"] = Difference(row.meta or None, incoming.meta)
        if incoming.static and not row.static:
            more["static"] = Difference(False, True)
        change = apply.change_of(action, row, self.entry, score)
        return change._replace(fields={**change.fields, **more})

    def write(self, now: float) -> Write:
        """Return the write that stores the entry over the row; ``now`` is the time of Redis."""
        incoming, row = self.incoming, self.row.stored
        state = changes.state_of(row)
        if self.is_new:
            state = State(identity=incoming.identity or ("" if incoming.static else new_identity()))
        meta, state = self._with_history(state, now)
        if self.entry.enabled:
            state.pause = None
        else:
            state.pause = Pause.read(self.policy) or state.pause
        texts = self.definition, without_pause(self.policy)
        change = changes.editing(row, state, texts, meta or None)
        if incoming.history:
            change.set[words.HISTORY] = array_of(incoming.history.splitlines())
            change.unset = tuple(field for field in change.unset if field != words.HISTORY)
        if incoming.static:
            change.index.append(["SADD", words.STATICS, str(self.entry.name)])
        change.add = saving.score_of(self.entry, state, datetime.now(UTC))
        return Write(change, replace(incoming, entry=None), self.definition, self.policy)

    def _with_history(self, state: State, now: float) -> tuple[str, State]:
        """Give the entry its history; return the ``meta`` to store, "" for none, and the state.

        Without a history of the source, an existing entry keeps its stored history, and a new entry
        gets a new history.

        A finished entry starts again if the import changes its schedule, time zone, start or end,
        but not if the import also changes its run history.
        """
        entry, row, meta = self.entry, self.row.stored, self.incoming.meta
        if meta:
            state = with_runtime(state, self.incoming.runtime or _runtime_of(entry))
            entry.recall(meta)
            entry.scheduled_at = None if state.at is None else from_timestamp(state.at)
            entry.timing_change = state.change
        elif not self.is_new:
            with suppress(DecodeError):  # a beat will quarantine the entry
                saving.recall(entry, row)
        restarts = meta in ("", self.row.meta) and saving.restart_if_finished(
            entry, (self.definition, self.policy), datetime.now(UTC), changes.texts_in(row)
        )
        if restarts or (self.is_new and not meta):
            last_run_at = saving.default_last_run(entry)
            if last_run_at is not None and last_run_at.timestamp() > now + saving.TOLERANCE:
                entry.last_run_at = from_timestamp(now)
            meta = entry.history_text()
            state = with_runtime(state, _runtime_of(entry))
        if meta:
            state.due, state.hold = None, None
        return meta, state


class Write(NamedTuple):
    """A change to make, and the parts of :class:`Ready` from which it can be made again."""

    change: rows.Change
    incoming: Incoming
    definition: str
    policy: str


class Importer:
    """A context manager that imports the calendars and entries of a source into a schedule.

    ``on_conflict`` applies if Redis has a different entry or calendar with the same name. The value
    ``fail`` reports a conflict, ``keep`` keeps the stored entry or calendar, and ``replace``
    overwrites the stored entry or calendar. The value ``fail`` reports no conflict and keeps the
    stored entry if only the run history differs. ``note`` is called with the planned change of each
    valid line, and with the deletion of each entry to prune. ``skip`` is called with the problem of
    each invalid line; without ``skip``, the check keeps the problems.

    A calendar must precede the entries that name the calendar, unless the calendar is already
    stored.

    :meth:`check` saves the writes in a temporary file, and :meth:`write` reads the file. At
    most 500 entries are in memory at a time. In addition, the importer stores a hash of each entry
    name, about 8 bytes per entry.
    """

    def __init__(
        self,
        schedule: Schedule,
        on_conflict: str = "fail",
        note: Callable[[Change], Any] | None = None,
        skip: Callable[[Problem], Any] | None = None,
    ) -> None:
        self._schedule = schedule
        self._store = store.store_of(schedule.app)
        self._on_conflict = on_conflict
        self._note = note
        self._names = KeySet()
        self.problems, self.conflicts = Problems(report=skip), Problems()
        self._plans = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._calendars: dict[str, Calendar] = {}
        self._planned_calendars: list[Calendar] = []
        #: Number of entries for each action, and of calendars to write; in a dry run, as planned.
        self.written = dict.fromkeys((*ACTIONS, "calendars"), 0)

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._plans.close()

    def check(
        self,
        source: Iterable[Incoming],
        progress: Callable[[int], Any] | None = None,
        examine: Callable[[RedBeatSchedulerEntry], Any] | None = None,
    ) -> None:
        """Check all lines of the source without writing to Redis.

        Fills :attr:`problems`, and :attr:`conflicts` with the entries and calendars whose names
        belong to different ones in Redis.

        Takes one round trip per 500 lines, or two if some of the lines define or name calendars.

        ``examine`` is called with each entry that :meth:`write` will write.
        """
        for batch in commands.batches(source):
            writes = []
            for ready, now in self._ready(batch):
                write = self._plan(ready, now)
                if write is not None:
                    writes.append(write)
                    if examine is not None:
                        examine(ready.entry)
            pickle.dump(writes, self._plans)
            if progress is not None:
                progress(len(batch))

    def write(self, progress: Callable[[int], Any] | None = None) -> None:
        """Write the calendars that :meth:`check` has planned to write, then the planned entries.

        Takes one round trip per 500 entries, and one more for each change of an entry since the
        check. The method also takes the round trips of
        :func:`~redbeat.management.calendars.store_calendar` for each calendar.
        """
        for calendar in self._planned_calendars:
            store_calendar(self._schedule, calendar)
        end = self._plans.tell()
        self._plans.seek(0)
        while self._plans.tell() < end:
            writes: list[Write] = pickle.load(self._plans)  # check() wrote this file
            self._save(writes)
            if progress is not None:
                progress(len(writes))

    def prune(self, dry_run: bool = False) -> None:
        """Delete dynamic entries that the source does not have.

        Takes two round trips per 500 entries.
        """
        name_of, names = self._store.keys.name_of, self._names
        for page in pages_of(self._store):
            surplus_keys = [
                row.key for row in page.rows if not row.static and name_of(row.key) not in names
            ]
            self.written["removed"] += len(surplus_keys)
            if self._note is not None:
                for key in surplus_keys:
                    self._note(Change(printable(name_of(key)), "removed"))
            if surplus_keys and not dry_run:
                edits.delete(self._store, surplus_keys)

    # -- checking ------------------------------------------------------------------------------

    def _ready(self, batch: Sequence[Incoming]) -> Iterator[tuple[Ready, float]]:
        """Yield the valid entries of a batch, each with its row, and the time of Redis."""
        valid = list(filter(None, map(self._validated, self._entries_of(batch))))
        if valid:
            page = self._store.read([ready.entry.key for ready in valid])
            for ready, row in zip(valid, page.rows, strict=True):
                yield ready._replace(row=row), page.now

    def _plan(self, ready: Ready, now: float) -> Write | None:
        """Return the write of an entry, or None if the entry will not be written."""
        action, write, score = self._action(ready), None, ready.row.score
        if action is None:
            return None
        if action in apply.TO_WRITE:
            try:
                write = ready.write(now)
            except Exception as error:
                problem = unexpected("cannot be scheduled", error)
                self.problems.add(ready.incoming.where, problem)
                return None
            score = write.change.add or None
        if action != CONFLICT:
            self.written[action] += 1
        if self._note is not None:
            self._note(ready.change(action, score))
        return write

    def _entries_of(self, batch: Sequence[Incoming]) -> Iterator[Incoming]:
        """Plan the writes of the calendars in a batch, and yield the other lines of the batch.

        The method passes to each entry the calendars that the entry names. Takes one round trip if
        a line of the batch defines or names a calendar, else none.
        """
        names = {name for incoming in batch for name in _calendar_names(incoming)}
        stored, unreadable = readable_calendars(self._store, names) if names else ({}, set())
        for incoming in batch:
            if incoming.calendar is not None:
                old = stored.get(incoming.calendar.name)
                is_stored = old is not None or incoming.calendar.name in unreadable
                self._plan_calendar(incoming.where, incoming.calendar, old, is_stored)
                continue
            if incoming.entry is not None and _calendar_names(incoming):
                incoming.entry.use_calendars({**stored, **self._calendars})
            yield incoming

    def _plan_calendar(
        self, where: str, calendar: Calendar, old: Calendar | None, is_stored: bool
    ) -> None:
        """Plan the write of a calendar over ``old``, which is None if it cannot be read."""
        name = calendar.name
        if self._calendars.get(name, calendar) != calendar:
            problem = f"calendar: {name!r} is in this source twice, with different content"
            self.problems.add(where, problem)
            return
        if name in self._calendars or old == calendar:
            action = "unchanged"
        elif not is_stored:
            action = "created"
        elif self._on_conflict == "fail":
            self.conflicts.add(where, f"calendar {name!r} is already stored with other content")
            action = CONFLICT
        else:
            action = "kept" if self._on_conflict == "keep" else "changed"
        self._calendars[name] = old if action == "kept" and old is not None else calendar
        if action in apply.TO_WRITE:
            try:
                check_calendar(self._schedule, calendar, self._calendars)
            except InvalidEntryError as error:
                self.problems.add(where, f"calendar {name!r}: {error.problem}")
            self._planned_calendars.append(calendar)
            self.written["calendars"] += 1
        if self._note is not None:
            self._note(apply.calendar_change(action, old, calendar))

    def _validated(self, incoming: Incoming) -> Ready | None:
        """Return an entry without its row; record the problem of an invalid entry."""
        entry, problem = incoming.entry, incoming.problem
        if entry is not None:
            try:
                entry.is_static = incoming.static
                definition, policy = entry.texts()
                entry.writable_key()
                name = str(entry.name)
                if not self._names.add(name):
                    raise InvalidEntryError("name", f"{name!r} is already used in this source")
                policy = with_pause(policy, Pause.of_entry(entry))
                return Ready(incoming, entry, definition, policy, views.Shown(entry.key, None))
            except Exception as error:
                problem = problem_of("cannot be stored", error)
        self.problems.add(incoming.where, problem)
        return None

    def _action(self, ready: Ready) -> str | None:
        """Return the planned action for an entry, one of :data:`ACTIONS` or CONFLICT.

        If the entry has a problem, records the problem and returns None. Also records a conflict.
        """
        where, name, mode = ready.incoming.where, ready.entry.name, self._on_conflict
        problem = apply.obstacle(ready.row, ready.incoming.static)
        if ready.is_new and not problem:
            return "created"
        if ready.is_same:
            return "unchanged"
        if not ready.is_new and (mode == "keep" or (mode == "fail" and ready.has_same_texts)):
            return "kept"
        if problem:
            separator = ":" if ready.is_new else ""
            self.problems.add(where, f"name: {name!r}{separator} {problem}")
            return None
        if mode == "fail":
            self.conflicts.add(where, f"{name!r} is already stored with other content")
            return CONFLICT
        return "changed"

    # -- writing -------------------------------------------------------------------------------

    def _save(self, writes: Sequence[Write]) -> None:
        """Make the changes; make those again whose entries have changed since the check."""
        for _ in range(changes.ATTEMPTS):
            if not writes:
                return
            reply = changes.apply(self._store, [write.change for write in writes])
            pairs = zip(writes, reply.answers, strict=True)
            differing = [pair for pair in pairs if pair[1].word != words.DONE]
            writes = [self._again(write, answer, reply.now) for write, answer in differing]
        if writes:
            raise ConflictError(self._store.keys.name_of(writes[0].change.key))

    def _again(self, write: Write, answer: rows.Answer, now: float) -> Write:
        """Return the write over the row of an answer; raises :exc:`InvalidEntryError`."""
        row = answer.row or rows.Row(write.change.key)
        if answer.word == words.REFUSED or row.problem:
            raise InvalidEntryError("name", commands.not_an_entry(row.key))
        app, entry_class = self._schedule.app, self._schedule.entry_class
        entry = entry_class.from_definition(app, write.definition, write.policy)
        entry.is_static = write.incoming.static
        entry = entry.created_at(from_timestamp(now))
        saving.use_calendars(self._store, [entry])
        shown = views.Shown(row.key, None, row)
        return Ready(write.incoming, entry, write.definition, write.policy, shown).write(now)


def _runtime_of(entry: RedBeatSchedulerEntry) -> str:
    at = entry.scheduled_at if entry.last_run_at else None
    return runtime_of(State(at=None if at is None else at.timestamp()))


def _calendar_names(incoming: Incoming) -> Sequence[str]:
    """Return the names of the calendars that a line defines or that the entry in the line names."""
    if incoming.calendar is not None:
        return (incoming.calendar.name,)
    with suppress(InvalidEntryError):  # the policy is invalid
        if incoming.entry is not None and incoming.entry.policy_field("exclude"):
            return incoming.entry.policy.exclude
    return ()
