"""Entries of ``beat_schedule``, which the leading beat synchronises to Redis."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.beat import STANDBY_POLL
from tests.deployments import PREFIX
from tests.servers import RedisServer

from .clients import Wire
from .conftest import (
    LOCK,
    SCHEDULE,
    STATICS,
    Clock,
    RecordingScheduler,
    World,
    interval_json,
    void,
)

HOUR = 3600.0


def declare(world: World, **schedules: object) -> None:
    """Set ``beat_schedule`` to entries with the given names and schedules."""
    world.app.conf.beat_schedule = {
        name: {"task": f"tasks.{name}", "schedule": schedule}
        for name, schedule in schedules.items()
    }


def lead(world: World) -> RecordingScheduler:
    """Close all schedulers, and return a new scheduler that leads after its first tick."""
    for scheduler in world.schedulers:
        scheduler.close()
    scheduler = world.scheduler()
    scheduler.tick()
    return scheduler


def static_names(world: World) -> set[str]:
    """Return the names of the static entries that Redis stores."""
    return set(world.client.smembers(STATICS))


class TestSchedulesInJson:
    """Programs that also write entries as JSON use the same dicts in ``beat_schedule``."""

    GOOD: ClassVar[dict[str, Any]] = {
        "seconds": {"__type__": "interval", "every": 60},
        "crontab": {"__type__": "crontab", "minute": "*/5", "hour": 4},
        "rrule": {"__type__": "rrule", "freq": "DAILY", "dtstart": 1700000000},
        "solar": {"__type__": "solar", "event": "sunset", "lat": 1.5, "lon": 2},
        "once": {"__type__": "clocked", "clocked_time": datetime(2099, 1, 2, tzinfo=timezone.utc)},
    }
    BAD: ClassVar[dict[str, Any]] = {
        "minutes": {"__type__": "crontab", "minutes": 5},
        "unknown": {"__type__": "cron"},
    }

    @pytest.mark.parametrize("method", ["beat_schedule", "update_from_dict"])
    def test_they_are_understood(
        self, world: World, log: pytest.LogCaptureFixture, method: str
    ) -> None:
        mixed = self.GOOD | self.BAD
        scheduler = world.scheduler()
        if method == "beat_schedule":
            declare(world, **mixed)
            scheduler = lead(world)
        else:
            scheduler.update_from_dict(
                {name: {"task": "t", "schedule": given} for name, given in mixed.items()}
            )
        stored = {name: world.field(name, "definition")["schedule"] for name in self.GOOD}
        assert {name: stored[name]["__type__"] for name in stored} == {
            name: given["__type__"] for name, given in self.GOOD.items()
        }
        assert stored["seconds"] == interval_json(60)
        assert world.client.zcard(SCHEDULE) == len(self.GOOD)
        lines = [record.getMessage() for record in log.records if record.levelname == "ERROR"]
        assert len(lines) == len(self.BAD)
        assert "minutes is not scheduled: schedule: unknown key 'minutes' in crontab" in lines[0]
        assert "unknown is not scheduled: schedule: unknown '__type__' 'cron'; use" in lines[1]


class TestSynchronisation:
    def test_a_new_static_entry_is_added(self, world: World) -> None:
        declare(world, a=HOUR, b=crontab(minute="0", hour="4"))
        scheduler = lead(world)
        assert static_names(world) == {"a", "b"}
        assert scheduler.sent == []
        assert world.score("a") == world.later(HOUR)
        b = RedBeatSchedulerEntry.from_key(f"{PREFIX}b", world.app)
        assert (b.task, b.schedule) == ("tasks.b", crontab(minute="0", hour="4"))

    def test_a_changed_entry_keeps_its_history(self, world: World) -> None:
        declare(world, a=HOUR)
        lead(world)
        world.put_meta("a", world.ago(100))
        meta = world.field("a", "meta")
        declare(world, a=2 * HOUR)
        lead(world)
        assert world.field("a", "definition")["schedule"]["every"] == 2 * HOUR
        assert world.field("a", "meta") == meta
        assert world.score("a") == world.later(2 * HOUR - 100)

    def test_unchanged_entries_write_nothing(self, world: World) -> None:
        declare(world, a=HOUR, b=crontab(minute="*/5"))
        lead(world)
        before = world.dump()
        lead(world)
        assert world.dump() == before

    def test_a_change_releases_a_quarantined_static_entry(self, world: World) -> None:
        declare(world, a=HOUR)
        lead(world)
        world.client.hset(f"{PREFIX}a", "definition", "{")
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
        lead(world)
        assert world.quarantine() == {}
        assert world.score("a") == world.later(HOUR)

    def test_an_entry_changed_during_its_run(self, world: World) -> None:
        world.app.conf.redbeat_lock_key = None
        declare(world, a=HOUR)
        scheduler = lead(world)
        world.put_meta("a", world.ago(HOUR))
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
        declare(world, a=10)
        other = world.scheduler()
        scheduler.before_send = lambda _task: void(other.tick())
        scheduler.tick()
        assert (scheduler.names, other.names) == (["a"], [])
        assert world.run_count("a") == 1
        assert world.score("a") == world.later(10)


class TestWhoWrites:
    def test_a_constructor_adds_and_changes_while_nobody_leads(self, world: World) -> None:
        """After a program creates a scheduler, it can read the static entries before any tick."""
        declare(world, a=HOUR, c=HOUR)
        lead(world).close()
        declare(world, a=2 * HOUR, b=HOUR)
        world.scheduler()
        assert static_names(world) == {"a", "b", "c"}
        assert world.field("a", "definition")["schedule"]["every"] == 2 * HOUR
        assert world.score("b") == world.later(HOUR)
        assert world.client.get(LOCK) is None

    def test_a_constructor_only_adds_while_another_beat_leads(self, world: World) -> None:
        """#155, #198: a web process or standby with old code does not change or delete entries."""
        declare(world, a=HOUR, c=HOUR)
        lead(world)
        before = world.dump()
        declare(world, a=2 * HOUR, b=HOUR)
        standby = world.scheduler()
        standby.tick()
        standby.tick()
        after = world.dump()
        assert static_names(world) == {"a", "b", "c"}
        for key in (f"{PREFIX}a", f"{PREFIX}c"):
            assert after[key] == before[key]
        world.schedulers[0].close()
        standby.tick()
        assert static_names(world) == {"a", "b"}
        assert world.field("a", "definition")["schedule"]["every"] == 2 * HOUR

    def test_changes_by_an_older_version_before_the_first_tick_are_overwritten(
        self, world: World
    ) -> None:
        declare(world, a=2 * HOUR)
        newer = world.scheduler()
        declare(world, a=HOUR)
        world.scheduler()
        newer.tick()
        assert world.field("a", "definition")["schedule"]["every"] == 2 * HOUR

    def test_what_a_standby_added_is_counted_in_one_log_line(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        declare(world, a=HOUR, gone=HOUR)
        leader = lead(world)
        declare(world, a=2 * HOUR, b=HOUR)
        standby = world.scheduler()
        assert "Another beat leads: 1 missing static entries added" in log.text
        leader.close()
        log.clear()
        standby.tick()
        assert "Static entries: 0 added, 1 changed, 1 removed, 2 in all" in log.text

    def test_statics_not_written_while_redis_is_down_are_written_by_a_tick(
        self, app: Celery, log: pytest.LogCaptureFixture
    ) -> None:
        with RedisServer() as server:
            app.conf.redbeat_redis_url = server.url
            app.conf.beat_schedule = {"a": {"task": "t", "schedule": HOUR}}
            server.kill()
            scheduler = RecordingScheduler(app)
            scheduler.update_from_dict({"b": {"task": "t", "schedule": HOUR}})
            assert (
                "Could not write static entries, the next tick tries again: ConnectionError: Error"
                in log.text
            )
            server.restart()
            scheduler.tick()
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                assert client.smembers(STATICS) == {"a"}
                assert client.zcard(SCHEDULE) == 2
            scheduler.close()


class TestWithoutALock:
    def test_own_entries_are_removed_when_the_beat_is_set_up_again(self, world: World) -> None:
        world.app.conf.redbeat_lock_key = None
        declare(world, a=HOUR)
        world.scheduler().tick()
        declare(world, b=HOUR, c=HOUR)
        newer = world.scheduler()
        newer.tick()
        declare(world, c=HOUR)
        newer.setup_schedule()
        assert static_names(world) == {"a", "c"}

    def test_other_entries_are_removed_by_a_beat_that_was_alone_for_a_minute(
        self, world: World, clock: Clock
    ) -> None:
        world.app.conf.redbeat_lock_key = None
        declare(world, a=HOUR)
        older = world.scheduler()
        older.tick()
        declare(world, b=HOUR)
        newer = world.scheduler_of(RecordingScheduler, clock)
        newer.tick()
        clock.advance(61)
        newer.tick()
        assert static_names(world) == {"a", "b"}
        older.close()
        clock.advance(61)
        newer.tick()
        assert static_names(world) == {"b"}


class TestNever:
    def test_a_beat_that_lost_the_lock_writes_nothing(self, world: World, wire: Wire) -> None:
        """Another beat takes the lock after the beat became leader and before it writes entries."""
        declare(world, a=HOUR)
        scheduler = world.scheduler(lazy=True)
        world.client.set(LOCK, "thief", px=60_000)
        scheduler.setup_schedule()
        world.client.flushall()

        def rob() -> None:
            world.client.set(LOCK, "thief", px=60_000)

        wire.before_command(rob, lambda: world.client.exists(LOCK))
        assert scheduler.tick() <= STANDBY_POLL
        assert world.dump() == {}
        world.client.delete(LOCK)
        scheduler.tick()
        assert static_names(world) == {"a"}


class TestVanished:
    @pytest.mark.parametrize("way", ["flushall", "statics", "schedule"])
    def test_lost_static_entries_come_back_without_a_burst(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture, way: str
    ) -> None:
        declare(world, a=HOUR, b=crontab(minute="0", hour="4"), c=HOUR)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        before = world.dump()
        if way == "flushall":
            world.client.flushall()
        else:
            world.client.delete({"statics": STATICS, "schedule": SCHEDULE}[way])
        clock.advance(STANDBY_POLL)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.sent == []
        assert static_names(world) == {"a", "b", "c"}
        assert set(world.dump()) == set(before)
        assert world.score("a") == world.later(HOUR)
        assert ("are gone" in log.text) == (way != "statics")
        assert ("vanished" in log.text) == (way == "statics")

    def test_a_lost_hash_is_written_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redbeat.beat.beat.MISSING_FOR", 0.0)
        declare(world, a=HOUR, b=HOUR)
        scheduler = lead(world)
        world.client.delete(f"{PREFIX}a")
        for _ in range(2):
            world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
            scheduler.tick()
        assert world.field("a", "definition")["task"] == "tasks.a"
        assert scheduler.sent == []
        assert world.score("a") == world.later(HOUR)

    def test_an_entry_that_deleted_itself_stays_deleted_until_the_next_start(
        self, world: World
    ) -> None:
        declare(world, a=HOUR, b=HOUR)
        scheduler = lead(world)
        RedBeatSchedulerEntry(name="a", app=world.app).delete()
        scheduler.tick()
        assert world.score("a") is None
        lead(world)
        assert world.score("a") is not None


BAD_FIELDS: dict[str, Any] = {
    "schedule of no kind": {"task": "t", "schedule": object()},
    "args is a number": {"task": "t", "schedule": 10, "args": 5},
    "argument that cannot be stored": {"task": "t", "schedule": 10, "kwargs": {"x": object()}},
    "unknown field": {"task": "t", "schedule": 10, "no such field": 1},
    "interval of 1e12 s": {"task": "t", "schedule": 1e12},
    "no schedule": {"task": "t"},
    "no task": {"schedule": 10},
    "a text": "text",
    "nothing": None,
}


class TestBad:
    @pytest.mark.parametrize("fields", BAD_FIELDS.values(), ids=BAD_FIELDS)
    def test_a_bad_static_entry_affects_no_other(
        self, world: World, log: pytest.LogCaptureFixture, fields: object
    ) -> None:
        good = {"task": "t", "schedule": HOUR}
        world.app.conf.beat_schedule = {"a": good, "bad": fields, "z": good}
        scheduler = lead(world)
        scheduler.tick()
        assert static_names(world) == {"a", "z"}
        errors = [r.getMessage() for r in log.records if r.levelname == "ERROR"]
        assert len(errors) == 1
        assert "bad" in errors[0]

    def test_the_stored_form_of_a_bad_static_entry_stays(self, world: World) -> None:
        declare(world, a=HOUR)
        lead(world)
        before = world.dump()
        world.app.conf.beat_schedule = {"a": {"task": "tasks.a", "schedule": object()}}
        lead(world)
        assert world.dump() == before

    def test_a_key_of_another_program_is_left_alone(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        world.client.rpush(f"{PREFIX}a", "precious")
        declare(world, a=HOUR, b=HOUR)
        scheduler = lead(world)
        scheduler.tick()
        assert world.client.lrange(f"{PREFIX}a", 0, -1) == ["precious"]
        assert static_names(world) == {"b"}
        assert f"'{PREFIX}a' is not an entry" in log.text

    @pytest.mark.parametrize("name", [":schedule", ":lock", ":statics", ":quarantine", ""])
    def test_reserved_names(self, world: World, name: str) -> None:
        world.app.conf.beat_schedule = {
            name: {"task": "t", "schedule": HOUR},
            "good": {"task": "t", "schedule": HOUR},
        }
        lead(world)
        assert static_names(world) == {"good"}
