"""What is done with an entry. All of it by POST; each answer sends the browser elsewhere."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, abort, current_app, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from redbeat.entries.pauses import digest
from redbeat.errors import ConflictError, InvalidEntryError, RedBeatError
from redbeat.storage.store import store_of

from .auth import record, who
from .entry import RuleForm, apply_rule, entry_name, found_or_404, render_entry
from .values import entry_url

__all__ = ("changing",)

changing = Blueprint("changing", __name__)

#: Letters of a note, at most.
NOTE = 1000


def _readable(name: str) -> Any:
    """Return an entry; one that cannot be read is a refusal. One round trip."""
    _, _, found = found_or_404(name)
    return found.entry or abort(409, f"The entry cannot be read: {found.problem}")


def _back(name: str, said: str, kind: str = "done") -> ResponseReturnValue:
    flash(said, kind)
    return redirect(entry_url(name), 303)


@changing.get("/entry/pause")
@changing.get("/entry/resume")
@changing.get("/entry/trigger")
@changing.get("/entry/rule")
@changing.get("/entry/preview")
@changing.get("/quarantine/retry")
def nothing() -> ResponseReturnValue:
    """Show the entry: a page that such a form led to was loaded again."""
    return redirect(entry_url(entry_name()), 303)


@changing.post("/entry/pause")
def pause() -> ResponseReturnValue:
    """Pause an entry, with a note."""
    name = entry_name()
    note = request.form.get("note", "").strip()[:NOTE]
    try:
        _readable(name).pause(note or None, who())
    except RedBeatError as error:
        return _back(name, f"It was not paused: {error}", "failed")
    record(f"paused ({note!r})" if note else "paused", name)
    return _back(name, "Paused.")


@changing.post("/entry/resume")
def resume() -> ResponseReturnValue:
    """Resume an entry."""
    name = entry_name()
    try:
        _readable(name).resume()
    except RedBeatError as error:
        return _back(name, f"It was not resumed: {error}", "failed")
    record("resumed", name)
    return _back(name, "Resumed.")


@changing.post("/entry/trigger")
def trigger() -> ResponseReturnValue:
    """Have a beat run an entry once."""
    name = entry_name()
    try:
        task_id = _readable(name).trigger()
    except InvalidEntryError as error:
        return _back(name, f"It was not triggered: {error.problem}", "failed")
    record(f"triggered ({task_id})", name)
    return _back(name, f"Triggered. The id of the task is {task_id}.")


@changing.post("/entry/preview")
def preview() -> ResponseReturnValue:
    """Show what a rule would mean. Nothing is written."""
    return render_entry(entry_name(), RuleForm.read(request.form))


@changing.post("/entry/rule")
def rule() -> ResponseReturnValue:
    """Change the rule of an entry, unless somebody else has changed the entry meanwhile."""
    name, form = entry_name(), RuleForm.read(request.form)
    entry = _readable(name)
    try:
        if digest(*entry._seen_texts) != form.seen:
            raise ConflictError(name)
        apply_rule(entry, form)
        entry.save(if_unchanged=True)
    except InvalidEntryError as error:
        form.blame(error)
        return render_entry(name, form, 422)
    except ConflictError:
        form.errors[""] = (
            "Somebody else has changed this entry since this form was shown. Above is what it is "
            "now; save again to replace its rule."
        )
        form.seen = digest(*entry._seen_texts)
        return render_entry(name, form, 409)
    record(f"changed the rule to {form.kind} {form.rule!r} {form.timezone}".rstrip(), name)
    return _back(name, "The rule is changed.")


@changing.route("/entry/delete", methods=["GET", "POST"])
def delete() -> ResponseReturnValue:
    """Ask, and then remove an entry."""
    name = entry_name()
    _, row, found = found_or_404(name)
    if request.method == "GET":
        return render_template("delete.html", name=name, record=found)
    try:
        del current_app.extensions["schedule"][name]
    except (KeyError, InvalidEntryError) as error:
        abort(409, f"It was not deleted: {error}")
    record("deleted", name)
    flash(f"Deleted {name}.", "done")
    if row.static:
        flash("It is in beat_schedule: a beat writes it again when it starts.", "warning")
    return redirect(url_for("listing.index"), 303)


@changing.post("/quarantine/retry")
def retry() -> ResponseReturnValue:
    """Have a beat look at an entry in quarantine once more."""
    name = entry_name()
    _, row, _ = found_or_404(name)
    if not store_of(current_app.extensions["celery"]).review([(row.key, "look again")]):
        return _back(name, "It is no hash, so that it cannot be tried again: remove it.", "failed")
    record("asked for another look at", name)
    return _back(name, "A beat looks at it again; what is still wrong comes back here.")
