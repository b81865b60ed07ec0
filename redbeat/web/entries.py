"""One entry."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.config import ensure_conf
from redbeat.entries.access import store_of
from redbeat.entries.decide import aware
from redbeat.entries.pauses import Pause, digest
from redbeat.entries.runs import SENT, Occurrence, no_id, read_history
from redbeat.management.browsing import record_of
from redbeat.presentation.describing import policy, stored
from redbeat.presentation.rule_text import KINDS, has_own_zone, rule_of
from redbeat.schedule import Record
from redbeat.storage.wire import Row

from .charts import lateness_chart
from .listing import poll_after
from .rules import RuleForm, preview_of
from .showing import app_zone, now_of, zone
from .texts import texts_of
from .zones import zone_of

__all__ = ("entries", "entry_name", "found_or_404", "render_entry")

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
