"""A beat treats a broker that refuses every message as unavailable, and reconnects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, Task

from redbeat.beat.trouble import BROKER_WAIT, ENTRY_WAIT
from redbeat.schedulers import RedBeatScheduler
from tests.deployments import PREFIX
from tests.faults.proxy import Proxy
from tests.samples import long, one_in, rows_in
from tests.servers import RedisServer

from .conftest import Clock, World, lines

AWAY = "The broker is not available"
BACK = "The broker is back"
#: The number of failed attempts in a row. The back-off of a single entry would be much longer.
ATTEMPTS = 8
#: A closed port of this host, which a replica gets as the address of its master.
NOWHERE = ("127.0.0.1", 1)


@pytest.fixture(params=["alone", "window"])
def broker(world: World, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A broker to which the beat sends messages one by one, or several together."""
    world.app.conf.redbeat_publish_window = 1 if request.param == "alone" else 1000
    with RedisServer() as server:
        world.app.conf.broker_url = server.url
        yield server


def client_of(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url, decode_responses=True)


class Refusal:
    """The Redis commands that make a broker refuse messages and accept them again."""

    def __init__(self, reason: str, begin: list[Any], end: list[Any]) -> None:
        self.reason = reason
        self.begin, self.end = begin, end


REFUSALS = {
    "replica": Refusal("read only", ["replicaof", *NOWHERE], ["replicaof", "no", "one"]),
    "memory": Refusal(
        "used memory", ["config", "set", "maxmemory", "1"], ["config", "set", "maxmemory", "0"]
    ),
    "replicas": Refusal(
        "NOREPLICAS",
        ["config", "set", "min-replicas-to-write", "1"],
        ["config", "set", "min-replicas-to-write", "0"],
    ),
    "command": Refusal(
        "permissions",
        ["acl", "setuser", "default", "-lpush"],
        ["acl", "setuser", "default", "+lpush"],
    ),
    "password": Refusal(
        "uthentication",
        ["config", "set", "requirepass", "secret"],
        ["acl", "setuser", "default", "nopass"],
    ),
}


@pytest.mark.parametrize(
    ("broker", "kind"),
    [
        *(("window", kind) for kind in REFUSALS),
        *rows_in(len(REFUSALS), (("alone", kind) for kind in REFUSALS)),
    ],
    indirect=["broker"],
)
def test_a_refusing_broker_is_retried_until_it_accepts_messages(
    world: World, broker: RedisServer, log: pytest.LogCaptureFixture, kind: str
) -> None:
    """Setup: a beat is connected to a broker, which has accepted a message.

    Fault: the broker refuses writes for some time.

    Invariant: every entry is retried within 2 s. The beat logs one line without a traceback. After
    the fault, all messages are sent.
    """
    refusal, names = REFUSALS[kind], ["a", "b", "c"]
    world.put("warm")
    scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
    scheduler.tick()
    admin = client_of(broker)
    admin.execute_command(*refusal.begin)
    if kind == "password":
        admin.client_kill_filter(_type="normal", skipme=True)
    for name in names:
        world.put(name)
    for _ in range(ATTEMPTS):
        assert 0 < scheduler.tick() <= BROKER_WAIT.longest
        assert all((world.score(name) or 0) <= world.now() + BROKER_WAIT.longest for name in names)
        world.make_due(*names)
    assert all(world.run_count(name) == 0 for name in names)
    assert len(lines(log, AWAY)) == 1
    assert refusal.reason in lines(log, AWAY)[0]
    assert f"127.0.0.1:{broker.port}" in lines(log, AWAY)[0]
    assert not any(record.exc_info for record in log.records)
    assert not lines(log, "Could not send")
    admin.execute_command(*refusal.end)
    for _ in range(2):  # during the first tick, the beat finds that the broker has recovered
        world.make_due(*names)
        scheduler.tick()
    assert all(world.run_count(name) for name in names)
    assert admin.llen("celery") == 1 + len(names)
    assert len(lines(log, BACK)) == 1


def test_a_broker_that_refuses_at_most_once_messages_is_not_back_when_it_answers(
    world: World, broker: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    """Setup: a beat is connected to a broker. All entries have at-most-once delivery.

    Fault: the broker accepts connections, but no messages, for some time.

    Invariant: the beat logs the outage once, waits longer after each attempt, and loses at most one
    run in each attempt. After the fault, all other messages are sent.
    """
    refusal, names = REFUSALS["memory"], [f"entry-{number}" for number in range(2 * ATTEMPTS)]
    world.put("warm")
    scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
    scheduler.tick()
    admin = client_of(broker)
    admin.execute_command(*refusal.begin)

    def put(*names: str) -> None:
        for name in names:
            world.put(name)
            world.client.hset(f"{PREFIX}{name}", "policy", '{"delivery": "at_most_once"}')

    put(*names[:ATTEMPTS])
    waits = []
    for name in names[ATTEMPTS:]:
        waits.append(scheduler.tick())
        put(name)
    assert waits == sorted(waits)
    assert waits[-1] == BROKER_WAIT.longest
    assert len(lines(log, AWAY)) == 1
    assert not lines(log, BACK)
    lost = len(lines(log, "is lost"))
    assert lost <= ATTEMPTS
    admin.execute_command(*refusal.end)
    for _ in range(3):
        scheduler.tick()
    assert len(lines(log, "is lost")) == lost
    assert admin.llen("celery") == 1 + len(names) - lost
    assert len(lines(log, BACK)) == 1


def test_a_replica_behind_the_same_address_is_left_for_the_new_master(
    world: World, broker: RedisServer
) -> None:
    """Setup: a beat is connected to the broker through a proxy.

    Fault: the broker becomes a replica, and the proxy now forwards to the new master.

    Invariant: the beat sends the next messages to the new master.
    """
    with RedisServer() as heir, Proxy(broker.port) as address:
        world.app.conf.broker_url = address.url
        world.put("warm")
        scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
        scheduler.tick()
        client_of(broker).replicaof(*NOWHERE)
        address.lead_to(heir.port)
        world.put("a")
        for _ in range(2):
            scheduler.tick()
            world.make_due("a")
        assert world.run_count("a") == 1
        assert client_of(heir).llen("celery") == 1


def test_a_queue_without_write_permission_delays_that_entry_only(
    world: World, broker: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    admin = client_of(broker)
    admin.acl_setuser("default", keys=["celery*", "_kombu*"], reset_keys=True, enabled=True)
    world.put("bad", options={"queue": "forbidden"})
    world.put("good")
    world.scheduler_of(RedBeatScheduler).tick()
    assert world.run_count("good") == 1
    assert world.score("bad") == world.later(ENTRY_WAIT.first)
    assert lines(log, f"Could not send {PREFIX}bad")
    assert not lines(log, AWAY)


def test_no_password_is_in_the_log(
    app: Celery, world: World, log: pytest.LogCaptureFixture
) -> None:
    log.set_level("DEBUG")
    with RedisServer(password="right") as server:
        app.conf.broker_url = f"redis://beat:s3cret@127.0.0.1:{server.port}/0"
        world.put("a")
        scheduler = world.scheduler_of(RedBeatScheduler)
        assert 0 < scheduler.tick() <= BROKER_WAIT.longest
    assert len(lines(log, AWAY)) == 1
    assert "s3cret" not in log.text
    assert "right" not in log.text


@pytest.mark.parametrize("attempts", [[1, 32, 64], long([1, 32, 64, 128])], ids=len)
def test_the_log_line_is_repeated_at_growing_intervals(
    world: World, closed_port: int, log: pytest.LogCaptureFixture, attempts: list[int]
) -> None:
    world.app.conf.broker_url = f"redis://127.0.0.1:{closed_port}/0"
    world.put("a")
    scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
    attempts_logged = []
    for attempt in range(1, attempts[-1] + 6):
        log.clear()
        scheduler.tick()
        world.make_due("a")
        if lines(log, AWAY):
            attempts_logged.append(attempt)
    assert attempts_logged == attempts


OWN_ERRORS = [
    redis.exceptions.ConnectionError("a Redis of their own is away"),
    redis.exceptions.ReadOnlyError("a Redis of their own is a replica"),
    redis.exceptions.ResponseError("ERR unknown command"),
    KeyError("queue"),
]


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("error", one_in(2, OWN_ERRORS), ids=repr)
def test_an_error_in_user_code_delays_that_entry_only(
    world: World, log: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Setup: the ``apply_async`` method of a task uses another Redis server.

    Fault: that server returns an error.

    Invariant: the beat retries only this entry, and keeps its connection to the broker open.
    """

    class Own(Task):
        def apply_async(self, *_args: Any, **_options: Any) -> Any:
            raise error

    def bad() -> None: ...

    world.app.task(name="tasks.bad", base=Own, shared=False)(bad)
    for name in ("a", "bad", "c"):
        world.put(name)
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    assert [world.run_count(name) for name in ("a", "bad", "c")] == [1, 0, 1]
    assert world.score("bad") == world.later(ENTRY_WAIT.first)
    assert "connection" in vars(scheduler)
    assert not lines(log, AWAY)
