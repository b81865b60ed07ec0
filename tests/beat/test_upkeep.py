"""What a beat does besides runs, on a real server: losses, edits of others, clocks, rates."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.schedules import crontab
from redis.cluster import RedisCluster

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat import upkeep
from redbeat.beat.beat import is_late
from redbeat.beat.outcome import HELD
from redbeat.entries import edits, saving
from redbeat.entries.decide import DISABLED, PARKED
from redbeat.entries.history import History
from redbeat.entries.state import Hold, trigger_line
from redbeat.storage.rows import Row, new_mark
from redbeat.storage.store import store_of
from redbeat.storage.words import TRIGGER
from tests.beat.sending import Clock
from tests.beat.test_statics import HOUR, SCHEDULE, Place, log, place
from tests.beat.worlds import HookedScheduler, run_until_idle
from tests.deployments import cluster
from tests.schedulers import Scheduler

__all__ = ("log", "place")

pytestmark = pytest.mark.standalone

STATS, QUARANTINE = ".redbeat::stats", ".redbeat::quarantine"
NOT_SCHEDULED = "stored, but not scheduled"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def beat(place: Place, clock: Clock) -> Any:
    """A leading beat on a clock of the test."""
    return place.lead(clock)


def save(place: Place, *names: str, every: Any = HOUR, **more: Any) -> None:
    """Save entries as changes."""
    entries = [
        RedBeatSchedulerEntry(name, "proj.note", every, app=place.app, **more) for name in names
    ]
    saving.save(store_of(place.app), entries)


def raw(place: Place, name: str, score: float | None, /, **definition: Any) -> str:
    """Store an entry by raw commands, and return its key."""
    every = {"__type__": "interval", "every": HOUR, "relative": False}
    text = {"name": name, "task": "proj.note", "schedule": every, **definition}
    place.client.hset(f"redbeat:{name}", "definition", json.dumps(text))
    if score is not None:
        place.client.zadd(SCHEDULE, {f"redbeat:{name}": score})
    return f"redbeat:{name}"


def members(place: Place) -> set[str]:
    return {key.removeprefix("redbeat:") for key in place.client.zrange(SCHEDULE, 0, -1)}


def wait(beat: Any, clock: Clock, seconds: float = upkeep.INTERVAL) -> None:
    """Let the beat do its upkeep after some seconds, and what follows from it."""
    clock.now += seconds
    for _ in range(20):
        if beat.tick() > 0:
            return
    raise AssertionError("the beat is never idle")


# -- the schedule is lost --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "left"), [(2, 0), (9, 0), (10, 1), (30, 3), (250, 0)])
def test_a_lost_schedule_is_put_back(
    place: Place, beat: Any, clock: Clock, log: pytest.LogCaptureFixture, count: int, left: int
) -> None:
    names = [f"e{number}" for number in range(count)]
    save(place, *names)
    run_until_idle(beat)
    scores = [place.score(name) for name in names]
    stay = {f"redbeat:{name}": place.score(name) for name in names[:left]}
    place.client.delete(SCHEDULE)
    if stay:
        place.client.zadd(SCHEDULE, stay)

    wait(beat, clock, 1)

    assert [place.score(name) for name in names] == pytest.approx(scores)
    assert place.messages == []
    assert not place.client.hexists(STATS, "lost")
    assert log.text.count("was missing in the sorted set") == count - left


def test_what_was_not_scored_by_us_is_named_and_stays_outside(
    place: Place, beat: Any, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "saved", "other")
    raw(place, "later", place.now + HOUR)
    raw(place, "due", place.now - 1)
    raw(place, "odd", None, name="another")
    place.client.hset("redbeat:text", "definition", "{")
    run_until_idle(beat)
    place.client.delete(SCHEDULE)

    wait(beat, clock, 1)

    assert members(place) == {"saved", "other", "due"}
    assert f"1 entry is {NOT_SCHEDULED}" in log.text


def test_paused_and_bad_entries_come_back_without_a_run(
    place: Place, beat: Any, clock: Clock
) -> None:
    save(place, "paused", "good")
    edits.pause(store_of(place.app), ["redbeat:paused"], None, None)
    save(place, "finished", max_runs=1, total_run_count=1)
    raw(place, "bad", place.now - 1, schedule={"__type__": "interval", "every": "x"})
    run_until_idle(beat)
    names = ("paused", "finished", "bad")
    scores = [place.score(name) for name in names]
    assert scores == [DISABLED, PARKED, PARKED]
    note = place.client.hget(QUARANTINE, "redbeat:bad")
    place.client.delete(SCHEDULE)

    wait(beat, clock, 1)

    assert [place.score(name) for name in names] == scores
    assert place.is_due_in("good", HOUR)
    assert place.client.hget(QUARANTINE, "redbeat:bad") == note
    assert place.messages == []


def test_a_held_run_comes_back_when_its_hold_ends(place: Place, beat: Any, clock: Clock) -> None:
    save(place, "a", "b")
    run_until_idle(beat)
    state, until = place.state("redbeat:a"), place.now + 300
    state.hold = Hold("scheduled", until - 30, "id", until)
    state.sign(new_mark(), hold=True)
    place.client.hset("redbeat:a", "beat_state", state.text())
    place.client.delete(SCHEDULE)

    wait(beat, clock, 1)

    assert place.score("a") == pytest.approx(until)
    assert place.messages == []


@pytest.mark.parametrize("writes", ["save", "static", "both"])
def test_a_write_after_the_loss_does_not_hide_it(
    place: Place, beat: Any, clock: Clock, writes: str
) -> None:
    save(place, "a", "b", "c")
    clock.now += 1
    run_until_idle(beat)
    beat.close()
    place.client.delete(SCHEDULE)
    if writes != "static":
        save(place, "d")
    if writes != "save":
        place.declare(s=HOUR)

    heir = place.started(clock)
    run_until_idle(heir)
    wait(heir, clock)

    assert members(place) >= {"a", "b", "c"}
    assert place.messages == []


@pytest.mark.parametrize("takes_lock_first", [False, True])
def test_a_loss_without_a_beat_is_noticed_by_the_next_one(
    place: Place, beat: Any, clock: Clock, takes_lock_first: bool
) -> None:
    save(place, "a", "b")
    clock.now += 1
    run_until_idle(beat)
    beat.close()
    place.client.delete(SCHEDULE)

    successor = place.started(clock)
    if takes_lock_first:  # as on `beat_init`; this look is told of the loss
        successor.beat.take_lock()
    run_until_idle(successor)

    assert members(place) == {"a", "b"}


def test_a_scan_that_a_dead_beat_began_is_ended_by_the_next_one(
    place: Place, beat: Any, clock: Clock
) -> None:
    names = [f"e{number}" for number in range(300)]
    save(place, *names)
    run_until_idle(beat)
    place.client.delete(SCHEDULE)
    beat.beat.max_tick = -1.0  # a tick does one portion
    clock.now += 1
    beat.tick()
    beat.tick()
    assert 0 < len(members(place)) < 300
    assert place.client.hexists(STATS, "lost")
    place.client.delete("redbeat::lock")

    run_until_idle(place.started(clock), most=40)

    assert len(members(place)) == 300
    assert not place.client.hexists(STATS, "lost")
    assert place.messages == []


def test_a_second_loss_begins_the_scan_again(place: Place, beat: Any, clock: Clock) -> None:
    names = [f"e{number}" for number in range(600)]
    save(place, *names)
    run_until_idle(beat)
    place.client.delete(SCHEDULE)
    usual, beat.beat.max_tick = beat.beat.max_tick, -1.0  # a tick does one portion
    for _ in range(3):
        clock.now += 1
        beat.tick()
    assert 0 < len(members(place)) < 600
    place.client.delete(SCHEDULE)
    beat.beat.max_tick = usual
    clock.now += 1

    run_until_idle(beat, most=40)

    assert len(members(place)) == 600
    assert not place.client.hexists(STATS, "lost")
    assert place.messages == []


def test_beats_without_a_lock_put_a_lost_schedule_back(place: Place, clock: Clock) -> None:
    place.app.conf.redbeat_lock_key = None
    beats = [place.started(clock) for _ in range(2)]
    save(place, *(f"e{number}" for number in range(20)))
    for beat in beats:
        run_until_idle(beat)
    place.client.delete(SCHEDULE)
    clock.now += 1

    for beat in beats:
        run_until_idle(beat)

    assert len(members(place)) == 20
    assert place.messages == []


def test_what_a_program_takes_out_stays_outside(place: Place, beat: Any, clock: Clock) -> None:
    save(place, *(f"e{number}" for number in range(12)))
    run_until_idle(beat)
    place.client.zrem(SCHEDULE, *(f"redbeat:e{number}" for number in range(5)))

    for _ in range(3):
        wait(beat, clock)

    assert len(members(place)) == 7


def test_what_was_taken_out_of_a_schedule_that_no_beat_has_seen_stays_outside(
    place: Place, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "a", "b")
    place.client.zrem(SCHEDULE, "redbeat:b")
    place.client.delete(STATS)

    wait(place.lead(clock), clock, 1)

    assert members(place) == {"a"}
    assert f"1 entry is {NOT_SCHEDULED}" in log.text


def test_our_deletes_are_no_loss(place: Place, beat: Any, clock: Clock) -> None:
    names = [f"e{number}" for number in range(12)]
    save(place, *names, "out")
    run_until_idle(beat)
    place.client.zrem(SCHEDULE, "redbeat:out")
    wait(beat, clock, 1)
    edits.delete(store_of(place.app), [f"redbeat:{name}" for name in names])

    for _ in range(3):
        wait(beat, clock)

    assert members(place) == set()


def test_the_first_beat_counts_what_an_earlier_version_left_outside(
    place: Place, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "inside")
    raw(place, "out", None)
    save(place, "taken")
    place.client.zrem(SCHEDULE, "redbeat:taken")
    place.client.zadd(SCHEDULE, {"taken": place.now + HOUR})  # a name in place of a key
    place.client.delete(STATS)

    beat = place.started(clock)
    run_until_idle(beat)
    wait(beat, clock)

    assert log.text.count(f"1 entry is {NOT_SCHEDULED}") == 1
    assert place.score("out") is None


def test_a_user_who_may_not_scan(place: Place, clock: Clock, log: pytest.LogCaptureFixture) -> None:
    save(place, "a")
    with user(place, "~*", "+@all", "-scan"):
        beat = place.started(clock)
        run_until_idle(beat)
        wait(beat, clock)
        beat.close()
    assert log.text.count("Cannot scan for lost entries") == 1


def test_a_user_without_rights_aside_of_the_prefix(place: Place, clock: Clock) -> None:
    place.declare(s=HOUR)
    key = place.put("a")
    with user(place, "~redbeat*", "+@all"):
        beat = place.started(clock)
        run_until_idle(beat)
        for _ in range(3):
            wait(beat, clock)
        beat.close()
    assert place.names == {"s"}
    assert place.runs(key) == 1


@contextmanager
def user(place: Place, *rights: str) -> Iterator[None]:
    """Let the beats of a block use a user of Redis with these rights."""
    place.client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "&*", *rights)
    conf, url = place.app.conf, place.app.conf.redbeat_redis_url
    conf.redbeat_redis_url = url.replace("redis://", "redis://narrow:x@")
    forget_client(place.app)
    try:
        yield
    finally:
        forget_client(place.app)
        conf.redbeat_redis_url = url
        place.client.execute_command("ACL", "DELUSER", "narrow")


def forget_client(app: Any) -> None:
    """Close the client of an app, so that its next one uses the settings as they are now."""
    client = getattr(app, "redbeat_redis", None)
    if client is not None:
        client.close()
        del app.redbeat_redis
    if hasattr(app, "redbeat_conf"):
        del app.redbeat_conf


# -- what others changed ---------------------------------------------------------------------------


def test_an_entry_that_a_program_enabled_runs(
    place: Place, beat: Any, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "a", "b", enabled=False)
    raw(place, "a", DISABLED, enabled=True)

    wait(beat, clock)

    assert place.is_due_in("a", HOUR)
    assert place.score("b") == DISABLED
    assert "Entry redbeat:a was enabled by another program" in log.text


def test_disabled_entries_are_looked_at_in_turns(
    place: Place, beat: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PAGE", 10)
    names = [f"e{number:02}" for number in range(35)]
    save(place, *names, enabled=False)
    for name in ("e00", "e12", "e34"):
        raw(place, name, DISABLED, enabled=True)

    for _ in range(5):
        wait(beat, clock)

    assert [name for name in names if place.score(name) != DISABLED] == ["e00", "e12", "e34"]


@pytest.mark.parametrize("repair", ["edit", "another type", "deleted", "none"])
def test_a_repaired_entry_leaves_the_quarantine(
    place: Place, beat: Any, clock: Clock, repair: str
) -> None:
    if repair == "another type":
        place.client.rpush("redbeat:bad", "x")
        place.client.zadd(SCHEDULE, {"redbeat:bad": place.now - 1})
    else:
        raw(place, "bad", place.now - 1, schedule={"__type__": "interval", "every": "x"})
    clock.now += 1
    run_until_idle(beat)
    assert place.score("bad") == PARKED
    wait(beat, clock)
    assert place.score("bad") == PARKED

    if repair in ("another type", "deleted"):
        place.client.delete("redbeat:bad")
    if repair in ("another type", "edit"):
        raw(place, "bad", None)
    for _ in range(2):
        wait(beat, clock)

    assert place.client.hexists(QUARANTINE, "redbeat:bad") == (repair == "none")
    assert (place.score("bad") == PARKED) == (repair == "none")
    if repair in ("another type", "edit"):
        assert [message.name for message in place.messages] == ["bad"]
        assert place.state("redbeat:bad").quarantine is None


def test_an_entry_that_is_repaired_before_its_quarantine_runs(
    place: Place, beat: Any, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    key = raw(place, "bad", place.now - 1, schedule={"__type__": "interval", "every": "x"})

    def repair(request: Any) -> None:
        if any(change.key == key for change in request.changes):
            beat.store.before.clear()
            raw(place, "bad", None)

    beat.store.before.append(repair)
    wait(beat, clock, 1)

    assert beat.store.before == []
    assert [message.name for message in place.messages] == ["bad"]
    assert not place.client.exists(QUARANTINE)
    assert "leaves the quarantine" not in log.text


def test_a_beat_that_skips_an_entry_which_is_gone_sleeps(
    place: Place, beat: Any, clock: Clock
) -> None:
    raw(place, "odd", place.now - 1, unknown_field=1)
    run_until_idle(beat)
    place.client.delete(SCHEDULE)
    clock.now += 60
    beat.tick()
    assert beat.tick() > 1


def test_an_entry_leaves_the_quarantine_when_its_calendar_is_saved(
    place: Place, beat: Any, clock: Clock
) -> None:
    raw(place, "a", place.now - 1)
    place.client.hset("redbeat:a", "policy", json.dumps({"exclude": ["days"]}))
    clock.now += 1
    run_until_idle(beat)
    assert place.score("a") == PARKED

    Schedule(place.app).save_calendar(Calendar("days", days=["2001-01-01"]))
    place.client.set(".redbeat::calendars-version", new_mark())
    for _ in range(2):
        wait(beat, clock)

    assert not place.client.exists(QUARANTINE)
    assert [message.name for message in place.messages] == ["a"]


def test_what_deleted_entries_have_left_is_removed(place: Place, beat: Any, clock: Clock) -> None:
    save(place, "a b")
    run_until_idle(beat)
    counts = {"dispatched": 5, "dispatched a b": 2, "failed gone": 1}
    place.client.hset(STATS, mapping=counts)
    notes = {"redbeat:a b": 1.0, "redbeat:gone": 2.0}
    indexes = [f".redbeat::{index}" for index in ("failing", "failed", "expected")]
    for index in indexes:
        place.client.zadd(index, notes)

    for _ in range(4):  # the counts, and the indexes
        wait(beat, clock, upkeep.TIDY_INTERVAL)

    assert not place.client.hexists(STATS, "failed gone")
    assert place.client.hget(STATS, "dispatched a b") == "2"
    for index in indexes:
        assert place.client.zrange(index, 0, -1) == ["redbeat:a b"]


# -- clocks ----------------------------------------------------------------------------------------


def future(place: Place, name: str, ahead: float = HOUR) -> None:
    """Let an entry have run in the future, as a beat recorded it by a wrong clock."""
    meta = place.ran(name, -ahead)
    state = place.state(f"redbeat:{name}")
    last = History.read(meta).last_run_at
    assert last is not None
    state.at = last.timestamp()
    state.sign(new_mark(), run=True)
    place.client.hset(f"redbeat:{name}", "beat_state", state.text())
    place.client.zadd(SCHEDULE, {f"redbeat:{name}": place.now + ahead + 60})


def test_a_beat_at_work_notices_that_the_clock_went_back(
    place: Place, beat: Any, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "a", "own", every=60.0)
    run_until_idle(beat)
    future(place, "a")
    place.ran("own", -HOUR)  # a program wrote it
    place.client.zadd(SCHEDULE, {"redbeat:own": place.now + HOUR + 60})

    wait(beat, clock, HOUR)  # the clock of Redis does not follow

    assert place.is_due_in("a", 60)
    assert place.is_due_in("own", HOUR + 60)
    assert "The clock of Redis went back by" in log.text
    assert "Made 1 entry due: the last run lies in the future" in log.text
    assert place.messages == []


def test_a_run_that_is_recorded_later_is_corrected_too(
    place: Place, beat: Any, clock: Clock
) -> None:
    save(place, "a", every=60.0)
    wait(beat, clock, HOUR)
    future(place, "a")
    run_until_idle(beat)
    assert place.is_due_in("a", HOUR + 60)

    for _ in range(40):
        wait(beat, clock, 0.9)  # small steps are no further jump

    assert place.is_due_in("a", 60)


def test_a_beat_that_begins_to_lead_notices_it_too(place: Place, beat: Any, clock: Clock) -> None:
    save(place, "a", every=60.0)
    run_until_idle(beat)
    beat.close()
    future(place, "a")
    place.client.hset(STATS, "last_tick", place.now + HOUR)

    run_until_idle(place.started(clock))

    assert place.is_due_in("a", 60)


def test_a_hold_and_a_trigger_of_the_future_delay_nothing(
    place: Place, beat: Any, clock: Clock
) -> None:
    save(place, "held", "asked")
    run_until_idle(beat)
    state, until = place.state("redbeat:held"), place.now + HOUR
    state.hold = Hold("scheduled", until - 30, "id", until)
    state.sign(new_mark(), hold=True)
    place.client.hset("redbeat:held", "beat_state", state.text())
    place.client.zadd(SCHEDULE, {"redbeat:held": until})
    line = trigger_line("t", place.now + HOUR)
    store_of(place.app).say("redbeat:asked", line, kind=TRIGGER)

    wait(beat, clock, HOUR)

    assert place.is_due_in("held", HELD)
    hold = place.state("redbeat:held").hold
    assert hold is not None
    assert hold.id == "id"
    assert [message.name for message in place.messages] == ["asked"]


@pytest.mark.parametrize("enabled", [True, False])
def test_entries_count_from_a_change_of_the_app_time_zone(
    place: Place, clock: Clock, log: pytest.LogCaptureFixture, enabled: bool
) -> None:
    save(place, "daily", every=crontab(minute="0", hour="4"), enabled=enabled)
    save(place, "own", every=crontab(minute="0", hour="4"), timezone="Europe/Paris")
    save(place, "hourly")
    place.lead(clock)
    before = {name: place.score(name) for name in ("daily", "own", "hourly")}
    place.app.conf.timezone = "Asia/Tokyo"
    del place.app.timezone

    place.lead(clock)

    assert place.state("redbeat:daily").at == pytest.approx(place.now, abs=5)
    assert place.state("redbeat:own").at is None
    assert place.score("own") == before["own"]
    assert place.score("hourly") == before["hourly"]
    assert (place.score("daily") == before["daily"]) != enabled
    assert "The time zone changed from UTC to Asia/Tokyo" in log.text
    assert place.messages == []


# -- the rate of late runs -------------------------------------------------------------------------


def test_late_runs_are_sent_at_their_rate(place: Place, clock: Clock) -> None:
    place.app.conf.redbeat_max_rate = 10
    for number in range(35):
        place.put(f"e{number}", late=60.0)
    beat, counts, waits = place.started(clock), [], []
    beat.tick()
    for _ in range(4):
        waits.append(beat.tick())
        counts.append(len(place.messages))
        clock.now += 1
    assert counts == [10, 20, 30, 35]
    assert waits[:3] == [pytest.approx(0.1)] * 3
    assert waits[3] > 1
    assert len({message.name for message in place.messages}) == 35


def test_what_is_due_for_more_than_a_second_is_late() -> None:
    scores = ("10", "", "99.5", "-1", "98.9", "99")
    assert [score for score in scores if is_late(Row("k", score), 100.0)] == ["10", "98.9"]


# -- stops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_signal_stops_a_tick_between_two_runs(place: Place, delivery: str) -> None:
    """What was not tried is due again, and no run is sent twice or lost."""
    place.app.conf.redbeat_delivery = delivery

    class Stopped(HookedScheduler):
        sent = 0

        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            Stopped.sent += 1
            if Stopped.sent == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().send_task(*args, **kwargs)

    def stop(*_: Any) -> None:
        raise SystemExit(0)

    keys = [place.put(f"e{number}") for number in range(40)]
    beat = place.beat(Stopped)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            run_until_idle(beat)
        beat.close()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert 3 <= len(place.messages) < 40
    assert not any(place.state(key).hold for key in keys)
    run_until_idle(place.beat(HookedScheduler))
    sent = [message.name for message in place.messages]
    assert len(sent) == len(set(sent)) == 40


# -- other kinds of Redis --------------------------------------------------------------------------


def keep_up(app: Celery, client: Any, schedule: str) -> None:
    """Add, change and remove static entries, lose the schedule, and look at what comes back."""
    clock, every = Clock(), {"task": "proj.note", "schedule": HOUR}
    for entries in ({"a": every, "b": every}, {"a": {**every, "args": [1]}}):
        app.conf.beat_schedule = entries
        beat = type("OnClock", (Scheduler,), {"clock": staticmethod(clock)})(app)
        run_until_idle(beat)
        assert client.zcard(schedule) == len(entries)
        beat.close()
    app.conf.beat_schedule = {}
    saving.save(
        store_of(app),
        [RedBeatSchedulerEntry(name, "proj.note", HOUR, app=app) for name in ("c", "d")],
    )
    beat = type("OnClock", (Scheduler,), {"clock": staticmethod(clock)})(app)
    run_until_idle(beat)
    clock.now += 1
    beat.tick()
    assert client.zcard(schedule) == 2
    client.delete(schedule)
    wait(beat, clock, 1)
    assert client.zcard(schedule) == 2
    assert all(float(score) > 1 for _, score in client.zrange(schedule, 0, -1, withscores=True))
    beat.close()


def test_in_a_cluster() -> None:
    with cluster() as deployment, RedisCluster.from_url(deployment.url) as client:
        app = Celery("tests", broker="memory://", set_as_current=False)
        prefix = {"redbeat_key_prefix": "{redbeat}:"}
        app.conf.update(deployment.settings, timezone="UTC", result_expires=None, **prefix)
        keep_up(app, client, "{redbeat}::schedule")
        app.redbeat_redis.close()
        app.close()


def test_with_a_fake_redis() -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC", result_expires=None)
    with fakeredis.FakeRedis() as client:
        app.redbeat_redis = client
        keep_up(app, client, SCHEDULE)
    app.close()
