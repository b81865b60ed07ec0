"""Entries as lines of JSON, one object per entry: ``name``, ``definition`` and ``policy``.

With a history there are ``meta`` and ``runtime`` too, as they are stored, in ``history`` the lines
of the last runs, each with its task id, and the ``identity`` of the entry. ``static`` is true for
an entry of ``beat_schedule``, and left out for any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from redbeat.config import MAX_HISTORY
from redbeat.decoder import MAX_TEXT
from redbeat.entries.history import History
from redbeat.entries.runs import is_line, with_ids
from redbeat.entries.templates import Templates
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.storage.quarantine import printable
from redbeat.storage.reading import Reading
from redbeat.storage.wire import Row

from .importing import EntryType, Incoming, fail

__all__ = ("FIELDS", "MAX_LINE", "Exported", "export_lines", "read_lines", "write_line")

#: What a line may say.
FIELDS: Final = (
    *("name", "definition", "policy", "meta", "runtime", "history", "identity", "static"),
)

#: Bytes of a line, at most.
MAX_LINE: Final = 8 * MAX_TEXT


#: What fields must be, if they are there at all.
KINDS: Final[dict[str, tuple[type, str]]] = {
    **dict.fromkeys(("definition", "policy", "meta", "runtime"), (dict, "an object")),
    "identity": (str, "a text"),
    "static": (bool, "true or false"),
}


def write_line(name: str, row: Row, history: bool = False) -> str:
    """Return an entry as a line, without its end; raises :exc:`DecodeError` for what is no JSON."""
    texts = {"definition": row.definition, "policy": row.policy}
    if history:
        texts |= {"meta": row.meta, "runtime": row.runtime}
    fields = [f'"{field}": {_one_line(field, text)}' for field, text in texts.items() if text]
    if history and row.history:
        fields.append(f'"history": {json.dumps(row.history.splitlines())}')
    if history and row.identity:
        fields.append(f'"identity": {json.dumps(row.identity)}')
    if row.static:
        fields.append('"static": true')
    return f'{{"name": {json.dumps(name)}, {", ".join(fields)}}}'


def _one_line(field: str, text: str) -> str:
    """Return JSON text on one line of ASCII, as it is where it is that already."""
    if text.isascii() and text.isprintable():
        return text
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DecodeError(field, f"cannot be read as JSON: {error}") from error


def read_lines(app: Any, make: EntryType, file: IO[bytes]) -> Iterator[Incoming]:
    """Yield the entry of each line from where the file is; empty lines say nothing."""
    number, templates = 0, Templates(app, make)
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"line {number}"
        try:
            if len(line) > MAX_LINE:
                _skip_line(file, line)
                raise InvalidEntryError("line", f"is longer than {MAX_LINE} bytes")
            if line.strip():
                yield _read(templates, where, line)
        except (InvalidEntryError, DecodeError) as error:
            yield fail(where, error)


def _skip_line(file: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE)


def _read(templates: Templates, where: str, text: bytes) -> Incoming:
    line = _object(text)
    name = line["definition"]["name"]
    policy, meta, runtime = (_text(line.get(field)) for field in ("policy", "meta", "runtime"))
    entry, texts = templates.from_json(line["definition"], policy)
    if entry.name != name:
        raise InvalidEntryError("name", f"must be a text, not {name!r:.60}")
    if meta:
        History.read(meta, runtime)
    history = "".join([f"{text}\n" for text in line.get("history") or ()])
    told = {"meta": meta, "runtime": runtime, "history": history}
    told["identity"] = line.get("identity") or ""
    return Incoming(where, entry, static=bool(line.get("static")), texts=texts, **told)


def _text(value: Any) -> str:
    return json.dumps(value) if value else ""


def _object(text: bytes) -> dict[str, Any]:
    """Return a line whose fields are of the right kinds, with the name in the definition too."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError("line", f"cannot be read as JSON: {error}") from error
    if not isinstance(line, dict):
        raise InvalidEntryError("line", f"must be a JSON object, not {line!r:.60}")
    for field in line:
        if field not in FIELDS:
            problem = f"is unknown; the fields of a line are {', '.join(FIELDS)}"
            raise InvalidEntryError(field, problem)
    for field, (kind, what) in KINDS.items():
        value = line.get(field)
        if value is not None and not isinstance(value, kind):
            raise InvalidEntryError(field, f"must be {what}, not {value!r:.60}")
    _check_history(line.get("history"))
    return _named(line)


def _check_history(lines: Any) -> None:
    if lines is None:
        return
    if not isinstance(lines, list) or len(lines) > MAX_HISTORY:
        raise InvalidEntryError("history", f"must be a list of at most {MAX_HISTORY} lines")
    for text in lines:
        if not (isinstance(text, str) and is_line(text)):
            problem = (
                f"{text!r:.80} is no run; write it as '<UNIX seconds> +<seconds> sent <task id>'"
            )
            raise InvalidEntryError("history", problem)


def _named(line: dict[str, Any]) -> dict[str, Any]:
    definition = line.get("definition")
    if not definition:
        raise InvalidEntryError("definition", "is missing; write it")
    name = line.get("name", definition.get("name"))
    inner = definition.setdefault("name", name)
    if str(inner) != str(name):
        problem = f"is {name!r:.60}, but {inner!r:.60} in the definition; write one of them"
        raise InvalidEntryError("name", problem)
    definition["name"] = str(name) if isinstance(name, int) else name
    return line


class Exported(NamedTuple):
    """A line of an export, or the key of an entry that cannot be read and what is wrong with it."""

    line: str
    key: str = ""
    problem: str = ""


def export_lines(
    app: Any, make: EntryType, store: Reading, history: bool = False
) -> Iterator[Exported]:
    """Yield a line per entry in due order; one that comes or goes meanwhile may be missed.

    Only what :func:`~redbeat.transfer.jsonlines.read_lines` can read again is a line. One page is
    in memory at a time. One round trip per 500 entries.
    """
    page, templates = store.page(history=history), Templates(app, make)
    while True:
        for row in page.rows:
            yield _exported(templates, store.keys.prefix, row, history)
        if page.after is None:
            return
        page = store.page(page.after, history=history)


def _exported(templates: Templates, prefix: str, row: Row, history: bool) -> Exported:
    if row.problem or row.definition is None:
        return Exported("", printable(row.key), row.problem or "it has no definition")
    try:
        entry = templates.loaded(row.definition, row.policy)
        if prefix + str(entry.name) != row.key:
            raise DecodeError("definition.name", f"is {entry.name!r:.60}, which is not its key")
        if history:
            History.read(row.meta, row.runtime)
            entry._identity = row.identity
            row = row._replace(history=with_ids(row.history, entry.own_task_id))
        return Exported(write_line(str(entry.name), row, history))
    except DecodeError as error:
        return Exported("", printable(row.key), str(error))
