"""What runs when, a lane for each entry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from markupsafe import Markup

from redbeat.web.axes import Tick, clock, later, time_axis, time_ticks
from redbeat.web.svg import element, percent

__all__ = ("lanes",)

#: Pixels.
HEIGHT: Final = 24
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
        time_axis(ticks, 0, HEIGHT, label_at=None),
        element("line", class_="base", x1="0", x2="100%", y1=HEIGHT // 2, y2=HEIGHT // 2),
        *marks,
        class_="lane",
        role="img",
        width="100%",
        height=HEIGHT,
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
    where = {"x": percent(first), "y": 4, "height": HEIGHT - 8}
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
