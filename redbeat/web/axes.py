"""Axes of charts: round numbers and round times of the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Final, NamedTuple

from markupsafe import Markup

from redbeat.calendar.zones import UTC, wall_zone
from redbeat.web.svg import element, percent

__all__ = (
    "Tick",
    "Values",
    "clock",
    "later",
    "time_axis",
    "time_ticks",
    "value_axis",
    "value_labels",
    "value_lines",
)

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
#: Distances of labels of times that people count in, in seconds.
TIME_STEPS: Final = (
    *(1, 5, 10, 30),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
#: Labels of an axis, at most.
MOST_TICKS: Final = 9
#: Labels behind it would be cut off.
LAST_LABEL: Final = 0.97
#: Labels of an axis of values, 0 left out.
MOST_VALUES: Final = 4


class Tick(NamedTuple):
    """A moment on an axis of time: where it is, from 0 to 1, and its label."""

    position: float
    label: str


class Values(NamedTuple):
    """An axis of values from 0 to ``top``, between two heights in pixels, the higher one first."""

    top: float
    step: float
    high: int
    low: int

    def height(self, value: float) -> float:
        """Return how many pixels above the axis a value is."""
        return round((self.low - self.high) * min(max(value / self.top, 0), 1), 1)


def value_axis(highest: float, high: int, low: int, smallest: float) -> Values:
    """Return an axis with round labels that are ``smallest`` apart or more, up to ``highest``."""
    rough = max(highest / MOST_VALUES, smallest)
    power = 10.0 ** floor(log10(rough) + 1e-9)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999999)
    return Values(step * max(ceil(highest / step - 1e-9), 1), step, high, low)


def value_lines(axis: Values) -> Markup:
    """Return the lines of an axis of values."""
    return Markup("").join(
        element("line", class_="grid" if value else "base", x1="0", x2="100%", y1=y, y2=y)
        for value, y in _places(axis)
    )


def value_labels(axis: Values, unit: str, right: int) -> Markup:
    """Return the labels of an axis of values, which end at ``right``."""
    return Markup("").join(
        element("text", f"{value:,.10g}{unit}", class_="value", x=right, y=y + 4, text_anchor="end")
        for value, y in _places(axis)
    )


def _places(axis: Values) -> list[tuple[float, float]]:
    values = [number * axis.step for number in range(round(axis.top / axis.step) + 1)]
    return [(value, axis.low - axis.height(value)) for value in values]


def later(start: datetime, seconds: float) -> datetime:
    """Return the instant so many seconds after the aware ``start``, in the same zone."""
    return (start.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(start.tzinfo)


def clock(instant: datetime) -> str:
    """Return a time of the clock for a tooltip, with the day, to the second if it has any."""
    return instant.strftime("%a %d %b %H:%M:%S" if instant.second else "%a %d %b %H:%M")


def time_ticks(start: datetime, seconds: float) -> list[Tick]:
    """Return the round times of the clock of ``start``, which is aware, in so many seconds."""
    step = next((step for step in TIME_STEPS if seconds / step <= MOST_TICKS), TIME_STEPS[-1])
    zone = wall_zone(start.tzinfo or UTC)
    ticks: list[Tick] = []
    for wall in _round_times(start.astimezone(zone).replace(tzinfo=None), step):
        at = wall.replace(tzinfo=zone)
        position = (at.astimezone(UTC) - start.astimezone(UTC)).total_seconds() / seconds
        if position > 1 or len(ticks) > 2 * MOST_TICKS:
            break
        if position >= 0:
            ticks.append(Tick(position, at.strftime(_format(step, wall))))
    return ticks


def _round_times(wall: datetime, step: int) -> Iterator[datetime]:
    """Return the times of the clock at multiples of a step, from the one before ``wall``."""
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    past = (wall - midnight) // timedelta(seconds=step)
    try:
        while True:
            yield midnight + timedelta(seconds=past * step)
            past += 1
    except OverflowError:
        return  # past the year 9999


def _format(step: int, wall: datetime) -> str:
    if step < MINUTE:
        return "%H:%M:%S"
    if step >= DAY or (step >= 6 * HOUR and not wall.hour):
        return "%a %d %b" if step > DAY else "%a %d"
    return "%H:%M"


def time_axis(ticks: Sequence[Tick], top: int, bottom: int, label_at: int | None) -> Markup:
    """Return lines from ``top`` to ``bottom``, with labels on a line at ``label_at``, if any.

    Every second label has the class ``minor``, for screens that have no room for it.
    """
    lines = [
        element("line", class_="grid", x1=percent(at), x2=percent(at), y1=top, y2=bottom)
        for at, _ in ticks
    ]
    if label_at is None:
        return Markup("").join(lines)
    labels = [_label(tick, number, label_at) for number, tick in enumerate(ticks)]
    return Markup("").join((*lines, *labels))


def _label(tick: Tick, number: int, y: int) -> Markup:
    if tick.position > LAST_LABEL:
        return Markup()
    anchor = "start" if tick.position < 1 - LAST_LABEL else "middle"
    kind, at = "tick minor" if number % 2 else "tick", percent(tick.position)
    return element("text", tick.label, class_=kind, x=at, y=y, text_anchor=anchor)
