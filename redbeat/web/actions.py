"""Actions on one entry or several entries: pause, resume, trigger, delete, retry.

Actions are POST requests; a successful action redirects to the page of the entry or to the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

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

#: Maximum length of the note of a pause, in characters.
MAX_NOTE = 1000


def _redirect_to_entry(message: str, category: str = "done") -> Response:
    notify(message, category)
    return redirect(entry_url(entry_name()), 303)


@contextmanager
def _acting(past_tense: str) -> Iterator[Any]:
    """Yield the entry that the URL names; if the action fails, show why on the entry's page."""
    try:
        with existing(entry_name()):
            yield entry_or_error(entry_name())
    except RedBeatError as error:
        reason = error.problem if isinstance(error, InvalidEntryError) else error
        abort(_redirect_to_entry(f"The entry was not {past_tense}: {reason}", "failed"))


def _note() -> str | None:
    """Return the note that the user entered in the form, or None if the note is empty."""
    return request.form.get("note", "").strip()[:MAX_NOTE] or None


@actions.get("/entry/pause")
@actions.get("/entry/resume")
@actions.get("/entry/trigger")
@actions.get("/entry/preview")
@actions.get("/quarantine/retry")
def action_reloaded() -> ResponseReturnValue:
    """Redirect to the page of the entry if a browser sends GET for the URL of a POST request."""
    return redirect(entry_url(entry_name()), 303)


@actions.post("/entry/pause")
def pause() -> ResponseReturnValue:
    """Pause an entry and store the note that the user entered."""
    note = _note()
    with _acting("paused") as entry:
        entry.pause(note, user_name())
    audit(f"paused ({note!r})" if note else "paused", entry_name())
    return _redirect_to_entry("Paused.")


@actions.post("/entry/resume")
def resume() -> ResponseReturnValue:
    """Resume an entry."""
    with _acting("resumed") as entry:
        entry.resume()
    audit("resumed", entry_name())
    return _redirect_to_entry("Resumed.")


@actions.post("/entry/trigger")
def trigger() -> ResponseReturnValue:
    """Request one run of an entry; a beat publishes the run at its next tick."""
    with _acting("triggered") as entry:
        task_id = entry.trigger()
    audit(f"triggered ({task_id})", entry_name())
    return _redirect_to_entry(f"Triggered. The task id is {task_id}.")


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


#: The actions on several entries, each with its past tense.
ACTIONS: Final = {
    "pause": "Paused",
    "resume": "Resumed",
    "trigger": "Triggered",
    "delete": "Deleted",
}

#: Maximum number of entries that a user can select for one action.
MAX_SELECTED: Final = 500


@actions.get("/selected")
def selected_reloaded() -> ResponseReturnValue:
    """Redirect to the list if a browser sends GET for the URL of an action."""
    return redirect(url_for("listing.index"), 303)


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
