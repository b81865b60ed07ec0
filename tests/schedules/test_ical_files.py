"""Days of the events in iCalendar files: nothing in a file is left out without an error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import pytest

from redbeat import Calendar
from redbeat.calendar.zones import UTC
from redbeat.errors import InvalidEntryError

NOW = date(2026, 6, 1)

#: A calendar with an event of the lines in between. The first line of the event is line 6.
HEAD = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:tests\nBEGIN:VEVENT\nUID:a\n"
TAIL = "\nEND:VEVENT\nEND:VCALENDAR\n"
#: A second component of the same event, which changes one occurrence.
CHANGED = "\nEND:VEVENT\nBEGIN:VEVENT\nUID:a\n"
SECOND = "DTSTART;VALUE=DATE:20261202"
NIGHTS = "DTSTART:20261201T183000Z\nDTEND:20261202T183000Z\nRRULE:FREQ=DAILY;COUNT=3"
FIVE_DAYS = "DTSTART;VALUE=DATE:20261201\nRRULE:FREQ=DAILY;COUNT=5"


def days_of(event: str, zone: str | None = None) -> list[str]:
    """Return the excluded days of December 2026, and of the days around it, as MMDD."""
    text = f"{HEAD}{event}{TAIL}".replace("\n", "\r\n")
    one = Calendar.from_ical("c", text, zone, NOW)
    start = date(2026, 11, 1).toordinal()
    days = map(date.fromordinal, range(start, start + 90))
    return [f"{day:%m%d}" for day in days if one.excludes(day)]


SPANS = (
    # A day of Colombo, as programs export it in UTC.
    ("DTSTART:20261224T183000Z\nDTEND:20261225T183000Z", "Asia/Colombo", ["1225"]),
    ("DTSTART:20261224T183000Z\nDURATION:P1D", "Asia/Colombo", ["1225"]),
    ("DTSTART:20261224T183000Z\nDTEND:20261226T183000Z", "Asia/Colombo", ["1225", "1226"]),
    ("DTSTART:20261224T183000Z\nDTEND:20261225T183000Z", None, ["1224", "1225"]),
    # Midnight to midnight of another zone touches two days here.
    (
        "DTSTART;TZID=Europe/Paris:20261225T000000\nDTEND;TZID=Europe/Paris:20261226T000000",
        "America/New_York",
        ["1224", "1225"],
    ),
    # A part of a day excludes the whole day; the end is exclusive.
    ("DTSTART:20261225T100000Z\nDTEND:20261225T110000Z", "Asia/Colombo", ["1225"]),
    ("DTSTART:20261225T200000Z\nDTEND:20261225T210000Z", "Asia/Colombo", ["1226"]),
    ("DTSTART:20261225T200000Z", "Asia/Colombo", ["1226"]),
    # Days, and times without a zone, are those of the calendar.
    ("DTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20261227", "Asia/Colombo", ["1225", "1226"]),
    ("DTSTART:20261224T230000\nDTEND:20261225T010000", "Asia/Colombo", ["1224", "1225"]),
    # DST ends in New York on 1 November 2026.
    (
        "DTSTART:20261101T040000Z\nDTEND:20261102T050000Z",
        "America/New_York",
        ["1101"],
    ),
    # Each occurrence is cut, without those of an EXDATE.
    (
        f"{NIGHTS}\nEXDATE;TZID=Asia/Colombo:20261203T000000",
        "Asia/Colombo",
        ["1202", "1204"],
    ),
    (
        "DTSTART:20261201T090000Z\nRDATE;VALUE=PERIOD:20261205T200000Z/20261206T190000Z",
        "Asia/Colombo",
        ["1201", "1206", "1207"],
    ),
)


@pytest.mark.parametrize(("event", "zone", "expected"), SPANS)
def test_days_are_cut_in_the_zone_of_the_calendar(
    event: str, zone: str | None, expected: list[str]
) -> None:
    assert days_of(event, zone) == expected


def test_times_that_are_given_as_days_are_cut_in_the_zone_too() -> None:
    start, end = (datetime(2026, 12, day, 18, 30, tzinfo=UTC) for day in (24, 25))
    one = Calendar("c", [start, (start, end)], zone="Asia/Colombo")
    assert one.days == ("2026-12-25", "2026-12-25")
    assert Calendar("c", [start]).days == ("2026-12-24",)
    texts = [("2026-12-24T18:30Z", "2026-12-26T18:30Z"), ("2026-12-24T18:30Z",) * 2]
    expected = (["2026-12-25", "2026-12-26"], "2026-12-25")
    assert Calendar("c", texts, zone="Asia/Colombo").days == expected
    assert Calendar("c", ["2026-12-24T18:30Z"], zone="Asia/Colombo").days == ("2026-12-25",)


READ: Sequence[tuple[str, list[str]]] = (
    (f"{FIVE_DAYS}\nSTATUS:CANCELLED", []),
    (f"{FIVE_DAYS}\nstatus:cancelled", []),
    (f"{FIVE_DAYS}\nSTATUS:TENTATIVE", ["1201", "1202", "1203", "1204", "1205"]),
    (f"{FIVE_DAYS}\nSTATUS:POSTPONED", ["1201", "1202", "1203", "1204", "1205"]),
    (f"{FIVE_DAYS}\nEXDATE;VALUE=DATE:20261202,20261203", ["1201", "1204", "1205"]),
    (
        f"{FIVE_DAYS}{CHANGED}RECURRENCE-ID;VALUE=DATE:20261202\n{SECOND}\nSTATUS:CANCELLED",
        ["1201", "1203", "1204", "1205"],
    ),
    (
        f"{FIVE_DAYS}{CHANGED}RECURRENCE-ID;VALUE=DATE:20261202\nDTSTART;VALUE=DATE:20261220",
        ["1201", "1203", "1204", "1205", "1220"],
    ),
    ("DTSTART:20261201T090000Z\nRRULE:FREQ=DAILY;COUNT=2\nEXDATE;VALUE=DATE:20261202", ["1201"]),
    ("DTSTART;VALUE=DATE:20261201\nX-MINE:1\nTRANSP:TRANSPARENT\nCLASS:PUBLIC", ["1201"]),
    ("SUMMARY:a\\, b\n  c\nDTSTART;VALUE=DA\n TE:20261201", ["1201"]),
    ("DTSTART;VALUE=DATE:20261201\nBEGIN:VALARM\nACTION:AUDIO\nEND:VALARM", ["1201"]),
    # Google writes this; it says nothing about days.
    ("DTSTART;VALUE=DATE:20261201\nCREATED:00001231T000000Z\nGEO:\nPRIORITY:", ["1201"]),
    # A repeated event, and a later version of it.
    (f"{SECOND}{CHANGED}{SECOND}", ["1202"]),
    (f"{SECOND}{CHANGED}DTSTART;VALUE=DATE:20261203\nSEQUENCE:1", ["1203"]),
)


@pytest.mark.parametrize(("event", "expected"), READ)
def test_statuses_and_exceptions_are_read(event: str, expected: list[str]) -> None:
    assert days_of(event) == expected


def test_a_custom_time_zone_is_read() -> None:
    zone = (
        "BEGIN:VTIMEZONE\nTZID:Mine\nBEGIN:STANDARD\nDTSTART:19700101T000000\n"
        "TZOFFSETFROM:+0530\nTZOFFSETTO:+0530\nEND:STANDARD\nEND:VTIMEZONE\nBEGIN:VEVENT\n"
    )
    text = f"{HEAD}DTSTART;TZID=Mine:20261201T000000\nDURATION:P1D{TAIL}"
    one = Calendar.from_ical("c", text.replace("BEGIN:VEVENT\n", zone), "Asia/Colombo", NOW)
    assert one.days == ("2026-12-01",)


#: A zone as Outlook writes it, without names of the offsets, and an event in this zone.
OUTLOOK = (
    "BEGIN:VCALENDAR\nPRODID:x\nX-WR-TIMEZONE:Europe/Berlin\n"
    "BEGIN:VTIMEZONE\nTZID:Customized Time Zone\nBEGIN:STANDARD\nDTSTART:16010101T000000\n"
    "TZOFFSETFROM:+0530\nTZOFFSETTO:+0530\nEND:STANDARD\nEND:VTIMEZONE\nBEGIN:VEVENT\nUID:a\n"
    "DTSTART;TZID=Customized Time Zone:20261201T080000\nRRULE:FREQ=DAILY;COUNT=3\n"
    "EXDATE:20261202T023000Z\nEND:VEVENT\nEND:VCALENDAR\n"
)


@pytest.mark.parametrize("text", [OUTLOOK, OUTLOOK.replace("\n", "\r\n"), f"\ufeff{OUTLOOK}"])
def test_a_zone_without_names_of_its_offsets_is_not_that_of_the_file(text: str) -> None:
    assert Calendar.from_ical("c", text, now=NOW).days == ("2026-12-01", "2026-12-03")
    assert Calendar.from_ical("c", text.encode(), now=NOW).days == ("2026-12-01", "2026-12-03")


def test_a_custom_time_zone_is_that_of_its_own_file() -> None:
    Calendar.from_ical("c", OUTLOOK, now=NOW)
    other = OUTLOOK.replace("0530", "0100").replace("T023000Z", "T070000Z")
    assert Calendar.from_ical("c", other, now=NOW).days == ("2026-12-01", "2026-12-03")


REFUSED = (
    (f"{FIVE_DAYS}\nEXRULE:FREQ=DAILY", "line 8: EXRULE: "),
    (f"{FIVE_DAYS}\nEXDATE:20261202T000000Z", "line 8: EXDATE: .* DTSTART is a day"),
    (f"{FIVE_DAYS}\nEXDATE;VALUE=DATE:2026120", "line 8: EXDATE: "),
    (f"{FIVE_DAYS}\nno property", "no property"),
    ("DTSTART;TZID=Mars/Olympus:20261201T090000", "line 6: DTSTART: unknown time zone"),
    (
        "DTSTART:20261201T090000Z\nRRULE:FREQ=DAILY;COUNT=3\nEXDATE;TZID=Nowhere:20261202T090000",
        "line 8: EXDATE: unknown time zone 'Nowhere'",
    ),
    ("DTSTART:20261201T0915", "line 6: DTSTART: "),
    ("DTSTART:20261201T091500Z\nDURATION:4H", "line 7: DURATION: "),
    (f"{SECOND}{CHANGED}DTSTART;VALUE=DATE:20261203", "UID: is that of several events"),
    ("SUMMARY:nothing", "DTSTART"),
)


@pytest.mark.parametrize(("event", "problem"), REFUSED)
def test_what_cannot_be_read_is_named(event: str, problem: str) -> None:
    with pytest.raises(InvalidEntryError, match=problem):
        days_of(event)


@pytest.mark.parametrize("component", ["VTODO", "VJOURNAL", "VFREEBUSY"])
def test_components_without_events_are_refused(component: str) -> None:
    text = f"{HEAD}{FIVE_DAYS}{TAIL}".replace("VEVENT", component)
    with pytest.raises(InvalidEntryError, match=f"line 4: BEGIN: {component} has no days"):
        Calendar.from_ical("c", text, now=NOW)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{HEAD}{FIVE_DAYS}{TAIL}" * 2, "multiple components"),
        (f"{HEAD}{FIVE_DAYS}", "no components"),
        (f"{HEAD}{FIVE_DAYS}\nEND:VCALENDAR\n", "no components"),
    ],
)
def test_files_that_are_not_one_calendar_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidEntryError, match=problem):
        Calendar.from_ical("c", text, now=NOW)


@pytest.mark.parametrize("name", ["RRULE", "rrule ", 'RRULE;X="a:b;c"', "RR\n ULE\t;A=b"])
def test_a_rule_of_all_seconds_is_refused_however_it_is_written(name: str) -> None:
    with pytest.raises(InvalidEntryError, match="'FREQ=SECONDLY' repeats more often than daily"):
        days_of(f"DTSTART:20261201T090000\n{name}:FREQ=SECONDLY")
