"""Tests of what a person sees and types: colours, and values that can be typed back."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import click
import pytest
import redis
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import BaseSchedule, crontab, schedule, solar

from redbeat import clocked, from_ical
from redbeat.cli.command import STATE_COLORS, Console, Styled
from redbeat.cli.edit import OPTION_OF
from redbeat.entries.status import STATES
from tests.cli.commands import in_terminal
from tests.cli.conftest import Run
from tests.conftest import Make

YELLOW = "\x1b[33mpaused\x1b[0m"
AT = datetime(2030, 1, 1, 9, tzinfo=timezone.utc)


def test_states_are_coloured_in_a_terminal(make: Make, redis_url: str) -> None:
    make("other")
    make("quiet", enabled=False)
    text, code = in_terminal(redis_url, "list")
    assert code == 0, text
    assert YELLOW in text
    assert "scheduled" in text
    text, code = in_terminal(redis_url, "show", "quiet", environ={"NO_COLOR": "0"})
    assert (code, "paused" in text, "\x1b" in text) == (0, True, False), text


def test_the_colours_of_states_keep_the_columns_aligned(run: Run, make: Make) -> None:
    make("other")
    make("quiet", enabled=False)
    coloured, plain = (run("list", color=color).out for color in (True, False))
    assert YELLOW in coloured
    assert click.unstyle(coloured) == plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("state", sorted(set(STATES) - {"scheduled"}))
def test_each_unusual_state_has_a_colour(state: str) -> None:
    assert state in STATE_COLORS


SCHEDULES = [
    schedule(5400),
    schedule(timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5)),
    schedule(timedelta(milliseconds=10)),
    schedule(86400, relative=True),
    crontab("*/5", "8-18", "mon-fri", month_of_year="1,2"),
    from_ical("DTSTART;TZID=Europe/Paris:20260101T090000\nRRULE:FREQ=DAILY;COUNT=30"),
    from_ical("DTSTART:20260101T090000Z\nRRULE:FREQ=DAILY\nEXDATE:20260102T090000Z"),
    clocked(AT),
    solar("sunset", 48.86, -2.35),
]

FIELDS = {
    "args": [1, "a b", AT, {"__type__": "datetime", "year": 2026}],
    "kwargs": {"to": "ä\n", "at": AT, "nothing": None},
    "options": {"queue": "q", "expires": AT, "headers": {"x": [1]}},
    "start_time": AT,
    "end_time": AT + timedelta(days=900, microseconds=1),
    "max_runs": 10,
    "on_finish": "delete",
    "misfire_grace_time": 0.000001,
    "coalesce": "all",
    "catch_up_limit": 100,
    "jitter": 2.5,
    "spread": 90.0,
    "delivery": "at_most_once",
}


def printed(run: Run, name: str) -> dict[str, str]:
    """Return the values that `show` prints, by label."""
    fields: dict[str, str] = {}
    for line in run("show", name).lines:
        label, _, value = line.partition("  ")
        fields.setdefault(label, value.strip())
    return fields


@pytest.mark.parametrize("when", SCHEDULES, ids=str)
def test_each_value_that_show_prints_can_be_typed_back(
    run: Run, make: Make, when: BaseSchedule
) -> None:
    fields = FIELDS if not isinstance(when, crontab) else {**FIELDS, "timezone": "Asia/Tokyo"}
    make("first", when, task="proj.report", **fields)
    (before,) = run("show", "first", "--json").json
    values = printed(run, "first")
    labels = [OPTION_OF.get(name, name).replace("_", " ").capitalize() for name in fields]
    assert {*labels} <= {*values}
    kind, _, text = values["Schedule"].partition(" ")
    if not text or kind not in ("every", "cron", "at", "solar"):
        kind, text = "rrule", values["Schedule"]
    words = [f"--{kind}", text]
    for label in labels:
        words += [f"--{label.lower().replace(' ', '-')}", values[label]]
    assert run("add", "second", values["Task"], *words).code == 0
    assert run("edit", "first", "--task", values["Task"], *words).code == 0
    for name in ("first", "second"):
        (after,) = run("show", name, "--json").json
        for field in ("task", "schedule", "args", "kwargs", "options", "policy"):
            assert after[field] == before[field], (name, field)


@pytest.mark.parametrize("when", SCHEDULES, ids=str)
def test_each_value_of_the_json_can_be_typed_back(run: Run, make: Make, when: BaseSchedule) -> None:
    make("first", when, **{**FIELDS, "task": "proj.report"})
    (before,) = run("show", "first", "--json").json
    words: list[str] = []
    for name, value in {**before["rule"], **before["policy"]}.items():
        words += [f"--{OPTION_OF.get(name, name).replace('_', '-')}", str_of(value)]
    for name in ("args", "kwargs", "options"):
        words += [f"--{name}", json.dumps(before[name])]
    assert run("add", "second", before["task"], *words).code == 0
    (after,) = run("show", "second", "--json").json
    for field in ("task", "schedule", "rule", "args", "kwargs", "options", "policy"):
        assert after[field] == before[field], field


def str_of(value: Any) -> str:
    """Return a JSON value as a shell would pass it; a number has no exponent."""
    return f"{value:f}" if isinstance(value, float) else str(value)


HOSTILE = "a\x1b[31m\nforged\u202e\x9b"


@pytest.fixture
def console(app: Celery) -> Console:
    """Return a console without colours."""
    command = click.Command("test")
    return Console(click.Context(command, obj=CLIContext(app, no_color=True, workdir=None)))


def test_the_console_escapes_what_it_prints(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    escaped = r"a\x1b[31m\nforged\u202e\x9b"
    console.write(HOSTILE, Styled(HOSTILE, fg="red"))
    console.table((HOSTILE, "B"), [(HOSTILE, Styled(HOSTILE, bold=True)), ("c", "")])
    console.fields([(HOSTILE, HOSTILE), ("lines", [HOSTILE, HOSTILE]), ("empty", "")])
    for method in (console.note, console.warn, console.error):
        method(HOSTILE)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        escaped * 2,
        *(f"{escaped}  B", f"{escaped}  {escaped}", "c"),
        f"{escaped}  {escaped}",
        *(f"{'lines':{len(HOSTILE)}}  {escaped}", f"{'':{len(HOSTILE)}}  {escaped}"),
    ]
    assert err.splitlines() == [escaped, f"Warning: {escaped}", escaped]
    console.emit({"name": HOSTILE})
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_styles_are_applied_to_the_escaped_text(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(console.ctx.obj, "no_color", False)
    monkeypatch.setattr(console.ctx.obj, "echo", lines.append)
    console.write("a\x1b", Styled("b\x1b", fg="red"), Styled("c", bold=True) + "\x1b[0m")
    assert lines == ["a\\x1b\x1b[31mb\\x1b\x1b[0mc\\x1b[0m"]


def test_hostile_text_in_redis_reaches_no_terminal(
    run: Run, make: Make, app: Celery, redis_client: redis.Redis
) -> None:
    app.redbeat_tracks_runs = True
    redis_client.hset(".redbeat::stats", mapping={"problem": HOSTILE, "timezone": HOSTILE})
    redis_client.set("redbeat::lock", HOSTILE)
    make(HOSTILE, expect_within=1, description=HOSTILE).save()
    redis_client.zadd(".redbeat::expected", {f"redbeat:{HOSTILE}": 1})
    redis_client.hset("redbeat:bad\x1b[31m", "definition", HOSTILE)
    redis_client.zadd("redbeat::schedule", {"redbeat:bad\x1b[31m": 1})
    for line in ("status", "list", "upcoming", "doctor", "export"):
        found = run(line, color=True)
        text = found.out + found.err
        assert "\x1b[31mf" not in text
        assert "\x1b[31m\n" not in text
        assert not {"\u202e", "\x9b"} & set(text)
        assert "\nforged" not in text


def test_a_warning_without_colours(run: Run, make: Make) -> None:
    make("a", enabled=False).save()
    assert "Warning: a is paused" in run("upcoming", "a", before=("--no-color",)).err
