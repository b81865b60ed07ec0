"""Runs the command line in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

__all__ = ("CommandResult", "run_command")

#: Since this version the runner always separates the two outputs.
SEPARATE_OUTPUTS = (8, 2)


@dataclass(frozen=True)
class CommandResult:
    """The output of a command, and its exit code."""

    out: str
    err: str
    code: int

    @property
    def lines(self) -> list[str]:
        """The lines of the standard output."""
        return self.out.splitlines()

    @property
    def json(self) -> list[dict[str, Any]]:
        """The standard output as JSON lines."""
        return [json.loads(line) for line in self.lines]


def run_command(
    app: Celery,
    *args: str,
    before: tuple[str, ...] = (),
    answer: str = "",
    color: bool = False,
    charset: str = "utf-8",
) -> CommandResult:
    """Run `celery <before> redbeat <args>`; unexpected errors are raised.

    ``answer`` is typed input, ``color`` whether the output is a terminal, ``charset`` the encoding
    of the output.
    """
    click_version = tuple(int(part) for part in version("click").split(".")[:2])
    options: dict[str, Any] = {} if click_version >= SEPARATE_OUTPUTS else {"mix_stderr": False}
    command = ["-A", app, *before, "redbeat", *args]
    runner = CliRunner(charset, **options)
    result = runner.invoke(celery, command, input=answer, color=color, prog_name="celery")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.stdout, result.stderr, result.exit_code)
