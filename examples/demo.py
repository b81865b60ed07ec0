"""Runs RedBeat with a Redis server and a Celery worker until you press Ctrl-C.

The tasks and the schedule are in ``exampleconf.py``. After a few seconds, the demo adds another
entry without restarting the beat. All files are in a temporary directory, which the demo deletes.
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


def print_line(process: str, text: str) -> None:
    """Print one line, prefixed with the name of the process."""
    print(f"{process:<6} | {text}\n", end="", flush=True)


class Child:
    """A child process of the demo; each output line is printed after the name of the process.

    The child process runs in its own session, so Ctrl-C in the terminal reaches only the demo.
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
        self._reader = threading.Thread(target=self._print_output, args=[self._process.stdout])
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, or None while the process runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Stop the process with SIGTERM; after ``STOP_SECONDS``, kill its whole process group."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(STOP_SECONDS)

    def _print_output(self, output: IO[str]) -> None:
        with output:
            for line in output:
                if line.strip():
                    print_line(self.name, line.rstrip())


class Demo:
    """Runs a worker and a beat with one Redis server, and adds an entry a few seconds later."""

    def __init__(self, server: EmbeddedRedis, stop: threading.Event) -> None:
        self._environment = {**os.environ, "REDIS_URL": server.url, **no_root_warning()}
        self._server = server
        self._stop = stop
        self._children: list[Child] = []

    def run(self, seconds: float | None) -> int:
        """Run the demo and return its exit code.

        The demo ends when the stop event is set, after ``seconds`` seconds, or when a process
        exits. The exit code is 1 if a process exited unexpectedly.
        """
        with ExitStack() as stack:
            self._start(stack, "worker", [*WORKER, *QUIET_WORKER])
            self._start(stack, "beat", BEAT)
            exited = self._watch(seconds)
            print_line("demo", f"{exited} exited unexpectedly, stopping" if exited else "stopping")
        return 1 if exited else 0

    def _start(self, stack: ExitStack, name: str, arguments: list[str]) -> None:
        child = Child(name, [*CELERY, *arguments], self._environment)
        stack.callback(child.stop)
        self._children.append(child)

    def _watch(self, seconds: float | None) -> str | None:
        """Wait for the end of the demo; return the name of a failed process, or None."""
        started = time.monotonic()
        added = False
        while not self._stop.wait(POLL_SECONDS):
            elapsed = time.monotonic() - started
            if seconds is not None and elapsed >= seconds:
                break
            if exited := self._exited():
                return exited
            if not added and elapsed >= ADD_AFTER_SECONDS:
                added = True
                self._add_entry()
        return None

    def _exited(self) -> str | None:
        children = (child.name for child in self._children if child.exit_code is not None)
        return next(children, None if self._server.is_running else "redis")

    def _add_entry(self) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "examples.add_entry"],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        for line in (result.stdout + result.stderr).splitlines():
            print_line("demo", line)


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event ``stop`` on Ctrl-C or SIGTERM during the ``with`` block."""
    old_handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def no_root_warning() -> dict[str, str]:
    """Return environment variables that hide Celery's long warning about running as root."""
    return {"PYTHONWARNINGS": "ignore"} if os.getuid() == 0 else {}


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="stop the demo after this many seconds")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    try:
        with stopping_on_signals(stop), EmbeddedRedis() as server:
            print_line("redis", f"listening on {server.url}")
            print_line("demo", "starting a worker and a beat; Ctrl-C stops everything")
            exit_code = Demo(server, stop).run(options.seconds)
    except ServerNotFoundError as error:
        print_line("demo", str(error))
        return 1
    print_line("demo", "all processes are stopped")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
