"""Computes the charts, which ``templates/charts.html`` draws as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final, NamedTuple

from redbeat.calendar.zones import UTC, wall_zone

from .values import counted, late

#: Maximum number of labels of a value axis, not counting 0.
MAX_VALUES: Final = 4
#: Maximum number of bars to highlight; if more bars have the highest value, none is highlighted.
MAX_PEAKS: Final = 3
#: The smallest range of the lateness axis, in seconds.
MIN_LATENESS: Final = 0.001
DAY: Final = timedelta(days=1)


class Tick(NamedTuple):
    """A label of an axis. The position is a number from 0 to 1, the full length of the axis."""

    position: float
    label: str


class Chart(NamedTuple):
    """A bar chart with bars of equal width.

    Each bar has a value, the value as text, and the text of its time or period. ``top`` is the
    value at the end of the value axis, and bars with the value ``peak`` are highlighted. ``zone``
    is the label of the time zone.
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
    """Return the end of an axis for values from 0 to ``highest``, and the labels of the axis.

    Labels are round numbers that differ by at least ``smallest``.
    """
    rough = max(highest / MAX_VALUES, smallest)
    power = 10.0 ** floor(log10(rough) + 1e-9)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999999)
    count = max(ceil(highest / step - 1e-9), 1)
    labels = [f"{number * step:,.10g}{unit}" for number in range(count + 1)]
    return step * count, [Tick(number / count, label) for number, label in enumerate(labels)]


def time_axis(start: datetime, length: timedelta, step: timedelta, form: str) -> list[Tick]:
    """Return labels at the wall-clock times after midnight that are multiples of ``step``.

    The axis begins at ``start``, an aware datetime. ``form`` is a format of ``strftime``.
    """
    zone = wall_zone(start.tzinfo or UTC)
    midnight = start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    walls = [midnight + number * step for number in range((DAY + length) // step + 1)]
    ticks = [Tick((wall.astimezone(UTC) - start) / length, wall.strftime(form)) for wall in walls]
    return [tick for tick in ticks if 0 <= tick.position <= 1]


def clock(instant: datetime) -> str:
    """Return an instant as day and time for a tooltip, without seconds if they are 0."""
    return instant.strftime("%a %d %b %H:%M:%S" if instant.second else "%a %d %b %H:%M")


def load_chart(
    counts: Sequence[int], start: datetime, bar: timedelta, tick: timedelta, form: str
) -> Chart:
    """Return a bar chart of the number of runs in consecutive periods.

    The first period begins at ``start``, an aware datetime, in whose zone times are shown. A period
    is as long as ``bar``, and :func:`time_axis` describes ``tick`` and ``form``.
    """
    edges = [
        clock((start.astimezone(UTC) + number * bar).astimezone(start.tzinfo))
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
        times=time_axis(start, len(counts) * bar, tick, form),
        zone=f"{start:%Z}",
    )


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Chart:
    """Return a bar chart of the lateness of runs.

    ``points`` contains at least one point, the oldest point first. A point is an aware instant and
    a lateness in seconds, at least 0. Each instant is shown in its own time zone.
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
    """Return the highest value, or None if all values are equal or too many bars have it."""
    highest = max(values)
    is_peak = min(values) < highest and list(values).count(highest) <= MAX_PEAKS
    return highest if is_peak else None
