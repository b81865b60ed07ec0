"""Runs beats and restarts each beat that exits, like a process supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .beats import OPTIONS
from .sides import SCRIPTS, Side, environment

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("RESTART_SECONDS", "Supervisor")

#: Seconds from the exit of a beat to its restart.
RESTART_SECONDS = 1.0
POLL = 0.02
#: Signals after which the exit of a beat is expected.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGKILL)


@dataclass
class Slot:
    """One supervised beat, which may run in several processes one after the other.

    ``start_at`` is the monotonic time of the next start, or None while the process runs and after
    the beat was retired. ``stop_requested`` is true if the process got a signal to stop.
    """

    start_at: float | None
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    stop_requested: bool = False


class Supervisor:
    """A context manager that runs beats, and restarts a beat one second after its exit.

    ``exits`` contains the exit codes of processes that exited without a signal to stop.
    """

    def __init__(self, side: Side, directory: Path, broker: str, settings: Mapping[str, Any]):
        self.exits: list[int] = []
        self._python = side.python
        self._directory = directory
        self._environment = environment(
            BENCHMARK_BROKER=broker, BENCHMARK_SETTINGS=json.dumps(dict(settings))
        )
        self._slots: list[Slot] = []
        self._started = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        for slot in self._slots:
            _end(slot)

    def add(self) -> int:
        """Start another beat and return its number."""
        with self._lock:
            self._slots.append(Slot(start_at=0.0))
            return len(self._slots) - 1

    def output(self, number: int) -> str:
        """Return the output of the latest process of a beat, or "" before its first start."""
        with self._lock:
            log = self._slots[number].log
        return log.read_text(errors="replace") if log else ""

    def signal(self, number: int, sent: signal.Signals) -> bool:
        """Send a signal to a beat; return False if the beat is not running."""
        with self._lock:
            slot = self._slots[number]
            if slot.process is None or slot.process.poll() is not None:
                return False
            slot.process.send_signal(sent)
            slot.stop_requested = slot.stop_requested or sent in STOP_SIGNALS
            return True

    def retire(self, number: int) -> None:
        """Kill a beat and never restart it."""
        with self._lock:
            slot = self._slots[number]
            _end(slot)
            slot.process, slot.start_at = None, None

    def _run(self) -> None:
        while not self._ended.wait(POLL):
            with self._lock:
                for slot in self._slots:
                    self._check(slot)

    def _check(self, slot: Slot) -> None:
        now = time.monotonic()
        if slot.process is None:
            if slot.start_at is not None and now >= slot.start_at:
                self._launch(slot)
        elif (code := slot.process.poll()) is not None:
            if not slot.stop_requested:
                self.exits.append(code)
            slot.process, slot.start_at, slot.stop_requested = None, now + RESTART_SECONDS, False

    def _launch(self, slot: Slot) -> None:
        slot.log = self._directory / f"beat-{self._started}.log"
        self._started += 1
        with slot.log.open("wb") as output:
            slot.process = subprocess.Popen(
                [self._python, "-m", "celery", "-A", "faultapp", *OPTIONS],
                cwd=SCRIPTS,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        slot.start_at = None


def _end(slot: Slot) -> None:
    """Kill all processes of a beat with SIGKILL, which also ends paused processes."""
    if slot.process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(slot.process.pid, signal.SIGKILL)
    slot.process.wait(10)
