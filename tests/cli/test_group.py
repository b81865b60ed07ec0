"""Tests of the command group: how Celery finds it, its import time, and shell completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import click
import pytest
from celery import Celery
from celery.bin.base import CeleryCommand, CeleryOption
from celery.bin.celery import celery
from click.shell_completion import BashComplete

from redbeat.cli import COMMANDS, redbeat
from tests.acceptance.processes import ROOT
from tests.cli.commands import run_command
from tests.cli.conftest import Run


def test_celery_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="celery.commands", name="redbeat")
    assert found.load() is redbeat
    assert celery.commands["redbeat"] is redbeat


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_celery_command_with_help(run: Run, name: str) -> None:
    command = redbeat.get_command(click.Context(redbeat), name)
    assert isinstance(command, CeleryCommand)
    assert command.name == name
    ran = run(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: celery redbeat {name} ")
    assert all(isinstance(param, (click.Argument, click.Option)) for param in command.params)
    assert all(param.help for param in command.params if isinstance(param, click.Option))


def test_the_help_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    ran = run("lisst")
    assert ran.code == 2
    assert "    list" in ran.err.split("Did you mean")[1].splitlines()


@pytest.mark.parametrize(
    ("words", "start", "completions"),
    [
        (["redbeat"], "tr", ["trigger"]),
        (["redbeat"], "p", ["pause"]),
        (["redbeat", "list"], "--st", ["--state", "--static"]),
        (["redbeat", "list", "--state"], "pa", ["paused"]),
        (["redbeat", "add", "--coalesce"], "", ["latest", "earliest", "all"]),
    ],
)
def test_the_shell_completes(words: list[str], start: str, completions: list[str]) -> None:
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    assert [item.value for item in complete.get_completions(words, start)] == completions


def test_options_that_an_app_adds_to_every_command_are_accepted(app: Celery) -> None:
    option = CeleryOption(["--tenant"])
    app.user_options["preload"].add(option)
    before, callback = list(redbeat.params), redbeat.callback
    try:
        ran = run_command(app, "--tenant", "blue", "list")
    finally:
        for command in celery.commands.values():
            if option in command.params:
                command.params.remove(option)
    assert (ran.code, ran.err) == (0, "No entries\n")
    assert redbeat.params == before
    redbeat.callback = callback


def test_other_commands_of_celery_do_not_import_redbeat() -> None:
    program = (
        "import json, sys\n"
        "from celery.bin.celery import celery\n"
        "assert 'redbeat' in celery.commands\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('redbeat')]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    loaded = json.loads(found.stdout)
    assert sorted(loaded) == ["redbeat", "redbeat.cli"]
