"""Tests of the quick starts in the manual and the README."""

from __future__ import annotations

import pytest
import redis

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.reader import Reader
from tests.waiting import wait_until

#: The tests run many commands, each in its own process.
pytestmark = pytest.mark.timeout(600)


def steps(page: str) -> list[Block]:
    """Return the examples of a page."""
    return blocks_of(ROOT / page)


@pytest.mark.long
def test_the_five_minute_start_works(reader: Reader, redis_client: redis.Redis) -> None:
    install, *others = steps("docs/quickstart.rst")
    assert install.text.startswith("pip install")  # .ci/check_package.py tests the installation
    _wheel, _requirements, project, worker, beat, add, python, other, look = others
    reader.save(project.caption, project.text)
    running = reader.start(worker.text)
    leading = reader.start(beat.text)
    running.wait_for("hello world")
    reader.shell(add.text)
    reader.save(python.caption, python.text)
    reader.shell(f"python {python.caption}")
    reader.shell(other.text)
    running.wait_for("hello Redis")
    running.wait_for("hello shell")
    assert "hello morning" not in running.output()
    output = reader.shell(look.text)
    running.wait_for("hello morning")
    assert all(f"greet-{name}" in output for name in ("the-world", "redis", "shell", "at-seven"))

    leading.stop()
    redis_client.select(1)
    assert redis_client.exists("redbeat:greet-redis", "redbeat:greet-shell") == 1
    assert "paused" in reader.shell("celery -A proj redbeat show greet-redis")


@pytest.mark.long
def test_the_quick_start_of_the_readme_works(reader: Reader, redis_client: redis.Redis) -> None:
    _still, install, project, start, add, commands, *_ = steps("README.rst")
    assert install.text == "pip install . 'celery[redis]'\n"
    # The README uses 10 seconds; the test uses 1 second to save time.
    assert '"schedule": 10.0' in project.text
    reader.save("proj.py", project.text.replace('"schedule": 10.0', '"schedule": 1.0'))
    worker, _beat = (reader.start(line) for line in start.text.splitlines())
    worker.wait_for("hello world")
    reader.python(add.text)
    redis_client.select(1)
    due = wait_until(lambda: redis_client.zscore("redbeat::schedule", "redbeat:greet-redis"))
    assert isinstance(due, float)
    assert due % 60 == 0
    output = reader.shell(commands.text)
    assert "Added greet-often" in output
    assert "Paused greet-often" in output
