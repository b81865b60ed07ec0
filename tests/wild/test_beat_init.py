"""Tests of programs whose `beat_init` receivers run after the package's receiver."""

from __future__ import annotations

from tests.wild.programs import Run, Wild

RECEIVER = """
from celery.signals import beat_init
from redbeat.schedulers import get_redis


@beat_init.connect(weak=False)
def started(sender=None, **kwargs):
    scheduler = sender.scheduler
    client = get_redis(scheduler.app)
    seen = {
        "held": client.exists(scheduler.lock_key),
        "owned": scheduler.lock.owned(),
        "key": scheduler.lock_key,
        "timeout": scheduler.lock_timeout,
    }
    client.set("seen", json.dumps(seen))
    save("job", args=["saved at the start"])
"""


def test_the_lock_is_held_when_a_receiver_is_called(wild: Wild, run: Run) -> None:
    program = wild.program(RECEIVER)
    with run(program, service=True) as running:
        running.until(wild.messages)
    seen = program.module.json.loads(wild.client.get("seen"))
    assert seen == {"held": 1, "owned": True, "key": "redbeat::lock", "timeout": 5}
    assert wild.messages()[0].args == ["saved at the start"]


#: This receiver works only in the beat that holds the lock.
ONLY_ONE = """
from celery.signals import beat_init
from redbeat.schedulers import get_redis


@beat_init.connect(weak=False)
def started(sender=None, **kwargs):
    scheduler = sender.scheduler
    if scheduler.lock is not None and scheduler.lock.owned():
        scheduler.lock.extend(30)
        get_redis(scheduler.app).set("lives", scheduler.lock.name)
        save("job")
"""


def test_a_receiver_extends_the_lock(wild: Wild, run: Run) -> None:
    with run(wild.program(ONLY_ONE), service=True) as running:
        running.until(wild.messages)
    assert wild.client.get("lives") == "redbeat::lock"
    assert not wild.client.exists("redbeat::lock")
