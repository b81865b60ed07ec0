"""Tests of `celery redbeat upcoming` and `timeline`."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import clocked
from redbeat.cli.command import EX_NOT_FOUND
from redbeat.cli.timeline import ASCII_BARS, Picture
from tests.cli.conftest import Run
from tests.conftest import Make

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(minute: float) -> datetime:
    """Return the time ``minute`` minutes after the start."""
    return START + timedelta(minutes=minute)


def test_the_next_runs_of_all_entries_are_merged(run: Run, make: Make) -> None:
    make("ten", 600)
    make("twenty", 1200)
    make("off", 5, enabled=False)
    lines = run("upcoming", "-n", "4", "--json").json
    assert Counter(line["name"] for line in lines) == {"ten": 3, "twenty": 1}
    instants = [line["scheduled_at"] for line in lines]
    assert instants == sorted(instants)


@pytest.mark.usefixtures("tokyo")
def test_the_next_runs_of_one_entry(run: Run, make: Make, app: Celery) -> None:
    entry = make("ten", crontab(minute="*/10"))
    make("other", 5)
    expected = entry.upcoming(3)
    assert [line["scheduled_at"] for line in run("upcoming", "ten", "-n", "3", "--json").json] == [
        instant.isoformat() for instant in expected
    ]
    until = expected[1].astimezone(app.timezone)
    ran = run("upcoming", "ten", "--until", f"{until:%Y-%m-%dT%H:%M}")
    assert len(ran.lines) == 3
    assert "SCHEDULED (Asia/Tokyo)" in ran.lines[0]
    assert ran.lines[2].split("  ")[0] == f"{until:%Y-%m-%d %H:%M:%S}"


def test_the_runs_of_a_paused_entry_come_with_a_warning(run: Run, make: Make) -> None:
    make("off", 5, enabled=False)
    ran = run("upcoming", "off", "-n", "1")
    assert len(ran.lines) == 2
    assert "off is paused" in ran.err


def test_no_upcoming_runs(run: Run) -> None:
    for command in ("upcoming", "timeline"):
        ran = run(command)
        assert (ran.out, ran.err, ran.code) == ("", "No upcoming runs\n", 0)
    assert run("upcoming", "nobody").code == EX_NOT_FOUND


@pytest.mark.parametrize("options", [["-n", "0"], ["--until", "later"]])
def test_wrong_options_of_upcoming_are_refused(run: Run, options: list[str]) -> None:
    ran = run("upcoming", *options)
    assert ran.code == 2
    assert f"for example: {'--number 20' if '-n' in options else '--until'}" in ran.err


def test_the_timeline_marks_each_column_with_runs() -> None:
    runs = {"a": [at(0), at(2.5)], "b": [at(1 + n / 20) for n in range(12)], "c": [at(3)] * 3}
    picture = Picture(START, 1, 4, runs)
    assert [picture.marks(name) for name in runs] == ["| |", " #", "   3"]
    assert picture.load() == [1, 12, 1, 3]
    assert picture.bars(ASCII_BARS) == ".@.:"


def test_a_column_of_several_minutes_shows_the_busiest() -> None:
    runs = {"a": [at(0), at(1), at(2), at(3.1), at(3.2)]}
    picture = Picture(START, 2, 2, runs)
    assert picture.marks("a") == "23"
    assert picture.load() == [1, 1, 1, 2]
    assert picture.bars(" 12") == "12"


def test_the_timeline_draws_an_hour_of_minutes(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    make("every-five", crontab(minute="*/5"))
    make("a-name-that-is-longer-than-the-room-for-it", crontab(minute="*/30"))
    make("daily", 86400)
    ran = run("timeline")
    axis, *rows, load, legend = ran.lines
    half, five = sorted(rows)
    assert axis.count(":") == 6
    assert five.startswith("every-five ")
    assert five.count("|") in (12, 13)  # 13 if a full hour is in the first and last column
    assert half.startswith("a-name-that-is-longer-t~ ")
    assert half.count("|") in (2, 3)
    assert load.startswith("per minute ")
    assert load.count("█") == half.count("|")
    assert legend.startswith("Each column is 1 min; ")
    assert all(len(line) <= 90 for line in ran.lines)


def test_the_timeline_of_a_day_fits_into_a_narrow_terminal(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for number in range(5):
        make(f"entry-{number}", 3600)
    ran = run("timeline", "--span", "1d", "--limit", "3")
    assert "and 2 more entries" in ran.lines
    assert len([line for line in ran.lines if line.startswith("entry-")]) == 3
    assert "Each column is 1 h;" in ran.lines[-1]
    assert all(len(line) <= 60 for line in ran.lines[:-1])


def test_the_timeline_as_json(run: Run, make: Make) -> None:
    make("five", crontab(minute="*/5"))
    make("hidden", 60)
    (found,) = run("timeline", "--json", "--span", "30m", "--pattern", "f*").json
    (entry,) = found["entries"]
    assert entry["name"] == "five"
    assert len(entry["runs"]) == 6
    first = datetime.fromisoformat(found["first_minute"])
    minutes = Counter(
        int((datetime.fromisoformat(text) - first).total_seconds()) // 60 for text in entry["runs"]
    )
    assert found["per_minute"] == [minutes[n] for n in range(len(found["per_minute"]))]
    since, until = (datetime.fromisoformat(found[name]) for name in ("since", "until"))
    assert until - since == timedelta(minutes=30)


def test_a_timeline_with_a_single_run_has_no_plural(run: Run, make: Make) -> None:
    make("once", clocked(datetime.now(timezone.utc) + timedelta(minutes=30)))
    last = run("timeline").lines[-1]
    assert "; 1 run, at " in last
    assert "runs" not in last
