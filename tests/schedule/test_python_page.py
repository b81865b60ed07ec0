"""The Python examples of docs/python.rst work."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from redbeat import Schedule, signals
from tests.scheduler.conftest import World

PAGE = Path(__file__).parents[2] / "docs" / "python.rst"
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)


def test_the_examples_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = [textwrap.dedent(found) for found in BLOCK.findall(text)]
    assert len(blocks) == 7
    names: dict[str, Any] = {"app": world.app}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        if "alert" in names:
            signals.entry_failed.disconnect(names["alert"])
    output = capsys.readouterr().out
    assert output.startswith("1 True\n")
    assert "['cleanup'] [] [] ['report']" in output
    assert set(Schedule(world.app)) == {"report", "cleanup"}
    scheduler = world.scheduler()
    scheduler.tick()
    assert [sent.task for sent in scheduler.sent] == ["proj.tasks.report"] * 2
