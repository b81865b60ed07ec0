"""Tests of crontabs against Celery, and against a search of all minutes.

Celery is the reference while the UTC offset is constant. The search is the reference around clock
changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from celery.utils.time import remaining
from dateutil import tz

from redbeat.presentation.cron_text import celery_field
from redbeat.schedules.next_run import next_run
from tests.samples import one_in

UTC = timezone.utc
MINUTE = timedelta(minutes=1)
APP = Celery("tests", set_as_current=False)
FIELDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_week": (0, 6),
    "day_of_month": (1, 31),
    "month_of_year": (1, 12),
}

# For each clock change: the time zone, the first day of a period around the change, and the length
# of the period in days.
CHANGES = {
    "New York, forward": ("America/New_York", datetime(2026, 3, 7), 3),
    "New York, back": ("America/New_York", datetime(2026, 10, 31), 3),
    "London, forward": ("Europe/London", datetime(2026, 3, 28), 3),
    "London, back": ("Europe/London", datetime(2026, 10, 24), 3),
    "Lord Howe, forward": ("Australia/Lord_Howe", datetime(2026, 10, 3), 3),
    "Lord Howe, back": ("Australia/Lord_Howe", datetime(2026, 4, 4), 3),
    "Sao Paulo, forward at midnight": ("America/Sao_Paulo", datetime(2018, 11, 3), 3),
    "Apia, a day left out": ("Pacific/Apia", datetime(2011, 12, 29), 4),
}
EXPRESSIONS = (
    {"minute": "*/5"},
    {"minute": "*/7", "hour": "*/2"},
    {"minute": 30},
    {"minute": 30, "hour": "0-23"},
    {"minute": "0,30", "hour": "1-3"},
    {"minute": 15, "hour": "1-9/2"},
    {"minute": 0, "hour": 0},
    {"minute": [10, 40], "hour": [1, 2]},
    {"minute": "*/15", "hour": 1},
    {"minute": 30, "hour": 2},
    {"minute": 0, "hour": 9},
    {"minute": "*", "hour": 2},
)


def cron(**fields: object) -> crontab:
    return crontab(**fields, app=APP)


def runs(schedule: crontab, start: datetime, end: datetime, zone: str) -> list[datetime]:
    found: list[datetime] = []
    moment = start
    while True:
        following = next_run(schedule, moment, ZoneInfo(zone))
        if following is None or following > end:
            return found
        assert following > moment
        found.append(following)
        moment = following


def expression(chance: random.Random, low: int, high: int) -> object:
    first, second = sorted((chance.randint(low, high), chance.randint(low, high)))
    choices: tuple[object, ...] = (
        "*",
        "*",
        first,
        f"{first}-{second}",
        f"{second},{first}",
        f"{first}-{second}/{chance.randint(1, 5)}",
        f"*/{chance.randint(1, high)}",
        [first, second],
    )
    return chance.choice(choices)


@pytest.mark.parametrize("seed", range(4))
def test_without_clock_changes_the_next_run_is_that_of_celery(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(80):
        fields = {name: expression(chance, *limits) for name, limits in FIELDS.items()}
        if chance.random() < 0.6:
            fields["day_of_month"] = fields["month_of_year"] = "*"
        after = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(
            seconds=chance.randrange(10 * 366 * 86400)
        )
        try:
            schedule = cron(**fields, nowfun=lambda after=after: after)
        except ValueError:
            continue  # recent versions of Celery reject a crontab that matches no date
        start, delta, _ = schedule.remaining_delta(after, tz=UTC)
        expected = after + remaining(start, delta, after)
        schedule.nowfun = None
        assert next_run(schedule, after, UTC) == expected, fields


def wall_times(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, int]]:
    """Yield every minute from start to end, with the fold of its wall-clock time."""
    moment = start
    while moment <= end:
        yield moment, moment.astimezone(zone).fold
        moment += MINUTE


def matches(schedule: crontab, wall: datetime) -> bool:
    return (
        wall.minute in schedule.minute
        and wall.hour in schedule.hour
        and wall.day in schedule.day_of_month
        and wall.month in schedule.month_of_year
        and wall.isoweekday() % 7 in schedule.day_of_week
    )


def by_the_minute(
    schedule: crontab, real_time: bool, start: datetime, end: datetime, zone: ZoneInfo
) -> list[datetime]:
    """Return the runs found by trying every minute and every skipped wall-clock time."""
    found, previous = set(), None
    for moment, fold in wall_times(zone, start, end):
        wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        if matches(schedule, wall) and (real_time or not fold):
            found.add(moment)
        while not real_time and previous is not None and previous + MINUTE < wall:
            previous += MINUTE
            if matches(schedule, previous):
                found.add(moment)
        previous = wall
    return sorted(found)


@pytest.mark.parametrize("change", one_in(3, CHANGES))
@pytest.mark.parametrize("fields", EXPRESSIONS, ids=str)
def test_every_change_of_the_clock(change: str, fields: dict[str, object]) -> None:
    name, day, days = CHANGES[change]
    zone, schedule = ZoneInfo(name), cron(**fields)
    start = day.replace(tzinfo=zone).astimezone(UTC)
    end = start + timedelta(days=days)
    hour = str(fields.get("hour", "*"))
    real_time = "*" in hour or "/" in hour or hour == "0-23"
    expected = by_the_minute(schedule, real_time, start, end, zone)
    assert runs(schedule, start - MINUTE, end, name) == expected


@pytest.mark.parametrize("fields", EXPRESSIONS, ids=str)
def test_the_next_run_does_not_depend_on_the_start_of_the_search(fields: dict[str, object]) -> None:
    schedule = cron(**fields)
    for change in ("New York, forward", "New York, back", "Lord Howe, back"):
        name, day, _ = CHANGES[change]
        start = day.replace(tzinfo=ZoneInfo(name)).astimezone(UTC) + timedelta(hours=20)
        end = start + timedelta(hours=16)
        expected = runs(schedule, start, end, name)
        moment = start
        while expected and moment < expected[-1]:
            following = next(run for run in expected if run > moment)
            assert next_run(schedule, moment, ZoneInfo(name)) == following
            moment += timedelta(minutes=7, seconds=13)


def test_every_five_minutes_runs_in_both_repeated_hours() -> None:
    # At this time, 01:00 is about to occur for the second time.
    start = datetime(2026, 11, 1, 5, 59, tzinfo=UTC)
    found = runs(cron(minute="*/5"), start, start + timedelta(hours=1), "America/New_York")
    assert len(found) == 12


def test_a_daily_run_in_the_repeated_hour_happens_once() -> None:
    start = datetime(2026, 11, 1, 4, tzinfo=UTC)
    schedule = cron(minute=30, hour=1)
    found = runs(schedule, start, start + timedelta(hours=20), "America/New_York")
    assert found == [datetime(2026, 11, 1, 5, 30, tzinfo=UTC)]


def test_a_daily_run_in_the_missing_hour_happens_at_its_end() -> None:
    start = datetime(2026, 3, 8, 5, tzinfo=UTC)
    schedule = cron(minute=30, hour=2)
    found = runs(schedule, start, start + timedelta(hours=20), "America/New_York")
    assert found == [datetime(2026, 3, 8, 7, tzinfo=UTC)]


@pytest.mark.long
@pytest.mark.parametrize("change", [name for name in CHANGES if "Apia" not in name])
@pytest.mark.parametrize("fields", EXPRESSIONS[:6], ids=str)
def test_zones_that_ignore_the_fold(change: str, fields: dict[str, object]) -> None:
    name, day, _ = CHANGES[change]
    moment = day.replace(tzinfo=ZoneInfo(name)).astimezone(UTC)
    other = tz.gettz(name)
    assert other is not None
    for _ in range(150):
        expected = next_run(cron(**fields), moment, ZoneInfo(name))
        assert next_run(cron(**fields), moment, other) == expected
        moment += timedelta(minutes=23)


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


def test_without_a_zone_that_of_the_app_is_used() -> None:
    app = Celery("tests", set_as_current=False, changes={"timezone": "Asia/Tokyo"})
    schedule = crontab(minute=0, hour=9, app=app)
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert next_run(schedule, after) == datetime(2026, 1, 2, tzinfo=UTC)


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
