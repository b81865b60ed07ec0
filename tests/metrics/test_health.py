"""Tests of the health probes, for a beat that hangs and for a beat whose Redis is down."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Celery

from redbeat.metrics.counters import ALIVE_WITHIN, FAILING_WITHIN, READY_WITHIN, BeatHealth
from tests.acceptance.processes import Project
from tests.metrics.conftest import begin_beat
from tests.metrics.scrapes import Target
from tests.scheduler.conftest import Clock, World
from tests.servers import RedisServer
from tests.waiting import wait_until


@pytest.fixture
def health(clock: Clock) -> BeatHealth:
    """Return the health of a beat that has just started."""
    return BeatHealth(clock)


def test_before_the_first_tick(health: BeatHealth, clock: Clock) -> None:
    assert health.alive().ok
    assert not health.ready().ok
    clock.advance(ALIVE_WITHIN + 1)
    assert not health.alive().ok, "it never came to tick"


@pytest.mark.parametrize("leads", [True, False])
def test_leader_and_standby_are_ready(health: BeatHealth, leads: bool) -> None:
    health.observe(leads, no_lock=False)
    health.completed()
    assert health.ready() == (True, "leader" if leads else "standby")


def test_a_standby_on_a_key_that_is_not_a_lock_is_not_ready(health: BeatHealth) -> None:
    health.observe(leads=False, no_lock=True)
    health.completed()
    assert health.ready() == (False, "the lock key contains something that is not a lock")
    health.observe(leads=False, no_lock=False)
    assert health.ready().ok


def test_redis_away(health: BeatHealth, clock: Clock) -> None:
    health.observe(leads=True, no_lock=False)
    health.completed()
    for _ in range(100):
        clock.advance(2)
        health.failed("ReadOnlyError: cannot write")
        health.ticked()
        assert health.ready().ok is (
            health.tick_age is not None and health.tick_age <= FAILING_WITHIN
        )
        assert health.ready().ok or "ReadOnlyError: cannot write" in health.ready().why
        assert health.alive().ok, "a restart does not bring Redis back"
        assert not health.redis_up
    health.completed()
    assert health.ready().ok
    assert health.redis_up


def test_a_tick_that_fails_although_redis_answers(health: BeatHealth) -> None:
    health.completed()
    health.tick_error = "the tick fails: ValueError: out of order"
    assert health.ready() == (False, "the tick fails: ValueError: out of order")
    assert health.alive().ok


def test_a_beat_that_cannot_send_is_not_ready(health: BeatHealth) -> None:
    health.completed()
    health.problem = "the broker is not available"
    assert health.ready() == (False, "the broker is not available")
    assert health.alive().ok


def test_a_long_tick(health: BeatHealth, clock: Clock) -> None:
    health.observe(leads=True, no_lock=False)
    health.completed()
    health.ticked()
    clock.advance(READY_WITHIN + 1)
    assert health.alive().ok
    assert not health.ready().ok
    clock.advance(ALIVE_WITHIN - READY_WITHIN)
    assert not health.alive().ok


def test_a_beat_that_hangs(world: World, clock: Clock, unused_port: int) -> None:
    """The beat hangs while it publishes a message."""
    world.app.conf.redbeat_metrics_port = unused_port
    scheduler, target = world.scheduler(clock=clock), Target(unused_port)
    scheduler.tick()
    assert target.get("/readyz") == (200, "leader\n")
    world.put("a")
    begun, go_on = threading.Event(), threading.Event()

    def hang(_task: str) -> None:
        begun.set()
        assert go_on.wait(60)

    scheduler.before_send = hang
    tick = threading.Thread(target=scheduler.tick)
    tick.start()
    assert begun.wait(60)
    assert target.get("/healthz").code == 200
    clock.advance(ALIVE_WITHIN + 1)
    code, text = target.get("/healthz")
    assert (code, text) == (503, f"the last tick ended {ALIVE_WITHIN + 1:.1f} s ago\n")
    assert target.get("/readyz").code == 503
    assert target.scrape().value("redbeat_last_tick_age_seconds") == ALIVE_WITHIN + 1
    go_on.set()
    tick.join(60)
    assert target.get("/healthz").code == target.get("/readyz").code == 200
    scheduler.close()
    assert target.get("/healthz").code == 0, "it still listens"


def test_without_entries_and_without_a_lock(app: Celery, world: World, unused_port: int) -> None:
    app.conf.update(redbeat_metrics_port=unused_port, redbeat_lock_key=None)
    world.scheduler().tick()
    target = Target(unused_port)
    assert target.get("/healthz").code == 200
    assert target.get("/readyz") == (200, "leader\n")
    scrape = target.scrape()
    assert scrape.value("redbeat_leader") == scrape.value("redbeat_beats") == 1
    assert scrape.value("redbeat_lock_age_seconds") is None
    assert scrape.value("redbeat_entries", state="scheduled") == 0


def test_other_paths(world: World, unused_port: int) -> None:
    world.app.conf.redbeat_metrics_port = unused_port
    world.scheduler().tick()
    code, text = Target(unused_port).get("/")
    assert code == 404
    assert "/metrics" in text


@pytest.mark.long
@pytest.mark.parametrize("outage", ["read-only", "full"])
def test_the_leader_dies_while_redis_takes_no_writes(frail: Project, outage: str) -> None:
    refuse, allow = {
        "read-only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    }[outage]
    leader, target = begin_beat(frail)
    target.wait_for(1, "redbeat_leader")
    standby, target = begin_beat(frail)
    assert target.wait("/readyz", 200) == "standby\n"
    redis: Any = frail.client
    redis.execute_command(*refuse)
    leader.end()
    why = {"read-only": "ReadOnlyError", "full": "OutOfMemoryError"}[outage]
    assert why in target.wait("/readyz", 503)
    scrape = target.scrape()
    assert scrape.value("redbeat_redis_up") == 1
    assert scrape.value("redbeat_problem", kind="redis", severity="error") == 1
    redis.execute_command(*allow)
    wait_until(lambda: target.get("/readyz").text == "leader\n", 60, "the standby leads")
    assert standby.output().count("takes over") == 1
    assert target.scrape().value("redbeat_problem", kind="redis", severity="error") is None
    assert standby.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("outage", ["frozen", "down"])
def test_a_real_beat_while_redis_is_away(frail: Project, server: RedisServer, outage: str) -> None:
    beat, target = begin_beat(frail)
    target.wait("/readyz", 200)
    server.pause() if outage == "frozen" else server.kill()
    assert "the last tick succeeded" in target.wait("/readyz", 503)
    assert target.get("/healthz").code == 200
    scrape = target.scrape()
    assert scrape.value("redbeat_redis_up") == 0
    assert (scrape.value("redbeat_last_tick_age_seconds") or 0) > FAILING_WITHIN
    assert scrape.value("redbeat_due_entries") is None
    server.resume() if outage == "frozen" else server.restart()
    target.wait("/readyz", 200)
    target.wait_for(1, "redbeat_redis_up")
    assert beat.stop() == 0
