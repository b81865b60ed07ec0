"""Tests that the examples of docs/schedules.rst and the table of docs/time.rst are correct."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule

from redbeat import rrule
from redbeat.entries.definition import (
    decode_definition,
    decode_policy,
    encode_definition,
    encode_policy,
)
from redbeat.schedules.next_run import next_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedules.rst"
TIME_PAGE = PAGE.with_name("time.rst")
UTC = timezone.utc
CELL = re.compile(r"^   \"?(America|Australia)")


def blocks(language: str) -> Iterator[str]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(rf"\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)", text)
    return (re.sub(r"(?m)^   ", "", block) for block in found)


@pytest.fixture
def examples(registry: dict[type, Any]) -> dict[str, Any]:
    """Return the entries that the Python examples of the page create."""
    assert not registry
    app = Celery(set_as_current=False)
    app.conf.beat_schedule = {}
    names: dict[str, Any] = {"app": app}
    for block in blocks("python"):
        if "beat_schedule[" in block:
            exec(block, names)
    return dict(app.conf.beat_schedule)


def test_the_json_is_that_of_the_python(examples: dict[str, Any]) -> None:
    decoded = [decode_definition(block) for block in blocks("json")]
    assert {definition["name"] for definition in decoded} == {*examples}
    for definition in decoded:
        example = examples[definition["name"]]
        assert definition["task"] == example["task"]
        assert definition["schedule"] == maybe_schedule(example["schedule"])


@pytest.mark.skipif(not hasattr(crontab, "from_string"), reason="Celery has it since 5.5")
def test_the_cron_expression_is_that_of_the_example(examples: dict[str, Any]) -> None:
    (expression,) = re.findall(r"crontab\.from_string\(\"(.+?)\"\)", PAGE.read_text("utf-8"))
    assert crontab.from_string(expression) == examples["office-hours"]["schedule"]


def test_the_rules_of_the_page_find_the_last_day_and_the_last_working_day(
    examples: dict[str, Any],
) -> None:
    (arguments,) = re.findall(r"``(byweekday=.+, bysetpos=-1)``", PAGE.read_text("utf-8"))
    start = datetime(2026, 1, 30, 18, tzinfo=UTC)
    working = eval(f'rrule("MONTHLY", start, {arguments})', {"rrule": rrule, "start": start})
    kinds = {"0131 0228 0331": examples["month-end"]["schedule"], "0130 0227 0331": working}
    for days, kind in kinds.items():
        for day in days.split():
            begin = datetime(2026, int(day[:2]), 1, tzinfo=UTC)
            found = next_run(kind, begin, UTC)
            assert found is not None
            assert f"{found:%m%d}" == day


def test_the_json_is_stored_in_the_same_form(examples: dict[str, Any]) -> None:
    for block in blocks("json"):
        decoded = json.loads(block)["schedule"]
        made = maybe_schedule(examples[json.loads(block)["name"]]["schedule"])
        fields: dict[str, Any] = {
            "name": "n",
            "task": "t",
            "args": None,
            "kwargs": {},
            "options": {},
        }
        text = encode_definition({**fields, "schedule": made, "enabled": True})
        written = json.loads(text)["schedule"]
        assert written["__type__"] == decoded["__type__"]
        read = decode_policy(encode_policy(made), decode_definition(text))
        assert read["schedule"] == made


def kinds(zone: ZoneInfo) -> dict[str, list[BaseSchedule]]:
    """Return the schedules that each row of the table stands for."""

    def rule(
        freq: Literal["DAILY", "MINUTELY"], hour: int, minute: int, interval: int = 1
    ) -> rrule:
        return rrule(freq, datetime(2026, 1, 1, hour, minute, tzinfo=zone), interval)

    return {
        "daily 02:15": [crontab(hour=2, minute=15), rule("DAILY", 2, 15)],
        "daily 01:45": [crontab(hour=1, minute=45), rule("DAILY", 1, 45)],
        "each 30 min": [
            crontab(minute="*/30"),
            rule("MINUTELY", 0, 0, 30),
            schedule(timedelta(minutes=30)),
        ],
    }


def printed_runs(kind: BaseSchedule, zone: ZoneInfo, night: datetime) -> str:
    start = night.replace(tzinfo=zone).astimezone(UTC)
    end = night.replace(hour=4, tzinfo=zone).astimezone(UTC)
    at = next_run(kind, start - timedelta(microseconds=1), zone)
    if isinstance(kind, schedule) and not isinstance(kind, crontab):
        at = start  # an interval counts from the last run
    found = []
    while at is not None and at < end:
        hours = int((at.astimezone(zone).utcoffset() or timedelta(0)).total_seconds() / 1800) / 2
        found.append(f"{at.astimezone(zone):%H:%M} ({hours:+g})")
        at = next_run(kind, at, zone)
    return ", ".join(found)


def table() -> list[list[str]]:
    lines = TIME_PAGE.read_text(encoding="utf-8").splitlines()
    return list(csv.reader(filter(CELL.match, lines), skipinitialspace=True))


def test_the_table_is_complete() -> None:
    assert len(table()) == 4 * 3
    assert len({row[0] for row in table()}) == 4


@pytest.mark.parametrize("row", table(), ids=" ".join)
def test_a_row_of_the_table_is_computed(row: list[str]) -> None:
    place, day = row[0].split()
    zone = ZoneInfo(place)
    for kind in kinds(zone)[row[1]]:
        assert row[2] == printed_runs(kind, zone, datetime.fromisoformat(day))
