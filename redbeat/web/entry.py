"""The page of one entry, with a form to change its rule."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Final
from urllib.parse import parse_qsl

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC, zone_named
from redbeat.config import ensure_conf
from redbeat.entries.decide import aware
from redbeat.entries.pauses import Pause, digest
from redbeat.entries.runs import SENT, Occurrence, no_id, read_history
from redbeat.errors import InvalidEntryError
from redbeat.management.find import record_of
from redbeat.presentation.describe import policy, stored
from redbeat.presentation.rule_text import KINDS, has_own_zone, parse_rule, rule_of
from redbeat.schedule import Record
from redbeat.schedules.rule import rrule
from redbeat.schedules.rule_set import rruleset
from redbeat.storage.store import store_of
from redbeat.storage.wire import Row

from .charts import lateness_chart
from .list import poll_after
from .values import app_zone, now_of, texts_of, zone

__all__ = (
    "RuleForm",
    "apply_rule",
    "entries",
    "entry_name",
    "get_or_404",
    "preview_of",
    "render_entry",
    "zone_of",
)


def zone_of(entry: Any) -> tzinfo | None:
    """Return the time zone of an entry's rule, or None for the time zone of the app."""
    when = entry.schedule
    start = getattr(when, "dtstart", None) or getattr(when, "clocked_time", None)
    if isinstance(when, (rrule, rruleset)) or start is not None:
        start_zone: tzinfo | None = getattr(start, "tzinfo", None)
        return start_zone
    policy_zone: tzinfo | None = entry.policy.zone
    return policy_zone


#: Number of runs in the preview of a changed rule.
PREVIEWED = 10


@dataclass(slots=True)
class RuleForm:
    """The values that a user entered in the rule form, with validation errors.

    Attributes:
        kind, rule, timezone: the fields as the user entered them.
        seen: the digest of the stored entry when the user opened the form, to detect a concurrent
            change.
        errors: field name -> error message; the key "" is for errors of the whole form.
    """

    kind: str
    rule: str
    timezone: str
    seen: str
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Mapping[str, str]) -> RuleForm:
        """Return the form that a POST request contains."""
        names = ("kind", "rule", "timezone", "seen")
        kind, rule, timezone, seen = (data.get(name, "").strip() for name in names)
        return cls(kind, rule.replace("\r\n", "\n"), timezone, seen)

    def add_error(self, error: InvalidEntryError) -> None:
        """Add an error to the field that caused the error."""
        head = error.field.partition(".")[0]
        form_field = {"schedule": "rule"}.get(head, head)
        if form_field in ("kind", "rule", "timezone"):
            self.errors[form_field] = error.problem
        else:
            self.errors[""] = str(error)


def apply_rule(entry: Any, form: RuleForm) -> None:
    """Set the schedule and the time zone of an entry from the form.

    Raises :exc:`InvalidEntryError` for invalid values.
    """
    app_zone = entry.app.timezone
    try:
        zone = zone_named(form.timezone) if form.timezone else app_zone
    except ValueError as error:
        raise InvalidEntryError("timezone", str(error)) from error
    # The text of a rule may lack details of the schedule. If the user did not change the text, the
    # schedule must stay unchanged.
    if rule_of(entry.schedule) != (form.kind, form.rule):
        entry.schedule = parse_rule(form.kind, form.rule, zone, entry.app)
    entry.__dict__.pop("timezone", None)
    if form.timezone and not has_own_zone(entry.schedule):
        entry.timezone = form.timezone
    entry.texts()


def preview_of(entry: Any, form: RuleForm) -> list[datetime]:
    """Return the next runs of the rule in the form; add an error to the form for a bad rule."""
    if form.errors:
        return []
    changed = entry._copy()
    try:
        apply_rule(changed, form)
        changed._arm(entry._seen_texts, changed.texts(), datetime.now(UTC))
        runs: list[datetime] = changed.upcoming(PREVIEWED)
        return runs
    except InvalidEntryError as error:
        form.add_error(error)
        return []


entries = Blueprint("entries", __name__)

#: Number of upcoming runs on the entry page.
UPCOMING: Final = 10


def entry_name() -> str:
    """Return the entry name in the URL, or abort with 404 if the URL has no name."""
    fields = parse_qsl(request.query_string.decode("latin-1"), errors="surrogateescape")
    name = dict(fields).get("name", "")
    return name or abort(404, "The URL has no entry name (parameter name=...).")


def get_or_404(name: str) -> tuple[float, Row, Record]:
    """Return the time of Redis (UNIX seconds), and the row and the record of an entry.

    Aborts the request with 404 if the entry does not exist. Takes one round trip.
    """
    try:
        page, record = record_of(current_app.extensions["schedule"], name)
    except KeyError:
        record = None
    if record is None:
        abort(404, f"There is no entry {name!r}. The entry was deleted, or it has finished.")
    return page.now, page.rows[0], record


@entries.get("/entry")
def show() -> ResponseReturnValue:
    """Show the page of an entry. Takes two round trips."""
    return render_entry(entry_name())


def render_entry(name: str, form: RuleForm | None = None, code: int = 200) -> ResponseReturnValue:
    """Return the page of an entry; ``form`` is the rule form that the user submitted."""
    started = time.monotonic()
    seconds, row, record = get_or_404(name)
    now = now_of(seconds)
    app = current_app.extensions["celery"]
    task_id_of = record.entry.own_task_id if record.entry else no_id
    lines, _ = store_of(app).history(row.key)
    runs = read_history(lines, task_id_of)[: ensure_conf(app).history_size]
    context: dict[str, Any] = {"name": name, "record": record, "row": row, "now": now}
    context.update(status=record.status(row), runs=runs, late=late, kinds=KINDS)
    context["texts"] = texts_of(row)
    context["history"] = lateness_chart(
        [
            (run.scheduled_at.astimezone(zone()), late(run))
            for run in reversed(runs)
            if run.outcome == SENT
        ]
    )
    pause = Pause.of_entry(record.entry)
    context.update(pause=pause, paused_at=_instant(pause.since) if pause else None)
    if record.entry is not None:
        context.update(_definition_context(record.entry, form))
        context["upcoming"] = record.entry.upcoming(UPCOMING, now)
    context["poll"] = poll_after(time.monotonic() - started)
    return render_template("entry.html", **context), code


def _definition_context(entry: Any, form: RuleForm | None) -> dict[str, Any]:
    definition, rule = stored(entry), rule_of(entry.schedule)
    if form is None:
        kind, text = rule or ("cron", "")
        timezone = "" if has_own_zone(entry.schedule) else entry.timezone or ""
        form = RuleForm(kind, text, timezone, digest(*entry._seen_texts))
    call_fields = ("args", "kwargs", "options")
    return {
        "entry": entry,
        "fields": {name: definition[name] for name in call_fields if definition[name]},
        "policy": policy(entry),
        "zone": zone_of(entry) or app_zone(),
        "form": form,
        "has_no_text": rule is None,
        "preview": preview_of(entry, form),
    }


def _instant(text: str) -> datetime | None:
    """Return an instant from ISO 8601, or None if another program stored an invalid string."""
    try:
        return aware(datetime.fromisoformat(text))
    except ValueError:
        return None


def late(run: Occurrence) -> float:
    """Return the lateness of a run in seconds; 0 for an early run."""
    return max((run.dispatched_at - run.scheduled_at).total_seconds(), 0.0)
