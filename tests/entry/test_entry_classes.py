"""User-defined entry classes can override methods and properties."""

from __future__ import annotations

import functools
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import to_timestamp
from redbeat.errors import DecodeError
from tests.deployments import PREFIX

from .conftest import PutRaw, ScoreOf, Stored

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


class Owned(Entry):
    """An entry that stores an owner in ``definition`` and the last result in ``meta``."""

    decoded: list[str]

    def __init__(self, *args: Any, owner: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owner = owner

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "owned_by": self.owner}

    @staticmethod
    def decode_definition(definition: str | bytes) -> dict[str, Any]:
        decoded = Entry.decode_definition(definition)
        decoded["owner"] = decoded.pop("owned_by", "nobody")
        return decoded

    @staticmethod
    def decode_meta(meta: str | bytes | None, _app: Any = None) -> dict[str, Any]:
        if not meta:
            return {"last_run_at": None, "result": "none"}
        raw = json.loads(meta)
        decoded = Entry.decode_meta(json.dumps({k: v for k, v in raw.items() if k != "result"}))
        return {**decoded, "result": raw.get("result", "unknown")}


RAW = {"name": "a", "task": "proj.note", "schedule": {"__type__": "interval", "every": 60}}
META = {
    "last_run_at": {"__type__": "datetime", "year": 2026, "month": 3, "day": 2, "hour": 12},
    "total_run_count": 5,
}


def test_definition_and_decode_definition_have_effect(app: Celery, stored: Stored) -> None:
    Owned("a", "proj.note", 60, owner="ann", app=app).save()
    assert json.loads(stored("a")["definition"])["owned_by"] == "ann"
    loaded = Owned.from_key(f"{PREFIX}a", app=app)
    assert loaded.owner == "ann"
    loaded.owner = "bob"
    loaded.save()
    assert Owned.from_key(f"{PREFIX}a", app=app).owner == "bob"


class Undecoded(Entry):
    """An entry class whose ``decode_definition()`` leaves the schedule in JSON."""

    @staticmethod
    def decode_definition(definition: str | bytes) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(definition)
        return decoded


def test_a_schedule_that_the_class_leaves_in_json_is_decoded(app: Celery, put_raw: PutRaw) -> None:
    assert Undecoded.from_key(put_raw(RAW), app=app).schedule == schedule(60)
    wrong = {**RAW, "schedule": {"__type__": "interval", "every": "x"}}
    with pytest.raises(DecodeError, match=r"schedule.every: 'x' is not a number"):
        Undecoded.from_key(put_raw(wrong), app=app)


def test_an_edit_keeps_what_another_process_recorded(
    app: Celery, redis_client: redis.Redis, put_raw: PutRaw
) -> None:
    loaded = Owned.from_key(put_raw(RAW, META), app=app)
    redis_client.hset(
        loaded.key, "meta", json.dumps({**META, "total_run_count": 6, "result": "late"})
    )
    loaded.enabled = False
    loaded.save()
    assert (loaded.total_run_count, vars(loaded)["result"]) == (6, "late")


def refuses(*_texts: Any, **_named: Any) -> Any:
    raise LookupError("no such owner")


def says_nothing(*_texts: Any, **_named: Any) -> Any:
    return None


def is_vague(*_texts: Any, **_named: Any) -> Any:
    return {"last_run_at": "some time ago"}


def test_a_constructor_that_copies_ours_has_our_fields() -> None:
    class Wrapped(Entry):
        @functools.wraps(Entry.__init__)  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            Entry.__init__(self, *args, **kwargs)

    class Own(Entry):
        def __init__(self, *args: Any, jitter: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.height = jitter

    assert Wrapped.foreign_fields == frozenset()
    assert Own.foreign_fields == {"jitter"}


class TestErrors:
    class Strict(Entry):
        decode_definition = staticmethod(refuses)

    class Mute(Entry):
        decode_definition = staticmethod(says_nothing)

    class Forgetful(Entry):
        decode_meta = staticmethod(refuses)

    class Vague(Entry):
        decode_meta = staticmethod(is_vague)

    @pytest.mark.parametrize(
        ("cls", "field", "why"),
        [
            (Strict, "definition", "no such owner"),
            (Mute, "definition", "NoneType"),
            (Forgetful, "meta", "no such owner"),
            (Vague, "meta.last_run_at", "a datetime or null"),
        ],
    )
    def test_an_error_of_an_overridden_method_is_a_decode_error(
        self, app: Celery, put_raw: PutRaw, cls: type[Entry], field: str, why: str
    ) -> None:
        with pytest.raises(DecodeError, match=why) as caught:
            cls.from_key(put_raw(RAW, META), app=app)
        assert caught.value.field == field


class Late(Entry):
    """An entry that is due five minutes later than its schedule."""

    @property
    def due_at(self) -> datetime | None:
        due_at = super().due_at
        return due_at and due_at + timedelta(minutes=5)


class Fixed(Entry):
    """An entry whose score depends only on its run count."""

    @property
    def score(self) -> float:
        return 4102444800.25 + self.total_run_count


class TestScores:
    @pytest.fixture(params=["save", "reschedule", "next"])
    def written(self, request: pytest.FixtureRequest) -> Any:
        """A function that stores the score of an entry with save(), reschedule() or next()."""

        def written(entry: Entry) -> Entry:
            entry.save()
            if request.param == "reschedule":
                entry.reschedule()
            return entry.next() if request.param == "next" else entry

        return written

    def test_an_overridden_due_at_sets_the_score(
        self, app: Celery, score_of: ScoreOf, written: Any
    ) -> None:
        entry = written(Late("a", "proj.note", 3600, app=app))
        last, due_at = entry.last_run_at, entry.due_at
        assert due_at == last + timedelta(minutes=65)
        assert score_of("a") == pytest.approx(to_timestamp(due_at), abs=0.001)

    def test_an_overridden_score_is_stored(
        self, app: Celery, score_of: ScoreOf, written: Any
    ) -> None:
        entry = written(Fixed("a", "proj.note", 3600, app=app))
        assert score_of("a") == entry.score == 4102444800.25 + entry.total_run_count

    def test_an_ended_schedule_is_stored_as_for_every_entry(
        self, app: Celery, score_of: ScoreOf
    ) -> None:
        class Ended(Entry):
            due_at = property(lambda _self: None)

        Ended("a", "proj.note", 3600, app=app).save()
        assert score_of("a") == -1

    def test_a_second_save_of_the_same_writes_the_score_again(
        self, app: Celery, redis_client: redis.Redis, score_of: ScoreOf
    ) -> None:
        Fixed("a", "proj.note", 3600, app=app).save()
        redis_client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": 7})
        Fixed("a", "proj.note", 3600, app=app).save()
        assert score_of("a") == 4102444800.25


def test_a_property_of_the_base_class_cannot_be_set(app: Celery) -> None:
    entry = Entry("a", "t.a", 60, app=app)
    for name in ("policy", "status", "history", "scheduled_at"):
        with pytest.raises(AttributeError, match=name):
            setattr(entry, name, None)
