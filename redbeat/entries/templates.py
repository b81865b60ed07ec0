"""Entries made from stored texts; most differ from one read before in a few fields only."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from json.decoder import JSONDecoder
from json.encoder import JSONEncoder
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from redbeat.decoder import (
    MAX_DEPTH,
    MAX_TEXT,
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    active_codec,
)
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError

from .decide import counts_from
from .definition import FIELDS, stored_options
from .lazy import has_scalars

__all__ = (
    "Histories",
    "Made",
    "Prototypes",
    "Templates",
)

#: Entries that are kept to make others of, at most; about 4 KiB each.
CAPACITY: Final = 1000

#: What stands in the text of a value that is more than plain JSON.
TAGGED: Final = '"__type__"'

#: Fields of a definition that differ from one entry to the next; those before it in a stored one.
OWN: Final = frozenset({"name", "task", "args", "kwargs", "options"})
SCHEDULE: Final = '"schedule":'

#: What is raised where a definition is not what it should be.
WRONG: Final = (
    *(AttributeError, KeyError, TypeError, ValueError, RecursionError),
    *(DecodeError, InvalidEntryError),
)

USUAL: Final = (RedBeatJSONEncoder, RedBeatJSONDecoder)

as_json: Final = JSONEncoder(allow_nan=False).encode
read_json: Final = JSONDecoder().raw_decode


class Made(NamedTuple):
    """An entry without history, with its definition and policy as stored where they are known."""

    entry: RedBeatSchedulerEntry
    texts: tuple[str, str] | None = None


class Template(NamedTuple):
    """An entry to copy, its definition as plain JSON, its policy, and how many tags it has."""

    entry: RedBeatSchedulerEntry
    definition: dict[str, Any]
    policy: str
    tags: int


class Templates:
    """Makes entries of a class as ``from_definition()`` does, but faster where many are alike.

    What it cannot copy, and what is wrong, is left to ``from_definition()``: entries of another
    class or codec, arguments that are more than plain JSON, paused entries. No round trips.
    """

    def __init__(self, app: Any, make: type[RedBeatSchedulerEntry]) -> None:
        self._app = app
        self.make = make
        self._usual = make is RedBeatSchedulerEntry and active_codec() == USUAL
        self._templates: OrderedDict[tuple[str, bool, str], Template | None] = OrderedDict()

    def loaded(self, text: str, policy: str) -> RedBeatSchedulerEntry:
        """Return the entry of a stored definition, which is yet to :meth:`adopt` its history.

        Raises :exc:`DecodeError`. Whether its task is allowed is not looked at.
        """
        try:
            entry = self._of_text(text, policy)
        except WRONG:
            entry = None  # from_definition() says what is wrong, if anything is
        if entry is None:
            return self.make.from_definition(self._app, text, policy)
        entry._seen_texts = (text, policy)
        return entry

    def _of_text(self, text: str, policy: str) -> RedBeatSchedulerEntry | None:
        """Return the entry of a definition that has its own fields first, then its schedule.

        What stands from there on is the same text for many, so it is decoded for the first of them.
        """
        head, _, tail = text.partition(SCHEDULE)
        head = head.rstrip()
        # One tag is that of the schedule, unless another one is written in a way of its own.
        plain = TAGGED not in head and tail.count(TAGGED) == 1 and "\\" not in text
        if not (self._usual and plain and head[-1:] == "," and is_small(text)):
            return None
        # Only where the schedule is a field of the definition itself this is an object.
        begin = head[:-1] + "}"
        fields, end = read_json(begin)
        enabled = fields.pop("enabled", True)
        own = own_fields(fields)
        if own is None or type(enabled) is not bool or end < len(begin) or not fields.keys() <= OWN:
            return None
        key = (tail, enabled, policy)
        if key not in self._templates:
            rest = json.loads(f"{{{SCHEDULE}{tail}")
            whole = {**own, "enabled": enabled, **rest}
            self._keep(key, None if rest.keys() & OWN else self._new(whole, policy))
        template = self._templates[key]
        return template and _with_own(template, own)

    def from_json(self, definition: Any, policy: str) -> Made:
        """Return the entry of a definition in plain JSON; raises :exc:`DecodeError`."""
        try:
            made = self._copied(definition, policy)
        except WRONG:
            made = None  # from_definition() says what is wrong, if anything is
        if made is not None:
            return made
        return Made(self.make.from_definition(self._app, json.dumps(definition), policy))

    def _copied(self, definition: dict[str, Any], policy: str) -> Made | None:
        found = self._matching(definition, policy)
        if found is None:
            return None
        template, own = found
        text = as_json({**template.definition, **own, "options": stored_options(own["options"])})
        if text.count(TAGGED) != template.tags or not is_small(text):
            return None
        return Made(_new_entry(template, own), (text, template.policy))

    def _matching(
        self, definition: dict[str, Any], policy: str
    ) -> tuple[Template, dict[str, Any]] | None:
        """Return the template of a definition, and the fields that are its own."""
        if not (self._usual and definition.keys() <= FIELDS.keys()):
            return None
        own, enabled = own_fields(definition), definition.get("enabled", True)
        if own is None or type(enabled) is not bool:
            return None
        key = (repr(definition["schedule"]), enabled, policy)
        if key not in self._templates:
            self._keep(key, self._new(definition, policy))
        template = self._templates[key]
        return None if template is None else (template, own)

    def _keep(self, key: tuple[str, bool, str], template: Template | None) -> None:
        self._templates[key] = template
        if len(self._templates) > CAPACITY:
            self._templates.popitem(last=False)

    def _new(self, definition: dict[str, Any], policy: str) -> Template | None:
        bare = {name: value for name, value in definition.items() if name not in OWN}
        named = {"name": definition["name"], "task": definition["task"]}
        entry = self.make.from_definition(self._app, as_json({**named, **bare}), policy)
        if entry._lazy or entry._pause is not None:
            return None
        text, policy_text = entry.texts()
        entry._zone = entry.policy.zone or self._app.timezone
        return Template(entry, json.loads(text), policy_text, text.count(TAGGED))


def own_fields(definition: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields that are an entry's own, None where one is not of the right kind."""
    name, task, args = definition["name"], definition["task"], definition.get("args")
    kwargs, options = definition.get("kwargs"), definition.get("options")
    named = name and isinstance(name, str) and task and isinstance(task, str)
    if not (named and (args is None or isinstance(args, (list, tuple)))):
        return None
    kwargs, options = {} if kwargs is None else kwargs, {} if options is None else options
    if not (isinstance(kwargs, dict) and isinstance(options, dict)):
        return None
    return {"name": name, "task": task, "args": args, "kwargs": kwargs, "options": options}


def is_small(text: str) -> bool:
    """Whether a text is neither too long nor nested too deeply, at first sight."""
    return len(text) <= MAX_TEXT and text.count("[") + text.count("{") <= MAX_DEPTH


def _with_own(template: Template, own: dict[str, Any]) -> RedBeatSchedulerEntry:
    entry = template.entry.__copy__()
    entry.__dict__.update(own)
    return entry


def _new_entry(template: Template, own: dict[str, Any]) -> RedBeatSchedulerEntry:
    """Return an entry made now; raises :exc:`InvalidEntryError` for a task not allowed."""
    entry = _with_own(template, own)
    entry.check_allowed()
    entry.last_run_at = counts_from(entry.schedule, entry.default_now())
    entry._known_history = (entry.last_run_at, 0)
    return entry


#: Definitions, and histories, kept decoded; about 3 KiB for both of an entry.
PROTOTYPES_KEPT = 10_000

#: One of so many that are not kept takes the place of the oldest. Entries come in turn: if each one
#: did, then of more than can be kept none would be there when it is asked for.
TURNOVER = 16

Kept = TypeVar("Kept")


class Bounded(OrderedDict[str, Kept]):
    """What is kept for some of the entries, by their key."""

    _refused = 0

    def has_room(self) -> bool:
        """Whether one more is to be kept; then there is room for it."""
        if len(self) < PROTOTYPES_KEPT:
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
