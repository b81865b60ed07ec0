"""Computes the charts, which ``templates/charts.html`` draws as inline SVG.

A position is a number from 0 (left end of the chart) to 1 (right end). A height is a number from 0
to 1 (full height of the plot).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count
from math import ceil, floor, log10
from typing import Final, NamedTuple

from redbeat.calendar.zones import UTC, wall_zone

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
#: Possible distances between two labels of a time axis, in seconds.
TIME_STEPS: Final = (
    *(1, 5, 10, 30),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
#: Maximum number of labels of a time axis.
MAX_TICKS: Final = 9
#: Maximum number of labels of a value axis, not counting 0.
MAX_VALUES: Final = 4
#: A lane has 400 slots; runs in the same slot or in adjacent slots share one mark.
SLOTS: Final = 400
#: Maximum number of bars to highlight; if more bars have the highest value, none is highlighted.
MAX_PEAKS: Final = 3
#: The smallest range of the lateness axis, in seconds.
MIN_LATENESS: Final = 0.001


class Tick(NamedTuple):
    """A label of an axis, with its position or height."""

    position: float
    label: str


class Bar(NamedTuple):
    """A bar of a chart. A bar is highlighted if ``peak`` is true."""

    height: float
    peak: bool
    tooltip: str


class Chart(NamedTuple):
    """A bar chart: its description, bars of equal width, axes, and the label of its time zone."""

    description: str
    bars: list[Bar]
    values: list[Tick]
    times: list[Tick]
    zone: str


class Mark(NamedTuple):
    """A mark in a lane for one run or a group of runs; the ``width`` of one run is 0."""

    left: float
    width: float
    tooltip: str


class Lane(NamedTuple):
    """The runs of one entry, with the entry's URL."""

    label: str
    href: str
    summary: str
    marks: list[Mark]


class Lanes(NamedTuple):
    """A time axis with the label of its time zone, and the lanes below the axis."""

    times: list[Tick]
    zone: str
    rows: list[Lane]


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


def seconds_after(start: datetime, seconds: float) -> datetime:
    """Return the instant ``seconds`` after ``start``, in the time zone of ``start``.

    The seconds are elapsed time, even if the UTC offset changes after ``start``.
    """
    return (start.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(start.tzinfo)


def clock(instant: datetime) -> str:
    """Return an instant as day and time for a tooltip, without seconds if they are 0."""
    return instant.strftime("%a %d %b %H:%M:%S" if instant.second else "%a %d %b %H:%M")


def time_ticks(start: datetime, seconds: float) -> list[Tick]:
    """Return labels at round wall-clock times from ``start`` to ``seconds`` after ``start``.

    ``start`` must be aware.
    """
    step = next((step for step in TIME_STEPS if seconds / step <= MAX_TICKS), TIME_STEPS[-1])
    zone = wall_zone(start.tzinfo or UTC)
    local = start.astimezone(zone).replace(tzinfo=None)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    ticks: list[Tick] = []
    for number in count((local - midnight) // timedelta(seconds=step)):
        wall = midnight + timedelta(seconds=number * step)
        at = wall.replace(tzinfo=zone)
        position = (at.astimezone(UTC) - start.astimezone(UTC)).total_seconds() / seconds
        if position > 1 or len(ticks) > 2 * MAX_TICKS:
            break
        if position >= 0:
            ticks.append(Tick(position, at.strftime(_format(step, wall))))
    return ticks


def _format(step: int, wall: datetime) -> str:
    if step < MINUTE:
        return "%H:%M:%S"
    if step >= DAY or (step >= 6 * HOUR and not wall.hour):
        return "%a %d %b" if step > DAY else "%a %d"
    return "%H:%M"


#: The data of a lane: its label, its URL, the positions of its runs, and their number.
Row = tuple[str, str, Sequence[float], int]


def lanes(rows: Sequence[Row], start: datetime, seconds: float) -> Lanes:
    """Return a time axis and, below the axis, one lane of runs for each row.

    A row is ``(label, href, positions, total)``; if there are more runs than positions, the lane is
    one block from the first to the last position. Positions are sorted; 0 means ``start``, and 1
    means ``seconds`` after ``start``. Positions below 0 or above 1 are ignored. Times are shown in
    the zone of ``start``, which must be aware.
    """
    each = [_lane(row, start, seconds) for row in rows]
    return Lanes(time_ticks(start, seconds), f"{start:%Z}", each)


def _lane(row: Row, start: datetime, seconds: float) -> Lane:
    label, href, positions, total = row
    visible = [position for position in positions if 0 <= position <= 1]
    is_block = total > len(positions)
    marks = []
    for runs in [visible] if is_block else _merged(visible):
        width = min(runs[-1] + 1 / SLOTS, 1) - runs[0] if len(runs) > 1 else 0
        tooltip = _summary(runs, start, seconds, total if is_block else len(runs))
        marks.append(Mark(runs[0], width, tooltip))
    summary = _summary(visible, start, seconds, total if is_block else len(visible))
    return Lane(label, href, summary, marks)


def _merged(positions: Sequence[float]) -> list[list[float]]:
    """Group positions that are too close to each other for separate marks."""
    groups: list[list[float]] = []
    for position in positions:
        if groups and int(position * SLOTS) - int(groups[-1][-1] * SLOTS) <= 1:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _summary(positions: Sequence[float], start: datetime, seconds: float, total: int) -> str:
    if not positions:
        return "no runs"
    times = [
        clock(seconds_after(start, round(position * seconds)))
        for position in (positions[0], positions[-1])
    ]
    if len(positions) == 1:
        return f"1 run, {times[0]}"
    return f"{total:,} runs, {times[0]} to {times[1]}"


def load_chart(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> Chart:
    """Return a bar chart of the number of runs in consecutive periods.

    The first period begins at ``start``, and times are shown in the zone of ``start``. The highest
    bars are highlighted, unless all bars are equally high or more than :data:`MAX_PEAKS` bars have
    the highest value. ``start`` must be aware.
    """
    seconds = max(len(counts), 1) * seconds_per_bar
    highest = max(counts, default=0)
    top, values = value_axis(max(highest, 1), 1, "")
    tooltips = [_span(count, number, start, seconds_per_bar) for number, count in enumerate(counts)]
    span = f"{clock(start)} to {clock(seconds_after(start, seconds))}"
    return Chart(
        description=f"{_runs(sum(counts))} from {span}, at most {highest} in one bar.",
        bars=_bars(counts, top, tooltips),
        values=values,
        times=time_ticks(start, seconds),
        zone=f"{start:%Z}",
    )


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Chart:
    """Return a bar chart of the lateness of runs.

    ``points`` contains at least one point, the oldest point first. A point is an aware instant and
    a lateness in seconds, at least 0. Each instant is shown in its own time zone.
    :func:`load_chart` describes which bars are highlighted.
    """
    seconds = [late for _, late in points]
    highest, (first, _), (last, _) = max(seconds), points[0], points[-1]
    unit, scale = (" ms", 1000) if highest < 1 else (" s", 1)
    top, values = value_axis(max(highest, MIN_LATENESS) * scale, MIN_LATENESS * scale, unit)
    tooltips = [f"{clock(at)}: {_late(late)}" for at, late in points]
    runs = "The last run" if len(points) == 1 else f"The last {len(points)} runs"
    return Chart(
        description=f"{runs}; the maximum was {_late(highest)}.",
        bars=_bars(seconds, top / scale, tooltips),
        values=values,
        times=[Tick(0, clock(first)), Tick(1, clock(last))][: len(points)],
        zone=f"{last:%Z}",
    )


def _bars(values: Sequence[float], top: float, tooltips: Sequence[str]) -> list[Bar]:
    peak = _peak(values)
    return [
        Bar(min(value / top, 1), value == peak, tooltip)
        for value, tooltip in zip(values, tooltips, strict=True)
    ]


def _peak(values: Sequence[float]) -> float | None:
    """Return the highest value, or None if no bar should be highlighted.

    No bar is highlighted if all values are equal, or if the highest value occurs more than
    :data:`MAX_PEAKS` times.
    """
    highest = max(values, default=None)
    if highest is None or highest == min(values) or list(values).count(highest) > MAX_PEAKS:
        return None
    return highest


def _span(count: int, number: int, start: datetime, seconds: int) -> str:
    begin = seconds_after(start, number * seconds)
    return f"{_runs(count)}, {clock(begin)} to {clock(seconds_after(begin, seconds))}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _late(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms late" if seconds < 1 else f"{seconds:,.3f} s late"
