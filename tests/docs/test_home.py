"""Tests of the manual's home page: a reader who follows it gets a first schedule."""

from __future__ import annotations

import re
import urllib.request

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader

HOME = ROOT / "docs" / "index.rst"
#: Number of characters in a line of code that a phone shows without scrolling.
NARROW = 38


def test_the_code_fits_a_phone() -> None:
    lines = [line for block in blocks_of(HOME) for line in block.text.splitlines()]
    assert len(lines) > 20
    assert [line for line in lines if len(line) > NARROW] == []


@pytest.mark.long
def test_a_reader_gets_a_first_schedule(reader: Reader) -> None:
    project, program, install, servers, add = blocks_of(HOME)
    assert install.text.startswith("pip install ")  # .ci/check_package.py tests the installation
    reader.save(project.caption, project.text)
    reader.save(program.caption, program.text)
    worker, beat, web = servers.text.splitlines()
    running = reader.start(worker)
    reader.start(beat)
    page = reader.start(f"{web} --port 0")
    page.wait_for("press Ctrl-C")
    (url,) = re.findall(r"http://\S+/", page.output())
    reader.shell(add.text)
    running.wait_for("hello Redis")
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert ">greeting</a>" in answer.read().decode()
