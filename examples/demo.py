"""RedBeat in one command: a Redis server, a Celery worker and a beat, until Ctrl-C.

The tasks and the schedule are those of ``exampleconf.py``. A few seconds after the start one more
entry is added while everything runs. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.embedded import EmbeddedRedis, ServerNotFoundError

ROOT = Path(__file__).resolve().parents[1]
CELERY = [sys.executable, "-u", "-m", "celery", "--quiet", "--no-color", "--config", "exampleconf"]
WORKER = ["worker", "--loglevel", "warning", "--pool", "threads", "--concurrency", "2"]
QUIET_WORKER = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
BEAT = ["beat", "--loglevel", "info"]
ADD_AFTER_SECONDS = 6.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def say(who: str, text: str) -> None:
    """Print one line that begins with its origin."""
    print(f"{who:<6} | {text}\n", end="", flush=True)


class Child:
    """A process of the demo, whose output is printed line by line under its name.

    It has a session of its own, so Ctrl-C in the terminal reaches the demo alone.
    """

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._pass_on, args=[self._process.stdout])
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL to its whole session when that is not enough."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(STOP_SECONDS)

    def _pass_on(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if line.strip():
                    say(self.name, line.rstrip())


class Demo:
    """The worker and the beat on one Redis, and the entry that is added while they run."""

    def __init__(self, server: EmbeddedRedis, stop: threading.Event) -> None:
        self._environment = {**os.environ, "REDIS_URL": server.url, **unwarned()}
        self._server = server
        self._stop = stop
        self._children: list[Child] = []

    def run(self, seconds: float | None) -> int:
        """Run until told to stop, for `seconds` at most, or until a process ends by itself."""
        with ExitStack() as stack:
            self._start(stack, "worker", [*WORKER, *QUIET_WORKER])
            self._start(stack, "beat", BEAT)
            dead = self._watch(seconds)
            say("demo", f"{dead} ended by itself, stopping" if dead else "stopping")
        return 1 if dead else 0

    def _start(self, stack: ExitStack, name: str, arguments: list[str]) -> None:
        child = Child(name, [*CELERY, *arguments], self._environment)
        stack.callback(child.stop)
        self._children.append(child)

    def _watch(self, seconds: float | None) -> str | None:
        """Wait for the end; return the name of a process that ended by itself, if one did."""
        started = time.monotonic()
        added = False
        while not self._stop.wait(POLL_SECONDS):
            elapsed = time.monotonic() - started
            if seconds is not None and elapsed >= seconds:
                break
            if dead := self._ended():
                return dead
            if not added and elapsed >= ADD_AFTER_SECONDS:
                added = True
                self._add_entry()
        return None

    def _ended(self) -> str | None:
        children = (child.name for child in self._children if child.exit_code is not None)
        return next(children, None if self._server.is_running else "redis")

    def _add_entry(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "examples.add_entry"],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        for line in (done.stdout + done.stderr).splitlines():
            say("demo", line)


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` at Ctrl-C and SIGTERM, as long as the context lasts."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def unwarned() -> dict[str, str]:
    """Return the environment that keeps Celery from warning at length about being root."""
    return {"PYTHONWARNINGS": "ignore"} if os.getuid() == 0 else {}


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="stop by itself after this many seconds")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    try:
        with stopping_on_signals(stop), EmbeddedRedis() as server:
            say("redis", f"listening on {server.url}")
            say("demo", "starting a worker and a beat; Ctrl-C stops everything")
            exit_code = Demo(server, stop).run(options.seconds)
    except ServerNotFoundError as error:
        say("demo", str(error))
        return 1
    say("demo", "everything is stopped")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
