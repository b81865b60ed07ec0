"""After missed runs, the beat sends one run with the number of missed runs, and logs it."""

from __future__ import annotations

import pytest

from tests.scheduler.conftest import World, interval_json


def test_a_run_that_catches_up_missed_runs_counts_them(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    world.put("late", interval_json(60), world.ago(60 * 5 + 30))
    scheduler = world.scheduler()
    scheduler.tick()
    (message,) = scheduler.sent
    assert message.options["headers"]["coalesced"] == 4
    assert f"Entry late missed 4 runs: the beat sent the run of {message.scheduled_at}" in log.text


def test_a_run_on_time_counts_no_missed_runs(world: World, log: pytest.LogCaptureFixture) -> None:
    world.put("on-time", interval_json(60), world.ago(61))
    world.put("new")
    scheduler = world.scheduler()
    scheduler.tick()
    assert len(scheduler.sent) == 2
    assert not any("coalesced" in message.options["headers"] for message in scheduler.sent)
    assert "missed" not in log.text
