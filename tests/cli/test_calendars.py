"""Tests of ``calendars`` and ``calendar``, and of the options that name a calendar."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.management.forecast import minutes_between

from .commands import in_terminal
from .conftest import Run

ICAL = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20261224
DTEND;VALUE=DATE:20261227
SUMMARY:Christmas
END:VEVENT
BEGIN:VEVENT
UID:2
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20260501
RRULE:FREQ=YEARLY;COUNT=3
SUMMARY:May Day
END:VEVENT
END:VCALENDAR
"""


def test_a_calendar_is_stored_listed_and_deleted(run: Run, app: Celery) -> None:
    options = ("--day", "2026-12-25", "--day", "2026-12-27/2027-01-03")
    rule = "FREQ=WEEKLY;BYDAY=SA,SU"
    ran = run("calendar", "de", *options, "--rule", rule, "--zone", "Europe/Berlin")
    assert ran.code == 0
    assert ran.err == "Saved the calendar de; used by 0 entries\n"
    span = ("2026-12-27", "2027-01-03")
    expected = Calendar("de", ["2026-12-25", span], [rule], "Europe/Berlin")
    assert Schedule(app).calendars == {"de": expected}
    assert (
        "2026-12-25, 2026-12-27/2027-01-03  RRULE:FREQ=WEEKLY;BYDAY=SA,SU" in run("calendars").out
    )
    (stored,) = run("calendars", "--json").json
    assert (stored["name"], stored["zone"]) == ("de", "Europe/Berlin")
    assert run("calendar", "de", "--delete").code == 0
    assert run("calendars").out == ""
    assert run("calendar", "de", "--delete").code == 3


def test_the_days_come_from_an_icalendar_file(run: Run, app: Celery, tmp_path: Path) -> None:
    path = tmp_path / "holidays.ics"
    path.write_text(ICAL)
    assert run("calendar", "de", "--ical", str(path)).code == 0
    calendar = Schedule(app).calendars["de"]
    assert [day for day in range(23, 29) if calendar.excludes(date(2026, 12, day))] == [24, 25, 26]
    assert [year for year in range(2026, 2031) if calendar.excludes(date(year, 5, 1))] == [
        *(2026, 2027, 2028)
    ]
    for wrong in ("BEGIN:NOTHING", "BEGIN:VCALENDAR\nEND:VCALENDAR\n"):
        path.write_text(wrong)
        ran = run("calendar", "de", "--ical", str(path))
        assert ran.code == 2
        assert "--ical" in ran.err
    assert Schedule(app).calendars["de"] == calendar


def test_the_days_of_a_file_are_cut_in_the_zone(run: Run, app: Celery, tmp_path: Path) -> None:
    path = tmp_path / "holidays.ics"
    in_utc = ICAL.replace("DTSTART;VALUE=DATE:20261224", "DTSTART:20261224T183000Z")
    path.write_text(in_utc.replace("DTEND;VALUE=DATE:20261227", "DTEND:20261225T183000Z"))
    assert run("calendar", "lk", "--ical", str(path), "--zone", "Asia/Colombo").code == 0
    calendar = Schedule(app).calendars["lk"]
    assert [day for day in range(23, 29) if calendar.excludes(date(2026, 12, day))] == [25]


@pytest.mark.parametrize(
    "lines",
    [
        ["RRULE:FREQ=SECONDLY"],
        ["RRULE:FREQ=SE", " CONDLY"],
        ['rrule;x="a:b":freq=hourly'],
        ["RRULE:FREQ=SECONDLY;BYHOUR=0;BYMINUTE=0;BYSECOND=0"],
        ["RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"],
        ["RRULE:FREQ=YEARLY", "EXRULE:FREQ=MINUTELY"],
        [
            *(
                "END:VEVENT",
                "BEGIN:VTIMEZONE",
                "TZID:x",
                "BEGIN:STANDARD",
                "DTSTART:20260101T000000",
            ),
            *("RRULE:FREQ=SECONDLY", "TZOFFSETFROM:+01", "TZOFFSETTO:+02", "END:STANDARD"),
            *("END:VTIMEZONE", "BEGIN:VEVENT", "DTSTART;VALUE=DATE:20260501"),
        ],
    ],
)
def test_events_that_take_too_long_to_expand_are_refused(
    run: Run, app: Celery, tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "events.ics"
    path.write_text(ICAL.replace("RRULE:FREQ=YEARLY;COUNT=3", "\n".join(lines)))
    began = time.process_time()
    ran = run("calendar", "de", "--ical", str(path))
    assert time.process_time() - began < 5
    assert ran.code == 2
    assert "--ical" in ran.err
    assert not Schedule(app).calendars


def test_a_calendar_that_leaves_an_entry_no_run_is_not_stored(run: Run, app: Celery) -> None:
    for name in ("de", "weekends"):
        run("calendar", name, "--rule", "FREQ=WEEKLY;BYDAY=SA,SU")
    entry = RedBeatSchedulerEntry("a", "t", crontab(), app=app, exclude=["weekends", "de"]).save()
    ran = run("calendar", "de", "--rule", "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR")
    assert ran.code == 2
    assert "would leave 'a' without a next run" in ran.err
    assert "outside the days of 'weekends' and 'de' takes more than 250,000 steps" in ran.err
    assert Schedule(app)["a"].upcoming(1)
    entry.exclude = ("de",)
    entry.save()
    assert run("calendar", "de", "--rule", "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR").code == 0


def test_a_calendar_is_not_deleted_with_other_options(run: Run, app: Celery) -> None:
    run("calendar", "de", "--day", "2026-12-25")
    ran = run("calendar", "de", "--delete", "--day", "2026-12-25")
    assert ran.code == 2
    assert "--delete" in ran.err
    assert set(Schedule(app).calendars) == {"de"}


@pytest.mark.parametrize(
    ("option", "value"),
    [("--day", "soon"), ("--day", "2027-01-02/2027-01-01"), ("--rule", "X"), ("--zone", "Nowhere")],
)
def test_a_wrong_option_is_named(run: Run, app: Celery, option: str, value: str) -> None:
    ran = run("calendar", "de", option, value)
    assert ran.code == 2
    assert f"'{option}'" in ran.err
    assert Schedule(app).calendars == {}


@pytest.mark.parametrize("options", [[], ["--zone", "Europe/Berlin"]])
def test_a_calendar_without_days_is_not_stored(run: Run, app: Celery, options: list[str]) -> None:
    """A command line without days would delete all days of a stored calendar."""
    run("calendar", "de", "--day", "2026-12-25")
    ran = run("calendar", "de", *options)
    assert ran.code == 2
    assert "--day 2026-12-25" in ran.err
    assert "celery redbeat calendars" in ran.err
    assert Schedule(app).calendars == {"de": Calendar("de", ["2026-12-25"])}


def test_an_entry_names_calendars(run: Run, app: Celery) -> None:
    run("calendar", "de", "--day", "2026-12-25")
    run("calendar", "fr", "--day", "2026-07-14")
    cron = ("--cron", "0 9 1 * *")
    assert run("add", "pay", "t", *cron, "--exclude", "de,fr", "--on-excluded", "next").code == 0
    assert Schedule(app)["pay"].policy.exclude == ("de", "fr")
    assert "de, fr" in run("show", "pay").out
    assert run("show", "pay", "--json").json[0]["policy"]["exclude"] == ["de", "fr"]
    ran = run("calendar", "de", "--delete")
    assert ran.code == 4
    assert "is the calendar of 'pay'" in ran.err
    assert run("edit", "pay", "--exclude", "none", "--on-excluded", "none").code == 0
    assert run("calendar", "de", "--delete").code == 0
    ran = run("edit", "pay", "--exclude", "gone")
    assert ran.code == 2
    assert "there is no calendar 'gone'" in ran.err


@pytest.mark.parametrize("stored", [None, "{", "[]"])
def test_a_calendar_that_is_missing_or_damaged_stops_only_its_entries(
    run: Run, app: Celery, redis_client: Any, stored: str | None
) -> None:
    """Setup: two entries. Fault: a raw writer breaks the calendar of one. Invariant: no error."""
    run("calendar", "de", "--day", "2026-12-25")
    run("add", "pay", "t", "--every", "60", "--exclude", "de")
    run("add", "other", "t", "--every", "60")
    redis_client.delete(".redbeat::calendars")
    if stored is not None:
        redis_client.hset(".redbeat::calendars", "de", stored)
    schedule, now = Schedule(app), datetime.now(timezone.utc)
    assert {name for _, name in schedule.upcoming(5)} == {"other"}
    assert set(schedule.forecast(now + timedelta(hours=1)).runs) == {"other"}
    assert set(schedule.load(minutes_between(now, now + timedelta(hours=1))).entries) == {"other"}
    shown = run("show", "pay")
    assert shown.code == 0
    assert "calendar 'de'" in shown.out
    (found,) = run("show", "pay", "--json").json
    assert (found["upcoming"], "calendar 'de'" in found["problem"]) == ([], True)


def test_a_calendar_is_one_line_of_a_terminal(run: Run, redis_url: str) -> None:
    days = [word for day in range(1, 9) for word in ("--day", f"2026-12-0{day}")]
    assert run("calendar", "de", *days, "--rule", "FREQ=WEEKLY;BYDAY=SA,SU").code == 0
    whole = run("calendars").lines
    for words in ((), ("--wide",)):
        environ = {"COLUMNS": "80", "TERM": "dumb"}
        text, code = in_terminal(redis_url, "calendars", *words, environ=environ)
        assert code == 0
        lines = text.splitlines()
        assert (lines == whole) is bool(words)
        assert (max(map(len, lines)) <= 80) is not bool(words)
