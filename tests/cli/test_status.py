"""Tests of `celery redbeat status`, as text and as a probe, and of errors of all commands."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.platforms import EX_UNAVAILABLE

from redbeat import Schedule
from redbeat.beat.lock import new_token
from redbeat.cli.command import Exit
from redbeat.connection.retrying import RetryingConnection
from redbeat.entries.state import end_line
from redbeat.storage.keys import Layout
from redbeat.storage.store import store_of
from redbeat.storage.words import END
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.servers import RedisServer
from tests.waiting import wait_until

TOKEN = "redbeat3:web-1:4711:1700000000:" + "0" * 32


def test_status_without_a_leader(run: Run) -> None:
    ran = run("status")
    assert ran.code == Exit.UNHEALTHY
    assert "PROBLEM: no beat leads" in ran.lines
    (found,) = run("status", "--json").json
    assert (found["healthy"], found["problems"]) == (False, ["no beat leads"])
    assert (found["leader"], found["beats"], found["most_late"]) == (None, [], None)


def test_a_leader_and_its_entries(run: Run, make: Make, redis_client: redis.Redis) -> None:
    redis_client.set("redbeat::lock", TOKEN)
    make("a")
    make("b")
    make("off", enabled=False)
    redis_client.sadd("redbeat::statics", "a")
    ran = run("status")
    assert ran.code == 0
    assert "Leader    web-1, pid 4711, since 2023-11-14 22:13:20 UTC" in ran.lines
    assert "Entries   2 scheduled, 1 paused; 1 static" in ran.lines
    assert "Due now   0" in ran.lines
    (found,) = run("status", "--json").json
    leader = {
        "token": TOKEN,
        "host": "web-1",
        "pid": 4711,
        "since": "2023-11-14T22:13:20+00:00",
        "last_seen": None,
        "leads_since": None,
    }
    assert (found["healthy"], found["leader"], found["beats"]) == (True, leader, [leader])
    entries = {"scheduled": 2, "failing": 0, "paused": 1, "finished": 0, "quarantined": 0}
    assert (found["total"], found["statics"], found["entries"]) == (3, 1, entries)
    server: Any = redis_client.info("server")
    assert found["redis"]["version"] == server.get("valkey_version", server["redis_version"])
    assert found["redis"]["mode"] in ("standalone", "cluster")
    assert found["versions"]["redbeat"] == "3.0.0.dev0"


def test_since_when_the_leader_leads(run: Run, redis_client: redis.Redis) -> None:
    redis_client.set("redbeat::lock", TOKEN)
    for token, since in ((TOKEN, "2023-11-14 22:30:00"), ("another", "2023-11-14 22:13:20")):
        redis_client.hset(".redbeat::stats", "leader", f"1700001000.25 {token}")
        assert f"Leader    web-1, pid 4711, since {since} UTC" in run("status").lines
    redis_client.hset(".redbeat::stats", "leader", f"1700001000.25 {TOKEN}")
    (found,) = run("status", "--json").json
    assert found["leader"]["leads_since"] == "2023-11-14T22:30:00.250000+00:00"


@pytest.mark.parametrize("since", ["a presence", "a tick"])
def test_a_leader_that_is_dead(
    run: Run, app: Celery, redis_client: redis.Redis, since: str
) -> None:
    """A killed leader holds the lock for a long time, although it does nothing."""
    redis_client.set("redbeat::lock", TOKEN, ex=1500)
    now = int(redis_client.time()[0])

    def last_seen(at: int) -> None:
        if since == "a presence":
            redis_client.zadd(".redbeat::beats", {f"{TOKEN} lock": at})
        else:
            redis_client.hset(".redbeat::stats", "last_tick", str(at))

    last_seen(now - 10)
    assert run("status").code == 0
    last_seen(now - 40)
    ran = run("status", "--json")
    assert ran.code == Exit.UNHEALTHY
    (problem,) = ran.json[0]["problems"]
    dead = r"the leader \(web-1, pid 4711\) has not reached Redis for 4\d.* s"
    assert re.fullmatch(dead, problem)
    assert re.fullmatch(dead, Schedule(app).status().problem)
    for command in ("status", "doctor"):
        assert run(command).out.count("start a beat") == 1


def test_a_leader_that_starts_has_not_ticked_yet(run: Run, redis_client: redis.Redis) -> None:
    redis_client.hset(".redbeat::stats", "last_tick", "1700000000")
    redis_client.set("redbeat::lock", new_token(), ex=1500)
    assert run("status").code == 0


def test_a_beat_of_redbeat_2_leads(run: Run, redis_client: redis.Redis) -> None:
    redis_client.set("redbeat::lock", "d2f1\x1b", ex=60)
    ran = run("status")
    assert ran.code == 0
    assert "Leader    d2f1\\x1b, a beat of RedBeat 2" in ran.lines


@pytest.mark.parametrize("value", ["garbage", "", {"a": "b"}])
def test_a_key_that_is_not_a_lock(run: Run, redis_client: redis.Redis, value: Any) -> None:
    """A hash, or a text that never expires, keeps every beat from the lock."""
    if isinstance(value, dict):
        redis_client.hset("redbeat::lock", mapping=value)
    else:
        redis_client.set("redbeat::lock", value)
    redis_client.zadd(".redbeat::beats", {f"{TOKEN} lock": redis_client.time()[0]})
    ran = run("status")
    assert ran.code == Exit.UNHEALTHY
    assert "Leader    nobody" in ran.lines
    (found,) = run("status", "--json").json
    assert found["problems"] == [
        "no beat leads",
        "the key redbeat::lock is not a lock",
    ]
    for command in ("status", "doctor"):
        assert run(command).out.count("rename or delete the key") == 1
    assert (found["healthy"], found["leader"], found["beats"]) == (False, None, [])
    assert [beat["token"] for beat in found["standbys"]] == [TOKEN]


def test_a_shard_without_a_beat(run: Run, app: Celery, redis_client: redis.Redis) -> None:
    """Each shard needs a beat; one problem is enough if no shard has a beat."""
    app.conf.redbeat_shards = 2
    locks = [f"{prefix}:lock" for prefix in Layout("redbeat:", 2).prefixes]
    assert run("status", "--json").json[0]["problems"] == ["no beat leads"]
    redis_client.set(locks[0], TOKEN, ex=60)
    missing = f"no beat leads 1 of 2 shards, for example {locks[1].removesuffix(':lock')}"
    assert run("status", "--json").json[0]["problems"] == [missing]
    redis_client.hset(locks[1], "a", "b")
    foreign = f"the key {locks[1]} is not a lock"
    (found,) = run("status", "--json").json
    assert (found["healthy"], found["problems"]) == (False, [missing, foreign])
    assert [shard["beat"] for shard in found["shards"]] == [TOKEN, ""]
    redis_client.delete(*locks)
    redis_client.set(locks[1], TOKEN, ex=60)
    redis_client.zadd(f".{locks[0].removesuffix(':lock')}:beats", {f"{TOKEN} lock": time.time()})
    (problem,) = run("status", "--json").json[0]["problems"]
    assert problem.endswith(f"for example {locks[0].removesuffix(':lock')}")
    app.conf.redbeat_lock_key = None
    app.redbeat_conf = None
    assert run("status", "--json").json[0]["problems"] == ["no beat is active"]


def test_under_a_beat_of_redbeat_2_a_disabled_entry_is_neither_due_nor_late(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    """RedBeat 2 looks at a disabled entry every 5 seconds, and never changes its score."""
    redis_client.set("redbeat::lock", "d2f1", ex=60)
    redis_client.hset(".redbeat::stats", mapping={"problem": "of an earlier beat", "last_tick": 1})
    make("off", enabled=False)
    make("late")
    now = redis_client.time()[0]
    redis_client.zadd("redbeat::schedule", {"redbeat:off": now - 9000, "redbeat:late": now - 5})
    (found,) = run("status", "--json").json
    assert (found["healthy"], found["problems"]) == (True, [])
    assert (found["due_now"], found["entries"]["paused"]) == (1, 1)
    assert 5 <= found["most_late"] < 60


@pytest.mark.parametrize(("most", "code"), [("60", Exit.UNHEALTHY), ("1h", 0)])
def test_the_exit_code_shows_a_late_entry(
    run: Run, make: Make, redis_client: redis.Redis, most: str, code: int
) -> None:
    redis_client.set("redbeat::lock", TOKEN)
    make("late")
    redis_client.zadd("redbeat::schedule", {"redbeat:late": time.time() - 100})
    ran = run("status", "--max-late", most, "--json")
    assert ran.code == code
    (found,) = ran.json
    assert found["due_now"] == 1
    assert 99 < found["most_late"] < 160
    assert [problem[:10] for problem in found["problems"]] == ["late is 1 "] * bool(code)


def test_beats_that_share_the_work(run: Run, app: Celery, redis_client: redis.Redis) -> None:
    app.conf.redbeat_lock_key = None
    ran = run("status")
    assert ran.code == Exit.UNHEALTHY
    assert "PROBLEM: no beat is active" in ran.lines
    redis_client.zadd(".redbeat::beats", {new_token(): time.time()})
    ran = run("status")
    assert ran.code == 0
    assert ran.lines[0].startswith(f"Beats     {socket.gethostname()}, pid ")


def test_status_lists_standbys(run: Run, redis_client: redis.Redis) -> None:
    redis_client.set("redbeat::lock", TOKEN)
    assert "standbys" not in run("status").out.lower()
    waits, (seconds, _) = new_token(), redis_client.time()
    redis_client.zadd(".redbeat::beats", {f"{TOKEN} lock": seconds, f"{waits} lock": seconds - 5})
    ran = run("status")
    assert ran.code == 0
    leader, standby, *_ = ran.lines
    seen = r", seen \d+(\.\d)? s ago"
    assert re.fullmatch(f"Leader    web-1, pid 4711, since 2023-11-14 22:13:20 UTC{seen}", leader)
    assert re.fullmatch(
        f"Standbys  {socket.gethostname()}, pid .* UTC, seen [0-9.]+ s ago", standby
    )
    (found,) = run("status", "--json").json
    assert [beat["token"] for beat in found["beats"]] == [TOKEN]
    assert [beat["token"] for beat in found["standbys"]] == [waits]
    assert datetime.fromisoformat(found["standbys"][0]["last_seen"]).timestamp() == seconds - 5
    redis_client.zadd(".redbeat::beats", {f"{waits} lock": seconds - 12})
    assert "Standbys" not in run("status").out, "a beat that was killed"


@pytest.fixture
def server(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A server that a test may make unwritable, which is writable again after the test."""
    yield redis_client
    redis_client.replicaof("NO", "ONE")
    redis_client.config_set("maxmemory", 0)
    redis_client.config_set("maxmemory-policy", "noeviction")


def test_a_server_that_may_evict_entries_is_a_warning(
    run: Run, app: Celery, server: redis.Redis
) -> None:
    """Nothing is lost yet, so the exit code stays 0."""
    server.set("redbeat::lock", new_token(), ex=60)
    server.config_set("maxmemory", 1 << 30)
    server.config_set("maxmemory-policy", "allkeys-lru")
    ran = run("status")
    assert ran.code == 0
    evicts = "Redis may evict entries: maxmemory is 1073741824 bytes with the policy allkeys-lru"
    assert f"WARNING: {evicts}" in ran.lines
    (found,) = run("status", "--json").json
    assert (found["healthy"], found["problems"]) == (True, [evicts])
    app.conf.redbeat_key_expiry_check = "ignore"
    app.redbeat_conf = None
    assert "evict" not in run("status").out


@pytest.mark.standalone
@pytest.mark.parametrize("stops", ["yes", "no"])
def test_redis_takes_no_writes_after_a_failed_snapshot(
    run: Run, app: Celery, tmp_path: Path, stops: str
) -> None:
    """Unless it is told to go on; INFO alone does not say whether it is."""
    options = ("--save", "3600 1", "--dir", str(tmp_path), "--stop-writes-on-bgsave-error", stops)
    with RedisServer(*options) as server, redis.Redis.from_url(server.url) as client:
        (tmp_path / "dump.rdb").mkdir()  # which no snapshot can replace
        client.set("redbeat::lock", new_token(), ex=60)
        client.bgsave()
        wait_until(lambda: client.info()["rdb_last_bgsave_status"] == "err")

        app.conf.redbeat_redis_url = app.conf.broker_url = server.url
        (found,) = run("status", "--json").json
        named = [report["kind"] for report in run("doctor", "--json").json]

    told = [problem for problem in found["problems"] if "takes no writes" in problem]
    assert found["healthy"] == (stops == "no") == (not told)
    assert "rdb_last_bgsave_status is err" in "".join(told) or stops == "no"
    assert named == ["redis"] * len(told), "not what follows from it"


@pytest.mark.standalone
@pytest.mark.parametrize("why", ["replica", "full"])
def test_redis_takes_no_writes(
    run: Run, app: Celery, make: Make, server: redis.Redis, closed_port: int, why: str
) -> None:
    """The cause is named, and not the leader, which is silent because of it."""
    make("a")
    server.set("redbeat::lock", TOKEN, ex=1500)
    server.hset(".redbeat::stats", "last_tick", str(int(server.time()[0]) - 40))
    if why == "full":
        server.config_set("maxmemory", 1)
        reason = r"is full: maxmemory is 1 bytes with the policy noeviction"
    else:
        server.replicaof("127.0.0.1", closed_port)
        reason = f"is a read-only replica of 127.0.0.1:{closed_port}"

    (found,) = run("status", "--json").json

    (problem,) = found["problems"]
    assert re.fullmatch(rf"Redis at redis://127.0.0.1:\d+/\d+ {reason}", problem)
    assert Schedule(app).status().problem == problem
    (report,) = run("doctor", "--json").json
    assert (report["kind"], report["problem"]) == ("redis", problem)


def test_entries_that_do_not_run_are_problems(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    redis_client.set("redbeat::lock", new_token(), ex=60)
    for name in ("a", "b"):
        make(name)
        redis_client.hset(".redbeat::quarantine", f"redbeat:{name}", "{}")
    redis_client.zadd(".redbeat::failed", {"redbeat:a": 21, "redbeat:b": 2})
    ran = run("status")
    assert ran.code == Exit.UNHEALTHY
    at = ran.lines.index("PROBLEM: 2 entries are quarantined")
    assert "celery redbeat list --state quarantined" in ran.lines[at + 1]
    assert "PROBLEM: the last 21 runs of a failed" in ran.lines
    assert "runs of b" not in ran.out


def test_a_command_does_not_retry_redis(run: Run, app: Celery, closed_port: int) -> None:
    app.conf.redbeat_redis_url = f"redis://127.0.0.1:{closed_port}"
    app.conf.redbeat_redis_options = {"retry_period": -1}
    assert run("status").code == EX_UNAVAILABLE
    assert not isinstance(app.redbeat_redis, RetryingConnection)


def test_workers_that_report_nothing_any_more(
    run: Run, app: Celery, make: Make, redis_client: redis.Redis
) -> None:
    """Unless hardly a run was sent since, or the app's workers report nothing any more."""
    redis_client.set("redbeat::lock", new_token(), ex=60)
    make("a")
    stats, store = ".redbeat::stats", store_of(app)
    redis_client.hset(stats, "dispatched", 100)
    store.say("redbeat:a", end_line("id", "succeeded"), kind=END, age=0.0)
    reported, sent = str(redis_client.hget(stats, "last_report")).split()
    assert float(reported) == pytest.approx(time.time(), abs=60)
    assert sent == "100"

    def told(sent: int, ago: float, tracks_runs: bool = True) -> list[str]:
        redis_client.hset(stats, mapping={"dispatched": sent, "last_report": f"{now - ago} 100"})
        app.redbeat_tracks_runs = tracks_runs
        return [one["problem"] for one in run("status", "--json").json[0]["findings"]]

    now = redis_client.time()[0]
    silent = r"no worker has reported the end of a run for 3\d min .*, although beats send runs"
    assert re.fullmatch(silent, told(110, 2000)[0])
    assert run("status").code == Exit.UNHEALTHY
    assert told(109, 2000) == told(110, 800) == told(110, 2000, tracks_runs=False) == []
