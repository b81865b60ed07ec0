"""Tests that every page and file names the versions of the page about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

NAMES = ("Python", "Celery", "redis-py", "Redis", "Valkey")
ROW = re.compile(r"   \* - (\S+)\n     - (\d+\.\d+) or newer\n     - ([\d., ]+\d)")
ROWS = {
    name: (oldest, [*re.findall(r"\d+(?:\.\d+)?", tested)])
    for name, oldest, tested in ROW.findall(
        (ROOT / "docs" / "compatibility.rst").read_text(encoding="utf-8")
    )
}
OLDEST = re.compile(rf"\b({'|'.join(NAMES)}) (\d+(?:\.\d+)?)(?:\+| or (?:newer|later))")
RANGE = re.compile(rf"\b({'|'.join(NAMES)}) (\d+\.\d+) to (\d+\.\d+)")
NAMED = re.compile(rf"\b({'|'.join(NAMES)}) (\d+(?:\.\d+)?)")
#: Other ways to name an oldest version, and where.
ALSO = {
    "docs/deployment/managed.rst": (
        r"(Redis) .* version ([\d.]+\d) or newer",
        r"\((Valkey) ([\d.]+)\)",
    ),
    "docs/from-redbeat-2.rst": (r"(Celery) is older than ([\d.]+\d)",),
}


def is_oldest(name: str, version: str) -> bool:
    """Return whether a version, such as "5" or "5.0", is the oldest one."""
    oldest: str = ROWS[name][0]
    return version.removesuffix(".0") == oldest.removesuffix(".0")


def text_of(name: str) -> str:
    """Return the text of a file, with single spaces instead of line breaks."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_the_page_has_all_rows() -> None:
    assert tuple(ROWS) == NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_another_oldest_version_or_range(page: Path) -> None:
    text = text_of(str(page.relative_to(ROOT)))
    oldest = OLDEST.findall(text)
    for item in text.split(" * "):
        oldest += NAMED.findall(item) if "oldest supported" in item else []
    assert [found for found in oldest if not is_oldest(*found)] == []
    for name, first, last in RANGE.findall(text):
        assert [first, last] == [ROWS[name][1][0], ROWS[name][1][-1]]


@pytest.mark.parametrize("page", ALSO)
def test_the_oldest_versions_in_other_words(page: str) -> None:
    for pattern in ALSO[page]:
        found = re.search(pattern, text_of(page))
        assert found, pattern
        assert is_oldest(*found.groups())


def test_the_package_requires_the_oldest_versions() -> None:
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    for name, pattern in (
        ("Python", r'python_requires=">=([\d.]+)"'),
        ("Celery", r'"celery>=([\d.]+)"'),
        ("redis-py", r'"redis>=([\d.]+)"'),
    ):
        (version,) = re.findall(pattern, text)
        assert is_oldest(name, version)
    assert re.findall(r"Python :: (3\.\d+)", text) == ROWS["Python"][1]


def test_tox_tests_what_the_page_says() -> None:
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    celery = re.findall(r"celery\w+: celery>=([\d.]+)", text)
    assert celery == ROWS["Celery"][1]
    clients = [float(version) for version in re.findall(r"redis\w+: redis>=([\d.]+)", text)]
    assert [int(version) for version in clients] == [int(float(v)) for v in ROWS["redis-py"][1]]
