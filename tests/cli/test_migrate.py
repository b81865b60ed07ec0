"""Tests of `celery redbeat migrate-prefix`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat.lock import new_token
from redbeat.cli.command import Exit
from redbeat.management.prefixes import copy_prefix
from tests.acceptance.processes import Project
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.servers import RedisServer
from tests.stored import put_history, put_nominal
from tests.topologies.groups import ClusterNode
from tests.waiting import wait_until

RAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def content(client: Any, prefix: str) -> dict[str, Any]:
    """Return all data under a prefix, by key without the prefix."""
    read: dict[str, Any] = {
        "hash": client.hgetall,
        "set": client.smembers,
        "zset": lambda key: {
            member.removeprefix(prefix): score
            for member, score in client.zrange(key, 0, -1, withscores=True)
        },
    }
    found = {
        key.removeprefix(".").removeprefix(prefix): read[client.type(key)](key)
        for key in [*client.keys(f"{prefix}*"), *client.keys(f".{prefix}:*")]
    }
    if ":quarantine" in found:
        notes = found[":quarantine"]
        found[":quarantine"] = {key.removeprefix(prefix): notes[key] for key in notes}
    return found


@pytest.fixture
def filled(make: Make, redis_client: Any) -> dict[str, Any]:
    """Store data of every kind, and return all data under the prefix."""
    make("plain")
    make("ran", last_run_at=RAN, total_run_count=7, jitter=2)
    make("static")
    make("a:b c/ü", enabled=False)
    put_nominal(redis_client, "redbeat:ran", 1.5)
    redis_client.hset("redbeat:ran", "foreign", "kept")
    redis_client.sadd("redbeat::statics", "static")
    redis_client.hset(".redbeat::quarantine", "redbeat:plain", "{}")
    redis_client.hset(".redbeat::stats", "dispatched ran", "7")
    return content(redis_client, "redbeat:")


def test_everything_is_copied(
    run: Run, app: Celery, redis_client: Any, filled: dict[str, Any]
) -> None:
    """History, score, static mark and quarantine are copied; the data of the old prefix stays."""
    ran = run("migrate-prefix", "redbeat:", "{new}:")
    assert ran.code == 0, ran.err
    assert "4 copied" in ran.err
    assert content(redis_client, "{new}:") == filled
    assert content(redis_client, "redbeat:") == filled

    app.redbeat_conf = None
    app.conf.redbeat_key_prefix = "{new}:"
    entry = RedBeatSchedulerEntry.from_key("{new}:ran", app=app)
    assert (entry.last_run_at, entry.total_run_count, entry.jitter) == (RAN, 7, 2)


def test_existing_counts_stay(redis_client: Any, filled: dict[str, Any]) -> None:
    """Data that already exists under the new prefix is not overwritten."""
    redis_client.hset(".new::stats", "dispatched ran", "9")
    redis_client.hset(".redbeat::stats", "missed", "1")
    copy_prefix(redis_client, "redbeat:", "new:")
    assert redis_client.hgetall(".new::stats") == {"dispatched ran": "9", "missed": "1"}
    assert redis_client.hgetall(".redbeat::stats") == {**filled[":stats"], "missed": "1"}


def test_stats_of_another_type_are_left_alone(redis_client: Any, filled: dict[str, Any]) -> None:
    """The command does not change a key with an unexpected type."""
    del filled
    redis_client.delete(".redbeat::stats")
    redis_client.set(".redbeat::stats", "x")
    assert copy_prefix(redis_client, "redbeat:", "new:", delete=True).copied == 4
    assert redis_client.get(".redbeat::stats") == "x"
    assert not redis_client.exists(".new::stats")


@pytest.mark.usefixtures("filled")
def test_a_second_copy_changes_no_existing_data(run: Run, redis_client: Any, make: Make) -> None:
    """Runs recorded under the new prefix are kept, and new entries are added."""
    run("migrate-prefix", "redbeat:", "new:")
    redis_client.hset("new:ran", "meta", "newer")
    redis_client.zadd("new::schedule", {"new:ran": 5})
    make("added")
    ran = run("migrate-prefix", "redbeat:", "new:", "--json")
    assert (ran.json[0]["copied"], ran.json[0]["same"], ran.code) == (1, 4, 0)
    assert redis_client.hget("new:ran", "meta") == "newer"
    assert redis_client.zscore("new::schedule", "new:ran") == 5
    assert redis_client.exists("new:added")


def test_an_interrupted_copy_is_completed(redis_client: Any, filled: dict[str, Any]) -> None:
    """The copy may have stopped before the entry got its score."""
    redis_client.hset("new:plain", mapping=redis_client.hgetall("redbeat:plain"))
    copy_prefix(redis_client, "redbeat:", "new:")
    assert content(redis_client, "new:") == filled


@pytest.mark.parametrize("lost", ["nothing", "state"])
def test_the_last_runs_keep_their_ids(
    app: Celery, make: Make, redis_client: Any, lost: str
) -> None:
    """A run's id depends on the prefix, so the copy stores the ids that the old prefix produced."""
    key = make("ö{b}").key
    redis_client.hdel(key, lost)
    put_history(redis_client, key, ["1795289048.5 +0.25", "1795289000 +1 sent my id"])
    before = RedBeatSchedulerEntry.from_key(key, app=app).history
    copy_prefix(redis_client, "redbeat:", "new:")
    app.conf.redbeat_key_prefix = "new:"
    del app.redbeat_conf
    found = RedBeatSchedulerEntry.from_key("new:ö{b}", app=app).history
    assert (found, len(found)) == (before, 2)


def test_an_expected_success_stays_expected(app: Celery, make: Make, redis_client: Any) -> None:
    app.redbeat_tracks_runs = True
    make("backup", expect_within=0.001)
    copy_prefix(redis_client, "redbeat:", "new:", delete=True)
    app.conf.redbeat_key_prefix = "new:"
    del app.redbeat_conf
    (item,) = Schedule(app).status().overdue
    assert (item.name, item.last_success) == ("backup", None)
    assert not redis_client.exists(".redbeat::expected")


def test_delete_removes_what_was_copied(
    run: Run, redis_client: Any, filled: dict[str, Any]
) -> None:
    """The option --delete removes nothing else."""
    redis_client.set("redbeat:foreign", "something")
    ran = run("migrate-prefix", "redbeat:", "new:", "--delete", "--json")
    assert (ran.json[0]["deleted"], ran.code) == (4, 0)
    assert content(redis_client, "new:") == filled
    assert redis_client.keys("redbeat:*") == ["redbeat:foreign"]


def test_another_entry_of_the_same_name_stays(run: Run, make: Make, redis_client: Any) -> None:
    """Both entries stay under their prefixes, and the exit code reports the conflict."""
    make("a")
    redis_client.hset("new:a", mapping={"definition": "other", "meta": "{}"})
    redis_client.set("new:b", "text")
    make("b")
    ran = run("migrate-prefix", "redbeat:", "new:", "--delete")
    assert ran.code == Exit.CONFLICT
    assert "2 different from the entry of the same name" in ran.err
    assert "Set redbeat_key_prefix" not in ran.err  # entries are missing under the new prefix
    assert redis_client.hget("new:a", "definition") == "other"
    assert redis_client.get("new:b") == "text"
    assert redis_client.exists("redbeat:a", "redbeat:b") == 2
    assert redis_client.zcard("new::schedule") == 0


def test_unreadable_entries_are_counted(run: Run, redis_client: Any) -> None:
    """The command changes neither a member without a hash nor a key of another type."""
    redis_client.zadd("redbeat::schedule", {"redbeat:gone": 1, "redbeat:text": 2})
    redis_client.set("redbeat:text", "x")
    ran = run("migrate-prefix", "redbeat:", "new:", "--json")
    assert (ran.json[0]["unreadable"], ran.code) == (2, Exit.CONFLICT)
    assert redis_client.keys("new:*") == []


def test_texts_that_are_not_utf_8_arrive_unchanged(redis_url: str) -> None:
    """Bytes that are not UTF-8 are also copied by a client that decodes replies."""
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(b"redbeat:\xff", b"definition", b"\xfe")
        raw.zadd("redbeat::schedule", {b"redbeat:\xff": 3})
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            assert copy_prefix(client, "redbeat:", "new:", delete=True).copied == 1
        assert raw.hgetall(b"new:\xff") == {b"definition": b"\xfe"}
        assert raw.zrange("new::schedule", 0, -1) == [b"new:\xff"]
        assert not raw.exists(b"redbeat:\xff")


@pytest.mark.parametrize("prefix", ["redbeat:", "new:"])
def test_a_running_leader_is_refused(run: Run, make: Make, redis_client: Any, prefix: str) -> None:
    """The copy is refused while a leader runs on either prefix, unless --force is set."""
    make("a")
    redis_client.set(f"{prefix}:lock", new_token())
    ran = run("migrate-prefix", "redbeat:", "new:")
    assert ran.code == Exit.CONFLICT
    assert f"A beat runs on '{prefix}': process " in ran.err
    assert not redis_client.exists("new:a")
    assert run("migrate-prefix", "redbeat:", "new:", "--force").code == 0
    assert redis_client.exists("new:a")


def test_a_beat_without_a_lock_is_refused_too(run: Run, redis_client: Any) -> None:
    """A beat without a lock also sends the entries of the old prefix."""
    redis_client.zadd(".redbeat::beats", {new_token(): redis_client.time()[0]})
    assert run("migrate-prefix", "redbeat:", "new:").code == Exit.CONFLICT


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--delete",), ("--json",)])
def test_a_prefix_without_data_is_refused(run: Run, make: Make, options: tuple[str, ...]) -> None:
    """The prefix is probably misspelled, so the command must not advise to use the new prefix."""
    make("a")
    ran = run("migrate-prefix", "redbeat", "new:", *options)
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, "")
    assert "There are no entries under 'redbeat'" in ran.err
    assert "Set redbeat_key_prefix" not in ran.err


@pytest.mark.usefixtures("filled")
def test_a_repeated_move_has_nothing_left_to_copy(run: Run) -> None:
    """The first call may have been interrupted, so the second call succeeds."""
    assert run("migrate-prefix", "redbeat:", "new:", "--delete").code == 0
    ran = run("migrate-prefix", "redbeat:", "new:", "--delete")
    assert ran.code == 0
    assert "0 copied, 0 same" in ran.err
    assert "Set redbeat_key_prefix = 'new:'" in ran.err
    (counts,) = run("migrate-prefix", "redbeat:", "new:", "--json").json
    assert (counts["copied"], counts["same"]) == (0, 0)


def test_a_schedule_that_has_only_calendars_is_copied(
    run: Run, app: Celery, redis_client: Any
) -> None:
    Schedule(app).save_calendar(Calendar("de", ["2026-12-25"]))
    assert run("migrate-prefix", "redbeat:", "new:").code == 0
    assert redis_client.hkeys(".new::calendars") == ["de"]


@pytest.mark.parametrize("prefixes", [("a:", "a:"), ("", "a:"), ("a:", "")])
def test_impossible_prefixes_are_refused(run: Run, prefixes: tuple[str, str]) -> None:
    """Equal and empty prefixes are usage errors, with exit code 2."""
    assert run("migrate-prefix", *prefixes).code == 2


def test_a_new_prefix_may_begin_with_the_old_one(redis_client: Any, filled: dict[str, Any]) -> None:
    """Only the entries of the old schedule are copied."""
    redis_client.hset("redbeat:x:other", "definition", "{}")
    assert copy_prefix(redis_client, "redbeat:", "redbeat:x:").copied == 4
    assert redis_client.zcard("redbeat:x::schedule") == 4
    assert redis_client.zcard("redbeat::schedule") == 4
    assert filled[":schedule"].keys() == {
        key.removeprefix("redbeat:x:") for key in redis_client.zrange("redbeat:x::schedule", 0, -1)
    }


def test_schedules_of_several_pages_are_copied(redis_client: Any) -> None:
    """The copy is complete even if the old entries are deleted during the copy."""
    pipe = redis_client.pipeline()
    for number in range(1203):
        pipe.hset(f"redbeat:n{number}", "definition", "{}")
        pipe.zadd("redbeat::schedule", {f"redbeat:n{number}": number})
    pipe.execute()
    counted: list[int] = []
    result = copy_prefix(redis_client, "redbeat:", "new:", delete=True, progress=counted.append)
    assert (result.copied, result.deleted, sum(counted)) == (1203, 1203, 1203)
    assert redis_client.zcard("new::schedule") == 1203
    assert redis_client.keys("redbeat:*") == []


@pytest.fixture
def cluster() -> Iterator[RedisServer]:
    """Yield a cluster of one node, which refuses commands about keys of different slots."""
    with ClusterNode() as server:
        with redis.Redis.from_url(server.url, decode_responses=True) as node:
            node.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_until(lambda: "'cluster_state': 'ok'" in str(node.execute_command("CLUSTER INFO")))
        yield server


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), [("redbeat:", "{redbeat}:"), ("{redbeat}:", "redbeat:")])
def test_prefixes_in_a_cluster(cluster: RedisServer, old: str, new: str) -> None:
    """The prefix changes from one without a hash tag to one with a hash tag, and back."""
    client: Any = redis.RedisCluster.from_url(cluster.url, decode_responses=True)
    for number in range(40):
        client.hset(f"{old}n{number}", mapping={"definition": "{}", "meta": str(number)})
        client.zadd(f"{old}:schedule", {f"{old}n{number}": number})
    client.sadd(f"{old}:statics", "n7")
    client.hset(f".{old}:quarantine", f"{old}n8", "{}")
    result = copy_prefix(client, old, new, delete=True)
    assert (result.copied, result.deleted) == (40, 40)
    scores = {f"{new}n{number}": float(number) for number in range(40)}
    assert dict(client.zrange(f"{new}:schedule", 0, -1, withscores=True)) == scores
    assert client.hget(f"{new}n7", "meta") == "7"
    assert client.smembers(f"{new}:statics") == {"n7"}
    assert client.hgetall(f".{new}:quarantine") == {f"{new}n8": "{}"}
    assert not client.exists(f"{old}:schedule")
    assert not client.exists(f"{old}n7")
    client.close()


def test_the_command_runs_as_a_process(project: Project, redis_client: Any) -> None:
    redis_client.hset("old:a", "definition", "{}")
    redis_client.zadd("old::schedule", {"old:a": 1})
    process = project.start("redbeat", "migrate-prefix", "old:", "new:")
    assert process.popen.wait(30) == 0, process.output()
    assert redis_client.zrange("new::schedule", 0, -1) == ["new:a"]
