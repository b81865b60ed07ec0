"""The timeline page, and the charts that ``templates/charts.html`` draws as inline SVG.

The page shows the runs of the next hour, day or week, and those of the last hour or day that the
entries' histories still have.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from heapq import nlargest
from itertools import islice, pairwise
from math import ceil, floor, log10
from threading import Lock
from typing import Final, NamedTuple

from flask import Blueprint, abort, current_app, render_template, request
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC, wall_zone
from redbeat.management import forecast
from redbeat.management.forecast import Load, Periods
from redbeat.management.schedule import Schedule

from .values import counted, late, zone

timeline = Blueprint("timeline", __name__)

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

#: Maximum number of entries with a lane. The chart above has all entries.
LANES: Final = 40

#: Number of busiest periods to list, of those with more than one run.
BUSIEST: Final = 5

#: A forecast stays in the cache for 20 times its computation time, but at least 2 seconds.
MIN_CACHE_SECONDS, CACHE_FACTOR = 2.0, 20.0

#: How long a request counts the runs of a large schedule, and when the page asks for the rest.
STEP_SECONDS, POLL_WHILE_COUNTING = 1.0, 0.1

#: Maximum number of labels of a value axis, not counting 0.
MAX_VALUES: Final = 4
#: Maximum number of bars to highlight; if more have the highest value, none is highlighted.
MAX_PEAKS: Final = 3
#: The smallest range of the lateness axis, in seconds.
MIN_LATENESS: Final = 0.001


class Span(NamedTuple):
    """A period that the timeline can show; one that is ``past`` ends now.

    ``bar`` is the length of a bar, and ``bar_name`` the same in words. The time axis has a label
    for each ``tick``, in the format ``form``.
    """

    title: str
    length: timedelta
    bar: timedelta
    bar_name: str
    tick: timedelta
    form: str
    past: bool = False


SPANS: Final = {
    "last-day": Span("last day", DAY, 15 * MINUTE, "15 minutes", DAY / 8, "%H:%M", past=True),
    "last-hour": Span("last hour", 60 * MINUTE, MINUTE, "minute", 10 * MINUTE, "%H:%M", past=True),
    "hour": Span("next hour", 60 * MINUTE, MINUTE, "minute", 10 * MINUTE, "%H:%M"),
    "day": Span("next day", DAY, 15 * MINUTE, "15 minutes", DAY / 8, "%H:%M"),
    "week": Span("next week", 7 * DAY, 120 * MINUTE, "2 hours", DAY, "%a %d"),
}


class Tick(NamedTuple):
    """A label at a position from 0 to 1, the full length of the axis."""

    position: float
    label: str


class Chart(NamedTuple):
    """A bar chart with bars of equal width.

    Each bar has a value, the value as text, and its time or period as text. ``top`` is the end of
    the value axis, and bars with the value ``peak`` are highlighted. ``zone`` labels the time zone.
    """

    description: str
    bars: Sequence[float]
    texts: Sequence[str]
    periods: Sequence[str]
    top: float
    peak: float | None
    values: list[Tick]
    times: list[Tick]
    zone: str


def value_axis(highest: float, smallest: float, unit: str) -> tuple[float, list[Tick]]:
    """Return the end of an axis from 0, and its labels: round numbers, at least this far apart."""
    rough = max(highest / MAX_VALUES, smallest)
    power = 10.0 ** floor(log10(rough) + 1e-9)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999999)
    count = max(ceil(highest / step - 1e-9), 1)
    labels = [f"{number * step:,.10g}{unit}" for number in range(count + 1)]
    return step * count, [Tick(number / count, label) for number, label in enumerate(labels)]


def time_axis(start: datetime, length: timedelta, step: timedelta, form: str) -> list[Tick]:
    """Label the multiples of ``step`` after midnight on the wall clock, by ``strftime(form)``."""
    zone = wall_zone(start.tzinfo or UTC)
    midnight = start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    walls = [midnight + number * step for number in range((DAY + length) // step + 1)]
    ticks = [Tick((wall.astimezone(UTC) - start) / length, wall.strftime(form)) for wall in walls]
    return [tick for tick in ticks if 0 <= tick.position <= 1]


def clock(instant: datetime) -> str:
    """Return an instant as day and time for a tooltip, without seconds if they are 0."""
    return instant.strftime("%a %d %b %H:%M:%S" if instant.second else "%a %d %b %H:%M")


def load_chart(counts: Sequence[int], start: datetime, span: Span) -> Chart:
    """Times are in the zone of ``start``, where the first period begins."""
    edges = [
        clock((start.astimezone(UTC) + number * span.bar).astimezone(start.tzinfo))
        for number in range(len(counts) + 1)
    ]
    top, values = value_axis(max(counts), 1, "")
    return Chart(
        description=f"{counted(sum(counts), 'run')} from {edges[0]} to {edges[-1]}, "
        f"at most {max(counts)} in one bar.",
        bars=counts,
        texts=[counted(count, "run") for count in counts],
        periods=[f"{begin} to {end}" for begin, end in pairwise(edges)],
        top=top,
        peak=_peak(counts),
        values=values,
        times=time_axis(start, len(counts) * span.bar, span.tick, span.form),
        zone=f"{start:%Z}",
    )


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Chart:
    """Return a bar chart of the lateness of runs, in seconds from 0, the oldest run first.

    There is at least one point. Each instant is shown in its own time zone.
    """
    seconds = [lateness for _, lateness in points]
    instants = [clock(at) for at, _ in points]
    unit, scale = (" ms", 1000) if max(seconds) < 1 else (" s", 1)
    top, values = value_axis(max(*seconds, MIN_LATENESS) * scale, MIN_LATENESS * scale, unit)
    runs = "The last run" if len(points) == 1 else f"The last {len(points)} runs"
    return Chart(
        description=f"{runs}; the maximum was {late(max(seconds))} late.",
        bars=seconds,
        texts=[f"{late(each)} late" for each in seconds],
        periods=instants,
        top=top / scale,
        peak=_peak(seconds),
        values=values,
        times=[Tick(0, instants[0]), Tick(1, instants[-1])][: len(points)],
        zone=f"{points[-1][0]:%Z}",
    )


def _peak(values: Sequence[float]) -> float | None:
    """Return the highest value, None if all are equal or too many bars have it."""
    highest = max(values)
    is_peak = min(values) < highest and list(values).count(highest) <= MAX_PEAKS
    return highest if is_peak else None


# -- the page --------------------------------------------------------------------------------------


class Forecast:
    """A thread-safe cache of the forecast for a span.

    The longer the forecast took, the longer it is kept. A large schedule is counted step by step,
    one for each request.
    """

    def __init__(self, schedule: Schedule, span: Span) -> None:
        self._schedule, self._span = schedule, span
        self._lock = Lock()
        self._loads: Iterator[Load] = iter(())
        #: How long the counting took so far, and when the forecast is too old to be shown, in
        #: seconds of ``time.monotonic()``.
        self._seconds = self._expires = 0.0

    def get(self) -> tuple[Load, float]:
        """Return the forecast, and in how many seconds there will be a newer one.

        It is not finished while ``load.read`` is not 0.
        """
        with self._lock:
            started = time.monotonic()
            if started >= self._expires:
                self._loads, self._seconds = self._counted(), 0.0
            expires, self._expires = self._expires, 0.0  # an error ends the counting
            found = next(self._loads, None)
            now = time.monotonic()
            if found is not None:
                self._load = found
                self._seconds += now - started
                expires = now + max(MIN_CACHE_SECONDS, CACHE_FACTOR * self._seconds)
            self._expires = expires
            wait = POLL_WHILE_COUNTING if self._load.read else max(expires - now, MIN_CACHE_SECONDS)
            return self._load, wait

    def _counted(self) -> Iterator[Load]:
        now, span = datetime.now(UTC), self._span
        # A partial minute would look like a drop in load.
        start = now.replace(second=0, microsecond=0) + MINUTE
        if span.past:
            periods = Periods(now, start - span.length, span.bar, start)
            yield forecast.past_load(self._schedule, periods)
            return
        periods = Periods(now, start, span.bar, start + span.length)
        yield from forecast.load_in_steps(forecast.Loading(self._schedule, periods), STEP_SECONDS)


def forecasts_of(schedule: Schedule) -> dict[str, Forecast]:
    return {name: Forecast(schedule, span) for name, span in SPANS.items()}


@timeline.get("/timeline")
def show() -> ResponseReturnValue:
    """Takes no round trip while the forecast is cached."""
    name = request.args.get("span", "hour")
    if name not in SPANS:
        abort(404, f"Unknown span. Choose one of: {', '.join(SPANS)}.")
    span = SPANS[name]
    load, expires_in = current_app.extensions["forecasts"][name].get()
    start = load.start.astimezone(zone())
    busy = [number for number, count in enumerate(load.counts) if count > 1]
    busy.sort(key=lambda number: -load.counts[number])  # the sort is stable
    return render_template(
        "timeline.html",
        load=load,
        span=name,
        spans=SPANS,
        bar=span.bar_name,
        chart=load_chart(load.counts, start, span),
        lanes=dict(islice(load.entries.items(), LANES)),
        busiest=[_period(load, number) for number in busy[:BUSIEST]],
        now=datetime.now(UTC),
        poll=round(min(expires_in, 60.0), 1),
    )


def _period(load: Load, number: int) -> tuple[datetime, int, list[tuple[str, int]]]:
    """Return a period's start, its number of runs, and the entries that make it busy.

    These are at most eight, each with its number of runs. Those come first that run more often than
    in other periods.
    """
    found = ((name, each) for name, each in load.entries.items() if each[number])
    busiest = nlargest(8, found, lambda item: item[1][number] - sum(item[1]) / len(item[1]))
    start = load.start + number * load.length
    return start, load.counts[number], [(name, each[number]) for name, each in busiest]
