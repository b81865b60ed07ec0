"""Tests that the examples of docs/policies.rst are stored as the page shows."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.policy import DEFAULT, Policy

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
