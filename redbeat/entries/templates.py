"""Creates entries from stored definitions quickly, by copying entries with the same schedule."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, Final

from celery import Celery

from redbeat import decoder
from redbeat.codec.stored import json_in
from redbeat.entries.saving import recall
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.rows import Row

from .decide import counts_from
from .definition import FIELDS, check_options

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

DEFAULT_CODEC: Final = (decoder.RedBeatJSONEncoder, decoder.RedBeatJSONDecoder)


class Templates:
    """Creates entries like ``from_definition()``, but faster if many entries share a schedule.

    This class calls ``from_definition()`` for all entries that it cannot copy: invalid entries,
    entries of a user's class or codec, paused entries, and entries with arguments that are not
    plain JSON. No round trips.
    """

    def __init__(self, app: Celery, make: type[RedBeatSchedulerEntry]) -> None:
        self._app = app
        self._make = make
        self._default_codec = (
            make is RedBeatSchedulerEntry and decoder.active_codec() == DEFAULT_CODEC
        )
        self._templates: OrderedDict[tuple[str, bool, str], RedBeatSchedulerEntry | None] = (
            OrderedDict()
        )

    def loaded(self, text: str, policy: str) -> RedBeatSchedulerEntry:
        """Create an entry without history from a stored definition.

        Raises :exc:`DecodeError`. Does not check ``redbeat_task_allowlist``.
        """
        try:
            entry = self._copied(text, policy)
        except Exception:
            entry = None  # from_definition() raises the error, or succeeds
        if entry is None:
            return self._make.from_definition(self._app, text, policy)
        entry.saved_state = entry.saved_state._replace(texts=(text, policy))
        return entry

    def entry_of(self, row: Row) -> RedBeatSchedulerEntry:
        """Return the entry of a row, with its history; raises :exc:`DecodeError`."""
        entry = self.loaded(row.definition or "", row.policy or "")
        recall(entry, row)
        return entry

    def new(self, definition: dict[str, Any], policy: str) -> RedBeatSchedulerEntry:
        """Create an entry whose schedule starts now from a definition in plain JSON.

        Raises :exc:`DecodeError`.
        """
        entry = self.loaded(json.dumps(definition), policy)
        entry.last_run_at = counts_from(entry.schedule, entry.default_now())
        entry.saved_state = entry.saved_state._replace(last_run_at=entry.last_run_at)
        return entry

    def _copied(self, text: str, policy: str) -> RedBeatSchedulerEntry | None:
        """Create an entry from a template, or return None if no template can be used.

        All fields in ``INDIVIDUAL`` must come before the schedule in ``text``. The part of ``text``
        from the schedule on is decoded only once, because it is the same in many entries.
        """
        head, _, tail = text.partition(SCHEDULE)
        head = head.rstrip()
        # Only the schedule may have a type tag. A backslash may begin an escape sequence that hides
        # the type tag of another value.
        plain = TAGGED not in head and tail.count(TAGGED) == 1 and "\\" not in text
        # A longer or deeper text may exceed a limit, which from_definition() checks.
        small = len(text) <= LONGEST and text.count("[") + text.count("{") <= decoder.MAX_DEPTH
        if not (self._default_codec and plain and small and head[-1:] == ","):
            return None
        # ``begin`` is a JSON object only if "schedule" is a field of the definition, and not a
        # nested key.
        begin = head[:-1] + "}"
        fields = json_in(begin, "definition")
        enabled = fields.pop("enabled", True)
        individual = _individual_fields(fields)
        if individual is None or type(enabled) is not bool or not fields.keys() <= INDIVIDUAL:
            return None
        key = (tail, enabled, policy)
        if key not in self._templates:
            self._templates[key] = self._template(individual["name"], key)
            if len(self._templates) > MAX_TEMPLATES:
                self._templates.popitem(last=False)
        template = self._templates[key]
        if template is None:
            return None
        entry = template.__copy__()
        entry.__dict__.update(individual)
        return entry

    def _template(self, name: str, key: tuple[str, bool, str]) -> RedBeatSchedulerEntry | None:
        tail, enabled, policy = key
        rest = json_in(f"{{{SCHEDULE}{tail}", "definition")
        if rest.keys() & INDIVIDUAL:
            return None
        text = json.dumps({"name": name, "task": name, "enabled": enabled, **rest})
        entry = self._make.from_definition(self._app, text, policy)
        state = entry.saved_state
        return None if state.has_lazy or state.pause is not None else entry


def _individual_fields(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the ``INDIVIDUAL`` fields of a definition, None if a field has a wrong type.

    Raises :exc:`InvalidEntryError` for an invalid option.
    """
    found = {name: fields.get(name) for name in INDIVIDUAL}
    if not all(FIELDS[name][0](value) for name, value in found.items()):
        return None
    check_options(found["options"])
    return {**found, "kwargs": found["kwargs"] or {}, "options": found["options"] or {}}
