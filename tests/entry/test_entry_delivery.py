"""Tests of the delivery guarantee of an entry, and of how it is stored."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import DecodeError
from redbeat.schedules import rrule
from tests.deployments import PREFIX
from tests.entry.conftest import SCHEDULE, PutRaw, Stored

BOTH = ["at_least_once", "at_most_once"]
WRONG = ["", "exactly_once", "AT_MOST_ONCE", 1, True, ["at_most_once"], {}]
BERLIN = ZoneInfo("Europe/Berlin")
RAW = {"name": "a", "task": "t.a", "schedule": {"__type__": "interval", "every": 60}}
QUARANTINE = f".{PREFIX}:quarantine"


def made(app: Celery, **fields: Any) -> Entry:
    return Entry("a", "t.a", fields.pop("schedule", 60), app=app, **fields)


def load(app: Celery) -> Entry:
    return Entry.from_key(f"{PREFIX}a", app=app)


class TestSaved:
    @pytest.mark.parametrize("delivery", [*BOTH, None])
    def test_the_delivery_is_stored_in_the_policy_and_read_back(
        self, app: Celery, stored: Stored, delivery: str | None
    ) -> None:
        entry = made(app, delivery=delivery).save()
        assert entry.delivery == load(app).delivery == delivery
        policy = json.loads(stored("a").get("policy", "{}"))
        assert policy == ({"delivery": delivery} if delivery else {})

    def test_the_delivery_can_be_changed_and_reset(self, app: Celery, stored: Stored) -> None:
        made(app, delivery="at_most_once").save()
        entry = load(app)
        entry.delivery = "at_least_once"
        entry.save()
        assert load(app).delivery == "at_least_once"
        entry.delivery = None
        entry.save()
        assert "policy" not in stored("a")
        assert load(app).delivery is None

    def test_the_delivery_is_stored_with_the_zones_of_a_rule(
        self, app: Celery, stored: Stored
    ) -> None:
        rule = rrule("DAILY", dtstart=datetime(2030, 1, 1, 9, tzinfo=BERLIN))
        made(app, schedule=rule, delivery="at_most_once").save()
        assert json.loads(stored("a")["policy"]) == {
            "dtstart_zone": "Europe/Berlin",
            "delivery": "at_most_once",
        }
        found = load(app)
        assert found.delivery == "at_most_once"
        assert found.schedule == rule
        assert found.schedule.dtstart.tzinfo == BERLIN


class TestBeatSchedule:
    def tick(self, app: Celery, **entry: Any) -> None:
        app.conf.beat_schedule = {"a": {"task": "t.a", "schedule": 3600, **entry}}
        scheduler = RedBeatScheduler(app)
        scheduler.tick()
        scheduler.close()

    def test_delivery_is_a_key_of_beat_schedule(self, app: Celery, stored: Stored) -> None:
        self.tick(app, delivery="at_most_once")
        assert json.loads(stored("a")["policy"]) == {"delivery": "at_most_once"}
        assert "delivery" not in json.loads(stored("a")["definition"])
        assert load(app).delivery == "at_most_once"

    def test_a_wrong_value_is_reported_and_the_others_are_written(
        self, app: Celery, stored: Stored, caplog: pytest.LogCaptureFixture
    ) -> None:
        app.conf.beat_schedule = {
            "a": {"task": "t.a", "schedule": 3600, "delivery": "twice"},
            "b": {"task": "t.b", "schedule": 3600},
        }
        scheduler = RedBeatScheduler(app)
        scheduler.tick()
        scheduler.close()
        assert stored("a") == {}
        assert stored("b")
        (line,) = [r.getMessage() for r in caplog.records if "delivery" in r.getMessage()]
        assert "'twice'" in line
        assert "at_most_once" in line


class TestRaw:
    def test_a_save_moves_the_delivery_to_the_policy(
        self, app: Celery, put_raw: PutRaw, stored: Stored
    ) -> None:
        put_raw({**RAW, "delivery": "at_most_once"})
        assert load(app).delivery == "at_most_once"
        load(app).save()
        assert "delivery" not in json.loads(stored("a")["definition"])
        assert json.loads(stored("a")["policy"]) == {"delivery": "at_most_once"}

    def test_the_delivery_in_the_policy_wins(
        self, app: Celery, put_raw: PutRaw, redis_client: redis.Redis
    ) -> None:
        key = put_raw({**RAW, "delivery": "at_most_once"})
        redis_client.hset(key, "policy", '{"delivery": "at_least_once"}')
        assert load(app).delivery == "at_least_once"

    @pytest.mark.parametrize("value", WRONG, ids=repr)
    @pytest.mark.parametrize("where", ["definition", "policy"])
    def test_a_wrong_value_is_quarantined(
        self, app: Celery, put_raw: PutRaw, redis_client: redis.Redis, where: str, value: Any
    ) -> None:
        key = put_raw({**RAW, "delivery": value} if where == "definition" else RAW)
        if where == "policy":
            redis_client.hset(key, "policy", json.dumps({"delivery": value}))
        with pytest.raises(DecodeError, match=rf"^{where}\.delivery: must be one of"):
            load(app)
        scheduler = RedBeatScheduler(app)
        scheduler.tick()
        note: Any = redis_client.hget(QUARANTINE, key)
        assert f"{where}.delivery" in json.loads(note)["reason"]
        score: Any = redis_client.zscore(SCHEDULE, key)
        assert score < 0
        scheduler.close()
