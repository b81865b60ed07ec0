"""The timeline page: the runs of the next hour, day or week."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.management.forecast import Load, Periods, first_runs
from redbeat.schedule import Schedule

from .charts import Row, lanes, load_chart
from .values import entry_url, zone

timeline = Blueprint("timeline", __name__)

MINUTE: Final = timedelta(minutes=1)

#: Maximum number of entries with a lane. The chart above the lanes includes all entries.
LANES: Final = 40

#: Maximum number of runs that a lane shows one by one.
MARKS: Final = 1500

#: Number of busiest periods to list, of those with more than one run.
BUSIEST: Final = 5

#: A forecast stays in the cache for 20 times its computation time, but at least 2 seconds.
MIN_CACHE_SECONDS, CACHE_FACTOR = 2.0, 20.0


class Span(NamedTuple):
    """A period that the timeline can show, with the length of one bar in minutes and in words."""

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
    """A thread-safe cache of the last forecast for each span.

    The longer the computation of a forecast took, the longer the forecast is cached.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._cached: dict[str, tuple[float, Load, datetime]] = {}
        self._locks = {name: Lock() for name in SPANS}

    def get(self, name: str) -> tuple[Load, datetime, float]:
        """Return the forecast for a span, its creation time, and the seconds until it expires."""
        with self._locks[name]:
            expires, forecast, now = self._cached.get(name, (0.0, None, datetime.now(UTC)))
            started = time.monotonic()
            if forecast is None or started >= expires:
                now, span = datetime.now(UTC), SPANS[name]
                bar = span.minutes * MINUTE
                # A partial minute would look like a drop in load.
                start = now.replace(second=0, microsecond=0) + MINUTE
                forecast = self._schedule.load(Periods(now, start, bar, start + span.length))
                ended = time.monotonic()
                expires = ended + max(MIN_CACHE_SECONDS, CACHE_FACTOR * (ended - started))
                self._cached[name] = expires, forecast, now
        return forecast, now, max(expires - time.monotonic(), MIN_CACHE_SECONDS)


@timeline.get("/timeline")
def show() -> ResponseReturnValue:
    """Show the upcoming runs of one span. Takes no round trip while the forecast is cached."""
    name = request.args.get("span", "hour")
    if name not in SPANS:
        abort(404, f"Unknown span. Choose one of: {', '.join(SPANS)}.")
    span = SPANS[name]
    load, since, expires_in = current_app.extensions["forecasts"].get(name)
    start = load.start.astimezone(zone())
    context: dict[str, Any] = {"load": load, "span": name, "spans": SPANS, "bar": span.bar}
    context.update(total=sum(load.counts), peak=max(load.counts))
    context["chart"] = load_chart(load.counts, start, span.minutes * 60)
    context["lanes"] = lanes(_rows(load, since, span), start, span.length.total_seconds())
    context["left_out"] = max(len(load.entries) - LANES, 0)
    busy = [number for number, count in enumerate(load.counts) if count > 1]
    busy.sort(key=lambda number: -load.counts[number])  # the sort is stable
    context["busiest"] = [_period(load, number) for number in busy[:BUSIEST]]
    context["poll"] = round(min(expires_in, 60.0), 1)
    return render_template("timeline.html", now=datetime.now(UTC), **context)


def _rows(load: Load, since: datetime, span: Span) -> list[Row]:
    """Return the name, the URL, the run positions and the number of runs of the first entries.

    Position 0 is the start of the chart, and position 1 is its end. An entry with more runs than
    :data:`MARKS` has only the positions of its first and its last run.
    """
    rows: list[Row] = []
    end = load.start + span.length
    for name, counts in islice(load.entries.items(), LANES):
        total = sum(counts)
        if total > MARKS:
            filled = [number for number, count in enumerate(counts) if count]
            positions = [filled[0] / len(counts), (filled[-1] + 1) / len(counts)]
        else:
            runs = first_runs(load.found[name], since, end, MARKS)
            positions = [(at - load.start) / span.length for at in runs]
        rows.append((name, entry_url(name), positions, total))
    return rows


def _period(load: Load, number: int) -> tuple[datetime, int, list[tuple[str, int]]]:
    """Return the start of a period, its number of runs, and the entries with the most runs.

    At most eight entries are returned, each with its number of runs.
    """
    counts = Counter({name: each[number] for name, each in load.entries.items()})
    start = load.start + number * load.length
    return start, load.counts[number], [(name, n) for name, n in counts.most_common(8) if n]
