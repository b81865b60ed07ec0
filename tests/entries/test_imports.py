"""Entries of files are stored on a real server."""

from __future__ import annotations

import json

import pytest

from redbeat.calendar.zones import from_timestamp
from redbeat.entries.history import encode_meta
from redbeat.entries.pauses import Pause
from redbeat.entries.state import State, runtime_of
from redbeat.transfer.storing import Writing, save_imported
from tests.entries.worlds import World

pytestmark = pytest.mark.standalone


def test_an_imported_entry_has_the_history_and_the_pause_of_its_file(world: World) -> None:
    meta, key = encode_meta(from_timestamp(100.5), 3), world.key()
    runtime = runtime_of(State(at=100.0))
    since = "1970-01-01T00:01:00+00:00"
    pause = {"note": "why", "since": since, "by": "ann"}
    policy = json.dumps({"max_runs": 9, "pause": pause})
    definition, _ = world.entry(enabled=False).texts()
    lines = "100 +0.5\n90 +0.1"
    texts = (definition, policy, meta, runtime)
    writing = Writing(key, *texts, seen=None, score=-2.0, history=lines, identity="an-id")
    assert save_imported(world.store, [writing]) == []
    state = world.state()
    assert (state.at, state.identity, state.pause) == (100.0, "an-id", Pause(60.0, "why", "ann"))
    assert json.loads(world.stored()["policy"]) == {"max_runs": 9}
    assert json.loads(world.stored()["history"]) == lines.split("\n")
    assert (world.load().total_run_count, world.score()) == (3, -2)


def test_an_imported_entry_that_was_created_since_is_left_alone(world: World) -> None:
    definition, policy = world.entry(args=[1]).texts()
    writing = Writing(world.key(), definition, policy, "{}")
    world.saved()
    assert save_imported(world.store, [writing]) == [writing]
    assert world.definition()["args"] != [1]
