"""Tests in which a stop signal arrives while the beat waits for Redis."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.settings import AT_LEAST_ONCE
from tests.deployments import PREFIX
from tests.waiting import wait_until

from .conftest import Clock, RecordingScheduler, World, interval_json

#: More entries than one batch, so the beat requests the second batch in advance.
MANY = 700


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Install a SIGTERM handler that raises ``SystemExit``, like the handler of Celery Beat."""

    def stop(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


@contextmanager
def signalled(ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Send SIGTERM to this process, 0.2 s after the start and once ``ready`` returns true."""

    def send() -> None:
        wait_until(ready, 30)
        os.kill(os.getpid(), signal.SIGTERM)

    signalling = threading.Timer(0.2, send)
    signalling.start()
    yield
    signalling.join()


def test_a_stopping_beat_waits_for_the_reply(world: World, clock: Clock) -> None:
    """Setup: two batches are due, and Redis takes half a second to reply.

    Fault: SIGTERM arrives while the beat waits for the reply.

    Invariant: the tick raises the exception of the signal handler. All sent runs are recorded and
    no hold is left, so each run is sent exactly once.
    """
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    world.put_many(MANY)
    world.client.client_pause(500)
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    heir = world.scheduler(clock=clock)
    heir.tick()
    sent = scheduler.names + heir.names
    assert len(sent) == len(set(sent)) == MANY
    assert all(world.run_count(name) == 1 for name in sent)


class Slow(RecordingScheduler):
    """A scheduler with a fake service. It calls ``after_tick`` after each tick."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service = SimpleNamespace(_is_shutdown=threading.Event())
        self.ticks = 0
        self.after_tick: Callable[[], object] = lambda: None

    def should_sync(self) -> bool:
        """Count the tick. Celery calls this method after each tick."""
        self.ticks += 1
        self.after_tick()
        return False


def test_a_stop_during_a_subscription_raises_no_connection_error(world: World) -> None:
    """Setup: a beat subscribes, and Redis takes half a second to confirm.

    Fault: SIGTERM arrives before the confirmation. The signal handler closes the scheduler.

    Invariant: the tick raises the exception of the signal handler, not a connection error.
    """
    scheduler = world.scheduler_of(Slow)
    scheduler.after_tick = lambda: world.client.client_pause(500)

    def stop(*_: object) -> None:
        scheduler.close()
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 1


def test_waiting_ends_at_once(world: World) -> None:
    """Setup: no entry is due, so the beat waits for a wake-up message.

    Fault: SIGTERM arrives.

    Invariant: the beat stops waiting immediately.
    """
    scheduler = world.scheduler_of(Slow)
    assert scheduler.tick() == 0.0
    with signalled(lambda: scheduler.ticks == 2), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 2


def test_a_run_that_was_sent_before_the_exit_is_recorded_although_it_was_edited(
    world: World,
) -> None:
    """The first attempt to record the run finds the edit, so it takes a second attempt."""
    world.app.conf.redbeat_delivery = AT_LEAST_ONCE
    world.put("a", interval_json(60), world.ago(90), score=world.now() - 30)
    world.put("b", interval_json(60), world.ago(90), score=world.now() - 20)
    scheduler = world.scheduler()

    def before_send(task: str) -> None:
        if task == "tasks.b":
            raise SystemExit
        definition = {**world.field("a", "definition"), "args": ["edited"]}
        world.client.hset(f"{PREFIX}a", "definition", json.dumps(definition))

    scheduler.before_send = before_send
    with pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.run_count("a") == 1
