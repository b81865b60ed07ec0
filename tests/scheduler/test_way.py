"""The map in ``docs/contributing.rst`` lists the files whose code runs for a due entry."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import redbeat
from redbeat import RedBeatScheduler
from tests.docs.blocks import block_named

from .conftest import Clock, World, interval_json

PACKAGE = Path(redbeat.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "contributing.rst"
#: Maximum number of files whose code runs for a due entry.
MOST = 20

pytestmark = pytest.mark.standalone


def calls_of_a_tick(scheduler: RedBeatScheduler) -> Counter[tuple[str, str]]:
    """Return how often one tick calls each function of the package, by file and name."""
    found: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found[str(path.relative_to(PACKAGE)), frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        scheduler.tick()
    finally:
        sys.setprofile(before)
    return found


def test_the_map_has_every_file_that_a_due_entry_goes_through(world: World, redis_url: str) -> None:
    world.app.conf.broker_url = redis_url
    scheduler = world.scheduler_of(RedBeatScheduler, Clock())  # no maintenance is due
    world.put("first", interval_json(600), world.ago(900))
    scheduler.tick()
    scheduler.tick()
    idle = calls_of_a_tick(scheduler)
    world.put("a", interval_json(600), world.ago(900))
    due = calls_of_a_tick(scheduler)
    assert world.run_count("a") == 1

    way, others = block_named(PAGE, "way").split("each tick")
    on_the_way = {word for word in way.split() if word.endswith(".py")}
    elsewhere = {word for word in others.split() if word.endswith(".py")}
    passed = {path for path, _ in due - idle}

    assert on_the_way <= passed
    assert passed - on_the_way <= elsewhere
    assert len(on_the_way) <= MOST
