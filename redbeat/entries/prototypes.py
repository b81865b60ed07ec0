"""What a beat need not decode again: definitions it has seen, histories it wrote itself."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from redbeat.decoder import active_codec
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError

from .lazy import has_scalars
from .templates import Templates

__all__ = ("Histories", "Prototypes")

#: Definitions, and histories, kept decoded; about 3 KiB for both of an entry.
CAPACITY = 10_000

#: One of so many that are not kept takes the place of the oldest. Entries come in turn: if each one
#: did, then of more than can be kept none would be there when it is asked for.
TURNOVER = 16

Kept = TypeVar("Kept")


class Bounded(OrderedDict[str, Kept]):
    """What is kept for some of the entries, by their key."""

    _refused = 0

    def has_room(self) -> bool:
        """Whether one more is to be kept; then there is room for it."""
        if len(self) < CAPACITY:
            return True
        self._refused += 1
        if self._refused % TURNOVER:
            return False
        self.popitem(last=False)
        return True


class Source(Protocol):
    """What tells how entries are made; users subclass it."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]


class Prototype(NamedTuple):
    """An entry without history, and what it was made from."""

    definition: str
    policy: str
    entry: RedBeatSchedulerEntry
    #: Whether its arguments and options hold nothing that can be changed.
    flat: bool


class Prototypes:
    """A bounded cache of entries without history, by their key."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: Bounded[Prototype] = Bounded()
        self._templates = Templates(source.app, source.Entry)
        self._codec = active_codec()

    def refresh(self) -> None:
        """Forget what was made by a class or codec that a user has put another in place of."""
        codec, cls = active_codec(), self._source.Entry
        if codec != self._codec or cls is not self._templates.make:
            self._known.clear()
            self._templates, self._codec = Templates(self._source.app, cls), codec

    def get(self, key: str, definition: str, policy: str) -> RedBeatSchedulerEntry:
        """Return an entry of its own, free to be changed.

        Raises :exc:`DecodeError`, also for a definition whose name belongs to another key: it would
        be dispatched under a name whose history is elsewhere. Raises :exc:`InvalidEntryError` for a
        task that is not allowed.
        """
        found = self._known.get(key)
        if found is None or found.definition != definition or found.policy != policy:
            made = self._make(key, definition, policy)
            if found is None and not self._known.has_room():
                return made.entry
            found = self._known[key] = made
        return own(found.entry, found.flat)

    def _make(self, key: str, definition: str, policy: str) -> Prototype:
        entry = self._templates.loaded(definition, policy)
        if entry.key != key:
            raise DecodeError("definition.name", f"{entry.name!r} does not belong to this key")
        entry.check_allowed()
        if entry._zone is None:
            entry._zone = entry.policy.zone or self._source.app.timezone
        flat = has_scalars((*(entry.args or ()), *entry.kwargs.values(), *entry.options.values()))
        return Prototype(definition, policy, entry, flat)


@dataclass(slots=True)
class Written:
    """The texts of a history, and what they say.

    One for an entry as long as it is known: a new one for each run would have the garbage collector
    look at all that a beat holds, again and again.
    """

    meta: str = ""
    runtime: str = ""
    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None


class Histories:
    """A bounded cache of the histories that this beat wrote, by entry key and their texts."""

    def __init__(self) -> None:
        self._written: Bounded[Written] = Bounded()

    def note(self, key: str, meta: str, runtime: str, entry: RedBeatSchedulerEntry) -> None:
        """Keep what an entry looks like after its run."""
        known = self._written.get(key)
        if known is None:
            if not self._written.has_room():
                return
            known = self._written[key] = Written()
        known.meta, known.runtime = meta, runtime
        known.last_run_at, known.scheduled_at = entry.last_run_at, entry.scheduled_at
        known.total_run_count = entry.total_run_count

    def give(self, entry: RedBeatSchedulerEntry, key: str, meta: str, runtime: str) -> None:
        """Have an entry take over the history in its texts; raises :exc:`DecodeError`."""
        known = None if entry.reads_meta_itself() else self._written.get(key)
        if known is not None and known.meta == meta and known.runtime == runtime:
            entry.adopt(meta, known.last_run_at, known.total_run_count, known.scheduled_at)
        else:
            entry.recall(meta, runtime)


def own(entry: RedBeatSchedulerEntry, flat: bool) -> RedBeatSchedulerEntry:
    """Return a copy that shares nothing that can be changed with its prototype."""
    mine = entry.__copy__()
    args, kwargs, options = entry.args, entry.kwargs, entry.options
    if flat:
        mine.args = None if args is None else list(args)
        mine.kwargs, mine.options = dict(kwargs), dict(options)
    else:
        mine.args, mine.kwargs, mine.options = copy.deepcopy((args, kwargs, options))
    return mine
