"""Tests of schedulers that replace the package's lock."""

from __future__ import annotations

import pytest
from redis.exceptions import LockError

from tests.wild.programs import Run, Wild

HEAD = """
from celery.signals import beat_init
from redbeat.schedulers import (
    LUA_EXTEND_TO_SCRIPT,
    acquire_distributed_beat_lock,
    get_redis,
)

beat_init.disconnect(acquire_distributed_beat_lock)


def take(scheduler, key="redbeat:mine"):
    client = get_redis(scheduler.app)
    lock = client.lock(key, timeout=5, sleep=0.1, blocking_timeout=2)
    lock.lua_extend = client.register_script(LUA_EXTEND_TO_SCRIPT)
    if lock.acquire():
        scheduler.lock = lock
"""

IN_SETUP = (
    HEAD
    + """
class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        super().setup_schedule()
        take(self)
"""
)

IN_A_TICK = (
    HEAD
    + """
class Scheduler(RedBeatScheduler):
    own = None

    def tick(self, *args, **kwargs):
        if self.own is None:
            take(self)
            self.own = self.lock
        return super().tick(*args, **kwargs)
"""
)

AT_BEAT_INIT = (
    HEAD
    + """
@beat_init.connect
def start(sender=None, **kwargs):
    take(sender.scheduler)
"""
)

#: This program's lock has the same key as the package's lock.
SAME_KEY = IN_A_TICK.replace("redbeat:mine", "redbeat::lock")

LOCKS = {"setup": IN_SETUP, "tick": IN_A_TICK, "signal": AT_BEAT_INIT, "same key": SAME_KEY}


@pytest.mark.parametrize("where", LOCKS)
def test_a_beat_with_its_own_lock_sends(wild: Wild, run: Run, where: str) -> None:
    program = wild.program(LOCKS[where])
    program.module.save("job")
    key = "redbeat::lock" if where == "same key" else "redbeat:mine"
    with run(program, lead=False, service=where == "signal") as running:
        running.until(lambda: len(wild.messages()) >= 2)
        assert 0 < wild.client.pttl(key) <= 5000
        running.until(lambda: wild.runs("job") >= 2)
    assert wild.client.keys("redbeat:*lock") + wild.client.keys(key) == [], "released at close"


def test_an_own_lock_is_extended(wild: Wild, run: Run) -> None:
    program = wild.program(IN_A_TICK)
    program.module.save("job")
    lives: list[int] = []

    def extended() -> bool:
        lives.append(wild.client.pttl("redbeat:mine"))
        return lives[-1] > min(lives)

    with run(program, lead=False) as running:
        running.until(wild.messages)
        assert wild.client.exists("redbeat:mine")
        running.until(extended)
    assert min(lives) > 0


def test_a_beat_whose_own_lock_was_taken_sends_nothing(wild: Wild) -> None:
    program = wild.program(IN_SETUP)
    with wild.object(program, lead=False) as running:
        running.scheduler.tick()
        wild.client.set("redbeat:mine", "another beat")
        program.module.save("job")
        for _ in range(3):
            try:
                running.scheduler.tick()
            except LockError:
                break
    assert wild.messages() == []
    assert wild.client.get("redbeat:mine") == "another beat"


#: A lock class with only the methods that the scheduler calls.
DUCK = """
from celery.signals import beat_init
from redbeat.schedulers import acquire_distributed_beat_lock, get_redis

beat_init.disconnect(acquire_distributed_beat_lock)


class Lease:
    def __init__(self, client):
        self.client = client

    def acquire(self):
        return bool(self.client.set("redbeat:lease", "me", ex=5, nx=True))

    def owned(self):
        return self.client.get("redbeat:lease") == "me"

    def extend(self, seconds):
        self.client.incr("extended")
        return self.client.expire("redbeat:lease", int(seconds))

    def release(self):
        self.client.delete("redbeat:lease")


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        super().setup_schedule()
        lease = Lease(get_redis(self.app))
        if lease.acquire():
            self.lock = lease
"""


def test_a_lock_of_another_class(wild: Wild, run: Run) -> None:
    program = wild.program(DUCK)
    program.module.save("job")
    with run(program, lead=False) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.client.get("extended"))
    assert not wild.client.exists("redbeat:lease")


def test_an_embedder_releases_the_lock(wild: Wild) -> None:
    program = wild.program()
    with wild.object(program) as running:
        assert wild.client.exists("redbeat::lock")
        assert running.scheduler.lock.owned()
        running.scheduler.lock.release()
        assert not wild.client.exists("redbeat::lock")
