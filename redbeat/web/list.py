"""The pages with the whole schedule: a table of entries with filters, and the active beats."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.entries.status import STATES, quarantine_note
from redbeat.errors import InvalidEntryError
from redbeat.management.find import SORTED, SORTS, Query, browse

from .values import now_of, schedule, store, texts_of

listing = Blueprint("listing", __name__)

#: The possible numbers of entries per page, and the default number.
SIZES: Final = (20, 50, 100, 200)
SIZE: Final = 50

#: Column titles, each with the sort key that the link in the title selects.
COLUMNS: Final = (
    ("Entry", "name"),
    ("Runs", None),
    ("Next run", "due"),
    ("Last run", "last"),
    ("State", "state"),
)

#: Maximum number of quarantined entries on the page about beats.
MAX_QUARANTINED: Final = 50

#: Shortest and longest interval between two refreshes of an open page, in seconds.
POLL: Final = (2.0, 60.0)
#: The server spends at most this share of its time on the refreshes of one open page.
SHARE: Final = 0.05


def poll_after(seconds: float) -> float:
    """Return the refresh interval in seconds for a page that took ``seconds`` to render."""
    shortest, longest = POLL
    return round(min(max(seconds / SHARE, shortest), longest), 1)


def query_of(args: Mapping[str, str]) -> Query:
    """Return the query for entries that the URL parameters describe.

    Raises :exc:`InvalidEntryError` for an invalid parameter.
    """
    kinds = {"": None, "static": True, "dynamic": False}
    kind = args.get("static", "")
    if kind not in kinds:
        raise InvalidEntryError("static", f"must be static or dynamic, not {kind!r:.60}")
    return Query(
        name=args.get("q", "").strip(),
        task=args.get("task", "").strip(),
        state=args.get("state") or None,
        static=kinds[kind],
        sort=args.get("sort") or "due",
    )


@listing.get("/")
def index() -> ResponseReturnValue:
    """Show a page of entries.

    Takes three round trips, and more with filters, a sort order, or a page that is opened by its
    number.
    """
    started = time.monotonic()
    args = request.args
    # What is not valid means the default.
    size = next((size for size in SIZES if args.get("per") == str(size)), SIZE)
    at = args.get("at", "")
    first = int(at) if re.fullmatch("[1-9][0-9]{0,8}", at) else 1
    context: dict[str, Any] = {"columns": COLUMNS, "sizes": SIZES, "sorts": SORTS}
    context.update(states=STATES, size=size, sorted_at_most=SORTED)
    try:
        query = query_of(args)
        page = browse(schedule, query, args.get("after") or None, size, first - 1)
    except InvalidEntryError as error:
        return render_template("listing.html", problem=str(error), page=None, **context), 400
    status = schedule.status()
    context.update(query=query, page=page, now=now_of(page.now), status=status, first=first)
    context["total"] = sum(status.entries.values()) if query.plain else page.total
    context["poll"] = poll_after(time.monotonic() - started)
    return render_template("listing.html", **context)


@listing.get("/beats")
def beats() -> ResponseReturnValue:
    """Show the beats, the Redis server and quarantined entries. Takes at most five round trips."""
    started = time.monotonic()
    status, notes = schedule.status(), store.quarantined(MAX_QUARANTINED)
    keys = list(notes)
    names = [store.keys.name_of(key) for key in keys]
    rows = store.read(keys).rows if keys else []
    return render_template(
        "beats.html",
        status=status,
        notes={name: quarantine_note(notes[key]) for name, key in zip(names, keys, strict=True)},
        more=max(status.quarantined - len(names), 0),
        texts=dict(zip(names, map(texts_of, rows), strict=True)),
        now=datetime.now(UTC),
        poll=poll_after(time.monotonic() - started),
    )
