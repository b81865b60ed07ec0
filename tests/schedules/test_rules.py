"""Tests of recurrence rules as Celery schedules."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.errors import DecodeError, TooManyStepsError
from redbeat.schedules.rule import rrule, with_zones, zone_extension

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime(2026, 5, 5, 12, 0, 0, tzinfo=UTC)
START = datetime(2026, 1, 1, 9, tzinfo=UTC)


def at(moment: datetime) -> Any:
    return lambda: moment


def rule(*args: Any, now: datetime = NOW, **fields: Any) -> rrule:
    return rrule(*args, nowfun=at(now), app=Celery("tests", set_as_current=False), **fields)


def occurrences(schedule: rrule, after: datetime, amount: int) -> list[datetime]:
    found: list[datetime] = []
    for _ in range(amount):
        following = schedule.occurrence_after(found[-1] if found else after)
        if following is None:
            break
        found.append(following)
    return found


def test_a_frequency_is_a_name_or_a_number() -> None:
    assert rrule.FREQ_MAP["WEEKLY"] == 2
    assert rule("WEEKLY", START).freq == rule("weekly", START).freq == rule(2, START).freq == 2


WRONG: tuple[tuple[str, Any], ...] = (
    ("freq", "FORTNIGHTLY"),
    ("dtstart", datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo"))),
    ("until", datetime.max.replace(tzinfo=NEW_YORK)),
    ("freq", 7),
    ("freq", True),
    ("freq", None),
    ("interval", 0),
    ("interval", -1),
    ("interval", 1.5),
    ("interval", None),
    ("count", 0),
    ("count", "3"),
    ("dtstart", "2026-01-01"),
    ("dtstart", date(2026, 1, 1)),
    ("until", 5),
    ("wkst", 7),
    ("byweekday", [7]),
    ("byweekday", "MO"),
    ("byhour", 24),
    ("byhour", "9"),
    ("byhour", {"9": 1}),
    ("byminute", [60]),
    ("bysecond", [True]),
    ("bymonth", 13),
    ("bymonthday", 0),
    ("byyearday", 367),
    ("byweekno", -54),
    ("bysetpos", 0),
    ("byeaster", 1000),
)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_argument_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: .*"):
        rule(**{"freq": 3, "dtstart": START, name: value})


def test_a_large_count_needs_a_rule_without_by_arguments() -> None:
    assert rule("SECONDLY", START, count=10**6).occurrence_after(START) is not None
    with pytest.raises(TooManyStepsError):
        rule("SECONDLY", START, count=10**6, byhour=3).occurrence_after(START)


def test_the_default_start_is_now() -> None:
    later = NOW.replace(microsecond=7)
    assert rule("DAILY", now=later).dtstart == NOW


def test_naive_instants_are_utc() -> None:
    schedule = rule("DAILY", datetime(2026, 1, 1), until=datetime(2026, 1, 3))
    assert schedule.dtstart == datetime(2026, 1, 1, tzinfo=UTC)
    assert schedule.until == datetime(2026, 1, 3, tzinfo=UTC)


def test_a_rule_that_never_ran_is_due_at_its_start() -> None:
    schedule = rule("DAILY", NOW + timedelta(seconds=30))
    assert schedule.is_due(None) == (False, 30.0)
    assert schedule.is_due(NOW - timedelta(days=1)) == (False, 30.0)
    assert schedule.remaining_estimate(None) == timedelta(seconds=30)


def test_a_rule_is_due_when_an_occurrence_has_passed() -> None:
    schedule = rule("HOURLY", START)
    assert schedule.is_due(NOW - timedelta(hours=1)) == (True, 3600.0)
    assert schedule.is_due(NOW - timedelta(hours=3)) == (True, 3600.0)
    assert schedule.is_due(NOW) == (False, 3600.0)
    assert schedule.remaining_estimate(NOW - timedelta(hours=2)) == timedelta(hours=-1)


def test_a_finished_rule_is_never_due() -> None:
    schedule = rule("DAILY", START, count=1)
    assert schedule.is_due(NOW) == (False, None)
    assert schedule.remaining_estimate(NOW) is None
    assert schedule.is_due(None) == (True, None)


@pytest.mark.parametrize("freq", ["DAILY", "MINUTELY"])
def test_a_finished_rule_has_nothing_left_in_any_zone(freq: str) -> None:
    schedule = rule(freq, START.astimezone(NEW_YORK), count=2)
    assert len(occurrences(schedule, START - timedelta(days=1), 9)) == 2


def test_a_time_that_does_not_exist_moves_forward_and_one_that_repeats_runs_once() -> None:
    schedule = rule("DAILY", datetime(2026, 1, 1, 2, 30, tzinfo=NEW_YORK))
    missing = schedule.occurrence_after(datetime(2026, 3, 8, 5, tzinfo=UTC))
    # 03:00, the first minute after the skipped hour.
    assert missing == datetime(2026, 3, 8, 7, tzinfo=UTC)
    schedule = rule("DAILY", datetime(2026, 1, 1, 1, 30, tzinfo=NEW_YORK))
    assert occurrences(schedule, datetime(2026, 11, 1, 4, tzinfo=UTC), 2) == [
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        datetime(2026, 11, 2, 6, 30, tzinfo=UTC),
    ]


def test_until_is_the_last_moment() -> None:
    schedule = rule("DAILY", START, until=START + timedelta(days=2))
    assert len(occurrences(schedule, START - timedelta(days=1), 9)) == 3


def test_rules_differ_in_what_changes_their_occurrences() -> None:
    schedule = rrule(3, START)
    same = rrule("DAILY", START.replace(microsecond=5), byhour=[9], byminute=(0,))
    assert (schedule, hash(schedule)) == (same, hash(same))
    changes: tuple[dict[str, Any], ...] = (
        {"interval": 2},
        {"count": 4},
        {"until": NOW},
        {"dtstart": START + timedelta(seconds=1)},
        {"dtstart": START.astimezone(ZoneInfo("Africa/Abidjan"))},
        {"byhour": 3},
        {"nowfun": datetime.now},
    )
    for changed in changes:
        assert rrule(**{"freq": 3, "dtstart": START, **changed}) != schedule
    assert schedule == rrule(3, START.astimezone(ZoneInfo("UTC")))
    assert schedule != "DAILY"


def test_repr_shows_what_was_given() -> None:
    text = repr(rrule(3, START, byhour=[9]))
    assert text == "<rrule: freq: 3, dtstart: 2026-01-01 09:00:00+00:00, interval: 1, byhour: [9]>"


def test_arguments_may_be_iterators() -> None:
    assert rrule(3, START, byhour=(hour for hour in (9, 17))).byhour == [9, 17]
    assert rrule(3, START, byhour=range(3)).byhour == [0, 1, 2]


def test_the_dateutil_object_is_available() -> None:
    schedule = rrule(3, START, until=NOW.astimezone(NEW_YORK), byhour=9)
    assert isinstance(schedule.rrule, dateutil_rrule)
    assert schedule.rrule.after(START) == schedule.occurrence_after(START)


def test_named_zones_are_stored_separately() -> None:
    start, end = START.astimezone(NEW_YORK), NOW.astimezone(ZoneInfo("Asia/Tokyo"))
    schedule = rrule("DAILY", start, until=end)
    extension = zone_extension(schedule)
    assert extension == {"dtstart_zone": "America/New_York", "until_zone": "Asia/Tokyo"}
    fixed = timezone(timedelta(hours=-5))
    stripped = rrule("DAILY", start.astimezone(fixed), until=end.astimezone(UTC))
    assert zone_extension(stripped) == {}
    assert stripped != schedule
    assert with_zones(stripped, extension) == schedule


@pytest.mark.parametrize(
    "schedule", [rrule(3, START), rrule(3, START.astimezone(ZoneInfo("UTC"))), 5]
)
def test_utc_and_other_schedules_need_no_extension(schedule: Any) -> None:
    assert zone_extension(schedule) == {}
    assert with_zones(schedule, {}) is schedule


def test_an_extension_without_its_instant_is_left_alone() -> None:
    schedule = rrule(3, START)
    assert with_zones(schedule, {"until_zone": "Asia/Tokyo"}) == schedule
    assert with_zones("no rule", {"dtstart_zone": "Asia/Tokyo"}) == "no rule"


@pytest.mark.parametrize("zone", ["Mars/Olympus", 5])
def test_the_error_names_an_unknown_zone(zone: Any) -> None:
    with pytest.raises(DecodeError, match=r"^schedule\.dtstart_zone: .*(Mars/Olympus|5)"):
        with_zones(rrule(3, START), {"dtstart_zone": zone})


def test_a_start_that_does_not_exist_in_its_zone_is_named() -> None:
    first = rrule(3, datetime.min.replace(tzinfo=UTC))
    with pytest.raises(DecodeError, match=r"schedule\.dtstart_zone: date value out of range"):
        with_zones(first, {"dtstart_zone": "America/New_York"})
