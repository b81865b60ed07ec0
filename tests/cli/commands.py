"""Runs commands in the process of the tests."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

from tests.acceptance.processes import ROOT
from tests.waiting import wait_until

__all__ = ("CommandResult", "in_terminal", "run_command")

#: The first version of click whose runner always separates the standard output and standard error.
SEPARATE_OUTPUTS = (8, 2)


@dataclass(frozen=True)
class CommandResult:
    """The output and the exit code of a command."""

    out: str
    err: str
    code: int

    @property
    def lines(self) -> list[str]:
        """The lines of the standard output."""
        return self.out.splitlines()

    @property
    def json(self) -> list[dict[str, Any]]:
        """The JSON objects of the standard output, one per line."""
        return [json.loads(line) for line in self.lines]


def run_command(
    app: Celery,
    *args: str,
    before: tuple[str, ...] = (),
    answer: str = "",
    color: bool = False,
    charset: str = "utf-8",
) -> CommandResult:
    """Run `celery <before> redbeat <args>` and return the result; raise unexpected errors.

    ``answer`` is the standard input. ``color`` keeps colors in the output, as in a terminal.
    ``charset`` is the encoding of the output.
    """
    click_version = tuple(int(part) for part in version("click").split(".")[:2])
    options: dict[str, Any] = {} if click_version >= SEPARATE_OUTPUTS else {"mix_stderr": False}
    command = ["-A", app, *before, "redbeat", *args]
    runner = CliRunner(charset, **options)
    result = runner.invoke(celery, command, input=answer, color=color, prog_name="celery")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.stdout, result.stderr, result.exit_code)


def in_terminal(url: str, *words: str, environ: dict[str, str] | None = None) -> tuple[str, int]:
    """Run `celery redbeat <words>` in a pseudo terminal; return its output and exit code."""
    terminal, program_side = pty.openpty()
    variables = {"PYTHONPATH": str(ROOT), "PROJECT_REDIS_URL": url, "TERM": "xterm-256color"}
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "celery", "-A", "tests.acceptance.project", "redbeat"]
    process = subprocess.Popen(
        [*command, *words],
        env={**inherited, **variables, **(environ or {})},
        stdin=program_side,
        stdout=program_side,
        stderr=program_side,
    )
    os.close(program_side)
    output = bytearray()

    def ended() -> bool:
        try:
            output.extend(os.read(terminal, 4096))
        except OSError:  # the process has closed the terminal
            return True
        return False

    try:
        wait_until(ended, 60, "the end of the output")
        return output.decode(), process.wait(30)
    finally:
        process.kill()
        process.wait(10)
        os.close(terminal)
