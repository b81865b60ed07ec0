"""Keys that only serve what spans entries stop nothing if they cannot be used."""

from __future__ import annotations

import pytest

from tests.cli.commands import run_command
from tests.deployments import PREFIX

from .conftest import World, interval_json


@pytest.mark.parametrize("side", ["quarantine", "failing", "expected", "beats", "stats"])
def test_a_side_key_of_a_wrong_type_stops_nothing(world: World, side: str) -> None:
    key = f".{PREFIX}:{side}"
    world.client.lpush(key, "x")
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert key in run_command(world.app, "doctor").out
    assert run_command(world.app, "list").code == 0
    assert run_command(world.app, "delete", "a", "--yes").code == 0


@pytest.mark.parametrize("note", ["not JSON", "[", "5", "{}", "[1]", '["\\ud800"]'])
def test_an_odd_note_of_a_vanished_beat_stops_nothing(
    world: World, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = f".{PREFIX}:hands"
    world.client.hset(key, "redbeat3:gone:1:1:a", note)
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert "Traceback" not in caplog.text
    assert not world.client.hexists(key, "redbeat3:gone:1:1:a")
