"""The schedule: a page of entries, filtered and sorted."""

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

#: Entries of a page.
SIZES: Final = (20, 50, 100, 200)
SIZE: Final = 50

#: Columns with the order that a click on their title asks for.
COLUMNS: Final = (
    ("Entry", "name"),
    ("Runs", None),
    ("Next run", "due"),
    ("Last run", "last"),
    ("State", "state"),
)

#: Seconds between two looks of a page that is open, and the share of them that a look may take.
POLL: Final = (2.0, 60.0)
SHARE: Final = 0.05


def poll_after(seconds: float) -> float:
    """Return after how many seconds a page that took so many is asked for again."""
    shortest, longest = POLL
    return round(min(max(seconds / SHARE, shortest), longest), 1)


def query_of(args: Mapping[str, str]) -> Query:
    """Return what is looked for; raises :exc:`InvalidEntryError`."""
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
    """Return how many entries a page has."""
    return int(text) if text.isdecimal() and int(text) in SIZES else SIZE


@listing.get("/")
def index() -> ResponseReturnValue:
    """Show a page of entries. Three round trips unless something is looked for."""
    began = time.monotonic()
    schedule, args = current_app.extensions["schedule"], request.args
    size = size_of(args.get("per", ""))
    context: dict[str, Any] = {"columns": COLUMNS, "sizes": SIZES, "sorts": SORTS}
    context.update(states=STATES, size=size, sorted_at_most=SORTED)
    try:
        query = query_of(args)
        found = browse(schedule, query, args.get("after") or None, size)
    except InvalidEntryError as error:
        return render_template("listing.html", problem=str(error), found=None, **context), 400
    context.update(query=query, found=found, now=now_of(found.now), status=schedule.status())
    context["poll"] = poll_after(time.monotonic() - began)
    return render_template("listing.html", **context)
