"""Entries from a source into a schedule: all of them are checked before any is written."""

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
    """A file is not at all what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One entry of a source, or what is wrong with it.

    ``where`` tells where it stands, such as ``line 3``. ``problem`` names the field and is "" for
    an entry that could be read. A ``static`` entry is one of ``beat_schedule``. ``meta`` and
    ``runtime`` are its run history as stored; "" for an entry without, which keeps the stored one.
    ``history`` are the lines of its last runs, ``identity`` is that of an entry that comes back.
    ``texts`` are its definition and policy as stored, where the source knows them already.
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
    """Return what stands for an entry that cannot be read."""
    return Incoming(where, problem=str(error) or repr(error))


#: What to do about an entry that is stored already and differs.
ON_CONFLICT: Final = ("fail", "keep", "replace")

#: Problems that are kept, at most; all of them are counted.
SHOWN: Final = 100


class Problem(NamedTuple):
    """What is wrong, and where in the source."""

    where: str
    text: str


@dataclass
class Checked:
    """What a source holds: the names of its entries, and what is wrong with others.

    ``conflicts`` are entries that are stored already and differ.
    """

    names: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    conflicts: list[Problem] = field(default_factory=list)
    conflict_count: int = 0

    def refuse(self, where: str, text: str) -> None:
        """Note a problem."""
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(Problem(where, text))

    def conflict(self, where: str, text: str) -> None:
        """Note a conflict."""
        self.conflict_count += 1
        if len(self.conflicts) < SHOWN:
            self.conflicts.append(Problem(where, text))


@dataclass
class Written:
    """How many entries were, or would be, created, changed, and so on."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    kept: int = 0
    removed: int = 0

    @property
    def to_write(self) -> int:
        """How many entries are written."""
        return self.created + self.changed


class Ready(NamedTuple):
    """An entry with its texts, and what is stored under its name."""

    incoming: Incoming
    entry: RedBeatSchedulerEntry
    definition: str
    policy: str
    row: Row

    @property
    def is_new(self) -> bool:
        """Whether there is no entry of that name."""
        return self.row.definition is None

    @property
    def has_same_texts(self) -> bool:
        """Whether what is stored differs in its history at most."""
        return (self.row.definition, self.row.policy) == (self.definition, self.policy)

    @property
    def is_same(self) -> bool:
        """Whether nothing would change."""
        given, row = self.incoming, self.row
        if not self.has_same_texts:
            return False
        if given.static and not row.static:
            return False
        return not given.meta or (row.meta, row.runtime) == (given.meta, given.runtime)

    def plan(self) -> Planned:
        """Return what is to be written: a history that was given, else the stored or a new one.

        An entry that has finished and does not bring another history begins again where its
        schedule, time zone or window changes.
        """
        given, entry, row = self.incoming, self.entry, self.row
        more: dict[str, Any]
        if given.meta:
            entry.recall(given.meta, given.runtime)
            more = {"meta": given.meta, "runtime": given.runtime, "seen": None}
        elif self.is_new:
            more = {"meta": entry.history_text(), "made_up": entry._made_up()}
        else:
            with suppress(DecodeError):  # the beat says so, and sets the entry aside
                entry.recall(row.meta, row.runtime)
            more = {"seen": None}
        stored, new = (row.definition or "", row.policy), (self.definition, self.policy)
        if given.meta in ("", row.meta) and entry._arm(stored, new, datetime.now(UTC)):
            more = {"meta": entry.history_text(), "made_up": entry._made_up(), "seen": row.meta}
        more |= {"score": entry._stored_score(), "history": given.history}
        more["identity"] = given.identity or ("" if given.static else new_identity())
        writing = Writing(row.key, self.definition, self.policy, **more)
        return Planned(str(entry.name), writing, given.static)


class Planned(NamedTuple):
    """A write of an entry that was checked."""

    name: str
    writing: Writing
    static: bool


class Importer:
    """Brings the entries of a source into a schedule.

    ``on_conflict`` says what becomes of an entry that is stored already and differs; one that
    differs in its history only keeps it unless it is to be replaced. What a check
    finds is kept in a temporary file until it is written: 500 entries are in memory at a time,
    besides the names of all. A context manager.
    """

    def __init__(self, app: Any, store: Store, make: EntryType, on_conflict: str = "fail") -> None:
        self._app = app
        self._store = store
        self._make = make
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
        """Read everything and write nothing. One round trip per 500 entries."""
        checked = Checked()
        for batch in batches(source, BATCH):
            good = [ready for given in batch for ready in self._good(given, checked)]
            rows = self._rows([entry.key for _, entry, _, _ in good])
            stored = [Ready(*ready, row) for ready, row in zip(good, rows, strict=True)]
            plans = [ready.plan() for ready in stored if self._is_wanted(ready, checked)]
            pickle.dump(plans, self._plans)
            if progress is not None:
                progress(len(batch))
        return checked

    def write(self, progress: Callable[[int], Any] | None = None) -> None:
        """Write the entries, after a :meth:`check` that found nothing wrong.

        One round trip per 500 entries, two where there are static ones.
        """
        end = self._plans.tell()
        self._plans.seek(0)
        while self._plans.tell() < end:
            plans: list[Planned] = pickle.load(self._plans)  # what check() wrote
            if plans:
                self._save(plans)
            if progress is not None:
                progress(len(plans))

    def prune(self, names: set[str], dry_run: bool = False) -> None:
        """Remove dynamic entries that are not among ``names``. Two round trips per 500 stored."""
        after, prefix = None, self._store.keys.prefix
        while True:
            page = self._store.page(after)
            gone = [
                row.key
                for row in page.rows
                if not row.static and row.key.removeprefix(prefix) not in names
            ]
            self.written.removed += len(gone)
            if gone and not dry_run:
                self._store.delete_all(gone)
            after = page.after
            if after is None:
                return

    # -- checking ------------------------------------------------------------------------------

    def _good(
        self, given: Incoming, checked: Checked
    ) -> Iterator[tuple[Incoming, RedBeatSchedulerEntry, str, str]]:
        """Yield the entry with its texts unless there is anything wrong with it."""
        entry = given.entry
        if entry is None:
            checked.refuse(given.where, given.problem)
            return
        try:
            entry._static = given.static
            texts = given.texts or entry.texts()
            entry._own_key()
        except (InvalidEntryError, ArithmeticError, LookupError) as error:
            checked.refuse(given.where, str(error))
            return
        name = str(entry.name)
        if name in checked.names:
            checked.refuse(given.where, f"name: {name!r} stands here a second time")
            return
        checked.names.add(name)
        yield given, entry, *texts

    def _rows(self, keys: Sequence[str]) -> list[Row]:
        return self._store.read(keys).rows if keys else []

    def _is_wanted(self, ready: Ready, checked: Checked) -> bool:
        """Whether an entry is to be written; notes what speaks against it."""
        where, name, row = ready.incoming.where, ready.entry.name, ready.row
        if row.definition is None and "hash" in row.problem:
            checked.refuse(where, f"name: {name!r}: {row.problem}; remove that key")
        elif ready.is_new:
            self.written.created += 1
            return True
        elif ready.is_same:
            self.written.unchanged += 1
        elif self._on_conflict == "keep" or (self._on_conflict == "fail" and ready.has_same_texts):
            self.written.kept += 1
        elif row.static and not ready.incoming.static:
            problem = "is an entry of beat_schedule; change it there, or use another name"
            checked.refuse(where, f"name: {name!r} {problem}")
        elif self._on_conflict == "fail":
            checked.conflict(where, f"{name!r} is stored already and differs")
        else:
            self.written.changed += 1
            return True
        return False

    # -- writing -------------------------------------------------------------------------------

    def _save(self, plans: Sequence[Planned]) -> None:
        results = self._store.save_all([plan.writing for plan in plans])
        for plan, saved in zip(plans, results, strict=True):
            # Somebody made it meanwhile, or the clock of this host is ahead.
            if saved.code != SAVED:
                self._save_again(plan.writing)
        statics = [_static_row(plan) for plan in plans if plan.static]
        if statics:
            self._store.sync_statics(statics, None, "")

    def _save_again(self, writing: Writing) -> None:
        entry = self._make.from_definition(self._app, writing.definition, writing.policy)
        entry._new_identity = writing.identity
        texts = Writing(writing.key, writing.definition, writing.policy)
        save_batch(self._store, [(entry, texts)])


def _static_row(plan: Planned) -> StaticRow:
    """Return what makes a stored entry a static one; its history and score stay."""
    key, definition, policy, meta, *_ = plan.writing
    return StaticRow(plan.name, key, definition, policy, meta or encode_meta(None), PARKED)
