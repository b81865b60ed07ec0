"""Creates entries from stored definitions quickly, by copying entries with the same schedule."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from json.encoder import JSONEncoder
from typing import Any, Final, NamedTuple, Protocol

from celery import Celery

from redbeat.codec.stored import is_valid_text, json_in, object_in
from redbeat.decoder import (
    MAX_DEPTH,
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    active_codec,
)
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.storage.own_keys import check_destinations
from redbeat.storage.wire import Row

from .decide import counts_from
from .definition import FIELDS, check_options, stored_options, warn_if_too_short
from .lazy import has_scalars

#: Maximum number of characters of a definition for which a template is used.
#: Longer definitions are decoded directly, because a failed attempt with a template costs time.
LONGEST: Final = 65_536

#: Maximum number of templates; each template needs about 4 KiB.
MAX_TEMPLATES: Final = 1000

#: The JSON key that marks a value that plain JSON cannot represent, such as a datetime.
TAGGED: Final = '"__type__"'

#: The fields in which similar entries differ.
#: Stored definitions contain the fields in ``INDIVIDUAL`` before the schedule.
INDIVIDUAL: Final = frozenset({"name", "task", "args", "kwargs", "options"})
SCHEDULE: Final = '"schedule":'

#: Errors that decoding an invalid definition may raise.
DECODING_ERRORS: Final = (
    *(AttributeError, KeyError, TypeError, ValueError, RecursionError),
    *(DecodeError, InvalidEntryError),
)

DEFAULT_CODEC: Final = (RedBeatJSONEncoder, RedBeatJSONDecoder)

as_json: Final = JSONEncoder(allow_nan=False).encode


class NewEntry(NamedTuple):
    """An entry without history, and the JSON of its definition and policy (None if unknown)."""

    entry: RedBeatSchedulerEntry
    texts: tuple[str, str] | None = None


class Template(NamedTuple):
    """An entry to copy, its definition and policy, and the count of type tags in its definition."""

    entry: RedBeatSchedulerEntry
    definition: dict[str, Any]
    policy: str
    tags: int


class Templates:
    """Creates entries like ``from_definition()``, but faster if many entries share a schedule.

    This class calls ``from_definition()`` for all entries that it cannot copy: invalid entries,
    entries of a user's class or codec, paused entries, and entries with arguments that are not
    plain JSON. No round trips.
    """

    def __init__(self, app: Celery, make: type[RedBeatSchedulerEntry]) -> None:
        self._app = app
        self.make = make
        self._default_codec = make is RedBeatSchedulerEntry and active_codec() == DEFAULT_CODEC
        self._templates: OrderedDict[tuple[str, bool, str], Template | None] = OrderedDict()

    def loaded(self, text: str, policy: str) -> RedBeatSchedulerEntry:
        """Create an entry without history from a stored definition.

        Raises :exc:`DecodeError`. Does not check ``redbeat_task_allowlist``.
        """
        try:
            entry = self._of_text(text, policy)
        except DECODING_ERRORS:
            entry = None  # from_definition() raises the error, or succeeds
        if entry is None:
            return self.make.from_definition(self._app, text, policy)
        entry.saved_state = entry.saved_state._replace(texts=(text, policy))
        return entry

    def with_history(self, row: Row) -> RedBeatSchedulerEntry:
        """Create an entry with its history and identity from a row; raises :exc:`DecodeError`."""
        entry = self.loaded(row.definition or "", row.policy)
        entry.recall(row.meta, row.runtime, row.identity)
        return entry

    def _of_text(self, text: str, policy: str) -> RedBeatSchedulerEntry | None:
        """Create an entry from a template, or return None if no template can be used.

        All fields in ``INDIVIDUAL`` must come before the schedule in ``text``. The part of ``text``
        from the schedule on is decoded only once, because it is the same in many entries.
        """
        head, _, tail = text.partition(SCHEDULE)
        head = head.rstrip()
        # Only the schedule may have a type tag. A backslash may begin an escape sequence that hides
        # the type tag of another value.
        plain = TAGGED not in head and tail.count(TAGGED) == 1 and "\\" not in text
        if not (self._default_codec and plain and head[-1:] == "," and is_small(text)):
            return None
        # ``begin`` is a JSON object only if "schedule" is a field of the definition, and not a
        # nested key.
        begin = head[:-1] + "}"
        fields = json_in(begin, "definition")
        enabled = fields.pop("enabled", True)
        individual = individual_fields(fields)
        if individual is None or type(enabled) is not bool or not fields.keys() <= INDIVIDUAL:
            return None
        key = (tail, enabled, policy)
        if key not in self._templates:
            rest = json_in(f"{{{SCHEDULE}{tail}", "definition")
            whole = {**individual, "enabled": enabled, **rest}
            self._keep(key, None if rest.keys() & INDIVIDUAL else self._new(whole, policy))
        template = self._templates[key]
        return template and _with_fields(template, individual)

    def from_json(self, definition: Any, policy: str) -> NewEntry:
        """Create an entry from a definition in plain JSON; raises :exc:`DecodeError`."""
        try:
            new = self._copied(definition, policy)
        except DECODING_ERRORS:
            new = None  # from_definition() raises the error, or succeeds
        if new is not None:
            return new
        return NewEntry(self.make.from_definition(self._app, json.dumps(definition), policy))

    def _copied(self, definition: dict[str, Any], policy: str) -> NewEntry | None:
        """Create an entry from a template, or return None if no template can be used."""
        if not (self._default_codec and definition.keys() <= FIELDS.keys()):
            return None
        individual, enabled = individual_fields(definition), definition.get("enabled", True)
        if individual is None or type(enabled) is not bool:
            return None
        key = (repr(definition["schedule"]), enabled, policy)
        if key not in self._templates:
            self._keep(key, self._new(definition, policy))
        template = self._templates[key]
        if template is None:
            return None
        options = stored_options(individual["options"])
        text = as_json({**template.definition, **individual, "options": options})
        if text.count(TAGGED) != template.tags or not is_small(text):
            return None
        return NewEntry(_new_entry(template, individual), (text, template.policy))

    def _keep(self, key: tuple[str, bool, str], template: Template | None) -> None:
        self._templates[key] = template
        if len(self._templates) > MAX_TEMPLATES:
            self._templates.popitem(last=False)

    def _new(self, definition: dict[str, Any], policy: str) -> Template | None:
        bare = {name: value for name, value in definition.items() if name not in INDIVIDUAL}
        named = {"name": definition["name"], "task": definition["task"]}
        entry = self.make.from_definition(self._app, as_json({**named, **bare}), policy)
        if entry.saved_state.has_lazy or entry.saved_state.pause is not None:
            return None
        text, policy_text = entry.texts()
        return Template(entry, object_in(text, "definition"), policy_text, text.count(TAGGED))


def individual_fields(definition: dict[str, Any]) -> dict[str, Any] | None:
    """Return the ``INDIVIDUAL`` fields of a definition, None if a field has a wrong type.

    Raises :exc:`InvalidEntryError` for an invalid option.
    """
    name, task, args = definition["name"], definition["task"], definition.get("args")
    kwargs, options = definition.get("kwargs"), definition.get("options")
    named = name and isinstance(name, str) and task and isinstance(task, str)
    if not (named and is_valid_text(name) and is_valid_text(task)):
        return None
    if not (args is None or isinstance(args, (list, tuple))):
        return None
    kwargs, options = {} if kwargs is None else kwargs, {} if options is None else options
    if not (isinstance(kwargs, dict) and isinstance(options, dict)):
        return None
    check_options(options)
    return {"name": name, "task": task, "args": args, "kwargs": kwargs, "options": options}


def is_small(text: str) -> bool:
    """Return whether a text is short and cannot exceed the nesting limit."""
    return len(text) <= LONGEST and text.count("[") + text.count("{") <= MAX_DEPTH


def _with_fields(template: Template, individual: dict[str, Any]) -> RedBeatSchedulerEntry:
    entry = template.entry.__copy__()
    entry.__dict__.update(individual)
    return entry


def _new_entry(template: Template, individual: dict[str, Any]) -> RedBeatSchedulerEntry:
    """Create an entry whose schedule starts now.

    Raises :exc:`InvalidEntryError` if its task is not allowed, or its queue is a key of RedBeat.
    """
    entry = _with_fields(template, individual)
    entry.check_allowed()
    check_destinations(entry.app, entry.options)
    entry.last_run_at = counts_from(entry.schedule, entry.default_now())
    entry.saved_state = entry.saved_state._replace(last_run_at=entry.last_run_at)
    return entry


#: Maximum number of cached entries; each cached entry needs about 3 KiB.
CACHE_SIZE = 10_000

#: A full cache admits one new key in 16.
#: If a full cache admitted each new key, a cyclic scan would replace every key before its next use.
ADMIT_ONE_IN = 16


class Source(Protocol):
    """The app and the entry class of a scheduler; users may replace both at any time."""

    app: Celery
    Entry: type[RedBeatSchedulerEntry]


@dataclass(slots=True)
class Prototype:
    """A cached entry without history, its stored texts, and the history after its last run.

    ``flat`` is true if the arguments and options contain only immutable values. After each run, the
    beat replaces the history in the ``Prototype``. A new ``Prototype`` after each run would often
    trigger the garbage collector, which traverses all objects of the beat.
    """

    definition: str
    policy: str
    entry: RedBeatSchedulerEntry
    flat: bool
    #: The fields ``meta`` and ``runtime`` that the beat wrote last; None and "" before any write.
    meta: str | None = None
    runtime: str = ""
    #: The decoded history in the fields ``meta`` and ``runtime``.
    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None


class Prototypes:
    """A bounded cache of entries by key, with the histories that this beat wrote."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: OrderedDict[str, Prototype] = OrderedDict()
        self._refused = 0
        self._templates = Templates(source.app, source.Entry)
        self._codec = active_codec()

    def refresh(self) -> None:
        """Clear the cache if a user replaced the entry class or the codec."""
        codec, cls = active_codec(), self._source.Entry
        if codec != self._codec or cls is not self._templates.make:
            self._known.clear()
            self._templates, self._codec = Templates(self._source.app, cls), codec

    def load(
        self, key: str, definition: str, policy: str, meta: str, runtime: str, identity: str
    ) -> RedBeatSchedulerEntry:
        """Return a new entry with the given stored fields; the caller may change the entry.

        Raises :exc:`DecodeError` if a field is invalid, or if the name in the definition belongs to
        another key. Raises :exc:`NotAllowedError` if the task is not allowed.
        """
        known = self._known.get(key)
        if known is None or known.definition != definition or known.policy != policy:
            made = self._make(key, definition, policy)
            if known is not None or self._has_room():
                self._known[key] = made
            known = made
        entry = copy_of(known.entry, known.flat)
        if known.meta == meta and known.runtime == runtime and not entry.reads_meta_itself():
            last_run_at, count = known.last_run_at, known.total_run_count
            entry.adopt(meta, last_run_at, count, known.scheduled_at, identity)
        else:
            entry.recall(meta, runtime, identity)
        return entry

    def note(self, key: str, meta: str, runtime: str, entry: RedBeatSchedulerEntry) -> None:
        """Remember the history of an entry after its run, if the cache contains the entry."""
        known = self._known.get(key)
        if known is not None:
            known.meta, known.runtime = meta, runtime
            known.last_run_at, known.scheduled_at = entry.last_run_at, entry.scheduled_at
            known.total_run_count = entry.total_run_count

    def _has_room(self) -> bool:
        """Return whether the caller may add a key to the cache.

        A full cache admits only one new key in 16, which replaces the oldest key.
        """
        if len(self._known) < CACHE_SIZE:
            return True
        self._refused += 1
        if self._refused % ADMIT_ONE_IN:
            return False
        self._known.popitem(last=False)
        return True

    def _make(self, key: str, definition: str, policy: str) -> Prototype:
        entry = self._templates.loaded(definition, policy)
        if entry.key != key:
            raise DecodeError(
                "definition.name", f"{entry.name!r} does not match the key of the entry"
            )
        entry.check_allowed()
        warn_if_too_short(entry.name, entry.schedule)
        flat = has_scalars((*(entry.args or ()), *entry.kwargs.values(), *entry.options.values()))
        return Prototype(definition, policy, entry, flat)


def copy_of(entry: RedBeatSchedulerEntry, flat: bool) -> RedBeatSchedulerEntry:
    """Return a copy that shares no mutable arguments or options with ``entry``."""
    copied = entry.__copy__()
    args, kwargs, options = entry.args, entry.kwargs, entry.options
    if flat:
        copied.args = None if args is None else list(args)
        copied.kwargs, copied.options = dict(kwargs), dict(options)
    else:
        copied.args, copied.kwargs, copied.options = copy.deepcopy((args, kwargs, options))
    return copied
