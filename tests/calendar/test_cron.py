"""Tests of crontabs that are rare, empty or odd, and of their fields as people write them.

``tests/schedules/test_next_run_in_zones.py`` compares crontabs with Celery, and around changes of
the clock with a search of all minutes.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat.presentation.cron_text import celery_field
from redbeat.schedules.next_run import next_run

UTC = timezone.utc
APP = Celery("tests", set_as_current=False)
FIELDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_week": (0, 6),
    "day_of_month": (1, 31),
    "month_of_year": (1, 12),
}


def cron(**fields: object) -> crontab:
    return crontab(**fields, app=APP)


class Careless(tzinfo):
    """A time zone whose methods fail when they are called with None."""

    zone = ZoneInfo("America/New_York")

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        assert dt is not None
        return self.zone.utcoffset(dt)

    def dst(self, dt: datetime | None) -> timedelta | None:
        return self.zone.dst(dt)

    def tzname(self, dt: datetime | None) -> str | None:
        return self.zone.tzname(dt)

    def fromutc(self, dt: datetime) -> datetime:
        return self.zone.fromutc(dt.replace(tzinfo=self.zone)).replace(tzinfo=self)


def test_a_zone_class_of_the_user() -> None:
    after, schedule = datetime(2026, 3, 8, 6, tzinfo=UTC), cron(minute=30, hour=2)
    assert next_run(schedule, after, Careless()) == datetime(2026, 3, 8, 7, tzinfo=UTC)


def test_a_rare_date_is_found() -> None:
    schedule = cron(minute=0, hour=0, day_of_month=29, month_of_year=2, day_of_week="mon")
    after = datetime(2096, 3, 1, tzinfo=UTC)
    assert next_run(schedule, after, UTC) == datetime(2112, 2, 29, tzinfo=UTC)


def test_a_date_that_never_comes_has_no_next_run() -> None:
    schedule = cron(minute=0, hour=0, day_of_month=1, month_of_year=2)
    schedule.day_of_month = {30}
    assert next_run(schedule, datetime(2026, 1, 1, tzinfo=UTC), UTC) is None


@pytest.mark.parametrize("field", FIELDS)
def test_a_crontab_with_an_empty_field_never_runs(field: str) -> None:
    schedule = cron()
    setattr(schedule, field, set())
    assert next_run(schedule, datetime(2026, 1, 1, tzinfo=UTC), UTC) is None


def test_nothing_comes_after_the_last_year() -> None:
    after = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert next_run(cron(), after, UTC) is None
    assert next_run(cron(), after, ZoneInfo("America/New_York")) is None


@pytest.mark.parametrize(
    ("field", "first", "number", "month_day"),
    [("day_of_week", 0, 7, "2026-03-0{}"), ("month_of_year", 1, 12, "2026-{:02}-01")],
)
def test_the_names_of_days_and_months_are_valid(
    field: str, first: int, number: int, month_day: str
) -> None:
    """1 March 2026 is a Sunday. Python has the names, in English under the locale C."""
    for value in range(first, first + number):
        day = datetime.fromisoformat(month_day.format(value + 1 - first))
        for name in (f"{day:%A %a}" if field == "day_of_week" else f"{day:%B %b}").split():
            for written in (name, name.lower(), name.upper()):
                celery_field(field, written)
                if field == "day_of_week":  # the oldest Celery knows no names of months
                    assert crontab(day_of_week=written).day_of_week == {value}


@pytest.mark.parametrize("item", ["*", "*/2", "5", "1-5", "5-1", "1-5/2"])
def test_numbers_are_valid_in_each_field(item: str) -> None:
    for field in FIELDS:
        celery_field(field, item)


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("day_of_week", "mon#1"),
        ("day_of_week", "mon-fri#1"),
        ("day_of_week", "mon-fri/2#1"),
        ("day_of_week", "sundae"),
        ("day_of_week", "mon-fridge"),
        ("day_of_week", "jan"),
        ("month_of_year", "febtember"),
        ("month_of_year", "mon"),
        ("hour", "mon"),
        ("minute", "1_0"),
        ("minute", "*/5x"),
        ("minute", ""),
        ("minute", "*/0"),
        ("minute", "0-59/0"),
        # Items of Quartz and of systemd
        ("minute", "0/15"),
        ("day_of_week", "mon/2"),
        ("day_of_month", "?"),
        ("day_of_month", "L"),
        ("day_of_month", "15W"),
        ("day_of_week", "friL"),
    ],
)
def test_an_item_that_celery_may_misread_is_not_valid(field: str, item: str) -> None:
    with pytest.raises(ValueError, match=r"must be \*, a number"):
        celery_field(field, item)


#: Weekdays with 7 for Sunday, and the days that cron runs.
WITH_SEVEN = {
    "7": {0},
    "07": {0},
    "5-7": {5, 6, 0},
    "fri-7": {5, 6, 0},
    "Fri-7": {5, 6, 0},
    "SATURDAY-7": {6, 0},
    "0-7": set(range(7)),
    "1-7": set(range(7)),
    "sun-7": set(range(7)),
    "7-7": {0},
    "7-2": {0, 1, 2},
    "7-tue": {0, 1, 2},
    "1-7/2": {1, 3, 5, 0},
    "fri-7/2": {5, 0},
    "1,7": {1, 0},
    "mon-wed,5-7": {1, 2, 3, 5, 6, 0},
    "fri-mon": {5, 6, 0, 1},
    "sun-sat": set(range(7)),
    "*/7": {0},
    "*": set(range(7)),
}


@pytest.mark.parametrize("text", WITH_SEVEN)
def test_seven_means_sunday(text: str) -> None:
    assert crontab(day_of_week=celery_field("day_of_week", text)).day_of_week == WITH_SEVEN[text]


def test_seven_stays_in_other_fields_and_unknown_weekdays_are_refused() -> None:
    assert celery_field("hour", "5-7") == "5-7"
    for text in ("8", "7-9", "fri-9", "-7", "70"):
        with pytest.raises(Exception, match=r"\d|must be"):
            crontab(day_of_week=celery_field("day_of_week", text))
