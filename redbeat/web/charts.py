"""Charts as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

__all__ = ("lanes", "lateness_chart", "load_chart")

BAR = Markup('<rect x="{}" y="{}" width="8" height="{}"><title>{}</title></rect>')


def load_chart(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> Markup:
    """Return the runs of each bucket as bars."""
    peak = max(counts, default=0) or 1
    bars = Markup("").join(
        BAR.format(
            at * 10,
            100 - 100 * count / peak,
            100 * count / peak,
            f"{start + timedelta(seconds=at * seconds_per_bar)}: {count}",
        )
        for at, count in enumerate(counts)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} 100" role="img" aria-label="Load">{}</svg>'
    ).format(len(counts) * 10, bars)


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Markup:
    """Return the lateness in seconds of each run as bars."""
    peak = max((late for _, late in points), default=0) or 1
    bars = Markup("").join(
        BAR.format(at * 10, 100 - 100 * late / peak, 100 * late / peak, f"{when}: {late} s")
        for at, (when, late) in enumerate(points)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} 100" role="img" aria-label="Lateness">{}</svg>'
    ).format(len(points) * 10, bars)


def lanes(
    rows: Sequence[tuple[str, str, Sequence[float]]], start: datetime, seconds: float
) -> Markup:
    """Return a row with marks for each entry: (label, href, positions from 0 to 1)."""
    drawn = Markup("").join(
        Markup('<a href="{}"><text x="0" y="{}">{}</text>{}</a>').format(
            href,
            20 * at + 14,
            label,
            Markup("").join(
                Markup('<rect x="{}" y="{}" width="2" height="12"></rect>').format(
                    200 + 800 * place, 20 * at + 4
                )
                for place in places
            ),
        )
        for at, (label, href, places) in enumerate(rows)
    )
    told = f"{seconds} s from {start}"
    return Markup('<svg class="lanes" viewBox="0 0 1000 {}"><desc>{}</desc>{}</svg>').format(
        20 * len(rows), told, drawn
    )
