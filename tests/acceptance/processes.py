"""Real beat and worker processes, each started in its own directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from tests.acceptance.ledger import LEDGER
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A running `celery` command; its output goes to a file, which a failing test prints."""

    def __init__(self, directory: Path, name: str, command: list[str], env: Mapping[str, str]):
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "celery", *command],
                cwd=directory,
                # Otherwise the banner, which is printed first, appears last in the log.
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        """Return everything that the process has printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, deadline: float = 30.0) -> None:
        """Wait until the process prints `text`."""
        try:
            wait_until(lambda: text in self.output(), deadline, f"{text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error} in:\n{self.output()}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM, deadline: float = 20.0) -> int:
        """Send a signal, wait for the end of the process, and return its exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self.popen.wait(deadline)

    def end(self) -> None:
        """Kill the processes of the group that still run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)


class Project:
    """The project in `project.py` on one Redis, with its processes."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.processes: list[Process] = []

    def start(
        self,
        *command: str,
        schedule: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        config: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `celery <command>` with the project or with another configuration module."""
        where = ["--config", config] if config else ["-A", "tests.acceptance.project"]
        environment = {
            "PROJECT_REDIS_URL": self.url,
            "PROJECT_SCHEDULE": json.dumps(schedule or {}),
            "PROJECT_SETTINGS": json.dumps(settings or {}),
            **(env or {}),
        }
        name = f"{len(self.processes)}-{command[0]}"
        process = Process(self.directory, name, [*where, *command], environment)
        self.processes.append(process)
        return process

    def worker(self, *options: str, **kwargs: Any) -> Process:
        """Start a worker that runs tasks in threads."""
        options = ("--pool", "threads", "-c", "2", "-l", "info", *options)
        return self.start("worker", "--without-gossip", "--without-mingle", *options, **kwargs)

    def beat(self, *options: str, scheduler: str = "redbeat", **kwargs: Any) -> Process:
        """Start a beat."""
        return self.start("beat", "-S", scheduler, "-l", "info", *options, **kwargs)

    def ran(self, entry: str | None = None) -> list[dict[str, Any]]:
        """Return the runs that the worker recorded, for one entry or for all entries."""
        lines = [json.loads(line) for line in self.client.lrange(LEDGER, 0, -1)]
        return [line for line in lines if entry in (None, line["entry"])]

    def wait_for_runs(self, entry: str, count: int, deadline: float = 30.0) -> list[dict[str, Any]]:
        """Wait until an entry has run ``count`` times."""

        def enough() -> bool:
            return len(self.ran(entry)) >= count

        try:
            wait_until(enough, deadline, f"{count} runs of {entry}")
        except AssertionError as error:
            logs = "\n".join(process.output() for process in self.processes)
            raise AssertionError(f"{error}; ran: {self.ran()}\n{logs}") from None
        return self.ran(entry)

    def end(self) -> None:
        """Stop all processes."""
        for process in reversed(self.processes):
            process.end()
        self.client.close()
