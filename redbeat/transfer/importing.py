"""Imports entries into a schedule. All entries are checked before the first one is written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.entries.decide import PARKED
from redbeat.entries.history import encode_meta
from redbeat.entry import RedBeatSchedulerEntry, new_identity, save_batch
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.storage.reading import BATCH, batches
from redbeat.storage.records import SAVED, StaticRow, Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Row

__all__ = (
    "ON_CONFLICT",
    "Checked",
    "EntryType",
    "Importer",
    "Incoming",
    "UnreadableSourceError",
    "Written",
    "fail",
)

EntryType = type[RedBeatSchedulerEntry]


class UnreadableSourceError(ValueError):
    """Raised if the whole source is unreadable; the message suggests what to do."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One entry from an import source, or the reason why the entry is unreadable.

    Attributes:
        where: the position in the source, such as ``line 3``.
        entry: the entry, or None if the entry is unreadable.
        problem: the field name and what is wrong; "" for a readable entry.
        static: whether the entry belongs to ``beat_schedule``.
        meta: the JSON of the field ``meta`` (last run and run count). If ``meta`` is "", the import
            does not change the history in Redis.
        runtime: the JSON of the field ``runtime``; used only if ``meta`` is not "".
        history: the last runs, one per line.
        identity: the identity of an exported entry, from which its task ids are computed.
        texts: the JSON of definition and policy, if the source contains both as JSON.
    """

    where: str
    entry: RedBeatSchedulerEntry | None = None
    problem: str = ""
    static: bool = False
    meta: str = ""
    runtime: str = ""
    history: str = ""
    identity: str = ""
    texts: tuple[str, str] | None = None


def fail(where: str, error: Exception) -> Incoming:
    """Return an :class:`Incoming` for an unreadable entry."""
    return Incoming(where, problem=str(error) or repr(error))


#: What to do with an entry if Redis has a different entry with the same name.
ON_CONFLICT: Final = ("fail", "keep", "replace")

#: Maximum number of problems to keep in memory. The count includes all problems.
MAX_KEPT: Final = 100


class Problem(NamedTuple):
    """A problem with an entry, and the position of the entry in the source."""

    where: str
    text: str


@dataclass
class Checked:
    """The result of a check: the names of valid entries, the problems and the conflicts.

    A conflict is an entry for which Redis has a different entry with the same name.
    """

    names: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    conflicts: list[Problem] = field(default_factory=list)
    conflict_count: int = 0

    def add_problem(self, where: str, text: str) -> None:
        """Count a problem; keep the first :data:`MAX_KEPT` problems."""
        self.problem_count += 1
        if len(self.problems) < MAX_KEPT:
            self.problems.append(Problem(where, text))

    def add_conflict(self, where: str, text: str) -> None:
        """Count a conflict; keep the first :data:`MAX_KEPT` conflicts."""
        self.conflict_count += 1
        if len(self.conflicts) < MAX_KEPT:
            self.conflicts.append(Problem(where, text))


@dataclass
class Written:
    """The number of entries for each action of the import, including the actions of a dry run."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    kept: int = 0
    removed: int = 0

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
    row: Row

    @property
    def is_new(self) -> bool:
        """Whether no entry with this name is stored."""
        return self.row.definition is None

    @property
    def has_same_texts(self) -> bool:
        """Whether the stored definition and policy are the same; the history may differ."""
        return (self.row.definition, self.row.policy) == (self.definition, self.policy)

    @property
    def is_same(self) -> bool:
        """Whether a write would change nothing."""
        incoming, row = self.incoming, self.row
        if not self.has_same_texts:
            return False
        if incoming.static and not row.static:
            return False
        return not incoming.meta or (row.meta, row.runtime) == (incoming.meta, incoming.runtime)

    def plan(self) -> Planned:
        """Return the planned write of this entry.

        The write includes the imported run history. If the source has no history, an existing entry
        keeps its stored history, and a new entry gets a new history.

        A finished entry starts again if the import changes its schedule, time zone, start or end,
        but not if the import also changes its run history.
        """
        incoming, entry, row = self.incoming, self.entry, self.row
        fields: dict[str, Any]
        if incoming.meta:
            entry.recall(incoming.meta, incoming.runtime)
            fields = {"meta": incoming.meta, "runtime": incoming.runtime, "seen": None}
        elif self.is_new:
            fields = {"meta": entry.history_text(), "made_up": entry._made_up()}
        else:
            with suppress(DecodeError):  # a beat will report and quarantine it
                entry.recall(row.meta, row.runtime)
            fields = {"seen": None}
        stored, new = (row.definition or "", row.policy), (self.definition, self.policy)
        if incoming.meta in ("", row.meta) and entry._arm(stored, new, datetime.now(UTC)):
            fields = {"meta": entry.history_text(), "made_up": entry._made_up(), "seen": row.meta}
        fields |= {"score": entry._stored_score(), "history": incoming.history}
        fields["identity"] = incoming.identity or ("" if incoming.static else new_identity())
        writing = Writing(row.key, self.definition, self.policy, **fields)
        return Planned(str(entry.name), writing, incoming.static)


class Planned(NamedTuple):
    """The data that the import will write for a checked entry."""

    name: str
    writing: Writing
    static: bool


class Importer:
    """A context manager that imports the entries of a source into a schedule.

    ``on_conflict`` applies if Redis has a different entry with the same name: ``fail`` reports a
    conflict, ``keep`` keeps the stored entry, and ``replace`` overwrites the stored entry. If only
    the history differs, ``fail`` also keeps the stored entry.

    :meth:`check` saves the planned writes in a temporary file, and :meth:`write` reads that file.
    The importer keeps the names of all entries in memory, but loads at most 500 entries at a time.
    """

    def __init__(
        self, app: Any, store: Store, entry_class: EntryType, on_conflict: str = "fail"
    ) -> None:
        self._app = app
        self._store = store
        self._entry_class = entry_class
        self._on_conflict = on_conflict
        self._plans = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.written = Written()

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._plans.close()

    def check(
        self, source: Iterable[Incoming], progress: Callable[[int], Any] | None = None
    ) -> Checked:
        """Check all entries without writing to Redis. One round trip per 500 entries."""
        checked = Checked()
        for batch in batches(source, BATCH):
            valid = [parts for incoming in batch for parts in self._validated(incoming, checked)]
            rows = self._rows([entry.key for _, entry, _, _ in valid])
            ready_entries = [Ready(*parts, row) for parts, row in zip(valid, rows, strict=True)]
            plans = [ready.plan() for ready in ready_entries if self._must_write(ready, checked)]
            pickle.dump(plans, self._plans)
            if progress is not None:
                progress(len(batch))
        return checked

    def write(self, progress: Callable[[int], Any] | None = None) -> None:
        """Write the entries that :meth:`check` has planned to write.

        Takes one round trip per 500 entries, or two if some of these entries are static.
        """
        end = self._plans.tell()
        self._plans.seek(0)
        while self._plans.tell() < end:
            plans: list[Planned] = pickle.load(self._plans)  # check() wrote this file
            if plans:
                self._save(plans)
            if progress is not None:
                progress(len(plans))

    def prune(self, names: set[str], dry_run: bool = False) -> None:
        """Delete dynamic entries that are not in ``names``. Two round trips per 500 entries."""
        after, prefix = None, self._store.keys.prefix
        while True:
            page = self._store.page(after)
            surplus_keys = [
                row.key
                for row in page.rows
                if not row.static and row.key.removeprefix(prefix) not in names
            ]
            self.written.removed += len(surplus_keys)
            if surplus_keys and not dry_run:
                self._store.delete_all(surplus_keys)
            after = page.after
            if after is None:
                return

    # -- checking ------------------------------------------------------------------------------

    def _validated(
        self, incoming: Incoming, checked: Checked
    ) -> Iterator[tuple[Incoming, RedBeatSchedulerEntry, str, str]]:
        """Yield a valid entry with its definition and policy as JSON.

        For an invalid entry, add a problem to ``checked`` and yield nothing.
        """
        entry = incoming.entry
        if entry is None:
            checked.add_problem(incoming.where, incoming.problem)
            return
        try:
            entry._static = incoming.static
            texts = incoming.texts or entry.texts()
            entry._own_key()
        except (InvalidEntryError, ArithmeticError, LookupError) as error:
            checked.add_problem(incoming.where, str(error))
            return
        name = str(entry.name)
        if name in checked.names:
            checked.add_problem(incoming.where, f"name: {name!r} is already used in this source")
            return
        checked.names.add(name)
        yield incoming, entry, *texts

    def _rows(self, keys: Sequence[str]) -> list[Row]:
        return self._store.read(keys).rows if keys else []

    def _must_write(self, ready: Ready, checked: Checked) -> bool:
        """Return whether to write an entry.

        Also counts the entry by the planned action, or adds a problem or a conflict to ``checked``.
        """
        where, name, row = ready.incoming.where, ready.entry.name, ready.row
        if row.definition is None and "hash" in row.problem:
            checked.add_problem(where, f"name: {name!r}: {row.problem}; delete that key")
        elif ready.is_new:
            self.written.created += 1
            return True
        elif ready.is_same:
            self.written.unchanged += 1
        elif self._on_conflict == "keep" or (self._on_conflict == "fail" and ready.has_same_texts):
            self.written.kept += 1
        elif row.static and not ready.incoming.static:
            problem = "is an entry of beat_schedule; change it there, or use another name"
            checked.add_problem(where, f"name: {name!r} {problem}")
        elif self._on_conflict == "fail":
            checked.add_conflict(where, f"{name!r} is already stored and differs")
        else:
            self.written.changed += 1
            return True
        return False

    # -- writing -------------------------------------------------------------------------------

    def _save(self, plans: Sequence[Planned]) -> None:
        results = self._store.save_all([plan.writing for plan in plans])
        for plan, saved in zip(plans, results, strict=True):
            # The script refuses to write the entry if another program created an entry with this
            # name after the check, or if the clock of this host is ahead of the clock of Redis.
            if saved.code != SAVED:
                self._save_again(plan.writing)
        statics = [_static_row(plan) for plan in plans if plan.static]
        if statics:
            self._store.sync_statics(statics, None, "")

    def _save_again(self, writing: Writing) -> None:
        entry = self._entry_class.from_definition(self._app, writing.definition, writing.policy)
        entry._new_identity = writing.identity
        texts = Writing(writing.key, writing.definition, writing.policy)
        save_batch(self._store, [(entry, texts)])


def _static_row(plan: Planned) -> StaticRow:
    """Return the row that marks a stored entry as static without changing history and score."""
    key, definition, policy, meta, *_ = plan.writing
    return StaticRow(plan.name, key, definition, policy, meta or encode_meta(None), PARKED)
