"""Running the command line in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

__all__ = ("Ran", "run_command")

#: Since then the runner keeps the two outputs apart by itself.
SEPARATE_OUTPUTS = (8, 2)


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

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
) -> Ran:
    """Run `celery <before> redbeat <args>`; an error that is no message is raised.

    ``answer`` is what a person types, ``color`` whether the output is a terminal, ``charset`` what
    it can write.
    """
    click_version = tuple(int(part) for part in version("click").split(".")[:2])
    options: dict[str, Any] = {} if click_version >= SEPARATE_OUTPUTS else {"mix_stderr": False}
    command = ["-A", app, *before, "redbeat", *args]
    runner = CliRunner(charset, **options)
    result = runner.invoke(celery, command, input=answer, color=color, prog_name="celery")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.stdout, result.stderr, result.exit_code)
