"""Tests of entries with calendars: what beats send, and what a change of a calendar does."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule, rrule, rruleset
from redbeat.beat.upkeep import INTERVAL
from redbeat.entries.decide import PARKED
from redbeat.errors import InvalidEntryError, TooManyStepsError
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.keys import Keys
from redbeat.storage.rows import new_mark
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.schedule.conftest import trips
from tests.scheduler.conftest import Clock, RecordingScheduler, World, interval_json
from tests.waiting import wait_until

__all__ = ("trips",)

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = Keys(PREFIX)


def today(world: World) -> list[str]:
    """Return the day of Redis and the days around it, so that midnight does not disturb."""
    now = datetime.fromtimestamp(world.now(), UTC)
    return [(now + timedelta(days=days)).date().isoformat() for days in (-1, 0, 1)]


def put(world: World, name: str, exclude: list[str], **policy: Any) -> None:
    """Store an interval that is due now, with calendars."""
    world.put(name, interval_json(60), world.ago(90))
    world.client.hset(f"{PREFIX}{name}", "policy", json.dumps({"exclude": exclude, **policy}))


def put_raw(world: World, name: str, text: str) -> None:
    """Store the text of a calendar, valid or not, with a new version."""
    world.client.hset(KEYS.calendars, name, text)
    world.client.set(f".{PREFIX}:calendars-version", new_mark())


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


@pytest.mark.parametrize("missing", ["unknown", "bad"])
def test_an_entry_without_its_calendar_is_quarantined_until_the_calendar_is_saved(
    world: World, schedule: Schedule, missing: str
) -> None:
    put_raw(world, "bad", "{")
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
    scheduler = world.scheduler()
    before = {name: world.score(name) for name in ("a0", "a1", "a2", "b", "c")}
    assert schedule.save_calendar(Calendar("holidays", days=today(world))) == 3
    scheduler.tick()
    after = {name: world.score(name) for name in before}
    assert {name for name in before if before[name] != after[name]} == {"a0", "a1", "a2"}
    assert after["a0"] == schedule["a0"].score
    assert schedule.save_calendar(Calendar("holidays")) == 3
    scheduler.tick()
    assert {name: world.score(name) for name in before} == before


def test_entries_that_lost_their_calendar_are_not_counted(world: World, schedule: Schedule) -> None:
    schedule.save_calendar(Calendar("x"))
    for name in ("kept", "changed", "deleted"):
        RedBeatSchedulerEntry(name, "t", 60, app=world.app, exclude="x").save()
    changed = schedule["changed"]
    changed.exclude = ()
    changed.save()
    del schedule["deleted"]
    assert schedule.save_calendar(Calendar("x", days=["2001-01-01"])) == 1


def test_a_calendar_that_changes_during_a_save_makes_the_entry_due_for_a_second_look(
    world: World, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup: a stored entry with a calendar. Fault: the calendar changes after a save read it.

    Invariant: the next tick gives the entry the right score.
    """
    schedule.save_calendar(Calendar("x"))
    entry = RedBeatSchedulerEntry("a", "t", crontab(minute=0), app=world.app, exclude="x")
    entry.save()
    days = today(world)
    after_next_read(monkeypatch, lambda: schedule.save_calendar(Calendar("x", days=days)))
    entry.args = [1]
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
    world.scheduler().tick()
    assert (world.score("a") or 0) > world.now() + 3600
    assert (world.score("b") or 0) <= world.now()


def after_next_read(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run ``action`` once, after the calendars are read for the next time."""
    actions = [action]

    def acting(read: Any) -> Any:
        def calendars(*args: Any) -> dict[str, str]:
            texts: dict[str, str] = read(*args)
            while actions:
                actions.pop()()
            return texts

        return calendars

    monkeypatch.setattr(Store, "calendars", acting(Store.calendars))


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
    assert not world.is_held("a")
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


EVERY_DAY = json.dumps({"days": [], "rules": ["RRULE:FREQ=DAILY"], "zone": None})
NO_DAY = json.dumps({"days": [], "rules": [], "zone": None})


@pytest.mark.parametrize("on_excluded", ["skip", "next", "previous"])
@pytest.mark.parametrize("text", [EVERY_DAY, "{"])
def test_an_entry_is_set_aside_until_another_program_mends_its_calendar(
    world: World, schedule: Schedule, clock: Clock, log: Any, on_excluded: Any, text: str
) -> None:
    schedule.save_calendar(Calendar("de"))
    entry = RedBeatSchedulerEntry("a", "t", crontab(), app=world.app, exclude="de")
    entry.on_excluded = on_excluded
    entry.save()
    world.put("other")
    world.make_due("a")
    put_raw(world, "de", text)
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    scheduler.tick()
    assert scheduler.names == ["other"]
    reason = world.quarantine()[f"{PREFIX}a"]["reason"]
    assert ("250,000 steps" if text == EVERY_DAY else "calendar 'de'") in reason
    assert world.score("a") == PARKED
    clock.advance(INTERVAL + 1)
    scheduler.tick()
    assert len([line for line in log.messages if "is quarantined" in line]) == 1
    assert not any("leaves the quarantine" in line for line in log.messages)
    put_raw(world, "de", NO_DAY)
    clock.advance(INTERVAL + 1)
    scheduler.tick()
    assert not world.quarantine()
    assert entry.status.state == "scheduled"


def test_an_entry_is_set_aside_until_it_is_edited(
    world: World, schedule: Schedule, log: pytest.LogCaptureFixture
) -> None:
    schedule.save_calendar(Calendar("de"))
    entry = RedBeatSchedulerEntry("a", "t", crontab(), app=world.app, exclude="de").save()
    world.client.hset(KEYS.calendars, "de", EVERY_DAY)
    with pytest.raises(TooManyStepsError, match="exclude: computing the next run outside the days"):
        RedBeatSchedulerEntry("b", "t", crontab(), app=world.app, exclude="de").save()
    world.make_due("a")
    world.scheduler().tick()
    assert f"{PREFIX}a" in world.quarantine()
    assert schedule.upcoming() == []
    assert "runs are incomplete" not in log.text, "no page computes it again"
    entry.exclude = ()
    entry.save()
    assert not world.quarantine()


def test_calendars_that_are_wrong_together_are_mended_one_by_one(
    world: World, schedule: Schedule
) -> None:
    names = ["one", "two"]
    for name in names:
        schedule.save_calendar(Calendar(name))
    for number in range(3):
        RedBeatSchedulerEntry(f"e{number}", "t", crontab(), app=world.app, exclude=names).save()
    with pytest.raises(InvalidEntryError, match=r"calendar: would leave 'e\d' without"):
        schedule.save_calendar(Calendar("one", rules=["FREQ=DAILY"]))
    assert schedule.calendars["one"] == Calendar("one")
    for name in names:
        world.client.hset(KEYS.calendars, name, EVERY_DAY)
    for name in names:
        assert schedule.save_calendar(Calendar(name)) == 3


def test_a_calendar_of_costly_entries_is_stored_without_computing_all_of_them(
    world: World, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are due at once instead, so a beat computes them."""
    schedule.save_calendar(Calendar("de"))
    for number in range(3):
        RedBeatSchedulerEntry(f"e{number}", "t", crontab(), app=world.app, exclude="de").save()
    monkeypatch.setattr("redbeat.management.calendars.CHECKED", 1)
    assert schedule.save_calendar(Calendar("de", days=["2001-01-01"])) == 3
    assert all((world.score(f"e{number}") or 0) <= world.now() for number in range(3))


def test_entries_that_take_long_let_other_entries_pass(world: World) -> None:
    never = rrule("WEEKLY", dtstart=EPOCH, byweekday=0, bysetpos=2)
    slow = rruleset([never, rrule("HOURLY", dtstart=EPOCH)])
    names = [f"slow{number}" for number in range(2)]
    for name in names:
        RedBeatSchedulerEntry(name, "t", slow, app=world.app).save()
        world.make_due(name)
    scheduler = world.scheduler()
    leader: Any = scheduler.beat
    leader.max_tick = 0.0
    for number in range(2):
        world.put(f"z{number}")
        scheduler.tick()
        assert scheduler.names[-1] == f"z{number}"

    def all_decided() -> bool:
        scheduler.tick()
        return all((world.score(name) or 0) > world.now() + 1 for name in names)

    wait_until(all_decided, 20, "all entries are decided")
