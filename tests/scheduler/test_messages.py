"""The content of messages, such as the occurrence for which a message was sent."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.beat import SUMMARY_INTERVAL
from redbeat.config import ensure_conf
from redbeat.entries.decide import task_id_of
from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from tests.deployments import PREFIX

from .conftest import Clock, RecordingScheduler, World, interval_json

NOON = datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))


def send_one(world: World, **definition: Any) -> RecordingScheduler:
    """Return a scheduler that has sent one message for the entry ``a``."""
    world.put("a", interval_json(60), world.ago(90), **definition)
    scheduler = world.scheduler()
    scheduler.tick()
    assert len(scheduler.sent) == 1
    return scheduler


def test_headers_name_the_occurrence(world: World) -> None:
    ran = world.ago(90)
    world.put("a", interval_json(60), ran)
    scheduler = world.scheduler()
    scheduler.tick()
    headers = scheduler.sent[0].options["headers"]
    assert headers["periodic_task_name"] == "a"
    assert headers["scheduled_at"] == (ran + timedelta(seconds=60)).isoformat()
    assert headers["scheduled_at"].endswith("+00:00")
    entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
    assert entry.last_run_at is not None
    assert entry.last_run_at > scheduler.sent[0].scheduled_at == entry.scheduled_at


def test_task_id_is_derived_from_the_occurrence(world: World) -> None:
    message = send_one(world).sent[0]
    instant = message.options["headers"]["scheduled_at"]
    state = world.client.hget(f"{PREFIX}a", "beat_state")
    identity = str(json.loads(state)["id"] if state else world.field("a", "identity"))
    assert message.id == task_id_of(PREFIX, "a", instant, identity)
    assert message.id != task_id_of("other:", "a", instant, identity)
    assert message.id != task_id_of(PREFIX, "b", instant, identity)
    assert message.id != task_id_of(PREFIX, "a", instant)


def test_task_id_of_the_user_wins(world: World) -> None:
    assert send_one(world, options={"task_id": "mine"}).sent[0].id == "mine"


def test_options_and_headers_of_the_user_are_kept(world: World) -> None:
    options = {"queue": "q", "headers": {"x": 1, "periodic_task_name": "theirs"}}
    message = send_one(world, options=options).sent[0]
    assert message.options["queue"] == "q"
    assert message.options["headers"]["x"] == 1
    assert message.options["headers"]["periodic_task_name"] == "theirs"
    assert "scheduled_at" in message.options["headers"]


def test_the_stored_entry_is_never_touched(world: World) -> None:
    options = {"queue": "q", "headers": {"x": 1}}
    world.put("a", interval_json(60), world.ago(90), options=options)
    before = world.client.hget(f"{PREFIX}a", "definition")
    scheduler = world.scheduler()
    scheduler.tick()
    assert world.client.hget(f"{PREFIX}a", "definition") == before
    world.put_meta("a", world.ago(90))
    world.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": 0})
    scheduler.tick()
    first, second = scheduler.sent
    assert first.id != second.id
    assert first.scheduled_at != second.scheduled_at


@pytest.mark.parametrize(
    ("options", "eta", "expires"),
    [
        ({"countdown": 30, "expires": timedelta(minutes=1)}, 30, 60),
        ({"eta": timedelta(minutes=1), "expires": 90}, 60, 90),
        ({"eta": 5.5}, 5.5, None),
        ({"countdown": timedelta(seconds=7)}, 7, None),
        ({"eta": NOON, "expires": NOON}, NOON, NOON),
        ({"eta": NOON.replace(tzinfo=None)}, NOON.replace(tzinfo=timezone.utc), None),
    ],
)
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_times_among_the_options_arrive_at_the_worker(
    world: World, options: dict[str, Any], eta: Any, expires: Any, static: bool
) -> None:
    """Times have the format of Celery's own messages. Seconds count from the dispatch."""
    fields: dict[str, Any] = {"task": "tasks.a", "schedule": 3600, "options": options}
    if static:
        world.app.conf.beat_schedule = {"a": fields}
    else:
        RedBeatSchedulerEntry("a", **fields, app=world.app).save()
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    world.put_meta("a", world.ago(4000))
    world.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": 0})
    scheduler.tick()
    with world.app.connection_for_read() as connection:
        message = connection.SimpleQueue("celery").get(timeout=5)
        message.ack()
    for name, expected in (("eta", eta), ("expires", expires)):
        text = message.headers[name]
        found = text and datetime.fromisoformat(text)
        if isinstance(expected, datetime):
            assert (found if found.tzinfo else found.replace(tzinfo=timezone.utc)) == expected
        elif expected is None:
            assert found is None
        else:
            assert abs(found.timestamp() - time.time() - expected) < 3


def test_a_summary_in_place_of_a_line_per_run(
    app: Celery, world: World, log: pytest.LogCaptureFixture
) -> None:
    app.conf.redbeat_log_dispatch = "summary"
    clock = Clock()
    scheduler = world.scheduler(clock=clock)
    world.put_many(3)
    scheduler.tick()
    RedBeatSchedulerEntry("e0", app=app).trigger()
    scheduler.tick()  # within the same second
    assert [line for line in log.messages if "Sen" in line] == ["Scheduler: Sent 3 runs"]
    clock.advance(SUMMARY_INTERVAL)
    scheduler.tick()
    assert [line for line in log.messages if "Sen" in line][1:] == ["Scheduler: Sent 1 run"]
    world.put("last")
    scheduler.tick()
    scheduler.close()
    assert [line for line in log.messages if "Sen" in line][2:] == ["Scheduler: Sent 1 run"]


def test_a_wrong_value_of_the_setting(app: Celery) -> None:
    app.conf.redbeat_log_dispatch = "none"
    with pytest.raises(ConfigurationError, match=r"redbeat_log_dispatch is 'none'.*each, summary"):
        ensure_conf(app)
