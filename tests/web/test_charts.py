"""Tests of charts: well-formed, to scale, escaped, accessible, and without inline styles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from redbeat.web import timeline
from redbeat.web.values import counted

UTC = timezone.utc
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
PARIS = ZoneInfo("Europe/Paris")
EVIL = "\"><script>alert('1')</script>&amp;"


TEMPLATES = Environment(loader=PackageLoader("redbeat.web"), autoescape=True)
TEMPLATES.filters["counted"] = counted
TEMPLATES.globals["entry_url"] = lambda name: f"/entry?name={name}"
CHARTS: Any = TEMPLATES.get_template("charts.html")


def chart_of(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> timeline.Chart:
    """Return a chart of runs, with a label of its time axis for each ten minutes."""
    span = timeline.SPANS["hour"]._replace(bar=timedelta(seconds=seconds_per_bar))
    return timeline.load_chart(counts, start, span)


def load_chart(counts: Sequence[int], start: datetime, seconds_per_bar: int) -> Markup:
    """Return the drawing of a chart of runs."""
    return Markup(CHARTS.module.load(chart_of(counts, start, seconds_per_bar)).strip())


def lateness_chart(points: Sequence[tuple[datetime, float]]) -> Markup:
    """Return the drawing of a chart of lateness."""
    return Markup(CHARTS.module.lateness(timeline.lateness_chart(points)).strip())


def lanes(entries: Mapping[str, Sequence[int]], start: datetime, seconds_per_bar: int) -> Markup:
    """Return the drawing of lanes with three bars."""
    chart = chart_of([1, 2, 3], start, seconds_per_bar)
    return Markup(CHARTS.module.lanes(entries, chart).strip())


def parsed(markup: Markup) -> ET.Element:
    """Parse a chart; assert that a strict Content-Security-Policy allows all of it."""
    assert isinstance(markup, Markup)
    root = ET.fromstring(str(markup))
    for element in root.iter():
        assert element.tag not in ("script", "style", "image", "use", "foreignObject")
        names = set(element.attrib)
        assert "style" not in names
        assert not any(name.startswith("on") for name in names)
    return root


def classed(root: ET.Element, name: str) -> list[ET.Element]:
    """Return the elements with this CSS class."""
    return [found for found in root.iter() if name in found.get("class", "").split()]


def part(text: str) -> float:
    """Return a percentage as a number."""
    assert re.fullmatch(r"-?[\d.]+%", text)
    return float(text[:-1])


def labels(root: ET.Element, name: str = "tick") -> list[str]:
    """Return the labels of an axis."""
    return [found.text or "" for found in classed(root, name)]


def test_load_has_a_bar_for_each_count() -> None:
    root = parsed(load_chart([0, 5, 10, 10], START, 3600))
    bars = classed(root, "bar")
    assert [float(bar.get("height", "")) for bar in bars] == [0, 70, 140, 140]
    assert ["peak" in bar.get("class", "") for bar in bars] == [False, False, True, True]
    middles = [part(bar.get("x", "")) + part(bar.get("width", "")) / 2 for bar in bars]
    assert middles == pytest.approx([12.5, 37.5, 62.5, 87.5])
    assert all(float(bar.get("y", "")) + float(bar.get("height", "")) == 148 for bar in bars)


@pytest.mark.parametrize(("tied", "peaks"), [(1, 1), (3, 3), (4, 0)])
def test_few_peaks_are_highlighted(tied: int, peaks: int) -> None:
    root = parsed(load_chart([1, *[5] * tied], START, 60))
    assert len(classed(root, "peak")) == peaks


@pytest.mark.parametrize(("bars", "share"), [(10, 0.5), (60, 0.8)])
def test_few_bars_are_slim(bars: int, share: float) -> None:
    found = classed(parsed(load_chart([1] * bars, START, 60)), "bar")
    assert part(found[0].get("width", "")) == pytest.approx(100 * share / bars, abs=0.01)


def test_each_bar_of_the_load_names_its_runs() -> None:
    root = parsed(load_chart([0, 1, 1200], START, 1800))
    assert [hit.findtext("title") for hit in classed(root, "hit")] == [
        "0 runs, Mon 05 Jan 09:00 to Mon 05 Jan 09:30",
        "1 run, Mon 05 Jan 09:30 to Mon 05 Jan 10:00",
        "1,200 runs, Mon 05 Jan 10:00 to Mon 05 Jan 10:30",
    ]


def test_chart_is_an_image_with_a_name_and_a_description() -> None:
    for chart in (load_chart([3, 4], START, 60), lateness_chart([(START, 0.5)])):
        root = parsed(chart)
        (picture,) = (found for found in root.iter() if found.get("role") == "img")
        ids = {found.get("id"): found.text for found in root.iter() if found.get("id")}
        title, description = picture.get("aria-labelledby", "").split()
        assert picture[0].get("id") == title
        assert ids[title]
        assert ids[description]
    assert "7 runs from Mon 05 Jan 09:00 to Mon 05 Jan 09:02, at most 4" in str(
        load_chart([3, 4], START, 60)
    )


@pytest.mark.parametrize(
    ("highest", "values"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (7, ["0", "2", "4", "6", "8"]),
        (23, ["0", "10", "20", "30"]),
        (1999, ["0", "500", "1,000", "1,500", "2,000"]),
    ],
)
def test_runs_have_round_whole_labels(highest: int, values: list[str]) -> None:
    assert labels(parsed(load_chart([highest, 0], START, 60)), "value") == values


@pytest.mark.long
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_no_bar_is_higher_than_the_plot(counts: list[int]) -> None:
    root = parsed(load_chart(counts, START, 60))
    assert len(classed(root, "bar")) == len(counts)
    assert all(0 <= float(bar.get("height", "")) <= 140 for bar in classed(root, "bar"))
    assert 2 <= len(labels(root, "value")) <= 6
    peaks = [bar for bar in classed(root, "bar") if "peak" in bar.get("class", "")]
    highest = counts.count(max(counts))
    assert len(peaks) == (highest if len(set(counts)) > 1 and highest <= 3 else 0)


SPANS = {
    "hour": ["09:10", "09:20", "09:30", "09:40", "09:50", "10:00"],
    "day": ["12:00", "15:00", "18:00", "21:00", "00:00", "03:00", "06:00", "09:00"],
    "week": ["Tue 06", "Wed 07", "Thu 08", "Fri 09", "Sat 10", "Sun 11", "Mon 12"],
}


@pytest.mark.parametrize("span", SPANS)
def test_times_have_round_labels(span: str) -> None:
    _, length, _, _, tick, form, _ = timeline.SPANS[span]
    ticks = timeline.time_axis(START + timedelta(minutes=1), length, tick, form)
    assert [tick.label for tick in ticks] == SPANS[span]
    starts = [START + timedelta(minutes=1) + each.position * length for each in ticks]
    assert [f"{at:{form}}" for at in starts] == SPANS[span]


def test_every_other_label_is_left_out_on_narrow_screens() -> None:
    root = parsed(load_chart([1] * 60, START, 60))
    assert len(classed(root, "minor")) == len(labels(root)) // 2 == 3


def test_times_are_in_the_zone_of_the_start_across_clock_changes() -> None:
    start = datetime(2026, 3, 28, 12, 0, tzinfo=PARIS)
    span = timeline.SPANS["day"]._replace(bar=timedelta(hours=1))
    chart = timeline.load_chart([1] * 24, start, span)
    placed = {tick.label: tick.position for tick in chart.times}
    # In Paris, 02:00 to 03:00 does not exist on 29 March: only five hours separate 00:00 and 06:00.
    assert placed["00:00"] == pytest.approx(0.5)
    assert placed["06:00"] == pytest.approx(17 / 24)
    assert chart.periods[-1].endswith("Sun 29 Mar 12:00 to Sun 29 Mar 13:00")


def test_axes_of_time_name_their_zone() -> None:
    start = datetime(2026, 7, 1, 12, 0, tzinfo=PARIS)
    for chart in (load_chart([1], start, 60), lateness_chart([(start, 1)]), lanes({}, start, 60)):
        assert labels(parsed(chart), "zone") == ["CEST"]


def test_lateness_is_drawn_for_each_run() -> None:
    points = [(START + timedelta(minutes=at), late) for at, late in enumerate([0.05, 0.1, 0.0])]
    root = parsed(lateness_chart(points))
    bars = classed(root, "bar")
    assert [float(bar.get("height", "")) for bar in bars] == [70, 140, 0]
    assert [bar.get("class") for bar in bars] == ["bar", "bar peak", "bar"]
    assert labels(root, "value") == ["0 ms", "50 ms", "100 ms"]
    assert labels(root) == ["Mon 05 Jan 09:00", "Mon 05 Jan 09:02"]
    titles = [hit.findtext("title") for hit in classed(root, "hit")]
    assert titles[0] == "50 ms late, Mon 05 Jan 09:00"
    assert titles[2] == "0 ms late, Mon 05 Jan 09:02"
    assert "the maximum was 100 ms late" in str(lateness_chart(points))


def test_lateness_of_seconds() -> None:
    root = parsed(lateness_chart([(START, 3.5)]))
    assert labels(root, "value") == ["0 s", "1 s", "2 s", "3 s", "4 s"]
    assert labels(root) == ["Mon 05 Jan 09:00"]
    assert not classed(root, "peak")


@pytest.mark.long
@given(st.lists(st.floats(0, 10**6), min_size=1, max_size=30))
def test_lateness_stays_in_the_plot(seconds: list[float]) -> None:
    root = parsed(lateness_chart([(START, late) for late in seconds]))
    assert all(0 <= float(bar.get("height", "")) <= 140 for bar in classed(root, "bar"))


def test_lanes_link_to_their_entries() -> None:
    root = parsed(lanes({"report": [0, 1, 20], "often": [500, 500, 500]}, START, 1200))
    assert [(link.text, link.get("href"), link.get("tabindex")) for link in root.iter("a")] == [
        ("report", "/entry?name=report", None),
        (None, "/entry?name=report", "-1"),  # the marks are links too, but the Tab key skips them
        ("often", "/entry?name=often", None),
        (None, "/entry?name=often", "-1"),
    ]
    pictures = classed(root, "lane")
    assert [picture.findtext("title") for picture in pictures] == ["21 runs", "1,500 runs"]
    marks = classed(pictures[0], "run")
    assert [part(mark.get("x", "")) for mark in marks] == pytest.approx([36.667, 70])
    assert [mark.findtext("title") for mark in marks] == [
        "1 run, Mon 05 Jan 09:20 to Mon 05 Jan 09:40",
        "20 runs, Mon 05 Jan 09:40 to Mon 05 Jan 10:00",
    ]
    (axis,) = classed(root, "axis")
    assert len(labels(axis)) == 6


def test_lanes_escape_names_and_addresses() -> None:
    markup = lanes({EVIL: [1, 0, 0]}, START, 3600)
    root = parsed(markup)
    link, picture = root.iter("a")
    assert picture.get("href") == link.get("href")
    assert (link.text, link.get("href")) == (EVIL, f"/entry?name={EVIL}")
    assert "<script" not in str(markup)


def test_without_entries_there_are_no_lanes() -> None:
    assert not list(parsed(lanes({}, START, 60)).iter("li"))
