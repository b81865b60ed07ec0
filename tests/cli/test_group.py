"""Tests of the command group: how Celery finds it, its import time, and shell completion."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from celery.bin.base import CeleryCommand, CeleryOption
from celery.bin.celery import celery
from celery.platforms import EX_UNAVAILABLE
from click.shell_completion import BashComplete

from redbeat.cli import COMMANDS, GROUPS, redbeat
from tests.acceptance.processes import ROOT
from tests.cli.commands import run_command
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.waiting import wait_until


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
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    lines = ran.out.partition("\nArguments:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == [each.human_readable_name for each in arguments]
    assert all(len(line.split()) > 2 for line in lines)


def test_the_help_lists_every_command_in_its_group(run: Run) -> None:
    out = run("--help").out
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(COMMANDS)
    for title, names in GROUPS.items():
        lines = out.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == [*names]
    assert "..." not in out.partition("Look:")[2]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["list", "--json"], ("--match", "--pattern")),
        (["upcoming", "--json"], ("--match", "--pattern")),
        (["import", "/dev/null"], ("--format", "--from")),
    ],
)
def test_an_option_keeps_its_earlier_name(
    run: Run, make: Make, words: list[str], names: tuple[str, str]
) -> None:
    """It is neither in the help nor completed."""
    make("nightly", 600)
    make("other", 600)
    value = "crontab" if words[0] == "import" else "night*"
    new, old = (run(*words, name, value) for name in names)
    assert (new.code, new.err) == (old.code, old.err) == (0, old.err)
    assert "other" not in new.out + old.out
    assert ("nightly" in new.out) == ("nightly" in old.out) == (words[0] != "import")
    assert names[1] not in run(words[0], "--help").out
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    completed = [item.value for item in complete.get_completions(["redbeat", words[0]], "--")]
    assert names[0] in completed
    assert names[1] not in completed


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    ran = run("lisst")
    assert ran.code == 2
    assert "    list" in ran.err.split("Did you mean")[1].splitlines()


@pytest.mark.parametrize(
    ("words", "start", "completions"),
    [
        (["redbeat"], "tr", ["trigger"]),
        (["redbeat"], "p", ["pause", "plan"]),
        (["redbeat", "list"], "--st", ["--state", "--static"]),
        (["redbeat", "list", "--state"], "pa", ["paused"]),
        (["redbeat", "add", "--coalesce"], "", ["latest", "earliest", "all"]),
        (["redbeat", "edit", "x", "--paused"], "", ["yes", "no"]),
        (["redbeat", "import", "x", "--format"], "c", ["crontab", "celery-shelve"]),
        (["redbeat", "upcoming"], "--m", ["--match"]),
    ],
)
def test_the_shell_completes(words: list[str], start: str, completions: list[str]) -> None:
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    assert [item.value for item in complete.get_completions(words, start)] == completions


@pytest.fixture
def app_module(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module whose app has the schedule of the tests and one task."""
    module = "completed_project"
    lines = [
        "from celery import Celery",
        "app = Celery('completed', broker='memory://', set_as_current=False)",
        f"app.conf.redbeat_redis_url = {redis_url!r}",
        "@app.task(name='proj.note', shared=False)",
        "def note(): pass",
    ]
    (tmp_path / f"{module}.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    return module


@pytest.mark.parametrize(
    ("words", "start", "completions"),
    [
        (["show"], "ni", ["nightly"]),
        (["show"], "nightly*", []),
        (["delete", "nightly"], "o", ["other"]),
        (["show"], "nobody", []),
        (["add", "new"], "proj", ["proj.note"]),
    ],
)
def test_names_are_completed(
    make: Make, app_module: str, words: list[str], start: str, completions: list[str]
) -> None:
    """Names that a shell could change are left out."""
    for name in ("nightly", "nightly*", "odd name", "odd\nline", "o;ls", "o$(ls)", "other"):
        make(name)
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    found = complete.get_completions(["-A", app_module, "redbeat", *words], start)
    assert sorted(item.value for item in found) == completions


def test_an_app_that_cannot_be_loaded_completes_nothing() -> None:
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    assert complete.get_completions(["-A", "no_such_project", "redbeat", "show"], "") == []


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
    assert ran.code == 0
    assert ran.err.startswith("No entries under the prefix redbeat:")
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


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_the_help_contains_no_markup(run: Run, name: str | None) -> None:
    out = run(*([name] if name else []), "--help").out
    assert not re.search(r"``|:\w+:`|\*\*|\\b|\.\. \w+::", out)


#: Commands with an entry name and what is typed of it -> what bash inserts.
TYPED = {"show ni": "show nightly ", "delete other my": "delete other my-job "}


def test_bash_completes_the_names_of_entries(redis_url: str, make: Make) -> None:
    for name in ("nightly", "my-job", "my job", "other"):
        make(name)
    terminal, program_side = pty.openpty()
    variables = {"PYTHONPATH": str(ROOT), "PROJECT_REDIS_URL": redis_url, "TERM": "dumb"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env={**os.environ, **variables, "PATH": path},
        stdin=program_side,
        stdout=program_side,
        stderr=program_side,
        start_new_session=True,
    )
    os.close(program_side)
    output = ""

    def prints(text: str) -> bool:
        nonlocal output
        if select.select([terminal], [], [], 0.1)[0]:
            output += os.read(terminal, 4096).decode()
        return text in output

    try:
        source = 'eval "$(_CELERY_COMPLETE=bash_source celery)"; echo rea""dy'
        os.write(terminal, f"{source}\n".encode())
        wait_until(lambda: prints("ready"), 30, "the completion of celery")
        for typed, completed in TYPED.items():
            output = ""
            os.write(terminal, f"celery -A tests.acceptance.project redbeat {typed}\t".encode())
            wait_until(partial(prints, completed), 30, completed)
            os.write(terminal, b"\x15")  # Ctrl-U erases the line
    finally:
        shell.kill()
        shell.wait(10)
        os.close(terminal)


def test_the_shell_completes_nothing_without_an_app_or_redis() -> None:
    complete = BashComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    for app in ("no.such.module", "celery.app.defaults:nothing"):
        assert complete.get_completions(["-A", app, "redbeat", "show"], "") == []


@pytest.mark.standalone
def test_a_key_of_a_wrong_type_is_named(run: Run, redis_client: Any) -> None:
    redis_client.set("redbeat::schedule", "x")
    ran = run("list")
    assert ran.code == EX_UNAVAILABLE
    assert "WRONGTYPE the key 'redbeat::schedule' is a string, but it must be a sorted " in ran.err


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_redis_url": "rediss://127.0.0.1:1/0?ssl_cert_reqs=none"},
        {
            "redbeat_redis_url": "rediss://127.0.0.1:1/0",
            "redbeat_redis_use_ssl": {"ssl_cert_reqs": "none"},
        },
        {"broker_url": "redis://127.0.0.1:1/0", "broker_use_ssl": {"ssl_cert_reqs": None}},
    ],
)
def test_an_unverified_certificate_is_a_warning(settings: dict[str, Any]) -> None:
    app = Celery("unverified", set_as_current=False)
    app.conf.update(settings)
    ran = run_command(app, "list")
    assert ran.code == EX_UNAVAILABLE
    warning = "Warning: The certificate of the Redis server is not verified: "
    assert ran.err.count(warning) == ran.err.count("not verified") == 1
    quiet = Celery("unverified", set_as_current=False)
    quiet.conf.update(settings)
    assert "not verified" not in run_command(quiet, "list", before=("-q",)).err


def test_a_huge_name_does_not_widen_the_other_lines(run: Run, make: Make) -> None:
    for name in ("a", "b", "x" * 100_000):
        make(name)
    lines = run("list").out.splitlines()
    assert len(max(lines, key=len)) > 100_000
    assert sum(map(len, lines)) < 102_000
