"""The pages that show the schedule, the active beats, and one entry, and the actions on entries.

An action - pause, resume, trigger, delete, retry - is a POST request that redirects to the page of
the entry or to the list. A browser that sends GET for its URL is redirected there, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from flask import Blueprint, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries import edits, history, state, status
from redbeat.errors import InvalidEntryError, RedBeatError
from redbeat.management import find, forecast
from redbeat.management.schedule import Record
from redbeat.presentation import describe, text
from redbeat.printing import shortened
from redbeat.storage.rows import Row
from redbeat.transfer.entry_file import CALL

from . import values
from .auth import audit, user_name
from .timeline import lateness_chart
from .values import schedule, store, zone

listing = Blueprint("listing", __name__)
entries = Blueprint("entries", __name__)

#: The numbers of entries per page that a user can choose, and the default.
SIZES: Final = (20, 50, 100, 200)
SIZE: Final = 50

#: Number of recent runs of each entry on the page.
RECENT: Final = 5

#: Maximum number of quarantined entries on the page about beats.
MAX_QUARANTINED: Final = 50

#: Shortest and longest time between two refreshes of an open page, in seconds.
POLL: Final = (2.0, 60.0)
#: The server spends at most this share of its time on the refreshes of one open page.
SHARE: Final = 0.05


def poll_after(seconds: float) -> float:
    """Return after how many seconds to refresh a page that took ``seconds`` to render."""
    shortest, longest = POLL
    return round(min(max(seconds / SHARE, shortest), longest), 1)


#: Maximum length of a search text in characters: it is compared with the names of all entries.
MAX_SEARCH: Final = 500

#: The values of the URL parameters that are no search text.
CHOICES: Final = {
    "state": status.STATES,
    "last_result": status.LAST_RESULTS,
    "static": ("static", "dynamic"),
    "sort": find.SORTS,
}


def search_in(args: Mapping[str, str]) -> tuple[find.Filter, str]:
    """Return the filter and the sort order in URL parameters.

    Raises :exc:`InvalidEntryError` for an invalid one.
    """
    patterns = {"name": args.get("q", "").strip(), "task": args.get("task", "").strip()}
    for field, pattern in patterns.items():
        if len(pattern) > MAX_SEARCH:
            raise InvalidEntryError(field, f"must have at most {MAX_SEARCH} characters")
    chosen = {field: args.get(field) or None for field in CHOICES}
    for field, value in chosen.items():
        find.check_choice(field, value, CHOICES[field])
    filters = find.Filter(
        patterns["name"] or None,
        patterns["task"] or None,
        static={"static": True, "dynamic": False}.get(chosen["static"] or ""),
        states=frozenset({chosen["state"]}) if chosen["state"] else None,
        fold=True,
        last_result=chosen["last_result"],
    )
    return filters, chosen["sort"] or "due"


@listing.get("/")
def index() -> ResponseReturnValue:
    """Show a page of entries.

    Takes four round trips, and more with filters, a sort order or a page that is opened by its
    number.
    """
    started = time.monotonic()
    args = request.args
    # Anything invalid means the default.
    size = next((size for size in SIZES if args.get("per") == str(size)), SIZE)
    at = args.get("at", "")
    first = int(at) if re.fullmatch("[1-9][0-9]{0,8}", at) else 1
    context: dict[str, Any] = {"sizes": SIZES, "size": size, "choices": CHOICES}
    try:
        filters, sort = search_in(args)
        page = find.browse(schedule, filters, sort, args.get("after") or None, size, first - 1)
    except InvalidEntryError as error:
        return render_template("listing.html", problem=str(error), page=None, **context), 400
    current = schedule.status()
    counts, total = current.entries, page.total
    if total is None:
        total = sum(counts.values()) if filters.plain else counts.get(filters.one_state or "")
    return render_template(
        "listing.html",
        page=page,
        first=first,
        filtered=not filters.plain,
        jumps=filters.plain or page.total is not None,
        total=total,
        recent=_recent_runs(page.records),
        status=current,
        now=values.now_of(page.now),
        poll=poll_after(time.monotonic() - started),
        **context,
    )


def _recent_runs(records: Sequence[Record]) -> dict[str, list[history.Occurrence]]:
    """Return the last runs by key, the oldest first. Takes at most one round trip."""
    found = {record.key: record.entry for record in records if record.entry}
    rows = store.read([*found], history=True).rows if found else []
    return {row.key: status.runs_in(row, found[row.key])[RECENT - 1 :: -1] for row in rows}


@listing.get("/beats")
def beats() -> ResponseReturnValue:
    """Show the beats, Redis and quarantined entries. Takes at most five round trips."""
    started = time.monotonic()
    current, notes = schedule.status(), store.quarantined(MAX_QUARANTINED)
    rows = store.read([*notes]).rows if notes else []
    quarantine = [
        (store.keys.name_of(key), *status.quarantine_note(note), values.texts_of(row))
        for (key, note), row in zip(notes.items(), rows, strict=True)  # a row may have another key
    ]
    return render_template(
        "beats.html",
        status=current,
        quarantine=quarantine,
        more=max(current.quarantined - len(rows), 0),
        now=datetime.now(UTC),
        poll=poll_after(time.monotonic() - started),
    )


# -- one entry ----------------------------------------------------------------------------------

NO_ENTRY: Final = "There is no entry {!r}. The entry was deleted, or it has finished."

#: Number of upcoming runs on the entry page.
UPCOMING: Final = 10


def entry_name() -> str:
    """Return the name in the URL; abort with 404 without one, and with 400 if there are several."""
    names = request.args.getlist("name")
    if len(names) > 1:
        abort(400, "The URL has several entry names (parameter name=...).")
    return (names and names[0]) or abort(404, "The URL has no entry name (parameter name=...).")


def get_or_404(name: str) -> tuple[float, Row, Record]:
    """Return the time of Redis (UNIX seconds), and the row and the record of an entry.

    Aborts with 404 if there is no such entry. Takes one round trip.
    """
    with existing(name):
        page, record = find.record_of(schedule, name)
        if record is None:
            raise KeyError(name)
    return page.now, page.rows[0], record


def entry_or_error(name: str) -> Any:
    """Return an entry; abort with 404 if there is none, and with 409 if it cannot be read."""
    _, _, record = get_or_404(name)
    return record.entry or abort(409, f"The entry cannot be read: {record.problem}")


@contextmanager
def existing(name: str) -> Iterator[None]:
    """Abort with 404 if the ``with`` block raises KeyError for a missing entry."""
    try:
        yield
    except KeyError:
        abort(404, NO_ENTRY.format(name))


@entries.get("/entry")
def show() -> ResponseReturnValue:
    """Takes two round trips."""
    name = entry_name()
    started = time.monotonic()
    seconds, row, record = get_or_404(name)
    now, pause = values.now_of(seconds), state.Pause.of_entry(record.entry)
    context = _context_of(record.entry, now) if record.entry else {"texts": values.texts_of(row)}
    return render_template(
        "entry.html",
        name=name,
        record=record,
        now=now,
        status=status.status_of(record, row),
        backfills=status.shown_state(row, seconds).backfills,
        pause=pause,
        paused_at=from_timestamp(pause.since) if pause else None,
        poll=poll_after(time.monotonic() - started),
        **context,
    )


def _context_of(entry: Any, now: datetime) -> dict[str, Any]:
    """Takes one round trip."""
    definition, policy = describe.stored(entry), describe.policy(entry)
    upcoming, problem = forecast.upcoming_or_problem(entry, UPCOMING, now)
    runs = [(run, max(entry.lateness_of(run), 0.0)) for run in entry.history]
    points = [
        (text.in_zone(run.scheduled_at, zone()), late)
        for run, late in reversed(runs)
        if run.outcome == history.SENT
    ]
    return {
        "entry": entry,
        "fields": {name: definition[name] for name in CALL if definition[name]},
        "description": policy.pop("description", None),
        "policy": {name: text.plain_text(value) for name, value in policy.items()},
        "zone": forecast.zone_of(entry),
        "runs": runs,
        "lateness": lateness_chart(points) if points else None,
        "upcoming": upcoming,
        "problem": problem,
    }


# -- actions on one or several entries -------------------------------------------------------------

actions = Blueprint("actions", __name__)

#: The actions on entries, with their past tense.
ACTIONS: Final = {
    "pause": "Paused",
    "resume": "Resumed",
    "trigger": "Triggered",
    "delete": "Deleted",
    "retry": "Retried",
}

#: Maximum length of the note of a pause, in characters.
MAX_NOTE = 1000


def act(action: str, name: str, note: str | None = None) -> str | None:
    """Do one of the :data:`ACTIONS` on an entry; return the task id if a run was triggered.

    The action ``retry`` takes an entry out of quarantine. Aborts with 404 if there is no such
    entry, and with 409 if it cannot be read, which doesn't matter for deleting and retrying.
    """
    key, task_id, detail = store.keys.entry(name), None, ""
    with existing(name):
        if action == "pause":
            entry_or_error(name).pause(note, user_name())
            detail = f" ({note!r})" if note else ""
        elif action == "resume":
            entry_or_error(name).resume()
        elif action == "trigger":
            task_id = entry_or_error(name).trigger()
            detail = f" ({task_id})"
        elif action == "delete":
            if not edits.delete(store, [key]):
                raise KeyError(name)
        else:
            get_or_404(name)
            if not edits.make_due(store, [key]):
                raise RedBeatError("the key is not a hash; delete the entry")
    audit(ACTIONS[action].lower() + detail, name)
    return task_id


def _reason(error: RedBeatError | HTTPException) -> str:
    if isinstance(error, HTTPException):
        return str(error.description)
    return error.problem if isinstance(error, InvalidEntryError) else str(error)


def _redirect(url: str, message: str, category: str = "done") -> ResponseReturnValue:
    values.notify(message, category)
    return redirect(url, 303)


def _list_url() -> str:
    query = urlencode(_search(), errors="surrogateescape")
    return url_for("listing.index") + (query and f"?{query}")


def _search() -> dict[str, str]:
    """Return the search on the list where the user chose the action."""
    text = request.form.get("search", "").removeprefix("?")
    return dict(parse_qsl(text, errors="surrogateescape"))


def _note() -> str | None:
    return request.form.get("note", "").strip()[:MAX_NOTE] or None


@actions.post("/entry/<any(pause, resume, trigger, delete):action>")
@actions.post("/quarantine/retry", defaults={"action": "retry"})
def single(action: str) -> ResponseReturnValue:
    """Act on one entry. A beat publishes a triggered run at its next tick.

    The answer is the page of the entry, or the list if the user acted there.
    """
    name = entry_name()
    of_row = "search" in request.form
    url = _list_url() if of_row else values.entry_url(name)
    try:
        task_id = act(action, name, _note())
    except RedBeatError as error:
        text = f"The entry was not {ACTIONS[action].lower()}: {_reason(error)}"
        return _redirect(url, text, "failed")
    if of_row or action == "delete":
        return _redirect(_list_url(), f"{ACTIONS[action]} {shortened(name, 100)}.")
    details = {
        "trigger": f" The task id is {task_id}.",
        "retry": " A beat will read the entry again. If it cannot, the entry returns to the "
        "quarantine.",
    }
    return _redirect(url, f"{ACTIONS[action]}.{details.get(action, '')}")


@actions.get("/entry/delete")
def delete() -> ResponseReturnValue:
    """Ask for a confirmation."""
    name = entry_name()
    _, _, record = get_or_404(name)
    return render_template("delete.html", name=name, record=record)


@actions.post("/selected")
def selected() -> ResponseReturnValue:
    """Ask to confirm an action on several entries, or do a confirmed one."""
    action = request.form.get("action", "")
    if action not in ACTIONS:
        abort(400, f"Unknown action. Choose one of: {', '.join(ACTIONS)}.")
    names = list(dict.fromkeys(map(values.name_in, request.form.getlist("entry"))))
    if request.form.get("all"):
        try:
            names = _matching()
        except InvalidEntryError as error:
            abort(400, str(error))
    if len(names) > values.MAX_SELECTED:
        abort(400, f"Select at most {values.MAX_SELECTED:,} entries.")
    if not names:
        return _redirect(_list_url(), "No entry was selected.", "warning")
    if request.form.get("confirmed"):
        return _act_on(action, names)
    found = find.static_among(store, names)
    context = {"statics": [name for name in names if name in found], "list_url": _list_url()}
    return render_template("selected.html", action=action, names=names, **context)


def _matching() -> list[str]:
    found, after = dict[str, None](), None
    filters, _ = search_in(_search())
    while (left := values.MAX_SELECTED - len(found)) > 0:
        page = find.browse(schedule, filters, after=after, limit=left)
        found |= dict.fromkeys(map(values.name_of, page.records))
        after = page.after
        if after is None:
            break
    return [*found]


def _act_on(action: str, names: list[str]) -> ResponseReturnValue:
    problems = []
    for name in names:
        try:
            act(action, name, _note())
        except (RedBeatError, HTTPException) as error:
            problems.append(f"{name!r}: {_reason(error)}")
    done = values.counted(len(names) - len(problems), "entry", "entries")
    answer = _redirect(_list_url(), f"{ACTIONS[action]} {done}.")
    if problems:
        skipped = f"{len(problems):,} of {len(names):,} selected entries were skipped"
        values.notify(f"{skipped}: {problems[0]}", "failed")
    return answer
