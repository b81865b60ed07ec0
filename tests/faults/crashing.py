"""A beat that kills itself once, at a named point between claim, record and publish.

An environment variable names the point: ``published:7`` is the seventh publish. A file in the
working directory records the crash, so that the restarted beat keeps running.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from redbeat.beat import ticker
from redbeat.beat.publisher import InFlightMessage, Publisher
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.records import ClaimReply, ClaimRequest
from redbeat.storage.store import Store

__all__ = ("CRASH_AT", "MARK", "WRAPPER", "CrashingScheduler")

#: The environment variable with the point, and with the count at which the beat dies.
CRASH_AT = "REDBEAT_TEST_CRASH_AT"

#: The file that records the crash.
MARK = "crashed"

#: A script that runs this scheduler instead of ``-m celery``.
WRAPPER = """
import sys
from celery.__main__ import main
sys.argv[sys.argv.index("redbeat")] = "tests.faults.crashing:CrashingScheduler"
sys.exit(main())
"""

_passed: dict[str, int] = {}


def passes(point: str) -> None:
    """Count the passes of a point; kill the process at the configured count."""
    wanted, _, number = os.environ[CRASH_AT].partition(":")
    _passed[point] = _passed.get(point, 0) + 1
    if point == wanted and _passed[point] == int(number) and not Path(MARK).exists():
        Path(MARK).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class CrashingStore(Store):
    """Dies before or after requests to Redis.

    ``claimed``: Redis granted claims, and the beat has not used them. ``decided``: the beat is
    about to record at-most-once runs. ``recorded``: Redis recorded runs, and the beat has not read
    the reply.
    """

    #: Claiming ahead while runs are published would blur the order of the steps.
    overlaps = False

    def claim(self, *terms: Any, **more: Any) -> ClaimReply:
        """Send the request, and die before or after it."""
        request = ClaimRequest(*terms, **more)
        if any(done.meta for done in request.completions):
            passes("decided")
        turn = super().claim(*request)
        if any(done.meta for done in request.completions):
            passes("recorded")
        if turn.claims:
            passes("claimed")
        return turn


class CrashingPublisher(Publisher):
    """Dies after the broker confirmed messages, before the beat processes that (``delivered``)."""

    def _wait_for_confirms(self) -> list[InFlightMessage]:
        messages = super()._wait_for_confirms()
        if messages:
            passes("delivered")
        return messages


class CrashingScheduler(RedBeatScheduler):
    """Dies before or after its requests, or after a message was published (``published``).

    With a publish window above 1 that message may not have reached the broker yet.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ticker.__dict__["Publisher"] = CrashingPublisher
        super().__init__(*args, **kwargs)

    @property
    def _store(self) -> Store:
        store = super()._store
        return CrashingStore(store.client, store.keys)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Publish the message, then die."""
        result = super().apply_async(*args, **kwargs)
        passes("published")
        return result
