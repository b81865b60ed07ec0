"""The timeline page: the runs of the next hour, day or week."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from itertools import islice
from threading import Lock
from typing import Final, NamedTuple

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.management.forecast import Load, Periods
from redbeat.schedule import Schedule

from .charts import load_chart
from .values import zone

timeline = Blueprint("timeline", __name__)

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

#: Maximum number of entries with a lane. The chart above the lanes includes all entries.
LANES: Final = 40

#: Number of busiest periods to list, of those with more than one run.
BUSIEST: Final = 5

#: A forecast stays in the cache for 20 times its computation time, but at least 2 seconds.
MIN_CACHE_SECONDS, CACHE_FACTOR = 2.0, 20.0


class Span(NamedTuple):
    """A period that the timeline can show.

    ``bar`` is the length of one bar, and ``bar_name`` the same in words. The time axis has a label
    for each ``tick``, in the format ``form``.
    """

    title: str
    length: timedelta
    bar: timedelta
    bar_name: str
    tick: timedelta
    form: str


SPANS: Final = {
    "hour": Span("next hour", 60 * MINUTE, MINUTE, "minute", 10 * MINUTE, "%H:%M"),
    "day": Span("next day", DAY, 15 * MINUTE, "15 minutes", DAY / 8, "%H:%M"),
    "week": Span("next week", 7 * DAY, 120 * MINUTE, "2 hours", DAY, "%a %d"),
}


class Forecasts:
    """A thread-safe cache of the last forecast for each span.

    The longer the computation of a forecast took, the longer the forecast is cached.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._cached: dict[str, tuple[float, Load]] = {}
        self._locks = {name: Lock() for name in SPANS}

    def get(self, name: str) -> tuple[Load, float]:
        """Return the forecast for a span, and the number of seconds until it expires."""
        with self._locks[name]:
            expires, forecast = self._cached.get(name, (0.0, None))
            started = time.monotonic()
            if forecast is None or started >= expires:
                now, span = datetime.now(UTC), SPANS[name]
                # A partial minute would look like a drop in load.
                start = now.replace(second=0, microsecond=0) + MINUTE
                forecast = self._schedule.load(Periods(now, start, span.bar, start + span.length))
                ended = time.monotonic()
                expires = ended + max(MIN_CACHE_SECONDS, CACHE_FACTOR * (ended - started))
                self._cached[name] = expires, forecast
        return forecast, max(expires - time.monotonic(), MIN_CACHE_SECONDS)


@timeline.get("/timeline")
def show() -> ResponseReturnValue:
    """Show the upcoming runs of one span. Takes no round trip while the forecast is cached."""
    name = request.args.get("span", "hour")
    if name not in SPANS:
        abort(404, f"Unknown span. Choose one of: {', '.join(SPANS)}.")
    span = SPANS[name]
    load, expires_in = current_app.extensions["forecasts"].get(name)
    start = load.start.astimezone(zone())
    busy = [number for number, count in enumerate(load.counts) if count > 1]
    busy.sort(key=lambda number: -load.counts[number])  # the sort is stable
    return render_template(
        "timeline.html",
        load=load,
        span=name,
        spans=SPANS,
        bar=span.bar_name,
        chart=load_chart(load.counts, start, span.bar, span.tick, span.form),
        lanes=dict(islice(load.entries.items(), LANES)),
        busiest=[_period(load, number) for number in busy[:BUSIEST]],
        now=datetime.now(UTC),
        poll=round(min(expires_in, 60.0), 1),
    )


def _period(load: Load, number: int) -> tuple[datetime, int, list[tuple[str, int]]]:
    """Return the start of a period, its number of runs, and the entries with the most runs.

    At most eight entries are returned, each with its number of runs.
    """
    counts = Counter({name: each[number] for name, each in load.entries.items()})
    start = load.start + number * load.length
    return start, load.counts[number], [(name, n) for name, n in counts.most_common(8) if n]
