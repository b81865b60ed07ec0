"""The examples in the manual are Python and JSON, and the settings in it exist.

Some pages are executed as well: see ``tests/unit/test_schedules_page.py``,
``tests/unit/test_policies_page.py`` and ``tests/topologies/test_deployment_pages.py``.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path

import pytest

from redbeat.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.rst", *sorted((ROOT / "docs").rglob("*.rst"))]
BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n((?:\1 +\S.*\n|[ ]*\n)+)", re.MULTILINE)
OPTION = re.compile(r"\A(?: +:\w[\w-]*:.*\n)+")
#: Attributes of an app, which look like settings.
ATTRIBUTES = {"redbeat_conf", "redbeat_redis", "redbeat_tracks_runs"}


def blocks(language: str) -> list[tuple[str, int, str]]:
    """Return page, line and text of every example in a language."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") + "\n"
        for match in BLOCK.finditer(text):
            if match[2] == language:
                line = text.count("\n", 0, match.start()) + 1
                body = textwrap.dedent(OPTION.sub("", match[3].lstrip("\n")))
                found.append((str(page.relative_to(ROOT)), line, body))
    return found


def test_no_example_is_overlooked() -> None:
    for language in ("python", "json"):
        written = sum(
            len(re.findall(rf"code-block:: {language}$", page.read_text(), re.MULTILINE))
            for page in PAGES
        )
        assert len(blocks(language)) == written > 3


@pytest.mark.parametrize(("page", "line", "text"), blocks("python"))
def test_python_compiles(page: str, line: int, text: str) -> None:
    tree = compile(text, f"{page}:{line}", "exec", ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Module)
    assert tree.body, "the example is empty"


@pytest.mark.parametrize(("page", "line", "text"), blocks("json"))
def test_json_parses(page: str, line: int, text: str) -> None:
    assert json.loads(text), f"{page}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {
        name.lower() for name in re.findall(r"(?i)(?<![\w./-])redbeat_[a-z][a-z_]*[a-z]", text)
    }
    spelt = {name.lower() for name in re.findall(r"CELERY_(REDBEAT_[A-Z_]+[A-Z])", text)}
    variables = {"redbeat_faults", "redbeat_fuzz"}  # of the tests
    variables |= {"redbeat_web_basic_auth", "redbeat_web_token"}
    assert (named | spelt) - SETTINGS.keys() - ATTRIBUTES - variables == set()
