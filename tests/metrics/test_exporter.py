"""Tests of the exporter, which serves the counts that Redis stores."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from redbeat.beat.lock import new_token
from redbeat.errors import EX_CONFIG
from redbeat.metrics.prometheus import serve_exporter
from tests.acceptance.processes import Project
from tests.cli.commands import run_command
from tests.metrics.conftest import begin_beat, begin_exporter
from tests.metrics.scrapes import Target, own_names
from tests.metrics.test_beats import entries
from tests.scheduler.conftest import World
from tests.servers import RedisServer, free_port
from tests.waiting import wait_until


def sent(project: Project, messages: int) -> bool:
    """Return whether the queue contains ``messages`` messages."""
    return project.client.llen("celery") == messages


@pytest.mark.long
def test_all_beats_together(project: Project) -> None:
    entries(project, "a", "b", "c")
    exporter, target = begin_exporter(project)
    for messages in (3, 4):
        beat = project.beat()
        beat.wait_for("beat: Acquired lock")
        wait_until(partial(sent, project, messages), 30, f"{messages} messages")
        assert beat.stop() == 0
        project.client.zadd("redbeat::schedule", {"redbeat:a": 0})
        project.client.hdel("redbeat:a", "meta", "runtime")
    scrape = target.wait_for(4, "redbeat_dispatched_total")
    assert scrape.by_entry("dispatched") == {"a": 2, "b": 1, "c": 1}
    assert scrape.value("redbeat_lateness_seconds_count") == 4
    assert scrape.value("redbeat_leader") == 0
    assert scrape.value("redbeat_due_entries") == 1
    assert (scrape.value("redbeat_last_tick_age_seconds") or 0) > 0
    assert exporter.stop() == 0
    assert "Traceback" not in exporter.output()


@pytest.mark.long
def test_exporter_and_beat_export_the_same_values(project: Project) -> None:
    entries(project, "a", "b")
    _, beat = begin_beat(project)
    _, target = begin_exporter(project)
    seen = beat.wait_for(2, "redbeat_dispatched_total")
    scrape = target.wait_for(2, "redbeat_dispatched_total")
    exported = {name for name in seen.names if name.startswith("redbeat_")}
    assert {name for name in scrape.names if name.startswith("redbeat_")} == exported <= own_names()
    for name in ("dispatched_total", "leader", "beats", "redis_up", "static_entries"):
        assert scrape.value(f"redbeat_{name}") == seen.value(f"redbeat_{name}"), name


@pytest.mark.long
def test_an_empty_redis(project: Project) -> None:
    exporter, target = begin_exporter(project)
    exporter.wait_for(f"Metrics are at http://127.0.0.1:{target.port}/metrics")
    scrape = target.scrape()
    assert scrape.value("redbeat_redis_up") == 1
    assert scrape.value("redbeat_leader") == scrape.value("redbeat_dispatched_total") == 0
    assert scrape.value("redbeat_last_tick_age_seconds") is None
    assert target.get("/readyz").code == target.get("/healthz").code == 200
    assert exporter.stop(signal.SIGINT) == 0


@pytest.mark.long
def test_beats_without_a_lock(project: Project) -> None:
    tokens = {new_token(): float(project.client.time()[0]) for _ in range(2)}
    project.client.zadd(".redbeat::beats", tokens)
    _, target = begin_exporter(project, redbeat_lock_key=None)
    target.wait("/readyz", 200)
    scrape = target.scrape()
    assert scrape.value("redbeat_leader") == 1
    assert scrape.value("redbeat_beats") == 2


@pytest.mark.long
def test_more_entries_than_the_limit_are_exported_together(project: Project) -> None:
    stats: dict[Any, Any] = {"dispatched": 9, "dispatched a": 4, "dispatched b": 5}
    project.client.hset(".redbeat::stats", mapping=stats)
    entries(project, "a", "b")
    _, few = begin_exporter(project, redbeat_metrics_entries=1)
    _, enough = begin_exporter(project, redbeat_metrics_entries=2)
    assert few.wait_for(9, "redbeat_dispatched_total").by_entry("dispatched") == {}
    scrape = enough.wait_for(9, "redbeat_dispatched_total")
    assert scrape.by_entry("dispatched") == {"a": 4, "b": 5}


@pytest.mark.long
def test_redis_away(frail: Project, server: RedisServer) -> None:
    """The exporter starts while Redis is down. Later, Redis stops responding."""
    server.kill()
    exporter, target = begin_exporter(frail)
    assert "Connection refused" in target.wait("/readyz", 503)
    assert target.get("/healthz").code == 200
    scrape = target.scrape()
    assert scrape.value("redbeat_redis_up") == 0
    assert scrape.value("redbeat_dispatched_total") is None, "no number is better than a 0"
    server.restart()
    target.wait("/readyz", 200)
    assert target.scrape().value("redbeat_redis_up") == 1
    server.pause()
    assert target.scrape().value("redbeat_redis_up") == 0
    server.resume()
    target.wait("/readyz", 200)
    assert exporter.stop() == 0


def test_an_exporter_in_a_program(app: Celery, redis_client: redis.Redis, world: World) -> None:
    """A program may serve the metrics itself."""
    world.put("a")
    scheduler = world.scheduler()
    for _ in range(2):  # the second tick stores the counts
        scheduler.tick()
    exporter = serve_exporter(app, "127.0.0.1", free_port())
    try:
        target = Target(int(urlsplit(exporter.url).port or 0))
        assert target.scrape().value("redbeat_dispatched_total") == 1
        for path, text in (("/healthz", "the exporter is running"), ("/readyz", "Redis answers")):
            assert target.get(path) == (200, f"{text}\n")
    finally:
        exporter.close()
    assert redis_client.ping()


def test_a_port_in_use(app: Celery, redis_server: RedisServer) -> None:
    ran = run_command(app, "exporter", "--port", str(redis_server.port))
    assert ran.code == EX_CONFIG
    assert f"cannot listen on 127.0.0.1, port {redis_server.port}" in ran.err


def test_without_the_prometheus_package(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "redbeat.metrics.prometheus", raising=False)
    ran = run_command(app, "exporter", "--port", str(free_port()))
    assert ran.code == EX_CONFIG
    assert "pip install 'celery-redbeat[metrics]'" in ran.err


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_an_invalid_port_is_refused(app: Celery, redis_client: redis.Redis, port: str) -> None:
    del redis_client
    assert run_command(app, "exporter", "--port", port).code == 2


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_command_serves_until_a_signal(
    app: Celery, unused_port: int, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The signal arrives after the first scrape; then nothing listens on the port any more."""
    target, scraped = Target(unused_port), []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def serve(*args: Any) -> Any:
        server = serve_exporter(*args)
        scraped.append(target.scrape().names)
        os.kill(os.getpid(), signal.SIGTERM)
        return server

    monkeypatch.setattr("redbeat.metrics.prometheus.serve_exporter", serve)
    try:
        ran = run_command(app, "exporter", "--port", str(unused_port), *words)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    url = f"http://127.0.0.1:{unused_port}"
    assert (ran.code, url in (ran.out if words else ran.err)) == (0, True), ran
    assert "redbeat_redis_up" in scraped[0]
    assert target.get("/metrics").code == 0
