"""Tests of schedules in English: expected texts, and texts that match the actual runs."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import FR, MO, SU, TH, TU, WE
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redbeat import clocked, from_ical, rrule, rruleset
from redbeat.presentation.rules import in_words
from redbeat.schedules.next_run import next_run
from tests.web.cron_reader import Understood, understand

NEW_YORK = ZoneInfo("America/New_York")
PARIS = ZoneInfo("Europe/Paris")
START = datetime(2026, 1, 2, 9, 0, tzinfo=NEW_YORK)
FROM = ", from 2026-01-02 09:00, America/New_York"
WORKDAYS = (MO, TU, WE, TH, FR)
#: Numbers of random examples: few for groups of rules, many for crontabs.
FEW = settings(max_examples=5, deadline=None)
MANY = settings(max_examples=200, deadline=None)

CRONTABS = {
    "* * * * *": "every minute",
    "*/5 * * * *": "every 5 minutes",
    "*/45 * * * *": "every hour at minutes 0 and 45",
    "5-10 * * * *": "every hour at minutes 5 to 10",
    "* 9 * * *": "every minute between 09:00 and 09:59",
    "*/10 8-17 * * 1-5": "every 10 minutes between 08:00 and 17:59, every weekday",
    "*/15 8-9 * * 1": "every 15 minutes between 08:00 and 09:59, every Monday",
    "0 * * * *": "every hour",
    "30 * * * *": "every hour at minute 30",
    "0 */2 * * *": "every 2 hours",
    "30 */2 * * *": "every 2 hours at minute 30",
    "0 */12 * * *": "every 12 hours",
    "0 */5 * * *": "every day at 00:00, 05:00, 10:00, 15:00 and 20:00",
    "0 8-17 * * *": "every hour from 08:00 to 17:00",
    "15 8-17 1 * *": "every hour from 08:15 to 17:15, on day 1 of the month",
    "0 9 * * *": "every day at 09:00",
    "0 9 * * 1-5": "every weekday at 09:00",
    "0 9 * * sat,sun": "every Saturday and Sunday at 09:00",
    "0 9 * * 0": "every Sunday at 09:00",
    "0 9 * * 1-4": "every Monday to Thursday at 09:00",
    "0 9 * * 1,3-5": "every Monday and Wednesday to Friday at 09:00",
    "0 9,17 1 * *": "on day 1 of the month at 09:00 and 17:00",
    "0 9 29-31 * *": "on days 29 to 31 of the month at 09:00",
    "0 0 1 1,7 *": "on day 1 of the month at 00:00, in January and July",
    "0 12 * 1,4,7,10 *": "every day at 12:00, in January, April, July and October",
    "0 0 * 6-8 *": "every day at 00:00, in June to August",
}

#: Crontabs that need too many words.
QUOTED_CRONTABS = (
    *("*/7 * * * *", "5-10 9-10 * * *", "*/15 9,12,17 * * 1", "15,45 8-18 * * *"),
    *("0 0 */2 * *", "0 9 1-7 * 1", "1,2,5,9,12,17,22,25,33,40 * * * *"),
)

INTERVALS: dict[float, str] = {
    1: "every second",
    30: "every 30 seconds",
    0.5: "every 0.5 seconds",
    60: "every minute",
    90: "every 1 min 30 s",
    3600: "every hour",
    7200: "every 2 hours",
    86400: "every day",
    604800: "every 7 days",
    90061.25: "every 1 d 1 h 1 min 1.25 s",
}

RULES: list[tuple[dict[str, Any], str]] = [
    ({"freq": "DAILY"}, "every day at 09:00"),
    ({"freq": "WEEKLY"}, "every Friday at 09:00"),
    ({"freq": "MONTHLY"}, "on day 2 of the month at 09:00"),
    ({"freq": "YEARLY"}, "on day 2 of the month at 09:00, in January"),
    ({"freq": "HOURLY"}, "every hour"),
    ({"freq": "MINUTELY"}, "every minute"),
    ({"freq": "HOURLY", "interval": 6}, "every 6 hours"),
    ({"freq": "MINUTELY", "interval": 90}, "every 90 minutes"),
    ({"freq": "SECONDLY", "interval": 30}, "every 30 seconds"),
    ({"freq": "WEEKLY", "byweekday": WORKDAYS}, "every weekday at 09:00"),
    (
        {"freq": "WEEKLY", "interval": 2, "byweekday": [MO, FR]},
        "every Monday and Friday at 09:00, only every 2 weeks",
    ),
    ({"freq": "MONTHLY", "byweekday": FR(1)}, "on the first Friday of the month at 09:00"),
    (
        {"freq": "MONTHLY", "byweekday": [MO(2), FR(-1)]},
        "on the 2nd Monday and the last Friday of the month at 09:00",
    ),
    (
        {"freq": "MONTHLY", "interval": 3, "byweekday": [MO, FR]},
        "every Monday and Friday at 09:00, only every 3 months",
    ),
    (
        {"freq": "YEARLY", "byweekday": MO(1), "bymonth": 9},
        "on the first Monday of the month at 09:00, in September",
    ),
    ({"freq": "YEARLY", "byweekday": MO, "bymonth": 9}, "every Monday at 09:00, in September"),
    (
        {"freq": "MONTHLY", "bymonthday": [1, 15, -1]},
        "on days 1 and 15 and the last day of the month at 09:00",
    ),
    (
        {"freq": "DAILY", "interval": 3, "bymonth": 6},
        "every day at 09:00, in June, only every 3 days",
    ),
    (
        {"freq": "DAILY", "byhour": range(8, 18), "byminute": range(0, 60, 10)},
        "every 10 minutes between 08:00 and 17:59",
    ),
]

QUOTED: list[dict[str, Any]] = [
    {"freq": "YEARLY", "byweekday": MO(20)},
    {"freq": "MONTHLY", "byweekday": FR, "bymonthday": 13},
    {"freq": "WEEKLY", "interval": 2, "wkst": SU},
    {"freq": "MONTHLY", "byweekday": [FR, MO(1)]},
    {"freq": "YEARLY", "byyearday": 100, "bymonthday": 1},
    {"freq": "HOURLY", "interval": 2, "byhour": [9, 10]},
    {"freq": "MINUTELY", "bysecond": [1, 5]},
    {"freq": "YEARLY", "byyearday": [100, -1]},
    {"freq": "YEARLY", "byeaster": 0},
    {"freq": "YEARLY", "byweekno": 20, "byweekday": MO},
    {"freq": "HOURLY", "interval": 6, "byminute": [0, 30]},
    {"freq": "DAILY", "bysecond": [0, 30]},
    {"freq": "SECONDLY"},
    {"freq": "MINUTELY", "interval": 90, "byweekday": MO},
    {"freq": "MONTHLY", "byweekday": WORKDAYS, "bysetpos": -1},
    {"freq": "MONTHLY", "bymonthday": -2},
    {"freq": "MONTHLY", "byweekday": FR(-2)},
]


def cron(text: str) -> crontab:
    """Return the crontab for a line with five fields."""
    minute, hour, day, month, weekday = text.split()
    return crontab(minute, hour, weekday, day, month)


@pytest.mark.parametrize("text", CRONTABS)
def test_crontab(text: str) -> None:
    assert in_words(cron(text)) == CRONTABS[text]


def test_crontab_that_is_given_as_numbers_and_sets() -> None:
    assert in_words(crontab(minute=0, hour={17, 9})) == "every day at 09:00 and 17:00"
    assert in_words(crontab(minute=[0, 30], hour=9)) == "every day at 09:00 and 09:30"


def test_wall_clock_times_name_their_zone() -> None:
    assert in_words(cron("0 9 * * *"), "Europe/Paris") == "every day at 09:00, Europe/Paris"
    assert in_words(schedule(60), "Europe/Paris") == "every minute"


def test_crontab_that_never_comes() -> None:
    words = in_words(crontab(0, 0, day_of_month="30-31", month_of_year="2,4", day_of_week=[]))
    assert words.startswith("never: no time matches cron 0 0 30-31 2,4")


def part(low: int, high: int) -> st.SearchStrategy[str]:
    """Return a strategy for one crontab field, with common and unusual forms."""
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.integers(2, max(high - low, 2)).map(str)
    stepped = st.tuples(st.one_of(st.just("*"), span), step).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    plain = st.one_of(number.map(str), span)
    listed = st.lists(plain, min_size=1, max_size=5).map(",".join)
    return st.one_of(st.just("*"), number.map(str), stepped, listed)


FIELDS = st.tuples(part(0, 59), part(0, 23), part(1, 31), part(1, 12), part(0, 6))


@pytest.mark.long
@MANY
@given(FIELDS)
@example(("0", "22-23,0-2", "*", "*", "1-5"))
@example(("*/7", "*/5", "*/3", "*/5", "*/2"))
@example(("*", "1,3,5,7,9", "31", "1-12", "5-6"))
def test_the_words_of_a_crontab_match_its_runs(fields: tuple[str, str, str, str, str]) -> None:
    minute, hour, day, month, weekday = fields
    try:
        when = crontab(minute, hour, weekday, day, month)
    except ValueError:
        return  # Celery rejects a day that never occurs
    words = in_words(when)
    if words.startswith(("cron ", "never: ")):
        assert words.endswith(f"cron {' '.join(fields)}")
        return
    times = frozenset(at * 60 + minute for at in when.hour for minute in when.minute)
    whole = (times, when.day_of_month, when.month_of_year, when.day_of_week)
    assert understand(words) == Understood(*map(frozenset, whole)), words


@pytest.mark.parametrize("text", QUOTED_CRONTABS)
def test_crontab_that_needs_too_many_words_is_quoted(text: str) -> None:
    assert in_words(cron(text), "Europe/Paris") == f"cron {text}, Europe/Paris"


@pytest.mark.parametrize("seconds", INTERVALS)
def test_interval(seconds: float) -> None:
    assert in_words(schedule(seconds)) == INTERVALS[seconds]


@given(st.timedeltas(timedelta(milliseconds=10), timedelta(days=400)))
def test_the_words_of_an_interval_add_up_to_its_length(every: timedelta) -> None:
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    words = in_words(schedule(every)).removeprefix("every ")
    total = timedelta(0)
    for count, unit in re.findall(r"(?:([0-9.]+) )?\b([a-z])[a-z]*", words):
        whole, _, part = (count or "1").partition(".")
        total += timedelta(seconds=int(whole) * units[unit], microseconds=int(f"{part:0<6}"))
    assert total == every


def test_a_relative_interval_is_quoted() -> None:
    assert in_words(schedule(7200, relative=True), "Europe/Paris") == "every 2 h (relative)"


def test_sun() -> None:
    assert in_words(solar("sunset", 59.33, 18.07), "Europe/Paris") == "solar sunset,59.33,18.07"


def test_once() -> None:
    at = datetime(2026, 1, 1, 9, 0, tzinfo=timezone.utc)
    assert in_words(clocked(at)) == "once, at 2026-01-01 09:00, UTC"
    assert in_words(clocked(at), "Asia/Tokyo") == "once, at 2026-01-01 18:00, Asia/Tokyo"
    odd = clocked(datetime(2026, 1, 1, 9, 0, 5, 250, tzinfo=timezone(timedelta(hours=-5.5))))
    assert in_words(odd) == "once, at 2026-01-01 09:00:05.000250, UTC-05:30"


def test_once_in_the_hour_that_comes_twice_says_which() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=PARIS)
    words = {fold: in_words(clocked(first.replace(fold=fold))) for fold in (0, 1)}
    assert words[0] == "once, at 2026-10-25 02:30 (UTC+02:00), Europe/Paris"
    assert words[1] == "once, at 2026-10-25 02:30 (UTC+01:00), Europe/Paris"


@pytest.mark.parametrize(("fields", "words"), RULES, ids=[words for _, words in RULES])
def test_rule(fields: dict[str, Any], words: str) -> None:
    assert in_words(rrule(dtstart=START, **fields), "Asia/Tokyo") == words + FROM


@pytest.mark.parametrize("fields", QUOTED, ids=str)
def test_rule_that_needs_too_many_words_is_quoted(fields: dict[str, Any]) -> None:
    rule = rrule(dtstart=START, **fields)
    words = in_words(rule)
    assert words.startswith("RRULE:FREQ=") or words == repr(rule)


def test_how_a_rule_ends() -> None:
    counted = rrule("DAILY", START, count=10)
    assert in_words(counted) == (
        "every day at 09:00, from 2026-01-02 09:00, 10 runs in all, America/New_York"
    )
    once = rrule("DAILY", START, count=1)
    assert ", 1 run in all" in in_words(once)
    ended = rrule("DAILY", START, until=datetime(2027, 1, 1, tzinfo=timezone.utc))
    assert "until 2026-12-31 19:00, America/New_York" in in_words(ended)


def test_rule_without_a_start_of_its_own() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert in_words(rrule("DAILY", epoch)) == "every day at 00:00, UTC"
    assert in_words(rrule("DAILY", epoch, interval=2)).endswith(", from 1970-01-01 00:00, UTC")


def test_set_of_rules_and_dates() -> None:
    made = rruleset(
        [rrule("WEEKLY", datetime(2026, 1, 5, 9, tzinfo=PARIS), byweekday=WORKDAYS)],
        [datetime(2026, 2, 7, 10, tzinfo=PARIS)],
        [datetime(2026, 5, day, 9, tzinfo=PARIS) for day in (1, 8, 14, 25)],
    )
    assert in_words(made) == (
        "every weekday at 09:00, from 2026-01-05 09:00, Europe/Paris; "
        "and on 1 date; except on 4 dates"
    )


def test_set_of_dates_only() -> None:
    dates = [datetime(2026, 1, day, tzinfo=timezone.utc) for day in range(1, 6)]
    assert in_words(rruleset(rdates=dates)) == "on 5 dates"
    assert in_words(rruleset(rdates=[*dates[:1], *dates[:1]])) == "on 1 date"


def test_set_of_several_rules() -> None:
    made = from_ical("DTSTART:20260101T080000Z\nRRULE:FREQ=DAILY\nRRULE:FREQ=HOURLY")
    assert in_words(made) == (
        "every day at 08:00, from 2026-01-01 08:00, UTC; and every hour, from 2026-01-01 08:00, UTC"
    )


def test_a_set_with_a_rule_without_words_is_quoted() -> None:
    text = "DTSTART:20260101T080000Z\nRRULE:FREQ=DAILY\nRRULE:FREQ=YEARLY;BYYEARDAY=100"
    assert in_words(from_ical(text)).startswith("RRULE:FREQ=DAILY RRULE:FREQ=YEARLY;BYYEARDAY=100 ")


def some(values: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[Any]:
    """Return a strategy for None or a short list."""
    return st.one_of(st.none(), st.lists(values, min_size=1, max_size=most, unique=True))


ANY_DAY = st.sampled_from([MO, FR, SU, MO(1), FR(-1), WE(2)])
ANY_RULE = st.fixed_dictionaries(
    {
        "freq": st.integers(0, 5),
        "interval": st.integers(1, 3),
        "bymonth": some(st.sampled_from([1, 2, 7])),
        "bymonthday": some(st.sampled_from([1, 2, 15, -1])),
        "byweekday": some(ANY_DAY),
        "byhour": some(st.sampled_from([0, 9, 10])),
        "byminute": some(st.sampled_from([0, 30])),
        "bysetpos": some(st.sampled_from([1, -1]), 1),
        "wkst": st.sampled_from([None, SU]),
        "count": st.sampled_from([None, 2]),
    }
)


def runs(rule: rrule) -> list[datetime]:
    """Return the first eight runs of a rule."""

    def walk() -> Any:
        at: datetime | None = START - timedelta(seconds=1)
        while at is not None and (at := next_run(rule, at)) is not None:
            yield at

    return list(islice(walk(), 8))


@pytest.mark.long
@FEW
@given(st.lists(ANY_RULE, min_size=20, max_size=40))
def test_rules_with_the_same_words_have_the_same_runs(rules: list[dict[str, Any]]) -> None:
    runs_by_text: dict[str, list[datetime]] = {}
    for fields in rules:
        rule = rrule(dtstart=START, **fields)
        words = in_words(rule)
        assert runs_by_text.setdefault(words, runs(rule)) == runs(rule), words


class Tide(BaseSchedule):
    """A schedule class with only an ``is_due`` method."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        raise NotImplementedError


class Moon(crontab):
    """A crontab subclass with its own ``is_due`` method."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        raise NotImplementedError


def test_types_of_the_user_are_not_described_as_their_base_types() -> None:
    assert in_words(Tide()) == "custom schedule Tide"
    moon = Moon("0", "9")
    assert in_words(moon) == repr(moon)
