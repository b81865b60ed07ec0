"""Tests that a decision takes bounded work for any schedule.

Most tests count function calls. They also check the CPU time, with a bound far above the documented
0.1 s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import islice
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar
from dateutil.rrule import FR

from redbeat.calendar.recurrence import shared_days
from redbeat.calendar.steps import LIMIT, Steps
from redbeat.entries.decide import Plan, decide, runs_from
from redbeat.entries.policy import Policy
from redbeat.errors import TooManyStepsError
from redbeat.schedules import rrule
from redbeat.schedules.next_run import SOLAR_LIMIT, next_run
from redbeat.schedules.rule import rruleset
from tests.samples import one_in

UTC = timezone.utc
OLD = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 2, 12, 0, 0, 5, tzinfo=UTC)
DAY = timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")
OLD_THERE = OLD.astimezone(NEW_YORK)

#: Maximum CPU seconds of one decision: ten times the documented bound, because machines differ.
CPU = 1.0
#: Maximum number of Python function calls in one decision.
CALLS = 100_000

EACH_MINUTE = "crontab: each minute"
Make = Callable[[], Any]


def rule(freq: Any, interval: int = 1, **fields: Any) -> Make:
    return lambda: rrule(freq, OLD, interval, **fields)


LEAP_DAY: dict[str, Any] = {"bymonth": 2, "bymonthday": 29}
LEAP_MONDAY = {**LEAP_DAY, "byweekday": 0}
NEVER = {"bymonth": 2, "bymonthday": 30}
KINDS: dict[str, Make] = {
    "every 10 ms": lambda: schedule(0.01),
    "every 10 ms, relative": lambda: schedule(0.01, True),
    "every 36 hours, relative": lambda: schedule(129_600, True),
    EACH_MINUTE: crontab,
    "crontab: 29 February, a Monday": lambda: crontab(0, 0, 1, 29, 2),
    "crontab: all of that day": lambda: crontab("*", "*", 1, 29, 2),
    "each 7 seconds since 1970": rule("SECONDLY", 7),
    "each 7 seconds since the year 1": lambda: rrule("SECONDLY", datetime(1, 1, 1), 7),
    "minutes of some hours": rule("MINUTELY", byhour=[3, 9, 17], byminute=[1, 2, 3]),
    "each 7 minutes of even hours": rule("MINUTELY", 7, byhour=list(range(0, 24, 2))),
    "count of 10**18": rule("DAILY", count=10**18),
    "count of 10**9 seconds": rule("SECONDLY", count=10**9),
    "interval of 10**18": rule("SECONDLY", 10**18),
    "each 1000 years on 29 February": rule("YEARLY", 1000, bymonth=2, bymonthday=29),
    "no 366th of February": rule("YEARLY", bymonth=2, bysetpos=366),
    **{f"30 February, {freq}": rule(freq, **NEVER) for freq in rrule.FREQ_MAP},
    **{f"29 February, a Monday, {freq}": rule(freq, **LEAP_MONDAY) for freq in rrule.FREQ_MAP},
    "Easter on 1 January": rule("DAILY", byeaster=0, byyearday=1),
    "week 53 in July": rule("HOURLY", byweekno=53, bymonth=7),
    "each day at another hour": rule("MINUTELY", 1440, byhour=3),
    "each two minutes at an odd one": rule("SECONDLY", 120, byminute=[1, 3]),
    "rarely from 0 to 22": rule("SECONDLY", 86_399, byhour=list(range(23))),
    "count of 2000, twice a day": rule("DAILY", count=2000, byhour=[3, 9]),
    "count of 30, second Fridays": rule("YEARLY", count=30, byweekday=FR(2)),
    "count of 80, Easter": rule("YEARLY", count=80, byeaster=[0, 1]),
    "count of 10**12 in New York": lambda: rrule("SECONDLY", OLD_THERE, count=10**12),
    "count of leap days there": lambda: rrule("HOURLY", OLD_THERE, count=500, **LEAP_DAY),
    "count of 2000 thirds there": lambda: rrule("HOURLY", OLD_THERE, 3, count=2000, bymonth=3),
}


def cpu(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def calls(action: Callable[[], object]) -> int:
    """Return how many Python functions an action calls; the number is the same everywhere."""
    count, before = 0, sys.getprofile()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def assert_cheap(action: Callable[[], object]) -> None:
    assert cpu(action) < CPU
    assert calls(action) < CALLS


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_decision_is_cheap(name: str) -> None:
    """The test covers the next run, a first decision, and an entry that last ran in 1970."""
    make = KINDS[name]
    assert_cheap(lambda: next_run(make(), NOW, NEW_YORK))
    assert_cheap(lambda: decide(Plan(make(), NEW_YORK), None, None, NOW, NOW))
    assert_cheap(lambda: decide(Plan(make(), NEW_YORK), OLD, OLD, NOW, NOW))


#: Rules that are searched for so long that no beat should compute them.
HOSTILE: dict[str, Make] = {
    "count of rare runs": rule("WEEKLY", byweekday=[0, 1], bymonthday=1, bysetpos=1, count=10**5),
    "count of 10**5, twice a day": rule("DAILY", count=10**5, byhour=[3, 9]),
    "count of 10**5, Easter": rule("YEARLY", count=10**5, byeaster=[0, 1]),
    "four that never occur": lambda: rruleset(
        rule("WEEKLY", byweekday=day, bysetpos=2)() for day in range(4)
    ),
    "all days around Easter": rule("DAILY", byeaster=list(range(-366, 367)), count=10**5),
}


@pytest.mark.parametrize("name", one_in(3, HOSTILE))
def test_a_rule_that_would_take_too_long_is_refused_after_the_same_steps(name: str) -> None:
    for _ in range(2):  # without and with what the process has cached
        with pytest.raises(TooManyStepsError, match="schedule: computing the next run takes more"):
            next_run(HOSTILE[name](), NOW, NEW_YORK)


def steps_of(action: Callable[[], object]) -> int:
    with Steps() as steps:
        action()
    return LIMIT - steps.left


@pytest.mark.parametrize("name", one_in(2, KINDS))
def test_a_useful_rule_takes_few_steps(name: str) -> None:
    shared_days.cache_clear()
    plan = Plan(KINDS[name](), NEW_YORK, Policy.of({"jitter": 1}), "a")
    steps = steps_of(lambda: decide(plan, OLD, OLD, NOW, NOW))
    assert steps < LIMIT / 4
    assert steps_of(lambda: decide(plan, OLD, OLD, NOW, NOW)) <= steps


@pytest.mark.long
def test_a_list_of_runs_may_take_more_steps_for_each_run() -> None:
    """Each run of this rule takes about 100,000 steps."""
    never = rule("WEEKLY", byweekday=0, bysetpos=2)()
    plan = Plan(rruleset([never, rule("DAILY")()]), UTC)
    with pytest.raises(TooManyStepsError):
        list(islice(runs_from(plan, NOW, 0, NOW, NOW), 5))
    assert (
        len(list(islice(runs_from(Plan(rule("MINUTELY")(), UTC), NOW, 0, NOW, NOW), 9999))) == 9999
    )


POLICIES: dict[str, dict[str, Any]] = {
    "latest": {"jitter": 30},
    "too old": {"misfire_grace_time": 60},
    "earliest": {"coalesce": "earliest", "misfire_grace_time": 3600},
    "all": {"coalesce": "all", "catch_up_limit": 1000},
    "a window": {"start_time": OLD + DAY, "end_time": NOW + DAY, "max_runs": 10**9},
}
FREQUENT = ("every 10 ms", "every 10 ms, relative", "each 7 seconds since 1970", EACH_MINUTE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", one_in(2, FREQUENT))
def test_a_decision_after_years_under_a_policy_is_cheap(name: str, policy: str) -> None:
    policy_of_entry = Policy.of(POLICIES[policy])
    kind = KINDS[name]()
    assert_cheap(lambda: decide(Plan(kind, NEW_YORK, policy_of_entry, "a"), OLD, OLD, NOW, NOW, 7))


def test_a_decision_with_a_jitter_that_is_longer_than_the_interval() -> None:
    policy_of_entry = Policy.of({"jitter": 86_400, "misfire_grace_time": 1})
    last = NOW - timedelta(hours=2)
    assert_cheap(
        lambda: decide(Plan(schedule(0.1), UTC, policy_of_entry, "a"), last, last, NOW, NOW, 0)
    )


def test_the_missed_runs_by_a_sun_that_rises_once_a_year() -> None:
    pole, last = solar("sunrise", 89.9, 0), datetime(1970, 1, 2, tzinfo=UTC)
    assert_cheap(lambda: decide(Plan(pole, UTC), last, last, NOW, NOW))
    assert decide(Plan(pole, UTC), last, last, NOW, NOW).missed == SOLAR_LIMIT
