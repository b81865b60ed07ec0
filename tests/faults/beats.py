"""Runs several real beats on one schedule, and stops, kills and restarts these beats."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.acceptance.processes import ROOT, Process
from tests.faults.entries import Schedule
from tests.waiting import wait_until

__all__ = ("HELD", "LOCK_TIMEOUT", "Beats")

#: The default lock timeout of a beat in these tests, in seconds.
LOCK_TIMEOUT = 5.0
#: Seconds for which a beat has a run that it holds before another one may send it.
HELD = 30.0
START_SECONDS = 60.0
#: The last line that a beat logs before its first tick.
STARTED = "beat: Starting..."
#: Parts of log lines that a beat writes for almost every run.
CHATTER = ("Sending due task", "which replaces them")
PID_IN_TOKEN = re.compile(r"redbeat3:.*:(\d+):\d+:[0-9a-f]+")


@dataclass(frozen=True)
class Spec:
    """How to start a beat: its schedule, its broker, its settings and its program.

    ``wrapper`` is a Python script that runs instead of ``-m celery``, with the same arguments.
    """

    schedule_url: str
    broker_url: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrapper: Path | None = None

    def command(self) -> list[str]:
        """Return the command line that starts the beat."""
        program = ["-m", "celery"] if self.wrapper is None else [str(self.wrapper)]
        options = ["beat", "-S", "redbeat", "-l", "info"]
        return [sys.executable, *program, "-A", "tests.acceptance.project", *options]

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which the project reads its configuration."""
        settings = {"redbeat_redis_url": self.schedule_url, **self.settings}
        return {"PROJECT_REDIS_URL": self.broker_url, "PROJECT_SETTINGS": json.dumps(settings)}


class Beat(Process):
    """The process of one beat."""

    def __init__(self, directory: Path, name: str, spec: Spec) -> None:
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                spec.command(),
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), **spec.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Return whether the process exists; a process stopped by SIGSTOP still exists."""
        return self.popen.poll() is None

    def wait_for(self, text: str, deadline: float = START_SECONDS) -> None:
        """Wait until the process prints `text`; an error names the log file only."""
        wait_until(lambda: text in self.output(), deadline, f"{text!r} in {self.log.name}")


class Beats:
    """The beats of one test, by number; by default all use the same schedule and broker."""

    def __init__(
        self,
        directory: Path,
        schedule_url: str,
        broker_url: str,
        schedule: Schedule,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.schedule = schedule
        self._directory = directory
        settings = {"redbeat_lock_timeout": LOCK_TIMEOUT, **(settings or {})}
        self._spec = Spec(schedule_url, broker_url, settings)
        self._specs: list[Spec] = []
        self._beats: list[Beat] = []
        self._history: list[Beat] = []

    def __getitem__(self, number: int) -> Beat:
        return self._beats[number]

    def __len__(self) -> int:
        return len(self._beats)

    def start(
        self,
        schedule_url: str | None = None,
        broker_url: str | None = None,
        settings: Mapping[str, Any] | None = None,
        wrapper: Path | None = None,
    ) -> int:
        """Start one more beat and return its number, without waiting for its first tick."""
        spec = replace(
            self._spec,
            schedule_url=schedule_url or self._spec.schedule_url,
            broker_url=broker_url or self._spec.broker_url,
            settings={**self._spec.settings, **(settings or {})},
            wrapper=wrapper,
        )
        self._specs.append(spec)
        self._beats.append(self._launch(spec))
        return len(self._beats) - 1

    def start_many(self, count: int, **kwargs: Any) -> None:
        """Start ``count`` beats and wait until each of them ticks."""
        for number in [self.start(**kwargs) for _ in range(count)]:
            self.wait_started(number)

    def start_leader_and_standby(self, **kwargs: Any) -> None:
        """Start beat 0, then beat 1 once beat 0 leads; ``kwargs`` apply to beat 0 only."""
        self.start(**kwargs)
        self[0].wait_for("beat: Acquired lock")
        self.start()
        self[1].wait_for("standing by")

    def wait_started(self, number: int) -> None:
        """Wait until a beat starts to tick."""
        self[number].wait_for(STARTED)

    def signal(self, number: int, signal_number: signal.Signals) -> None:
        self[number].popen.send_signal(signal_number)

    def kill(self, number: int) -> None:
        """Kill a beat with SIGKILL."""
        self.signal(number, signal.SIGKILL)
        self[number].popen.wait(10)

    def terminate(self, number: int) -> int:
        """Stop a beat with SIGTERM and return its exit code."""
        return self[number].stop(signal.SIGTERM, 30.0)

    def restart(self, number: int) -> None:
        """Start a beat again with the same options; if it still runs, terminate it first."""
        if self[number].is_alive:
            self.terminate(number)
        self._beats[number] = self._launch(self._specs[number])

    def leader(self) -> int | None:
        """Return the number of the beat that holds the lock, or None if no beat holds it."""
        match = PID_IN_TOKEN.fullmatch(self.schedule.lock_token() or "")
        pids = [beat.popen.pid for beat in self._beats]
        pid = int(match[1]) if match else 0
        return pids.index(pid) if pid in pids else None

    def wait_leader(self, deadline: float = START_SECONDS) -> int:
        """Wait until one of the beats leads, and return its number."""
        (leader,) = wait_until(lambda: _one(self.leader()), deadline, "a leader")
        return leader

    def log_tails(self) -> str:
        """Return the last log lines of all beats, including the beats that have ended."""
        return "\n".join(f"--- {beat.log.name}\n{_tail(beat.output())}" for beat in self._history)

    def end(self) -> None:
        """End all processes."""
        for beat in self._history:
            beat.end()

    def _launch(self, spec: Spec) -> Beat:
        beat = Beat(self._directory, f"beat-{len(self._history)}", spec)
        self._history.append(beat)
        return beat


def _one(number: int | None) -> tuple[int, ...]:
    """Wrap the number in a tuple, so that the result is true for beat 0 too."""
    return () if number is None else (number,)


def _tail(text: str, lines: int = 30) -> str:
    """Return the last lines of a log, without the lines about single runs."""
    wanted = [line for line in text.splitlines() if not any(word in line for word in CHATTER)]
    return "\n".join(wanted[-lines:])
