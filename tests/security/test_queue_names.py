"""No message is stored under a key of the schedule, wherever its queue is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import entity

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.config import ensure_conf
from redbeat.errors import InvalidEntryError
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.keys import own_keys
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.cli.commands import run_command
from tests.deployments import PREFIX
from tests.scheduler.conftest import World, interval_json
from tests.servers import RedisServer

pytestmark = pytest.mark.standalone

# kombu has no type annotations.
Queue: Any = entity.Queue
Exchange: Any = entity.Exchange

QUARANTINE = f".{PREFIX}:quarantine"
#: Keys of the schedule, and a key that an entry could get.
KEYS = [
    *(f"{PREFIX}:{what}" for what in ("schedule", "statics", "lock", "wakeup")),
    *(f".{PREFIX}:{what}" for what in ("quarantine", "expected", "stats", "turn:beat")),
    f"{PREFIX}nobody",
]
OPTIONS = ("queue", "routing_key", "exchange", "reply_to")
CALLBACKS: list[dict[str, Any]] = [
    {"link": [{"task": "t", "args": [], "kwargs": {}, "options": {"queue": QUARANTINE}}]},
    {"link_error": [{"task": "t", "options": {"routing_key": QUARANTINE}}]},
    {"chain": [{"task": "t", "options": {"queue": QUARANTINE}}]},
    {"chord": {"task": "t", "options": {"queue": QUARANTINE}}},
]
REFUSED = "is a key of the schedule"


@pytest.fixture
def one(world: World, redis_url: str) -> World:
    """A schedule in the database of the broker."""
    world.app.conf.broker_url = redis_url
    return world


def new(app: Celery, **options: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("e", "t", 60, options=options, app=app)


def assert_refused(app: Celery, **options: Any) -> None:
    with pytest.raises(InvalidEntryError, match=REFUSED):
        new(app, **options).save()


def queues(client: Any) -> set[str]:
    return {key for key in client.scan_iter() if client.type(key) == "list"}


def failures(world: World) -> dict[str, str]:
    """Send what is due, with an entry of a good queue; return why other entries fail."""
    world.put("good", options={"queue": "good"})
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    assert queues(world.client) == {"good"}
    assert world.run_count("good") == 1
    records = Schedule(world.app).records()
    return {one.name: one.failing.reason for one in records if one.failing}


# -- saving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
def test_a_save_refuses_the_name_of_a_key(one: World, option: str) -> None:
    for key in KEYS:
        with pytest.raises(InvalidEntryError, match=REFUSED) as caught:
            new(one.app, **{option: key}).save()
        assert caught.value.field == f"options.{option}"
    assert one.dump() == {}


def test_a_save_refuses_the_name_of_a_key_in_a_callback(one: World) -> None:
    for options in CALLBACKS:
        assert_refused(one.app, **options)


def test_other_names_are_saved_and_sent_to(one: World) -> None:
    names = ["celery", "emails", PREFIX, PREFIX.rstrip(":"), f"x{PREFIX}e", "_kombu.binding.x"]
    for number, name in enumerate(names):
        new(one.app, queue=name).save()
        one.put(f"e{number}", options={"queue": name})
    one.scheduler_of(RedBeatScheduler).tick()
    assert queues(one.client) == set(names)


@pytest.mark.parametrize("value", [["a"], {"b": "c"}, 7, True])
def test_a_name_that_is_no_text_is_no_key(one: World, value: Any) -> None:
    new(one.app, routing_key=value).save()
    assert one.field("e", "definition")["options"] == {"routing_key": value}


def test_each_entrance_refuses_the_name_of_a_key(one: World, tmp_path: Path) -> None:
    options = {"queue": QUARANTINE}
    line = {"name": "e", "task": "t", "schedule": interval_json(60), "options": options}
    (tmp_path / "e.jsonl").write_text(json.dumps({"definition": line}))
    (tmp_path / "e.toml").write_text(
        f'managed_by = "me"\n[entries.e]\ntask = "t"\nevery = 60\nqueue = "{QUARANTINE}"'
    )
    for words in (
        ["add", "e", "t", "--every", "60", "--queue", QUARANTINE],
        ["import", str(tmp_path / "e.jsonl")],
        ["plan", str(tmp_path / "e.toml")],
    ):
        ran = run_command(one.app, *words)
        assert ran.code != 0
        assert REFUSED in ran.err + ran.out
    site = create_app(Schedule(one.app), Access()).test_client()
    answer = site.put("/api/entry?name=e", json={"task": "t", "every": 60, "queue": QUARANTINE})
    assert answer.status_code == 422
    with pytest.raises(InvalidEntryError, match=REFUSED):
        Schedule(one.app).apply({"e": {"task": "t", "schedule": 60, "options": options}})
    assert one.dump() == {}


def test_a_static_entry_with_the_name_of_a_key_is_left_out(
    one: World, log: pytest.LogCaptureFixture
) -> None:
    bad = {"task": "t", "schedule": 60, "options": {"queue": QUARANTINE}}
    one.app.conf.beat_schedule = {"bad": bad, "good": {"task": "t", "schedule": 60}}
    one.scheduler_of(RedBeatScheduler)
    assert "good" in Schedule(one.app)
    assert "bad" not in Schedule(one.app)
    assert any("bad" in line and REFUSED in line for line in log.messages)


# -- prefixes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "bad", "good"),
    [
        ({"redbeat_key_prefix": ""}, [":schedule", ".::stats", "mylock"], ["celery", "x:y"]),
        ({"redbeat_key_prefix": "cel"}, ["cel:schedule", ".cel:stats"], ["celery", "celx"]),
        ({"redbeat_key_prefix": ".my"}, [".myx", "-.my:stats"], ["my", "-my", ".m"]),
        ({"redbeat_key_prefix": "my"}, ["my:schedule", "mylock", "mye", ".my:stats"], ["my"]),
        (
            {"redbeat_shards": 2},
            [f"{PREFIX}e", "{redbeat/2/0}:e", ".{redbeat/2/1.2}::stats"],
            ["e"],
        ),
        ({"keyprefix": "a:"}, [], [f"{PREFIX}e", QUARANTINE]),
        ({"keyprefix": "a:", "redbeat_key_prefix": "a:b:"}, ["b:e"], ["e", "a:b:e"]),
        ({"keyprefix": ".", "redbeat_key_prefix": "b:"}, ["b::stats"], ["b:e"]),
        ({"keyprefix": "a:", "redbeat_key_prefix": "a:"}, [":schedule"], ["celery", "e"]),
    ],
)
def test_the_prefixes_of_keys_and_queues_count(
    one: World, settings: dict[str, Any], bad: list[str], good: list[str]
) -> None:
    settings.setdefault("redbeat_key_prefix", PREFIX)
    options = {"global_keyprefix": settings.pop("keyprefix", "")}
    one.app.conf.update(broker_transport_options=options, redbeat_lock_key="mylock", **settings)
    for name in bad:
        assert_refused(one.app, queue=name)
    for name in good:
        own_keys(one.app).check("options", [("queue", name)])


# -- which database --------------------------------------------------------------------------

HERE = "redis://localhost:6399/1"


@pytest.mark.parametrize(
    ("broker", "schedule"),
    [
        (HERE, None),
        (HERE, "redis://127.0.0.1:6399/1"),
        (HERE, "redis://user:secret@LOCALHOST:6399?db=1"),
        ("redis://", "redis://localhost:6379/0"),
        ("redis://other:6399/1;redis://[::1]:6399/1", HERE),
        (["redis://other:6399/1", HERE], HERE),
        ("rediss://h/1?ssl_cert_reqs=none", "rediss://h:6379/1"),
        ("redis+socket:///run/r.sock?virtual_host=2", "unix:///run/r.sock?db=2"),
        ("sentinel://s1/1;sentinel://s2/1", "sentinel://s2:26379/1"),
    ],
    ids=str,
)
def test_urls_of_one_database(app: Celery, broker: Any, schedule: str | None) -> None:
    app.conf.update(broker_url=broker, redbeat_redis_url=schedule)
    app.conf.broker_transport_options = {"master_name": "main"}
    app.conf.redbeat_redis_options = {"service_name": "main"}
    assert_refused(app, queue="redbeat:e")


@pytest.mark.parametrize(
    ("broker", "schedule"),
    [
        (HERE, "redis://localhost:6399/2"),
        (HERE, "redis://localhost:6398/1"),
        (HERE, "redis://other:6399/1"),
        ("sentinel://s1/1", "sentinel://s2/1"),
        ("amqp://", "redis://"),
        ("memory://", "redis://"),
        ("redis+socket:///run/r.sock", "unix:///run/other.sock"),
        (HERE, "redis-cluster://localhost:6399"),
    ],
    ids=str,
)
def test_urls_of_two_databases(app: Celery, broker: str, schedule: str) -> None:
    app.conf.update(broker_url=broker, redbeat_redis_url=schedule)
    own_keys(app).check("options", [("queue", f"{ensure_conf(app).key_prefix}e")])


def test_the_client_of_a_program_decides(one: World, redis_url: str) -> None:
    one.app.conf.redbeat_redis_url = "redis://elsewhere"
    own_keys(one.app).check("options", [("queue", QUARANTINE)])
    one.app.redbeat_redis = redis.Redis.from_url(redis_url, decode_responses=True)
    assert_refused(one.app, queue=QUARANTINE)


# -- sending ---------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("delivery", [None, "at_least_once", "at_most_once"])
def test_a_beat_refuses_stored_options(one: World, delivery: str | None, window: int) -> None:
    one.app.conf.update(redbeat_delivery=delivery, redbeat_publish_window=window)
    stored: dict[str, Any] = {name: {name: QUARANTINE} for name in OPTIONS}
    stored |= {f"callback {number}": options for number, options in enumerate(CALLBACKS)}
    stored["priority"] = {"queue": KEYS[0], "priority": 3}
    for name, options in stored.items():
        one.put(name, options=options)
    failing = failures(one)
    assert failing.keys() == stored.keys()
    assert all(REFUSED in reason for reason in failing.values())
    assert all(one.backs_off(name) for name in stored)


ROUTES: dict[str, dict[str, Any]] = {
    "task_routes": {"task_routes": {"tasks.e": {"queue": QUARANTINE}}},
    "task_routes with a Queue": {
        "task_routes": [
            lambda name, *_, **__: {"queue": Queue(QUARANTINE)} if "e" in name[6] else None
        ]
    },
    "task_routes with a routing key": {
        "task_routes": {"tasks.e": {"exchange": Exchange("x"), "routing_key": QUARANTINE}}
    },
    "task_queues": {
        "task_queues": [
            Queue("good"),
            Queue("mine", Exchange(QUARANTINE, "topic"), routing_key="a"),
        ],
        "task_routes": {"tasks.e": "mine"},
    },
    "task_queues with a topic": {
        "task_queues": [Queue("good"), Queue(QUARANTINE, Exchange("x", "topic"), routing_key="a")],
        "task_routes": {"tasks.e": QUARANTINE},
    },
    "task_default_queue": {"task_default_queue": QUARANTINE},
    "bytes": {"task_routes": {"tasks.e": {"exchange": "x", "routing_key": QUARANTINE.encode()}}},
}


@pytest.mark.parametrize("way", ROUTES)
def test_a_beat_refuses_routes(one: World, way: str) -> None:
    one.app.conf.update(ROUTES[way])
    one.put("e")
    assert REFUSED in failures(one)["e"]


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_a_beat_refuses_the_queue_of_a_task(one: World) -> None:
    @one.app.task(name="tasks.e", queue=QUARANTINE, shared=False)
    def task() -> None:
        """Do nothing."""

    one.put("e")
    assert REFUSED in failures(one)["e"]


def test_a_beat_notices_that_two_addresses_are_one_server(world: World, tmp_path: Path) -> None:
    socket = f"{tmp_path}/r.sock"
    with RedisServer("--unixsocket", socket) as server:
        world.app.conf.update(broker_url=f"redis+socket://{socket}", redbeat_redis_url=server.url)
        with redis.Redis.from_url(server.url, decode_responses=True) as world.client:
            world.put("e", options={"queue": QUARANTINE})
            assert REFUSED in failures(world)["e"]
            assert_refused(world.app, queue=QUARANTINE)


def test_queues_of_another_database_may_have_any_name(one: World) -> None:
    with RedisServer() as server:
        one.app.conf.broker_url = server.url
        new(one.app, queue=QUARANTINE).save()
        one.put("other", options={"queue": QUARANTINE})
        one.scheduler_of(RedBeatScheduler).tick()
        with redis.Redis.from_url(server.url, decode_responses=True) as broker:
            assert queues(broker) == {QUARANTINE}
