"""The timeline: what is to come, and how much of it at once."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, NamedTuple

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.management.forecast import Forecast, per_minute
from redbeat.schedule import Schedule

from .charts import lanes, load_chart
from .values import entry_url, zone

__all__ = ("Forecasts", "timeline")

timeline = Blueprint("timeline", __name__)

MINUTE: Final = timedelta(minutes=1)

#: Entries that are drawn at most; the load is that of all.
LANES: Final = 40

#: The busiest bars that are listed.
BUSIEST: Final = 5

#: How long a forecast is good: seconds at least, and times what it took to make it.
FRESH, TIMES = 2.0, 20.0


class Span(NamedTuple):
    """How far to look, and the minutes of a bar, as a number and in words."""

    title: str
    length: timedelta
    minutes: int
    bar: str


SPANS: Final = {
    "hour": Span("next hour", timedelta(hours=1), 1, "minute"),
    "day": Span("next day", timedelta(days=1), 15, "15 minutes"),
    "week": Span("next week", timedelta(weeks=1), 120, "2 hours"),
}


class Forecasts:
    """The last forecast of each span: one that was costly is kept for longer. For any thread."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._kept: dict[str, tuple[float, Forecast]] = {}
        self._locks = {name: Lock() for name in SPANS}

    def get(self, name: str) -> tuple[Forecast, float]:
        """Return the forecast of a span, and for how many seconds it is good."""
        with self._locks[name]:
            until, found = self._kept.get(name, (0.0, None))
            began = time.monotonic()
            if found is None or began >= until:
                now = datetime.now(UTC)
                found = self._schedule.forecast(_end(now, SPANS[name]), now)
                ended = time.monotonic()
                until = ended + max(FRESH, TIMES * (ended - began))
                self._kept[name] = until, found
        return found, max(until - time.monotonic(), FRESH)


@timeline.get("/timeline")
def show() -> ResponseReturnValue:
    """Show what is to come, or what runs within one bar."""
    name = request.args.get("span", "hour")
    if name not in SPANS:
        abort(404, f"A timeline is that of an {', a '.join(SPANS)}.")
    span = SPANS[name]
    found, fresh = current_app.extensions["forecasts"].get(name)
    start = _start(found.since)
    bars = max(int((found.until - start) / MINUTE) // span.minutes, 1)
    load = per_minute(found.runs, start, bars * span.minutes)
    counts = [sum(load[at : at + span.minutes]) for at in range(0, len(load), span.minutes)]
    context: dict[str, Any] = {"found": found, "span": name, "spans": SPANS, "bar": span.bar}
    context.update(total=sum(map(len, found.runs.values())), peak=max(load))
    context["load"] = load_chart(counts, start.astimezone(zone()), span.minutes * 60)
    length = _end(found.since, span) - found.since
    rows = _rows(found, length)
    context["lanes"] = lanes(rows, found.since.astimezone(zone()), length.total_seconds())
    context["left_out"] = max(len(found.runs) - LANES, 0)
    context["busiest"] = [_bar(found, start + at * MINUTE) for at in _busiest(load)]
    context["poll"] = round(min(fresh, 60.0), 1)
    return render_template("timeline.html", now=datetime.now(UTC), **context)


def _start(since: datetime) -> datetime:
    """Return the first full minute: a part of one would look like a drop of the load."""
    return since.replace(second=0, microsecond=0) + MINUTE


def _end(since: datetime, span: Span) -> datetime:
    """Return the end of the last full minute of a span."""
    return _start(since) + span.length


def _rows(found: Forecast, length: timedelta) -> list[tuple[str, str, list[float]]]:
    rows = []
    for name, runs in list(found.runs.items())[:LANES]:
        places = [(at - found.since) / length for at in runs]
        rows.append((name, entry_url(name), places))
    return rows


def _busiest(load: list[int]) -> list[int]:
    """Return the minutes with most runs, where there are some with more than one.

    The busiest comes first, of equals the one that is sooner.
    """
    minutes = [minute for minute, count in enumerate(load) if count > 1]
    return sorted(minutes, key=lambda minute: -load[minute])[:BUSIEST]


def _bar(found: Forecast, start: datetime) -> tuple[datetime, int, list[tuple[str, int]]]:
    """Return a minute, how many runs it has, and those of the entries with most of them."""
    counts = Counter(
        {
            name: sum(start <= at < start + MINUTE for at in runs)
            for name, runs in found.runs.items()
        }
    )
    return start, counts.total(), [(name, n) for name, n in counts.most_common(8) if n]
