"""A beat that kills itself once, at a named point between look, hold, publish and record.

An environment variable names the point and the count: ``published:7`` is the seventh publish. A
file in the working directory records the crash, so that the restarted beat keeps running.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.signals import after_task_publish

from redbeat.storage.rows import Reply, Request
from redbeat.storage.store import Store
from tests.schedulers import Scheduler

__all__ = ("CRASH_AT", "MARK", "WRAPPER", "CrashingScheduler")

#: The environment variable that names the point and the count at which the beat dies.
CRASH_AT = "REDBEAT_TEST_CRASH_AT"

#: The file that records the crash.
MARK = "crashed"

#: A script that runs :class:`CrashingScheduler` instead of ``-m celery``.
WRAPPER = """
import sys
from celery.__main__ import main
sys.argv[sys.argv.index("redbeat")] = "tests.faults.crashing:CrashingScheduler"
sys.exit(main())
"""

_passed: dict[str, int] = {}


def passes(point: str) -> None:
    """Count how often the beat passes a point, and kill the process at the configured count."""
    wanted, _, number = os.environ[CRASH_AT].partition(":")
    _passed[point] = _passed.get(point, 0) + 1
    if point == wanted and _passed[point] == int(number) and not Path(MARK).exists():
        Path(MARK).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class CrashingStore(Store):
    """A store that dies before or after its requests to Redis.

    At the point ``looked``, the beat knows what is due. At ``held``, Redis holds runs that are not
    published. At ``decided``, the beat is about to record runs: the broker has confirmed their
    messages, or they are at-most-once runs and have no messages yet. At ``recorded``, Redis has
    recorded runs and the beat has not read the reply yet.
    """

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Carry out the turn at once, and die before or after it if this point is configured.

        Otherwise the order of the steps would vary.
        """
        records = any(change.line for change in request.changes)
        if records:
            passes("decided")
        reply = super().begin_turn(request)()
        if records:
            passes("recorded")
        if any('"hold":' in change.set.get("beat_state", "") for change in request.changes):
            passes("held")
        if reply.rows:
            passes("looked")
        return lambda: reply


class CrashingScheduler(Scheduler):
    """A scheduler that dies before or after its requests, or after publishing a message.

    The point after a message is named ``published``. With a publish window above 1, this message
    may not have reached the broker yet.
    """

    make_store = CrashingStore


def published(**_kwargs: Any) -> None:
    """Die after a message if this point is configured."""
    passes("published")


if CRASH_AT in os.environ:  # the tests import names of this module
    after_task_publish.connect(published)
