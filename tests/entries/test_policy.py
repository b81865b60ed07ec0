"""Tests of the options of a policy, of the errors about wrong values, and of docs/policies.rst."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytz
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.policy import DEFAULT, FIELDS, Policy
from redbeat.errors import InvalidEntryError

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def test_an_empty_policy_has_the_defaults() -> None:
    assert Policy.of({}) is DEFAULT
    assert Policy.of(dict.fromkeys(FIELDS)) is DEFAULT
    assert DEFAULT.non_defaults() == {}


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("timezone", "Europe/Paris", "Europe/Paris"),
        ("timezone", ZoneInfo("Europe/Paris"), "Europe/Paris"),
        ("timezone", pytz.timezone("Asia/Tokyo"), "Asia/Tokyo"),
        ("timezone", UTC, "UTC"),
        ("start_time", NOON, NOON),
        ("start_time", NOON.replace(tzinfo=None), NOON),
        ("start_time", NOON.astimezone(ZoneInfo("Asia/Tokyo")), NOON),
        ("end_time", "2026-03-02T12:00:00Z", NOON),
        ("end_time", "2026-03-02T14:00:00+02:00", NOON),
        ("max_runs", 1, 1),
        ("on_finish", "delete", "delete"),
        ("misfire_grace_time", 60, 60.0),
        ("misfire_grace_time", 0, 0.0),
        ("coalesce", "earliest", "earliest"),
        ("jitter", 2.5, 2.5),
        ("delivery", "at_most_once", "at_most_once"),
    ],
)
def test_valid_values_are_accepted(field: str, value: Any, kept: Any) -> None:
    policy = Policy.of({field: value})
    assert getattr(policy, field) == kept
    assert policy.non_defaults() == {field: kept}
    assert Policy.of(policy.non_defaults()) == policy


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("timezone", "Mars/Olympus", "unknown time zone"),
        ("timezone", 3600, "IANA name"),
        ("timezone", timezone(timedelta(hours=1)), "IANA name"),
        ("start_time", 1.5, "datetime"),
        ("end_time", "tomorrow", "ISO 8601"),
        ("end_time", "9999-12-31T23:59:59-05:00", "the years 1 and 9999"),
        ("start_time", "0001-01-01T00:00+05:00", "the years 1 and 9999"),
        ("exclude", ["a\ud800"], "name or a list of names"),
        ("exclude", "a\udcff", "name or a list of names"),
        ("exclude", ["a", ""], "1 to "),
        ("exclude", 7, "name or a list of names"),
        ("max_runs", 0, "above 0"),
        ("max_runs", True, "above 0"),
        ("max_runs", 1.5, "above 0"),
        ("on_finish", "explode", "keep, disable, delete"),
        ("misfire_grace_time", -1, "a number of seconds from 0"),
        ("misfire_grace_time", float("nan"), "a number of seconds from 0"),
        ("misfire_grace_time", "60", "a number of seconds from 0"),
        ("coalesce", "none", "latest, earliest, all"),
        ("jitter", -0.1, "a number of seconds from 0"),
        ("jitter", float("inf"), "a number of seconds from 0"),
        ("delivery", "exactly_once", "at_least_once, at_most_once"),
    ],
)
def test_the_error_names_the_field_with_a_wrong_value(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidEntryError, match=says) as caught:
        Policy.of({field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"start_time": NOON, "end_time": NOON - timedelta(seconds=1)}, "end_time"),
        ({"coalesce": "all"}, "catch_up_limit"),
        ({"catch_up_limit": 5}, "catch_up_limit"),
        ({"coalesce": "all", "catch_up_limit": 0}, "catch_up_limit"),
        ({"coalesce": "all", "catch_up_limit": 1001}, "catch_up_limit"),
    ],
)
def test_contradictory_fields_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        Policy.of(fields)
    assert caught.value.field == field


def test_a_policy_may_allow_one_instant() -> None:
    policy = Policy.of({"start_time": NOON, "end_time": NOON})
    assert policy.start_time == policy.end_time == NOON


PAGE = Path(__file__).resolve().parents[2] / "docs" / "policies.rst"


def block(language: str) -> str:
    """Return the first example of the page in this language."""
    found = re.findall(
        rf"\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)", PAGE.read_text(encoding="utf-8")
    )
    assert found
    return re.sub(r"(?m)^   ", "", found[0])


@pytest.fixture
def page_entry(app: Celery) -> RedBeatSchedulerEntry:
    """Return the entry that the page's Python example saves, loaded from Redis."""
    exec(block("python"), {"app": app})
    return RedBeatSchedulerEntry.from_key("redbeat:advent", app=app)


def test_the_json_is_that_of_the_python(app: Celery, page_entry: RedBeatSchedulerEntry) -> None:
    app.redbeat_redis.hset("redbeat:advent", "definition", block("json"))
    app.redbeat_redis.hdel("redbeat:advent", "policy")
    written = RedBeatSchedulerEntry.from_key("redbeat:advent", app=app)
    assert written.policy == page_entry.policy != DEFAULT
    assert written.schedule == page_entry.schedule
    assert written.task == page_entry.task


def test_the_page_lists_every_field_and_its_default() -> None:
    rows: dict[str, str] = dict(
        re.findall(
            r"^``(\w+)``\n((?:   .+\n)+)",
            PAGE.read_text("utf-8").partition("What is counted")[0],
            re.MULTILINE,
        )
    )
    assert rows.keys() == {field.name for field in fields(Policy)}
    for name, told in rows.items():
        default: Any = getattr(DEFAULT, name)
        if default not in (None, ()):
            value = default if isinstance(default, str) else f"{default:g}"
            assert " ".join(told.split()).endswith(f"Default: ``{value}``.")
