"""The page of one entry, and the form that changes its rule."""

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
    "found_or_404",
    "preview_of",
    "render_entry",
    "zone_of",
)


def zone_of(entry: Any) -> tzinfo | None:
    """Return the zone in which the rule of an entry is read, None for that of the app."""
    when = entry.schedule
    start = getattr(when, "dtstart", None) or getattr(when, "clocked_time", None)
    if isinstance(when, (rrule, rruleset)) or start is not None:
        found: tzinfo | None = getattr(start, "tzinfo", None)
        return found
    zone: tzinfo | None = entry.policy.zone
    return zone


#: Runs that are shown before they are saved.
PREVIEWED = 10


@dataclass(slots=True)
class RuleForm:
    """What was typed, and what is wrong with it.

    Attributes:
        kind, rule, timezone: the fields, as typed.
        seen: the digest of what was stored when the form was shown.
        errors: what is wrong, by field; "" for the form as a whole.
    """

    kind: str
    rule: str
    timezone: str
    seen: str
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> RuleForm:
        """Return the form that was sent."""
        names = ("kind", "rule", "timezone", "seen")
        kind, rule, timezone, seen = (given.get(name, "").strip() for name in names)
        return cls(kind, rule.replace("\r\n", "\n"), timezone, seen)

    def blame(self, error: InvalidEntryError) -> None:
        """Note an error at the field that it is about."""
        head = error.field.partition(".")[0]
        where = {"schedule": "rule"}.get(head, head)
        if where in ("kind", "rule", "timezone"):
            self.errors[where] = error.problem
        else:
            self.errors[""] = str(error)


def apply_rule(entry: Any, form: RuleForm) -> None:
    """Change the schedule and the zone of an entry; raises :exc:`InvalidEntryError`."""
    app_zone = entry.app.timezone
    try:
        zone = zone_named(form.timezone) if form.timezone else app_zone
    except ValueError as error:
        raise InvalidEntryError("timezone", str(error)) from error
    # What was not touched stays as it is: its text may say less than the schedule.
    if rule_of(entry.schedule) != (form.kind, form.rule):
        entry.schedule = parse_rule(form.kind, form.rule, zone, entry.app)
    entry.__dict__.pop("timezone", None)
    if form.timezone and not has_own_zone(entry.schedule):
        entry.timezone = form.timezone
    entry.texts()


def preview_of(entry: Any, form: RuleForm) -> list[datetime]:
    """Return the next runs as the form has them; what is wrong is noted in the form."""
    if form.errors:
        return []
    changed = entry._copy()
    try:
        apply_rule(changed, form)
        changed._arm(entry._seen_texts, changed.texts(), datetime.now(UTC))
        runs: list[datetime] = changed.upcoming(PREVIEWED)
        return runs
    except InvalidEntryError as error:
        form.blame(error)
        return []


entries = Blueprint("entries", __name__)

#: Runs to come that are shown.
UPCOMING: Final = 10


def entry_name() -> str:
    """Return the name in the address; an empty one is a page that does not exist."""
    fields = parse_qsl(request.query_string.decode("latin-1"), errors="surrogateescape")
    name = dict(fields).get("name", "")
    return name or abort(404, "The address does not name an entry.")


def found_or_404(name: str) -> tuple[float, Row, Record]:
    """Return the time of Redis, the row and the record of an entry. One round trip."""
    try:
        page, record = record_of(current_app.extensions["schedule"], name)
    except KeyError:
        record = None
    if record is None:
        abort(404, f"There is no entry {name!r}. It may have been deleted, or have finished.")
    return page.now, page.rows[0], record


@entries.get("/entry")
def show() -> ResponseReturnValue:
    """Show an entry. Two round trips."""
    return render_entry(entry_name())


def render_entry(name: str, form: RuleForm | None = None, code: int = 200) -> ResponseReturnValue:
    """Return the page of an entry, with what was typed into the form of its rule."""
    began = time.monotonic()
    seconds, row, record = found_or_404(name)
    now = now_of(seconds)
    app = current_app.extensions["celery"]
    own_id = record.entry.own_task_id if record.entry else no_id
    lines, _ = store_of(app).history(row.key)
    runs = read_history(lines, own_id)[: ensure_conf(app).history_size]
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
        context.update(_of_entry(record.entry, form))
        context["upcoming"] = record.entry.upcoming(UPCOMING, now)
    context["poll"] = poll_after(time.monotonic() - began)
    return render_template("entry.html", **context), code


def _of_entry(entry: Any, form: RuleForm | None) -> dict[str, Any]:
    shown, rule = stored(entry), rule_of(entry.schedule)
    if form is None:
        kind, text = rule or ("cron", "")
        own = has_own_zone(entry.schedule)
        form = RuleForm(kind, text, "" if own else entry.timezone or "", digest(*entry._seen_texts))
    return {
        "entry": entry,
        "fields": {name: shown[name] for name in ("args", "kwargs", "options") if shown[name]},
        "policy": policy(entry),
        "zone": zone_of(entry) or app_zone(),
        "form": form,
        "foreign": rule is None,
        "preview": preview_of(entry, form),
    }


def _instant(text: str) -> datetime | None:
    """Return the instant in ISO 8601, None for what another program wrote there."""
    try:
        return aware(datetime.fromisoformat(text))
    except ValueError:
        return None


def late(run: Occurrence) -> float:
    """Return by how many seconds a run was late."""
    return max((run.dispatched_at - run.scheduled_at).total_seconds(), 0.0)
