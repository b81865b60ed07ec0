"""What a beat does besides runs: scans that break off, holds, stops, and side keys it tidies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat import upkeep
from redbeat.beat.outcome import HELD
from redbeat.beat.upkeep import TIDY_INTERVAL, Upkeep
from redbeat.config import ensure_conf
from redbeat.entries import saving
from redbeat.entries.history import History
from redbeat.entries.state import Failing, Hold, State, trigger_line
from redbeat.storage.keys import Keys
from redbeat.storage.rows import Change, Look, Reply, Request, new_mark
from redbeat.storage.store import Store, store_of
from redbeat.storage.words import TRIGGER
from tests.beat.sending import Clock
from tests.beat.test_statics import HOUR, SCHEDULE, Place, log, place
from tests.beat.worlds import HookedScheduler, run_until_idle

__all__ = ("log", "place")

pytestmark = pytest.mark.standalone

STATS = ".redbeat::stats"
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


def test_what_was_taken_out_of_a_schedule_that_no_beat_has_seen_stays_outside(
    place: Place, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    save(place, "a", "b")
    place.client.zrem(SCHEDULE, "redbeat:b")
    place.client.delete(STATS)

    wait(place.lead(clock), clock, 1)

    assert members(place) == {"a"}
    assert f"1 entry is {NOT_SCHEDULED}" in log.text


# -- what others changed ---------------------------------------------------------------------------


def test_a_beat_that_skips_an_entry_which_is_gone_sleeps(
    place: Place, beat: Any, clock: Clock
) -> None:
    raw(place, "odd", place.now - 1, unknown_field=1)
    run_until_idle(beat)
    place.client.delete(SCHEDULE)
    clock.now += 60
    beat.tick()
    assert beat.tick() > 1


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


# -- the rate of late runs -------------------------------------------------------------------------


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


# -- side keys -------------------------------------------------------------------------------------


PREFIX = "redbeat:"
ASIDE = f".{PREFIX}:"


def tidied(client: Any, most: int = 10) -> None:
    """Tidy a whole schedule up, at the 1000th second."""
    app = Celery(set_as_current=False)
    app.conf.update(broker_url="redis://", redbeat_metrics_entries=most)
    store, clock = Store(client, Keys(PREFIX)), Clock()

    def exchange(changes: Sequence[Change]) -> Reply:
        return store.turn(Request("t", None, changes))

    upkeep = Upkeep(store, exchange, clock, ensure_conf(app))
    reply = store.turn(Request("t", None, (), Look(limit=0)))._replace(now=1000.0)
    for _ in range(4):  # the counts, and the indexes
        clock.now += TIDY_INTERVAL
        while upkeep.run(reply):
            pass


#: The sorted sets of entries aside of the schedule.
INDEXES = ("failing", "failed", "expected")


def put(client: Any, name: str, **state: Any) -> None:
    """Store an entry."""
    client.hset(
        f"{PREFIX}{name}", mapping={"definition": "{}", "beat_state": State(**state).text()}
    )
    client.zadd(SCHEDULE, {f"{PREFIX}{name}": 5})


def test_counts_of_deleted_entries_go(redis_client: Any) -> None:
    put(redis_client, "a b")
    stats = {"dispatched": 5, "dispatched a b": 2, "missed a b": 1, "failed gone": 1, "odd x": 1}
    redis_client.hset(f"{ASIDE}stats", mapping=stats)
    tidied(redis_client)
    assert redis_client.hgetall(f"{ASIDE}stats").keys() == stats.keys() - {"failed gone"}
    tidied(redis_client, most=0)
    assert redis_client.hgetall(f"{ASIDE}stats") == {"dispatched": "5", "odd x": "1"}


def test_what_is_gone_leaves_the_indexes(redis_client: Any) -> None:
    put(redis_client, "stays", failing=Failing(1.0, 1, "away"))
    for index in INDEXES:
        redis_client.zadd(f"{ASIDE}{index}", {f"{PREFIX}stays": 1, f"{PREFIX}gone": 1})
    tidied(redis_client)
    for index in INDEXES:
        assert redis_client.zrange(f"{ASIDE}{index}", 0, -1) == [f"{PREFIX}stays"]


def test_keys_of_a_wrong_type_stop_nothing(redis_client: Any) -> None:
    for name in ("stats", "failing", "expected", "beats"):
        redis_client.set(f"{ASIDE}{name}", "x")
    tidied(redis_client)
