"""Tests that the settings table in the code, which generates the manual's table, is correct."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.settings import SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.rst"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_described(name: str) -> None:
    setting = SETTINGS[name]
    assert all((setting.type, setting.default, setting.meaning, setting.since))
    assert re.fullmatch(r"\d+(\.\d+)?", setting.since)
    assert bool(setting.unit) == setting.type.startswith(("number", "integer"))
    # The generated table contains every setting. The text after the table must mention it too.
    assert f"``{name}``" in PAGE.read_text(encoding="utf-8").partition("Where Redis is")[2]


def literals(text: str) -> list[object]:
    """Return a list with the Python literal at the start of a default; empty if there is none."""
    found = re.match(r"``(.+?)``", text)
    try:
        return [ast.literal_eval(found[1])] if found else []
    except ValueError:
        return []


@pytest.mark.parametrize("name", [name for name in SETTINGS if literals(SETTINGS[name].default)])
def test_the_default_is_that_of_the_code(name: str) -> None:
    config = RedBeatConfig(Celery("table", broker="redis://localhost", set_as_current=False))
    (default,) = literals(SETTINGS[name].default)
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
