"""A beat that starts in a new time zone computes the next runs again, and sends no run twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX

from .conftest import SCHEDULE, RecordingScheduler, World

BERLIN, TOKYO = "Europe/Berlin", "Asia/Tokyo"


def start(
    world: World, zone: str, cls: type[RecordingScheduler] = RecordingScheduler
) -> RecordingScheduler:
    """Close all beats, set the time zone of the app, and return a new leading beat."""
    for scheduler in world.schedulers:
        scheduler.close()
    world.app.conf.timezone = zone
    vars(world.app).pop("timezone", None)
    scheduler = world.scheduler_of(cls)
    scheduler.tick()
    return scheduler


def next_at(zone: str, hour: int) -> float:
    """Return the UNIX time of the next full ``hour`` of the day in a time zone."""
    now = datetime.now(ZoneInfo(zone))
    today = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    days = [today.replace(day=1).replace(day=today.day)]
    at = days[0]
    if at <= now:
        at = datetime.fromtimestamp(at.timestamp() + 86400, timezone.utc).astimezone(ZoneInfo(zone))
        at = at.replace(hour=hour)
    return at.timestamp()


def far_hour(*zones: str) -> int:
    """Return an hour of the day that is at least one hour away in all of the time zones."""
    near = {(datetime.now(ZoneInfo(zone)).hour + shift) % 24 for zone in zones for shift in (0, 1)}
    return next(hour for hour in range(24) if hour not in near)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_crontabs_are_scored_again(world: World, log: pytest.LogCaptureFixture, kind: str) -> None:
    hour = far_hour(BERLIN, TOKYO)
    when = crontab(minute="0", hour=str(hour))
    if kind == "static":
        world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": when}}
    start(world, BERLIN)
    if kind == "dynamic":
        RedBeatSchedulerEntry("a", "t", when, app=world.app).save()
    assert world.score("a") == pytest.approx(next_at(BERLIN, hour), abs=1)
    start(world, TOKYO)
    assert world.score("a") == pytest.approx(next_at(TOKYO, hour), abs=1)
    assert f"from {BERLIN} to {TOKYO}" in log.text


def test_scores_that_do_not_depend_on_the_zone_stay(world: World) -> None:
    hour = far_hour(BERLIN, TOKYO)
    start(world, BERLIN)
    make = RedBeatSchedulerEntry
    make("interval", "t", 5000.0, app=world.app).save()
    make("own", "t", crontab(minute="0", hour=str(hour)), timezone=BERLIN, app=world.app).save()
    make("off", "t", crontab(minute="0", hour=str(hour)), enabled=False, app=world.app).save()
    before = dict(world.client.zrange(SCHEDULE, 0, -1, withscores=True))
    start(world, TOKYO)
    assert dict(world.client.zrange(SCHEDULE, 0, -1, withscores=True)) == before


def test_the_same_zone_changes_nothing(world: World) -> None:
    start(world, BERLIN)
    entry = RedBeatSchedulerEntry("a", "t", crontab(minute="0", hour="4"), app=world.app).save()
    world.client.zadd(SCHEDULE, {entry.key: world.now() + 9e6})
    before = world.score("a")
    start(world, BERLIN)
    assert world.score("a") == before


def test_an_entry_that_cannot_be_read_stops_nothing(world: World) -> None:
    hour = far_hour(BERLIN, TOKYO)
    start(world, BERLIN)
    world.client.hset(f"{PREFIX}bad", "definition", "{")
    world.client.zadd(SCHEDULE, {f"{PREFIX}bad": world.now() + 900})
    RedBeatSchedulerEntry("a", "t", crontab(minute="0", hour=str(hour)), app=world.app).save()
    start(world, TOKYO)
    assert world.score("a") == pytest.approx(next_at(TOKYO, hour), abs=1)


def test_many_batches(world: World) -> None:
    hour = far_hour(BERLIN, TOKYO)
    start(world, BERLIN)
    when = crontab(minute="0", hour=str(hour))
    for number in range(3):
        RedBeatSchedulerEntry(f"a{number}", "t", when, app=world.app).save()
    world.put_many(1000, score=world.now() + 900)
    start(world, TOKYO)
    for number in range(3):
        assert world.score(f"a{number}") == pytest.approx(next_at(TOKYO, hour), abs=1)


def test_an_edit_at_that_moment_stays(world: World) -> None:
    hour = far_hour(BERLIN, TOKYO)
    edits: list[None] = []

    class Edited(RedBeatSchedulerEntry):
        @staticmethod
        def decode_definition(definition: str | bytes) -> dict[str, Any]:
            if edits:
                edits.pop()
                RedBeatSchedulerEntry("a", "t", 7200, app=world.app).save()
            return RedBeatSchedulerEntry.decode_definition(definition)

    class Scheduler(RecordingScheduler):
        Entry = Edited

    start(world, BERLIN)
    RedBeatSchedulerEntry("a", "t", crontab(minute="0", hour=str(hour)), app=world.app).save()
    edits.append(None)
    start(world, TOKYO, Scheduler)
    assert not edits
    assert world.score("a") == pytest.approx(world.now() + 7200, abs=60)


HOUR = timedelta(hours=1)
#: A zone five hours behind UTC, and a zone nine hours ahead.
WEST, EAST = "Etc/GMT+5", "Etc/GMT-9"


@dataclass
class Daily:
    """An entry that runs daily at a full hour in UTC, six to seven hours ago the last time.

    In :data:`WEST`, that time of the day was one to two hours ago.
    """

    world: World
    static: bool = False
    policy: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def today(self) -> datetime:
        """The last run in UTC."""
        return (self.world.ago(0) - 6 * HOUR).replace(minute=0, second=0, microsecond=0)

    def create(self, ran: datetime, **days: str) -> RedBeatSchedulerEntry:
        """Store the entry, which ran at ``ran``, with a beat in UTC."""
        when = crontab(minute="0", hour=str(self.today.hour), **days)
        if self.static:
            entry = {"task": "t", "schedule": when, **self.policy}
            self.world.app.conf.beat_schedule = {"a": entry}
        start(self.world, "UTC")
        if not self.static:
            RedBeatSchedulerEntry("a", "t", when, app=self.world.app, **self.policy).save()
        self.world.put_meta("a", ran)
        return self.load()

    def load(self) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry.from_key(f"{PREFIX}a", app=self.world.app)

    def next_in(self, hours_behind: int) -> float:
        """Return when the entry runs next in a zone that is a number of hours behind UTC."""
        at = self.today + hours_behind * HOUR
        return (at + timedelta(days=1 if at <= self.world.ago(0) else 0)).timestamp()


def sent_at(scheduler: RecordingScheduler) -> list[datetime]:
    for _ in range(3):
        scheduler.tick()
    return [message.scheduled_at for message in scheduler.sent]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
class TestNoAdditionalRun:
    @pytest.mark.parametrize(("zone", "behind"), [(WEST, 5), (EAST, 15)], ids=["west", "east"])
    def test_a_run_of_today_is_not_repeated(
        self, world: World, static: bool, zone: str, behind: int
    ) -> None:
        daily = Daily(world, static)
        daily.create(daily.today)
        scheduler = start(world, zone)
        assert sent_at(scheduler) == []
        assert world.score("a") == daily.next_in(behind)
        assert daily.load().upcoming(1)[0].timestamp() == daily.next_in(behind)

    def test_a_new_entry_waits_for_its_first_run(self, world: World, static: bool) -> None:
        daily = Daily(world, static)
        daily.create(world.ago(5 * 3600))
        assert sent_at(start(world, WEST)) == []
        assert world.score("a") == daily.next_in(5)

    def test_a_zone_that_is_changed_back(self, world: World, static: bool) -> None:
        daily = Daily(world, static)
        daily.create(daily.today)
        for zone, behind in ((WEST, 5), (EAST, 15), (WEST, 5), ("UTC", 24)):
            assert sent_at(start(world, zone)) == []
            assert world.score("a") == daily.next_in(behind)

    def test_runs_that_were_due_before_are_caught_up_by_the_new_times(
        self, world: World, static: bool
    ) -> None:
        daily = Daily(world, static, {"coalesce": "all", "catch_up_limit": 9})
        daily.create(daily.today - timedelta(days=3))
        scheduler = start(world, WEST)
        days = [daily.today - timedelta(days=number) for number in (3, 2, 1, 0)]
        assert sent_at(scheduler) == [day + 5 * HOUR for day in days]
        assert world.score("a") == daily.next_in(5)

    def test_an_entry_that_was_paused_at_the_change(self, world: World, static: bool) -> None:
        daily = Daily(world, static)
        daily.create(daily.today).pause()
        assert sent_at(start(world, WEST)) == []
        daily.load().resume()
        assert sent_at(start(world, WEST)) == []
        assert world.score("a") == daily.next_in(5)

    @pytest.mark.parametrize("field", ["day_of_week", "day_of_month"])
    def test_a_run_of_this_week_or_month_is_not_repeated(
        self, world: World, static: bool, field: str
    ) -> None:
        daily = Daily(world, static)
        day = f"{daily.today:%w}" if field == "day_of_week" else str(daily.today.day)
        daily.create(daily.today, **{field: day})
        assert sent_at(start(world, WEST)) == []
        assert (world.score("a") or 0) > world.now() + 6 * 86400

    def test_an_edit_of_the_zone_of_an_entry(self, world: World, static: bool) -> None:
        daily = Daily(world, static)
        entry = daily.create(daily.today)
        if static:
            world.app.conf.beat_schedule["a"]["timezone"] = WEST
        else:
            entry.timezone = WEST
            entry.save()
            assert world.score("a") == daily.next_in(5)
        assert sent_at(start(world, "UTC")) == []
        assert world.score("a") == daily.next_in(5)

    def test_an_edit_of_the_zone_of_an_overdue_entry(self, world: World, static: bool) -> None:
        daily = Daily(world, static, {"timezone": EAST})
        daily.create(daily.today - 16 * HOUR)
        if static:
            world.app.conf.beat_schedule["a"]["timezone"] = "UTC"
        else:
            when = crontab(minute="0", hour=str(daily.today.hour))
            RedBeatSchedulerEntry("a", "t", when, app=world.app, timezone="UTC").save()
        assert sent_at(start(world, "UTC")) == [daily.today]
        assert world.score("a") == daily.next_in(24)


def test_an_entry_that_waits_for_its_start_does_not_run_before_it(world: World) -> None:
    begin = world.ago(-3 * 86400)
    daily = Daily(world, policy={"start_time": begin})
    daily.create(daily.today - timedelta(days=1))
    assert sent_at(start(world, WEST)) == []
    assert (world.score("a") or 0) >= begin.timestamp()


def test_a_change_of_the_history_in_the_same_save_counts(world: World) -> None:
    daily = Daily(world)
    daily.create(daily.today)
    scheduler = start(world, "UTC")
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
    scheduler.tick()
    entry = daily.load()
    entry.last_run_at, entry.timezone = daily.today - timedelta(days=1), WEST
    entry.save()
    assert sent_at(start(world, "UTC")) == [daily.today + 5 * HOUR]
