"""Charts as inline SVG, made on the server: axes, lanes and bars, described for all readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from redbeat.calendar.zones import UTC, wall_zone

__all__ = (
    "Tick",
    "Values",
    "clock",
    "element",
    "group",
    "lanes",
    "lateness_chart",
    "later",
    "load_chart",
    "percent",
    "time_axis",
    "time_ticks",
    "value_axis",
    "value_labels",
    "value_lines",
)


def element(tag: str, *content: str, **attributes: Any) -> Markup:
    """Return an element with all text and attributes escaped, but for content that is markup.

    Attributes are written as in HTML, but ``class_`` for ``class`` and ``_`` for ``-``; those that
    are None are left out.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), value)
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), written, Markup("").join(content))


def group(*content: str, class_: str | None = None) -> Markup:
    """Return elements that belong together."""
    return element("g", *content, class_=class_)


def percent(position: float) -> str:
    """Return a part of the width, from 0 to 1, as an attribute of SVG."""
    return f"{position * 100:.3f}".rstrip("0").rstrip(".") + "%"


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
    labels = [_tick_label(tick, number, label_at) for number, tick in enumerate(ticks)]
    return Markup("").join((*lines, *labels))


def _tick_label(tick: Tick, number: int, y: int) -> Markup:
    if tick.position > LAST_LABEL:
        return Markup()
    anchor = "start" if tick.position < 1 - LAST_LABEL else "middle"
    kind, at = "tick minor" if number % 2 else "tick", percent(tick.position)
    return element("text", tick.label, class_=kind, x=at, y=y, text_anchor=anchor)


#: Pixels.
LANE_HEIGHT: Final = 24
AXIS_HEIGHT: Final = 20
MARK: Final = 3
#: Places of a lane; runs in the same or the next one melt into one mark.
PLACES: Final = 400


def lanes(
    rows: Sequence[tuple[str, str, Sequence[float]]], start: datetime, seconds: float
) -> Markup:
    """Return a list with a line for each ``(label, href, positions)``, under an axis of time.

    Positions are sorted parts of the ``seconds`` from ``start``, 0 to 1; others are left out.
    ``start`` is aware, and times are shown in its zone. It is a list of links with a picture
    each, so that all of it can be reached by keyboard and read aloud; a click on a picture leads
    there too. ``ValueError`` for a naive
    ``start`` and ``seconds`` that are not above 0.
    """
    if start.tzinfo is None or seconds <= 0:
        raise ValueError("start has to be aware, and seconds above 0")
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


def _lane(
    row: tuple[str, str, Sequence[float]], ticks: Sequence[Tick], start: datetime, seconds: float
) -> Markup:
    label, href, positions = row
    within = [position for position in positions if 0 <= position <= 1]
    marks = [_mark(run, start, seconds) for run in _melted(within)]
    picture = element(
        "svg",
        element("title", _summary(within, start, seconds)),
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


def _melted(positions: Sequence[float]) -> list[list[float]]:
    """Return the positions in groups that are too close to be seen apart."""
    groups: list[list[float]] = []
    for position in positions:
        if groups and int(position * PLACES) - int(groups[-1][-1] * PLACES) <= 1:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _mark(run: Sequence[float], start: datetime, seconds: float) -> Markup:
    """Return the mark of one run, or of many that are close to each other."""
    first, last = run[0], run[-1]
    told = element("title", _summary(run, start, seconds))
    where = {"x": percent(first), "y": 4, "height": LANE_HEIGHT - 8}
    if len(run) == 1:
        return element("rect", told, class_="run", width=MARK, rx=1, **where)
    width = percent(last - first + 1 / PLACES)
    return element("rect", told, class_="run many", width=width, rx=1, **where)


def _summary(positions: Sequence[float], start: datetime, seconds: float) -> str:
    if not positions:
        return "no runs"
    times = [
        clock(later(start, round(position * seconds))) for position in (positions[0], positions[-1])
    ]
    if len(positions) == 1:
        return f"1 run, {times[0]}"
    return f"{len(positions):,} runs, {times[0]} to {times[1]}"


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
    ends = _end_label(points[0][0], "start") + (
        _end_label(points[-1][0], "end") if points[1:] else ""
    )
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


def _end_label(at: datetime, anchor: str) -> Markup:
    x = "0" if anchor == "start" else "100%"
    return element("text", clock(at), class_="tick", x=x, y=LABELS, text_anchor=anchor)


def _zone(at: datetime) -> Markup:
    """Return the short name of the zone whose clock the axis of time shows."""
    return element("text", f"{at:%Z}", class_="zone", x=RIGHT, y=LABELS, text_anchor="end")
