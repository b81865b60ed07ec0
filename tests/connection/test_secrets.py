"""Tests that no output contains a password, for every setting that can contain one."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from redbeat import RedBeatSchedulerEntry
from redbeat.config import ensure_conf, get_redis, unretried
from redbeat.connection.endpoint import client_parameters
from redbeat.schedulers import RedBeatScheduler
from tests.acceptance.processes import Project
from tests.certificates import write_certificates
from tests.servers import RedisServer

CANARY = "c4n4ry"

#: Without this limit, redis-py retries Sentinel servers for a long time.
ONCE = Retry(NoBackoff(), 0)


class Vault(CredentialProvider):
    """A credential provider without a custom repr."""

    def __init__(self) -> None:
        self.password = CANARY

    def get_credentials(self) -> tuple[str, str]:
        return "user", self.password


#: Settings that contain the canary. Nothing listens on {port}.
PLACES: dict[str, dict[str, Any]] = {
    "url": {"redbeat_redis_url": f"redis://user:{CANARY}@127.0.0.1:{{port}}/0"},
    "url, in the query": {"redbeat_redis_url": f"redis://127.0.0.1:{{port}}/0?password={CANARY}"},
    "broker": {"broker_url": f"redis://user:{CANARY}@127.0.0.1:{{port}}/0"},
    "options": {
        "redbeat_redis_url": "redis://127.0.0.1:{port}/0",
        "redbeat_redis_options": {"password": CANARY},
    },
    "options with a retry period": {
        "redbeat_redis_url": "redis://127.0.0.1:{port}/0",
        "redbeat_redis_options": {"password": CANARY, "retry_period": 0.01},
    },
    "options of the broker": {
        "broker_url": "redis://127.0.0.1:{port}/0",
        "broker_transport_options": {"password": CANARY},
    },
    "sentinel": {
        "redbeat_redis_url": f"sentinel://:{CANARY}@127.0.0.1:{{port}}",
        "redbeat_redis_options": {
            "sentinel_kwargs": {"password": CANARY, "retry": ONCE},
            "password": CANARY,
        },
    },
    "listed sentinels": {
        "redbeat_redis_url": f"redis-sentinel://:{CANARY}@h",
        "redbeat_redis_options": {
            "sentinels": [("127.0.0.1", "{port}")],
            "sentinel_kwargs": {"username": "u", "password": CANARY, "retry": ONCE},
        },
    },
    "cluster": {"redbeat_redis_url": f"redis-cluster://:{CANARY}@127.0.0.1:{{port}}"},
    "TLS": {
        "redbeat_redis_url": "rediss://127.0.0.1:{port}/0",
        "redbeat_redis_use_ssl": {"ssl_password": CANARY, "ssl_cert_reqs": "none"},
    },
    "TLS in the query": {
        "redbeat_redis_url": f"rediss://127.0.0.1:{{port}}/0?ssl_password={CANARY}",
    },
    "credential provider": {
        "redbeat_redis_url": "redis://127.0.0.1:{port}/0",
        "redbeat_redis_options": {"credential_provider": Vault()},
    },
}

#: Invalid settings, with the canary near the invalid part.
WRONG: dict[str, dict[str, Any]] = {
    "scheme": {"redbeat_redis_url": f"http://user:{CANARY}@h"},
    "no scheme": {"redbeat_redis_url": f"user:{CANARY}@h:6379"},
    "not quoted": {"redbeat_redis_url": f"redis://user:{CANARY}/x@h"},
    "unknown option": {
        "redbeat_redis_url": f"redis://u:{CANARY}@h",
        "redbeat_redis_options": {"passwort": CANARY},
    },
    "type of the password": {
        "redbeat_redis_url": "redis://h",
        "redbeat_redis_options": {"password": [CANARY]},
    },
    "type of the options": {"redbeat_redis_url": "redis://h", "redbeat_redis_options": CANARY},
    "type of the TLS options": {"redbeat_redis_url": "redis://h", "redbeat_redis_use_ssl": CANARY},
    "password of a key": {
        "redbeat_redis_url": "rediss://h",
        "redbeat_redis_use_ssl": {
            "ssl_password": CANARY,
            "ssl_certfile": "server.pem",
            "ssl_keyfile": "encrypted.key",
        },
    },
    "misspelt setting": {"redbeat_redis_pasword": CANARY, "redbeat_redis_url": "redis://"},
}


def filled(value: Any, port: int) -> Any:
    """Return the settings with the port filled in."""
    if isinstance(value, str):
        text = value.replace("{port}", str(port))
        return int(text) if value == "{port}" else text
    if isinstance(value, dict):
        return {key: filled(item, port) for key, item in value.items()}
    return type(value)(filled(item, port) for item in value) if is_list(value) else value


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def app_of(settings: dict[str, Any]) -> Celery:
    app = Celery("secrets", broker="memory://", set_as_current=False)
    app.conf.update(settings)
    return app


def shown(app: Celery) -> list[str]:
    """Return the repr and str of an app's objects."""
    conf = ensure_conf(app)
    parameters = client_parameters(conf.endpoint)
    objects: list[Any] = [conf, conf.endpoint, parameters, parameters.node]
    texts = [
        RedBeatScheduler(app, lazy=True).info,
        repr(RedBeatSchedulerEntry("a", "t", 1, app=app)),
    ]
    if conf.endpoint.is_cluster:
        return texts + [form(thing) for thing in objects for form in (repr, str)]
    client = get_redis(app)
    pool = getattr(client, "connection_pool", None)
    sentinel = getattr(app, "redbeat_sentinel", None)
    objects += [client, unretried(client), pool, getattr(pool, "connection_kwargs", None)]
    objects += [sentinel, *(sentinel.sentinels if sentinel else ())]
    return texts + [form(thing) for thing in objects for form in (repr, str)]


def errors_of(actions: list[Callable[[], Any]]) -> str:
    """Return the tracebacks of the failed actions, including chained exceptions."""
    errors = []
    for action in actions:
        try:
            action()
        except Exception:
            errors.append(traceback.format_exc())
    return "\n".join(errors)


@pytest.mark.parametrize("place", PLACES)
def test_no_output_contains_the_password(
    place: str, closed_port: int, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    app = app_of(filled(PLACES[place], closed_port))
    assert CANARY not in "\n".join(shown(app))
    beat = RedBeatScheduler(app)
    entry = RedBeatSchedulerEntry("a", "t", 60, app=app)
    errors = errors_of([entry.save, entry.delete, lambda: get_redis(app).ping()])
    assert errors.count("Traceback") >= 3
    assert CANARY not in errors
    for _ in range(2):
        beat.tick()
    beat.close()
    assert "Redis is not available" in caplog.text
    assert CANARY not in caplog.text
    assert CANARY not in "".join(capsys.readouterr())
    assert CANARY.encode() not in pickle.dumps(entry)


@pytest.mark.parametrize("place", WRONG)
def test_no_error_about_settings_contains_the_password(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    write_certificates(tmp_path)
    monkeypatch.chdir(tmp_path)
    app = app_of(WRONG[place])
    errors = errors_of([lambda: ensure_conf(app), lambda: get_redis(app)])
    assert CANARY not in errors
    assert CANARY not in caplog.text
    assert "redbeat" in errors + caplog.text


def test_an_authentication_error_does_not_contain_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with RedisServer(password="another") as server:
        app = app_of({"redbeat_redis_url": f"redis://:{CANARY}@127.0.0.1:{server.port}/0"})
        beat = RedBeatScheduler(app)
        beat.tick()
        beat.close()
        app.redbeat_redis.close()
    assert "AuthenticationError" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.long
def test_a_real_beat_at_log_level_debug_prints_no_password(
    tmp_path: Path, redis_url: str, closed_port: int
) -> None:
    project = Project(tmp_path, redis_url)
    try:
        url = f"rediss://user:{CANARY}@localhost:{closed_port}/0?ssl_password={CANARY}"
        options = {"password": CANARY, "socket_connect_timeout": 1}
        settings = {"redbeat_redis_url": url, "redbeat_redis_options": options}
        beat = project.beat("-l", "debug", settings=settings)
        beat.wait_for("Redis is not available")
        assert beat.stop() == 0
        output = beat.output()
        assert "DEBUG/" in output
        assert f"localhost:{closed_port}" in output
        assert CANARY not in output
    finally:
        project.end()
