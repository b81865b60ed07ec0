"""Tests of text formatting."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from redbeat import clocked, from_ical, rrule
from redbeat.presentation.rule_text import schedule_text, seconds_from
from redbeat.presentation.text import (
    Room,
    columns,
    duration,
    exact_duration,
    moment,
    plain_number,
    until,
)


def test_wide_and_combining_letters_keep_the_columns_aligned() -> None:
    lines = columns([("NAME", "N"), ("日本", "1"), ("e\u0301", "2"), ("ascii", "3")])
    texts = ["".join(line) for line in lines]
    assert texts == [
        "NAME   N",
        "日本   1",
        "e\u0301      2",
        "ascii  3",
    ]


@pytest.mark.parametrize(
    ("most", "title", "line"),
    [
        (
            80,
            "NAME                     STATE      N   DUE",
            "nightly-report-of-sales  scheduled  1",
        ),
        (
            42,
            "NAME                STATE      N   DUE",
            "nightly-report-of~  scheduled  1   2026-11",
        ),
        (30, "NAME             STATE      N", "nightly-report~  scheduled  1"),
        (24, "NAME           STATE", "nightly-repo~  scheduled"),
        (10, "NAME          STATE", "nightly-rep~  scheduled"),  # more cannot be done
    ],
)
def test_a_table_fits_on_a_terminal(most: int, title: str, line: str) -> None:
    """What is optional goes if long texts cannot be cut enough; times are never cut."""
    rows = [
        ("NAME", "STATE", "N", "DUE"),
        ("nightly-report-of-sales", "scheduled", "1", "2026-11"),
        ("a", "paused", "22", "-"),
    ]
    texts = ["".join(line) for line in columns(rows, Room(most, ("DUE", "N"), {"NAME": 12}))]
    assert texts[0] == title
    assert texts[1].startswith(line)


def test_a_column_that_may_go_and_may_be_cut() -> None:
    """An error is cut only once what may go has gone, and never if there is room."""
    rows = [("AT", "ID", "ERROR"), ("2026-11", "f" * 36, "ValueError: " + "x" * 190)]
    for most, has_id, shown in ((300, True, 202), (90, True, 43), (60, False, 51), (20, False, 30)):
        titles, line = columns(rows, Room(most, ("ID",), {"ERROR": 30, "ID": 36}))
        assert ("ID" in titles, "f" * 36 in line) == (has_id, has_id)
        assert (len(line[-1]), line[-1][-1]) == (shown, "x" if shown == 202 else "~")


def test_a_column_without_values_goes_first() -> None:
    rows = [("NAME", "RESULT", "KIND"), ("a" * 20, "-", "static")]
    room = Room(24, ("KIND", "RESULT"), {"NAME": 12})
    assert "".join(columns(rows, room)[0]).split() == ["NAME", "KIND"]
    rows.append(("b", "failed", "static"))
    assert "".join(columns(rows, room)[0]).split() == ["NAME", "RESULT"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0 s"),
        (0.25, "0.25 s"),
        (59.9, "59.9 s"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (5400, "1 h 30 min"),
        (86400, "1 d"),
        (90061, "1 d 1 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_a_duration_is_in_its_longest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_time_is_shown_in_the_zone_of_the_reader() -> None:
    instant = datetime(2026, 7, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)
    assert moment(instant, ZoneInfo("Europe/Paris")) == "2026-07-01 14:00:00"
    assert moment(None, timezone.utc) == "-"
    latest = datetime.max.replace(tzinfo=timezone.utc)  # in Tokyo, the year would be 10000
    assert moment(latest, ZoneInfo("Asia/Tokyo")) == "9999-12-31 23:59:59"


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (schedule(30), "every 30 s"),
        (schedule(0.5, relative=True), "every 0.5 s (relative)"),
        (crontab("*/5", "1,2", "mon-fri", "1", "*"), "cron */5 1,2 1 * mon-fri"),
        (crontab(minute=[0, 30]), "cron 0,30 * * * *"),
        (solar("sunset", 52.5, 13.4), "solar sunset,52.5,13.4"),
        (clocked(datetime(2027, 1, 1, tzinfo=timezone.utc)), "at 2027-01-01T00:00:00+00:00"),
        (
            from_ical("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY;BYHOUR=9"),
            "RRULE:FREQ=DAILY;BYHOUR=9 DTSTART:20260101T000000Z",
        ),
    ],
)
def test_a_schedule_is_one_line(when: object, text: str) -> None:
    assert schedule_text(when) == text


def test_a_rule_that_rfc_5545_cannot_express_is_shown_in_other_words() -> None:
    offset = datetime.fromisoformat("2026-01-01T00:00:00+05:30")
    assert schedule_text(rrule("DAILY", dtstart=offset)).startswith("<rrule: freq: 3")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        (".5", 0.5),
        ("90s", 90),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("5 minutes", 300),
        ("1 day 2 hours 3 secs", 93_603),
        ("1w", 604_800),
        ("1w2d3h4m5.5s", 788_645.5),
        ("1.5 h", 5400),
        ("0.1s", 0.1),
    ],
)
def test_a_duration_is_read_with_its_units(text: str, seconds: float) -> None:
    assert seconds_from(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1h30", "30m1h", "1h1h", "1e5", "1,5h", "-1", "nan"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds_from(text)


@given(st.integers(1, 10**15))
def test_a_duration_is_written_so_that_it_is_read_as_the_same(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert seconds_from(exact_duration(seconds)) == seconds
    assert seconds_from(plain_number(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(90, "in 1 min 30 s"), (0.4, "now"), (-0.4, "now"), (-7200, "2 h ago")],
)
def test_a_time_is_told_from_now(seconds: float, text: str) -> None:
    now = datetime(2026, 7, 1, tzinfo=timezone.utc)
    assert until(now + timedelta(seconds=seconds), now) == text
