"""Tests of the manual that run no examples: languages, syntax, and names of settings.

``test_python.py``, ``test_shell.py`` and ``test_guides.py`` run the examples.
"""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from celery import Celery

import redbeat
from redbeat import RedBeatSchedulerEntry, errors, signals
from redbeat.schedules.registry import BUILT_IN
from redbeat.settings import SETTINGS
from redbeat.transfer.entry_file import read_entry_file
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.metrics.scrapes import own_names

#: Attributes of an app that look like settings.
ATTRIBUTES = {"redbeat_conf", "redbeat_redis", "redbeat_tracks_runs"}
#: Metrics that look like settings.
METRICS = own_names() | {name.removesuffix("_bucket") for name in own_names()}
#: The languages of examples. Blocks with "text" or "none" are charts and files, which no test runs.
LANGUAGES = ("python", "json", "yaml", "toml", "sh", "console", "text", "none")


def test_no_example_is_overlooked() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    written = re.findall(r"^ *\.\. code-block:: (\w+)$", text, re.MULTILINE)
    assert len(blocks(*LANGUAGES)) == len(written) > 80
    assert set(written) == set(LANGUAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_example_declares_its_language(page: Path) -> None:
    """A block that begins with ``::`` has no language, so no test would run it."""
    lines = page.read_text(encoding="utf-8").splitlines()
    marked = [line for line in lines if line.endswith("::") and not line.lstrip().startswith("..")]
    assert marked == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_parses(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict), str(block)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_files_of_entries_can_be_read(block: Block, app: Celery, tmp_path: Path) -> None:
    file = tmp_path / "entries.toml"
    file.write_text(block.text, encoding="utf-8")
    content = read_entry_file(app, RedBeatSchedulerEntry, str(file), BytesIO())
    assert content.problems == []
    assert content.entries


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text), str(block)


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    elsewhere = {*errors.__all__}
    assert [n for n in redbeat.__all__ if f"redbeat.{n}" not in text and n not in elsewhere] == []
    for module in (errors, signals):
        assert f".. automodule:: {module.__name__}\n   :members:" in text


@pytest.mark.parametrize("page", ["languages", "differences", "deployment/security"])
def test_the_list_of_stored_types_is_complete(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.rst").read_text(encoding="utf-8")
    assert [tag for tag in BUILT_IN if f"``{tag}``" not in text] == []


def test_every_page_is_in_one_part_of_the_manual() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.rst").read_text(encoding="utf-8")
    parts = re.findall(r"\.\. toctree::\n((?: +.*\n|\n)+)", index)
    assert [re.findall(r":caption: (.*)", part)[0] for part in parts] == [
        "Tutorial",
        "How-to",
        "Reference",
        "Explanation",
    ]
    listed = [name for part in parts for name in re.findall(r"^   ([\w/-]+)$", part, re.MULTILINE)]
    pages = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.rst")}
    assert sorted(listed) == sorted(pages - {"index"})


#: Pages that have another beginning.
OTHER_BEGINNINGS = {
    *("README.rst", "CHANGES.rst", "docs/index.rst", "docs/changes.rst"),
    *("docs/scale.rst", "docs/web.rst"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_what_the_reader_can_do(page: Path) -> None:
    if str(page.relative_to(ROOT)) not in OTHER_BEGINNINGS:
        title, underline, blank, first = page.read_text(encoding="utf-8").split("\n")[:4]
        assert underline == len(title) * "="
        assert blank == ""
        assert re.match("After (this page|these pages), you (can|know|have) ", first)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_version_2_from_the_package_index(page: Path) -> None:
    if "dev" in redbeat.__version__:
        assert not re.search(r"pip install '?celery-redbeat", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {
        name.lower() for name in re.findall(r"(?i)(?<![\w./-])redbeat_[a-z][a-z_]*[a-z]", text)
    }
    spelt = {name.lower() for name in re.findall(r"CELERY_(REDBEAT_[A-Z_]+[A-Z])", text)}
    variables = {"redbeat_faults", "redbeat_fuzz", "redbeat_topology", "redbeat_screenshots"}
    variables |= {"redbeat_web_basic_auth", "redbeat_web_token", "redbeat_zone"}
    assert (named | spelt) - SETTINGS.keys() - ATTRIBUTES - METRICS - variables == set()
