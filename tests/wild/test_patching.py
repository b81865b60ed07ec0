"""Tests of programs, and of projects' tests, that replace parts of the package."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from unittest import mock

import fakeredis

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from tests.wild.programs import Run, Wild

UNREACHABLE = "redis://127.0.0.1:1/0"


def test_an_entry_uses_a_patched_get_redis(wild: Wild) -> None:
    module = wild.program(redbeat_redis_url=UNREACHABLE).module
    with mock.patch("redbeat.schedulers.get_redis") as get_redis:
        entry = module.RedBeatSchedulerEntry("job", "jobs.run", 60, app=module.app)
        assert entry.save() is entry
        entry.delete()
    assert get_redis.called


def test_loading_uses_a_patched_get_redis(wild: Wild) -> None:
    module = wild.program(redbeat_redis_url=UNREACHABLE).module
    kind, fake = module.RedBeatSchedulerEntry, fakeredis.FakeRedis(decode_responses=True)
    with mock.patch("redbeat.schedulers.get_redis", return_value=fake):
        module.save("job", args=[1])
        assert kind.from_key("redbeat:job", app=module.app).args == [1]
        assert kind.load_definition("redbeat:job", app=module.app)["task"] == "jobs.run"
        assert kind.load_meta("redbeat:job", app=module.app) == {"last_run_at": None}
    assert fake.zrange("redbeat::schedule", 0, -1) == ["redbeat:job"]


def test_patching_get_redis_can_be_undone(wild: Wild) -> None:
    module = wild.program().module
    with mock.patch("redbeat.schedulers.get_redis"):
        module.save("elsewhere")
    module.save("job")
    assert wild.client.zrange("redbeat::schedule", 0, -1) == ["redbeat:job"]


def test_the_methods_of_the_codec_may_be_replaced(wild: Wild) -> None:
    default, restore = RedBeatJSONEncoder.default, RedBeatJSONDecoder.dict_to_object

    def tagged(self: Any, obj: Any) -> Any:
        is_price = isinstance(obj, Decimal)
        return {"__type__": "price", "text": str(obj)} if is_price else default(self, obj)

    def price(self: Any, d: Any) -> Any:
        return Decimal(d["text"]) if d.get("__type__") == "price" else restore(self, d)

    module = wild.program().module
    with (
        mock.patch.object(RedBeatJSONEncoder, "default", tagged),
        mock.patch.object(RedBeatJSONDecoder, "dict_to_object", price),
    ):
        module.save("job", kwargs={"price": Decimal("1.50")})
        loaded = module.RedBeatSchedulerEntry.from_key("redbeat:job", app=module.app)
    assert loaded.kwargs == {"price": Decimal("1.50")}


#: The custom encoder also stores the name of a crontab's clock; the decoder restores the clock.
CODEC = """
from datetime import datetime, timezone

import redbeat.schedulers
from celery.schedules import crontab
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder


def utc():
    return datetime.now(timezone.utc)


CLOCKS = {"utc": utc}


class Encoder(RedBeatJSONEncoder):
    def default(self, obj):
        stored = super().default(obj)
        if isinstance(obj, crontab) and obj.nowfun:
            stored["clock"] = obj.nowfun.__name__
        return stored


class Decoder(RedBeatJSONDecoder):
    def dict_to_object(self, d):
        clock = d.pop("clock", None) if d.get("__type__") == "crontab" else None
        made = super().dict_to_object(d)
        if clock:
            made.nowfun = CLOCKS[clock]
        return made


redbeat.schedulers.RedBeatJSONEncoder = Encoder
redbeat.schedulers.RedBeatJSONDecoder = Decoder


def start():
    save("job", crontab(nowfun=utc), kwargs={"at": datetime(2024, 1, 1, tzinfo=timezone.utc)})


def clock():
    return RedBeatSchedulerEntry.from_key("redbeat:job", app=app).schedule.nowfun
"""


def test_a_codec_that_stores_more_of_a_schedule(wild: Wild, run: Run) -> None:
    program = wild.program(CODEC)
    program.module.start()
    assert wild.definition("job")["schedule"]["clock"] == "utc"
    assert program.module.clock() is program.module.utc
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
    assert wild.definition("job")["schedule"]["clock"] == "utc"


#: A custom encoder and decoder for a type that the package cannot store.
OWN_TYPE = """
from decimal import Decimal

import redbeat.schedulers
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder


class Encoder(RedBeatJSONEncoder):
    def default(self, obj):
        if isinstance(obj, Decimal):
            return {"__type__": "price", "text": str(obj)}
        return super().default(obj)


class Decoder(RedBeatJSONDecoder):
    def dict_to_object(self, d):
        if d.get("__type__") == "price":
            return Decimal(d["text"])
        return super().dict_to_object(d)


redbeat.schedulers.RedBeatJSONEncoder = Encoder
redbeat.schedulers.RedBeatJSONDecoder = Decoder


class Scheduler(RedBeatScheduler):
    def apply_async(self, entry, **kwargs):
        entry.args = [str(value * 2) for value in entry.args]
        return super().apply_async(entry, **kwargs)


def start():
    save("job", args=[Decimal("1.50")])
"""


def test_a_codec_with_a_type_of_the_program(wild: Wild, run: Run) -> None:
    program = wild.program(OWN_TYPE)
    program.module.start()
    assert wild.definition("job")["args"] == [{"__type__": "price", "text": "1.50"}]
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["3.00"]


#: Tests of some projects create schedulers without calling `__init__`.
BARE = """
from redbeat.schedulers import ensure_conf


def bare(**more):
    scheduler = object.__new__(RedBeatScheduler)
    scheduler.app = app
    ensure_conf(app)
    scheduler.lock_key = None
    vars(scheduler).update(more)
    return scheduler


def handle():
    bare().update_from_dict({"job": {"task": "jobs.run", "schedule": 0.5}})
"""


def test_entries_that_a_scheduler_without_init_saves_run(wild: Wild, run: Run) -> None:
    program = wild.program(BARE)
    program.module.handle()
    assert wild.definition("job")["task"] == "jobs.run"
    with run(program) as running:
        running.until(wild.messages)


def test_a_scheduler_without_init_decides(wild: Wild) -> None:
    module = wild.program(BARE).module
    scheduler, entry = module.bare(), module.save("job", 3600)
    with mock.patch.object(module.RedBeatScheduler, "apply_async") as apply_async:
        wait = scheduler.maybe_due(entry, producer=None)
    assert 3590 < wait <= 3600
    apply_async.assert_called_once_with(entry, producer=None)
    assert list(scheduler.schedule) == ["job"]


def test_a_scheduler_without_init_ticks(wild: Wild) -> None:
    module = wild.program(BARE).module
    module.save("job", 3600)
    scheduler = module.bare(Producer=module.app.amqp.Producer)
    assert scheduler.tick() <= scheduler.max_interval
    assert len(wild.messages()) == 1
    scheduler.close()


def test_a_scheduler_without_init_has_defaults(wild: Wild) -> None:
    scheduler = wild.program(BARE).module.bare()
    assert scheduler.lock is None
    assert scheduler.lock_timeout == 1500
    assert scheduler.max_interval == 300
    scheduler.setup_schedule()
    assert scheduler.schedule == {}
    assert "redis ->" in scheduler.info
    scheduler.close()


CONFIGURED = """
from redbeat.schedulers import ensure_conf

ensure_conf(app).schedule = {"job": {"task": "jobs.run", "schedule": 0.5, "args": ["set"]}}
"""


def test_a_schedule_that_is_set_on_the_configuration(wild: Wild, run: Run) -> None:
    program = wild.program(CONFIGURED)
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["set"]
    assert program.app.conf.beat_schedule == program.app.redbeat_conf.schedule
