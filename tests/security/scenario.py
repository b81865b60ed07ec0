"""A sequence of actions that sends every request that beats and editing programs send to Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat.wakeup import WakeUp
from redbeat.entry import store_of
from redbeat.errors import RedBeatError
from redbeat.metrics.beats import active_beats
from redbeat.schedules.calendars import Calendar
from tests.scheduler.conftest import Clock, RecordingScheduler, on_clock

__all__ = ("Scenario", "overdue")

SCHEDULE = "redbeat::schedule"
LOCK = "redbeat::lock"
#: Seconds; longer than the interval of the key scan and of the quarantine review.
A_WHILE = 90.0


class RunningClock(Clock):
    """A clock that advances at each reading, so that every loop ends."""

    def __call__(self) -> float:
        self.advance(0.01)
        return super().__call__()


class Scenario:
    """Actions of an app with these ``settings``; ``admin`` is a client with all permissions.

    If a step fails, the next steps still run.
    """

    def __init__(self, admin: Any, settings: dict[str, Any]) -> None:
        self.admin = admin
        self.settings = settings
        self.sent: list[str] = []
        self.failures: list[str] = []
        self.apps: list[Celery] = []
        self._clock = RunningClock()

    def play(self) -> None:
        """Run all steps on an empty server."""
        self.admin.flushall()
        self.admin.script_flush()
        for step in (self.api, self.calendars, self.lead, self.stand_by, self.no_lock, self.listen):
            with suppress(redis.RedisError, RedBeatError):
                step()
        for app in self.apps:
            app.redbeat_redis.close()

    def api(self) -> None:
        """Save, load, reschedule, rank, pause, trigger, list and delete; read the quarantine."""
        app = self._app()
        schedule = Schedule(app)
        entry = RedBeatSchedulerEntry("edited", "t", 3600, app=app)
        steps: tuple[Callable[[], Any], ...] = (
            entry.save,
            lambda: RedBeatSchedulerEntry.from_key(entry.key, app=app),
            entry.reschedule,
            lambda: entry.rank,
            lambda: store_of(app).count_below(store_of(app).time()),
            entry.pause,
            entry.resume,
            entry.trigger,
            lambda: list(schedule),
            lambda: list(schedule.find("a*")),
            schedule.quarantine,
            entry.delete,
            overdue("dynamic", app).save,
        )
        for step in steps:
            self._try(step)

    def calendars(self) -> None:
        """Save and delete a calendar, which a user of RedBeat 2 may not do."""
        schedule = Schedule(self._app())
        schedule.save_calendar(Calendar("days-off", days=["2030-01-01"]))
        schedule.delete_calendar("days-off")

    def lead(self) -> None:
        """Run a leader with static entries and with every kind of damaged entry.

        For one tick the key of the sorted set is another key, and the log is to say which.
        """
        schedule = {"static": {"task": "t", "schedule": 3600}}
        beat = self._beat(beat_schedule=schedule)
        beat.tick()
        self.admin.rename(SCHEDULE, "kept")
        self.admin.set(SCHEDULE, "x")
        beat.tick()
        self.admin.rename("kept", SCHEDULE)
        with suppress(redis.RedisError):
            list(Schedule(beat.app).records())
        self._put("bad", "{")
        self.admin.set("redbeat:no-hash", "x")
        for _ in range(2):
            self.admin.zadd(SCHEDULE, {"redbeat:no-hash": 0, "redbeat:gone": 0})
            beat.tick()
        self._put("bad", definition("bad"))
        self.admin.hset("redbeat:orphan", "definition", definition("orphan"))
        for _ in range(4):
            self._clock.advance(A_WHILE)
            beat.tick()
        self._stop(beat)
        self._stop(self._beat(), ticks=2)  # this beat has an empty beat_schedule

    def stand_by(self) -> None:
        """Wait while another beat holds the lock, then call the methods of a redis-py lock."""
        self.admin.set(LOCK, "other", px=60_000)
        beat = self._beat()
        beat.tick()
        self.admin.delete(LOCK)
        lock = beat.lock
        assert lock is not None
        for step in (lambda: lock.acquire(blocking=False), lock.owned, lock.extend, lock.release):
            self._try(step)
        self._stop(beat)

    def no_lock(self) -> None:
        """Run a beat without a lock."""
        beat = self._beat(redbeat_lock_key=None)
        self._stop(beat, ticks=2)
        self._try(lambda: active_beats(beat.app))

    def listen(self) -> None:
        """Listen for wake-up messages."""
        app = self._app()
        store = store_of(app)
        wakeup = WakeUp(store.client, store.keys.wakeup, self._clock, self._clock.advance)
        if not wakeup.listen():
            self.failures.append("cannot listen")
            return
        wakeup.wait(0.05, b"due", partial(next, iter([False]), True))
        wakeup.close()

    def _app(self, **settings: Any) -> Celery:
        app = Celery("acl", broker="memory://", set_as_current=False)
        app.conf.update({"timezone": "UTC", **self.settings, **settings})
        self.apps.append(app)
        return app

    def _beat(self, **settings: Any) -> RecordingScheduler:
        return on_clock(RecordingScheduler, self._clock)(self._app(**settings))

    def _stop(self, beat: RecordingScheduler, ticks: int = 0) -> None:
        for _ in range(ticks):
            beat.tick()
        beat.close()
        self.sent += beat.names

    def _put(self, name: str, text: str) -> None:
        self.admin.hset(f"redbeat:{name}", "definition", text)
        self.admin.zadd(SCHEDULE, {f"redbeat:{name}": 0})

    def _try(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except (redis.RedisError, RedBeatError, KeyError) as error:
            self.failures.append(str(error))


def overdue(name: str, app: Celery) -> RedBeatSchedulerEntry:
    """Return an unsaved hourly entry that is due."""
    ran = datetime.now(timezone.utc) - timedelta(minutes=61)
    return RedBeatSchedulerEntry(name, "t", 3600, app=app, last_run_at=ran)


def definition(name: str) -> str:
    """Return a valid definition as JSON."""
    return json.dumps({"name": name, "task": "t", "schedule": 3600})
