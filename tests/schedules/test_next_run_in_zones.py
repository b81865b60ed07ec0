"""Tests of run times in time zones.

Celery is the reference while the UTC offset is constant. Around clock changes, RedBeat's documented
rules apply.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytz
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil import tz

from redbeat import RedBeatSchedulerEntry
from redbeat.calendar.recurrence import Frequency
from redbeat.calendar.zones import from_timestamp, to_timestamp
from redbeat.entries.decide import Plan, aware, decide
from redbeat.entries.history import History, encode_meta
from redbeat.entries.policy import Policy
from redbeat.entries.state import State, digest_of_meta
from redbeat.schedules import rrule
from redbeat.schedules.next_run import next_run
from tests.calendar.test_cron import FIELDS
from tests.samples import one_in

UTC = timezone.utc
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")
APP = Celery("tests", set_as_current=False, changes={"timezone": "UTC"})

STEADY = ("UTC", "Asia/Kathmandu", "Asia/Tokyo", "America/Phoenix", "Pacific/Marquesas")
SEEDS, EACH = 4, 200


@cache
def app_in(zone: str) -> Celery:
    return Celery("tests", set_as_current=False, changes={"timezone": zone})


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


def random_crontab(chance: random.Random, **kwargs: Any) -> crontab:
    """Return a random crontab that matches at least one date."""
    while True:
        fields = {name: expression(chance, *limits) for name, limits in FIELDS.items()}
        if chance.random() < 0.5:
            fields["day_of_month"] = fields["month_of_year"] = "*"
        try:
            return crontab(**fields, **kwargs)
        except ValueError:
            continue  # recent versions of Celery reject a crontab that matches no date


@pytest.mark.parametrize("seed", range(SEEDS))
def test_crontabs_are_those_of_celery(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(EACH):
        name = chance.choice(STEADY)
        after = datetime(2005, 1, 1, tzinfo=UTC) + chance.random() * 30 * 365 * DAY
        # Celery before 5.7 evaluates a crontab in the zone of these arguments, not in the app's
        # time zone.
        local = after.astimezone(ZoneInfo(name))
        celerys = random_crontab(chance, nowfun=lambda local=local: local, app=app_in(name))
        try:
            expected = after + celerys.remaining_estimate(local)
        except RuntimeError:
            continue  # Celery raises an error if the next date is years away
        celerys.nowfun = None
        assert next_run(celerys, after) == expected, (celerys, name)
        assert next_run(celerys, after, ZoneInfo(name)) == expected, (celerys, name)


#: For each clock change: the time zone, and a day shortly before the change. The clocks change by
#: 15 minutes to one day.
CHANGES = {
    "New York, forward": ("America/New_York", datetime(2026, 3, 7)),
    "New York, back": ("America/New_York", datetime(2026, 10, 31)),
    "London, forward": ("Europe/London", datetime(2026, 3, 28)),
    "London, back": ("Europe/London", datetime(2026, 10, 24)),
    "Lord Howe, forward": ("Australia/Lord_Howe", datetime(2026, 10, 3)),
    "Lord Howe, back": ("Australia/Lord_Howe", datetime(2026, 4, 4)),
    "Chatham, forward": ("Pacific/Chatham", datetime(2026, 9, 26)),
    "Chatham, back": ("Pacific/Chatham", datetime(2026, 4, 4)),
    "Troll, forward": ("Antarctica/Troll", datetime(2026, 3, 28)),
    "Troll, back": ("Antarctica/Troll", datetime(2026, 10, 24)),
    "Kathmandu, forward": ("Asia/Kathmandu", datetime(1985, 12, 31)),
    "Apia, a day left out": ("Pacific/Apia", datetime(2011, 12, 28)),
    "Kwajalein, a day left out": ("Pacific/Kwajalein", datetime(1993, 8, 19)),
    "Casablanca, back": ("Africa/Casablanca", datetime(2024, 3, 9)),
    "Casablanca, forward": ("Africa/Casablanca", datetime(2024, 4, 13)),
    "Havana, back to midnight": ("America/Havana", datetime(2024, 11, 2)),
    "Beirut, forward at midnight": ("Asia/Beirut", datetime(2026, 3, 28)),
}
ALWAYS: tuple[dict[str, object], ...] = (
    {"minute": "*/5"},
    {"minute": "*/7", "hour": "*/2"},
    {"minute": 30},
    {"minute": "0,45", "hour": "0-3"},
    {"minute": 0, "hour": 0},
    {"minute": 30, "hour": 1},
    {"minute": "*/10", "hour": 2},
    {"minute": "*", "hour": "0,2,3"},
    {"minute": 50, "hour": "1-3"},
    {"minute": 0, "hour": 9},
    {"minute": 30, "hour": "0-23"},
    {"minute": 15, "hour": "1-9/2"},
    {"minute": [10, 40], "hour": [1, 2]},
)
BEFORE, AFTER = timedelta(hours=14), timedelta(days=4)


@cache
def minutes_around(change: str) -> tuple[ZoneInfo, list[tuple[datetime, datetime]]]:
    """Return the time zone, and the UTC and wall-clock time of every minute around the change."""
    name, day = CHANGES[change]
    zone, start = ZoneInfo(name), day.replace(tzinfo=ZoneInfo(name)).astimezone(UTC) - DAY
    count = (BEFORE + AFTER + DAY) // MINUTE
    instants = [start + number * MINUTE for number in range(count)]
    return zone, [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in instants]


def real_time(fields: dict[str, object]) -> bool:
    """Return whether a crontab's hour field has a wildcard or a step, or is ``0-23``."""
    written = fields.get("hour", "*")
    return isinstance(written, str) and ("*" in written or "/" in written or written == "0-23")


def matches(rule: crontab, wall: datetime) -> bool:
    return (
        wall.minute in rule.minute
        and wall.hour in rule.hour
        and wall.day in rule.day_of_month
        and wall.month in rule.month_of_year
        and wall.isoweekday() % 7 in rule.day_of_week
    )


def searched(
    rule: crontab, follows: bool, minutes: list[tuple[datetime, datetime]]
) -> Iterator[datetime]:
    """Yield the runs of a rule, found by trying each minute; a fixed time matches once a day."""
    if follows:
        yield from (at for at, wall in minutes if matches(rule, wall))
        return
    first: dict[datetime, datetime] = {}
    for at, wall in minutes:
        first.setdefault(wall, at)
    wall, before = minutes[0][1], minutes[0][0]
    while wall <= minutes[-1][1]:
        exists = wall in first
        before = first[wall] if exists else before
        if matches(rule, wall):
            yield before if exists else before + MINUTE
        wall += MINUTE


@pytest.mark.parametrize("change", one_in(4, CHANGES))
def test_every_change_of_the_clock_against_a_search_of_all_minutes(change: str) -> None:
    chance = random.Random(change)
    zone, minutes = minutes_around(change)
    assert len({at - wall.replace(tzinfo=UTC) for at, wall in minutes}) == 2, "one change"
    drawn = [
        {"minute": expression(chance, 0, 59), "hour": expression(chance, 0, 4)} for _ in range(6)
    ]
    begin, end = minutes[0][0] + DAY, minutes[-1][0] - DAY
    for fields in (*ALWAYS, *drawn):
        rule = crontab(**fields, app=APP)
        expected = sorted(set(searched(rule, real_time(fields), minutes)))
        for _ in range(20):
            after = begin + chance.random() * (end - begin)
            following = expected[bisect_right(expected, after)] if after < expected[-1] else None
            if following is not None:
                assert next_run(rule, after, zone) == following, (fields, after)
        found: list[datetime] = []
        moment = begin
        while (moment := next_run(rule, moment, zone) or end) <= end and len(found) < 200:
            found.append(moment)
        assert found == [at for at in expected if begin < at <= end][: len(found)], fields
        assert found or not [at for at in expected if begin < at <= end], fields


@pytest.mark.parametrize("seconds", one_in(3, [0.01, 0.1, 1, 1 / 3, 0.25, 7, 86400, 90]))
def test_an_interval_does_not_drift(seconds: float) -> None:
    """The history is stored and loaded after each run, as if the beat restarted every time."""
    rule, step = schedule(seconds, app=APP), timedelta(seconds=seconds)
    start = anchor = datetime(2026, 10, 31, 23, 59, 59, 7, tzinfo=UTC)
    for number in range(1, 2_001):
        found = next_run(rule, anchor)
        assert found == start + number * step
        assert from_timestamp(to_timestamp(found)) == found
        late = found + timedelta(microseconds=number * 7919 % 900_000)
        meta = encode_meta(late, number)
        state = State.read(State(meta=digest_of_meta(meta), at=found.timestamp()).text(), meta)
        assert state.at is not None
        anchor = from_timestamp(state.at)
        assert anchor == found


@pytest.mark.parametrize("seconds", [0.01, 0.1, 1 / 3, 60, 86400])
def test_the_phase_is_kept_over_outages(seconds: float) -> None:
    """The test decides at random moments. Each occurrence runs once or is counted as missed."""
    chance, step = random.Random(seconds), timedelta(seconds=seconds)
    rule = schedule(seconds, app=APP)
    start = anchor = now = datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    accounted = 0
    for _ in range(500):
        now += step * 10 ** chance.uniform(-2, 4)
        decision = decide(Plan(rule, UTC), anchor, anchor, now, now)
        assert decision.next_at is not None
        assert now < decision.next_at <= now + step
        if decision.scheduled_at is None:
            continue
        assert decision.scheduled_at <= now < decision.scheduled_at + step
        assert (decision.scheduled_at - start) % step == timedelta(0)
        accounted += decision.missed + 1
        anchor = decision.scheduled_at
    assert accounted == (anchor - start) // step > 500


@pytest.mark.parametrize("coalesce", ["latest", "earliest", "all"])
def test_a_late_first_run_leaves_no_slot_unaccounted(coalesce: str) -> None:
    limit = {"catch_up_limit": 100} if coalesce == "all" else {}
    policy = Policy.of({"coalesce": coalesce, "jitter": 0.01, **limit})
    due, anchor, ran, accounted = NIGHTS[0], None, None, 0
    now = due + timedelta(seconds=35)
    for _ in range(10):
        decision = decide(Plan(schedule(10, app=APP), UTC, policy), ran, anchor, now, due)
        if decision.scheduled_at is None:
            break
        accounted += decision.missed + 1
        anchor, ran = decision.anchor or decision.scheduled_at, now
        now += timedelta(seconds=1)
    assert accounted == 4


@pytest.mark.parametrize("seconds", [1, 90, 1800, 3600, 5400, 86400, 2 * 86400])
@pytest.mark.parametrize("change", one_in(4, [name for name in CHANGES if "left out" not in name]))
def test_a_relative_interval_is_that_of_celery_at_a_change(change: str, seconds: float) -> None:
    chance, (zone, minutes) = random.Random(change), minutes_around(change)
    for _ in range(40):
        after = chance.choice(minutes)[0] + timedelta(seconds=chance.random() * 60)
        celerys = schedule(seconds, True, nowfun=lambda after=after: after, app=APP)
        wait = celerys.remaining_estimate(after.astimezone(zone))
        celerys.nowfun = None
        if wait > timedelta(0):
            assert next_run(celerys, after, zone) == after + wait


KINDS: dict[str, Any] = {
    "zoneinfo": NEW_YORK,
    "pytz": pytz.timezone("America/New_York"),
    "dateutil": tz.gettz("America/New_York"),
}
NIGHTS = (datetime(2026, 3, 8, 4, tzinfo=UTC), datetime(2026, 11, 1, 3, tzinfo=UTC))


def walk(rule: Any, start: datetime, zone: Any = None, count: int = 40) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < count and (following := next_run(rule, start, zone)) is not None:
        found.append(following)
        start = following
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("night", NIGHTS)
@pytest.mark.parametrize("fields", ALWAYS, ids=str)
def test_every_kind_of_zone(fields: dict[str, object], night: datetime, kind: str) -> None:
    rule = crontab(**fields, app=APP)
    assert walk(rule, night, KINDS[kind]) == walk(rule, night, NEW_YORK)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("night", NIGHTS)
@pytest.mark.parametrize("freq", ["DAILY", "HOURLY", "MINUTELY"])
def test_a_rule_that_starts_in_every_kind_of_zone(
    freq: Frequency, night: datetime, kind: str
) -> None:
    start = night - 3 * DAY + timedelta(minutes=30)
    found = walk(rrule(freq, start.astimezone(KINDS[kind])), night)
    assert found == walk(rrule(freq, start.astimezone(NEW_YORK)), night)


FIXED = (timezone(timedelta(hours=-4)), tz.tzoffset(None, -4 * 3600), ZoneInfo("Etc/GMT+4"))


@pytest.mark.parametrize("zone", FIXED, ids=["datetime", "dateutil", "name"])
def test_fixed_offsets(zone: tzinfo) -> None:
    rule = crontab(minute=30, hour=2, app=APP)
    assert next_run(rule, NIGHTS[0], zone) == datetime(2026, 3, 8, 6, 30, tzinfo=UTC)
    start = datetime(2026, 3, 1, 2, 30, tzinfo=zone)
    assert next_run(rrule("DAILY", start), NIGHTS[0]) == datetime(2026, 3, 8, 6, 30, tzinfo=UTC)


FOLDED = datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1)
ANCHORS = {
    "zoneinfo": FOLDED,
    "pytz": KINDS["pytz"].localize(datetime(2026, 11, 1, 1, 30), is_dst=False),
    "dateutil": FOLDED.replace(tzinfo=tz.gettz("America/New_York")),
    "fixed": FOLDED.astimezone(timezone(timedelta(hours=-5))),
    "UTC": FOLDED.astimezone(UTC),
    "naive is UTC": FOLDED.astimezone(UTC).replace(tzinfo=None),
}


@pytest.mark.parametrize("kind", ANCHORS)
def test_the_second_half_past_one_is_not_the_first(kind: str) -> None:
    moment, instant = ANCHORS[kind], datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    assert aware(moment) == instant
    stored = History.read(encode_meta(moment)).last_run_at
    assert stored is not None
    assert aware(stored) == instant
    entry = RedBeatSchedulerEntry("a", "t", schedule(3600), last_run_at=moment, app=APP)
    assert entry.anchor == instant
    assert entry.upcoming(1, after=instant) == [instant + timedelta(hours=1)]
    if moment.tzinfo is not None:
        policy = Policy.of({"start_time": moment, "end_time": moment})
        assert policy.start_time == policy.end_time == instant
        assert next_run(crontab(minute="*/30", app=APP), moment, NEW_YORK) == instant + 30 * MINUTE


@pytest.mark.parametrize("kind", ANCHORS)
def test_a_last_run_that_is_moved_by_the_repeated_hour_is_the_new_anchor(kind: str) -> None:
    """The new last run is an hour later, but has the same wall-clock time in New York."""
    second = ANCHORS[kind]
    first = aware(second) - timedelta(hours=1)
    if second.tzinfo is not None:
        first = first.astimezone(second.tzinfo)
    entry = RedBeatSchedulerEntry("a", "t", schedule(3600), app=APP)
    entry.adopt(History(first, 1, NIGHTS[1]))
    assert entry.anchor == NIGHTS[1]
    entry.last_run_at = first.astimezone(UTC)
    assert entry.anchor == NIGHTS[1], "the same instant"
    entry.last_run_at = second
    assert entry.anchor == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize("kind", [kind for kind in ANCHORS if "naive" not in kind])
@pytest.mark.parametrize("freq", ["YEARLY", "DAILY", "HOURLY", "MINUTELY"])
def test_a_rule_has_no_run_before_its_start(freq: Frequency, kind: str) -> None:
    """The start is the second of two equal wall-clock times; the rule does not run at the first."""
    instant = FOLDED.astimezone(UTC)
    rule = rrule(freq, ANCHORS[kind], count=3)
    assert next_run(rule, instant - DAY) == rule.occurrence_after(rule.start, True) == instant
    assert len(walk(rule, instant - DAY)) == 3
    hour_before = (instant - timedelta(hours=1)).astimezone(ANCHORS[kind].tzinfo)
    assert rule == rrule(freq, ANCHORS[kind], count=3) != rrule(freq, hour_before, count=3)


def test_a_time_of_the_repeated_hour_runs_once_after_the_start() -> None:
    rule = rrule("DAILY", FOLDED, count=5, byhour=[1, 2], byminute=[0, 30, 45])
    night = datetime(2026, 11, 1, tzinfo=UTC)
    assert walk(rule, night) == [
        night + timedelta(hours=hour, minutes=minute)
        for hour, minute in ((6, 30), (6, 45), (7, 0), (7, 30), (7, 45))
    ]


COUNTED: tuple[dict[str, Any], ...] = (
    {"freq": "HOURLY"},
    {"freq": "MINUTELY"},
    {"freq": "MINUTELY", "interval": 7},
    {"freq": "HOURLY", "interval": 5},
    {"freq": "HOURLY", "interval": 30},
    {"freq": "HOURLY", "byminute": [15, 45]},
    {"freq": "HOURLY", "interval": 2, "byminute": [15, 45]},
    {"freq": "MINUTELY", "byminute": [0, 10, 20], "bymonthday": [1, 7, 8, 14]},
    {"freq": "SECONDLY", "interval": 95},
    {"freq": "HOURLY", "bysetpos": -1, "byminute": [5, 35]},
)


@pytest.mark.parametrize("fields", COUNTED, ids=str)
@pytest.mark.parametrize("change", one_in(4, CHANGES))
def test_a_count_limits_the_number_of_runs(change: str, fields: dict[str, Any]) -> None:
    """A count keeps the first ``count`` runs of the rule, also around clock changes."""
    chance, (zone, minutes) = random.Random(f"{change} {fields}"), minutes_around(change)
    start, count = chance.choice(minutes[:4000])[0], chance.choice((1, 2, 17, 40, 200))
    local = start.astimezone(zone)
    endless = walk(rrule(dtstart=local, **fields), start - DAY, count=count + 1)
    assert endless[0] >= start
    assert walk(rrule(dtstart=local, **fields, count=count), start - DAY, count=400) == endless[:-1]


@pytest.mark.parametrize("years", [3, 40])
@pytest.mark.parametrize("zone", ["America/New_York", "Africa/Casablanca", "Europe/London"])
def test_a_count_of_years_is_that_of_hours_in_time(zone: str, years: int) -> None:
    """The clocks change by whole hours in these zones, so the rule runs in every hour of UTC."""
    start = datetime(1990, 5, 1, 12, tzinfo=UTC)
    end = start + years * 365 * DAY
    rule = rrule("HOURLY", start.astimezone(ZoneInfo(zone)), count=years * 365 * 24 + 1)
    assert next_run(rule, end - MINUTE) == end
    assert next_run(rule, end) is None


@pytest.mark.parametrize("minute", [0, 30])
def test_a_rule_that_starts_in_the_repeated_hour_does_not_pause(minute: int) -> None:
    start = NIGHTS[1] + timedelta(hours=2, minutes=minute)
    found = walk(rrule("MINUTELY", start.astimezone(NEW_YORK)), start - DAY, count=200)
    assert found == [start + number * MINUTE for number in range(200)]
