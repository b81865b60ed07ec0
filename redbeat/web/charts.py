"""Charts as inline SVG, rendered on the server, with text descriptions for screen readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from redbeat.calendar.zones import UTC, wall_zone

__all__ = (
    "Row",
    "Tick",
    "ValueAxis",
    "clock",
    "element",
    "group",
    "lanes",
    "lateness_chart",
    "load_chart",
    "percent",
    "seconds_after",
    "time_axis",
    "time_ticks",
    "value_axis",
    "value_labels",
    "value_lines",
)


def element(tag: str, *content: str, **attributes: Any) -> Markup:
    """Return an XML element; escape attributes, and content that is not ``Markup``.

    In attribute names, a trailing ``_`` is removed (``class_`` becomes ``class``) and any other
    ``_`` becomes ``-``. Attributes with the value None are omitted.
    """
    attribute_text = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), value)
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), attribute_text, Markup("").join(content))


def group(*content: str, class_: str | None = None) -> Markup:
    """Return a ``<g>`` element with this content."""
    return element("g", *content, class_=class_)


def percent(position: float) -> str:
    """Return a position from 0 to 1 as a percentage."""
    return f"{position * 100:.3f}".rstrip("0").rstrip(".") + "%"


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
#: Maximum position of a label on a time axis; a label further right would be cut off.
LAST_LABEL: Final = 0.97
#: Maximum number of labels of a value axis, not counting 0.
MAX_VALUES: Final = 4


class Tick(NamedTuple):
    """A label of a time axis, with its position from 0 (left) to 1 (right)."""

    position: float
    label: str


class ValueAxis(NamedTuple):
    """A value axis from 0, at the y coordinate ``low``, to ``top``, at the y coordinate ``high``.

    ``step`` is the difference between two labels.
    """

    top: float
    step: float
    high: int
    low: int

    def height(self, value: float) -> float:
        """Return the height in pixels of a bar for this value."""
        return round((self.low - self.high) * min(max(value / self.top, 0), 1), 1)


def value_axis(highest: float, high: int, low: int, smallest: float) -> ValueAxis:
    """Return an axis for values up to ``highest``; its labels are round numbers.

    Two labels differ by at least ``smallest``. ``high`` and ``low`` are the y coordinates of the
    ends of the axis.
    """
    rough = max(highest / MAX_VALUES, smallest)
    power = 10.0 ** floor(log10(rough) + 1e-9)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999999)
    return ValueAxis(step * max(ceil(highest / step - 1e-9), 1), step, high, low)


def value_lines(axis: ValueAxis) -> Markup:
    """Return the grid lines of a value axis."""
    return Markup("").join(
        element("line", class_="grid" if value else "base", x1="0", x2="100%", y1=y, y2=y)
        for value, y in _labelled_values(axis)
    )


def value_labels(axis: ValueAxis, unit: str, right: int) -> Markup:
    """Return the labels of a value axis, right-aligned at the x coordinate ``right``."""
    return Markup("").join(
        element("text", f"{value:,.10g}{unit}", class_="value", x=right, y=y + 4, text_anchor="end")
        for value, y in _labelled_values(axis)
    )


def _labelled_values(axis: ValueAxis) -> list[tuple[float, float]]:
    """Return the labelled values of an axis, with their y coordinates."""
    values = [number * axis.step for number in range(round(axis.top / axis.step) + 1)]
    return [(value, axis.low - axis.height(value)) for value in values]


def seconds_after(start: datetime, seconds: float) -> datetime:
    """Return the instant ``seconds`` of elapsed time after ``start``, in the zone of ``start``."""
    return (start.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(start.tzinfo)


def clock(instant: datetime) -> str:
    """Return an instant as day and time for a tooltip; omit seconds that are 0."""
    return instant.strftime("%a %d %b %H:%M:%S" if instant.second else "%a %d %b %H:%M")


def time_ticks(start: datetime, seconds: float) -> list[Tick]:
    """Return labels at round wall-clock times in the ``seconds`` after the aware ``start``."""
    step = next((step for step in TIME_STEPS if seconds / step <= MAX_TICKS), TIME_STEPS[-1])
    zone = wall_zone(start.tzinfo or UTC)
    ticks: list[Tick] = []
    for wall in _round_times(start.astimezone(zone).replace(tzinfo=None), step):
        at = wall.replace(tzinfo=zone)
        position = (at.astimezone(UTC) - start.astimezone(UTC)).total_seconds() / seconds
        if position > 1 or len(ticks) > 2 * MAX_TICKS:
            break
        if position >= 0:
            ticks.append(Tick(position, at.strftime(_format(step, wall))))
    return ticks


def _round_times(wall: datetime, step: int) -> Iterator[datetime]:
    """Yield wall-clock times that are multiples of ``step`` seconds after midnight.

    The first time is ``wall``, or the last multiple before ``wall``. The iteration ends after the
    year 9999.
    """
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    number = (wall - midnight) // timedelta(seconds=step)
    try:
        while True:
            yield midnight + timedelta(seconds=number * step)
            number += 1
    except OverflowError:
        return


def _format(step: int, wall: datetime) -> str:
    if step < MINUTE:
        return "%H:%M:%S"
    if step >= DAY or (step >= 6 * HOUR and not wall.hour):
        return "%a %d %b" if step > DAY else "%a %d"
    return "%H:%M"


def time_axis(ticks: Sequence[Tick], top: int, bottom: int, label_at: int | None) -> Markup:
    """Return the grid lines and labels of a time axis.

    The grid lines extend from ``top`` to ``bottom``. ``label_at`` is the baseline of the labels; if
    it is None, there are no labels. All three are y coordinates. Every second label has the class
    ``minor``, which the style sheet hides on narrow screens.
    """
    lines = [
        element("line", class_="grid", x1=percent(at), x2=percent(at), y1=top, y2=bottom)
        for at, _ in ticks
    ]
    if label_at is None:
        return Markup("").join(lines)
    labels = [_tick_label(tick, number, label_at) for number, tick in enumerate(ticks)]
    return Markup("").join((*lines, *labels))


def _tick_label(tick: Tick, number: int, y: int) -> Markup:
    if tick.position > LAST_LABEL:
        return Markup()
    anchor = "start" if tick.position < 1 - LAST_LABEL else "middle"
    kind, at = "tick minor" if number % 2 else "tick", percent(tick.position)
    return element("text", tick.label, class_=kind, x=at, y=y, text_anchor=anchor)


#: Sizes in pixels.
LANE_HEIGHT: Final = 24
AXIS_HEIGHT: Final = 20
MARK_WIDTH: Final = 3
#: A lane has 400 slots; runs in the same slot or in adjacent slots share one mark.
SLOTS: Final = 400


#: The label, the URL, the positions of the runs, and the number of runs of a lane.
Row = tuple[str, str, Sequence[float], int]


def lanes(rows: Sequence[Row], start: datetime, seconds: float) -> Markup:
    """Return a time axis and, below the axis, one lane of runs for each row.

    A row is ``(label, href, positions, total)``; if there are more runs than positions, the lane is
    one block from the first to the last position. Positions are sorted; 0 is ``start`` and 1 is
    ``seconds`` later. Positions outside of this range are ignored. Times are shown in the zone of
    ``start``. The lanes are a list of links, for keyboard users and screen readers. Raises
    ``ValueError`` if ``start`` is naive or ``seconds`` is not positive.
    """
    if start.tzinfo is None or seconds <= 0:
        raise ValueError("start must be aware, and seconds positive")
    ticks = time_ticks(start, seconds)
    axis = element(
        "svg",
        time_axis(ticks, AXIS_HEIGHT - 4, AXIS_HEIGHT - 4, label_at=12),
        class_="axis",
        width="100%",
        height=AXIS_HEIGHT,
        aria_hidden="true",
    )
    head = element("div", element("span", f"{start:%Z}", class_="zone"), axis, class_="head")
    items = [_lane(row, ticks, start, seconds) for row in rows]
    return element("div", head, element("ol", *items), class_="lanes")


def _lane(row: Row, ticks: Sequence[Tick], start: datetime, seconds: float) -> Markup:
    label, href, positions, total = row
    visible = [position for position in positions if 0 <= position <= 1]
    is_block = total > len(positions)
    groups = [visible] if is_block else _merged(visible)
    marks = [_mark(runs, start, seconds, total if is_block else len(runs)) for runs in groups]
    picture = element(
        "svg",
        element("title", _summary(visible, start, seconds, total if is_block else len(visible))),
        time_axis(ticks, 0, LANE_HEIGHT, label_at=None),
        element("line", class_="base", x1="0", x2="100%", y1=LANE_HEIGHT // 2, y2=LANE_HEIGHT // 2),
        *marks,
        class_="lane",
        role="img",
        width="100%",
        height=LANE_HEIGHT,
    )
    return element(
        "li",
        element("a", label, href=href, title=label),
        element("a", picture, href=href, tabindex="-1"),
    )


def _merged(positions: Sequence[float]) -> list[list[float]]:
    """Group positions that are too close to each other for separate marks."""
    groups: list[list[float]] = []
    for position in positions:
        if groups and int(position * SLOTS) - int(groups[-1][-1] * SLOTS) <= 1:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _mark(runs: Sequence[float], start: datetime, seconds: float, total: int) -> Markup:
    """Return the mark that represents one run or a group of ``total`` runs."""
    first, last = runs[0], runs[-1]
    tooltip = element("title", _summary(runs, start, seconds, total))
    box = {"x": percent(first), "y": 4, "height": LANE_HEIGHT - 8}
    if len(runs) == 1:
        return element("rect", tooltip, class_="run", width=MARK_WIDTH, rx=1, **box)
    width = percent(min(last + 1 / SLOTS, 1) - first)
    return element("rect", tooltip, class_="run many", width=width, rx=1, **box)


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


#: The y coordinates of the plot's top and bottom and of the time labels, and the chart's height.
TOP: Final = 8
BOTTOM: Final = 148
LABELS: Final = 164
HEIGHT: Final = 170
#: The right edge of the value labels, and the width of the area for these labels, in pixels.
RIGHT: Final = 42
MARGIN: Final = 48
#: Width of a bar as a share of the width available to it: if there are at least ``MANY_BARS``
#: bars, and if there are fewer bars.
MANY_BARS_SHARE: Final = 0.8
FEW_BARS_SHARE: Final = 0.5
MANY_BARS: Final = 20
#: If more than this number of bars share the highest value, no bar is highlighted.
MAX_PEAKS: Final = 3
#: The smallest range of the lateness axis, in seconds.
MIN_LATENESS: Final = 0.001


def load_chart(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> Markup:
    """Return a bar chart of the number of runs in consecutive periods.

    The first period begins at ``start``, and times are shown in the zone of ``start``. The highest
    bars have the class ``peak``, unless all bars are equally high or more than :data:`MAX_PEAKS`
    bars are the highest. Raises ``ValueError`` if ``start`` is naive or ``seconds_per_bar`` is not
    positive.
    """
    if start.tzinfo is None or seconds_per_bar <= 0:
        raise ValueError("start must be aware, and seconds_per_bar positive")
    seconds = max(len(counts), 1) * seconds_per_bar
    highest, peak = max(counts, default=0), _peak(counts)
    axis = value_axis(max(highest, 1), TOP, BOTTOM, smallest=1)
    bars = [
        _bar(count, number / len(counts), 1 / len(counts), axis, count == peak)
        + _hover_area(
            number / len(counts), 1 / len(counts), _span(count, number, start, seconds_per_bar)
        )
        for number, count in enumerate(counts)
    ]
    span = f"{clock(start)} to {clock(seconds_after(start, seconds))}"
    description = f"{_runs(sum(counts))} from {span}, at most {highest} in one bar."
    content = value_lines(axis) + time_axis(time_ticks(start, seconds), TOP, BOTTOM, LABELS)
    content += Markup("").join(map(group, bars))
    return _chart(
        "load",
        ("Runs over time", description),
        content,
        value_labels(axis, "", RIGHT) + _zone(start),
    )


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Markup:
    """Return a bar chart of the lateness of runs.

    Each point is an aware instant and a lateness in seconds, at least one, the oldest first.
    Each instant is shown in its own time zone. :func:`load_chart` describes the class ``peak``.
    """
    seconds = [max(late, 0.0) for _, late in points]
    highest, peak, width = max(seconds), _peak(seconds), 1 / len(points)
    unit, scale = (" ms", 1000) if highest < 1 else (" s", 1)
    axis = value_axis(
        max(highest, MIN_LATENESS) * scale, TOP, BOTTOM, smallest=MIN_LATENESS * scale
    )
    marks = [
        group(
            _bar(late * scale, number * width, width, axis, late == peak),
            _hover_area(number * width, width, f"{clock(at)}: {_late(signed)}"),
        )
        for number, ((at, signed), late) in enumerate(zip(points, seconds, strict=True))
    ]
    ends = _end_label(points[0][0], "start") + (
        _end_label(points[-1][0], "end") if points[1:] else ""
    )
    runs = "The last run" if len(points) == 1 else f"The last {len(points)} runs"
    description = f"{runs}; the maximum was {_late(highest)}."
    content = value_lines(axis) + ends + Markup("").join(marks)
    return _chart(
        "lateness",
        ("Lateness", description),
        content,
        value_labels(axis, unit, RIGHT) + _zone(points[-1][0]),
    )


def _chart(kind: str, texts: tuple[str, str], content: Markup, values: Markup) -> Markup:
    """Return a plot with its value labels; ``texts`` are the plot's title and description."""
    title, description = texts
    ids = (f"{kind}-chart", f"{kind}-description")
    plot = element(
        "svg",
        element("title", title, id=ids[0]),
        element("desc", description, id=ids[1]),
        content,
        role="img",
        aria_labelledby=" ".join(ids),
        width="100%",
        height=HEIGHT,
    )
    labels = element("svg", values, width=MARGIN, height=HEIGHT, aria_hidden="true")
    return element("div", labels if values else "", plot, class_=f"chart {kind}")


def _bar(value: float, left: float, width: float, axis: ValueAxis, peak: bool) -> Markup:
    height = axis.height(value)
    share = FEW_BARS_SHARE if width * MANY_BARS > 1 else MANY_BARS_SHARE
    return element(
        "rect",
        class_="bar peak" if peak else "bar",
        x=percent(left + width * (1 - share) / 2),
        y=axis.low - height,
        width=percent(width * share),
        height=height,
    )


def _hover_area(left: float, width: float, tooltip: str) -> Markup:
    """Return an invisible area, as high as the plot, that shows the tooltip of a bar."""
    return element(
        "rect",
        element("title", tooltip),
        class_="hit",
        x=percent(left),
        y=TOP,
        width=percent(width),
        height=BOTTOM - TOP,
    )


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
    if seconds < 0:
        return f"{-seconds:.3f} s early"
    return f"{seconds * 1000:.0f} ms late" if seconds < 1 else f"{seconds:,.3f} s late"


def _end_label(at: datetime, anchor: str) -> Markup:
    x = "0" if anchor == "start" else "100%"
    return element("text", clock(at), class_="tick", x=x, y=LABELS, text_anchor=anchor)


def _zone(at: datetime) -> Markup:
    """Return a label with the abbreviation of the time zone."""
    return element("text", f"{at:%Z}", class_="zone", x=RIGHT, y=LABELS, text_anchor="end")
