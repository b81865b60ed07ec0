"""Tests that the manual's table of settings is that of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.settings import SETTINGS

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE = (DOCS / "settings.inc").read_text(encoding="utf-8")
TEXT = (DOCS / "configuration.rst").read_text(encoding="utf-8")

#: A row of the table: name, meaning, type, default, first version.
ROW = re.compile(
    r"   \* - ``(\w+)``\n     - (.+(?:\n       .+)*)\n     - \| (.+)\n"
    r"       \| Default: (.+)\n       \| Since (.+)\n"
)
ROWS = {row[0]: row[1:] for row in ROW.findall(TABLE)}


def test_the_table_has_each_setting() -> None:
    assert list(ROWS) == list(SETTINGS)


@pytest.mark.parametrize("name", ROWS)
def test_a_setting_is_described(name: str) -> None:
    _meaning, kind, _default, since = ROWS[name]
    assert re.fullmatch(r"\d+(\.\d+)?", since)
    assert ("; " in kind) == kind.startswith(("number", "integer")), "a number has a unit"
    assert f"``{name}``" in TEXT


def literals(text: str) -> list[object]:
    """Return a list with the Python literal at the start of a default; empty if there is none."""
    found = re.match(r"``(.+?)``", text)
    try:
        return [ast.literal_eval(found[1])] if found else []
    except ValueError:
        return []


@pytest.mark.parametrize("name", [name for name in ROWS if literals(ROWS[name][2])])
def test_the_default_is_that_of_the_code(name: str) -> None:
    config = RedBeatConfig(Celery("table", broker="redis://localhost", set_as_current=False))
    (default,) = literals(ROWS[name][2])
    if isinstance(default, str):
        default = default.replace("<prefix>", config.key_prefix)
    assert getattr(config, name.removeprefix("redbeat_")) == default


def test_every_setting_that_is_read_by_its_name_is_in_the_table() -> None:
    package = Path(__file__).resolve().parents[1] / "redbeat"
    text = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    read = set(
        re.findall(
            r"(?:either_or|find_setting|is_key_in_conf|_read_\w+)\("
            r"(?:\w+(?:\.\w+)*, )?\"(redbeat_\w+)\"",
            text,
        )
    )
    assert "redbeat_lock_key" in read
    assert read <= SETTINGS.keys()
