"""Entries that a beat cannot read must not affect the other entries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat.upkeep import INTERVAL
from tests.deployments import PREFIX
from tests.samples import rows_in
from tests.waiting import wait_until

from .clients import Wire
from .conftest import (
    QUARANTINE,
    SCHEDULE,
    STATS,
    Clock,
    RecordingScheduler,
    World,
    interval_json,
    once,
)

PARKED = -1.0
DEPTH = 100_000


def definition(**changes: Any) -> str:
    """Return a valid definition with ``changes``. A value of None removes the field."""
    fields = {"name": "bad", "task": "t", "schedule": interval_json(60), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def crontab(**fields: Any) -> dict[str, Any]:
    """Return a crontab in its stored form."""
    return {"__type__": "crontab", **fields}


def rrule(**fields: Any) -> dict[str, Any]:
    """Return a recurrence rule in its stored form."""
    return {"__type__": "rrule", "freq": "DAILY", "dtstart": 0, **fields}


#: Invalid definitions, each with a word that the reported reason must contain.
BAD_DEFINITIONS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "definition"),
    "bad JSON": ("{not json", "definition"),
    "cut off": ('{"name": "bad", "task"', "definition"),
    "deep nesting": (definition(args=[1])[:-1] + ', "x": ' + "[" * DEPTH, "definition"),
    "deep nesting, balanced": (
        definition()[:-1] + ', "args": ' + "[" * DEPTH + "]" * DEPTH + "}",
        "definition",
    ),
    "not UTF-8": (b'{"name": "\xff\xfe"}', "UTF-8"),
    "list": ("[]", "object"),
    "number": ("17", "object"),
    "null": ("null", "object"),
    "no name": (definition(name=None), "name"),
    "no task": (definition(task=None), "task"),
    "no schedule": (definition(schedule=None), "schedule"),
    "name of another key": (definition(name="other"), "name"),
    "name is a number": (definition(name=5), "name"),
    "task is a list": (definition(task=["t"]), "task"),
    "args is a text": (definition(args="abc"), "args"),
    "kwargs is a list": (definition(kwargs=[1]), "kwargs"),
    "options is a text": (definition(options="queue"), "options"),
    "schedule is a list": (definition(schedule=[1]), "schedule"),
    "part of a type": (definition(schedule={"__type__": "solar", "event": "dawn"}), "schedule"),
    "type is a number": (definition(schedule={"__type__": 5}), "schedule"),
    "interval is a text": (definition(schedule={"__type__": "interval", "every": "5 s"}), "every"),
    "interval not a number": (
        definition(schedule={"__type__": "interval", "every": float("nan")}),
        "every",
    ),
    "interval for ever": (definition(schedule=interval_json(1e300)), "every"),
    "interval with more": (
        definition(schedule={**interval_json(5), "every2": 5}),
        "every2",
    ),
    "bad cron": (definition(schedule=crontab(minute="61")), "minute"),
    "cron of words": (definition(schedule=crontab(hour="noon")), "hour"),
    "cron with more": (definition(schedule=crontab(second="1")), "second"),
    "unknown frequency": (definition(schedule=rrule(freq="FORTNIGHTLY")), "freq"),
    "rule interval of 0": (definition(schedule=rrule(interval=0)), "interval"),
    "unknown zone": (definition(schedule=rrule(dtstart_zone="Mars/Olympus")), "Mars/Olympus"),
}

#: Invalid values of other hash fields, each with a word that the reported reason must contain.
BAD_FIELDS: dict[str, tuple[str, str, str]] = {
    "meta: bad JSON": ("meta", "{", "meta"),
    "meta: list": ("meta", "[]", "meta"),
    "meta: text as time": ("meta", '{"last_run_at": "yesterday"}', "last_run_at"),
    "meta: unknown zone": (
        "meta",
        (
            '{"last_run_at": {"__type__": "datetime", "year": 2024, "month": 1, "day": 1,'
            ' "timezone": "Mars/Olympus"}}'
        ),
        "Mars/Olympus",
    ),
    "meta: count": ("meta", '{"last_run_at": null, "total_run_count": "many"}', "total_run_count"),
    "policy: bad JSON": ("policy", "{", "policy"),
    "policy: list": ("policy", "[1]", "policy"),
    "policy: value": ("policy", '{"jitter": "much"}', "policy.jitter"),
}


def store_bad_definition(text: str | bytes) -> Callable[[World], None]:
    """Return a function that stores an entry with an invalid definition."""
    return lambda world: _store(world, "definition", text)


def store_bad_field(field: str, text: str) -> Callable[[World], None]:
    """Return a function that stores an entry with a valid definition and an invalid field."""

    def store(world: World) -> None:
        world.client.hset(f"{PREFIX}bad", field, text)
        _store(world, "definition", definition())

    return store


def _store(world: World, field: str, text: str | bytes) -> None:
    world.client.hset(f"{PREFIX}bad", field, text)
    world.client.zadd(SCHEDULE, {f"{PREFIX}bad": 0})


POISON = [
    *(
        pytest.param(store_bad_definition(text), word, id=name)
        for name, (text, word) in BAD_DEFINITIONS.items()
    ),
    *(
        pytest.param(store_bad_field(field, text), word, id=name)
        for name, (field, text, word) in BAD_FIELDS.items()
    ),
    *(
        pytest.param(
            lambda world, command=command: (
                world.client.execute_command(*command),
                world.client.zadd(SCHEDULE, {f"{PREFIX}bad": 0}),
            ),
            "not a hash",
            id=f"the key is a {kind}",
        )
        for kind, command in {
            "string": ("SET", f"{PREFIX}bad", "{}"),
            "list": ("RPUSH", f"{PREFIX}bad", "1"),
            "set": ("SADD", f"{PREFIX}bad", "1"),
            "zset": ("ZADD", f"{PREFIX}bad", 1, "x"),
        }.items()
    ),
]


def errors_about(log: pytest.LogCaptureFixture, key: str) -> list[str]:
    """Return the log messages of level ERROR that contain a key."""
    return [
        record.getMessage()
        for record in log.records
        if record.levelname == "ERROR" and key in record.getMessage()
    ]


@pytest.mark.parametrize(
    ("store", "word"),
    rows_in(2, (bad.values for bad in POISON)),
    ids=[bad.id for bad in POISON],
)
def test_a_bad_entry_is_quarantined_and_the_good_entries_run(
    world: World,
    clock: Clock,
    log: pytest.LogCaptureFixture,
    store: Callable[[World], None],
    word: str,
) -> None:
    world.put("good1")
    store(world)
    world.put("good2")
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    for _ in range(3):
        scheduler.tick()
        clock.advance(INTERVAL + 1)
    assert sorted(scheduler.names) == ["good1", "good2"]
    note = world.quarantine()[f"{PREFIX}bad"]
    assert word in note["reason"]
    assert note["since"] == pytest.approx(world.now(), abs=30)
    assert world.score("bad") == PARKED
    assert not (world.client.type(f"{PREFIX}bad") == "hash" and world.is_held("bad"))
    assert len(errors_about(log, f"{PREFIX}bad")) == 1
    assert word in errors_about(log, f"{PREFIX}bad")[0]


def test_deep_nesting_in_other_fields_stops_nothing(world: World, clock: Clock) -> None:
    """Deeply nested JSON in any field of an entry does not stop the beat."""
    deep = "[" * 100_000
    for field in ("runtime", "policy", "meta", "beat_state", "history", "inbox"):
        key = world.put(f"deep-{field}", last_run_at=world.ago(90), score=world.now() + 900)
        world.client.hset(key, field, deep)
        world.client.zadd(SCHEDULE, {key: 0})
    world.put("good")
    world.client.hset(QUARANTINE, f"{PREFIX}gone", deep)
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    for _ in range(3):
        scheduler.tick()
        clock.advance(INTERVAL + 1)
    assert "good" in scheduler.names
    schedule = Schedule(world.app)
    assert {record.name for record in schedule.records()} >= {"good", "deep-runtime"}
    for entry in schedule.values():
        assert entry.history is not None
        assert entry.status.state


@pytest.mark.parametrize("inbox", ['[["trigger",{},1],\n0.5,\n]', "[,\n]", "[,\n,\n]", "[", "[]"])
def test_an_inbox_that_ends_with_nothing_is_taken_in(world: World, inbox: str) -> None:
    key = world.put("odd", last_run_at=world.ago(30))
    world.client.hset(key, "inbox", inbox)
    world.scheduler().tick()  # does not end, if the entry stays due
    assert world.score("odd") == world.later(30)


def refuse() -> None:
    """Raise the error of a message that cannot be published."""
    raise ValueError("refused")


#: Scores that another program may write, and that no datetime can hold.
ODD_SCORES = ("inf", "-inf", "1e308", "-1e300", "1e19", "253402300800", "-62135596801")


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("score", ODD_SCORES)
def test_a_trigger_of_an_entry_with_an_impossible_score(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, score: str, ran: bool
) -> None:
    world.put("odd", last_run_at=world.ago(30) if ran else None)
    world.client.zadd(SCHEDULE, {f"{PREFIX}odd": score})
    world.put_waiting("odd", f"r1:{world.now()}")
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    scheduler.before_send = once(refuse)
    scheduler.tick()
    assert "task odd: refused" in log.text
    world.make_due("odd")
    clock.advance(90)
    scheduler.tick()
    assert set(scheduler.names) == {"odd"}
    assert world.quarantine() == {}


def test_another_beat_does_not_report_it_again(world: World, log: pytest.LogCaptureFixture) -> None:
    _store(world, "definition", "{")
    first = world.scheduler()
    first.tick()
    first.close()
    log.clear()
    world.scheduler().tick()
    assert errors_about(log, f"{PREFIX}bad") == []


class TestRelease:
    def test_save_releases_at_once(self, world: World) -> None:
        _store(world, "definition", "{")
        scheduler = world.scheduler()
        scheduler.tick()
        RedBeatSchedulerEntry(
            "bad", "tasks.bad", 60, app=world.app, last_run_at=world.ago(99)
        ).save()
        assert world.quarantine() == {}
        scheduler.tick()
        assert scheduler.names == ["bad"]

    @pytest.mark.parametrize("bad", ["{", b"\xff"])
    def test_a_raw_repair_is_found_at_the_next_review(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture, bad: str | bytes
    ) -> None:
        _store(world, "definition", bad)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        world.client.hset(f"{PREFIX}bad", "definition", definition())
        scheduler.tick()
        assert scheduler.sent == []
        clock.advance(INTERVAL)
        scheduler.tick()
        assert scheduler.names == ["bad"]
        assert world.quarantine() == {}
        assert "leaves the quarantine" in log.text

    def test_repair_of_the_type_of_the_key(self, world: World, clock: Clock) -> None:
        world.client.set(f"{PREFIX}bad", "x")
        world.client.zadd(SCHEDULE, {f"{PREFIX}bad": 0})
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        world.client.delete(f"{PREFIX}bad")
        world.client.hset(f"{PREFIX}bad", "definition", definition())
        clock.advance(INTERVAL)
        scheduler.tick()
        assert scheduler.names == ["bad"]

    def test_raw_repair_and_zadd_need_no_review(self, world: World) -> None:
        _store(world, "definition", "{")
        scheduler = world.scheduler()
        scheduler.tick()
        _store(world, "definition", definition())
        scheduler.tick()
        assert scheduler.names == ["bad"]

    def test_an_entry_repaired_while_it_is_being_quarantined_runs(
        self, world: World, wire: Wire
    ) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        _store(world, "definition", "{")
        text = definition()
        wire.after_reply(
            lambda: world.client.hset(f"{PREFIX}bad", "definition", text),
            lambda: world.is_in_hand("bad"),
        )
        scheduler.tick()
        scheduler.tick()
        assert world.quarantine() == {}
        assert scheduler.names == ["bad"]

    def test_an_entry_that_a_program_deletes_leaves_the_quarantine(
        self, world: World, clock: Clock
    ) -> None:
        _store(world, "definition", "{")
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        world.client.delete(f"{PREFIX}bad")
        clock.advance(INTERVAL)
        scheduler.tick()
        assert world.quarantine() == {}


class TestMissingHash:
    def test_looks_are_counted_from_zero_after_the_hash_came_back(self, world: World) -> None:
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
        scheduler = world.scheduler()
        scheduler.tick()
        world.put("a")
        scheduler.tick()
        world.client.delete(f"{PREFIX}a")
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
        scheduler.tick()
        assert world.score("a") is not None

    def test_members_of_any_bytes(self, world: World, log: pytest.LogCaptureFixture) -> None:
        for member in (b"\xff\xfe", PREFIX.encode() + b"\xff", b"", PREFIX.encode(), b"a b\n\x00"):
            world.client.zadd(SCHEDULE, {member: 0})
        world.put("good")
        scheduler = world.scheduler()
        scheduler.tick()
        for member in (b"\xff\xfe", PREFIX.encode() + b"\xff"):
            world.client.zadd(SCHEDULE, {member: 0})
        scheduler.tick()
        assert scheduler.names == ["good"]
        for record in log.records:
            record.getMessage().encode()

    def test_an_empty_member_does_not_keep_a_tick_going(self, world: World, clock: Clock) -> None:
        world.client.zadd(SCHEDULE, {"": 1})
        world.put("good")
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        assert scheduler.names == ["good"]
        assert world.client.zscore(SCHEDULE, "") == PARKED

    def test_an_entry_at_a_key_of_any_bytes_is_quarantined(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        world.client.hset(PREFIX.encode() + b"\xff", "definition", definition())
        world.client.zadd(SCHEDULE, {PREFIX.encode() + b"\xff": 0})
        world.scheduler().tick()
        assert world.client.hlen(f".{PREFIX}:quarantine") == 1
        assert "\\xff" in log.text


# -- what only this beat cannot run ----------------------------------------------------------------


class ColouredEntry(RedBeatSchedulerEntry):
    """An entry with an additional argument."""

    def __init__(self, *args: Any, colour: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.colour = colour


class PickyEntry(RedBeatSchedulerEntry):
    """An entry class whose ``decode_definition`` refuses all definitions."""

    @staticmethod
    def decode_definition(definition: str | bytes) -> dict[str, Any]:
        """Raise an error for every definition."""
        raise LookupError(definition)


class LoadingEntry(RedBeatSchedulerEntry):
    """An entry class whose ``from_key`` refuses to load entries."""

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> Any:  # noqa: ARG003 - callers pass app
        """Raise an error for every key."""
        raise LookupError(key)


class ColouredScheduler(RecordingScheduler):
    """A beat that can run entries with a colour."""

    Entry = ColouredEntry


class PickyScheduler(RecordingScheduler):
    """A beat whose entry class refuses all entries."""

    Entry = PickyEntry


class LoadingScheduler(RecordingScheduler):
    """A beat whose entry class cannot load entries."""

    Entry = LoadingEntry


Case = tuple[type[RecordingScheduler], dict[str, Any], str]

CASES: dict[str, Case] = {
    "a schedule type": (
        RecordingScheduler,
        {"schedule": {"__type__": "lunar", "phase": "full"}},
        "UnknownTypeError",
    ),
    "an argument of the entry class": (RecordingScheduler, {"colour": "red"}, "UnknownTypeError"),
    "a method of the entry class": (PickyScheduler, {}, "UnknownTypeError"),
    "a loader of the entry class": (LoadingScheduler, {}, "LookupError"),
    "the allowlist": (RecordingScheduler, {"task": "evil"}, "NotAllowedError"),
}


def look_again(world: World) -> None:
    """Make the entry due again, despite its back-off."""
    world.client.zadd(SCHEDULE, {f"{PREFIX}odd": 1}, xx=True)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, world: World) -> Case:
    """A scheduler class with a stored entry that it cannot run."""
    found = CASES[request.param]
    if "task" in found[1]:
        world.app.conf.redbeat_task_allowlist = ["tasks.*"]
    world.put("odd", last_run_at=world.ago(90), **found[1])
    return found


def test_the_entry_is_left_to_others_and_logged_once(
    world: World, case: Case, log: pytest.LogCaptureFixture
) -> None:
    scheduler = world.scheduler_of(case[0])
    for _ in range(12):
        scheduler.tick()
        look_again(world)
    assert world.quarantine() == {}
    assert scheduler.sent == []
    (line,) = [text for text in log.messages if f"{PREFIX}odd" in text]
    assert "is left to other beats; this beat tries again within 30 s: " in line
    scheduler.tick()
    wait_until(
        lambda: scheduler.tick() is not None and world.client.hget(STATS, "failed"), 5, "the count"
    )
    assert world.client.hget(STATS, "failed") == "1"


def test_an_entry_that_was_changed_does_not_wait(world: World) -> None:
    world.put("odd", {"__type__": "lunar"})
    scheduler = world.scheduler()
    for _ in range(8):
        scheduler.tick()
        look_again(world)
    world.put("odd")
    scheduler.tick()
    assert scheduler.names == ["odd"]


def test_another_reason_is_logged_too(world: World, log: pytest.LogCaptureFixture) -> None:
    scheduler = world.scheduler()
    for kind in ("lunar", "lunar", "tide", "tide"):
        world.put("odd", {"__type__": kind})
        scheduler.tick()
    assert len([text for text in log.messages if "is left to other beats" in text]) == 2


def test_other_entries_of_the_batch_run(world: World) -> None:
    for number in range(20):
        world.put(f"odd{number}", {"__type__": "lunar"})
        world.put(f"good{number}")
    scheduler = world.scheduler()
    scheduler.tick()
    assert sorted(scheduler.names) == sorted(f"good{number}" for number in range(20))


def test_a_triggered_run_waits_for_a_beat_that_can(world: World) -> None:
    world.app.conf.redbeat_lock_key = None
    world.put("odd", interval_json(3600), last_run_at=world.ago(1), colour="red")
    task_id = ColouredEntry("odd", app=world.app).trigger()
    world.scheduler().tick()
    look_again(world)
    second = world.scheduler_of(ColouredScheduler)
    second.tick()
    assert [message.id for message in second.sent] == [task_id]


class TestWithAnotherBeat:
    @pytest.fixture(autouse=True)
    def without_a_lock(self, world: World) -> None:
        """Disable the lock, so that all beats share the work."""
        world.app.conf.redbeat_lock_key = None

    def test_a_beat_that_leaves_entries_to_others_still_shares_the_work(self, world: World) -> None:
        first, second = world.scheduler(), world.scheduler_of(ColouredScheduler)
        for number in range(40):
            world.put(f"odd{number}", interval_json(3600), world.ago(7200), colour="red")

        first_looks_at = 0.0

        def both() -> bool:
            nonlocal first_looks_at
            if time.monotonic() >= first_looks_at:
                first_looks_at = time.monotonic() + first.tick()
            second.tick()
            return len(second.sent) == 40

        wait_until(both, 10, "all runs")
        assert first.sent == []
        assert world.quarantine() == {}


def test_an_entry_that_no_beat_can_read_is_quarantined(world: World) -> None:
    world.client.hset(f"{PREFIX}odd", "definition", json.dumps({"name": "odd", "colour": "red"}))
    world.client.zadd(SCHEDULE, {f"{PREFIX}odd": 0})
    world.scheduler().tick()
    assert f"{PREFIX}odd" in world.quarantine()
