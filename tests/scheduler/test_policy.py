"""How a beat applies the policy of an entry: its options in addition to the schedule."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX
from tests.scheduler.conftest import (
    SCHEDULE,
    World,
    interval_json,
)

UTC = timezone.utc


def put(world: World, name: str, ago: float | None, every: float = 60, **policy: Any) -> None:
    """Store a due entry with a policy and a last run ``ago`` seconds ago."""
    world.put(name, interval_json(every), None if ago is None else world.ago(ago))
    world.client.hset(f"{PREFIX}{name}", "policy", json.dumps(policy))


def load(world: World, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry.from_key(f"{PREFIX}{name}", app=world.app)


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_of_null_by_another_program_means_no_limit(world: World, most: int) -> None:
    put(world, "a", 90, max_runs=most)
    put(world, "b", 90)
    world.client.hset(f"{PREFIX}b", "policy", json.dumps({"max_runs": most}))
    scheduler = world.scheduler()
    scheduler.tick()
    assert sorted(scheduler.names) == ["a", "b"]
    assert load(world, "a").max_runs is None
    assert load(world, "b").runs_left is None


def test_a_subclass_that_passes_its_argument_on_sets_the_policy(world: World) -> None:
    class Once(RedBeatSchedulerEntry):
        def __init__(self, *args: Any, max_runs: int | None = 1, **kwargs: Any) -> None:
            super().__init__(*args, max_runs=max_runs, **kwargs)

    Once("a", "t", 60, app=world.app).save()
    assert world.field("a", "policy") == {"max_runs": 1}
    assert Once.from_key(f"{PREFIX}a", app=world.app).runs_left == 1
    Once("b", "t", 60, app=world.app, max_runs=3).save()
    assert Once.from_key(f"{PREFIX}b", app=world.app).runs_left == 3


def test_a_policy_inside_the_definition_works_too(world: World) -> None:
    world.put("a", interval_json(60), world.ago(90), max_runs=1, end_time="2100-01-01T00:00:00Z")
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.score("a") == -1


def test_one_off(world: World) -> None:
    entry = RedBeatSchedulerEntry("a", "t", 60, app=world.app, one_off=True)
    assert entry.max_runs == 1
    entry.last_run_at = None
    entry.save()
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert (world.score("a"), world.run_count("a")) == (-1, 1)


def test_finished_and_disabled(world: World, log: pytest.LogCaptureFixture) -> None:
    put(world, "a", 90, max_runs=1, on_finish="disable")
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.score("a") == -2
    assert load(world, "a").enabled is False
    assert "Entry a has finished" in log.text


def test_a_static_entry_cannot_delete_itself(world: World, log: pytest.LogCaptureFixture) -> None:
    entry = {"task": "t", "schedule": 60, "max_runs": 1, "on_finish": "delete"}
    other = {"task": "t", "schedule": 60, "max_runs": 1, "jitter": 5}
    world.app.conf.beat_schedule = {"bad": entry, "good": other}
    world.scheduler().tick()
    assert "Static entry bad is not scheduled: on_finish: 'delete'" in log.text
    assert world.field("good", "policy") == {"max_runs": 1, "jitter": 5.0}


def test_a_run_that_is_too_late_is_skipped_once(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    put(world, "a", 60 * 5 + 30, misfire_grace_time=10)
    scheduler = world.scheduler()
    scheduler.tick()
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
    scheduler.tick()
    assert scheduler.names == []
    assert log.text.count("Entry a missed 5 runs up to") == 1
    assert world.score("a") == world.later(30)


def test_the_deadline_of_celery_holds_for_crontabs(world: World) -> None:
    world.app.conf.beat_cron_starting_deadline = 30
    hour = (datetime.now(UTC) - timedelta(hours=2)).hour
    world.put("cron", {"__type__": "crontab", "minute": 0, "hour": hour}, world.ago(86400))
    put(world, "interval", 7200, 3600)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["interval"]


def test_an_entry_without_one_has_no_such_field(world: World) -> None:
    RedBeatSchedulerEntry("a", "t", 60, app=world.app, max_runs=None, coalesce="latest").save()
    assert not world.client.hexists(f"{PREFIX}a", "policy")


def test_jitter_moves_the_score_and_not_the_nominal_instant(world: World) -> None:
    put(world, "a", 90, 60, jitter=20)
    scheduler = world.scheduler()
    scheduler.tick()
    nominal = world.now() - 30
    (message,) = scheduler.sent
    assert message.scheduled_at.timestamp() == pytest.approx(nominal, abs=5)
    score = world.score("a")
    assert score is not None
    assert nominal + 55 < score < nominal + 85
    assert score == load(world, "a").score


def test_all_missed_runs_in_order(world: World) -> None:
    put(world, "a", 60 * 5 + 30, coalesce="all", catch_up_limit=10)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"] * 5
    instants = [message.scheduled_at for message in scheduler.sent]
    assert instants == sorted(instants)
    assert len({message.id for message in scheduler.sent}) == 5
    assert world.run_count("a") == 5


class TestUpcoming:
    def test_upcoming_runs_after_an_instant(self, world: World) -> None:
        put(world, "a", 90)
        after = datetime.fromtimestamp(world.now() + 3600, UTC)
        due = load(world, "a").upcoming(1, after)[0].timestamp()
        assert due == world.later(3630)

    def test_upcoming_runs_obey_window_and_limit(self, world: World) -> None:
        end = datetime.fromtimestamp(world.now() + 100, UTC).isoformat()
        put(world, "a", 90, end_time=end)
        put(world, "b", 90, max_runs=1)
        assert len(load(world, "a").upcoming()) == 2
        assert len(load(world, "b").upcoming()) == 1


# -- missed runs -----------------------------------------------------------------------------------


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
