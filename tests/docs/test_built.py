"""Tests of how the manual is built, and of how it reads where nothing builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.blocks import PAGES, ROOT

README = (ROOT / "README.rst").read_text(encoding="utf-8")
#: Pages that the README links to.
LINKED = sorted({*re.findall(r"<(docs/[^>#]+\.rst)", README)})


def test_the_home_is_built_with_what_the_package_declares() -> None:
    """Read the Docs takes the extra ``docs``, and refuses warnings."""
    config = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text(encoding="utf-8"))
    assert config["version"] == 2
    (install,) = config["python"]["install"]
    assert install == {"method": "pip", "path": ".", "extra_requirements": ["docs"]}
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert re.search(r'^ +"docs": \[', setup, re.MULTILINE)
    assert config["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}
    assert (ROOT / config["sphinx"]["configuration"]).is_file()
    version = config["build"]["tools"]["python"]
    assert f"Python :: {version}" in setup


def problems_of(text: str, name: str) -> list[str]:
    """Return what a repository page can't show of a text: roles, includes, unknown directives.

    An unknown option, such as a caption, does no harm there, and of a ``literalinclude`` it shows
    the name of the file.
    """
    nodes = pytest.importorskip("docutils.nodes")
    core = pytest.importorskip("docutils.core")
    settings = {"report_level": 5, "halt_level": 6, "file_insertion_enabled": False}
    tree = core.publish_doctree(
        re.sub(r"^ +:caption:.*\n", "", text, flags=re.MULTILINE),
        source_path=name,
        settings_overrides={**settings, "raw_enabled": False},
    )
    found = [message for message in tree.findall(nodes.system_message) if message["level"] > 1]
    lines = [message.astext().partition("\n")[0] for message in found]
    return [line for line in lines if '"literalinclude"' not in line]


def test_a_role_and_an_include_are_noticed() -> None:
    text = "See :func:`redbeat.clocked`.\n\n.. include:: results.inc\n\n.. toctree::\n\n   web\n"
    found = problems_of(text, "page.rst")
    assert all(any(word in line for line in found) for word in ('"func"', "include", "toctree"))


def test_the_readme_links_to_pages() -> None:
    assert len(LINKED) > 12
    assert ".inc" not in README


#: The reference is generated, and these two pages put others together.
BUILT = {ROOT / "docs" / "index.rst", ROOT / "docs" / "changes.rst"}
BUILT |= {*(ROOT / "docs" / "api").glob("*.rst")}


@pytest.mark.parametrize(
    "page", sorted({*PAGES} - BUILT), ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_reads_well_on_a_repository_page(page: Path) -> None:
    assert problems_of(page.read_text(encoding="utf-8"), page.name) == []


def test_the_readme_links_to_no_page_that_must_be_built() -> None:
    assert {ROOT / name for name in LINKED} & BUILT == set()
