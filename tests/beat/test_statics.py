"""Entries of ``beat_schedule`` on a real server: what beats write, keep, and remove."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule
from redis.exceptions import LockNotOwnedError

from redbeat import RedBeatSchedulerEntry, worker
from redbeat.beat.statics import Statics, item_of
from redbeat.entries import edits
from redbeat.entries.decide import DISABLED
from redbeat.entries.history import encode_meta
from redbeat.entries.state import Hold
from redbeat.schedules.rule import rrule
from redbeat.signals import schedule_lost
from redbeat.storage.reading import MOST_WRITTEN
from redbeat.storage.rows import new_mark
from redbeat.storage.store import store_of
from tests.beat.sending import Clock
from tests.beat.worlds import HookedScheduler, World, empty_broker, run_until_idle
from tests.scheduler.conftest import heard
from tests.servers import RedisServer

pytestmark = pytest.mark.standalone

HOUR = 3600.0
SCHEDULE, STATICS, LOCK = "redbeat::schedule", "redbeat::statics", "redbeat::lock"


@dataclass
class Place(World):
    """A schedule whose broker is another database of the same server."""

    def declare(self, **entries: Any) -> None:
        """Set ``beat_schedule``: names with schedules, or with the fields of the entry."""
        self.app.conf.beat_schedule = {
            name: {"task": "proj.note", **(it if isinstance(it, dict) else {"schedule": it})}
            for name, it in entries.items()
        }

    def lead(self, clock: Clock | None = None) -> Any:
        """Close all beats, and return a new one that has ticked once."""
        for beat in self.beats:
            beat.close()
        beat = self.started(clock)
        run_until_idle(beat)
        return beat

    def started(self, clock: Clock | None = None) -> Any:
        """Return a new beat that has not ticked yet, on a clock of the test if it is given."""
        more = {} if clock is None else {"clock": staticmethod(clock)}
        return self.beat(type("OnClock", (HookedScheduler,), more))

    @property
    def names(self) -> set[str]:
        return set(self.client.smembers(STATICS))

    def score(self, name: str) -> float | None:
        score = self.client.zscore(SCHEDULE, f"redbeat:{name}")
        return None if score is None else float(score)

    def is_due_in(self, name: str, seconds: float) -> bool:
        """Return whether an entry is due in about that time; tests may take a minute."""
        score = self.score(name)
        return score is not None and -60 <= score - self.now - seconds <= 1

    def ran(self, name: str, ago: float, count: int = 1) -> str:
        """Store that an entry ran; return the text."""
        at = datetime.fromtimestamp(self.now - ago, timezone.utc)
        meta = encode_meta(at, count)
        self.client.hset(f"redbeat:{name}", "meta", meta)
        return meta

    def definition(self, name: str) -> Any:
        return json.loads(self.client.hget(f"redbeat:{name}", "definition"))

    def dump(self) -> dict[str, Any]:
        """Return what is stored for entries."""
        keys = [key for key in self.client.keys("redbeat*") if key != LOCK]
        hashes = {key for key in keys if self.client.type(key) == "hash"}
        scores = self.client.zrange(SCHEDULE, 0, -1, withscores=True)
        return {**{key: self.client.hgetall(key) for key in hashes}, "": (scores, self.names)}


@pytest.fixture
def place(app: Celery, redis_client: Any, redis_server: RedisServer) -> Iterator[Place]:
    """An empty schedule."""
    with empty_broker(app, redis_server.url) as broker:
        place = Place(app, redis_client, broker)
        yield place
        place.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The records of the logger ``celery.beat`` at level INFO and above."""
    caplog.set_level("INFO", "celery.beat")
    return caplog


def errors(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelname == "ERROR"]


# -- what is written -------------------------------------------------------------------------------


def test_an_added_entry_has_nothing_of_an_earlier_one(place: Place) -> None:
    left = {"inbox": "[1]", "history": "[1]", "waits": '"x"', "policy": '{"max_runs": 1}'}
    place.client.hset("redbeat:a", mapping=left)
    place.declare(a=HOUR)

    place.lead()

    assert set(place.client.hkeys("redbeat:a")) == {"definition", "meta", "beat_state"}


def test_new_entries_share_what_their_schedule_decides(place: Place) -> None:
    place.declare(
        a=HOUR,
        b={"schedule": HOUR, "args": [1]},
        c=schedule(HOUR, relative=True),
        d=2 * HOUR,
        e={"schedule": HOUR, "max_runs": 1},
    )
    place.beat()
    states = [place.client.hget(f"redbeat:{name}", "beat_state") for name in "abcde"]
    assert states[0] == states[1]
    assert len(set(states)) == 4
    assert [place.definition(name)["args"] for name in "ab"] == [None, [1]]
    assert [place.is_due_in(name, HOUR) for name in "abe"] == [True] * 3
    assert place.is_due_in("d", 2 * HOUR)


def test_an_item_that_is_stored_without_being_known_is_changed(place: Place) -> None:
    for name in "ab":
        RedBeatSchedulerEntry(name, "other", HOUR, app=place.app, last_run_at=datetime.now()).save()
    place.client.hset("redbeat:c", "meta", "{}")  # a hash without a definition
    place.declare(a=HOUR, b=HOUR, c=HOUR, d=HOUR)
    place.lead()
    assert [place.definition(name)["task"] for name in "abcd"] == ["proj.note"] * 4
    assert place.names == set("abcd")


@pytest.mark.parametrize("begins_again", [True, False])
def test_a_finished_entry_begins_again_if_its_schedule_changed(
    place: Place, begins_again: bool
) -> None:
    place.declare(a={"schedule": HOUR, "max_runs": 3})
    place.lead()
    place.ran("a", HOUR, count=3)
    place.client.zadd(SCHEDULE, {"redbeat:a": -1})
    every, args = (2 * HOUR, []) if begins_again else (HOUR, [1])
    place.declare(a={"schedule": every, "args": args, "max_runs": 3})

    place.lead()

    if begins_again:
        assert place.is_due_in("a", 2 * HOUR)
        assert "total_run_count" not in place.client.hget("redbeat:a", "meta") or not place.runs(
            "redbeat:a"
        )
    else:
        assert place.score("a") == -1
        assert place.runs("redbeat:a") == 3


def test_a_change_of_the_time_zone_counts_from_the_start(place: Place) -> None:
    noon = crontab(minute="0", hour=f"{datetime.now(timezone.utc):%H}")
    place.declare(a={"schedule": noon, "timezone": "Etc/GMT-3"})
    place.lead()
    for beat in place.beats:
        beat.close()
    place.ran("a", 2 * HOUR)
    place.declare(a={"schedule": noon, "timezone": "Etc/GMT-1"})

    place.beat()

    assert place.state("redbeat:a").at == pytest.approx(place.now, abs=5)
    assert place.messages == []


@pytest.mark.parametrize("changes", [True, False])
def test_a_paused_entry_stays_paused_until_it_is_changed(place: Place, changes: bool) -> None:
    place.declare(a=HOUR)
    place.lead()
    edits.pause(store_of(place.app), ["redbeat:a"], "why", None)
    place.declare(a=2 * HOUR if changes else HOUR)

    place.lead()

    pause = place.state("redbeat:a").pause
    assert (pause is None) == changes
    assert place.definition("a").get("enabled", True) is changes
    assert place.is_due_in("a", 2 * HOUR) if changes else place.score("a") == DISABLED


def test_a_change_while_a_run_is_held_leaves_the_score(place: Place) -> None:
    place.declare(a=HOUR)
    place.lead()
    state, until = place.state("redbeat:a"), place.now + 25
    state.hold = Hold("scheduled", until - 30, "id", until)
    state.sign(new_mark(), hold=True)
    place.client.hset("redbeat:a", "beat_state", state.text())
    place.client.zadd(SCHEDULE, {"redbeat:a": until})
    place.declare(a=2 * HOUR)

    place.lead()

    assert place.score("a") == pytest.approx(until)
    assert place.state("redbeat:a").hold == state.hold
    assert place.definition("a")["schedule"]["every"] == 2 * HOUR


def test_an_entry_of_an_earlier_version_gets_a_state_without_identity(place: Place) -> None:
    place.declare(a=HOUR)
    place.lead()
    place.client.hdel("redbeat:a", "beat_state")
    before = place.score("a")

    place.lead()

    assert place.client.hexists("redbeat:a", "beat_state")
    assert place.state("redbeat:a").identity == ""
    assert place.score("a") == before


def test_an_entry_expects_successes_and_stops_to(place: Place) -> None:
    worker.enable(place.app)
    place.declare(a={"schedule": HOUR, "expect_within": 60})
    place.lead()
    assert place.client.zscore(".redbeat::expected", "redbeat:a") == 0
    assert place.state("redbeat:a").results.since is not None
    place.declare(a=HOUR)

    place.lead()

    assert not place.client.exists(".redbeat::expected")


# -- what is not written ---------------------------------------------------------------------------


def test_an_unchanged_entry_that_is_not_scheduled_is_due_again(place: Place) -> None:
    place.declare(a=HOUR, b=HOUR)
    place.lead()
    place.client.zrem(SCHEDULE, "redbeat:a")
    before = place.messages
    place.lead()
    assert place.is_due_in("a", HOUR)
    assert place.messages == before


def test_an_unchanged_start_makes_no_entries(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.declare(
        a=HOUR, b={"schedule": crontab(minute="5"), "args": [1], "options": {"queue": "q"}}
    )
    place.lead().close()
    before, made = place.dump(), []
    make = RedBeatSchedulerEntry.__init__

    def note(entry: RedBeatSchedulerEntry, *args: Any, **fields: Any) -> None:
        made.append(fields["name"])
        make(entry, *args, **fields)

    monkeypatch.setattr(RedBeatSchedulerEntry, "__init__", note)
    place.lead()
    assert (place.dump(), made) == (before, [])
    place.declare(a=2 * HOUR)
    place.lead()
    assert made == ["a"]


@pytest.mark.parametrize(
    "more",
    [
        {"schedule": 90},
        {"schedule": timedelta(minutes=5), "args": (1, 2.5, None, True, "two")},
        {"schedule": 0.001, "kwargs": {"a": {"b": [1, {"c": "ü"}]}}, "options": {}},
        {"schedule": schedule(90, relative=True), "args": None, "kwargs": None},
        {"schedule": crontab(minute=[1, 2], hour={3}), "options": {"queue": "q", "priority": 3}},
        {"schedule": HOUR, "options": {"expires": timedelta(minutes=1), "headers": {"a": "b"}}},
    ],
)
def test_what_an_item_stores_without_an_entry_is_what_its_entry_stores(
    app: Celery, more: dict[str, Any]
) -> None:
    fields = {"task": "proj.note", **more}
    entry = RedBeatSchedulerEntry("one", app=app, **fields)
    item = item_of(app, "one", fields)
    assert item is not None
    assert (item.key, item.texts) == (entry.key, entry.texts())


TAGGED: dict[str, Any] = {"__type__": "x", "again": {"__type__": "y"}}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("one", {"timezone": "Europe/Paris"}),
        ("one", {"relative": True}),
        ("one", {"args": [BeatLazyFunc(str)]}),
        ("one", {"kwargs": {"a": float("nan")}}),
        ("one", {"kwargs": {1: 2}}),
        ("one", {"kwargs": {"a": TAGGED}}),
        ("one", {"args": "text"}),
        ("one", {"task": None}),
        ("one", {"schedule": None}),
        ("one", {"schedule": object()}),
        ("one", {"schedule": schedule(60, nowfun=datetime.now)}),
        ("one", {"schedule": type("Own", (schedule,), {})(60)}),
        ("one", {"schedule": rrule("DAILY")}),
        ("one", {"options": {"expires": -1}}),
        ("one", {"options": {"queue": 1}}),
        ("one", {"options": {"kwargs": {}}}),
        (":schedule", {}),
        ("", {}),
        ("\ud800", {}),
        (1, {}),
    ],
)
def test_what_only_an_entry_can_say(app: Celery, name: Any, more: dict[str, Any]) -> None:
    statics = Statics()
    assert not statics.add_item(app, name, {"task": "proj.note", "schedule": HOUR, **more})
    assert not statics.names


@pytest.mark.parametrize("kind", ["allowlist", "own queue"])
def test_settings_that_forbid_an_item(app: Celery, kind: str) -> None:
    app.conf.broker_url = app.conf.redbeat_redis_url
    if kind == "allowlist":
        app.conf.redbeat_task_allowlist = ["other.*"]
    options = {"queue": "redbeat:x"}
    fields = {"task": "proj.note", "schedule": HOUR, "options": options}
    assert not Statics().add_item(app, "one", fields)
    assert Statics().add_item(app, "one", {**fields, "options": {}}) is (kind == "own queue")


def test_a_program_may_edit_an_entry_between_reading_and_writing(place: Place) -> None:
    place.declare(a=HOUR)
    place.lead().close()
    place.declare(a=2 * HOUR)
    beat = place.beat()
    place.declare(a=3 * HOUR)
    place.beat().close()  # an older version writes what the beat has not read yet
    edited = {"name": "a", "task": "other", "schedule": {"__type__": "interval", "every": 60.0}}

    def edit(request: Any) -> None:
        if any(change.key == "redbeat:a" and change.set for change in request.changes):
            beat.store.before.clear()
            place.client.hset("redbeat:a", "definition", json.dumps(edited))

    beat.store.before.append(edit)
    run_until_idle(beat)

    assert beat.store.before == []
    assert place.definition("a")["schedule"]["every"] == 2 * HOUR
    assert place.definition("a")["task"] == "proj.note"


class Late(HookedScheduler):
    """A scheduler that writes static entries in its first tick, as if Redis was away before."""

    def _offer_statics(self) -> None:
        pass


def test_a_lost_reply_adds_nothing_twice(place: Place) -> None:
    place.declare(a=HOUR, b=HOUR)
    beat = place.beat(Late)
    lost: list[int] = []

    def lose(request: Any) -> bool:
        if any(change.set for change in request.changes) and not lost:
            lost.append(len(request.changes))
            return True
        return False

    beat.store.lost.append(lose)
    for _ in range(4):
        beat.tick()

    assert lost == [2]
    assert place.names == {"a", "b"}
    assert place.is_due_in("a", HOUR)
    assert place.messages == []


def test_large_entries_are_written_in_portions(place: Place) -> None:
    large = {"schedule": HOUR, "args": ["x" * (MOST_WRITTEN // 3)]}
    place.declare(**dict.fromkeys("abcdefg", large))
    beat, sizes = place.beat(Late), list[int]()

    def note(request: Any) -> None:
        sizes.extend(1 + len(change.twins) for change in request.changes if change.set)

    beat.store.before.append(note)
    run_until_idle(beat)

    assert sizes == [3, 3, 1]
    assert place.names == set("abcdefg")


# -- what is removed -------------------------------------------------------------------------------


def test_what_is_no_longer_declared_is_removed(place: Place) -> None:
    worker.enable(place.app)
    place.declare(a={"schedule": HOUR, "expect_within": 60}, b=HOUR)
    place.lead()
    RedBeatSchedulerEntry("mine", "proj.note", HOUR, app=place.app).save()
    place.client.zadd(".redbeat::failing", {"redbeat:a": 1})
    place.declare(b=HOUR)

    place.lead()

    assert place.names == {"b"}
    assert not place.client.exists("redbeat:a", ".redbeat::failing", ".redbeat::expected")
    assert place.score("a") is None
    assert place.score("mine") is not None
    place.declare()
    place.lead()
    assert place.names == set()


def test_a_beat_that_has_just_lost_the_lock_removes_nothing(place: Place) -> None:
    place.declare(a=HOUR, b=HOUR)
    place.lead().close()
    place.declare(b=HOUR)
    beat = place.beat()

    def rob(request: Any) -> None:
        if any(change.delete for change in request.changes):
            beat.store.before.clear()
            place.client.set(LOCK, "thief", px=60_000)

    beat.store.before.append(rob)
    for _ in range(3):
        beat.tick()

    assert beat.store.before == []
    assert place.names == {"a", "b"}
    assert place.client.exists("redbeat:a")


def test_a_key_that_another_program_has_made_is_not_removed(place: Place) -> None:
    place.client.rpush("redbeat:x", "precious")
    place.client.sadd(STATICS, "x")
    place.declare(a=HOUR)

    place.lead()

    assert place.names == {"a"}
    assert place.client.lrange("redbeat:x", 0, -1) == ["precious"]


# -- what vanishes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exits", [True, False])
def test_the_loss_of_all_is_an_error(
    place: Place, log: pytest.LogCaptureFixture, exits: bool
) -> None:
    if exits:
        place.app.conf.redbeat_on_lock_lost = "exit"
    place.declare(a=HOUR, b=HOUR)
    beat = place.lead()
    place.client.flushdb()
    ends = pytest.raises(LockNotOwnedError, match="vanished") if exits else nullcontext()
    with heard(schedule_lost) as lost, ends:
        beat.tick()

    assert [one["count"] for one in lost] == [2]
    assert errors(log) == ["beat: The schedule in Redis is empty: all 2 entries are gone"]
