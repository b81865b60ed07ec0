"""Actions on one or several entries: pause, resume, trigger, delete, retry.

An action is a POST request that redirects to the page of the entry or to the list. A browser that
sends GET for its URL is redirected there, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import parse_qsl, urlencode

from flask import Blueprint, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from redbeat.entries import edits
from redbeat.errors import InvalidEntryError, RedBeatError
from redbeat.management import find
from redbeat.printing import shortened
from redbeat.storage.reading import static_among

from . import values
from .auth import audit, user_name
from .pages import entry_name, entry_or_error, existing, get_or_404, query_of

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
    key, task_id, detail = values.store.keys.entry(name), None, ""
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
            if not edits.delete(values.store, [key]):
                raise KeyError(name)
        else:
            get_or_404(name)
            if not edits.make_due(values.store, [key]):
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


@actions.post("/entry/pause", defaults={"action": "pause"})
@actions.post("/entry/resume", defaults={"action": "resume"})
@actions.post("/entry/trigger", defaults={"action": "trigger"})
@actions.post("/entry/delete", defaults={"action": "delete"})
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
    found = static_among(values.store, names)
    context = {"statics": [name for name in names if name in found], "list_url": _list_url()}
    return render_template("selected.html", action=action, names=names, **context)


def _matching() -> list[str]:
    found, after = dict[str, None](), None
    query = replace(query_of(_search()), sort="due")
    while (left := values.MAX_SELECTED - len(found)) > 0:
        page = find.browse(values.schedule, query, after, left)
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
