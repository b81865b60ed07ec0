"""Tests of which occurrence is due at a given time, under which policy, and of its task id."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry, clocked
from redbeat.entries.decide import Decision, Plan, decide, namespace_of, task_id_of
from redbeat.entries.policy import Policy
from redbeat.schedules import rrule
from tests.deployments import PREFIX

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURLY = (schedule(3600), crontab(minute=30), rrule("HOURLY", dtstart=datetime(2026, 1, 1, 0, 30)))
each_hourly = pytest.mark.parametrize("rule", HOURLY, ids=["interval", "crontab", "rrule"])


def at(hour: float, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 3, day, tzinfo=UTC) + timedelta(hours=hour, minutes=minute)


def decision(rule: Any, last: datetime | None, now: datetime = NOON, **policy: Any) -> Decision:
    """Return the decision on an entry whose last run was on time, at ``last``."""
    runs = policy.pop("runs", 0)
    return decide(Plan(rule, UTC, Policy.of(policy), "key"), last, last, now, now, runs)


@each_hourly
def test_coalesce_latest_runs_the_latest_missed_occurrence(rule: Any) -> None:
    assert decision(rule, at(6.5), coalesce="latest", jitter=0) == Decision(at(11.5), at(12.5), 4)


@each_hourly
def test_earliest_counts_on_from_the_latest(rule: Any) -> None:
    found = decision(rule, at(6.5), coalesce="earliest")
    assert found == Decision(at(7.5), at(12.5), 4, at(11.5))


@each_hourly
def test_coalesce_all_runs_missed_occurrences_in_order(rule: Any) -> None:
    last, ran = at(6.5), []
    while (found := decision(rule, last, coalesce="all", catch_up_limit=10)).due:
        assert found.missed == 0
        last = found.scheduled_at or NOON
        ran.append(last)
    assert ran == [at(7.5), at(8.5), at(9.5), at(10.5), at(11.5)]
    assert found.next_at == at(12.5)


@each_hourly
def test_coalesce_all_is_limited_by_catch_up_limit(rule: Any) -> None:
    found = decision(rule, at(6.5), coalesce="all", catch_up_limit=2)
    assert found == Decision(at(10.5), at(11.5), 3)


@each_hourly
def test_occurrences_that_are_too_late_are_skipped(rule: Any) -> None:
    """Late occurrences are counted as missed once; the next decision starts after the last one."""
    found = decision(rule, at(6.5), misfire_grace_time=60)
    assert found == Decision(None, at(12.5), 5, at(11.5))
    assert decision(rule, found.anchor, misfire_grace_time=60) == Decision(None, at(12.5))


@pytest.mark.parametrize("policy", [{}, {"max_runs": 9}], ids=["default", "policy"])
def test_a_rule_that_never_ran_coalesces_with_and_without_a_policy(policy: dict[str, Any]) -> None:
    """This also applies if the score of the entry equals the start of the rule."""
    rule = rrule("HOURLY", dtstart=at(9))
    found = decide(Plan(rule, UTC, Policy.of(policy)), None, None, NOON, at(9))
    assert found == Decision(NOON, at(13), 3)


@each_hourly
def test_an_occurrence_within_the_grace_time_runs(rule: Any) -> None:
    assert decision(rule, at(10.5), misfire_grace_time=1800).scheduled_at == at(11.5)
    assert decision(rule, at(10.5), misfire_grace_time=1799).scheduled_at is None


@each_hourly
def test_all_occurrences_within_the_grace_time_run(rule: Any) -> None:
    policy: dict[str, Any] = {"coalesce": "all", "catch_up_limit": 100}
    policy["misfire_grace_time"] = 2 * 3600
    assert decision(rule, at(6.5), **policy) == Decision(at(10.5), at(11.5), 3)
    earliest = decision(rule, at(6.5), coalesce="earliest", misfire_grace_time=2 * 3600)
    assert earliest == Decision(at(10.5), at(12.5), 4, at(11.5))


@each_hourly
def test_nothing_before_the_start(rule: Any) -> None:
    assert decision(rule, at(6.5), start_time=at(12.5)) == Decision(None, at(12.5))
    assert decision(rule, at(6.5), start_time=at(11.5)) == Decision(at(11.5), at(12.5))


def test_an_interval_counts_from_its_start() -> None:
    assert decision(schedule(3600), at(6), start_time=at(10.25)).scheduled_at == at(11.25)


@each_hourly
def test_nothing_after_the_end(rule: Any) -> None:
    assert decision(rule, at(6.5), end_time=at(9.5)) == Decision(at(9.5), None, 2)
    assert decision(rule, at(9.5), end_time=at(10.4)) == Decision(None, None)
    assert decision(rule, at(11.5), now=at(11.6), end_time=at(12.5)) == Decision(None, at(12.5))


@each_hourly
def test_never_more_runs_than_the_limit(rule: Any) -> None:
    assert decision(rule, at(10.5), max_runs=3, runs=1) == Decision(at(11.5), at(12.5))
    assert decision(rule, at(10.5), max_runs=3, runs=2) == Decision(at(11.5), None)
    assert decision(rule, at(10.5), max_runs=3, runs=3) == Decision(None, None)


@pytest.mark.parametrize("rule", HOURLY[:2], ids=["interval", "crontab"])
def test_an_entry_that_never_ran_is_due_at_once_within_its_window(rule: Any) -> None:
    assert decision(rule, None, jitter=0.0, max_runs=9).scheduled_at == NOON
    assert decision(rule, None, end_time=at(11)) == Decision(None, None)
    assert decision(rule, None, start_time=at(11)).scheduled_at == NOON
    begins = decision(rule, None, start_time=at(13.5))
    assert begins == Decision(None, at(13.5))


def test_a_rule_that_never_ran_starts_by_itself() -> None:
    rule = rrule("DAILY", dtstart=at(13))
    assert decision(rule, None, max_runs=2) == Decision(None, at(13))
    assert decision(rule, None, start_time=at(14)) == Decision(None, at(13) + timedelta(days=1))


class TestJitter:
    @each_hourly
    def test_jitter_delays_but_never_past_the_next_occurrence(self, rule: Any) -> None:
        plan = Plan(rule, UTC, Policy.of({"jitter": 7200}), "key")
        found = [plan.due_at(at(hour + 0.5)) - at(hour + 0.5) for hour in range(24)]
        assert all(timedelta(0) <= late < HOUR for late in found)
        assert len(set(found)) == 24

    def test_jitter_is_constant_and_differs_between_entries(self) -> None:
        policy = Policy.of({"jitter": 600})
        one, same, other = (Plan(HOURLY[0], UTC, policy, key) for key in ("a", "a", "b"))
        assert one.due_at(NOON) == same.due_at(NOON) != other.due_at(NOON)

    @each_hourly
    def test_jitter_is_spread_evenly(self, rule: Any) -> None:
        policy = Policy.of({"jitter": 1000})
        plans = [Plan(rule, UTC, policy, f"e{number}") for number in range(500)]
        late = sorted((plan.due_at(at(6.5)) - at(6.5)).total_seconds() for plan in plans)
        assert late[0] >= 0
        assert late[-1] < 1000
        assert 420 < late[250] < 580

    @each_hourly
    def test_before_its_jittered_time_the_previous_occurrence_is_the_latest(
        self, rule: Any
    ) -> None:
        found = decision(rule, at(6.5), now=at(11.5), jitter=600)
        assert found.scheduled_at == at(10.5)
        assert found.missed == 3


class TestSpread:
    @each_hourly
    def test_the_offset_is_the_same_for_all_occurrences_of_an_entry(self, rule: Any) -> None:
        plan = Plan(rule, UTC, Policy.of({"spread": 3600}), "key")
        offsets = {plan.due_at(at(hour + 0.5)) - at(hour + 0.5) for hour in range(24)}
        assert len(offsets) == 1
        assert timedelta(0) < offsets.pop() < HOUR

    @each_hourly
    def test_the_offset_never_reaches_the_next_occurrence(self, rule: Any) -> None:
        policy = Policy.of({"spread": 86400, "jitter": 3600})
        plans = [Plan(rule, UTC, policy, f"e{number}") for number in range(100)]
        assert all(timedelta(0) <= plan.due_at(NOON) - NOON < HOUR for plan in plans)

    @pytest.mark.parametrize("name", ["entry-{}", "tenant-{:04}:report", "sync user {}", "{}"])
    def test_ten_thousand_hourly_entries_are_due_evenly_over_the_minutes(self, name: str) -> None:
        policy = Policy.of({"spread": 3600})
        plans = (Plan(HOURLY[1], UTC, policy, name.format(number)) for number in range(10_000))
        minutes = Counter(
            (plan.due_at(at(6.5)) - at(6.5)) // timedelta(minutes=1) for plan in plans
        )
        assert set(minutes) == set(range(60))
        assert max(minutes.values()) / (10_000 / 60) <= 1.2


@each_hourly
@pytest.mark.parametrize("delay", ["jitter", "spread"])
def test_the_nominal_instant_is_without_the_delay(rule: Any, delay: str) -> None:
    policy = {delay: 600}
    up = Plan(rule, UTC, Policy.of(policy), "key").due_at(at(11.5))
    early = up - timedelta(milliseconds=1)
    assert decision(rule, at(10.5), now=early, **policy) == Decision(None, up)
    assert decision(rule, at(10.5), now=up, **policy).scheduled_at == at(11.5)


def test_each_occurrence_runs_once_whatever_the_policy() -> None:
    """The test ticks at random moments, with outages.

    Each occurrence runs at most once and in order.
    """
    rule = schedule(60)
    for policy in ({"jitter": 50}, {"coalesce": "earliest"}, {"misfire_grace_time": 90}):
        anchor: datetime | None = NOON
        ran, given_up, now = [], 0, NOON
        for step in range(400):
            now += timedelta(seconds=(step * 37) % 301)
            found = decide(Plan(rule, UTC, Policy.of(policy), "k"), anchor, anchor, now, now, 0)
            given_up += found.missed
            if found.scheduled_at is not None:
                assert found.scheduled_at <= now
                ran.append(found.scheduled_at)
            anchor = found.anchor or found.scheduled_at or anchor
        assert ran == sorted(set(ran))
        assert anchor is not None
        assert len(ran) + given_up == (anchor - NOON) // timedelta(seconds=60)


def test_jitter_does_not_exceed_the_last_year() -> None:
    last = datetime.max.replace(tzinfo=UTC) - timedelta(seconds=1)
    plan = Plan(clocked(last), UTC, Policy.of({"spread": 60, "jitter": 9000}), "key")
    assert last <= plan.due_at(last) <= datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "anchor", "expected"),
    [
        (schedule(3600), at(11, 30), Decision(None, at(12, 30))),
        (schedule(3600), at(11), Decision(at(12), at(13))),
        (schedule(3600), at(10), Decision(at(12), at(13), 1)),
        (schedule(3600), at(10, 30), Decision(at(11, 30), at(12, 30))),
        (schedule(3600), at(5, 15), Decision(at(11, 15), at(12, 15), 5)),
        (crontab(minute=0), at(11), Decision(at(12), at(13))),
        (crontab(minute=0), at(10), Decision(at(12), at(13), 1)),
        (crontab(minute=0), at(3), Decision(at(12), at(13), 8)),
        (crontab(minute=30), at(11, 30), Decision(None, at(12, 30))),
        (crontab(minute=0, hour=9), at(9, day=1), Decision(at(9), at(9, day=3))),
        (rrule("HOURLY", dtstart=at(0)), at(3), Decision(at(12), at(13), 8)),
        (rrule("HOURLY", dtstart=at(0)), at(10), Decision(at(12), at(13), 1)),
        (rrule("HOURLY", dtstart=at(0), count=4), at(1), Decision(at(3), None, 1)),
        (rrule("HOURLY", dtstart=at(0), count=4), at(3), Decision(None, None)),
    ],
)
def test_missed_occurrences_coalesce_into_the_latest_and_are_counted(
    rule: Any, anchor: datetime, expected: Decision
) -> None:
    assert decide(Plan(rule, UTC), anchor, anchor, NOON, NOON) == expected


def test_an_interval_keeps_the_phase_of_its_first_run() -> None:
    assert decide(Plan(schedule(3600), UTC), None, None, NOON, at(10, 20)).next_at == at(12, 20)


def test_an_entry_with_a_future_score_runs_now() -> None:
    assert decide(Plan(schedule(3600), UTC), None, None, NOON, at(13)).scheduled_at == NOON


def test_a_rule_that_never_ran_starts_with_its_first_occurrence() -> None:
    rule = rrule("DAILY", dtstart=at(12), count=2)
    assert decide(Plan(rule, UTC), None, None, at(11), at(11)) == Decision(None, at(12))
    assert decide(Plan(rule, UTC), None, None, NOON, NOON) == Decision(at(12), at(12, day=3))


class Moody(schedule):
    """A schedule class with its own `is_due()`."""

    def is_due(self, last_run_at: datetime) -> Any:
        return (last_run_at < at(0), self.run_every.total_seconds() or None)


def test_is_due_of_a_class_of_the_user_decides() -> None:
    moody = Moody(60, nowfun=lambda: NOON)
    assert decide(Plan(moody), at(1), at(1), NOON, NOON) == Decision(None, NOON + HOUR / 60)
    assert decide(Plan(moody), None, None, NOON, at(11)) == Decision(at(11), NOON + HOUR / 60)
    assert decide(Plan(Moody(0)), at(1), at(1), NOON, NOON) == Decision(None, None)


@pytest.mark.parametrize("name", ["simple", "mit Leerzeichen", "übung", "a:b/c"])
@pytest.mark.parametrize("number", range(40))
def test_a_task_id_is_the_uuid_5_of_the_occurrence(name: str, number: int) -> None:
    instant = (NOON + number * HOUR).isoformat()
    expected = uuid.uuid5(uuid.UUID(bytes=namespace_of("redbeat:")), f"{instant} {name}")
    assert task_id_of("redbeat:", name, instant) == str(expected)


def test_task_ids_differ_by_prefix_name_and_instant() -> None:
    ids = {
        task_id_of(prefix, name, instant)
        for prefix in ("a:", "b:")
        for name in ("x", "y")
        for instant in ("2026-03-02T12:00:00+00:00", "2026-03-02T13:00:00+00:00")
    }
    assert len(ids) == 8


BERLIN = ZoneInfo("Europe/Berlin")
INSTANT = datetime(2026, 10, 25, 0, 30, 0, 120_000, tzinfo=UTC)


@pytest.fixture
def entry(app: Celery) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("a", "t", 60, app=app)


def id_at(occurrence: str) -> str:
    return task_id_of(PREFIX, "a", occurrence, "")


@pytest.mark.parametrize(
    "same",
    [
        INSTANT.replace(tzinfo=None),
        INSTANT.astimezone(timezone(timedelta(hours=-3))),
        INSTANT.astimezone(BERLIN),
    ],
    ids=["naive", "offset", "zone"],
)
def test_equal_instants_have_equal_ids(entry: RedBeatSchedulerEntry, same: datetime) -> None:
    assert entry.own_task_id(same) == entry.own_task_id(INSTANT)
    assert entry.own_task_id(same) == id_at("2026-10-25T00:30:00.120000+00:00")
    later = same + timedelta(microseconds=1)
    assert entry.own_task_id(later) != entry.own_task_id(INSTANT)


def test_both_hours_that_a_clock_repeats_differ(entry: RedBeatSchedulerEntry) -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    assert entry.own_task_id(first) == id_at("2026-10-25T00:30:00+00:00")
    second = first.replace(fold=1)
    assert entry.own_task_id(second) == id_at("2026-10-25T01:30:00+00:00")
