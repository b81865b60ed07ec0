"""Tests of entries with calendars: what beats send, and what a change of a calendar does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat.session import Session
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.records import Keys
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.schedule.conftest import RoundTrips, trips
from tests.scheduler.conftest import World, interval_json

__all__ = ("trips",)

UTC = timezone.utc
KEYS = Keys.under(PREFIX)


def today(world: World) -> list[str]:
    """Return the day of Redis and the days around it, so that midnight does not disturb."""
    now = datetime.fromtimestamp(world.now(), UTC)
    return [(now + timedelta(days=days)).date().isoformat() for days in (-1, 0, 1)]


def put(world: World, name: str, exclude: list[str], **policy: Any) -> None:
    """Store an interval that is due now, with calendars."""
    world.put(name, interval_json(60), world.ago(90))
    world.client.hset(f"{PREFIX}{name}", "policy", json.dumps({"exclude": exclude, **policy}))


@pytest.fixture
def schedule(world: World) -> Schedule:
    return Schedule(world.app)


def test_an_excluded_run_is_not_sent_and_not_missed(
    world: World, schedule: Schedule, log: Any
) -> None:
    days = today(world)
    schedule.save_calendar(Calendar("now", days=days))
    schedule.save_calendar(Calendar("never", days=["2001-01-01"]))
    put(world, "a", ["now"])
    put(world, "b", ["never"])
    world.put("c")
    scheduler = world.scheduler()
    scheduler.tick()
    assert sorted(scheduler.names) == ["b", "c"]
    following = datetime.fromisoformat(days[-1]).replace(tzinfo=UTC) + timedelta(days=1)
    assert following.timestamp() <= (world.score("a") or 0) < following.timestamp() + 60
    assert "missed" not in log.text
    assert world.run_count("a") == 0


def test_entries_without_calendars_cost_nothing_and_all_others_one_round_trip(
    world: World, schedule: Schedule, trips: RoundTrips
) -> None:
    schedule.save_calendar(Calendar("never", days=["2001-01-01"]))
    scheduler = world.scheduler()
    scheduler.tick()
    cost = {}
    for names in (["never"], []):
        # Periodic work, such as the report of this beat, may add a round trip to one of the ticks.
        ticks = []
        for turn in range(3):
            for number in range(20):
                put(world, f"{names}{turn}{number}", names)
            trips.take()
            scheduler.tick()
            ticks.append(trips.take())
        cost[bool(names)] = min(ticks)
    assert len(scheduler.names) == 120
    assert cost[True] == cost[False] + 1


@pytest.mark.parametrize("missing", ["unknown", "bad"])
def test_an_entry_without_its_calendar_is_quarantined_until_the_calendar_is_saved(
    world: World, schedule: Schedule, missing: str
) -> None:
    world.client.hset(KEYS.calendars, "bad", "{")
    put(world, "a", [missing])
    world.client.sadd(KEYS.calendar_users, f"{PREFIX}a")
    world.put("good")
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["good"]
    assert repr(missing) in world.quarantine()[f"{PREFIX}a"]["reason"]
    assert schedule.save_calendar(Calendar(missing)) == 1
    scheduler.tick()
    assert scheduler.names == ["good", "a"]
    assert not world.quarantine()


def test_a_save_with_an_unknown_calendar_is_refused(world: World) -> None:
    entry = RedBeatSchedulerEntry("a", "t", 60, app=world.app, exclude="holidays")
    with pytest.raises(InvalidEntryError, match="exclude: there is no calendar 'holidays'"):
        entry.save()
    assert world.score("a") is None


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (
            {"exclude": "x", "on_excluded": "next"},
            "on_excluded: cannot move",
        ),
        ({"on_excluded": "next"}, "on_excluded: needs a calendar name"),
        ({"exclude": ""}, "exclude: must be"),
        ({"exclude": [7]}, "exclude: must be"),
        ({"exclude": "x", "on_excluded": "later"}, "on_excluded: must be one of"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    world: World, schedule: Schedule, policy: dict[str, Any], problem: str
) -> None:
    schedule.save_calendar(Calendar("x"))
    rule = crontab() if policy.get("on_excluded") == "later" else 60
    with pytest.raises(InvalidEntryError, match=problem):
        RedBeatSchedulerEntry("a", "t", rule, app=world.app, **policy).save()


def test_a_change_of_a_calendar_takes_effect_at_once_on_all_its_entries(
    world: World, schedule: Schedule
) -> None:
    schedule.save_calendar(Calendar("holidays"))
    schedule.save_calendar(Calendar("other"))
    hourly = crontab(minute=0)
    for number in range(3):
        RedBeatSchedulerEntry(f"a{number}", "t", hourly, app=world.app, exclude="holidays").save()
    RedBeatSchedulerEntry("b", "t", hourly, app=world.app, exclude="other").save()
    RedBeatSchedulerEntry("c", "t", hourly, app=world.app).save()
    before = {name: world.score(name) for name in ("a0", "a1", "a2", "b", "c")}
    assert schedule.save_calendar(Calendar("holidays", days=today(world))) == 3
    after = {name: world.score(name) for name in before}
    assert {name for name in before if before[name] != after[name]} == {"a0", "a1", "a2"}
    assert after["a0"] == schedule["a0"].score
    assert schedule.save_calendar(Calendar("holidays")) == 3
    assert {name: world.score(name) for name in before} == before


def test_entries_that_lost_their_calendar_are_forgotten(world: World, schedule: Schedule) -> None:
    schedule.save_calendar(Calendar("x"))
    for name in ("kept", "changed", "deleted"):
        RedBeatSchedulerEntry(name, "t", 60, app=world.app, exclude="x").save()
    changed = schedule["changed"]
    changed.exclude = ()
    changed.save()
    del schedule["deleted"]
    assert schedule.save_calendar(Calendar("x", days=["2001-01-01"])) == 1
    assert world.client.smembers(KEYS.calendar_users) == {f"{PREFIX}kept"}


def test_a_calendar_in_use_is_not_deleted(world: World, schedule: Schedule) -> None:
    schedule.save_calendar(Calendar("x"))
    entry = RedBeatSchedulerEntry("a", "t", 60, app=world.app, exclude="x").save()
    with pytest.raises(InvalidEntryError, match="is the calendar of 'a'"):
        schedule.delete_calendar("x")
    entry.delete()
    assert schedule.delete_calendar("x")
    assert not schedule.delete_calendar("x")
    assert schedule.calendars == {}


def test_the_calendars_are_read_back_as_they_were_saved(schedule: Schedule) -> None:
    calendars = {
        "a": Calendar("a", days=["2026-12-25"], zone="Europe/Berlin"),
        "b": Calendar("b", rules=["FREQ=WEEKLY;BYDAY=SA,SU"]),
    }
    for calendar in calendars.values():
        schedule.save_calendar(calendar)
    assert schedule.calendars == calendars


def test_a_calendar_that_changes_during_a_save_makes_the_entry_due_for_a_second_look(
    world: World, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup: an entry with a calendar. Fault: the calendar changes after it was read.

    Invariant: the next tick gives the entry the right score.
    """
    schedule.save_calendar(Calendar("x"))
    entry = RedBeatSchedulerEntry("a", "t", crontab(minute=0), app=world.app, exclude="x")
    days = today(world)
    save_all = Store.save_all

    def change_calendar_first(store: Store, writings: Any) -> Any:
        world.client.hset(KEYS.calendars, "x", Calendar("x", days=days).to_json())
        return save_all(store, writings)

    monkeypatch.setattr(Store, "save_all", change_calendar_first)
    entry.save()
    monkeypatch.undo()
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == []
    following = datetime.fromisoformat(days[-1]).replace(tzinfo=UTC) + timedelta(days=1)
    assert (world.score("a") or 0) >= following.timestamp()


def test_static_entries_have_calendars(world: World, schedule: Schedule) -> None:
    schedule.save_calendar(Calendar("x", days=today(world)))
    static = {"task": "t", "schedule": 60, "exclude": "x"}
    world.app.conf.beat_schedule = {"a": static}
    world.scheduler().tick()
    assert (world.score("a") or 0) > world.now() + 60
    assert schedule.save_calendar(Calendar("x")) == 1
    assert (world.score("a") or 0) <= world.now() + 60


#: What may become of a calendar.
DAMAGED = {"missing": None, "unreadable": "[1", "of another type": "5", "wrong": '{"days": 5}'}


def damage(world: World, name: str, damage: str) -> None:
    """Make a calendar unusable."""
    stored = DAMAGED[damage]
    if stored is None:
        world.client.hdel(KEYS.calendars, name)
    else:
        world.client.hset(KEYS.calendars, name, stored)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_change_of_the_time_zone_with_an_unusable_calendar(
    world: World, schedule: Schedule, log: Any, how: str
) -> None:
    """The tick raised an error, and so the beat ended, at each start."""
    schedule.save_calendar(Calendar("de", days=["2001-01-01"]))
    for name, exclude in (("a", ["de"]), ("b", []), ("c", [])):
        entry = RedBeatSchedulerEntry(name, "t", crontab("0", "0"), app=world.app)
        entry.exclude = tuple(exclude)
        entry.save()
    world.client.hset(KEYS.stats, "timezone", "Asia/Tokyo")
    damage(world, "de", how)
    before = world.score("b")
    world.client.zadd(KEYS.schedule, {f"{PREFIX}b": world.now() + 9e6, f"{PREFIX}c": world.now()})
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert world.score("b") == pytest.approx(before, abs=1)
    assert world.client.hget(KEYS.stats, "timezone") == "UTC"
    assert world.client.hexists(KEYS.quarantine, f"{PREFIX}a")
    assert "The tick failed" not in log.text


@pytest.mark.parametrize("how", DAMAGED)
def test_a_static_entry_with_an_unusable_calendar(
    world: World, schedule: Schedule, how: str
) -> None:
    schedule.save_calendar(Calendar("de", days=["2001-01-01"]))
    damage(world, "de", how)
    every = {"task": "t", "schedule": timedelta(hours=1)}
    bad = {"task": "t", "schedule": crontab("0", "0"), "exclude": ["de"]}
    world.app.conf.beat_schedule = {"good": every, "bad": bad}
    scheduler = world.scheduler()
    for _ in range(2):
        scheduler.tick()
    assert world.score("good") is not None


@pytest.mark.parametrize("how", DAMAGED)
def test_a_calendar_is_saved_while_another_one_is_unusable(
    world: World, schedule: Schedule, how: str
) -> None:
    for name in ("de", "fr"):
        schedule.save_calendar(Calendar(name, days=["2001-01-01"]))
    put(world, "a", ["de"])
    put(world, "b", ["de", "fr"])
    schedule["a"].save()
    schedule["b"].save()
    damage(world, "fr", how)
    assert schedule.save_calendar(Calendar("de", days=today(world))) == 2
    assert (world.score("a") or 0) > world.now() + 3600
    assert (world.score("b") or 0) <= world.now()


def test_no_stored_text_ends_a_tick(world: World, log: Any, monkeypatch: Any) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    for error in (DecodeError("definition", "bad"), InvalidEntryError("exclude", "bad")):

        def fail(*_args: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Session, "next_response", fail)
            assert scheduler.tick() > 0
    assert "The tick failed" in log.text


def after_next_read(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run ``action`` once, after the calendars are read for the next time."""
    original, actions = Store.calendars, [action]

    def calendars(store: Store, names: Any = None) -> dict[str, str]:
        texts = original(store, names)
        while actions:
            actions.pop()()
        return texts

    monkeypatch.setattr(Store, "calendars", calendars)


@pytest.mark.standalone
@pytest.mark.parametrize("delivery", [None, "at_most_once"])
def test_no_run_leaves_after_the_save_of_a_calendar_that_excludes_it(
    world: World,
    schedule: Schedule,
    redis_url: str,
    delivery: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Setup: the calendar is saved after the beat has read it, and before the run is recorded."""
    world.app.conf.update(broker_url=redis_url, redbeat_delivery=delivery)
    schedule.save_calendar(Calendar("holidays"))
    put(world, "a", ["holidays"])
    excluded = Calendar("holidays", days=today(world))
    after_next_read(monkeypatch, lambda: schedule.save_calendar(excluded))
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    scheduler.tick()
    assert world.client.llen("celery") == 0
    assert not world.is_claimed("a")
    assert (world.score("a") or 0) > world.now() + 3600


def test_a_calendar_that_is_saved_during_a_run_decides_on_the_next_run(
    world: World, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup: the calendar excluded tomorrow, but no longer when the beat records today's run."""
    schedule.save_calendar(Calendar("holidays", days=today(world)[2:]))
    world.put("a", interval_json(86_400), world.ago(86_401))
    world.client.hset(f"{PREFIX}a", "policy", json.dumps({"exclude": ["holidays"]}))
    scheduler = world.scheduler()
    after_next_read(monkeypatch, lambda: schedule.save_calendar(Calendar("holidays")))
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert (world.score("a") or 0) == pytest.approx(world.now() + 86_399, abs=60)
