"""Tests of the ways in: the README, the home page and the tutorial, which share one project."""

from __future__ import annotations

import re
import time
import urllib.request

import pytest
import redis

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.reader import Reader

README = ROOT / "README.rst"
HOME = ROOT / "docs" / "index.rst"
TUTORIAL = ROOT / "docs" / "quickstart.rst"
#: Number of characters in a line of code that a phone shows without scrolling.
NARROW = 38


def test_the_code_fits_a_phone() -> None:
    lines = [line for block in blocks_of(HOME) for line in block.text.splitlines()]
    assert len(lines) > 20
    assert [line for line in lines if len(line) > NARROW and not line.startswith("pip")] == []


def test_the_three_ways_in_begin_with_the_same_project() -> None:
    readme, home, tutorial = (
        [block.text for block in blocks_of(page) if block.language == "python"][:2]
        for page in (README, HOME, TUTORIAL)
    )
    assert readme == home == tutorial
    # Ten lines, without the empty ones and a closing bracket.
    assert len([line for line in "".join(readme).splitlines() if line.strip(" )")]) < 13


def test_the_home_page_has_the_reasons_of_the_readme() -> None:
    (start, end) = re.findall(r":(?:start-after|end-before): (.*)", HOME.read_text("utf-8"))
    reasons = README.read_text("utf-8").partition(f"\n{start}\n")[2].partition(f"\n{end}\n")[0]
    assert len(re.findall(r"^\* \*\*", reasons, re.MULTILINE)) == 5
    assert "`_" not in reasons  # a link would lead elsewhere from the home page


def started(reader: Reader, block: Block) -> None:
    """Start each command of a block."""
    for line in block.text.splitlines():
        reader.start(line)


def follow_the_readme(reader: Reader) -> None:
    install, project, program, servers, add, commands, *_ = blocks_of(README)
    assert "pip install " in install.text  # .ci/check_package.py tests the installation
    reader.save("proj.py", project.text)
    reader.save("add.py", program.text)
    started(reader, servers)
    reader.shell(add.text)
    worker = reader.processes[0]
    worker.wait_for("hello Redis")
    faster = program.text.replace('"proj.greet", 5', '"proj.greet", 2')
    assert faster != program.text
    reader.save("add.py", faster)
    reader.shell(add.text)
    seen = worker.output().count("hello Redis")
    time.sleep(9)
    assert worker.output().count("hello Redis") - seen >= 4  # every two seconds
    output = reader.shell(commands.text)
    assert "every 10 s" in output
    assert output.count("greeting") >= 5  # changed, listed, and three runs


def follow_the_home_page(reader: Reader) -> None:
    project, program, install, servers, add = blocks_of(HOME)
    assert install.text.startswith("pip install ")
    reader.save(project.caption, project.text)
    reader.save(program.caption, program.text)
    started(reader, Block("", 0, "sh", "", "\n".join(servers.text.splitlines()[:2])))
    page = reader.start(f"{servers.text.splitlines()[2]} --port 0")
    page.wait_for("press Ctrl-C")
    (url,) = re.findall(r"http://\S+/", page.output())
    reader.shell(add.text)
    reader.processes[0].wait_for("hello Redis")
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert ">greeting</a>" in answer.read().decode()


def follow_the_tutorial(reader: Reader) -> None:
    install, _wheel, _requirements, *others = blocks_of(TUTORIAL)
    assert install.text.startswith("pip install ")
    project, program, servers, run, add, other, look, pause, in_code = others
    reader.save(project.caption, project.text)
    reader.save(program.caption, program.text)
    started(reader, servers)
    worker, beat = reader.processes[-2:]
    reader.shell(run.text)
    worker.wait_for("hello Redis")
    reader.shell(add.text)
    worker.wait_for("hello often")
    reader.shell(other.text)
    worker.wait_for("hello shell")
    output = reader.shell(look.text)
    assert all(name in output for name in ("greet-often", "greet-paris", "greet-shell"))
    assert "hello Paris" not in worker.output()
    reader.shell(pause.text)
    worker.wait_for("hello Paris")
    assert beat.stop() == 0
    reader.save("proj.py", project.text + in_code.text)
    reader.start(servers.text.splitlines()[1])
    worker.wait_for("hello code")
    assert "paused" in reader.shell("celery -A proj redbeat show greet-often")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_reader_follows_all_three_in_one_directory(
    reader: Reader, redis_client: redis.Redis
) -> None:
    follow_the_readme(reader)
    end(reader)
    follow_the_home_page(reader)
    end(reader)
    follow_the_tutorial(reader)
    names = {key.partition(":")[2] for key in redis_client.scan_iter("redbeat:greet*")}
    assert names == {"greeting", "greet-often", "greet-paris", "greet-from-code"}


def end(reader: Reader) -> None:
    """Stop what runs, as with Ctrl-C."""
    reader.end()
    reader.processes.clear()


@pytest.mark.long
@pytest.mark.parametrize("follow", [follow_the_home_page, follow_the_tutorial])
def test_a_reader_begins_later(reader: Reader, follow: object) -> None:
    assert callable(follow)
    follow(reader)
