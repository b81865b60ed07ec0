"""Simulates a reader who follows a page in their own directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.acceptance.processes import Process
from tests.docs.blocks import ROOT

__all__ = ("Reader",)

#: The address of Redis in the manual; examples run with the address of the tests' Redis.
WRITTEN = "localhost:6379"
#: The timeout of one example in seconds.
DEADLINE = 60
#: A replacement of ``redis-cli``, because a machine may have only the server. It supports what the
#: pages use, and fails if Redis returns an error.
REDIS_CLI = """\
#!{python}
import argparse
import redis

parser = argparse.ArgumentParser()
parser.add_argument("-n", type=int, default=0, dest="db")
parser.add_argument("command", nargs=argparse.REMAINDER)
given = parser.parse_args()
with redis.Redis(host="{host}", port={port}, db=given.db, decode_responses=True) as client:
    print(client.execute_command(*given.command))
"""


class Reader:
    """A reader with a project directory, ``celery``, and a ``redis-cli`` for the tests' Redis."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.address = urlsplit(url).netloc
        programs = directory / "bin"
        programs.mkdir()
        redis_cli = programs / "redis-cli"
        host, port = self.address.split(":")
        redis_cli.write_text(REDIS_CLI.format(python=sys.executable, host=host, port=port))
        redis_cli.chmod(0o755)
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(path)}
        self.processes: list[Process] = []

    def save(self, name: str, text: str) -> None:
        """Save an example as a file of the project."""
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(WRITTEN, self.address), encoding="utf-8")

    def python(self, text: str) -> str:
        """Run an example in Python in the project directory; return its output."""
        self.save("example.py", text)
        return self.shell("python example.py")

    def shell(self, text: str) -> str:
        """Run an example in a shell; fail if any command fails. Return the output."""
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text.replace(WRITTEN, self.address)],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell:
            try:
                output, _ = shell.communicate(timeout=DEADLINE)
            finally:
                with contextlib.suppress(ProcessLookupError):  # usually, all processes have ended
                    os.killpg(shell.pid, signal.SIGKILL)
        assert shell.returncode == 0, f"{text}\n{output}"
        return output

    def start(self, line: str) -> Process:
        """Start a ``celery`` command that runs until it is stopped."""
        program, *arguments = line.split()
        assert program == "celery", line
        name = f"{len(self.processes)}-{arguments[2]}"
        process = Process(self.directory, name, arguments, self.environment)
        self.processes.append(process)
        return process

    def end(self) -> None:
        """End all started processes."""
        for process in reversed(self.processes):
            process.end()
