"""Entries are compatible with code for RedBeat 2, and with the JSON of RedBeat 2.4.2."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import fakeredis
import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

import redbeat.schedulers
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder, from_timestamp
from redbeat.entries import edits
from redbeat.entry import store_of
from redbeat.errors import DecodeError
from redbeat.schedules import rrule
from tests.deployments import PREFIX
from tests.entry.conftest import SCHEDULE, OwnedEntry, PutRaw, ScoreOf, Stored
from tests.scheduler.conftest import RecordingScheduler

UTC = timezone.utc
RAN = datetime(2026, 11, 21, 1, 19, 37, 970134, tzinfo=ZoneInfo("UTC"))
META = (
    '{"last_run_at": {"__type__": "datetime", "year": 2026, "month": 11, "day": 21, "hour": 1, '
    '"minute": 19, "second": 37, "microsecond": 970134, "timezone": "UTC"}}'
)
META_AFTER_A_RUN = META[:-1] + ', "total_run_count": 1}'
FLAGS = '"kwargs": {}, "options": {}, "schedule": '
# Arguments of entries, each with the definition that RedBeat 2.4.2 writes for them.
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "interval": (
        {"args": ["x", 2], "schedule": schedule(60)},
        f'"args": ["x", 2], {FLAGS}{{"__type__": "interval", "every": 60.0, "relative": false}}',
    ),
    "relative": (
        {"schedule": schedule(5, relative=True)},
        f'"args": null, {FLAGS}{{"__type__": "interval", "every": 5.0, "relative": true}}',
    ),
    "number": (
        {"schedule": 3600},
        f'"args": null, {FLAGS}{{"__type__": "interval", "every": 3600.0, "relative": false}}',
    ),
    "timedelta": (
        {"schedule": timedelta(days=1)},
        f'"args": null, {FLAGS}{{"__type__": "interval", "every": 86400.0, "relative": false}}',
    ),
    "tuple": (
        {"schedule": schedule(1), "args": ()},
        f'"args": [], {FLAGS}{{"__type__": "interval", "every": 1.0, "relative": false}}',
    ),
    "crontab": (
        {
            "schedule": crontab(minute="5", hour=[1, 2]),
            "kwargs": {"d": datetime(2020, 1, 1, tzinfo=UTC), "n": datetime(2020, 1, 1)},
            "options": {"queue": "q"},
        },
        (
            '"args": null, "kwargs": {"d": {"__type__": "datetime", "year": 2020, "month": 1, '
            '"day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0, "timezone": 0.0}, '
            '"n": {"__type__": "datetime", "year": 2020, "month": 1, "day": 1, "hour": 0, '
            '"minute": 0, "second": 0, "microsecond": 0, "timezone": "UTC"}}, '
            '"options": {"queue": "q"}, "schedule": {"__type__": "crontab", "minute": "5", '
            '"hour": [1, 2], "day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}'
        ),
    ),
}


def text_of(name: str, enabled: str = "true") -> str:
    return f'{{"name": "{name}", "task": "t.a", {TEXTS[name][1]}, "enabled": {enabled}}}'


def entry(app: Celery, name: str, **fields: Any) -> Entry:
    return Entry(name, "t.a", app=app, **{"schedule": 60, **fields})


# -- stored JSON -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_a_definition_is_written_as_redbeat_2_writes_it(
    app: Celery, stored: Stored, name: str
) -> None:
    entry(app, name, last_run_at=RAN, **TEXTS[name][0]).save()
    assert stored(name) == {"definition": text_of(name), "meta": META}


@pytest.mark.parametrize("name", TEXTS)
def test_a_definition_of_redbeat_2_is_loaded_and_stored_unchanged(
    app: Celery, redis_client: redis.Redis, stored: Stored, name: str
) -> None:
    wrote = {"definition": text_of(name, "false"), "meta": META_AFTER_A_RUN}
    redis_client.hset(f"{PREFIX}{name}", mapping=wrote)  # type: ignore[arg-type]
    found = Entry.from_key(f"{PREFIX}{name}", app=app)
    assert (found.name, found.task, found.enabled) == (name, "t.a", False)
    assert (found.last_run_at, found.total_run_count) == (RAN, 1)
    found.save()
    assert stored(name) == wrote


def test_a_run_is_recorded_as_redbeat_2_records_it(app: Celery, stored: Stored) -> None:
    entry(app, "a", last_run_at=RAN - timedelta(seconds=60)).save().next(last_run_at=RAN)
    assert stored("a")["meta"] == META_AFTER_A_RUN


def test_what_redbeat_2_cannot_read_is_stored_outside_of_the_definition(
    app: Celery, stored: Stored
) -> None:
    start = datetime(2030, 1, 1, 9, tzinfo=ZoneInfo("America/New_York"))
    entry(app, "a", schedule=rrule("DAILY", dtstart=start)).save()
    assert json.loads(stored("a")["policy"]) == {"dtstart_zone": "America/New_York"}
    assert "zone" not in stored("a")["definition"]
    assert Entry.from_key(f"{PREFIX}a", app=app).schedule.dtstart.tzinfo.key == "America/New_York"


# -- the constructor ---------------------------------------------------------------------------


def test_all_arguments_may_be_given_by_position(app: Celery) -> None:
    made = Entry("n", "t", 60, [1], {"k": 2}, False, {"queue": "q"}, app=app)
    assert (made.name, made.task, made.schedule) == ("n", "t", schedule(60))
    assert (made.args, made.kwargs, made.enabled, made.options) == (
        [1],
        {"k": 2},
        False,
        {"queue": "q"},
    )


@pytest.mark.parametrize("name", ["a b", "a:b", "a/b", "naïve ☂", '"', "*", "{tag}", " ", "\n"])
def test_a_name_may_contain_anything(app: Celery, name: str) -> None:
    entry(app, name).save()
    found = Entry.from_key(Entry.generate_key(app, name), app=app)
    assert (found.name, found.rank) == (name, 0)
    found.delete()
    with pytest.raises(KeyError):
        Entry.from_key(found.key, app=app)


def test_making_an_entry_needs_no_redis(closed_port: int) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.redbeat_redis_url = f"redis://127.0.0.1:{closed_port}"
    app.conf.redbeat_key_prefix = PREFIX
    made = entry(app, "a", last_run_at=RAN, total_run_count=7, relative=True)
    assert (made.key, made.last_run_at, made.total_run_count) == (f"{PREFIX}a", RAN, 7)
    assert made.schedule.relative is True
    assert made.is_due().is_due is True


def test_an_entry_without_an_app_belongs_to_the_current_one(app: Celery) -> None:
    app.set_current()
    assert Entry("a", "t.a", 60).save().app is app
    assert Entry.from_key(f"{PREFIX}a").app is app
    Entry("a").delete()


@pytest.mark.standalone
def test_the_prefix_is_used_as_it_is(app: Celery, redis_client: redis.Redis) -> None:
    app.conf.redbeat_key_prefix = "x"
    assert entry(app, "a").save().key == "xa" == Entry.generate_key(app, "a")
    assert redis_client.zrange("x:schedule", 0, -1) == ["xa"]


# -- attributes --------------------------------------------------------------------------------


def test_never_run_is_due_now(app: Celery) -> None:
    made = entry(app, "a")
    made.last_run_at = None
    assert made.is_due() == (True, pytest.approx(60, abs=0.1))
    assert made.due_at is not None
    assert abs(made.due_at - datetime.now(UTC)) < timedelta(seconds=5)


def test_overdue_is_due_now(app: Celery) -> None:
    made = entry(app, "a", last_run_at=datetime.now(UTC) - timedelta(days=1))
    assert made.is_due().is_due is True
    assert made.due_at is not None
    assert abs(made.due_at - datetime.now(UTC)) < timedelta(seconds=1)


def test_a_new_entry_is_due_after_one_interval(app: Celery, score_of: ScoreOf) -> None:
    made = entry(app, "a").save()
    assert made.is_due() == (False, pytest.approx(60, abs=1))
    assert made.last_run_at is not None
    due_at = made.last_run_at + timedelta(seconds=60)
    assert (made.due_at, made.score, score_of("a")) == (
        due_at,
        due_at.timestamp(),
        due_at.timestamp(),
    )


def test_an_ended_entry_is_parked_by_a_beat(app: Celery, score_of: ScoreOf) -> None:
    """The host that saves the entry cannot park it, because its clock may be wrong."""
    over = rrule("YEARLY", dtstart=datetime(2000, 1, 1), count=1)
    made = entry(app, "a", schedule=over).save()
    assert made.due_at is None
    assert made.score == -1
    assert score_of("a") == pytest.approx(time.time(), abs=5)
    assert made.is_due() == (False, None)


def test_a_disabled_entry_is_never_due(app: Celery, score_of: ScoreOf) -> None:
    made = entry(app, "a", enabled=False).save()
    assert made.is_due().is_due is False
    assert made.score == score_of("a") == -2


def test_rank_is_the_place_in_due_order(app: Celery) -> None:
    late, early = entry(app, "late", schedule=90).save(), entry(app, "early", schedule=30).save()
    assert (early.rank, late.rank, entry(app, "none").rank) == (0, 1, None)


def test_iterating_an_entry_yields_its_arguments(app: Celery) -> None:
    fields = dict(entry(app, "a", last_run_at=RAN, args=[1]))
    assert fields == {
        "app": app,
        "name": "a",
        "task": "t.a",
        "args": [1],
        "kwargs": {},
        "options": {},
        "schedule": schedule(60),
        "last_run_at": RAN,
        "total_run_count": 0,
        "enabled": True,
    }
    assert Entry(**fields) == entry(app, "a", args=[1])


def test_entries_that_send_the_same_are_equal(app: Celery) -> None:
    assert entry(app, "a", args=[1]) == entry(app, "a", args=[1])
    assert entry(app, "a", args=[1]) != entry(app, "a", args=[2])


def test_update_copies_what_is_sent(app: Celery, stored: Stored) -> None:
    made = entry(app, "tuple")
    made.update(entry(app, "other", **TEXTS["tuple"][0]))
    made.save()
    assert stored("tuple")["definition"] == text_of("tuple")


# -- static methods ----------------------------------------------------------------------------


def test_from_key_of_a_missing_key_is_a_key_error(app: Celery) -> None:
    with pytest.raises(KeyError, match=f"{PREFIX}nope"):
        Entry.from_key(f"{PREFIX}nope", app=app)
    with pytest.raises(KeyError, match=f"{PREFIX}nope"):
        Entry.load_definition(f"{PREFIX}nope", app=app)


def test_load_meta_of_a_missing_key_means_never_run(app: Celery) -> None:
    assert Entry.load_meta(f"{PREFIX}nope", app=app) == {"last_run_at": None}


def test_a_stored_entry_can_be_loaded_in_parts(app: Celery) -> None:
    entry(app, "interval", last_run_at=RAN, **TEXTS["interval"][0]).save()
    assert Entry.load_meta(f"{PREFIX}interval", app=app) == {"last_run_at": RAN}
    expected = {
        "name": "interval",
        "task": "t.a",
        "args": ["x", 2],
        "kwargs": {},
        "options": {},
        "schedule": schedule(60),
        "enabled": True,
    }
    assert Entry.load_definition(f"{PREFIX}interval", app=app) == expected
    assert Entry.load_definition("any", app, text_of("interval")) == expected
    assert Entry.decode_definition(text_of("interval")) == expected
    assert Entry.decode_definition(text_of("interval").encode()) == expected


def test_texts_of_meta_are_decoded(app: Celery) -> None:
    assert Entry.decode_meta(META_AFTER_A_RUN) == {"last_run_at": RAN, "total_run_count": 1}
    assert Entry.decode_meta(META.encode(), app=app) == {"last_run_at": RAN}
    assert Entry.decode_meta(None) == {"last_run_at": None}


def test_keys_may_be_bytes(app: Celery) -> None:
    key: Any = entry(app, "a", last_run_at=RAN).save().key.encode()
    assert Entry.from_key(key, app=app).name == "a"
    assert Entry.load_definition(key, app=app)["name"] == "a"
    assert Entry.load_meta(key, app=app)["last_run_at"] == RAN


# -- common usage ------------------------------------------------------------------------------


def test_load_change_save(app: Celery, stored: Stored) -> None:
    entry(app, "interval", last_run_at=RAN).save()
    found = Entry.from_key(f"{PREFIX}interval", app=app)
    found.args, found.schedule = ["x", 2], schedule(60)
    assert found.save() is found
    assert stored("interval") == {"definition": text_of("interval"), "meta": META}


def test_an_entry_deletes_itself(app: Celery, redis_client: redis.Redis) -> None:
    entry(app, "a").save()
    Entry.from_key(f"{PREFIX}a", app=app).delete()
    assert redis_client.dbsize() == 0
    Entry(name="a", app=app).delete()


@pytest.mark.standalone
def test_list_with_zrange(app: Celery) -> None:
    for name in ("b", "a"):
        entry(app, name).save()
    conf = redbeat.schedulers.ensure_conf(app)
    client: Any = redbeat.schedulers.get_redis(app)
    found = [Entry.from_key(key, app=app) for key in client.zrange(conf.schedule_key, 0, -1)]
    assert [each.name for each in found] == ["b", "a"]
    assert app.redbeat_conf.key_prefix + "a" == found[1].key


def test_scan_and_read_definitions(app: Celery) -> None:
    entry(app, "interval", **TEXTS["interval"][0]).save()
    client = redbeat.schedulers.get_redis(app)
    found = [client.hget(key, "definition") for key in client.scan_iter(f"{PREFIX}*", _type="hash")]
    assert found == [text_of("interval")]


def test_decode_in_a_web_api(app: Celery, stored: Stored) -> None:
    entry(app, "interval", **TEXTS["interval"][0]).save()
    found = json.loads(stored("interval")["definition"], cls=RedBeatJSONDecoder)
    assert (found["schedule"], found["args"]) == (schedule(60), ["x", 2])


def test_a_monitor_reads_scores(app: Celery, score_of: ScoreOf) -> None:
    made = entry(app, "a").save()
    assert from_timestamp(score_of("a")) == made.due_at


def test_raw_writers_see_a_plain_hash(app: Celery, redis_client: redis.Redis) -> None:
    entry(app, "a", last_run_at=RAN).save()
    assert redis_client.type(f"{PREFIX}a") == "hash"
    assert redis_client.type(SCHEDULE) == "zset"
    assert set(redis_client.scan_iter("*")) == {f"{PREFIX}a", SCHEDULE}


def test_fields_of_others_survive_a_save(
    app: Celery, redis_client: redis.Redis, stored: Stored
) -> None:
    entry(app, "a").save()
    redis_client.hset(f"{PREFIX}a", "owner", "team")
    Entry.from_key(f"{PREFIX}a", app=app).save()
    assert stored("a")["owner"] == "team"


# -- codec -------------------------------------------------------------------------------------


class Encoder(RedBeatJSONEncoder):
    """An encoder that supports sets, which the default encoder refuses."""

    def default(self, obj: Any) -> Any:
        return (
            {"__type__": "set", "items": sorted(obj)}
            if isinstance(obj, set)
            else super().default(obj)
        )


class Decoder(RedBeatJSONDecoder):
    """A decoder for the output of `Encoder`."""

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        return set(d["items"]) if d.get("__type__") == "set" else super().dict_to_object(d)


def test_the_codec_may_be_replaced(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redbeat.schedulers, "RedBeatJSONEncoder", Encoder)
    monkeypatch.setattr(redbeat.schedulers, "RedBeatJSONDecoder", Decoder)
    made = entry(app, "a", kwargs={"ids": {1, 2}}, last_run_at=RAN).save()
    found = Entry.from_key(f"{PREFIX}a", app=app)
    assert (found.kwargs, found.schedule, found.last_run_at) == (
        {"ids": {1, 2}},
        made.schedule,
        RAN,
    )


# -- subclasses --------------------------------------------------------------------------------


def test_a_subclass_reads_its_argument_from_raw_json(app: Celery, put_raw: PutRaw) -> None:
    interval = {"__type__": "interval", "every": 60}
    key = put_raw({"name": "a", "task": "t.a", "schedule": interval, "owner": "raw"})
    found = OwnedEntry.from_key(key, app=app)
    assert (found.owner, found.next().owner) == ("raw", "raw")
    assert dict(found)["owner"] == "raw"


def test_the_base_class_refuses_the_argument_of_a_subclass(app: Celery) -> None:
    OwnedEntry("a", "t.a", 60, app=app).save()
    with pytest.raises(
        DecodeError, match=r"^definition\.owner: is an unknown field of RedBeatSched"
    ):
        Entry.from_key(f"{PREFIX}a", app=app)


@pytest.mark.standalone
def test_an_entry_saved_by_an_overridden_save_is_loaded(app: Celery) -> None:
    class RawSaved(OwnedEntry):
        """An entry class whose ``save`` writes the hash, as RedBeat 2 required of subclasses."""

        def save(self: Any) -> Any:
            client = redbeat.schedulers.get_redis(self.app)
            text = json.dumps(self.definition(), cls=redbeat.schedulers.RedBeatJSONEncoder)
            with client.pipeline() as pipeline:
                pipeline.hset(self.key, "definition", text)
                pipeline.zadd(self.app.redbeat_conf.schedule_key, {self.key: self.score})
                pipeline.execute()
            return self

    RawSaved("a", "t.a", 60, owner="me", app=app).save()
    assert RawSaved.from_key(f"{PREFIX}a", app=app).owner == "me"


# -- user-defined clients --------------------------------------------------------------------------


@pytest.fixture(params=["text", "bytes"])
def real(request: pytest.FixtureRequest, redis_url: str, app: Celery) -> Iterator[Any]:
    """A plain Redis client that a user sets as ``app.redbeat_redis``."""
    with redis.Redis.from_url(redis_url, decode_responses=request.param == "text") as client:
        app.redbeat_redis = client
        yield client


@pytest.fixture(params=["text", "bytes", "fake text", "fake bytes"])
def brought(request: pytest.FixtureRequest, redis_url: str, app: Celery) -> Iterator[Any]:
    """A plain Redis client or a fakeredis client that a user sets as ``app.redbeat_redis``."""
    kind, _, answers = request.param.rpartition(" ")
    client: Any = (
        fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=answers == "text")
        if kind
        else redis.Redis.from_url(redis_url, decode_responses=answers == "text")
    )
    app.redbeat_redis = client
    yield client
    client.close()


def test_all_operations_work_with_a_client_of_the_user(app: Celery, brought: Any) -> None:
    made = entry(app, "naïve", args=["☂"], last_run_at=RAN, schedule=86400.0 * 365_000).save()
    client: Any = redbeat.schedulers.get_redis(app)
    assert client is brought
    found = Entry.from_key(brought.zrange(SCHEDULE, 0, -1)[0], app=app)
    assert (found.name, found.args, found.last_run_at) == ("naïve", ["☂"], RAN)
    assert (found.rank, found.save(), found.next().total_run_count) == (0, found, 1)
    entry(app, "naïve", schedule=30).save()
    assert Entry.load_meta(made.key, app=app)["total_run_count"] == 1
    found.reschedule()
    found.last_run_at = None
    found.save()
    assert Entry.from_key(made.key, app=app).last_run_at is None
    made.delete()
    assert brought.keys("*") == []


def test_a_beat_works_with_a_client_of_the_user(app: Celery, real: Any) -> None:
    entry(app, "a", last_run_at=RAN).save()
    entry(app, "broken", last_run_at=RAN).save()
    real.hset(f"{PREFIX}broken", "definition", "{")
    with closing(RecordingScheduler(app)) as scheduler:
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert Entry.load_meta(f"{PREFIX}a", app=app)["total_run_count"] == 1
        assert list(store_of(app).quarantined()) == [f"{PREFIX}broken"]
        edits.make_due(store_of(app), [f"{PREFIX}broken"])
        assert real.hlen(f".{PREFIX}:quarantine") == 0
