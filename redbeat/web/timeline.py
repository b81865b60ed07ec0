"""The timeline page: the runs of the next hour, day or week."""

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

#: Maximum number of entries with a lane. The chart above the lanes includes all entries.
LANES: Final = 40

#: Number of busiest minutes to list.
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

    A forecast that took longer to compute is cached longer.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._cached: dict[str, tuple[float, Forecast]] = {}
        self._locks = {name: Lock() for name in SPANS}

    def get(self, name: str) -> tuple[Forecast, float]:
        """Return the forecast for a span, and the seconds until the forecast expires."""
        with self._locks[name]:
            expires, forecast = self._cached.get(name, (0.0, None))
            started = time.monotonic()
            if forecast is None or started >= expires:
                now = datetime.now(UTC)
                forecast = self._schedule.forecast(_end(now, SPANS[name]), now)
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
    forecast, expires_in = current_app.extensions["forecasts"].get(name)
    start = _start(forecast.since)
    bars = max(int((forecast.until - start) / MINUTE) // span.minutes, 1)
    load = per_minute(forecast.runs, start, bars * span.minutes)
    counts = [sum(load[at : at + span.minutes]) for at in range(0, len(load), span.minutes)]
    context: dict[str, Any] = {"forecast": forecast, "span": name, "spans": SPANS, "bar": span.bar}
    context.update(total=sum(map(len, forecast.runs.values())), peak=max(load))
    context["load"] = load_chart(counts, start.astimezone(zone()), span.minutes * 60)
    length = _end(forecast.since, span) - forecast.since
    rows = _rows(forecast, length)
    context["lanes"] = lanes(rows, forecast.since.astimezone(zone()), length.total_seconds())
    context["left_out"] = max(len(forecast.runs) - LANES, 0)
    context["busiest"] = [
        _runs_in_minute(forecast, start + minute * MINUTE) for minute in _busiest(load)
    ]
    context["poll"] = round(min(expires_in, 60.0), 1)
    return render_template("timeline.html", now=datetime.now(UTC), **context)


def _start(since: datetime) -> datetime:
    """Return the next full minute.

    The chart skips the current minute, because a partial minute would look like a drop in load.
    """
    return since.replace(second=0, microsecond=0) + MINUTE


def _end(since: datetime, span: Span) -> datetime:
    """Return the end of the last full minute of a span."""
    return _start(since) + span.length


def _rows(forecast: Forecast, length: timedelta) -> list[tuple[str, str, list[float]]]:
    """Return the name, the URL and the run positions of the first entries.

    Position 0 is the start of the forecast, and position 1 is ``length`` later.
    """
    rows = []
    for name, runs in list(forecast.runs.items())[:LANES]:
        positions = [(at - forecast.since) / length for at in runs]
        rows.append((name, entry_url(name), positions))
    return rows


def _busiest(load: list[int]) -> list[int]:
    """Return the indexes of the busiest minutes with more than one run, the busiest first.

    Among minutes with the same number of runs, the earliest minute comes first.
    """
    minutes = [minute for minute, count in enumerate(load) if count > 1]
    return sorted(minutes, key=lambda minute: -load[minute])[:BUSIEST]


def _runs_in_minute(
    forecast: Forecast, start: datetime
) -> tuple[datetime, int, list[tuple[str, int]]]:
    """Return ``start``, the number of runs in that minute, and the entries with the most runs.

    At most eight entries are returned, each with its number of runs.
    """
    counts = Counter(
        {
            name: sum(start <= at < start + MINUTE for at in runs)
            for name, runs in forecast.runs.items()
        }
    )
    return start, counts.total(), [(name, n) for name, n in counts.most_common(8) if n]
