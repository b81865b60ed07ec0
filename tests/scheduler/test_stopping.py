"""Told to stop while it talks to Redis."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.schedulers import get_redis

from .conftest import Clock, RecordingScheduler, World

#: More than one batch, so that an answer comes in advance.
MANY = 700


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """A handler as that of beat, which raises wherever it is called."""

    def stop(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


@contextmanager
def signalled() -> Iterator[None]:
    """SIGTERM, a fifth of a second from now."""
    signalling = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    signalling.start()
    yield
    signalling.join()


def test_the_answer_is_waited_for(world: World, clock: Clock) -> None:
    """Setup: two batches are due, and Redis takes half a second to answer.

    Fault: SIGTERM while the answer is waited for.

    Invariant: the tick ends as it is told, with what was sent recorded and nothing claimed, so that
    nobody sends it again.
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
    """In a service, so that it waits itself; Redis is slow after its tick, and SIGTERM comes."""

    pause = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service = SimpleNamespace(_is_shutdown=threading.Event())
        self.ticks = 0

    def should_sync(self) -> bool:
        """Celery asks that after each tick."""
        self.ticks += 1
        if self.pause:
            get_redis(self.app).client_pause(self.pause)
        return False


def test_a_subscription_is_not_ended_in_the_middle(world: World) -> None:
    """Setup: a beat subscribes, and Redis takes half a second to confirm.

    Fault: SIGTERM meanwhile; the handler closes the scheduler, as that of beat does.

    Invariant: it ends as it is told, and not by an error of a reader whose connection was closed.
    """
    scheduler = world.scheduler_of(Slow)
    scheduler.pause = 500

    def stop(*_: object) -> None:
        scheduler.close()
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 1


def test_waiting_ends_at_once(world: World) -> None:
    """Setup: nothing is due, so that the beat waits for a message. Fault: SIGTERM. Invariant: it
    ends, long before the time it had to wait.
    """
    scheduler = world.scheduler_of(Slow)
    assert scheduler.tick() == 0.0
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 2
