"""The page of one entry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from flask import Blueprint, abort, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import from_timestamp
from redbeat.config import ensure_conf
from redbeat.entries import pauses, status
from redbeat.entries.runs import SENT, Occurrence, read_history
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.find import record_of
from redbeat.management.forecast import upcoming_or_problem, zone_of
from redbeat.presentation import describe, text
from redbeat.schedule import Record
from redbeat.storage import views
from redbeat.transfer.entry_file import CALL

from .charts import lateness_chart
from .list import poll_after
from .values import now_of, schedule, store, texts_of, zone

entries = Blueprint("entries", __name__)

NO_ENTRY: Final = "There is no entry {!r}. The entry was deleted, or it has finished."

#: Number of upcoming runs on the entry page.
UPCOMING: Final = 10


def entry_name() -> str:
    """Return the entry name in the URL.

    Aborts the request with 404 if the URL has no name, and with 400 if it has several names.
    """
    names = request.args.getlist("name")
    if len(names) > 1:
        abort(400, "The URL has several entry names (parameter name=...).")
    return (names and names[0]) or abort(404, "The URL has no entry name (parameter name=...).")


def get_or_404(name: str) -> tuple[float, views.Shown, Record]:
    """Return the time of Redis (UNIX seconds), and the row and the record of an entry.

    Aborts the request with 404 if the entry does not exist. Takes one round trip.
    """
    try:
        page, record = record_of(schedule, name)
    except KeyError:
        record = None
    if record is None:
        abort(404, NO_ENTRY.format(name))
    return page.now, page.rows[0], record


def entry_or_error(name: str) -> Any:
    """Return an entry, or abort the request if the entry is missing or unreadable.

    The HTTP status is 404 for a missing entry and 409 for an unreadable entry. Takes one round
    trip.
    """
    _, _, record = get_or_404(name)
    return record.entry or abort(409, f"The entry cannot be read: {record.problem}")


@contextmanager
def existing(name: str) -> Iterator[None]:
    """Abort the request with 404 if the entry is deleted while the ``with`` block changes it."""
    try:
        yield
    except KeyError:
        abort(404, NO_ENTRY.format(name))


@entries.get("/entry")
def show() -> ResponseReturnValue:
    """Show the page of an entry. Takes two round trips."""
    name = entry_name()
    started = time.monotonic()
    seconds, row, record = get_or_404(name)
    now = now_of(seconds)
    if record.entry is not None:
        runs = record.entry.history
    else:
        lines = store.past(row.key).lines if row.is_hash else ""
        runs = read_history(lines)[: ensure_conf(schedule.app).history_size]
    context: dict[str, Any] = {"name": name, "record": record, "row": row, "now": now}
    lateness = partial(late, record.entry)
    context.update(status=status.status_of(record, row), runs=runs, late=lateness)
    context.update(texts=texts_of(row), backfills=status.shown_state(row.stored, seconds).backfills)
    points = [
        (text.in_zone(run.scheduled_at, zone()), lateness(run))
        for run in reversed(runs)
        if run.outcome == SENT
    ]
    context["lateness"] = lateness_chart(points) if points else None
    pause = pauses.Pause.of_entry(record.entry)
    context.update(pause=pause, paused_at=from_timestamp(pause.since) if pause else None)
    if record.entry is not None:
        context.update(_definition_context(record.entry))
        context["upcoming"], context["problem"] = upcoming_or_problem(record.entry, UPCOMING, now)
    context["poll"] = poll_after(time.monotonic() - started)
    return render_template("entry.html", **context)


def _definition_context(entry: Any) -> dict[str, Any]:
    definition = describe.stored(entry)
    fields = {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in describe.policy(entry).items()
    }
    return {
        "entry": entry,
        "fields": {name: definition[name] for name in CALL if definition[name]},
        "description": fields.pop("description", None),
        "policy": fields,
        "zone": zone_of(entry),
    }


def late(entry: RedBeatSchedulerEntry | None, run: Occurrence) -> float:
    """Return the lateness of a run in seconds, or 0 for an early run.

    ``entry`` is None if the entry cannot be read.
    """
    if entry is not None:
        return max(entry.lateness_of(run), 0.0)
    return max((run.dispatched_at - run.scheduled_at).total_seconds(), 0.0)
