"""Actions on an entry: pause, resume, trigger, change the rule, delete, retry.

Actions are POST requests; a successful action redirects to a page.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, abort, current_app, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from redbeat.entries.pauses import digest
from redbeat.errors import ConflictError, InvalidEntryError, RedBeatError
from redbeat.storage.store import store_of

from .auth import audit, current_user
from .entry import RuleForm, apply_rule, entry_name, get_or_404, render_entry
from .values import entry_url

__all__ = ("actions",)

actions = Blueprint("actions", __name__)

#: Maximum length of a note, in characters.
MAX_NOTE = 1000


def _entry_or_error(name: str) -> Any:
    """Return an entry, or abort the request if the entry is missing or unreadable.

    The status is 404 for a missing entry and 409 for an unreadable entry. Takes one round trip.
    """
    _, _, record = get_or_404(name)
    return record.entry or abort(409, f"The entry cannot be read: {record.problem}")


def _redirect_to_entry(name: str, message: str, category: str = "done") -> ResponseReturnValue:
    flash(message, category)
    return redirect(entry_url(name), 303)


@actions.get("/entry/pause")
@actions.get("/entry/resume")
@actions.get("/entry/trigger")
@actions.get("/entry/rule")
@actions.get("/entry/preview")
@actions.get("/quarantine/retry")
def action_reloaded() -> ResponseReturnValue:
    """Redirect to the page of the entry if a browser sends GET for the URL of an action."""
    return redirect(entry_url(entry_name()), 303)


@actions.post("/entry/pause")
def pause() -> ResponseReturnValue:
    """Pause an entry and store the note that the user entered."""
    name = entry_name()
    note = request.form.get("note", "").strip()[:MAX_NOTE]
    try:
        _entry_or_error(name).pause(note or None, current_user())
    except RedBeatError as error:
        return _redirect_to_entry(name, f"The entry was not paused: {error}", "failed")
    audit(f"paused ({note!r})" if note else "paused", name)
    return _redirect_to_entry(name, "Paused.")


@actions.post("/entry/resume")
def resume() -> ResponseReturnValue:
    """Resume an entry."""
    name = entry_name()
    try:
        _entry_or_error(name).resume()
    except RedBeatError as error:
        return _redirect_to_entry(name, f"The entry was not resumed: {error}", "failed")
    audit("resumed", name)
    return _redirect_to_entry(name, "Resumed.")


@actions.post("/entry/trigger")
def trigger() -> ResponseReturnValue:
    """Request one run of an entry; a beat publishes the run at its next tick."""
    name = entry_name()
    try:
        task_id = _entry_or_error(name).trigger()
    except InvalidEntryError as error:
        return _redirect_to_entry(name, f"The entry was not triggered: {error.problem}", "failed")
    audit(f"triggered ({task_id})", name)
    return _redirect_to_entry(name, f"Triggered. The task id is {task_id}.")


@actions.post("/entry/preview")
def preview() -> ResponseReturnValue:
    """Show the next runs of a rule without saving the rule."""
    return render_entry(entry_name(), RuleForm.read(request.form))


@actions.post("/entry/rule")
def rule() -> ResponseReturnValue:
    """Save a new rule for an entry, unless the entry was changed while the form was open."""
    name, form = entry_name(), RuleForm.read(request.form)
    entry = _entry_or_error(name)
    try:
        if digest(*entry._seen_texts) != form.seen:
            raise ConflictError(name)
        apply_rule(entry, form)
        entry.save(if_unchanged=True)
    except InvalidEntryError as error:
        form.add_error(error)
        return render_entry(name, form, 422)
    except ConflictError:
        form.errors[""] = (
            "Somebody else has changed this entry since you opened this form. The current "
            "definition is shown above. To replace its rule, save again."
        )
        form.seen = digest(*entry._seen_texts)
        return render_entry(name, form, 409)
    audit(f"changed the rule to {form.kind} {form.rule!r} {form.timezone}".rstrip(), name)
    return _redirect_to_entry(name, "The rule was changed.")


@actions.route("/entry/delete", methods=["GET", "POST"])
def delete() -> ResponseReturnValue:
    """Show the confirmation page (for GET), or delete the entry (for POST)."""
    name = entry_name()
    _, row, record = get_or_404(name)
    if request.method == "GET":
        return render_template("delete.html", name=name, record=record)
    try:
        del current_app.extensions["schedule"][name]
    except (KeyError, InvalidEntryError) as error:
        abort(409, f"The entry was not deleted: {error}")
    audit("deleted", name)
    flash(f"Deleted {name}.", "done")
    if row.static:
        flash("The entry is in beat_schedule: the next beat that starts adds it again.", "warning")
    return redirect(url_for("listing.index"), 303)


@actions.post("/quarantine/retry")
def retry() -> ResponseReturnValue:
    """Release an entry from quarantine, so that a beat reads the entry again."""
    name = entry_name()
    _, row, _ = get_or_404(name)
    # A quarantined entry is released if its digest has changed. The string "retry" never equals a
    # digest, so the entry always counts as changed.
    if not store_of(current_app.extensions["celery"]).review([(row.key, "retry")]):
        return _redirect_to_entry(
            name, "The key is not a hash, so no beat can read the entry. Delete it.", "failed"
        )
    audit("retried", name)
    return _redirect_to_entry(
        name, "A beat will read the entry again. If it still fails, it returns to the quarantine."
    )
