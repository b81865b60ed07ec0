"""Entries of files are stored on a real server, over what there is at the moment of the write."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.calendar.zones import from_timestamp
from redbeat.entries.history import encode_meta
from redbeat.entries.state import Pause, State, runtime_of
from redbeat.errors import InvalidEntryError
from redbeat.transfer.importing import Importer
from redbeat.transfer.incoming import Incoming
from tests.entries.worlds import Hook, World, near, nothing

pytestmark = pytest.mark.standalone


def imported(world: World, entry: Any, meanwhile: Hook = nothing, **parts: Any) -> None:
    """Import an entry; call ``meanwhile`` between the check and the write."""
    importer = Importer(Schedule(world.app), "replace")
    importer.check([Incoming("line 1", entry, **parts)])
    assert importer.problems == []
    meanwhile()
    importer.write()


def test_an_imported_entry_has_the_history_and_the_pause_of_its_file(world: World) -> None:
    meta = encode_meta(from_timestamp(100.5), 3)
    runtime = runtime_of(State(at=100.0))
    definition, policy = world.entry(enabled=False, max_runs=9).texts()
    entry = RedBeatSchedulerEntry.from_definition(world.app, definition, policy)
    entry.saved_state = entry.saved_state._replace(pause=Pause(60.0, "why", "ann"))
    lines = ["100 +0.5", "90 +0.1"]
    imported(world, entry, meta=meta, runtime=runtime, history=lines, identity="an-id")
    state = world.state()
    assert (state.at, state.identity, state.pause) == (100.0, "an-id", Pause(60.0, "why", "ann"))
    assert json.loads(world.stored()["policy"]) == {"max_runs": 9}
    assert json.loads(world.stored()["history"]) == lines
    assert (world.load().total_run_count, world.score()) == (3, -2)


def test_an_entry_that_was_created_and_ran_since_the_check_keeps_its_history(world: World) -> None:
    def created() -> None:
        world.saved()
        world.run()

    imported(world, world.entry(args=[1]), created)
    assert world.definition()["args"] == [1]
    assert world.load().total_run_count == 1
    assert world.score() == near(world.now + 3600, 60)


def test_an_entry_that_ran_since_the_check_has_the_history_of_the_file(world: World) -> None:
    world.saved()
    meta = encode_meta(from_timestamp(100.5), 3)
    imported(world, world.entry(args=[1]), world.run, meta=meta)
    assert (world.definition()["args"], world.load().total_run_count) == ([1], 3)


def test_an_entry_that_was_deleted_since_the_check_is_new(world: World) -> None:
    world.saved()
    before = world.state().identity
    imported(world, world.entry(args=[1]), world.client.flushall)
    assert (world.definition()["args"], world.load().total_run_count) == ([1], 0)
    assert world.state().identity not in ("", before)
    assert world.score() == near(world.now + 3600, 60)


def test_a_key_that_another_program_made_since_the_check_is_an_error(world: World) -> None:
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        imported(world, world.entry(), lambda: world.client.set(world.key(), "x"))


def test_a_host_whose_clock_is_ahead_delays_no_new_entry(world: World) -> None:
    """The last run that a new entry counts from is not later than the time of Redis."""
    ahead = datetime.now(timezone.utc) + timedelta(days=1)
    imported(world, world.entry().created_at(ahead))
    assert world.load().last_run_at.timestamp() == near(world.now, 60)
