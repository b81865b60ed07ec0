"""Entries that other programs write with plain Redis commands, as the manual shows."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, SA

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import DecodeError
from redbeat.schedules import rrule
from tests.deployments import PREFIX
from tests.entry.conftest import SCHEDULE, PutRaw, ScoreOf, Stored
from tests.scheduler.conftest import RecordingScheduler

UTC = timezone.utc
EVERY_MINUTE = {"__type__": "interval", "every": 60.0}
START = datetime.fromtimestamp(1_000_000_000, UTC)


def minimal(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "task": "t.a", "schedule": EVERY_MINUTE, **fields}


def test_the_minimal_definition_of_an_entry(app: Celery, put_raw: PutRaw) -> None:
    found = Entry.from_key(put_raw(minimal()), app=app)
    assert (found.name, found.task, found.schedule) == ("a", "t.a", schedule(60))
    assert (found.args, found.kwargs, found.options, found.enabled) == (None, {}, {}, True)
    assert (found.last_run_at, found.total_run_count) == (None, 0)
    assert found.is_due().is_due is True


SCHEDULES: list[tuple[dict[str, Any], Any]] = [
    ({"__type__": "interval", "every": 60}, schedule(60)),
    ({"__type__": "interval", "every": 0.5, "relative": False}, schedule(0.5)),
    ({"__type__": "crontab"}, crontab()),
    ({"__type__": "crontab", "minute": "*/5"}, crontab(minute="*/5")),
    ({"__type__": "crontab", "minute": 0, "hour": 4}, crontab(minute=0, hour=4)),
    ({"__type__": "crontab", "hour": [1, 2], "minute": None}, crontab(hour=[1, 2])),
    ({"__type__": "crontab", "month_of_year": "[1-12]"}, crontab()),
    ({"__type__": "crontab", "day_of_week": "mon-fri"}, crontab(day_of_week="mon-fri")),
    (
        {"__type__": "rrule", "freq": 3, "dtstart": 1_000_000_000},
        rrule("DAILY", dtstart=START),
    ),
    (
        {"__type__": "rrule", "freq": "DAILY", "dtstart": 1_000_000_000, "dtstart_tz": 0},
        rrule("DAILY", dtstart=START),
    ),
    (
        {"__type__": "rrule", "freq": "HOURLY", "dtstart": 1_000_000_000, "until": 2e9},
        rrule("HOURLY", dtstart=START, until=datetime.fromtimestamp(2_000_000_000, UTC)),
    ),
    (
        {
            "__type__": "rrule",
            "freq": "MONTHLY",
            "dtstart": 1_000_000_000,
            "byweekday": [{"__type__": "weekday", "wkday": 4, "n": 1}, 5],
        },
        rrule("MONTHLY", dtstart=START, byweekday=[FR(1), SA]),
    ),
    (
        {
            "__type__": "rrule",
            "freq": 3,
            "dtstart": 1_000_000_000,
            "dtstart_zone": "Europe/Paris",
        },
        rrule("DAILY", dtstart=START.astimezone(ZoneInfo("Europe/Paris"))),
    ),
    ({"__type__": "rrule", "freq": "DAILY"}, rrule("DAILY", dtstart=datetime(1970, 1, 1))),
    (
        {"__type__": "rrule", "freq": 3, "dtstart_zone": "Europe/Paris", "until": 9, "wkst": None},
        rrule(
            "DAILY",
            dtstart=datetime(1970, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
            until=datetime(1970, 1, 1, 0, 0, 9),
        ),
    ),
]


@pytest.mark.parametrize(("written", "meant"), SCHEDULES)
def test_a_schedule_written_by_hand(
    app: Celery, put_raw: PutRaw, written: dict[str, Any], meant: Any
) -> None:
    found = Entry.from_key(put_raw(minimal(schedule=written)), app=app)
    assert found.schedule == meant
    found.save()
    assert Entry.from_key(found.key, app=app).schedule == meant


RAN_AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
DATE = {"__type__": "datetime", "year": 2026, "month": 1, "day": 2, "hour": 3, "minute": 4}
METAS: list[tuple[dict[str, Any], datetime | None, int]] = [
    ({}, None, 0),
    ({"last_run_at": None}, None, 0),
    ({"total_run_count": 3}, None, 3),
    ({"last_run_at": DATE}, RAN_AT, 0),
    ({"last_run_at": {**DATE, "second": 5}}, RAN_AT + timedelta(seconds=5), 0),
    ({"last_run_at": {**DATE, "timezone": "UTC"}, "total_run_count": 7}, RAN_AT, 7),
    ({"last_run_at": {**DATE, "timezone": 3600.0}}, RAN_AT - timedelta(hours=1), 0),
    ({"last_run_at": {**DATE, "timezone": "Europe/Paris"}}, RAN_AT - timedelta(hours=1), 0),
    (
        {"last_run_at": {"__type__": "datetime", "year": 2026, "month": 1, "day": 2}},
        datetime(2026, 1, 2, tzinfo=UTC),
        0,
    ),
]


@pytest.mark.parametrize(("meta", "last_run_at", "count"), METAS)
def test_a_history_written_by_hand(
    app: Celery,
    put_raw: PutRaw,
    stored: Stored,
    meta: dict[str, Any],
    last_run_at: datetime | None,
    count: int,
) -> None:
    found = Entry.from_key(put_raw(minimal(), meta), app=app)
    assert (found.last_run_at, found.total_run_count) == (last_run_at, count)
    found.args = [1]
    found.save()
    assert stored("a")["meta"] == json.dumps(meta)


def test_writing_the_last_run_moves_an_interval(
    app: Celery, put_raw: PutRaw, score_of: ScoreOf
) -> None:
    Entry("a", "t.a", 3600, app=app).save().next()
    finished = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    written = {name: getattr(finished, name) for name in ("year", "month", "day", "hour", "minute")}
    written["second"] = finished.second
    every = {"__type__": "interval", "every": 3600}
    meta = {"last_run_at": {"__type__": "datetime", **written}}
    found = Entry.from_key(put_raw(minimal(schedule=every), meta), app=app)
    assert found.due_at == finished + timedelta(hours=1)
    found.save()
    assert score_of("a") == finished.timestamp() + 3600


@pytest.mark.parametrize("member", [f"{PREFIX}a", "a"])
def test_a_member_may_be_the_key_or_the_name(
    app: Celery, put_raw: PutRaw, redis_client: redis.Redis, member: str
) -> None:
    put_raw(minimal())
    redis_client.delete(SCHEDULE)
    redis_client.zadd(SCHEDULE, {member: 0})
    with closing(RecordingScheduler(app)) as scheduler:
        scheduler.tick()
        assert scheduler.names == ["a"]
    assert redis_client.zrange(SCHEDULE, 0, -1) == [f"{PREFIX}a"]


def test_a_number_as_the_name_and_as_enabled(app: Celery, put_raw: PutRaw) -> None:
    found = Entry.from_key(put_raw(minimal(name=5, enabled=0)), app=app)
    assert (found.name, found.key, found.enabled) == ("5", f"{PREFIX}5", False)
    assert Entry.from_key(put_raw(minimal(enabled=1)), app=app).enabled is True


@pytest.mark.parametrize(
    ("args", "other", "expected"), [(None, None, None), ({}, [], []), ([], {}, [])]
)
def test_what_is_left_out_may_be_null_or_empty(
    app: Celery, put_raw: PutRaw, args: Any, other: Any, expected: Any
) -> None:
    """PHP writes an empty object as ``[]``, and Lua an empty list as ``{}``; RedBeat 2 ran both."""
    found = Entry.from_key(put_raw(minimal(args=args, kwargs=other, options=other)), app=app)
    assert (found.args, found.kwargs, found.options) == (expected, {}, {})


@pytest.mark.parametrize(("relative", "expected"), [(None, False), (0, False), (1, True)])
def test_relative_may_be_null_or_a_number(
    app: Celery, put_raw: PutRaw, relative: Any, expected: bool
) -> None:
    found = Entry.from_key(put_raw(minimal(schedule={**EVERY_MINUTE, "relative": relative})), app)
    assert found.schedule.relative is expected


@pytest.mark.parametrize(("count", "expected"), [("null", 0), ("5.0", 5)])
def test_a_run_count_may_be_null_or_a_whole_number_with_a_fraction(
    app: Celery, redis_client: redis.Redis, put_raw: PutRaw, count: str, expected: int
) -> None:
    """RedBeat 2 ran such entries. A writer whose numbers are all floats may write 5 as 5.0."""
    key = put_raw(minimal())
    redis_client.hset(key, "meta", f'{{"last_run_at": null, "total_run_count": {count}}}')
    found = Entry.from_key(key, app=app)
    assert found.total_run_count == expected
    assert type(found.total_run_count) is int


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"task": None}, "definition.task"),
    ({"schedule": None}, "definition.schedule"),
    ({"schedule": {"__type__": "crontab", "hour": 99}}, "definition.schedule.hour"),
    ({"args": "text"}, "definition.args"),
    ({"args": {"a": 1}}, "definition.args"),
    ({"kwargs": [1]}, "definition.kwargs"),
    ({"options": 1}, "definition.options"),
    ({"owner": "me"}, "definition.owner"),
]


@pytest.mark.parametrize(("fields", "field"), BROKEN)
def test_the_error_names_the_invalid_field(
    app: Celery, put_raw: PutRaw, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        Entry.from_key(put_raw(minimal(**fields)), app=app)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', b"\xff", b'{"name": "\xff"}'])
def test_a_definition_that_is_not_an_object_is_an_error(
    app: Celery, redis_client: redis.Redis, text: str | bytes
) -> None:
    redis_client.hset(f"{PREFIX}a", "definition", text)
    with pytest.raises(DecodeError, match=r"^definition"):
        Entry.from_key(f"{PREFIX}a", app=app)
    with pytest.raises(DecodeError, match=r"^definition"):
        Entry.decode_definition(text)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "meta"),
        ("[]", "meta"),
        ('{"last_run_at": "now"}', "meta.last_run_at"),
        ('{"last_run_at": 5}', "meta.last_run_at"),
        ('{"total_run_count": "5"}', "meta.total_run_count"),
        ('{"total_run_count": true}', "meta.total_run_count"),
        ('{"total_run_count": 5.5}', "meta.total_run_count"),
        ('{"total_run_count": NaN}', "meta.total_run_count"),
        ('{"total_run_count": 1e300}', "meta.total_run_count"),
        (b"\xff", "meta"),
    ],
)
def test_the_error_names_the_invalid_field_of_a_history(
    app: Celery, redis_client: redis.Redis, put_raw: PutRaw, text: str | bytes, field: str
) -> None:
    key = put_raw(minimal())
    redis_client.hset(key, "meta", text)
    with pytest.raises(DecodeError) as caught:
        Entry.from_key(key, app=app)
    assert caught.value.field == field


@pytest.mark.parametrize("policy", ["{", "[]", '{"dtstart_zone": "Moon/Crater"}'])
def test_the_error_names_an_invalid_policy(
    app: Celery, redis_client: redis.Redis, put_raw: PutRaw, policy: str
) -> None:
    daily = {"__type__": "rrule", "freq": "DAILY", "dtstart": 1_000_000_000}
    key = put_raw(minimal(schedule=daily))
    redis_client.hset(key, "policy", policy)
    with pytest.raises(DecodeError):
        Entry.from_key(key, app=app)
