"""Imports entries into a schedule. All entries are checked before the first entry is written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries import edits, saving, state
from redbeat.entries.calendars import calendar_of
from redbeat.entries.changes import apply, state_of
from redbeat.entries.history import new_identity
from redbeat.entries.pauses import Pause, with_pause
from redbeat.entries.saving import default_last_run, recall, restart_if_finished
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.management.apply import (
    TO_WRITE,
    Change,
    Difference,
    calendar_change,
    differences,
    next_run_of,
    obstacle,
    stored_entry,
)
from redbeat.management.calendars import check_calendar, store_calendar
from redbeat.management.find import KeySet, pages_of
from redbeat.printing import printable
from redbeat.schedules.calendars import Calendar
from redbeat.storage import commands, store, views, words
from redbeat.storage.rows import Change as Change_
from redbeat.transfer.storing import Writing, save_imported

from .incoming import Incoming, Problem, unexpected

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

#: What to do with an entry if Redis has a different entry with the same name.
ON_CONFLICT: Final = ("fail", "keep", "replace")

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


@dataclass
class Checked:
    """The result of a check: the names of valid entries, the problems and the conflicts.

    A conflict is an entry whose name belongs to a different entry in Redis.
    """

    names: KeySet = field(default_factory=KeySet)
    problems: Problems = field(default_factory=Problems)
    conflicts: Problems = field(default_factory=Problems)


@dataclass
class Written:
    """The number of entries for each action of the import; a dry run counts planned actions.

    ``calendars`` is the number of calendars that are created or changed.
    """

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    kept: int = 0
    removed: int = 0
    calendars: int = 0

    @property
    def to_write(self) -> int:
        """The number of entries that the import creates or changes."""
        return self.created + self.changed


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
        return with_pause(self.row.policy, state_of(self.row.stored).pause) == self.policy

    @property
    def is_same(self) -> bool:
        """Whether the stored entry equals the imported entry, so that no write is needed."""
        incoming, row = self.incoming, self.row
        if not self.has_same_texts:
            return False
        if incoming.static and not row.static:
            return False
        if incoming.meta not in ("", row.meta):
            return False
        if not (incoming.meta and incoming.runtime):
            return True
        stored = state_of(row.stored)
        return state.with_runtime(stored, incoming.runtime) == stored

    def change(
        self, action: str, plan: Writing | None, old: RedBeatSchedulerEntry | None
    ) -> Change:
        """Return the change of the entry; ``old`` is the stored entry, or None if unreadable."""
        incoming, row = self.incoming, self.row
        fields = {} if action == "unchanged" else differences(old, self.entry)
        if incoming.meta and incoming.meta != row.meta:
            fields["meta"] = Difference(row.meta or None, incoming.meta)
        if incoming.static and not row.static:
            fields["static"] = Difference(False, True)
        score = row.score if plan is None else plan.score
        return Change(str(self.entry.name), action, fields, next_run_of(score))

    def plan(self) -> Writing:
        """Return the planned write of the imported entry.

        The planned write includes the imported run history. If the source has no history, an
        existing entry keeps its stored history, and a new entry gets a new history.

        A finished entry starts again if the import changes its schedule, time zone, start or end,
        but not if the import also changes its run history.
        """
        incoming, entry, row = self.incoming, self.entry, self.row
        fields: dict[str, Any]
        if incoming.meta:
            runtime = incoming.runtime or _runtime_of(entry)
            told = state.with_runtime(state.State(), runtime)
            entry.recall(incoming.meta)
            entry.scheduled_at = None if told.at is None else from_timestamp(told.at)
            entry.timing_change = told.change
            fields = {"meta": incoming.meta, "runtime": runtime, "seen": None}
        elif self.is_new:
            fields = _default_history(entry)
        else:
            with suppress(DecodeError):  # a beat will quarantine the entry
                recall(entry, row.stored)
            fields = {"seen": None}
        stored, new = (row.definition or "", row.policy), (self.definition, self.policy)
        entry.saved_state = entry.saved_state._replace(texts=stored)
        may_restart = incoming.meta in ("", row.meta)
        if may_restart and restart_if_finished(entry, new, datetime.now(UTC)):
            fields = {**_default_history(entry), "seen": row.meta}
        fields |= {"score": entry.score_to_store(), "history": incoming.history}
        fields["identity"] = incoming.identity or ("" if incoming.static else new_identity())
        if incoming.static:
            fields["static_name"] = str(entry.name)
        return Writing(row.key, self.definition, self.policy, **fields)


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

    :meth:`check` saves the planned writes in a temporary file, and :meth:`write` reads the file. At
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
        self._checked = Checked(problems=Problems(report=skip))
        self._plans = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._calendars: dict[str, Calendar] = {}
        self._planned_calendars: list[Calendar] = []
        self.written = Written()

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._plans.close()

    def check(
        self,
        source: Iterable[Incoming],
        progress: Callable[[int], Any] | None = None,
        examine: Callable[[RedBeatSchedulerEntry], Any] | None = None,
    ) -> Checked:
        """Check all lines of the source without writing to Redis.

        Takes one round trip per 500 lines, or two if some of the lines define or name calendars.

        ``examine`` is called with each entry that :meth:`write` will write.
        """
        for batch in commands.batches(source, commands.BATCH):
            plans = []
            for ready in self._ready(batch):
                plan = self._plan(ready)
                if plan is not None:
                    plans.append(plan)
                    if examine is not None:
                        examine(ready.entry)
            pickle.dump(plans, self._plans)
            if progress is not None:
                progress(len(batch))
        return self._checked

    def write(self, progress: Callable[[int], Any] | None = None) -> None:
        """Write the calendars that :meth:`check` has planned to write, then the planned entries.

        Takes one round trip per 500 entries, one more if some of the entries are static, and one
        more if some of the entries have calendars. The method also takes the round trips of
        :func:`~redbeat.management.calendars.store_calendar` for each calendar.
        """
        for calendar in self._planned_calendars:
            store_calendar(self._schedule, calendar)
        end = self._plans.tell()
        self._plans.seek(0)
        while self._plans.tell() < end:
            plans: list[Writing] = pickle.load(self._plans)  # check() wrote this file
            if plans:
                self._save(plans)
            if progress is not None:
                progress(len(plans))

    def prune(self, names: KeySet, dry_run: bool = False) -> None:
        """Delete dynamic entries that are not in ``names``.

        Takes two round trips per 500 entries.
        """
        name_of = self._store.keys.name_of
        for page in pages_of(self._store):
            surplus_keys = [
                row.key for row in page.rows if not row.static and name_of(row.key) not in names
            ]
            self.written.removed += len(surplus_keys)
            if self._note is not None:
                for key in surplus_keys:
                    self._note(Change(printable(name_of(key)), "removed"))
            if surplus_keys and not dry_run:
                edits.delete(self._store, surplus_keys)

    # -- checking ------------------------------------------------------------------------------

    def _ready(self, batch: Sequence[Incoming]) -> Iterator[Ready]:
        """Yield the valid entries of a batch, each with the row that is stored for its name."""
        entries = self._entries_of(batch)
        valid = [parts for incoming in entries for parts in self._validated(incoming)]
        keys = [entry.key for _, entry, _, _ in valid]
        rows = self._store.read(keys).rows if keys else []
        return (Ready(*parts, row) for parts, row in zip(valid, rows, strict=True))

    def _plan(self, ready: Ready) -> Writing | None:
        """Return the planned write of an entry, or None if the entry will not be written."""
        action, plan = self._action(ready), None
        if action is not None and action in TO_WRITE:
            try:
                plan = ready.plan()
            except Exception as error:
                self._count(action, -1)
                problem = str(unexpected("cannot be scheduled", error))
                self._checked.problems.add(ready.incoming.where, problem)
                return None
        if self._note is not None and action is not None:
            old = stored_entry(self._schedule.app, self._schedule.entry_class, ready.row)
            self._note(ready.change(action, plan, old))
        return plan

    def _entries_of(self, batch: Sequence[Incoming]) -> Iterator[Incoming]:
        """Plan the writes of the calendars in a batch, and yield the other lines of the batch.

        The method passes to each entry the calendars that the entry names. Takes one round trip if
        a line of the batch defines or names a calendar, else none.
        """
        names = {name for incoming in batch for name in _calendar_names(incoming)}
        stored = self._store.calendars(names) if names else {}
        for incoming in batch:
            if incoming.calendar is not None:
                self._plan_calendar(incoming.where, incoming.calendar, stored)
                continue
            wanted = _calendar_names(incoming)
            if incoming.entry is not None and wanted:
                planned = {
                    name: self._calendars[name] for name in wanted if name in self._calendars
                }
                incoming.entry.use_calendars(_readable(stored, wanted) | planned)
            yield incoming

    def _plan_calendar(self, where: str, calendar: Calendar, stored: Mapping[str, str]) -> None:
        name = calendar.name
        if self._calendars.get(name, calendar) != calendar:
            problem = f"calendar: {name!r} is in this source twice, with different content"
            self._checked.problems.add(where, problem)
            return
        old = _readable(stored, [name]).get(name)
        if name in self._calendars or old == calendar:
            action = "unchanged"
        elif name not in stored:
            action = "created"
        elif self._on_conflict == "fail":
            self._checked.conflicts.add(
                where, f"calendar {name!r} is already stored with other content"
            )
            action = "different"
        else:
            action = "kept" if self._on_conflict == "keep" else "changed"
        self._calendars[name] = old if action == "kept" and old is not None else calendar
        if action in TO_WRITE:
            try:
                check_calendar(self._schedule, calendar, self._calendars)
            except InvalidEntryError as error:
                self._checked.problems.add(where, f"calendar {name!r}: {error.problem}")
            self._planned_calendars.append(calendar)
            self.written.calendars += 1
        if self._note is not None:
            self._note(calendar_change(action, old, calendar))

    def _validated(
        self, incoming: Incoming
    ) -> Iterator[tuple[Incoming, RedBeatSchedulerEntry, str, str]]:
        """Yield a valid entry with its definition and policy as JSON.

        For an invalid entry, record the problem and yield nothing.
        """
        entry, problem = incoming.entry, incoming.problem
        if entry is not None:
            try:
                entry.is_static = incoming.static
                definition, policy = entry.texts()
                entry.writable_key()
                name = str(entry.name)
                if not self._checked.names.add(name):
                    raise InvalidEntryError("name", f"{name!r} is already used in this source")
                yield incoming, entry, definition, with_pause(policy, Pause.of_entry(entry))
                return
            except InvalidEntryError as error:
                problem = str(error)
            except Exception as error:
                problem = str(unexpected("cannot be stored", error))
        self._checked.problems.add(incoming.where, problem)

    def _action(self, ready: Ready) -> str | None:
        """Count the planned action for an entry; return the action, a field of :class:`Written`.

        If the entry has a problem, records the problem and returns None. If the entry is a
        conflict, records the conflict and returns "different".
        """
        where, name, mode = ready.incoming.where, ready.entry.name, self._on_conflict
        problem = obstacle(ready.row, ready.incoming.static)
        if ready.is_new and not problem:
            action = "created"
        elif ready.is_same:
            action = "unchanged"
        elif not ready.is_new and (mode == "keep" or (mode == "fail" and ready.has_same_texts)):
            action = "kept"
        elif problem:
            self._checked.problems.add(
                where, f"name: {name!r}{':' if ready.is_new else ''} {problem}"
            )
            return None
        elif mode == "fail":
            self._checked.conflicts.add(where, f"{name!r} is already stored with other content")
            return "different"
        else:
            action = "changed"
        self._count(action)
        return action

    def _count(self, action: str, number: int = 1) -> None:
        setattr(self.written, action, getattr(self.written, action) + number)

    # -- writing -------------------------------------------------------------------------------

    def _save(self, plans: Sequence[Writing]) -> None:
        app, entry_class = self._schedule.app, self._schedule.entry_class
        for plan in save_imported(self._store, plans):
            entry = entry_class.from_definition(app, plan.definition, plan.policy)
            entry.saved_state = entry.saved_state._replace(new_identity=plan.identity)
            saving.save(self._store, [entry])
        statics = [["SADD", words.STATICS, plan.static_name] for plan in plans if plan.static_name]
        if statics:
            apply(self._store, [Change_("", index=statics)])


def _default_history(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    meta, runtime = entry.history_text(), _runtime_of(entry)
    return {"meta": meta, "runtime": runtime, "made_up": default_last_run(entry)}


def _runtime_of(entry: RedBeatSchedulerEntry) -> str:
    at = entry.scheduled_at if entry.last_run_at else None
    return state.runtime_of(state.State(at=None if at is None else at.timestamp()))


def _exclude_of(entry: RedBeatSchedulerEntry) -> Sequence[str]:
    """Return the names of the calendars of an entry, or () for an entry with an invalid policy."""
    with suppress(InvalidEntryError):
        return entry.policy.exclude if entry.policy_field("exclude") else ()
    return ()


def _calendar_names(incoming: Incoming) -> Sequence[str]:
    """Return the names of the calendars that a line defines or that the entry in the line names."""
    if incoming.calendar is not None:
        return (incoming.calendar.name,)
    return () if incoming.entry is None else _exclude_of(incoming.entry)


def _readable(stored: Mapping[str, str], names: Iterable[str]) -> dict[str, Calendar]:
    """Return the calendars among ``names`` whose stored JSON can be read."""
    found = {}
    for name in names:
        with suppress(DecodeError, KeyError):
            found[name] = calendar_of(name, stored[name])
    return found
