"""The pages that create, change and simulate an entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from flask import Blueprint, abort, redirect, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.entries import pauses, policy, saving
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.management import apply, task_names
from redbeat.management.forecast import simulate as runs_of
from redbeat.presentation import describe, rule_text
from redbeat.presentation.text import in_zone, plain_text
from redbeat.transfer.entry_file import CALL, change_entry, current_fields, new_entry
from redbeat.transfer.incoming import instant_from

from .auth import audit, logger
from .pages import entry_name, entry_or_error, get_or_404
from .values import entry_url, notify, now_of, schedule, zone

forms = Blueprint("forms", __name__)
simulate = Blueprint("simulate", __name__)

#: Number of runs in the preview.
PREVIEWED: Final = 10

#: Maximum number of task names that the field for the task suggests.
SUGGESTED: Final = 500


class FormField(NamedTuple):
    """A field of the form.

    ``kind`` is ``task``, ``json``, or the type of a policy field. ``choices`` contains the valid
    values, the default first; ``choices`` is empty if the field allows any value of its type.
    ``default`` is the text of the default value.
    """

    name: str
    kind: str
    example: str
    description: str
    choices: tuple[str, ...] = ()
    default: str = ""

    @property
    def label(self) -> str:
        """The name of the field on the page."""
        return self.name.replace("timezone", "time zone").replace("_", " ").capitalize()

    def value_of(self, text: str) -> Any:
        """Return the JSON value of the text that a user entered, or None for an empty text.

        Raises :exc:`InvalidEntryError` if the text is invalid.
        """
        if not text:
            return None
        try:
            if self.kind == "json":
                return json.loads(text)
            if self.kind == "count":
                return int(text)
        except (ValueError, RecursionError) as error:
            kind = "JSON" if self.kind == "json" else "a whole number"
            problem = f"is not {kind}; for example: {self.example}"
            raise InvalidEntryError(self.name, problem) from error
        return text

    def text_of(self, value: Any) -> str:
        """Return a JSON value as the text that :meth:`value_of` reads."""
        if value is None:
            return ""
        if self.kind == "json":
            return json.dumps(value)
        return plain_text(value)


def _policy_field(name: str) -> FormField:
    about, value = policy.FIELDS[name].metadata, getattr(policy.DEFAULT, name)
    default = "" if value is None else plain_text(value)
    type_ = about["type"]
    choices = tuple(dict.fromkeys((default, *type_.choices))) if type_.choices else ()
    example = about["example"].strip("'")
    return FormField(name, type_.name, example, about["description"], choices, default)


SCHEDULE_FIELDS: Final = tuple(map(_policy_field, ("timezone", "start_time", "end_time")))
TASK_FIELDS: Final = (
    FormField("task", "task", "proj.tasks.report", "The task to run."),
    *(FormField(name, "json", about.example, about.description) for name, about in CALL.items()),
    _policy_field("description"),
)
#: The form has no field ``managed_by``, because only the command ``apply`` sets this field.
RULED_FIELDS: Final = tuple(
    _policy_field(name)
    for name in policy.FIELDS
    if name not in ("timezone", "start_time", "end_time", "description", "managed_by")
)
FIELDS: Final = {each.name: each for each in (*TASK_FIELDS, *SCHEDULE_FIELDS, *RULED_FIELDS)}

#: The names of the texts in the form that are not in :data:`FIELDS`.
TEXTS: Final = ("name", "kind", "rule", "paused")


@dataclass(slots=True)
class EntryForm:
    """The texts that a user entered in the form, with the errors of the form.

    Attributes:
        texts: the fields as the user entered them, by name.

        seen: the digest of the stored entry when the user opened the form, to detect a concurrent
            change.

        errors: field name -> error message; the key "" is for errors of the whole form.

        conflict: what saving the form would change, if somebody else has changed the entry.
    """

    texts: dict[str, str]
    seen: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    conflict: Mapping[str, apply.Difference] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Mapping[str, str], names: Sequence[str] = (*FIELDS, *TEXTS)) -> EntryForm:
        """Return the form in the fields ``names`` of a request.

        A missing field keeps its stored value.
        """
        found = {name: data[name].strip().replace("\r\n", "\n") for name in names if name in data}
        return cls(found, data.get("seen", "").strip())

    @classmethod
    def of_entry(cls, entry: Any) -> EntryForm:
        """Return the form that shows a stored entry."""
        fields = current_fields(entry)
        texts = {name: each.text_of(fields.get(name)) for name, each in FIELDS.items()}
        texts["kind"], texts["rule"] = describe.rule_of(entry.schedule) or ("cron", "")
        return cls(texts, pauses.digest(*entry.seen_texts))

    def __getitem__(self, name: str) -> str:
        return self.texts.get(name, "")

    @property
    def opens_policy(self) -> bool:
        """Whether the page opens with the policy fields unfolded.

        The fields are unfolded if a policy field has an error, or a value that is not the default.
        """
        return any(
            each.name in self.errors or self[each.name] not in ("", each.default)
            for each in RULED_FIELDS
        )

    @property
    def warning(self) -> str:
        """A warning about a rule that is valid, or ""."""
        return rule_text.cron_warning(self["rule"]) if self["kind"] == "cron" else ""

    @contextmanager
    def errors_noted(self) -> Iterator[None]:
        """Add an error to the invalid field, or to the whole form if no field is the cause."""
        try:
            yield
        except DecodeError as error:
            self.errors[""] = str(error)
        except InvalidEntryError as error:
            head = error.field.replace("[", ".").partition(".")[0]
            name = "rule" if head in ("schedule", *rule_text.KINDS) else head
            if name in FIELDS or name in TEXTS:
                self.errors[name] = error.problem
            else:
                self.errors[""] = str(error)

    def table(self, has_rule: bool = True) -> dict[str, Any]:
        """Return the JSON values of the fields by name; None stands for the default value.

        ``has_rule`` is false if no rule can describe the stored schedule, because the schedule is
        of a custom class. If ``has_rule`` is false, an empty rule does not change the schedule.
        Raises :exc:`InvalidEntryError` for an invalid field.
        """
        table = {
            name: each.value_of(self.texts[name])
            for name, each in FIELDS.items()
            if name in self.texts
        }
        if "rule" in self.texts and (self["rule"] or has_rule):
            if self["kind"] not in rule_text.KINDS:
                problem = f"must be one of {', '.join(rule_text.KINDS)}, not {self['kind']!r:.60}"
                raise InvalidEntryError("kind", problem)
            if not self["rule"]:
                raise InvalidEntryError("rule", "is empty; enter the rule by which the entry runs")
            table[self["kind"]] = self["rule"]
        return table

    def change(self, entry: Any) -> None:
        """Set the fields on an entry; raises :exc:`InvalidEntryError`."""
        change_entry(entry, self.table(describe.rule_of(entry.schedule) is not None))

    def new_entry(self, **defaults: str) -> Any:
        """Return a new entry; ``defaults`` replace empty fields. Raises InvalidEntryError."""
        texts = {**self.texts, **{name: self[name] or text for name, text in defaults.items()}}
        form = EntryForm(texts)
        if not form["name"]:
            raise InvalidEntryError("name", "is empty; give the entry a name")
        table = {name: value for name, value in form.table().items() if value is not None}
        if form["paused"]:
            table["enabled"] = False
        return new_entry(schedule, form["name"], table)

    def preview(self, entry: Any) -> list[datetime]:
        """Return the next runs of an entry with the values of the form.

        ``entry`` is the stored entry, or None for a new entry. If a value is invalid, the error is
        added to the form, and the result is empty.
        """
        if self.errors:
            return []
        runs: list[datetime] = []
        with self.errors_noted():
            if entry is None:
                changed = self.new_entry(name="new", task="task")
            else:
                changed = copy(entry)
                self.change(changed)
                saving.restart_if_finished(changed, changed.texts(), datetime.now(UTC))
            runs += changed.upcoming(PREVIEWED)
        return runs


def _page(name: str | None, entry: Any, form: EntryForm, code: int = 200) -> ResponseReturnValue:
    """Return the page with the form; ``name`` is None for a new entry."""
    context: dict[str, Any] = {"name": name, "form": form, "kinds": rule_text.KINDS}
    context.update(task_fields=TASK_FIELDS, schedule_fields=SCHEDULE_FIELDS)
    context.update(policy_fields=RULED_FIELDS, record=None, now=datetime.now(UTC))
    if name is not None:
        seconds, _, record = get_or_404(name)
        context.update(record=record, now=now_of(seconds))
    context["has_no_text"] = entry is not None and describe.rule_of(entry.schedule) is None
    context["preview"] = form.preview(entry) if name is not None or form["rule"] else []
    tasks = (task for task in sorted(schedule.app.tasks) if not task.startswith("celery."))
    context["tasks"] = list(islice(tasks, SUGGESTED))
    return render_template("edit.html", **context), code


@forms.get("/entry/edit")
def edit() -> ResponseReturnValue:
    """Show the form with the stored entry. Takes two round trips."""
    entry = entry_or_error(entry_name())
    return _page(entry_name(), entry, EntryForm.of_entry(entry))


@forms.post("/entry/preview")
def preview() -> ResponseReturnValue:
    """Show the next runs of the entry in the form, without saving the entry."""
    name = entry_name()
    return _page(name, entry_or_error(name), EntryForm.read(request.form))


@forms.post("/entry/edit")
def save() -> ResponseReturnValue:
    """Save the form, unless the entry was changed while the form was open."""
    name, form = entry_name(), EntryForm.read(request.form)
    entry = entry_or_error(name)
    try:
        with form.errors_noted():
            if pauses.digest(*entry.seen_texts) != form.seen:
                raise ConflictError(name)
            stored = copy(entry)
            form.change(entry)
            changes = apply.differences(stored, entry)
            apply.save_unchanged(entry)
    except ConflictError:
        return _conflict(name, form)
    if form.errors:
        return _page(name, entry_or_error(name), form, 422)
    if not changes:
        notify("Nothing was changed: the form has the stored values.")
        return redirect(entry_url(name), 303)
    audit(f"changed {', '.join(changes)}", name)
    notify(f"The entry was changed: {', '.join(changes)}.")
    _warn(entry, form)
    return redirect(entry_url(name), 303)


def _conflict(name: str, form: EntryForm) -> ResponseReturnValue:
    """Return the form, with the changes that saving the form would make to the stored entry."""
    entry = entry_or_error(name)
    changed = copy(entry)
    with form.errors_noted():
        form.change(changed)
        form.conflict = apply.differences(entry, changed)
    form.errors[""] = (
        "Somebody else has changed this entry since you opened this form. If you save the form "
        "again, your values replace the stored values."
    )
    form.seen = pauses.digest(*entry.seen_texts)
    return _page(name, entry, form, 409)


@forms.get("/new")
def new() -> ResponseReturnValue:
    """Show an empty form. Takes no round trip."""
    return _page(None, None, EntryForm({"kind": "cron"}))


@forms.post("/new/preview")
def preview_new() -> ResponseReturnValue:
    """Show the next runs of a new entry without saving."""
    return _page(None, None, EntryForm.read(request.form))


@forms.post("/new")
def create() -> ResponseReturnValue:
    """Save a new entry, unless an entry with the same name is already stored."""
    form = EntryForm.read(request.form)
    try:
        with form.errors_noted():
            entry = form.new_entry()
            apply.save_unchanged(entry)
    except ConflictError:
        form.errors["name"] = "an entry with this name exists; choose another name"
        return _page(None, None, form, 409)
    if form.errors:
        return _page(None, None, form, 422)
    name = str(entry.name)
    audit("created", name)
    notify("The entry was created.")
    _warn(entry, form)
    return redirect(entry_url(name), 303)


def _warn(entry: Any, form: EntryForm) -> None:
    if form.warning:
        notify(f"Please check: {form.warning}.", "warning")
    try:
        for warning in task_names.NameChecker(entry.app).warnings(entry):
            notify(f"Please check: {warning}.", "warning")
    except Exception as error:  # importing the app's modules may raise any error
        logger.warning("The names of tasks are not checked: %s: %s", type(error).__name__, error)


# -- the simulation of an entry, under its stored rule and another rule ---------------------------

#: Maximum number of runs in the table.
MAX_ROWS: Final = 500

#: The fields of the form that define a rule.
RULE: Final = ("kind", "rule", "timezone")

#: The default time from the start of the simulated period to now, and from now to its end.
DEFAULT_SPAN: Final = timedelta(days=1)


class Period(NamedTuple):
    """A period as a user entered it, with an error message if the period is invalid.

    Times without a UTC offset are in the time zone of the browser.
    """

    since: str
    until: str
    instants: list[datetime]
    error: str

    @classmethod
    def read(cls, now: datetime) -> Period:
        """Return the period in the URL.

        By default, the period begins one day before ``now`` and ends one day after ``now``.
        """
        local = now.astimezone(zone()).replace(tzinfo=None, second=0, microsecond=0)
        defaults = {"from": local - DEFAULT_SPAN, "to": local + DEFAULT_SPAN}
        since, until = (
            request.args.get(name, "").strip() or default.isoformat(timespec="minutes")
            for name, default in defaults.items()
        )
        try:
            instants = [instant_from("period", text, zone()) for text in (since, until)]
        except InvalidEntryError:
            return cls(since, until, [], "Enter times such as 2027-03-28T02:30.")
        is_valid = instants[0] < instants[1]
        error = "" if is_valid else "The end must be later than the start."
        return cls(since, until, instants, error)


@simulate.get("/entry/simulate")
def show() -> ResponseReturnValue:
    """Show the runs of an entry in a period, under its stored rule and another rule.

    Takes one round trip.
    """
    name = entry_name()
    seconds, _, record = get_or_404(name)
    entry: Any = record.entry or abort(409, f"The entry cannot be read: {record.problem}")
    now = now_of(seconds)
    period, form = Period.read(now), EntryForm.read(request.args, RULE)
    context: dict[str, Any] = {"name": name, "period": period, "form": form}
    changed = found = None
    if form["rule"]:
        changed = copy(entry)
        with form.errors_noted():
            form.change(changed)
    if not period.error and not form.errors:
        since, until = period.instants
        with form.errors_noted():
            found = runs_of([(entry, changed)], since, until, now)
    if found is not None:
        (result,) = found.entries.values()
        runs = [
            (run.scheduled_at, in_zone(run.scheduled_at, result.zone), change)
            for run, change in result.runs()
        ]
        context.update(found=found, result=result, runs=runs[:MAX_ROWS], total=len(runs))
        context.update(counts=result.count(), changes=found.clock_changes())
    code = 422 if period.error or form.errors else 200
    return render_template("simulate.html", now=now, kinds=rule_text.KINDS, **context), code
