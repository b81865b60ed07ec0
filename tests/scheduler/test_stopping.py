"""A stop signal arrives while the beat waits for Redis."""

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

#: More than one batch, so that a reply arrives in advance.
MANY = 700


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """A signal handler like that of beat, which raises wherever the process is."""

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


def test_a_stopping_beat_waits_for_the_reply(world: World, clock: Clock) -> None:
    """Setup: two batches are due, and Redis takes half a second to reply.

    Fault: SIGTERM while the beat waits for the reply.

    Invariant: the tick ends with the exception of the handler. Sent runs are recorded and nothing
    is claimed, so that no beat sends them again.
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
    """Runs in a service, which waits itself; Redis is slow after its tick, and SIGTERM arrives."""

    pause = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service = SimpleNamespace(_is_shutdown=threading.Event())
        self.ticks = 0

    def should_sync(self) -> bool:
        """Delay Redis: Celery calls this after each tick."""
        self.ticks += 1
        if self.pause:
            get_redis(self.app).client_pause(self.pause)
        return False


def test_a_stop_during_a_subscription_raises_no_connection_error(world: World) -> None:
    """Setup: a beat subscribes, and Redis takes half a second to confirm.

    Fault: SIGTERM during that time; the handler closes the scheduler, as that of beat does.

    Invariant: the beat ends with the handler's exception, not with an error of a closed connection.
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
    """Setup: no entry is due, so the beat waits for a message.

    Fault: SIGTERM.

    Invariant: the beat ends long before its waiting time is over.
    """
    scheduler = world.scheduler_of(Slow)
    assert scheduler.tick() == 0.0
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 2
