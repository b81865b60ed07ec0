"""Tests of what a person sees and types: colours, and values that can be typed back."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import click
import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from redbeat import clocked, from_ical
from redbeat.cli.console import STATE_COLORS
from redbeat.cli.entry_options import OPTION_OF
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
