"""A beat that kills itself, once, at a named point between claim, record and publish.

The environment says where, such as ``published:7``: at the seventh publish. A file in the working
directory remembers that it happened, so that a beat which is started again lives on.
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

#: The variable with the point, and with how often it is passed before that.
CRASH_AT = "REDBEAT_TEST_CRASH_AT"

#: The file that says that it happened.
MARK = "crashed"

#: A script in place of ``-m celery`` that runs this scheduler.
WRAPPER = """
import sys
from celery.__main__ import main
sys.argv[sys.argv.index("redbeat")] = "tests.faults.crashing:CrashingScheduler"
sys.exit(main())
"""

_passed: dict[str, int] = {}


def passes(point: str) -> None:
    """Die here if this is the place to die, else only count."""
    wanted, _, number = os.environ[CRASH_AT].partition(":")
    _passed[point] = _passed.get(point, 0) + 1
    if point == wanted and _passed[point] == int(number) and not Path(MARK).exists():
        Path(MARK).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class CrashingStore(Store):
    """Dies around the turns of a beat.

    ``claimed``: Redis gave claims and nothing is done with them yet. ``decided``: runs that are to
    be sent at most once are about to be recorded. ``recorded``: runs are recorded, and the reply is
    not looked at.
    """

    #: A turn that is begun while others are published would blur which step comes first.
    overlaps = False

    def claim(self, *terms: Any, **more: Any) -> ClaimReply:
        """Take a turn, and die before or after it."""
        asked = ClaimRequest(*terms, **more)
        if any(done.meta for done in asked.completions):
            passes("decided")
        turn = super().claim(*asked)
        if any(done.meta for done in asked.completions):
            passes("recorded")
        if turn.claims:
            passes("claimed")
        return turn


class CrashingPublisher(Publisher):
    """Dies when the broker has confirmed messages, and nobody has heard of it (``delivered``)."""

    def _wait_for_confirms(self) -> list[InFlightMessage]:
        letters = super()._wait_for_confirms()
        if letters:
            passes("delivered")
        return letters


class CrashingScheduler(RedBeatScheduler):
    """Dies around its turns, or when a message was handed over (``published``).

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
        """Publish, and die."""
        result = super().apply_async(*args, **kwargs)
        passes("published")
        return result
