"""Tests of calendars: which days they exclude, and which occurrences remain."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from redbeat import Calendar, clocked, rrule
from redbeat.entries.calendars import calendar_of
from redbeat.entries.decide import Plan, decide
from redbeat.entries.policy import Policy
from redbeat.errors import DecodeError, InvalidEntryError, TooManyStepsError
from redbeat.schedules.calendars import Exclusion
from redbeat.schedules.next_run import next_run

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
WEEKENDS = Calendar("weekends", rules=["FREQ=WEEKLY;BYDAY=SA,SU"])
CHRISTMAS = Calendar("christmas", days=[date(2026, 12, 25), ("2026-12-27", "2027-01-03")])
MORNINGS = crontab(minute=0, hour=9)


def berlin(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour, tzinfo=BERLIN).astimezone(UTC)


def test_days_spans_and_rules_are_excluded() -> None:
    both = Calendar("both", days=["2026-12-25", ["2026-12-28", "2026-12-30"]], rules=WEEKENDS.rules)
    excluded = [day for day in range(21, 32) if both.excludes(date(2026, 12, day))]
    assert excluded == [25, 26, 27, 28, 29, 30]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a,b"}, "name"),
        ({"days": ["someday"]}, "days"),
        ({"days": [("2027-01-02", "2027-01-01")]}, "days"),
        ({"days": [7]}, "days"),
        ({"days": ["2026-01-01"] * 5000}, "days"),
        ({"rules": ["FREQ=SOMETIMES"]}, "rules"),
        ({"rules": [3]}, "rules"),
        ({"zone": "Europe/Atlantis"}, "zone"),
    ],
)
def test_an_invalid_argument_is_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEntryError) as info:
        Calendar(**{"name": "x", **arguments})
    assert info.value.field == field


def test_a_calendar_is_the_same_after_it_was_stored() -> None:
    for one in (WEEKENDS, CHRISTMAS, Calendar("z", rules=[rrule("YEARLY")], zone="Asia/Tokyo")):
        assert calendar_of(one.name, one.to_json()) == one


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"days": 1, "rules": [], "zone": null}', "[" * 9]
)
def test_a_stored_calendar_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(DecodeError, match="calendar 'x'"):
        calendar_of("x", text)


def test_days_begin_and_end_in_the_zone_of_the_calendar() -> None:
    late = crontab(minute=30, hour=23)
    tokyo = Exclusion([Calendar("x", days=["2026-06-02"], zone="Asia/Tokyo")], UTC)
    # 23:30 UTC on 1 June is 8:30 on 2 June in Tokyo.
    runs = [
        tokyo.next_run(late, datetime(2026, 5, 31 - back, 23, 30, tzinfo=UTC)) for back in (1, 0)
    ]
    assert [run and run.day for run in runs] == [31, 2]


@pytest.mark.parametrize(("on_excluded", "day"), [("skip", 1), ("next", 2), ("previous", 31)])
def test_a_monthly_run_on_a_weekend_is_skipped_or_moved(on_excluded: str, day: int) -> None:
    """The first of August 2026 is a Saturday; Monday is the third, Friday the 31 July."""
    monthly = crontab(minute=0, hour=9, day_of_month=1)
    exclusion = Exclusion([WEEKENDS], BERLIN, on_excluded)
    run = exclusion.next_run(monthly, berlin(2026, 7, 15))
    expected = {1: berlin(2026, 9, 1, 9), 2: berlin(2026, 8, 3, 9), 31: berlin(2026, 7, 31, 9)}
    assert run == expected[day]


def test_a_run_that_was_moved_is_found_from_the_middle_of_the_excluded_days() -> None:
    monthly = crontab(minute=0, hour=9, day_of_month=1)
    exclusion = Exclusion([WEEKENDS], BERLIN, "next")
    assert exclusion.next_run(monthly, berlin(2026, 8, 2, 15)) == berlin(2026, 8, 3, 9)


def test_an_interval_keeps_its_grid() -> None:
    exclusion = Exclusion([WEEKENDS], UTC)
    friday = datetime(2026, 7, 31, 23, 7, tzinfo=UTC)
    run = exclusion.next_run(schedule(5 * 3600), friday)
    assert run == datetime(2026, 8, 3, 1, 7, tzinfo=UTC)  # ten intervals of five hours


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
@pytest.mark.parametrize(
    "rules", [["FREQ=DAILY"], ["FREQ=SECONDLY"], ["FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR"]]
)
def test_calendars_that_exclude_every_day_are_named(rules: list[str], on_excluded: str) -> None:
    always = Exclusion([WEEKENDS, Calendar("always", rules=rules)], UTC, on_excluded)
    with pytest.raises(TooManyStepsError, match="'weekends' and 'always' takes more than 250,000"):
        always.next_run(MORNINGS, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
@pytest.mark.parametrize(
    "rule",
    [
        clocked(datetime(2027, 1, 1, tzinfo=UTC)),
        rrule("DAILY", dtstart=datetime(2027, 1, 1, tzinfo=UTC), count=5),
        solar("sunset", 59, 18),
    ],
)
def test_a_run_that_finds_no_day_is_not_the_end_of_its_schedule(
    rule: BaseSchedule, on_excluded: str
) -> None:
    always = Exclusion([Calendar("always", rules=["FREQ=DAILY"])], UTC, on_excluded)
    with pytest.raises(TooManyStepsError, match="'always' takes more than 250,000"):
        always.next_run(rule, datetime(2026, 11, 1, tzinfo=UTC))


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
def test_a_year_without_runs_is_not_too_long(on_excluded: str) -> None:
    closed = Calendar("closed", days=[("2027-01-01", "2028-01-02")])
    exclusion = Exclusion([WEEKENDS, closed], BERLIN, on_excluded)
    for rule in (MORNINGS, crontab()) if on_excluded == "skip" else (MORNINGS,):
        run = exclusion.next_run(rule, berlin(2027, 3, 1))
        assert run is not None
        assert run.astimezone(BERLIN).date() == date(2028, 1, 3)
        policy = Policy.of({"exclude": "x", "coalesce": "all", "catch_up_limit": 1000})
        plan = Plan(rule, BERLIN, policy, "x", exclusion)
        late = berlin(2028, 6, 1)
        assert decide(plan, berlin(2026, 1, 2), berlin(2026, 1, 2), late, late).due


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
def test_a_run_of_each_minute_is_not_too_long(on_excluded: Any) -> None:
    exclusion = Exclusion([WEEKENDS, CHRISTMAS], BERLIN, on_excluded)
    plan = Plan(crontab(), BERLIN, Policy(on_excluded=on_excluded), "x", exclusion)
    friday, monday = berlin(2026, 12, 18), berlin(2026, 12, 21)
    for minutes in (0, 12 * 60, 23 * 60 + 58):
        now = friday + timedelta(minutes=minutes)
        decision = decide(plan, now - timedelta(minutes=9), now - timedelta(minutes=9), now, now)
        assert decision[:3] == (now, now + timedelta(minutes=1), 8)
    last = monday - timedelta(days=2, minutes=1)
    for sunday in (last, monday - timedelta(minutes=1)):
        assert decide(plan, last, last, sunday, sunday) == (None, monday, 0, None)
    assert exclusion.next_run(crontab(), last) == monday


def test_a_calendar_of_many_rules_is_not_too_long() -> None:
    rules = [f"FREQ=YEARLY;BYMONTH={n % 12 + 1};BYMONTHDAY={n % 25 + 4}" for n in range(1000)]
    exclusion = Exclusion([Calendar("many", rules=rules)], BERLIN, "next")
    assert exclusion.next_run(MORNINGS, berlin(2026, 1, 2)) == berlin(2026, 1, 2, 9)


def test_a_calendar_of_too_many_dates_is_refused() -> None:
    dates = ",".join(f"{day:%Y%m%d}" for day in map(date.fromordinal, range(730_000, 731_000)))
    with pytest.raises(InvalidEntryError, match="rules: computing the rules of a calendar takes"):
        Calendar("x", rules=[f"RDATE:{dates}"] * 120)


SCHEDULES: dict[str, BaseSchedule] = {
    "daily": MORNINGS,
    "thrice": crontab(minute=30, hour="0,2,23"),
    "monthly": crontab(minute=0, hour=9, day_of_month="1,15"),
    "rule": rrule("DAILY", dtstart=datetime(2026, 1, 1, 2, 30, tzinfo=BERLIN), interval=3),
}


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_occurrences_equal_those_of_a_search_through_all_of_them(
    name: str, on_excluded: str
) -> None:
    """The zone has both DST changes within the span."""
    chance = random.Random(f"{name}{on_excluded}")
    days = [date(2026, 3, 1) + timedelta(days=chance.randrange(300)) for _ in range(60)]
    exclusion = Exclusion([WEEKENDS, Calendar("some", days=days)], BERLIN, on_excluded)
    rule, instant, every = SCHEDULES[name], berlin(2026, 1, 15), set[datetime]()
    run = next_run(rule, instant, BERLIN)
    while run is not None and run < berlin(2027, 2, 15):
        moved = naive_move(run, exclusion, on_excluded)
        every |= {moved} if moved else set()
        run = next_run(rule, run, BERLIN)
    begin, end = berlin(2026, 2, 15), berlin(2027, 1, 1)
    expected = sorted(run for run in every if begin < run < end)
    found, run = [], exclusion.next_run(rule, begin)
    while run is not None and run < end:
        found.append(run)
        run = exclusion.next_run(rule, run)
    assert found == expected
    plan = Plan(rule, BERLIN, Policy.of({"exclude": "weekends"}), "x", exclusion)
    for _ in range(4):
        until = begin + (end - begin) * chance.random()
        before = [run for run in expected if run <= until]
        assert plan.latest_run(expected[0], until) == (before[-1] if before[1:] else None)
        assert plan.count(expected[0], until, 1000) == max(len(before) - 1, 0)


def naive_move(run: datetime, exclusion: Exclusion, on_excluded: str) -> datetime | None:
    """Move one run day by day in wall-clock time."""
    local = run.astimezone(BERLIN).replace(tzinfo=None)
    moved = run
    while exclusion.excludes(moved):
        if on_excluded == "skip":
            return None
        local += timedelta(days=1 if on_excluded == "next" else -1)
        wall = next_run(
            crontab(
                minute=local.minute,
                hour=local.hour,
                day_of_month=local.day,
                month_of_year=local.month,
            ),
            (local - timedelta(hours=3)).replace(tzinfo=BERLIN).astimezone(UTC),
            BERLIN,
        )
        assert wall is not None
        moved = wall
    return moved
