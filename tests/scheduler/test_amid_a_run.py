"""What happens amid a run: a beat dies, user code edits the entry, reports come late, a stop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from celery import Task

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatScheduler
from redbeat.settings import AT_MOST_ONCE
from tests.deployments import PREFIX
from tests.faults.proxy import Proxy
from tests.servers import RedisServer
from tests.waiting import wait_until
from tests.workers import reporting

from .clients import Wire
from .conftest import World, interval_json, void
from .test_exactly_once import Queues, queues

__all__ = ("queues",)

pytestmark = pytest.mark.standalone

KEY = f"{PREFIX}a"
HOUR = 3600.0


class DeadError(BaseException):
    """An exception that no handler of a beat catches. It simulates SIGKILL."""


def kill(world: World, wire: Wire, scheduler: Any, when: Callable[[], object]) -> None:
    """Let ``scheduler`` die in a tick, before the first command that is sent while ``when`` holds.

    The lock is free afterwards, as after its time has passed.
    """

    def die() -> None:
        raise DeadError

    world.schedulers.remove(scheduler)  # a killed beat does not close its scheduler
    wire.before_command(die, when)
    with pytest.raises(DeadError):
        scheduler.tick()
    world.client.delete(f"{PREFIX}:lock")


# -- a held run is not decided again ---------------------------------------------------------------


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_what_a_killed_beat_had_looked_at_is_sent_by_the_next_beat(
    world: World, wire: Wire, queues: Queues, locked: bool
) -> None:
    """With exactly-once delivery, nothing was sent, so there is nothing to wait for."""
    if not locked:
        world.app.conf.redbeat_lock_key = None
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    world.put("a", interval_json(60), world.ago(90))
    commands = count(1)
    kill(world, wire, scheduler, lambda: next(commands) == 2)
    heir = world.scheduler_of(RedBeatScheduler)

    def sent() -> list[str]:
        heir.tick()
        return queues.names()

    assert wait_until(sent, 0.5 if locked else 2.0) == ["a"]


# -- user code around a run ------------------------------------------------------------------------


class Singleton(Task):
    """A task that sends nothing while an earlier message of it is waiting."""

    def apply_async(self, *_: Any, **__: Any) -> Any:
        """Send nothing, and return the result of the earlier message."""
        return self.AsyncResult("the earlier message")


def test_a_task_that_sends_nothing_is_not_running(world: World, queues: Queues) -> None:
    with reporting(world.app):
        world.app.task(name="tasks.a", base=Singleton, shared=False)(void)
        RedBeatSchedulerEntry(
            "a", "tasks.a", HOUR, overlap="skip", last_run_at=world.ago(5000), app=world.app
        ).save()
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
        assert queues.messages() == []
        assert entry.history[0].outcome == "not_sent"
        assert world.running("a") is None


# -- ends of runs ----------------------------------------------------------------------------------


# -- a stop while the broker is away ---------------------------------------------------------------


def test_a_stop_while_the_broker_is_away_puts_back_what_was_not_tried(
    world: World, wire: Wire
) -> None:
    """The broker goes away when a group of at-most-once runs is recorded, and the beat stops."""
    world.app.conf.redbeat_delivery = AT_MOST_ONCE
    with RedisServer() as server, Proxy(server.port) as proxy:
        world.app.conf.broker_url = proxy.url
        queues = Queues(server.url)
        stopping = world.scheduler_of(RedBeatScheduler)
        stopping.tick()
        world.put_many(100)

        def lose_broker() -> None:
            proxy.refuse()
            proxy.cut()

        wire.after_reply(lose_broker, lambda: any(world.run_count(f"e{n}") for n in range(100)))
        stopping.tick()
        stopping.close()
        assert queues.names() == []
        proxy.refuse(False)
        heir = world.scheduler_of(RedBeatScheduler)
        for _ in range(3):
            heir.tick()
        names = queues.names()
        queues.client.close()
    assert len(names) == len({*names}), "no run is sent twice"
    assert len(names) >= 99, "only a run that was tried may be lost"
