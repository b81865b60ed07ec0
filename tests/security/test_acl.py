"""Tests that the user of docs/deployment/acl.rst has exactly the permissions that RedBeat needs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.credentials import CredentialProvider

import redbeat
from redbeat import RedBeatSchedulerEntry
from redbeat.manual import MANUAL
from redbeat.metrics.counts import total_stats
from redbeat.storage.store import store_of
from tests.acceptance.processes import Project
from tests.deployments import USER, acl_rules
from tests.samples import one_in
from tests.scheduler.conftest import RecordingScheduler
from tests.security.scenario import Scenario, overdue
from tests.servers import RedisServer
from tests.waiting import wait_until

NAME = USER
TASK = "tests.acceptance.project.note"


COMMANDS = [rule[1:] for rule in acl_rules() if rule.startswith("+")]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Yield a separate server, because ACL users and the ACL log belong to the whole server."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    """Yield an admin client of an empty server on which the manual's user exists."""
    with redis.Redis.from_url(server.url, decode_responses=True) as admin:
        admin.flushall()
        set_user(admin, acl_rules())
        admin.acl_log_reset()
        yield admin
        admin.acl_deluser(NAME)


def set_user(admin: Any, rules: list[str]) -> None:
    """Replace the user by a user with these rules."""
    admin.acl_deluser(NAME)
    admin.execute_command("ACL", "SETUSER", NAME, *rules)


def settings(server: RedisServer) -> dict[str, Any]:
    """Return the settings of an app that connects as this user."""
    return {"redbeat_redis_url": f"redis://{NAME}:PASSWORD@127.0.0.1:{server.port}/0"}


def refused(admin: Any) -> set[str]:
    """Return the refused commands, except CLIENT commands, which redis-py does not need."""
    objects = {str(line["object"]).lower() for line in admin.acl_log()}
    return {name for name in objects if not name.startswith("client")}


def test_the_user_has_all_rights_that_are_needed(server: RedisServer, admin: redis.Redis) -> None:
    scenario = Scenario(admin, settings(server))
    scenario.play()
    assert refused(admin) == set()
    assert scenario.failures == []
    assert {"dynamic", "bad"} <= set(scenario.sent)
    assert "orphan" not in scenario.sent


@pytest.mark.parametrize("command", one_in(4, COMMANDS))
def test_each_command_is_needed(server: RedisServer, admin: redis.Redis, command: str) -> None:
    set_user(admin, [rule for rule in acl_rules() if rule != f"+{command}"])
    Scenario(admin, settings(server)).play()
    assert refused(admin) == {command}


@pytest.mark.parametrize("pattern", [rule for rule in acl_rules() if rule[0] in "~&"])
def test_each_key_and_channel_is_needed(
    server: RedisServer, admin: redis.Redis, pattern: str
) -> None:
    set_user(admin, [rule for rule in acl_rules() if rule != pattern])
    Scenario(admin, settings(server)).play()
    objects = refused(admin)
    assert objects
    assert all(fnmatchcase(name, pattern[1:]) for name in objects)


def test_a_user_of_redbeat_2_lacks_only_keys_outside_the_prefix(
    server: RedisServer, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    set_user(admin, [rule for rule in acl_rules() if not rule.startswith("~.")])
    scenario = Scenario(admin, settings(server))
    scenario.play()
    assert scenario.failures == []
    assert {"dynamic", "bad"} <= set(scenario.sent)
    assert "orphan" not in scenario.sent
    assert "Entry redbeat:bad is quarantined" in caplog.text
    assert set(admin.scan_iter()) <= {
        *("redbeat::schedule", "redbeat::statics", "redbeat::lock"),
        *(f"redbeat:{name}" for name in ("dynamic", "bad", "orphan", "static", "no-hash")),
        "redbeat:celery.backend_cleanup",
    }
    assert "Redis is not available" not in caplog.text
    warned = [text for text in caplog.messages if "ACL SETUSER <user> '~.redbeat::*'" in text]
    # One app only listens, so it logs no warning.
    assert len(warned) == len(scenario.apps) - 1


def test_editing_without_the_keys_outside_the_prefix(
    server: RedisServer, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The program never runs a beat: it saves in bulk, pauses, triggers, reads and deletes."""
    set_user(admin, [rule for rule in acl_rules() if not rule.startswith("~.")])
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(settings(server))
    schedule = redbeat.Schedule(app)
    schedule.update({name: RedBeatSchedulerEntry(name, "t", 60, app=app) for name in ("a", "b")})
    entry = schedule["a"]
    entry.pause("for a test")
    assert not schedule["a"].enabled
    entry.resume()
    assert entry.trigger()
    assert entry.status.state == "scheduled"
    assert redbeat.active_beats(app) == []
    assert total_stats(store_of(app).parts) == {}
    assert store_of(app).quarantined() == {}
    del schedule["a"]
    assert list(schedule) == ["b"]
    with pytest.raises(redis.exceptions.NoPermissionError):
        schedule.delete_calendar("days-off")
    assert len([text for text in caplog.messages if "ACL SETUSER" in text]) == 1
    app.redbeat_redis.close()


def test_a_pop_without_the_right_to_keep_a_note(server: RedisServer, admin: redis.Redis) -> None:
    """The pop is the first request of the program; it returns the entry that it deletes."""
    writer = Celery("admin", broker="memory://", set_as_current=False)
    writer.conf.redbeat_redis_url = server.url
    RedBeatSchedulerEntry("a", "t", 60, app=writer).save()
    set_user(admin, [rule for rule in acl_rules() if rule != "~.redbeat::*"])
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(settings(server))
    assert redbeat.Schedule(app).pop("a").task == "t"
    assert list(admin.scan_iter()) == []
    for used in (app, writer):
        used.redbeat_redis.close()


def test_the_user_has_no_access_outside_the_prefix(server: RedisServer, admin: redis.Redis) -> None:
    url = settings(server)["redbeat_redis_url"]
    with redis.Redis.from_url(url) as client:
        assert client.hset("redbeat:a", "definition", "{}")
        for command in (("GET", "other"), ("PUBLISH", "other", "x"), ("FLUSHALL",), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
        with pytest.raises(redis.ResponseError):
            client.eval("return redis.call('GET', 'other')", 0)
    assert admin.get("other") is None


def test_a_real_beat(server: RedisServer, admin: redis.Redis, tmp_path: Path) -> None:
    project = Project(tmp_path, server.url)
    try:
        schedule = {"static": {"task": TASK, "schedule": 3600}}
        beat = project.beat(settings=settings(server), schedule=schedule)
        beat.wait_for("Static entries: ")
        wait_until(lambda: dict(admin.pubsub_numsub("redbeat::wakeup"))["redbeat::wakeup"], 30)
        web = Celery("web", broker="memory://", set_as_current=False)
        web.conf.update(settings(server))
        overdue("dynamic", web).save()
        popped: Any = wait_until(lambda: admin.blpop(["celery"], timeout=1), 30, "a message")
        assert json.loads(popped[1])["headers"]["periodic_task_name"] == "dynamic"
        web.redbeat_redis.close()
        assert beat.stop() == 0
        assert "ERROR" not in beat.output()
        # The beat tried once to write to the broker's queue with the schedule's user.
        assert refused(admin) == {"celery"}
        assert beat.output().count("are sent at least once") == 1
    finally:
        project.end()


#: The commands that RedBeat 2 uses, including transactions.
OLD_COMMANDS = (
    *("hget", "hset", "hsetnx", "zadd", "zrem", "zrank", "zrangebyscore", "smembers", "sadd"),
    *("srem", "del", "evalsha", "script", "set", "get", "pexpire", "pttl", "multi", "exec"),
)


def refusals(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about missing permissions."""
    lines = [record.getMessage() for record in log.records]
    return [line for line in lines if "ACL SETUSER" in line or "permission" in line]


def test_a_user_with_the_rights_of_redbeat_2(
    server: RedisServer, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The beat logs the missing permissions once, and works as soon as they are granted."""
    caplog.set_level(logging.ERROR, "celery.beat")
    others = [rule for rule in acl_rules() if not rule.startswith("+")]
    set_user(admin, [*others, *(f"+{name}" for name in OLD_COMMANDS)])
    writer = Celery("admin", broker="memory://", set_as_current=False)
    writer.conf.redbeat_redis_url = server.url
    overdue("a", writer).save()
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(settings(server))
    beat = RecordingScheduler(app)
    for _ in range(4):
        assert 0 < beat.tick() <= 2
    assert beat.names == []
    (line,) = refusals(caplog)
    assert f"needs each right in {MANUAL.format('deployment/acl')}" in line
    set_user(admin, acl_rules())
    beat.tick()
    assert "a" in beat.names
    admin.acl_log_reset()
    beat.tick()
    beat.close()
    assert refused(admin) == set()
    assert refusals(caplog) == [line]
    for used in (app, writer):
        used.redbeat_redis.close()


def test_a_user_without_the_keys(
    server: RedisServer, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    set_user(admin, [rule for rule in acl_rules() if not rule.startswith("~")])
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(settings(server))
    beat = RecordingScheduler(app)
    for _ in range(3):
        beat.tick()
    assert sum(MANUAL.format("deployment/acl") in line for line in refusals(caplog)) == 1
    beat.close()
    app.redbeat_redis.close()


class Vault(CredentialProvider):
    """A credential provider that returns the current password."""

    password = "PASSWORD"

    def get_credentials(self) -> tuple[str, str]:
        return NAME, self.password


def test_a_password_that_changes(
    server: RedisServer, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    vault = Vault()
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(
        redbeat_redis_url=f"redis://127.0.0.1:{server.port}/0",
        redbeat_redis_options={"credential_provider": vault},
    )
    overdue("a", app).save()
    beat = RecordingScheduler(app)
    beat.tick()
    assert "a" in beat.names

    admin.execute_command("ACL", "SETUSER", NAME, "resetpass", ">tomorrow")
    kill_connections(admin)
    beat.tick()
    (line,) = (text for text in caplog.messages if "not available" in text)
    assert "AuthenticationError" in line
    assert "PASSWORD" not in caplog.text

    vault.password = "tomorrow"
    overdue("b", app).save()
    beat.tick()
    assert beat.names[-1] == "b"
    assert "Redis is back" in caplog.text
    beat.close()
    app.redbeat_redis.close()


def kill_connections(admin: Any) -> None:
    """Close the connections of the user."""
    for client in admin.client_list():
        if client["user"] == NAME:
            admin.client_kill_filter(_id=client["id"])
