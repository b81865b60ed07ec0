"""Tests of the manual that run no examples: languages, syntax, and names of settings.

``test_python.py``, ``test_shell.py`` and ``test_guides.py`` run the examples.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import redbeat
from redbeat import errors, signals
from redbeat.settings import SETTINGS
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.metrics.scrapes import own_names

#: Attributes of an app that look like settings.
ATTRIBUTES = {"redbeat_conf", "redbeat_redis", "redbeat_tracks_runs"}
#: Metrics that look like settings.
METRICS = own_names() | {name.removesuffix("_bucket") for name in own_names()}
#: The languages of examples. Blocks with "text" or "none" are charts and files, which no test runs.
LANGUAGES = ("python", "json", "yaml", "sh", "console", "text", "none")


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


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text), str(block)


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    elsewhere = {*errors.__all__}
    assert [n for n in redbeat.__all__ if f"redbeat.{n}" not in text and n not in elsewhere] == []
    for module in (errors, signals):
        assert f".. automodule:: {module.__name__}\n   :members:" in text


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
