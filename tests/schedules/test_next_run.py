"""Tests of the next and the latest run of every kind of schedule."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from celery.utils.time import remaining

from redbeat.entries.decide import has_start
from redbeat.schedules import rrule
from redbeat.schedules.next_run import MIN_EVERY, count_runs, latest_run, next_run
from tests.samples import one_in

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
START = datetime(2026, 1, 1, 12, 3, 4, 5, tzinfo=UTC)
APP = Celery("tests", set_as_current=False, changes={"timezone": "America/New_York"})


def every(seconds: float, relative: bool = False, **kwargs: Any) -> schedule:
    return schedule(seconds, relative, app=APP, **kwargs)


class Weekdays(crontab):
    """A crontab subclass that does not change the run times."""


class Fortnight(BaseSchedule):
    """A custom schedule class with its own clock."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        elapsed: timedelta = self.now().replace(tzinfo=UTC) - last_run_at
        return timedelta(weeks=2) - elapsed


class Never(Fortnight):
    """A custom schedule class that never runs again."""

    def remaining_estimate(self, _last_run_at: datetime) -> None:  # type: ignore[override]
        return None


def test_an_interval_counts_from_the_last_slot() -> None:
    assert next_run(every(60), START) == START + timedelta(seconds=60)
    assert next_run(every(0.25), START) == START + timedelta(milliseconds=250)


def test_results_are_in_utc_whatever_the_argument() -> None:
    # 01:30 occurs twice on this night in New York; the UTC offset decides which one is meant.
    for fold, hour in ((0, 5), (1, 6)):
        local = datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=fold)
        found = next_run(every(3600), local)
        assert found == datetime(2026, 11, 1, hour + 1, 30, tzinfo=UTC)
        assert found is not None
        assert found.tzinfo is UTC


@pytest.mark.parametrize("kind", [every(60), crontab(app=APP), rrule(3, START)])
def test_a_naive_instant_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="time zone"):
        next_run(kind, datetime(2026, 1, 1))


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_interval_without_length_is_the_shortest_one(seconds: int) -> None:
    for kind in (every(seconds), every(seconds, relative=True)):
        assert next_run(kind, START) == START + MIN_EVERY
    day = START + timedelta(days=1)
    assert latest_run(every(seconds), START, day) == day


def test_an_interval_ends_with_the_calendar() -> None:
    assert next_run(every(86400), datetime(9999, 12, 31, 12, tzinfo=UTC)) is None


@pytest.mark.parametrize("seconds", [0.5, 5, 90, 3600, 5400, 86400, 7 * 86400])
def test_a_relative_interval_is_rounded_as_celery_does(seconds: float) -> None:
    chance = random.Random(seconds)
    for _ in range(200):
        after = START + timedelta(seconds=chance.random() * 366 * 86400)
        local = after.astimezone(NEW_YORK)
        expected = after + remaining(local, timedelta(seconds=seconds), after, True)
        if expected <= after:
            expected = after + timedelta(seconds=seconds)
        assert next_run(every(seconds, relative=True), after, NEW_YORK) == expected
        # Without the argument, the app's time zone is used.
        assert next_run(every(seconds, relative=True), after) == expected


@pytest.mark.parametrize("seconds", [0.1, 1, 7, 60.000001, 86400])
def test_the_latest_slot_of_an_interval_is_exact(seconds: float) -> None:
    step = timedelta(seconds=seconds)
    for slots in (1, 2, 10**6):
        at = START + slots * step
        assert latest_run(every(seconds), START, at) == at
        assert latest_run(every(seconds), START, at + step / 2) == at
        assert latest_run(every(seconds), START, at - timedelta.resolution) == (
            None if slots == 1 else at - step
        )


KINDS: dict[str, Any] = {
    "every minute": crontab(app=APP),
    "hourly": crontab(minute=7, app=APP),
    "two in a row, then a day": crontab(minute="3,4", hour=1, app=APP),
    "some days": crontab(minute=0, hour=9, day_of_week="mon,fri", app=APP),
    "leap day": crontab(minute=0, hour=0, day_of_month=29, month_of_year=2, app=APP),
    "relative": every(5400, relative=True),
    "rule": rrule("DAILY", START.astimezone(NEW_YORK), byhour=[1, 2], byminute=30),
    "counted": rrule("DAILY", START, count=5),
    "ended": rrule("HOURLY", START, until=START + timedelta(days=2)),
}


def brute_force(kind: Any, after: datetime, until: datetime) -> datetime | None:
    found, following = None, next_run(kind, after)
    while following is not None and following <= until:
        found, following = following, next_run(kind, following)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_the_latest_run_is_the_last_of_all(name: str) -> None:
    chance = random.Random(name)
    for _ in range(25):
        after = START + timedelta(seconds=chance.random() * 300 * 86400)
        until = after + timedelta(seconds=2 ** (chance.random() * 21))
        found = latest_run(KINDS[name], after, until)
        assert found == brute_force(KINDS[name], after, until)


@pytest.mark.parametrize("seconds", one_in(3, [0.5, 5, 90, 5400, 3600, 86400, 200_000]))
def test_the_latest_relative_run_is_the_last_of_all(seconds: float) -> None:
    chance, kind = random.Random(seconds), every(seconds, relative=True)
    for _ in range(20):
        after = START + timedelta(seconds=chance.random() * 300 * 86400)
        until = after + timedelta(seconds=seconds * chance.random() * 200)
        assert latest_run(kind, after, until, NEW_YORK) == brute_force(kind, after, until)


def test_nothing_runs_in_an_empty_span() -> None:
    for kind in (every(60), every(60, relative=True), crontab(app=APP), rrule(3, START)):
        assert latest_run(kind, START, START) is None
        assert latest_run(kind, START, START - timedelta(days=1)) is None


def test_the_first_occurrence_of_a_rule_is_its_start() -> None:
    kind = rrule("DAILY", START.replace(microsecond=0), count=3)
    assert has_start(kind)
    assert kind.occurrence_after(datetime(2020, 1, 1, tzinfo=UTC), inclusive=True) == kind.dtstart
    assert kind.occurrence_after(kind.dtstart, inclusive=True) == kind.dtstart
    assert kind.occurrence_after(START, inclusive=True) == kind.dtstart + timedelta(days=1)
    assert kind.occurrence_after(START + timedelta(days=9), inclusive=True) is None


def test_a_class_of_the_user_is_evaluated_with_its_own_clock() -> None:
    for now in (START, START.replace(tzinfo=None)):
        kind = Fortnight(nowfun=lambda now=now: now, app=APP)
        asked = START - timedelta(days=1)
        assert next_run(kind, asked) == asked + timedelta(weeks=2)
    assert next_run(Never(app=APP), START) is None


def test_a_subclass_that_changes_no_times_is_computed() -> None:
    assert next_run(Weekdays(minute=5, app=APP), START, UTC) == START.replace(
        minute=5, second=0, microsecond=0
    )


@pytest.mark.parametrize(
    "rule", [every(7), every(60, True), crontab("*/7"), rrule("MINUTELY", dtstart=START)]
)
def test_counts_equal_the_number_of_runs(rule: BaseSchedule) -> None:
    until, found, count = START + timedelta(minutes=45), START, 0
    while (following := next_run(rule, found, UTC)) is not None and following <= until:
        found, count = following, count + 1
    assert count > 3
    assert count_runs(rule, START, until, 1000, UTC) == count
    assert count_runs(rule, START, START, 1000, UTC) == 0


def test_only_intervals_are_counted_beyond_the_limit() -> None:
    until = START + timedelta(days=30)
    assert count_runs(every(1), START, until, 10) == 30 * 86400
    assert count_runs(crontab("*"), START, until, 10, UTC) == 10


@pytest.mark.parametrize(("every", "wait"), [(0, 0.01), (0.01, 0.01), (0.5, 0.5), (1, 0.004)])
def test_a_relative_interval_below_a_second_is_not_too_short(every: float, wait: float) -> None:
    """Celery rounds the time after the interval down to the full second, 4 ms away."""
    before = datetime(2026, 1, 1, 0, 0, 0, 996_000, tzinfo=timezone.utc)
    following = next_run(schedule(every, relative=True), before)
    assert following == before + timedelta(seconds=wait)
