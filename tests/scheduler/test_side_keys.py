"""Keys that only serve what spans entries stop nothing if they cannot be used."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import run_command
from tests.deployments import PREFIX

from .conftest import HANDS, World, interval_json

#: The token of a beat that has vanished.
VANISHED = "redbeat3:gone:1:1:a"


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
    world.client.hset(HANDS, VANISHED, note)
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert "Traceback" not in caplog.text
    assert not world.client.hexists(HANDS, VANISHED)


@pytest.mark.parametrize("others", [[], ["b"], ["gone", "b"]])
def test_a_suspect_that_another_beat_has_set_aside_is_not_loaded(
    world: World, others: list[str]
) -> None:
    later = world.now() + 3600
    key = world.put("odd", {"__type__": "interval", "every": "x"}, score=later)
    world.put("b", interval_json(60), world.ago(90))
    keys = [f"{PREFIX}{name}" for name in others]
    world.client.hset(HANDS, VANISHED, json.dumps([*keys, key]))
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["b"], "the look at the suspect alone delays no other"
    scheduler.tick()
    assert world.score("odd") == later
    assert not world.client.exists(f".{PREFIX}:quarantine")
    assert not world.client.hexists(HANDS, VANISHED)
