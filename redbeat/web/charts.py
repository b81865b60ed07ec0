"""Charts as inline SVG, made on the server: safe markup, classes only, described for all readers.

Their looks are in ``static/charts.css``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from markupsafe import Markup

from redbeat.web.axes import (
    Values,
    clock,
    later,
    time_axis,
    time_ticks,
    value_axis,
    value_labels,
    value_lines,
)
from redbeat.web.lanes import lanes
from redbeat.web.svg import element, group, percent

__all__ = ("lanes", "lateness_chart", "load_chart")

#: Pixels: the plot, and below it the labels of its times.
TOP: Final = 8
BOTTOM: Final = 148
LABELS: Final = 164
HEIGHT: Final = 170
#: Labels of values on the left: where they end, and how much room they have.
RIGHT: Final = 42
MARGIN: Final = 48
#: What part of its place a bar takes: one among many / of a few.
NARROW: Final = 0.8
WIDE: Final = 0.5
MANY: Final = 20
#: Bars that are equally high and still stand out.
TIED: Final = 3
#: Lateness below it needs no finer labels, in seconds.
FINEST: Final = 0.001


def load_chart(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> Markup:
    """Return bars for how many runs there are in each span of time.

    The first span begins at ``start``, which is aware; times are shown in its zone. The highest
    bars have the class ``peak``, unless there are more than :data:`TIED` or no lower ones.
    ``ValueError`` for a naive ``start`` and for a ``seconds_per_bar`` that is not above 0.
    """
    if start.tzinfo is None or seconds_per_bar <= 0:
        raise ValueError("start has to be aware, and seconds_per_bar above 0")
    seconds = max(len(counts), 1) * seconds_per_bar
    highest, peak = max(counts, default=0), _peak(counts)
    axis = value_axis(max(highest, 1), TOP, BOTTOM, smallest=1)
    bars = [
        _bar(count, number / len(counts), 1 / len(counts), axis, count == peak)
        + _hit(number / len(counts), 1 / len(counts), _span(count, number, start, seconds_per_bar))
        for number, count in enumerate(counts)
    ]
    span = f"{clock(start)} to {clock(later(start, seconds))}"
    told = f"{_runs(sum(counts))} from {span}, at most {highest} in one bar."
    content = value_lines(axis) + time_axis(time_ticks(start, seconds), TOP, BOTTOM, LABELS)
    content += Markup("").join(map(group, bars))
    return _chart(
        "load", ("Runs over time", told), content, value_labels(axis, "", RIGHT) + _zone(start)
    )


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Markup:
    """Return how late the last occurrences were, in seconds, oldest first, equally far apart.

    The instants are aware and are shown in their own zones. The latest ones have the class
    ``peak``, unless they are more than :data:`TIED` or all. Without points a text says that there
    are none.
    """
    if not points:
        nothing = element("text", "No runs yet", class_="none", x="50%", y=(TOP + BOTTOM) // 2)
        return _chart("lateness", ("Lateness", "No runs yet."), nothing, Markup())
    seconds = [max(late, 0.0) for _, late in points]
    highest, peak, width = max(seconds), _peak(seconds), 1 / len(points)
    unit, scale = (" ms", 1000) if highest < 1 else (" s", 1)
    axis = value_axis(max(highest, FINEST) * scale, TOP, BOTTOM, smallest=FINEST * scale)
    marks = [
        group(
            _bar(late * scale, number * width, width, axis, late == peak),
            _hit(number * width, width, f"{clock(at)}: {_late(given)}"),
        )
        for number, ((at, given), late) in enumerate(zip(points, seconds, strict=True))
    ]
    ends = _label(points[0][0], "start") + (_label(points[-1][0], "end") if points[1:] else "")
    told = f"The last {len(points)} runs; the latest was {_late(highest)}."
    content = value_lines(axis) + ends + Markup("").join(marks)
    return _chart(
        "lateness",
        ("Lateness", told),
        content,
        value_labels(axis, unit, RIGHT) + _zone(points[-1][0]),
    )


def _chart(kind: str, words: tuple[str, str], content: Markup, values: Markup) -> Markup:
    """Return a plot that fills what its labels of values leave, with a title and a description."""
    names = (f"{kind}-chart", f"{kind}-description")
    told = element("title", words[0], id=names[0]) + element("desc", words[1], id=names[1])
    plot = element(
        "svg",
        told,
        content,
        role="img",
        aria_labelledby=" ".join(names),
        width="100%",
        height=HEIGHT,
    )
    beside = element("svg", values, width=MARGIN, height=HEIGHT, aria_hidden="true")
    return element("div", beside if values else "", plot, class_=f"chart {kind}")


def _bar(value: float, left: float, width: float, axis: Values, peak: bool) -> Markup:
    height, share = axis.height(value), WIDE if width * MANY > 1 else NARROW
    return element(
        "rect",
        class_="bar peak" if peak else "bar",
        x=percent(left + width * (1 - share) / 2),
        y=axis.low - height,
        width=percent(width * share),
        height=height,
    )


def _hit(left: float, width: float, words: str) -> Markup:
    """Return the place of a bar in its whole height, which shows its words under the pointer."""
    return element(
        "rect",
        element("title", words),
        class_="hit",
        x=percent(left),
        y=TOP,
        width=percent(width),
        height=BOTTOM - TOP,
    )


def _peak(values: Sequence[float]) -> float | None:
    """Return the highest value, None if there is no lower one, or if it is there too often."""
    highest = max(values, default=None)
    if highest is None or highest == min(values) or list(values).count(highest) > TIED:
        return None
    return highest


def _span(count: int, number: int, start: datetime, seconds: int) -> str:
    begin = later(start, number * seconds)
    return f"{_runs(count)}, {clock(begin)} to {clock(later(begin, seconds))}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _late(seconds: float) -> str:
    if seconds < 0:
        return f"{-seconds:.3f} s early"
    return f"{seconds * 1000:.0f} ms late" if seconds < 1 else f"{seconds:,.3f} s late"


def _label(at: datetime, anchor: str) -> Markup:
    x = "0" if anchor == "start" else "100%"
    return element("text", clock(at), class_="tick", x=x, y=LABELS, text_anchor=anchor)


def _zone(at: datetime) -> Markup:
    """Return the short name of the zone whose clock the axis of time shows."""
    return element("text", f"{at:%Z}", class_="zone", x=RIGHT, y=LABELS, text_anchor="end")
