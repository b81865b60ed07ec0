"""A beat that kills itself once, at a named point between claim, record and publish.

An environment variable names the point and the count: ``published:7`` is the seventh publish. A
file in the working directory records the crash, so that the restarted beat keeps running.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.records import ClaimReply, ClaimRequest
from redbeat.storage.store import Store

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

    At the point ``claimed``, Redis has granted claims and the beat has not used them yet. At
    ``decided``, the beat is about to record runs: the broker has confirmed their messages, or they
    are at-most-once runs and have no messages yet. At ``recorded``, Redis has recorded runs and
    the beat has not read the reply yet.
    """

    # If claims overlapped with publishes, the order of the steps would vary.
    overlaps = False

    def claim(self, *terms: Any, **more: Any) -> ClaimReply:
        """Send the request, and die before or after it if this point is configured."""
        request = ClaimRequest(*terms, **more)
        if any(done.meta for done in request.completions):
            passes("decided")
        turn = super().claim(*request)
        if any(done.meta for done in request.completions):
            passes("recorded")
        if turn.claims:
            passes("claimed")
        return turn


class CrashingScheduler(RedBeatScheduler):
    """A scheduler that dies before or after its requests, or after publishing a message.

    The point after a message is named ``published``. With a publish window above 1, this message
    may not have reached the broker yet.
    """

    @property
    def _stored(self) -> Store:
        store = super()._stored
        return CrashingStore(store.client, store.keys)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Publish the message, then die if this point is configured."""
        result = super().apply_async(*args, **kwargs)
        passes("published")
        return result
