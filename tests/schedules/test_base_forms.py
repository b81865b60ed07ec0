"""Tests of the base form that Redis stores for a schedule subclass, and of its warnings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar

import redbeat.schedulers
from redbeat.codec.types import register_schedule_type
from redbeat.decoder import RedBeatJSONEncoder, encode
from redbeat.schedules import rrule
from redbeat.schedules.next_run import asks_itself, in_zone
from redbeat.schedules.rule import clocked, rruleset

UTC = timezone.utc
START = datetime(2026, 1, 1, 9, tzinfo=UTC)
TOKYO = ZoneInfo("Asia/Tokyo")


def clock() -> datetime:
    return datetime.now(UTC)


class Zoned(crontab):
    """A crontab with its own time zone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tz = TOKYO


class Clock(crontab):
    def now(self) -> datetime:
        return clock()


class Workdays(crontab):
    def is_due(self, _last_run_at: datetime) -> Any:
        return schedstate(False, 60.0)


class Later(schedule):
    """An interval with an additional offset in seconds."""

    def __init__(self, run_every: Any, offset: float = 0, **kwargs: Any) -> None:
        super().__init__(run_every, **kwargs)
        self.offset = offset

    def is_due(self, _last_run_at: datetime) -> Any:
        return schedstate(False, self.offset)


class Rule(rrule):
    def remaining_estimate(self, _last_run_at: datetime | None) -> timedelta:
        return timedelta(0)


class Dusk(solar):
    def remaining_estimate(self, _last_run_at: datetime) -> timedelta:
        return timedelta(0)


class Moment(clocked):
    def is_due(self, _last_run_at: datetime | None) -> schedstate:
        return schedstate(False, None)


class Set(rruleset):
    def is_due(self, _last_run_at: datetime | None) -> schedstate:
        return schedstate(False, None)


class Plain(crontab):
    """A crontab subclass whose additions need not be stored."""

    def __init__(self, text: str) -> None:
        super().__init__(*text.split())

    def explain(self) -> str:
        """Return a description."""
        return "nothing"


CRON = (
    '{"__type__": "crontab", "minute": %s, "hour": %s, '
    '"day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}'
)
RULE = (
    '{"__type__": "rrule", "freq": 3, "interval": 1, "wkst": null, "count": %s, "bysetpos": null, '
    '"bymonth": null, "bymonthday": null, "byyearday": null, "byeaster": null, "byweekno": null, '
    '"byweekday": null, "byhour": null, "byminute": null, "bysecond": null, "dtstart": 1767258000, '
    '"dtstart_tz": 0%s}'
)

#: A schedule, and the JSON of its base type. RedBeat 2.4.2 writes the same JSON if it supports the
#: base type.
STORED: list[tuple[BaseSchedule, str]] = [
    (Zoned(minute=5, hour="9,12"), CRON % ("5", '"9,12"')),
    (Workdays([1, 2]), CRON % ("[1, 2]", '"*"')),
    (crontab(hour=9, nowfun=clock), CRON % ('"*"', "9")),
    (schedule(30, nowfun=clock), '{"__type__": "interval", "every": 30.0, "relative": false}'),
    (Later(timedelta(minutes=2), 7), '{"__type__": "interval", "every": 120.0, "relative": false}'),
    (
        Rule("DAILY", START, count=3, until=START + timedelta(days=9)),
        RULE % ("3", ', "until": 1768035600, "until_tz": 0'),
    ),
    (rrule(3, START, nowfun=clock), RULE % ("null", "")),
    (Dusk("sunset", 1.5, 2), '{"__type__": "solar", "event": "sunset", "lat": 1.5, "lon": 2}'),
]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the pytest fixture that captures log messages."""
    caplog.set_level("WARNING", "celery.beat")
    return caplog


@pytest.mark.parametrize(("kind", "text"), STORED, ids=lambda value: type(value).__name__)
def test_a_subclass_is_stored_in_its_base_form(kind: BaseSchedule, text: str) -> None:
    assert asks_itself(kind)
    assert encode(kind) == text
    assert json.dumps(kind, cls=RedBeatJSONEncoder) == text
    assert json.loads(encode({"schedule": kind}))["schedule"] == json.loads(text)


@pytest.mark.parametrize("kind", [Moment(START), Set(rdates=[START])])
def test_types_that_redbeat_2_does_not_know_have_a_base_form_too(kind: BaseSchedule) -> None:
    plain = clocked(START) if isinstance(kind, clocked) else rruleset(rdates=[START])
    assert encode(kind) == encode(plain)


LOST: list[tuple[type[BaseSchedule], tuple[Any, ...], str]] = [
    (Zoned, (), "its tz"),
    (Clock, (), "its now"),
    (Workdays, (), "its is_due"),
    (Later, (5,), "its is_due"),
    (Rule, (3, START), "its remaining_estimate"),
]


@pytest.mark.parametrize(("cls", "args", "lost"), LOST)
def test_one_warning_for_each_class_says_what_is_lost(
    log: pytest.LogCaptureFixture,
    cls: type[BaseSchedule],
    args: tuple[Any, ...],
    lost: str,
) -> None:
    # The warning appears once per class, so each test creates a new class.
    fresh: Any = type(f"{cls.__name__}OfTheUser", (cls,), {"__module__": "proj.times"})
    for _ in range(3):
        encode({"schedule": fresh(*args)})
    [warning] = log.messages
    assert f"proj.times.{cls.__name__}OfTheUser" in warning
    assert lost in warning
    assert "register_schedule_type()" in warning
    assert "timezone='Area/City'" in warning


def test_a_clock_is_warned_about_with_the_zone_to_use(log: pytest.LogCaptureFixture) -> None:
    class Clocked(crontab):
        """A crontab subclass that adds nothing."""

    encode(Clocked(nowfun=clock))
    encode(Clocked())
    [warning] = log.messages
    assert "without its nowfun" in warning
    assert "timezone='Area/City'" in warning


def test_a_rule_within_a_set_is_warned_about(log: pytest.LogCaptureFixture) -> None:
    class Inner(Rule):
        """A subclass of `Rule` that only this test uses."""

    assert encode(rruleset([Inner(3, START)])) == encode(rruleset([rrule(3, START)]))
    assert "Inner" in log.text


@pytest.mark.parametrize("kind", [Plain("5 9"), crontab(5, 9), schedule(5), rrule(3, START)])
def test_no_warning_if_nothing_is_lost(log: pytest.LogCaptureFixture, kind: BaseSchedule) -> None:
    assert not asks_itself(kind)
    encode({"schedule": kind})
    assert not log.messages


def test_no_warning_about_the_zone_of_the_app_or_the_entry(
    log: pytest.LogCaptureFixture,
) -> None:
    app = Celery("tests", set_as_current=False, changes={"timezone": "Asia/Tokyo"})
    looked_up = crontab(app=app)
    assert str(looked_up.tz) == "Asia/Tokyo"
    for kind in (looked_up, in_zone(crontab(), TOKYO), in_zone(schedule(5, True), TOKYO)):
        assert kind.tz == TOKYO
        assert not asks_itself(kind)
        encode(kind)
    assert not log.messages


def test_an_instance_with_its_own_zone_is_warned_about(log: pytest.LogCaptureFixture) -> None:
    app = Celery("tests", set_as_current=False)
    kind = crontab(hour=9, app=app)
    kind.tz = TOKYO
    assert asks_itself(kind)
    assert in_zone(kind, ZoneInfo("Europe/Paris")) is kind
    relative, absolute = schedule(60, True, app=app), schedule(60, app=app)
    relative.tz = absolute.tz = TOKYO
    assert asks_itself(relative)
    assert not asks_itself(absolute)
    assert not log.messages


class Unmade(solar):
    def __init__(self) -> None:
        """Skip the base class's constructor."""


@pytest.mark.parametrize("kind", [BaseSchedule(), Unmade()])
def test_a_schedule_without_a_stored_form_is_refused(kind: BaseSchedule) -> None:
    with pytest.raises(TypeError, match=r"register_schedule_type"):
        json.dumps(kind, cls=RedBeatJSONEncoder)


def test_a_registered_class_keeps_its_form_and_is_the_base_of_others(
    registry: dict[type, Any], log: pytest.LogCaptureFixture
) -> None:
    class Registered(Later):
        """A registered type that is stored with its offset."""

    class More(Registered):
        def remaining_estimate(self, _last_run_at: datetime) -> timedelta:
            return timedelta(0)

    assert not registry
    register_schedule_type(
        "later",
        Registered,
        lambda kind: {"every": kind.seconds, "offset": kind.offset},
        lambda fields: Registered(fields["every"], fields["offset"]),
    )
    form = {"__type__": "later", "every": 5, "offset": 1}
    assert json.loads(encode(Registered(5, 1))) == form
    assert not log.messages
    assert json.loads(encode(More(5, 1))) == form
    [warning] = log.messages
    assert "plain Registered, without its remaining_estimate" in warning


def test_an_encoder_that_stores_the_clock_itself(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    class Named(RedBeatJSONEncoder):
        def default(self, obj: Any) -> Any:
            """Add the import path of the clock to the JSON form of a crontab."""
            written = super().default(obj)
            if isinstance(obj, crontab) and obj.nowfun:
                return {**written, "__type__": "clocked_crontab", "nowfun": "proj.clock"}
            return written

    class Clocked(crontab):
        """A crontab subclass that only this test uses."""

    monkeypatch.setattr(redbeat.schedulers, "RedBeatJSONEncoder", Named)
    assert json.loads(encode(Clocked(nowfun=clock)))["nowfun"] == "proj.clock"
    assert json.loads(encode(Clocked()))["__type__"] == "crontab"
    assert not log.messages
    encode(schedule(5, nowfun=clock))
