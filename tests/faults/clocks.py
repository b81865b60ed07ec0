"""Runs processes with a wrong wall clock, which jumps on a signal.

The monotonic clock of these processes is right. Run as a program, this module saves entries
under a wrong clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import time_machine
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule
from tests.acceptance.processes import ROOT
from tests.faults.beats import Beat
from tests.faults.entries import PREFIX

__all__ = ("WrongClock", "run_celery", "save")

SAVE_SECONDS = 60.0
WRAPPER = """
from tests.faults.clocks import run_celery

run_celery({offset!r}, {orders!r})
"""


def wrong_by(offset: float) -> time_machine.Traveller:
    """Shift the wall clock of this process by ``offset`` seconds; the clock keeps running."""
    return time_machine.travel(time.time() + offset, tick=True).start()


def run_celery(offset: float, orders: str) -> None:
    """Run the celery command line under a wrong clock.

    At each SIGUSR1 the clock jumps by the number of seconds in the file ``orders``. The process
    then prints the new time.
    """
    clock = wrong_by(offset)
    jumps = 0

    def jump(_number: int, _frame: Any) -> None:
        nonlocal jumps
        clock.shift(float(Path(orders).read_text()))
        jumps += 1
        # Write without Python's buffers: the signal may interrupt a buffered write.
        os.write(1, b"jump %d: it is %.3f\n" % (jumps, time.time()))

    signal.signal(signal.SIGUSR1, jump)
    from celery.__main__ import main  # noqa: PLC0415 - it must see the wrong clock only

    sys.exit(main())


class WrongClock:
    """A clock that is ``offset`` seconds wrong; pass :attr:`wrapper` to a beat to use it."""

    def __init__(self, directory: Path, offset: float = 0.0) -> None:
        stem = f"clock-{len(list(directory.glob('clock-*.py')))}"
        self.wrapper = directory / f"{stem}.py"
        self._orders = directory / f"{stem}.txt"
        self._jumps = 0
        self.wrapper.write_text(WRAPPER.format(offset=offset, orders=str(self._orders)))

    def jump(self, beat: Beat, seconds: float) -> None:
        """Make the clock of a running beat jump, and wait until the beat printed the new time."""
        self._orders.write_text(str(seconds))
        self._jumps += 1
        beat.popen.send_signal(signal.SIGUSR1)
        beat.wait_for(f"jump {self._jumps}: ")


def save(url: str, offset: float, entries: Mapping[str, str], start: float = 0.0) -> None:
    """Save entries that run every second, through the API, from a process with a wrong clock.

    ``entries`` maps names to operations. ``interval`` and ``rrule`` create an entry that starts at
    ``start`` (UNIX seconds). ``again`` loads an existing entry and saves it. ``now`` makes an
    existing entry run now.
    """
    order = json.dumps({"url": url, "offset": offset, "entries": dict(entries), "start": start})
    subprocess.run(
        [sys.executable, "-m", "tests.faults.clocks", order],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=SAVE_SECONDS,
    )


def _save_here(order: dict[str, Any]) -> None:
    app = Celery("clocks", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=order["url"])
    start = datetime.fromtimestamp(order["start"], timezone.utc)
    wrong_by(order["offset"])
    for name, kind in order["entries"].items():
        if kind in ("again", "now"):
            entry = RedBeatSchedulerEntry.from_key(PREFIX + name, app=app)
            if kind == "now":
                entry.last_run_at = None
        else:
            schedule = 1.0 if kind == "interval" else rrule("SECONDLY", dtstart=start)
            named = {"name": name, "task": f"faults.{name}", "kwargs": {"entry": name}}
            entry = RedBeatSchedulerEntry(**named, schedule=schedule, app=app)
        entry.save()


if __name__ == "__main__":
    _save_here(json.loads(sys.argv[1]))
