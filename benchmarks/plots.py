"""Draws plots with logarithmic axes as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .rows import Series

__all__ = ("Plot", "bars", "lines")

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 210, 44, 56
COLOURS = ("#c0392b", "#2c6fbb", "#2e8b57", "#8e5ea2", "#b8860b")
BAR, GAP = 22, 8

#: A logarithmic axis shows 0 at the position of this value, half a decade before its first label.
ZERO = 10**2.5


@dataclass(frozen=True, slots=True)
class Plot:
    """The title of a plot and the titles of its axes."""

    title: str
    x: str
    y: str


def duration(seconds: float) -> str:
    """Return a duration as text with a unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.3g} µs"


def text(x: float, y: float, content: str, anchor: str = "middle", attributes: str = "") -> str:
    """Return a ``<text>`` element."""
    escaped = escape(content)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{escaped}</text>'


def image(height: float, parts: Sequence[str]) -> str:
    """Return an SVG image that consists of ``parts``."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis between two powers of ten.

    Attributes:
        low: the exponent of the lowest value.
        high: the exponent of the highest value.
        start: the position of the lowest value, in pixels.
        end: the position of the highest value, in pixels.
    """

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """Return an axis whose range includes all values."""
        low = math.floor(math.log10(min(values)))
        return cls(low, max(math.ceil(math.log10(max(values))), low + 1), start, end)

    def at(self, value: float) -> float:
        """Return the position of a value in pixels."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the powers of ten on the axis."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def lines(plot: Plot, series: Sequence[Series]) -> str:
    """Return a line plot of durations for different numbers of entries, which may include 0."""
    drawn = [each for each in series if each.points]
    xs = [x or ZERO for each in drawn for x, _ in each.points]
    across = Axis.over(xs, LEFT, WIDTH - RIGHT)
    up = Axis.over([y for each in drawn for _, y in each.points], HEIGHT - BOTTOM, TOP)
    parts = [text(LEFT, 22, plot.title, "start", ' font-size="15" font-weight="bold"')]
    parts += grid(across, up, ZERO in xs)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, plot.x))
    parts.append(text(LEFT, TOP - 8, plot.y, "start"))
    for index, each in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        positions = [(across.at(x or ZERO), up.at(y)) for x, y in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in positions
        ]
        legend_y = TOP + 16 + 20 * index
        parts.append(text(WIDTH - RIGHT + 16, legend_y, each.name, "start", f' fill="{colour}"'))
    return image(HEIGHT, parts)


def grid(across: Axis, up: Axis, has_zero: bool) -> list[str]:
    """Return the grid lines and the labels of the two axes of a plot."""
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(text(LEFT - 8, y + 4, duration(tick), "end"))
    parts += [
        text(across.at(tick), HEIGHT - BOTTOM + 18, f"{tick:,.0f}")
        for tick in across.ticks()
        if not has_zero or tick > ZERO
    ]
    if has_zero:
        parts.append(text(across.at(ZERO), HEIGHT - BOTTOM + 18, "0"))
    return parts


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Return a plot that shows durations as horizontal bars on a logarithmic scale.

    The first bar is highlighted.
    """
    bottom = TOP + len(values) * (BAR + GAP)
    across = Axis.over([value for _, value in values], 260, WIDTH - 110)
    parts = [text(12, 22, title, "start", ' font-size="15" font-weight="bold"')]
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(text(x, bottom + 16, duration(tick)))
    for index, (name, value) in enumerate(values):
        y, end = TOP + index * (BAR + GAP), max(across.at(value), across.start + 1)
        colour = COLOURS[0] if index == 0 else COLOURS[1]
        width = end - across.start
        parts.append(text(across.start - 8, y + 16, name, "end"))
        parts.append(
            f'<rect x="{across.start}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
        )
        parts.append(text(end + 6, y + 16, duration(value), "start"))
    return image(bottom + 30, parts)
