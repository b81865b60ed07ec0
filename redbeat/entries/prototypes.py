"""What a beat need not decode again: definitions it has seen, histories it wrote itself."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, Protocol

from redbeat.decoder import active_codec
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError

from .history import History

__all__ = ("Histories", "Prototypes")

#: Definitions, and histories, kept decoded; about 3 KiB for both of an entry.
CAPACITY = 10_000

SCALARS = (str, int, float, bool, type(None))


class Source(Protocol):
    """What tells how entries are made; users subclass it."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]


class Prototypes:
    """A bounded cache of entries without history, by the text they were decoded from."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._entries: OrderedDict[tuple[Any, ...], tuple[RedBeatSchedulerEntry, bool]] = (
            OrderedDict()
        )

    def get(self, key: str, definition: str, policy: str) -> RedBeatSchedulerEntry:
        """Return an entry of its own, free to be changed; raises :exc:`DecodeError`.

        A definition whose name belongs to another key is refused: it would be dispatched under a
        name whose history is elsewhere.
        """
        # A class or codec that a user puts in place later decodes afresh.
        identity = (key, definition, policy, self._source.Entry, active_codec())
        found = self._entries.get(identity)
        if found is None:
            found = self._make(key, definition, policy)
            self._entries[identity] = found
            if len(self._entries) > CAPACITY:
                self._entries.popitem(last=False)
        entry, flat = found
        return own(entry, flat)

    def _make(self, key: str, definition: str, policy: str) -> tuple[RedBeatSchedulerEntry, bool]:
        entry = self._source.Entry.from_definition(self._source.app, definition, policy)
        if entry.key != key:
            raise DecodeError("definition.name", f"{entry.name!r} does not belong to this key")
        entry._zone = entry.policy.zone or self._source.app.timezone
        return entry, all(map(is_flat, (entry.args or (), entry.kwargs, entry.options)))


class Histories:
    """A bounded cache of the histories that this beat wrote, by entry key and their texts."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, tuple[str, str, History]] = OrderedDict()

    def note(self, key: str, meta: str, runtime: str, entry: RedBeatSchedulerEntry) -> None:
        """Keep what an entry looks like after its run."""
        history = History(entry.last_run_at, entry.total_run_count, entry.scheduled_at)
        self._written[key] = (meta, runtime, history)
        if len(self._written) > CAPACITY:
            self._written.popitem(last=False)

    def read(self, key: str, meta: str, runtime: str) -> History:
        """Return the history in the texts of an entry; raises :exc:`DecodeError`."""
        found = self._written.pop(key, None)
        if found is not None and found[0] == meta and found[1] == runtime:
            return found[2]
        return History.read(meta, runtime)


def is_flat(value: Any) -> bool:
    """Whether a container holds only values that nobody can change."""
    items = value.values() if isinstance(value, dict) else value
    return all(isinstance(item, SCALARS) for item in items)


def own(entry: RedBeatSchedulerEntry, flat: bool) -> RedBeatSchedulerEntry:
    """Return a copy that shares nothing that can be changed with its prototype."""
    mine = entry.__copy__()
    if flat:
        mine.args = entry.args and list(entry.args)
        mine.kwargs, mine.options = dict(entry.kwargs), dict(entry.options)
    else:
        parts = (entry.args, entry.kwargs, entry.options)
        mine.args, mine.kwargs, mine.options = copy.deepcopy(parts)
    return mine
