"""Actions on one entry or several entries: pause, resume, trigger, delete, retry.

Actions are POST requests; a successful action redirects to the page of the entry or to the list.
If a browser sends GET for the URL of an action, the dashboard redirects to the same page.
"""

from __future__ import annotations

from typing import Final

from flask import Blueprint, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from redbeat.entries import edits
from redbeat.errors import FieldError, InvalidEntryError, RedBeatError
from redbeat.printing import plural
from redbeat.storage.reading import static_among

from .auth import audit, user_name
from .pages import entry_name, entry_or_error, existing, get_or_404
from .values import clipped, entry_url, name_in, notify, schedule, store

actions = Blueprint("actions", __name__)

#: The actions on entries, each with its past tense.
ACTIONS: Final = {
    "pause": "Paused",
    "resume": "Resumed",
    "trigger": "Triggered",
    "delete": "Deleted",
}

#: Maximum length of the note of a pause, in characters.
MAX_NOTE = 1000


def _redirect_to_entry(message: str, category: str = "done") -> Response:
    notify(message, category)
    return redirect(entry_url(entry_name()), 303)


def _note() -> str | None:
    """Return the note that the user entered in the form, or None if the note is empty."""
    return request.form.get("note", "").strip()[:MAX_NOTE] or None


def act(action: str, name: str, note: str | None = None) -> str | None:
    """Pause, resume or trigger an entry; return the task id if a run was triggered.

    Aborts the request with 404 if the entry is missing, and with 409 if it is unreadable.
    """
    entry, task_id, detail = entry_or_error(name), None, ""
    with existing(name):
        if action == "pause":
            entry.pause(note, user_name())
            detail = f" ({note!r})" if note else ""
        elif action == "resume":
            entry.resume()
        else:
            task_id = entry.trigger()
            detail = f" ({task_id})"
    audit(ACTIONS[action].lower() + detail, name)
    return task_id


@actions.post("/entry/pause", defaults={"action": "pause"})
@actions.post("/entry/resume", defaults={"action": "resume"})
@actions.post("/entry/trigger", defaults={"action": "trigger"})
def single(action: str) -> ResponseReturnValue:
    """Pause, resume or trigger an entry. A beat publishes a triggered run at its next tick."""
    try:
        task_id = act(action, entry_name(), _note())
    except RedBeatError as error:
        reason = error.problem if isinstance(error, InvalidEntryError) else error
        done = ACTIONS[action].lower()
        return _redirect_to_entry(f"The entry was not {done}: {reason}", "failed")
    detail = f" The task id is {task_id}." if task_id else ""
    return _redirect_to_entry(f"{ACTIONS[action]}.{detail}")


@actions.route("/entry/delete", methods=["GET", "POST"])
def delete() -> ResponseReturnValue:
    """Show the confirmation page (for GET), or delete the entry (for POST)."""
    name = entry_name()
    _, row, record = get_or_404(name)
    if request.method == "GET":
        return render_template("delete.html", name=name, record=record)
    # Delete by the key, because a stored entry may have a name that new entries must not have.
    if not edits.delete(store, [row.key]):
        abort(409, "The entry was not deleted: it does not exist any more.")
    audit("deleted", name)
    notify(f"Deleted {clipped(name, 100)}.")
    if row.static:
        notify("The entry is in beat_schedule: the next beat that starts adds it again.", "warning")
    return redirect(url_for("listing.index"), 303)


@actions.post("/quarantine/retry")
def retry() -> ResponseReturnValue:
    """Release an entry from quarantine, so that a beat reads the entry again."""
    name = entry_name()
    _, row, _ = get_or_404(name)
    if not edits.make_due(store, [row.key]):
        problem = "The key is not a hash, so no beat can read the entry. Delete the entry."
        return _redirect_to_entry(problem, "failed")
    audit("retried", name)
    return _redirect_to_entry(
        "A beat will read the entry again. If the beat cannot read the entry, the entry returns to "
        "the quarantine."
    )


#: Maximum number of entries that a user can select for one action.
MAX_SELECTED: Final = 500


@actions.post("/selected")
def selected() -> ResponseReturnValue:
    """Show the confirmation page of an action on several entries, or do a confirmed action."""
    action = request.form.get("action", "")
    if action not in ACTIONS:
        abort(400, f"Unknown action. Choose one of: {', '.join(ACTIONS)}.")
    names = list(dict.fromkeys(map(name_in, request.form.getlist("entry"))))
    if len(names) > MAX_SELECTED:
        abort(400, f"Select at most {MAX_SELECTED:,} entries.")
    if not names:
        notify("No entry was selected.", "warning")
        return redirect(url_for("listing.index"), 303)
    if request.form.get("confirmed"):
        return _act_on(action, names)
    found = static_among(store, names)
    statics = [name for name in names if name in found]
    return render_template("selected.html", action=action, names=names, statics=statics)


def _act_on(action: str, names: list[str]) -> ResponseReturnValue:
    """Do an action on several entries, and redirect to the list."""
    keys = [store.keys.entry(name) for name in names]
    problems: list[str] = []
    done = 0
    try:
        if action == "pause":
            done = len(edits.pause(store, keys, _note(), user_name()))
        elif action == "resume":
            done = len(edits.resume(store, keys, schedule.app, schedule.entry_class))
        elif action == "delete":
            done = edits.delete(store, keys)
        else:
            problems = _trigger_all(names)
            done = len(names) - len(problems)
    except RedBeatError as error:
        problems.append(str(error))
    audit(f"{ACTIONS[action].lower()} {done} of {len(names)}: {', '.join(names)}", names[0])
    notify(f"{ACTIONS[action]} {plural(done, 'entry', 'entries')}.")
    rest = len(names) - done
    if rest:
        reason = problems[0] if problems else "skipped entries were deleted, or cannot be read"
        notify(f"{rest:,} of {len(names):,} selected entries were skipped: {reason}", "failed")
    return redirect(url_for("listing.index"), 303)


def _trigger_all(names: list[str]) -> list[str]:
    """Trigger entries, and return why some entries were not triggered."""
    problems = []
    for name in names:
        try:
            schedule[name].trigger()
        except KeyError:
            problems.append(f"{name!r} does not exist")
        except FieldError as error:
            problems.append(f"{name!r}: {error.problem}")
    return problems
