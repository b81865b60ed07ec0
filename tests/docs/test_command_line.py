"""Tests that commands print what the manual's pages show.

Numbers, ids and times differ each time, so the tests compare only words. Tables and charts also
contain other stored data, so the tests compare only their first line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab, solar

from redbeat import RedBeatSchedulerEntry, clocked, from_ical
from redbeat.cli import COMMANDS, redbeat
from redbeat.schedulers import get_redis
from tests.cli.commands import CommandResult, run_command
from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.test_shell import FIXTURE, ORPHAN

#: Commands that print tables or charts of stored data.
TABLES = {"list", "show", "upcoming", "doctor", "simulate"}
LEADER = "redbeat3:beat-1:16452:1795282614:ee25cb57386d418f804a1d14bbff9598"
STANDBY = "redbeat3:beat-2:16453:1795282614:0b5f3c1d9a7e4c26b8d2f4a691c3e705"
#: Beginnings of command lines that are not run here, and the reasons.
NOT_RUN = {
    "export DJANGO_SETTINGS_MODULE=": "it needs a Django project; tests/cli/test_django.py has one",
    "celery -A proj redbeat import --format django-celery-beat\n": "the same; it reads the tables",
    "pip install": ".ci/check_package.py installs the wheel in an empty environment",
    "celery -A proj redbeat web": "it does not end; tests/web/test_serving.py starts it",
}
#: Commands that run until they are stopped.
SERVER = re.compile(r"celery -A proj redbeat ((?:web|exporter)\b.*)")
BAD = {"task": "t", "schedule": {"__type__": "interval", "every": 5}}


def commands(block: Block) -> list[tuple[str, str]]:
    """Return each command of a session with the output below it."""
    parts = ("\n" + block.text).split("\n$ ")[1:]
    return [(line, output) for line, _, output in (part.partition("\n") for part in parts)]


def words(text: str) -> Counter[str]:
    """Return the words of an output, without times, ids and typed answers."""
    text = re.sub(r"\([0-9a-f]+-\S+\)|\d{4}-\S+|, in( \d+ \w+)+|\[y/N\]:.*", "", text)
    return Counter(re.findall(r"[A-Za-z][\w'-]*", text))


def save_entries(app: Celery) -> None:
    """Save the entries that the page shows."""
    day = {"timezone": "America/New_York"}
    rule = from_ical("DTSTART:20260101T090000Z\nRRULE:FREQ=MONTHLY;BYMONTHDAY=-1")
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "import-orders": (10, {"args": ["orders"], "options": {"queue": "imports"}}),
        "sync": (420, {"jitter": 5.0}),
        "invoices": (crontab("*/5", "8-18", day_of_week="mon-fri"), day),
        "payday": (rule, {}),
        "launch": (clocked(rule.start.replace(year=2100)), {}),
        "lights-on": (solar("sunset", 48.86, 2.35), {"enabled": False}),
    }
    for name, (schedule, more) in kinds.items():
        RedBeatSchedulerEntry(name, "proj.report", schedule, app=app, **more).save()


def save_files(app: Celery) -> None:
    """Write the files that the page uses into the current directory."""
    lines = [{"name": f"n{n}", "definition": {**BAD, "name": f"n{n}"}} for n in range(3)]
    lines[2]["policy"] = {"jitter": -1}
    Path("broken.jsonl").write_text("\n".join(map(json.dumps, lines)))
    Path("beat.json").write_text(json.dumps(FIXTURE))
    Path("bad.json").write_text(json.dumps([ORPHAN]))
    entries = {"reminders": {"task": "proj.report", "every": "1h30m"}}
    Path("billing.json").write_text(json.dumps({"managed_by": "billing", "entries": entries}))
    (cron,) = (b.text for b in blocks("text") if b.text.startswith("# minute hour"))
    Path("tasks.cron").write_text(cron)
    app.conf.beat_schedule = {"old": {"task": "proj.report", "schedule": 60}}
    scheduler = PersistentScheduler(app, schedule_filename="celerybeat-schedule", lazy=True)
    scheduler.setup_schedule()
    scheduler.close()


@pytest.fixture
def operated(app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """Return an app with a leader and a standby beat, in a directory with the page's files."""
    monkeypatch.chdir(tmp_path)
    app.conf.update(timezone="Europe/Paris", result_expires=None)
    client = get_redis(app)
    client.set("redbeat::lock", LEADER)
    seen = client.time()[0]
    client.zadd(".redbeat::beats", {f"{token} lock": seen for token in (LEADER, STANDBY)})
    save_files(app)
    return app


def prepare(app: Celery, verb: str, names: list[str], output: str) -> None:
    """Create or remove the data that a command expects."""
    client = get_redis(app)
    if output.startswith("Added"):
        client.delete(f"redbeat:{names[0]}")
    elif names == ["schedule.jsonl"]:
        run_command(app, "export", "--history", "schedule.jsonl")
    elif verb == "simulate":
        Path("billing.json").write_text('{"managed_by": "billing", "entries": {}}')
    elif verb == "migrate-prefix":
        client.delete("redbeat::lock", ".redbeat::beats")
    elif verb == "doctor":
        client.zadd("redbeat::schedule", {"redbeat:gone": 1})
        client.hset("redbeat:proj.sync-1", "definition", client.hget("redbeat:sync", "definition"))
        client.zrem("redbeat::schedule", "redbeat:proj.sync-1")
        client.zadd("redbeat::schedule", {"redbeat:sync": -1})


def type_in(app: Celery, line: str, output: str) -> CommandResult:
    """Run a command line of a session."""
    arguments = shlex.split(line)
    assert arguments[:4] == ["celery", "-A", "proj", "redbeat"], line
    return run_command(app, *arguments[4:], answer="y\n" if "[y/N]: y" in output else "")


def test_every_reason_belongs_to_a_command() -> None:
    lines = [line + "\n" for block in blocks("console") for line, _ in commands(block)]
    assert [s for s in NOT_RUN if not any(line.startswith(s) for line in lines)] == []


def test_the_page_of_commands_has_every_command() -> None:
    table = (ROOT / "docs" / "cli.rst").read_text(encoding="utf-8").partition("\nstatus\n---")[0]
    named = {
        words.split()[0]
        for row in re.findall(r"\* - (.+)", table)
        for words in re.findall(r"``(.+?)``", row)
    }
    assert named == {*COMMANDS}


def servers() -> list[str]:
    """Return the arguments of each command that runs until it is stopped."""
    texts = (block.text.replace("\\\n", "") for block in blocks("sh", "console"))
    return [line for text in texts for line in SERVER.findall(text)]


@pytest.mark.parametrize("line", servers())
def test_the_options_of_a_server_exist(line: str) -> None:
    verb, *arguments = shlex.split(line, comments=True)
    command = redbeat.get_command(click.Context(redbeat), verb)
    assert command is not None
    with command.make_context(verb, arguments):
        pass  # make_context() raises an error for unknown options and invalid values


SESSIONS = [
    (line, output)
    for block in blocks("console")
    for line, output in commands(block)
    if not (line + "\n").startswith((*NOT_RUN,))
]


@pytest.mark.parametrize(("line", "output"), SESSIONS, ids=[line[22:] for line, _ in SESSIONS])
def test_a_command_prints_what_the_page_shows(operated: Celery, line: str, output: str) -> None:
    verb, *rest = shlex.split(line)[4:]
    save_entries(operated)
    prepare(operated, verb, rest, output)
    ran = type_in(operated, line, output)
    assert bool(ran.code) == bool(re.search(r"Error:|PROBLEM|findings", output)), ran
    shown = output.partition("\n")[0] if verb in TABLES else output
    if verb != "history":  # no entry has run in this test
        assert words(shown) <= words(ran.out + ran.err)
