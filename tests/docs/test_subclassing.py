"""Tests that the page about subclassing matches the classes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from tests.docs.blocks import ROOT
from tests.scheduler.conftest import RecordingScheduler, World, interval_json

PAGE = (ROOT / "docs" / "subclassing.rst").read_text(encoding="utf-8")
NEVER = PAGE.partition("Never called\n")[2].partition("Override")[0]
NEVER_CALLED = re.findall(r"``(\w+)``", NEVER)


def members(page: str) -> list[str]:
    """Return the names in the first column of the tables of a page."""
    rows = re.findall(r"^   \* - (``.+)$", page, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"``(\w+)", row)]


def test_every_member_in_the_tables_exists() -> None:
    entry, _, scheduler = PAGE.partition("\nThe scheduler\n---")
    tables = [(RedBeatSchedulerEntry, members(entry)), (RedBeatScheduler, members(scheduler))]
    for cls, names in tables:
        assert len(names) > 10
        assert [name for name in names if not hasattr(cls, name)] == []


@pytest.mark.parametrize("own", ["none", "schedule", "tick"])
def test_a_beat_calls_none_of_the_methods_that_are_never_called(world: World, own: str) -> None:
    assert len(NEVER_CALLED) == 5
    called: list[str] = []

    class Own(RecordingScheduler):
        if own == "schedule":

            @property
            def schedule(self) -> Any:
                return self.get_schedule()

        if own == "tick":

            def tick(self, **_kwargs: Any) -> float:
                for entry in self.schedule.values():
                    self.maybe_due(entry, **self._maybe_due_kwargs)
                return 1.0

    def trap(name: str) -> Any:
        return lambda *_args, **_kwargs: called.append(name)

    for name in NEVER_CALLED:
        setattr(Own, name, trap(name))
    world.app.conf.beat_schedule = {"static": {"task": "t", "schedule": 60}}
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler_of(Own)
    scheduler.tick()
    scheduler.tick()
    scheduler.close()
    assert scheduler.names == ["a"]
    assert called == []
