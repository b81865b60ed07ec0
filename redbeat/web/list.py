"""The page of the schedule: a table of entries, filtered and sorted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.entries.status import STATES
from redbeat.errors import InvalidEntryError
from redbeat.management.find import SORTED, SORTS, Query, browse

from .values import now_of

__all__ = (
    "listing",
    "poll_after",
)

listing = Blueprint("listing", __name__)

#: Entries per page: the choices, and the default.
SIZES: Final = (20, 50, 100, 200)
SIZE: Final = 50

#: Titles of the columns, each with the sort order that its link selects.
COLUMNS: Final = (
    ("Entry", "name"),
    ("Runs", None),
    ("Next run", "due"),
    ("Last run", "last"),
    ("State", "state"),
)

#: Shortest and longest interval between two refreshes of an open page, in seconds.
POLL: Final = (2.0, 60.0)
#: The share of its time that an open page may keep the server busy.
SHARE: Final = 0.05


def poll_after(seconds: float) -> float:
    """Return the refresh interval, in seconds, of a page that took ``seconds`` to render."""
    shortest, longest = POLL
    return round(min(max(seconds / SHARE, shortest), longest), 1)


def query_of(args: Mapping[str, str]) -> Query:
    """Return the query in the URL parameters; raises :exc:`InvalidEntryError`."""
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


def size_of(text: str) -> int:
    """Return the number of entries per page; the default for a text that is not a choice."""
    return int(text) if text.isdecimal() and int(text) in SIZES else SIZE


@listing.get("/")
def index() -> ResponseReturnValue:
    """Show a page of entries. Three round trips; filtering and sorting may need more."""
    started = time.monotonic()
    schedule, args = current_app.extensions["schedule"], request.args
    size = size_of(args.get("per", ""))
    context: dict[str, Any] = {"columns": COLUMNS, "sizes": SIZES, "sorts": SORTS}
    context.update(states=STATES, size=size, sorted_at_most=SORTED)
    try:
        query = query_of(args)
        page = browse(schedule, query, args.get("after") or None, size)
    except InvalidEntryError as error:
        return render_template("listing.html", problem=str(error), page=None, **context), 400
    context.update(query=query, page=page, now=now_of(page.now), status=schedule.status())
    context["poll"] = poll_after(time.monotonic() - started)
    return render_template("listing.html", **context)
