"""Saving a value without an exact JSON form raises an error that names the field."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, solar

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import DecodeError, InvalidEntryError
from tests.deployments import PREFIX


class OwnSchedule(BaseSchedule):
    """A schedule that RedBeat cannot store as JSON."""


class Sunset(solar):
    """A solar schedule that can be created without the library ephem."""

    def __init__(self) -> None:
        BaseSchedule.__init__(self)


class NeitherTrueNorFalse:
    """A value without a truth, like an array of numpy."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


LOOP: list[Any] = []
LOOP.append(LOOP)

INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"name": ""}, "name", "not empty"),
    ({"name": None}, "name", "not empty"),
    ({"name": ":schedule"}, "name", "RedBeat uses itself"),
    ({"name": ":statics"}, "name", "RedBeat uses itself"),
    ({"name": ":lock"}, "name", "RedBeat uses itself"),
    ({"name": ":quarantine"}, "name", "RedBeat uses itself"),
    ({"name": "\ud800"}, "name", "UTF-8"),
    ({"task": None}, "task", "name of a task"),
    ({"task": ""}, "task", "name of a task"),
    ({"task": len}, "task", "name of a task"),
    ({"args": "text"}, "args", "a list"),
    ({"args": {1, 2}}, "args", "a list"),
    ({"args": [1, {2}]}, "args[1]", "a list for a set"),
    ({"args": LOOP}, "args", "refers to itself"),
    ({"kwargs": [1]}, "kwargs", "an object"),
    ({"kwargs": {"wait": timedelta(1)}}, "kwargs.wait", "seconds for a timedelta"),
    ({"kwargs": {"n": float("nan")}}, "kwargs.n", "not a JSON number"),
    ({"kwargs": {"a": {1: "x"}}}, "kwargs.a", "use a string"),
    ({"options": "queue"}, "options", "an object"),
    (
        {"options": {"expires": timedelta(-1)}},
        "options.expires",
        "at least 0 and below 1e9 seconds",
    ),
    ({"schedule": None}, "schedule", "a schedule"),
    ({"schedule": timedelta(days=365_251)}, "schedule.every", "1000 years"),
    ({"schedule": OwnSchedule()}, "schedule", "type OwnSchedule"),
    ({"schedule": Sunset()}, "schedule", "register_schedule_type"),
    ({"enabled": NeitherTrueNorFalse()}, "enabled", "true or false"),
    ({"last_run_at": "today"}, "last_run_at", "a datetime"),
    ({"last_run_at": 1234.5}, "last_run_at", "a datetime"),
    ({"total_run_count": "7"}, "total_run_count", "a whole number"),
    ({"total_run_count": -1}, "total_run_count", "a whole number"),
    ({"total_run_count": 1.5}, "total_run_count", "a whole number"),
]


def entry(app: Celery, **fields: Any) -> Entry:
    return Entry(app=app, **{"name": "a", "task": "t.a", "schedule": 60, **fields})


def contents(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter("*")}


@pytest.mark.parametrize(("fields", "field", "why"), INVALID)
def test_the_field_is_named_and_nothing_is_written(
    app: Celery, redis_client: redis.Redis, fields: dict[str, Any], field: str, why: str
) -> None:
    made = entry(app, **fields)
    with pytest.raises(InvalidEntryError, match=why) as caught:
        made.save()
    assert str(caught.value).startswith(field)
    assert (caught.value.field[: len(field)], redis_client.dbsize()) == (field, 0)
    edited = entry(app).save()
    before = contents(redis_client)
    for name in fields:
        setattr(edited, name, getattr(made, name))
    with pytest.raises(InvalidEntryError, match=why):
        edited.save()
    assert contents(redis_client) == before


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 1e300, "60", {"every": 60}, [1]])
def test_a_value_that_is_not_a_schedule_is_refused_at_once(app: Celery, given: Any) -> None:
    with pytest.raises(InvalidEntryError, match=r"^schedule: .* is not a schedule; use seconds"):
        entry(app, schedule=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"__type__": "interval", "every": "60"}, "schedule.every: '60' is not a number"),
        ({"__type__": "interval", "every": {60}}, "schedule.every: a value of type set cannot"),
        ({"__type__": "crontab", "minutes": 5}, "schedule: unknown key 'minutes' in crontab"),
        ({"__type__": "crontab", "minute": 99}, "schedule.minute: Invalid crontab pattern"),
        ({"__type__": "cron"}, "schedule: unknown '__type__' 'cron'; use an object with"),
        ({"__type__": 5}, "schedule: unknown '__type__' 5; use"),
        ({"__type__": "datetime", "year": 2026}, "schedule: unknown '__type__' 'datetime'; use"),
    ],
)
def test_json_that_is_not_a_schedule_is_refused_at_once(
    app: Celery, given: Any, message: str
) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        entry(app, schedule=given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("given", ["60", {"every": 60}, 60])
def test_a_schedule_that_is_set_later_is_checked_by_save(app: Celery, given: Any) -> None:
    made = entry(app)
    made.schedule = given
    with pytest.raises(InvalidEntryError, match=r"^schedule: must be a schedule"):
        made.save()


def test_a_key_that_is_not_an_entry_is_left_alone(app: Celery, redis_client: redis.Redis) -> None:
    redis_client.lpush(f"{PREFIX}a", "somebody else's")
    before = contents(redis_client)
    with pytest.raises(InvalidEntryError, match=f"'{PREFIX}a' is not an entry") as caught:
        entry(app).save()
    assert caught.value.field == "name"
    with pytest.raises(DecodeError, match=f"'{PREFIX}a' is not an entry"):
        Entry.from_key(f"{PREFIX}a", app=app)
    assert contents(redis_client) == before


@pytest.mark.parametrize("name", [":schedule", ":statics", ":lock", ":quarantine", ""])
@pytest.mark.parametrize("verb", ["delete", "reschedule", "next"])
def test_no_operation_changes_an_internal_key_of_redbeat(
    app: Celery, redis_client: redis.Redis, name: str, verb: str
) -> None:
    entry(app).save()
    redis_client.sadd(f"{PREFIX}:statics", "a")
    redis_client.set(f"{PREFIX}:lock", "token")
    redis_client.hset(f".{PREFIX}:quarantine", "k", "v")
    redis_client.set(PREFIX, "x")
    before = contents(redis_client)
    with pytest.raises(InvalidEntryError, match=r"^name: "):
        getattr(entry(app, name=name), verb)()
    assert contents(redis_client) == before


@pytest.mark.parametrize(
    ("lock_key", "names"), [("leader", ("leader", ":lock")), (None, (":lock",))]
)
def test_the_lock_key_is_reserved_and_the_usual_one_in_any_case(
    app: Celery, lock_key: str | None, names: tuple[str, ...]
) -> None:
    app.conf.redbeat_lock_key = lock_key
    for name in names:
        with pytest.raises(InvalidEntryError, match="RedBeat uses itself"):
            entry(app, name=name).save()


def test_the_error_is_a_type_error_and_a_value_error(app: Celery) -> None:
    for kind in (TypeError, ValueError):
        with pytest.raises(kind):
            entry(app, args=[{1}]).save()


def test_a_dict_of_the_user_with_a_type_survives(app: Celery) -> None:
    kwargs = {
        "shape": {"__type__": "circle", "r": 1},
        "like_ours": {"__type__": "interval", "every": 1, "unit": "parsec"},
        "exactly_ours": {"__type__": "datetime", "year": 2020, "month": 1, "day": 1},
    }
    entry(app, kwargs=kwargs).save()
    assert Entry.from_key(f"{PREFIX}a", app=app).kwargs == kwargs


def test_the_message_is_short_however_long_the_value(app: Celery) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        entry(app, args="x" * 10_000).save()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("error", [KeyError("k"), TypeError("t"), RuntimeError("r")])
def test_a_class_that_refuses_a_stored_entry_raises_no_key_error(
    app: Celery, error: Exception
) -> None:
    class RefusingEntry(Entry):
        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            raise error

    entry(app).save()
    with pytest.raises(DecodeError, match="RefusingEntry refuses the arguments"):
        RefusingEntry.from_key(f"{PREFIX}a", app=app)
