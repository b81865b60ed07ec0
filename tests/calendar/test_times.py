"""Texts of times are read in one way, and refused if they can be read in two."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat import clocked, rrule, rruleset
from redbeat.calendar.zones import UTC, plain_datetime, time_from, to_timestamp
from redbeat.codec.stored import moment_in
from redbeat.decoder import decode
from redbeat.entries.policy import Policy
from redbeat.errors import InvalidEntryError
from redbeat.schedules.calendars import Calendar
from redbeat.schedules.ical import from_ical
from tests.odd_times import OddDatetime, OddZone

FOUR_HOURS = timezone(timedelta(hours=4))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-01", datetime(2026, 12, 1)),
        ("20261201", datetime(2026, 12, 1)),
        ("20261201T09", datetime(2026, 12, 1, 9)),
        ("20261201T0915", datetime(2026, 12, 1, 9, 15)),
        ("2026-12-01 09:15", datetime(2026, 12, 1, 9, 15)),
        ("20261201T091530Z", datetime(2026, 12, 1, 9, 15, 30, tzinfo=UTC)),
        ("2026-12-01t09:15z", datetime(2026, 12, 1, 9, 15, tzinfo=UTC)),
        ("2026-12-01T09:15+04", datetime(2026, 12, 1, 9, 15, tzinfo=FOUR_HOURS)),
        ("2026-12-01T09:15+0400", datetime(2026, 12, 1, 9, 15, tzinfo=FOUR_HOURS)),
        ("20261201T091500.5", datetime(2026, 12, 1, 9, 15, 0, 500_000)),
        ("2026-12-01T09:15:00,123456789", datetime(2026, 12, 1, 9, 15, 0, 123_456)),
        ("2026-12-01T24:00", datetime(2026, 12, 2)),
    ],
)
def test_a_time_has_the_parts_that_are_written(text: str, expected: datetime) -> None:
    moment = time_from(text)
    assert (moment, moment.tzinfo) == (expected, expected.tzinfo)


#: Texts that one of strptime(), fromisoformat() and dateutil reads, each in its own way.
UNCLEAR = (
    *("20261201T235", "202612", "2026", "2026-12", "2026121", "2026-335", "2026-W49-2"),
    *("20261201T9", "20261201T09150", "2026-12-01T0915:30", "2026-1201", "2026-12-01T+9:15"),
    *("2026-12-01T09:15 +04:00", "2026-12-01T09:15+4", "2026-12-01T09:15:00Z x", "2026-12-01T"),
    *("\uff12026-12-01", "2026-13-01", "2026-02-30", "2026-12-01T25:00", "9999-12-31T24:00"),
    *("2026-12-01T09:15.", "", "tomorrow"),
)


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_text_that_can_be_misread_is_refused_everywhere(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        time_from(text)
    for read in (
        lambda: from_ical(f"RDATE:{text or '?'}"),
        lambda: from_ical(f"DTSTART:{text or '?'}\nRRULE:FREQ=DAILY"),
        lambda: from_ical(f"RRULE:FREQ=DAILY;UNTIL={text or '?'}"),
        lambda: Policy.of({"start_time": text}),
        lambda: Calendar("c", [text]),
    ):
        with pytest.raises((ValueError, InvalidEntryError)):
            read()
    assert moment_in(text) is None
    stored = {"__type__": "clocked", "clocked_time": text}
    assert decode(json.dumps(stored), "") == stored


def test_short_times_of_rules_are_read_as_dateutil_reads_them() -> None:
    rule = from_ical("DTSTART:20261201T0915\nRRULE:FREQ=DAILY;UNTIL=20261203")
    assert (rule.dtstart, rule.until) == (
        datetime(2026, 12, 1, 9, 15, tzinfo=UTC),
        datetime(2026, 12, 3, tzinfo=UTC),
    )


ODD = OddDatetime(2026, 12, 1, 9, 15, tzinfo=UTC)
PLAIN = datetime(2026, 12, 1, 9, 15, tzinfo=UTC)


@pytest.mark.parametrize("zone", [UTC, OddZone("Europe/Paris"), FOUR_HOURS, None])
def test_objects_of_other_libraries_become_plain(zone: Any) -> None:
    odd = OddDatetime(2026, 12, 1, 9, 15, tzinfo=zone)
    moment = plain_datetime(odd)
    assert type(moment) is datetime
    assert not isinstance(moment.tzinfo, OddZone)
    assert moment.isoformat() == odd.isoformat()


def test_rules_hold_plain_datetimes() -> None:
    rule = rrule("DAILY", dtstart=ODD, until=ODD)
    dates = rruleset([rule], [ODD], [ODD])
    once = clocked(ODD)
    found = (rule.dtstart, rule.until, *dates.rdates, *dates.exdates, once.clocked_time)
    assert {(type(each), each) for each in found} == {(datetime, PLAIN)}
    assert once.occurrence_after(PLAIN, inclusive=True) == PLAIN
    assert once == clocked(PLAIN)


def test_an_object_that_is_no_time_is_refused_by_name() -> None:
    class NotATime(OddDatetime):
        """Like pandas.NaT, which is a datetime, too."""

        year: Any = float("nan")

    for make in (clocked, lambda odd: rrule("DAILY", dtstart=odd), lambda odd: rruleset((), [odd])):
        with pytest.raises(ValueError, match=r"(clocked_time|dtstart|rdates): .* is not a time"):
            make(NotATime(2026, 1, 1))
    with pytest.raises(InvalidEntryError, match=r"start_time: .* is not a time"):
        Policy.of({"start_time": NotATime(2026, 1, 1)})


def test_policies_calendars_and_scores_are_plain() -> None:
    assert type(Policy.of({"end_time": ODD}).end_time) is datetime
    assert Calendar("c", [ODD]).excludes(PLAIN.date())
    assert to_timestamp(ODD) == PLAIN.timestamp()
