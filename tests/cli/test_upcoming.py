"""Tests of `celery redbeat upcoming`."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import clocked
from tests.cli.conftest import Run
from tests.conftest import Make


def test_the_next_runs_of_all_entries_are_merged(run: Run, make: Make) -> None:
    make("ten", 600)
    make("twenty", 1200)
    make("off", 5, enabled=False)
    lines = run("upcoming", "-n", "4", "--json").json
    assert Counter(line["name"] for line in lines) == {"ten": 3, "twenty": 1}
    instants = [line["due_at"] for line in lines]
    assert instants == sorted(instants)


def test_an_entry_that_runs_each_second_hides_no_other(run: Run, make: Make) -> None:
    """Its last row says how it goes on; JSON has each run."""
    make("tick", 1)
    make("ten", 600)
    make("daily", 86_400)
    titles, *rows = run("upcoming").lines
    assert titles.split() == ["DUE", "(UTC)", "WHEN", "NAME", "THEN"]
    column = titles.index("NAME")
    shown = Counter(row[column:].split()[0] for row in rows)
    assert sum(shown.values()) == 20
    assert min(shown[name] for name in ("tick", "ten", "daily")) >= 3
    assert [row for row in rows if "every 1 s" in row] == rows[shown["tick"] - 1 : shown["tick"]]
    assert "every 1 d" not in rows[-1]
    assert {line["name"] for line in run("upcoming", "--json").json} == {"tick"}


def test_who_is_alone_has_the_whole_page(run: Run, make: Make) -> None:
    make("tick", 1)
    make("off", 1, enabled=False)
    make("soon", clocked(datetime.now(timezone.utc) + timedelta(minutes=5)))
    assert "THEN" not in run("upcoming", "--match", "t*").lines[0]
    for words in (["--match", "t*"], ["tick"]):
        lines = run("upcoming", "-n", "7", *words).lines
        assert [line.split()[-1] for line in lines[1:]] == ["tick"] * 7
        assert "THEN" not in lines[0]
    names = [line.split()[-1] for line in run("upcoming", "-n", "7").lines[1:]]
    assert names == ["tick"] * 5 + ["s", "soon"]
    assert run("upcoming", "tick", "--match", "t*").code == 2


def test_each_row_says_when_it_is(run: Run, make: Make) -> None:
    make("once", clocked(datetime.now(timezone.utc) + timedelta(minutes=30, seconds=20)))
    title, row = run("upcoming").lines
    assert row[title.index("WHEN") :].startswith("in 30 min ")


@pytest.mark.usefixtures("tokyo")
def test_the_next_runs_of_one_entry(run: Run, make: Make, app: Celery) -> None:
    entry = make("ten", crontab(minute="*/10"))
    make("other", 5)
    expected = entry.upcoming(3)
    assert [line["due_at"] for line in run("upcoming", "ten", "-n", "3", "--json").json] == [
        instant.isoformat() for instant in expected
    ]
    until = expected[1].astimezone(app.timezone)
    ran = run("upcoming", "ten", "--until", f"{until:%Y-%m-%dT%H:%M}")
    assert len(ran.lines) == 3
    assert "DUE (Asia/Tokyo)" in ran.lines[0]
    assert ran.lines[2].split("  ")[0] == f"{until:%Y-%m-%d %H:%M:%S}"


def test_the_runs_of_a_paused_entry_come_with_a_warning(run: Run, make: Make) -> None:
    make("off", 5, enabled=False)
    ran = run("upcoming", "off", "-n", "1")
    assert len(ran.lines) == 2
    assert "off is paused" in ran.err


def test_no_upcoming_runs(run: Run) -> None:
    ran = run("upcoming")
    assert (ran.out, ran.err, ran.code) == ("", "No upcoming runs\n", 0)


@pytest.mark.parametrize(
    "options", [["-n", "0"], ["--until", "later"], ["--until", "0001-01-01T00:00+05:00"]]
)
def test_wrong_options_of_upcoming_are_refused(run: Run, options: list[str]) -> None:
    ran = run("upcoming", *options)
    assert ran.code == 2
    assert ("for example: --number 20" in ran.err) == ("-n" in options)
