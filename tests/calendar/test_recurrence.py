"""Tests that recurrence rules yield the same occurrences as dateutil, from any start time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from dateutil.rrule import FR, MO, SU, TU, rrulebase
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.calendar.recurrence import Recurrence, recurrence
from redbeat.calendar.steps import Steps
from redbeat.calendar.zones import EPOCH, UTC
from redbeat.schedules.rule import RRULE_FIELDS, rrule
from tests.samples import one_in

DAYS = (MO, TU, FR, SU)
reference_rule: Callable[..., rrulebase] = dateutil_rrule


def rule(freq: int, dtstart: datetime, **fields: Any) -> Recurrence:
    fields_given = {**dict.fromkeys(RRULE_FIELDS), "freq": freq, "interval": 1, **fields}
    return recurrence(fields_given, dtstart)


# For a rule that never matches, dateutil searches up to the year 9999. The values of this function
# avoid most of these rules.
def some(chance: random.Random, low: int, high: int, most: int = 4) -> list[int]:
    values = {chance.randint(low, high) for _ in range(chance.randint(1, most))}
    return sorted(values - {0}) or [high]


def day_parts(chance: random.Random, freq: int) -> dict[str, Any]:
    """Return at most two BY* restrictions of the day, so that most rules have occurrences."""
    nth = [day(chance.choice((1, 2, -1))) for day in chance.sample(DAYS, 2)]
    parts: dict[str, Any] = {
        "bymonth": some(chance, 1, 12),
        "bymonthday": some(chance, -31, 31, 8),
        "byyearday": some(chance, -366, 366, 12),
        "byweekday": nth if chance.random() < 0.4 else [0, 3, 5],
        "byweekno": some(chance, 1, 52, 8),
        "byeaster": some(chance, -60, 60, 3),
    }
    rare = {"byweekno", "byeaster", "byyearday"} if freq else set()
    names = [name for name in parts if name not in rare]
    return {name: parts[name] for name in chance.sample(names, chance.randint(0, 2))}


def time_parts(chance: random.Random, freq: int) -> dict[str, Any]:
    parts = {"byhour": (0, 23), "byminute": (0, 59), "bysecond": (0, 59)}
    # dateutil rejects an interval that never reaches the BY* values of the same unit. For example,
    # an HOURLY rule with an interval of 24 starts at 9:00 and has BYHOUR=10.
    below = [name for name, unit in zip(parts, (4, 5, 6), strict=True) if unit != freq]
    names = chance.sample(below, chance.randint(0, 2))
    return {name: sorted({0, *some(chance, *parts[name])}) for name in names}


def random_rule(chance: random.Random) -> tuple[int, datetime, dict[str, Any]]:
    freq = chance.randrange(7)
    start = datetime(2020, 1, 1) + timedelta(seconds=chance.randrange(366 * 86400))
    fields = {**day_parts(chance, freq), **time_parts(chance, freq)}
    fields["interval"] = chance.choice((1, 1, 2, 3, 5))
    if chance.random() < 0.5:
        fields["wkst"] = chance.randrange(7)
    if chance.random() < 0.2:
        fields["bysetpos"] = chance.choice((1, -1, [1, 3], -2) if freq < 3 else (1, -1))
    return freq, start, fields


def expected(found: rrulebase, amount: int, end: datetime) -> list[datetime]:
    return list(itertools.takewhile(lambda at: at < end, itertools.islice(found, amount)))


def walked(found: Recurrence, start: datetime, amount: int, end: datetime) -> list[datetime]:
    moments: list[datetime] = []
    at = found.next_wall(start - timedelta(seconds=1))
    while at is not None and at < end and len(moments) < amount:
        moments.append(at)
        at = found.next_wall(at)
    return moments


@pytest.mark.parametrize("seed", one_in(3, range(20, 70)))
def test_occurrences_are_those_of_dateutil(seed: int) -> None:
    chance = random.Random(seed)
    freq, start, fields = random_rule(chance)
    dateutils = reference_rule(freq, dtstart=start, **fields)
    end = start + timedelta(days=366 * (12 if freq < 3 else 2))
    try:
        reference = expected(dateutils, 25, end)
    except ValueError:
        reference = []  # dateutil raises "results in an empty rule"
    found = walked(rule(freq, start, **fields), start, 25, end)
    assert found == reference, (freq, start, fields)


@pytest.mark.parametrize("seed", range(20))
def test_occurrences_do_not_depend_on_the_start_of_the_search(seed: int) -> None:
    chance = random.Random(1000 + seed)
    freq, start, fields = random_rule(chance)
    redbeats = rule(freq, start, **fields)
    reference = walked(redbeats, start, 20, datetime.max)
    for before, at in itertools.pairwise(reference):
        middle = before + (at - before) / 2
        assert redbeats.next_wall(middle) == at, (freq, start, fields)


@pytest.mark.parametrize(("freq", "unit"), [(6, 1), (5, 60), (4, 3600), (3, 86400), (2, 604800)])
def test_an_old_start_keeps_its_phase(freq: int, unit: int) -> None:
    start, interval = datetime(1970, 1, 1, 0, 0, 7), 11
    redbeats = rule(freq, start, interval=interval)
    found = redbeats.next_wall(datetime(2026, 5, 5))
    assert found is not None
    assert (found - start) % timedelta(seconds=unit * interval) == timedelta(0)
    assert found - datetime(2026, 5, 5) <= timedelta(seconds=unit * interval)


def test_weekdays_and_nth_weekdays_can_be_combined() -> None:
    redbeats = rule(1, datetime(2026, 1, 1), byweekday=[MO, FR(1)])
    days = [at.day for at in walked(redbeats, datetime(2026, 1, 1), 5, datetime.max)]
    assert days == [2, 5, 12, 19, 26]


IMPOSSIBLE: tuple[tuple[int, dict[str, Any]], ...] = (
    *((freq, {"bymonth": 2, "bymonthday": 30}) for freq in range(7)),
    (6, {"interval": 120, "byminute": [1, 3]}),
    (5, {"interval": 1440, "byhour": 3}),
    (4, {"interval": 24, "byhour": 3}),
)


@pytest.mark.parametrize(("freq", "fields"), IMPOSSIBLE)
def test_a_rule_that_never_matches_ends(freq: int, fields: dict[str, Any]) -> None:
    assert rule(freq, datetime(2026, 1, 1), **fields).next_wall(datetime(2026, 1, 1)) is None


@pytest.mark.parametrize("freq", range(7))
def test_nothing_comes_after_the_last_year(freq: int) -> None:
    redbeats = rule(freq, datetime(2026, 1, 1))
    assert redbeats.next_wall(datetime(9999, 12, 31, 23, 59, 58)) in (
        None,
        datetime(9999, 12, 31, 23, 59, 59),
    )


COUNTED: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {}),
    (1, {"bymonthday": 31}),
    (2, {}),
    (3, {"interval": 3}),
    (3, {"byhour": [3, 9]}),
    (6, {"interval": 7}),
    (1, {"byweekday": FR(-1)}),
    (0, {"bymonth": [2, 5], "bymonthday": 29}),
    (4, {"byhour": [1, 2], "bymonth": 3}),
    (1, {"bysetpos": -1, "byweekday": [0, 1, 2]}),
)


@pytest.mark.parametrize(("freq", "fields"), COUNTED)
def test_a_count_ends_the_rule(freq: int, fields: dict[str, Any]) -> None:
    start = datetime(2026, 1, 31, 9, tzinfo=UTC)
    redbeats, found = rrule(freq, start, count=5, **fields), list[datetime]()
    at = redbeats.occurrence_after(start, inclusive=True)
    while at is not None:
        found.append(at)
        at = redbeats.occurrence_after(at)
    assert found == list(reference_rule(freq, dtstart=start, count=5, **fields))


def test_a_huge_count_takes_no_time() -> None:
    redbeats, last = rrule(6, EPOCH, count=10**9), EPOCH + timedelta(seconds=10**9 - 1)
    assert redbeats.occurrence_after(last - timedelta(seconds=1)) == last
    assert redbeats.occurrence_after(last) is None
    far = datetime(9990, 1, 1, tzinfo=UTC)
    assert rrule(2, EPOCH, count=10**12).occurrence_after(far) == far + timedelta(days=3)


def test_a_count_beyond_the_last_match_ends_with_it() -> None:
    redbeats = rrule(0, datetime(9997, 5, 1), bymonth=1, count=5)
    last = datetime(9999, 1, 1, tzinfo=UTC)
    assert redbeats.occurrence_after(datetime(9998, 5, 1, tzinfo=UTC)) == last
    assert redbeats.occurrence_after(last) is None
    redbeats = rrule(0, datetime(2026, 1, 1), bymonth=2, bymonthday=30, count=3)
    assert redbeats.occurrence_after(EPOCH) is None


def test_an_interval_longer_than_the_calendar_has_one_occurrence() -> None:
    start = datetime(2026, 1, 31, 9)
    redbeats = rule(3, start, interval=10**10)
    assert redbeats.next_wall(start - timedelta(days=1)) == start
    assert redbeats.next_wall(start) is None


@pytest.mark.parametrize("fields", [{"byhour": []}, {"bymonth": []}])
def test_an_empty_list_restricts_nothing(fields: dict[str, Any]) -> None:
    redbeats = rule(3, datetime(2026, 1, 1, 9), **fields)
    assert redbeats.next_wall(datetime(2026, 1, 1, 9)) == datetime(2026, 1, 2, 9)


FAR: tuple[tuple[int, dict[str, Any]], ...] = (
    *((freq, {"bymonth": 2, "bymonthday": 30}) for freq in range(7)),
    (6, {"interval": 60, "bysecond": 30}),
    (6, {"interval": 601, "byhour": 3, "byminute": 0, "bysecond": 0}),
    (6, {"interval": 86399, "byhour": 0, "byminute": 0, "bysecond": 0}),
    (6, {"byyearday": 1, "bymonth": 12}),
    (6, {"byhour": 3, "byminute": 0, "bysecond": [0, 59], "bysetpos": 2}),
    (3, {"interval": 7, "byweekday": 1}),
    (3, {"interval": 2, "byeaster": 0, "byweekday": 0}),
    (2, {"byweekno": 53, "bymonth": 6}),
)


@pytest.mark.parametrize(("freq", "fields"), FAR)
def test_a_decision_takes_few_steps(freq: int, fields: dict[str, Any]) -> None:
    """With more steps than a decision may take, this raises ``TooManyStepsError``."""
    redbeats = rule(freq, datetime(1, 1, 1), **fields)
    with Steps():
        found = redbeats.next_wall(datetime(2026, 1, 1, 0, 0, 1))
    assert found is None or found.year == 2026


@pytest.mark.parametrize("seed", one_in(3, range(30)))
def test_rare_periods_against_a_walk_through_all(seed: int) -> None:
    """The intervals rarely reach an allowed day, and only a few hours of a day are allowed."""
    chance = random.Random(seed)
    freq, unit = chance.choice(((4, 3600), (5, 60), (6, 1)))
    interval = chance.choice((7, 25, 1439, 1441, 3601, 5040, 86399, 86401, 90000))
    start = datetime(2026, 1, 1) + timedelta(seconds=chance.randrange(86400))
    parts: dict[str, Any] = {"byhour": sorted(chance.sample(range(24), chance.randint(1, 12)))}
    if chance.random() < 0.5:
        parts["byweekday"] = [1, 3]
    step, days = timedelta(seconds=unit * interval), parts.get("byweekday", range(7))
    steps = min(timedelta(days=90 * 365) // step, 20_000)
    candidates = (start + number * step for number in range(steps))
    allowed = [at for at in candidates if at.hour in parts["byhour"] and at.weekday() in days]
    redbeats = rule(freq, start, interval=interval, **parts)
    assert walked(redbeats, start, 10, start + steps * step) == allowed[:10]
