"""Tests that the settings in the manual are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.settings import SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.rst"

#: The section of a setting: name, type, default, first version, meaning.
SECTION = re.compile(
    r"^``(redbeat_\w+)``\n~+\n\n([^.]+)\. Default: (.+?)\. Since (\S+)\.\n\n(\S.+?)\n\n",
    re.MULTILINE | re.DOTALL,
)
SECTIONS = {
    name: [" ".join(text.split()) for text in texts]
    for name, *texts in SECTION.findall(PAGE.read_text(encoding="utf-8"))
}


def test_the_page_has_each_setting() -> None:
    assert list(SECTIONS) == list(SETTINGS)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_setting_is_described(name: str) -> None:
    kind, _default, since, meaning = SECTIONS[name]
    assert re.fullmatch(r"\d+(\.\d+)?", since)
    assert ("(" in kind) == kind.startswith(("Number", "Integer")), "a number has a unit"
    assert meaning.endswith((".", ":"))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_type_is_that_of_the_code(name: str) -> None:
    accepted, kind = SETTINGS[name].kind, SECTIONS[name][0]
    if accepted is None:
        return
    if accepted.requirement.startswith("one of "):
        choices = accepted.requirement.removeprefix("one of ").split(", ")
        assert re.findall(r"'(\w+)'", kind) == choices
    if accepted.requirement.startswith("an integer") and not kind.startswith("Port"):
        assert accepted.requirement.removeprefix("an i") in kind


def literals(text: str) -> list[object]:
    """Return a list with the Python literal at the start of a default; empty if there is none."""
    found = re.match(r"``(.+?)``", text)
    try:
        return [ast.literal_eval(found[1])] if found else []
    except ValueError:
        return []


@pytest.mark.parametrize("name", [name for name in SECTIONS if literals(SECTIONS[name][1])])
def test_the_default_is_that_of_the_code(name: str) -> None:
    config = RedBeatConfig(Celery("table", broker="redis://localhost", set_as_current=False))
    (default,) = literals(SECTIONS[name][1])
    if isinstance(default, str):
        default = default.replace("<prefix>", config.key_prefix)
    assert getattr(config, name.removeprefix("redbeat_")) == default


def test_every_setting_that_is_read_by_its_name_is_on_the_page() -> None:
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
