"""Tests of text formatting."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar

from redbeat import clocked, from_ical, rrule
from redbeat.presentation.describe import schedule_text
from redbeat.presentation.text import columns, duration, moment, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nightly", "nightly"),
        ("日本 é", "日本 é"),
        ("a\x1b[31mred\n", "a\\x1b[31mred\\n"),
        ("bad \udcff byte", "bad \\xff byte"),
        ("a\u202eb", "a\\u202eb"),
    ],
)
def test_control_characters_of_a_name_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_wide_and_combining_letters_keep_the_columns_aligned() -> None:
    lines = columns([("NAME", "N"), ("日本", "1"), ("e\u0301", "2"), ("ascii", "3")])
    assert lines == ["NAME   N", "日本   1", "e\u0301      2", "ascii  3"]


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
    assert moment(instant, ZoneInfo("Europe/Paris")) == "2026-07-01 14:00:00.250"
    assert moment(None, timezone.utc) == "-"


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
