"""A schedule as lines of JSON, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from redbeat.entries.history import History
from redbeat.entries.runs import with_ids
from redbeat.entries.templates import Templates
from redbeat.errors import DecodeError
from redbeat.storage.quarantine import shown
from redbeat.storage.reading import Reading
from redbeat.storage.wire import Row

from .incoming import EntryType
from .jsonlines import write_line

__all__ = ("Exported", "export_lines")


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
        return Exported("", shown(row.key), row.problem or "it has no definition")
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
        return Exported("", shown(row.key), str(error))
