"""An entry calls the methods of a user-defined schedule object to decide when it is due."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.decide import Plan, decide
from redbeat.schedules import rrule

from .conftest import Stored

UTC = timezone.utc
TOKYO = ZoneInfo("Asia/Tokyo")
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def at(moment: datetime) -> Callable[[], datetime]:
    return lambda: moment


class Answers(schedule):
    """An interval whose ``is_due`` returns or raises the given values in order."""

    def __init__(self, *answers: Any, **kwargs: Any) -> None:
        super().__init__(60, **kwargs)
        self.answers = list(answers)
        self.calls: list[datetime] = []

    def is_due(self, last_run_at: datetime) -> Any:
        self.calls.append(last_run_at)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def entry(app: Celery, when: Any, **fields: Any) -> Entry:
    return Entry("own", "proj.note", when, app=app, **fields)


KINDS: list[Callable[[datetime], BaseSchedule]] = [
    lambda now: crontab("*/10", nowfun=at(now)),
    lambda now: schedule(600, nowfun=at(now)),
    lambda now: rrule("MINUTELY", NOON, interval=10, nowfun=at(now)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_clock_of_the_schedule_decides_as_in_celery(
    app: Celery, kind: Callable[[datetime], Any]
) -> None:
    for minutes in (4, 12):
        now = NOON + timedelta(minutes=minutes)
        made = entry(app, kind(now), last_run_at=NOON)
        assert made.is_due() == kind(now).is_due(NOON)
        assert made.due_at == max(NOON + timedelta(minutes=10), now)
        assert made.score == max(NOON + timedelta(minutes=10), now).timestamp()


def test_a_clock_in_another_zone_is_the_zone_of_its_crontab(app: Celery) -> None:
    """The crontab is due at 09:00 in Tokyo, although the time zone of the app is UTC."""

    def wall() -> datetime:
        return datetime.now(TOKYO).replace(tzinfo=None)

    when = crontab(0, 9, nowfun=wall)
    made = entry(app, when, last_run_at=datetime.now(UTC))
    due_at = made.due_at
    assert due_at is not None
    assert due_at - datetime.now(UTC) <= timedelta(days=1)
    assert round(due_at.timestamp()) % 86400 == 0
    found = [round(instant.timestamp()) for instant in made.upcoming(3)]
    assert [second - round(due_at.timestamp()) for second in found] == [0, 86400, 2 * 86400]


@pytest.mark.parametrize(("every", "first"), [(4, 0), (5, 2), (7, 4)])
def test_a_run_follows_once_although_reading_the_clock_takes_long(
    app: Celery, every: int, first: int
) -> None:
    """Setup: a crontab with a clock without a time zone.

    Fault: the process is interrupted for 20 ms after some reads of this clock.

    Invariant: ``upcoming()`` has each run once.
    """
    reads = itertools.count()

    def wall() -> datetime:
        now = datetime.now(TOKYO).replace(tzinfo=None)
        if next(reads) % every == first:
            time.sleep(0.02)
        return now

    made = entry(app, crontab(0, 9, nowfun=wall), last_run_at=datetime.now(UTC))
    begin, *following = (round(instant.timestamp()) for instant in made.upcoming(4))
    assert [second - begin for second in following] == [86400, 2 * 86400, 3 * 86400]


def test_a_run_that_was_just_made_is_not_due_again() -> None:
    """The clock of the schedule object may differ from the clock of Redis."""
    for ahead in (timedelta(hours=9), timedelta(minutes=-3)):
        when = crontab("0", nowfun=at(NOON + timedelta(seconds=1)))
        now = NOON + timedelta(seconds=1) - ahead
        assert decide(Plan(when), now - timedelta(hours=1), None, now, now).due
        decision = decide(Plan(when), now, None, now, now)
        assert (decision.due, decision.next_at) == (False, now + timedelta(seconds=3599))


@pytest.mark.parametrize(
    ("answer", "due", "wait"),
    [
        ((True, 7.0), True, 7.0),
        ((False, 7), False, 7.0),
        ((True, -5), True, 0.05),
        ((False, -5), False, 0.05),
        ((False, 0), False, 0.05),
        ((False, float("nan")), False, 5.0),
        ((True, float("nan")), True, 5.0),
        ((False, float("-inf")), False, 0.05),
    ],
)
def test_any_answer_of_is_due_gives_a_next_look(answer: Any, due: bool, wait: float) -> None:
    decision = decide(Plan(Answers(answer, nowfun=at(NOON))), NOON, NOON, NOON, NOON)
    assert (decision.due, decision.next_at) == (due, NOON + timedelta(seconds=wait))


def test_the_wait_begins_when_is_due_returns() -> None:
    times = [NOON]

    class Slow(schedule):
        """An interval whose ``is_due`` takes 30 seconds."""

        def is_due(self, _last_run_at: datetime) -> Any:
            times.append(times[-1] + timedelta(seconds=30))
            return False, 10

    plan = Plan(Slow(60, nowfun=lambda: times[-1]))
    decision = decide(plan, NOON, NOON, NOON, NOON)
    assert decision.next_at == NOON + timedelta(seconds=40)


@pytest.mark.parametrize("far", [float("inf"), 1e300, 1e12])
def test_is_due_is_called_again_after_a_limited_time(far: float) -> None:
    decision = decide(Plan(Answers((True, far))), NOON, NOON, NOON, NOON)
    assert decision.next_at is not None
    assert decision.next_at > NOON + timedelta(days=3000)


def test_a_wait_of_none_ends_the_entry(app: Celery) -> None:
    made = entry(app, Answers((False, None)))
    assert (made.due_at, made.score, made.is_due()) == (None, -1, (False, None))


def test_errors_of_is_due_are_raised(app: Celery) -> None:
    made = entry(app, Answers(RuntimeError("no tide table")))
    with pytest.raises(RuntimeError, match="no tide table"):
        made.is_due()


def test_a_class_without_a_clock_is_used_too() -> None:
    class Bare(BaseSchedule):
        def __init__(self) -> None:
            """Skip Celery's constructor, which would set the clock."""

        def is_due(self, _last_run_at: datetime) -> Any:
            return schedstate(False, 3.0)

        def now(self) -> datetime:
            raise LookupError

    assert decide(Plan(Bare()), NOON, NOON, NOON, NOON).next_at == NOON + timedelta(seconds=3)


class TestUpcoming:
    def test_upcoming_runs_come_from_remaining_estimate(self, app: Celery) -> None:
        class Twice(schedule):
            def remaining_estimate(self, last_run_at: datetime) -> timedelta:
                elapsed: timedelta = self.now() - last_run_at
                return timedelta(seconds=120) - elapsed

        made = entry(app, Twice(60, app=app), last_run_at=datetime.now(UTC))
        first, second = made.upcoming(2)
        assert abs(second - first - timedelta(seconds=120)) < timedelta(seconds=1)

    def test_upcoming_runs_end_when_the_time_does_not_advance(self, app: Celery) -> None:
        class Stuck(schedule):
            def remaining_estimate(self, _last_run_at: datetime) -> timedelta:
                wait: timedelta = NOON - self.now()
                return wait

        [instant] = entry(app, Stuck(60, app=app)).upcoming(5, NOON - timedelta(hours=1))
        assert abs(instant - NOON) < timedelta(seconds=1)
        assert entry(app, Stuck(60, app=app)).upcoming(5, NOON + timedelta(hours=1)) == []

    def test_without_remaining_estimate_only_the_next_run_is_known(self, app: Celery) -> None:
        class Tide(BaseSchedule):
            def is_due(self, _last_run_at: datetime) -> Any:
                return schedstate(False, 60.0)

        [instant] = entry(app, Tide(app=app)).upcoming(5)
        assert abs(instant - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=5)


class TestZoneOfAnEntry:
    @pytest.mark.parametrize("kind", [crontab(0, 9), schedule(60, relative=True)])
    def test_the_zone_of_the_schedule_is_that_of_the_entry(self, app: Celery, kind: Any) -> None:
        made = entry(app, kind, timezone="Europe/Berlin").save()
        loaded = Entry.from_key(made.key, app=app)
        for one in (made, loaded):
            assert str(one.schedule.tz) == "Europe/Berlin"
            assert one.schedule == kind
            assert type(one.schedule) is type(kind)
        assert str(entry(app, kind).schedule.tz) == "UTC"
        assert made.texts() == loaded.texts()

    def test_the_zone_of_the_schedule_is_not_stored(self, app: Celery, stored: Stored) -> None:
        entry(app, crontab(0, 9)).save()
        plain = stored("own")
        entry(app, crontab(0, 9), timezone="Europe/Berlin").save()
        zoned = stored("own")
        assert zoned["definition"] == plain["definition"]
        assert json.loads(zoned["policy"]) == {"timezone": "Europe/Berlin"}

    def test_a_custom_clock_is_read_in_the_zone_of_the_schedule(self, app: Celery) -> None:
        when = crontab(0, 9, nowfun=at(NOON))
        made = entry(app, when, timezone="Asia/Tokyo", last_run_at=NOON)
        assert made.due_at == datetime(2026, 3, 3, 0, tzinfo=UTC)
        assert entry(app, when, last_run_at=NOON).due_at == datetime(2026, 3, 3, 9, tzinfo=UTC)

    def test_an_invalid_zone_is_refused_by_save(self, app: Celery) -> None:
        made = entry(app, crontab(0, 9), timezone="Mars/Olympus")
        with pytest.raises(ValueError, match=r"^timezone: "):
            made.save()


def test_a_crontab_of_another_app_runs_in_the_zone_of_its_entry(app: Celery) -> None:
    other = Celery("other", set_as_current=False, changes={"timezone": "Pacific/Chatham"})
    made = entry(app, crontab(0, 9, app=other)).save()
    assert made.due_at is not None
    assert made.due_at.hour == 9
