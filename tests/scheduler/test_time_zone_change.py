"""A beat that starts in a new time zone recalculates the scores that depend on the zone."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule

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


def test_relative_intervals_are_scored_again(world: World) -> None:
    start(world, "Asia/Kolkata")  # midnight in Kolkata is not midnight in UTC
    entry = RedBeatSchedulerEntry("a", "t", schedule(86400, relative=True), app=world.app).save()
    world.client.zadd(SCHEDULE, {entry.key: world.now() + 9e6})
    start(world, BERLIN)
    stored = RedBeatSchedulerEntry.from_key(entry.key, app=world.app)
    assert world.score("a") == pytest.approx(stored.score, abs=1)


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
