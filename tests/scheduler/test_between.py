"""What programs and workers say about an entry while a beat reads, sends and records its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatScheduler
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from tests.deployments import PREFIX
from tests.workers import end_run, reporting

from .clients import Wire
from .conftest import World
from .test_exactly_once import Queues, queues

__all__ = ("queues",)

pytestmark = pytest.mark.standalone

HOUR = 3600.0
#: More commands than a beat sends in one tick.
COMMANDS = 30


@pytest.fixture
def program(redis_url: str) -> Iterator[Celery]:
    """The app of a program and of its workers, with its own connections."""
    app = Celery("program", set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, timezone="UTC")
    with reporting(app):
        yield app
    app.redbeat_redis.close()
    app.close()


class Amid:
    """A beat, and something that happens before each of the commands of its tick in turn."""

    def __init__(self, world: World, wire: Wire, queues: Queues, delivery: str) -> None:
        world.app.conf.redbeat_delivery = delivery
        self.world, self.wire, self.queues = world, wire, queues
        self.beat = world.scheduler_of(RedBeatScheduler)
        self.beat.tick()

    def tick(self, number: int, action: Callable[[], object]) -> bool:
        """Tick; run ``action`` before the command with this number.

        Return False if the tick has fewer commands.
        """
        sent = happened = 0

        def is_next() -> bool:
            nonlocal sent
            sent += 1
            return sent == number

        def happen() -> None:
            nonlocal happened
            happened = 1
            action()

        self.wire.before_command(happen, is_next)
        self.beat.tick()
        self.wire.forget()
        return bool(happened)

    def ids(self, name: str) -> list[str]:
        """Return the ids of the messages of an entry, after some more ticks."""
        for _ in range(3):
            self.beat.tick()
        return [
            message["headers"]["id"]
            for message in self.queues.messages()
            if message["headers"]["periodic_task_name"] == name
        ]


@pytest.fixture(params=[EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE])
def amid(
    world: World, wire: Wire, queues: Queues, request: pytest.FixtureRequest
) -> Iterator[Amid]:
    """A beat with each kind of delivery."""
    with reporting(world.app):
        yield Amid(world, wire, queues, request.param)


def every_command(check: Callable[[int], bool]) -> None:
    """Call ``check`` with the number of each command, until a tick has no such command."""
    commands = sum(1 for _ in takewhile(check, range(1, COMMANDS)))
    assert 1 < commands < COMMANDS - 1, "a beat reads, and then writes"


def test_no_trigger_is_lost(amid: Amid, world: World, program: Celery) -> None:
    def check(number: int) -> bool:
        name = f"a{number}"
        entry = RedBeatSchedulerEntry(
            name, "tasks.a", HOUR, last_run_at=world.ago(5000), app=program
        ).save()
        triggered: list[str] = []
        happened = amid.tick(number, lambda: triggered.append(entry.trigger()))
        ids = amid.ids(name)
        assert len(ids) == len({*ids}) == 1 + happened
        assert {*triggered} <= {*ids}, f"the trigger before command {number}"
        return happened

    every_command(check)


def test_no_end_of_a_run_is_lost(amid: Amid, world: World, program: Celery) -> None:
    """The run before this one ends while the beat looks at the entry, which waits for the end."""

    def check(number: int) -> bool:
        name = f"a{number}"
        entry = RedBeatSchedulerEntry(name, "tasks.a", HOUR, overlap="buffer_one", app=program)
        entry.last_run_at = world.ago(5000)
        entry.save()
        (first,) = amid.ids(name)
        world.put_meta(name, world.ago(4000))
        world.make_due(name)
        headers = {"periodic_task_name": name, "redbeat_overlap": f"{PREFIX}{name}"}
        happened = amid.tick(number, lambda: end_run(program, first, headers))
        assert len(amid.ids(name)) == 1 + happened, f"the end before command {number}"
        return happened

    every_command(check)
