"""The pages that create, change and simulate an entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

from flask import Blueprint, redirect, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.entries import changes, policy, saving
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError, described
from redbeat.management import apply, forecast
from redbeat.management.find import static_among
from redbeat.management.names import BUILT_IN, NameChecker
from redbeat.presentation import rule_text, text
from redbeat.transfer.entry_file import CALL, POLICY, TASK, change_entry, current_fields, new_entry
from redbeat.transfer.incoming import instant_from

from .auth import audit, logger
from .pages import entry_name, entry_or_error
from .values import entry_url, notify, schedule, store, zone

forms = Blueprint("forms", __name__)

#: Number of runs in the preview.
PREVIEWED: Final = 10

#: Maximum number of task names that the field for the task suggests.
SUGGESTED: Final = 500


class FormField(NamedTuple):
    """A field of the form.

    ``kind`` is ``task``, ``json``, or the type of a policy field. ``choices`` are the valid values,
    the default first; they are empty if any value of the type is valid.
    """

    name: str
    kind: str
    example: str
    description: str
    choices: tuple[str, ...] = ()
    default: str = ""

    @property
    def group(self) -> str:
        if self.name in SCHEDULED:
            return "schedule"
        return "task" if self.name in (*TASK, "description") else "policy"

    @property
    def label(self) -> str:
        return self.name.replace("timezone", "time zone").replace("_", " ").capitalize()

    def value_of(self, text: str) -> Any:
        """Return the JSON value of what a user entered, None for an empty text.

        Raises :exc:`InvalidEntryError` for an invalid text.
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
        """The reverse of :meth:`value_of`."""
        if value is None:
            return ""
        return json.dumps(value) if self.kind == "json" else text.plain_text(value)


def _policy_field(name: str) -> FormField:
    about, value = policy.FIELDS[name].metadata, getattr(policy.DEFAULT, name)
    default = "" if value is None else text.plain_text(value)
    type_ = about["type"]
    choices = tuple(dict.fromkeys((default, *type_.choices))) if type_.choices else ()
    example = about["example"].strip("'")
    return FormField(name, type_.name, example, about["description"], choices, default)


def _task_field(name: str) -> FormField:
    about, kind = TASK[name], "json" if name in CALL else name
    return FormField(name, kind, about.example, about.description)


SCHEDULED: Final = ("timezone", "start_time", "end_time")

FIELDS: Final = {each.name: each for each in (*map(_task_field, TASK), *map(_policy_field, POLICY))}

#: The texts in the form that are not in :data:`FIELDS`.
TEXTS: Final = ("name", "kind", "rule", "paused", "seen")


@dataclass(slots=True)
class EntryForm:
    """What a user entered in the form, and what is wrong with it.

    Attributes:
        texts: the fields as the user entered them. ``seen`` is the digest of the stored entry when
            the form was opened, to detect a concurrent change.
        errors: the errors by field; "" is the whole form.
        conflict: what saving the form would change, if somebody else has changed the entry.
        zone: the time zone of the rule, once its runs were computed.
    """

    texts: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    conflict: Mapping[str, apply.Difference] = field(default_factory=dict)
    zone: tzinfo | None = None

    @classmethod
    def read(cls, data: Mapping[str, str], names: Sequence[str] = (*FIELDS, *TEXTS)) -> EntryForm:
        """Read these fields of a request; a missing one keeps its stored value."""
        return cls(
            {name: data[name].strip().replace("\r\n", "\n") for name in names if name in data}
        )

    @classmethod
    def of_entry(cls, entry: Any) -> EntryForm:
        fields = current_fields(entry)
        options = fields.get("options", {})
        fields["queue"] = options.get("queue")
        fields["options"] = {name: options[name] for name in options if name != "queue"} or None
        texts = {name: each.text_of(fields.get(name)) for name, each in FIELDS.items()}
        texts["kind"], texts["rule"] = rule_text.rule_of(entry.schedule) or ("cron", "")
        return cls({**texts, "seen": changes.digest(*entry.seen_texts)})

    def __getitem__(self, name: str) -> str:
        return self.texts.get(name, "")

    @property
    def opens_policy(self) -> bool:
        """Whether the policy fields are unfolded: one is invalid, or not the default."""
        return any(
            each.name in self.errors or self[each.name] not in ("", each.default)
            for each in FIELDS.values()
            if each.group == "policy"
        )

    @property
    def warning(self) -> str:
        """A warning about a valid rule, or ""."""
        return rule_text.cron_warning(self["rule"]) if self["kind"] == "cron" else ""

    @contextmanager
    def errors_noted(self) -> Iterator[None]:
        """Note an error at the invalid field, or for the whole form if no field is the cause."""
        try:
            yield
        except DecodeError as error:
            self.errors.setdefault("", str(error))
        except InvalidEntryError as error:
            head = error.field.replace("[", ".").partition(".")[0]
            name = "rule" if head in ("schedule", *rule_text.KINDS) else head
            if name in FIELDS or name in TEXTS:
                self.errors.setdefault(name, error.problem)
            else:
                self.errors.setdefault("", str(error))

    def table(self, has_rule: bool = True) -> dict[str, Any]:
        """Return the JSON values of the valid fields, None for a default; note what is invalid.

        ``has_rule`` is false if no rule can describe the stored schedule, which is of a custom
        class. Then an empty rule leaves the schedule as it is.
        """
        table: dict[str, Any] = {}
        for name, each in FIELDS.items():
            if name in self.texts:
                with self.errors_noted():
                    table[name] = each.value_of(self.texts[name])
        options = table.get("options", ())
        if "queue" in table and isinstance(options, dict | None):
            queue = table.pop("queue")
            table["options"] = {**(options or {}), "queue": queue} if queue else options
        if "rule" in self.texts and (self["rule"] or has_rule):
            if self["kind"] in rule_text.KINDS:
                table[self["kind"]] = self["rule"]
            else:
                kinds = ", ".join(rule_text.KINDS)
                self.errors["kind"] = f"must be one of {kinds}, not {self['kind']!r:.60}"
        return table

    def _made(self, make: Callable[[dict[str, Any]], Any], table: dict[str, Any]) -> Any:
        """Return what ``make`` makes of a table, None if there are errors.

        Without the wrong field, it is tried again, so that all wrong fields get their errors.
        """
        while True:
            made, noted = None, len(self.errors)
            with self.errors_noted():
                made = make(table)
            if len(self.errors) == noted:
                return None if self.errors else made
            wrong = [*self.errors][-1]
            table.pop(self["kind"] if wrong == "rule" else wrong, None)

    def changed(self, entry: Any) -> Any:
        """Return a changed copy of an entry, None if a field is invalid."""

        def change(table: dict[str, Any]) -> Any:
            found = copy(entry)
            change_entry(found, table)
            return found

        return self._made(change, self.table(rule_text.rule_of(entry.schedule) is not None))

    def new_entry(self, **defaults: str) -> Any:
        """Return a new entry, None if a field is invalid; ``defaults`` replace empty fields."""
        texts = {**self.texts, **{name: self[name] or text for name, text in defaults.items()}}
        form = EntryForm(texts, self.errors)

        def make(table: dict[str, Any]) -> Any:
            values = {name: value for name, value in table.items() if value is not None}
            # Wrong fields must not hide others.
            values |= {"every": 60} if {"rule", "kind"} & self.errors.keys() else {}
            values |= {"task": "task"} if "task" in self.errors else {}
            if self["paused"]:
                values["enabled"] = False
            return new_entry(schedule, "new" if "name" in self.errors else form["name"], values)

        return self._made(make, form.table())

    def preview(self, entry: Any) -> list[datetime]:
        """Return the next runs with the values of the form; ``entry`` is None for a new one.

        If a value is invalid, the error is noted, and there are no runs.
        """
        runs: list[datetime] = []
        if self.errors:
            return runs
        changed = self.new_entry(name="new", task="task") if entry is None else self.changed(entry)
        if changed is not None:
            with self.errors_noted():
                if entry is not None:
                    saving.restart_if_finished(changed, changed.texts(), datetime.now(UTC))
                self.zone = forecast.zone_of(changed)
                runs += changed.upcoming(PREVIEWED)
        return runs


def _page(entry: Any, form: EntryForm, code: int = 200) -> ResponseReturnValue:
    """``entry`` is the stored entry, None for a new one."""
    name = None if entry is None else entry_name()
    tasks = [task for task in sorted(schedule.app.tasks) if not task.startswith(BUILT_IN)]
    page = render_template(
        "edit.html",
        name=name,
        form=form,
        preview=form.preview(entry) if name is not None or form["rule"] else [],
        static=name is not None and static_among(store, [name]),
        has_no_text=name is not None and rule_text.rule_of(entry.schedule) is None,
        kinds=rule_text.RULES,
        tasks=tasks[:SUGGESTED],
        fields=FIELDS.values(),
        now=datetime.now(UTC),
    )
    return page, code


@forms.get("/entry/edit")
def edit() -> ResponseReturnValue:
    """Takes two round trips."""
    entry = entry_or_error(entry_name())
    return _page(entry, EntryForm.of_entry(entry))


@forms.get("/new")
def new() -> ResponseReturnValue:
    """Takes no round trip."""
    return _page(None, EntryForm({"kind": "cron"}))


@forms.post("/entry/preview")
def preview() -> ResponseReturnValue:
    """Show the next runs of the entry in the form, without saving it."""
    return _page(entry_or_error(entry_name()), EntryForm.read(request.form))


@forms.post("/new/preview")
def preview_new() -> ResponseReturnValue:
    return _page(None, EntryForm.read(request.form))


@forms.post("/entry/edit")
def save() -> ResponseReturnValue:
    """Save the form, unless somebody changed the entry while it was open."""
    name, form = entry_name(), EntryForm.read(request.form)
    stored = entry_or_error(name)
    entry = form.changed(stored)
    try:
        with form.errors_noted():
            if changes.digest(*stored.seen_texts) != form["seen"]:
                raise ConflictError(name)
            if entry is not None:
                apply.save_unchanged(entry)
    except ConflictError:
        return _conflict(name, form)
    if form.errors:
        return _page(stored, form, 422)
    fields = ", ".join(apply.differences(stored, entry))
    if not fields:
        notify("Nothing was changed: the form has the stored values.")
        return redirect(entry_url(name), 303)
    return _saved(entry, form, f"changed {fields}", f"The entry was changed: {fields}.")


def _conflict(name: str, form: EntryForm) -> ResponseReturnValue:
    """Return the form with the changes that saving it would make now."""
    entry = entry_or_error(name)
    changed = form.changed(entry)
    if changed is not None:
        form.conflict = apply.differences(entry, changed)
    form.errors[""] = (
        "Somebody else has changed this entry since you opened this form. If you save the form "
        "again, your values replace the stored values."
    )
    form.texts["seen"] = changes.digest(*entry.seen_texts)
    return _page(entry, form, 409)


@forms.post("/new")
def create() -> ResponseReturnValue:
    """Save a new entry, unless the name is taken."""
    form = EntryForm.read(request.form)
    try:
        entry = form.new_entry()
        with form.errors_noted():
            if entry is not None:
                apply.save_unchanged(entry)
    except ConflictError:
        form.errors["name"] = "an entry with this name exists; choose another name"
        return _page(None, form, 409)
    if form.errors:
        return _page(None, form, 422)
    return _saved(entry, form, "created", "The entry was created.")


def _saved(entry: Any, form: EntryForm, action: str, message: str) -> ResponseReturnValue:
    name = str(entry.name)
    audit(action, name)
    notify(message)
    if form.warning:
        notify(f"Please check: {form.warning}.", "warning")
    try:
        for warning in NameChecker(entry.app).warnings(entry):
            notify(f"Please check: {warning}.", "warning")
    except Exception as error:  # importing the app's modules may raise any error
        logger.warning("The names of tasks are not checked: %s", described(error))
    return redirect(entry_url(name), 303)


# -- the simulation of an entry, under its stored rule and another rule ---------------------------

#: Maximum number of runs in the table.
MAX_ROWS: Final = 500

#: The fields of the page: those of a rule, and the period.
SIMULATED: Final = ("kind", "rule", "timezone", "from", "to")

#: How long before and after now the simulated period is by default.
DEFAULT_SPAN: Final = timedelta(days=1)


@forms.get("/entry/simulate")
def simulate() -> ResponseReturnValue:
    """Show the runs of an entry in a period, under its stored rule and another one.

    By default, the period begins a day ago and ends in a day. Times without a UTC offset are in the
    time zone of the browser. Takes one round trip.
    """
    entry, now = entry_or_error(entry_name()), datetime.now(UTC)
    form = EntryForm.read(request.args, SIMULATED)
    local = now.astimezone(zone()).replace(tzinfo=None)
    for each, default in (("from", local - DEFAULT_SPAN), ("to", local + DEFAULT_SPAN)):
        form.texts[each] = form[each] or default.isoformat(timespec="minutes")
    found = result = changed = None
    with form.errors_noted():
        since, until = (instant_from(each, form[each], zone()) for each in ("from", "to"))
        if since >= until:
            raise InvalidEntryError("to", "must be later than the start of the period")
        if form["rule"]:
            changed = form.changed(entry)
        if not form.errors:
            found = forecast.simulate([(entry, changed)], since, until, now)
            (result,) = found.entries.values()
    page = render_template(
        "simulate.html",
        name=entry_name(),
        form=form,
        found=found,
        result=result,
        shown=MAX_ROWS,
        kinds=rule_text.KINDS,
        now=now,
    )
    return page, 422 if form.errors else 200
