"""The page that simulates an entry in a period, under its stored rule and another rule."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from flask import Blueprint, abort, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.errors import InvalidEntryError
from redbeat.management.forecast import simulate as runs_of
from redbeat.presentation.rule_text import KINDS
from redbeat.presentation.text import in_zone
from redbeat.transfer.incoming import instant_from

from .entry import entry_name, get_or_404
from .form import EntryForm
from .values import now_of, zone

simulate = Blueprint("simulate", __name__)

#: Maximum number of runs in the table.
MAX_ROWS: Final = 500

#: The fields of the form that define a rule.
RULE: Final = ("kind", "rule", "timezone")

#: The default time from the start of the simulated period to now, and from now to its end.
DEFAULT_SPAN: Final = timedelta(days=1)


@dataclass(slots=True)
class Period:
    """A period as a user entered it, with an error message if the period is invalid.

    Times without a UTC offset are in the time zone of the browser.
    """

    since: str
    until: str
    error: str = ""
    instants: list[datetime] = field(default_factory=list)

    @classmethod
    def read(cls, now: datetime) -> Period:
        """Return the period in the URL.

        By default, the period begins one day before ``now`` and ends one day after ``now``.
        """
        local = now.astimezone(zone()).replace(tzinfo=None, second=0, microsecond=0)
        defaults = {"from": local - DEFAULT_SPAN, "to": local + DEFAULT_SPAN}
        texts = [
            request.args.get(name, "").strip() or default.isoformat(timespec="minutes")
            for name, default in defaults.items()
        ]
        period = cls(texts[0], texts[1])
        try:
            period.instants = [instant_from("period", text, zone()) for text in texts]
        except InvalidEntryError:
            period.error = "Enter times such as 2027-03-28T02:30."
        else:
            if period.instants[0] >= period.instants[1]:
                period.error = "The end must be later than the start."
        return period


@simulate.get("/entry/simulate")
def show() -> ResponseReturnValue:
    """Show the runs of an entry in a period, under its stored rule and another rule.

    Takes one round trip.
    """
    name = entry_name()
    seconds, _, record = get_or_404(name)
    entry: Any = record.entry
    if entry is None:
        abort(409, f"The entry cannot be read: {record.problem}")
    now = now_of(seconds)
    period, form = Period.read(now), EntryForm.read(request.args, RULE)
    context: dict[str, Any] = {"name": name, "period": period, "form": form, "kinds": KINDS}
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
    return render_template("simulate.html", now=now, **context), code
