"""Tests that this package continues RedBeat 2 recordings and writes data that RedBeat 2 accepts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.entry import PARKED
from redbeat.storage.words import SILENCE
from tests.histories.project import RETIRED, STATIC
from tests.histories.rules import latest_run, next_run
from tests.histories.snapshots import PREFIX, SCHEDULE, entries_in, load, moved, recordings
from tests.samples import long
from tests.scheduler.conftest import Clock, RecordingScheduler, Sent, World

# The keys of the recordings have no common hash slot, so a cluster cannot store them.
pytestmark = pytest.mark.standalone

Json = dict[str, Any]
STATICS, LOCK = "redbeat::statics", "redbeat::lock"
#: Keys that 2.4.2 does not know, because they do not begin with the prefix.
OUTSIDE = {".redbeat::beats", ".redbeat::stats", ".redbeat::quarantine"}
DISABLED = -2.0
OURS = "3"
#: Seconds after which every entry has missed runs, except the entry that runs most rarely.
LONG = 100 * 86400.0
RECORDED = recordings()
LONG_RUN = pytest.mark.long
#: The snapshots to test; the short run uses only the last snapshot of each recording.
ALL = [
    pytest.param(name, shot, marks=() if shot == list(recorded["snapshots"])[-1] else LONG_RUN)
    for name, recorded in RECORDED.items()
    for shot in recorded["snapshots"]
]
#: Fields of a policy that stay the same when the entry runs.
TIMELESS = {"delivery"}


def plain(value: Any) -> Any:
    """Return a value as it is after encoding and decoding as JSON."""
    return json.loads(json.dumps(value, cls=RedBeatJSONEncoder))


class Replay:
    """A snapshot in an empty Redis, and an app of this package that continues the schedule.

    With ``age``, the snapshot is shifted as if it had been taken that many seconds ago.
    """

    def __init__(self, world: World, name: str, shot: str, age: float | None = None) -> None:
        self.world = world
        recorded = RECORDED[name]
        self.snapshot = recorded["snapshots"][shot]
        if age is not None:
            self.snapshot = moved(self.snapshot, world.now() - age)
        world.app.conf.timezone = recorded["timezone"]
        self.keys: Json = self.snapshot["keys"]
        self.statics = set(self.keys[STATICS]["set"])
        world.app.conf.beat_schedule = {name: STATIC[name] for name in self.statics}
        load(world.client, self.snapshot)
        self.kept = entries_in(self.snapshot)
        #: The entries that run only according to their schedule.
        self.plain = {
            name: kept for name, kept in self.kept.items() if kept.policy.keys() <= TIMELESS
        }

    @property
    def zone(self) -> tzinfo:
        """Return the time zone of the app."""
        zone: tzinfo = self.world.app.timezone
        return zone

    def entry(self, name: str) -> RedBeatSchedulerEntry:
        """Load an entry by its key, as an application does."""
        return RedBeatSchedulerEntry.from_key(f"{PREFIX}{name}", app=self.world.app)

    def due(self, now: datetime) -> dict[str, datetime]:
        """Return the entries due at an instant, with the scheduled time of the run for each."""
        found = {}
        for name, kept in self.plain.items():
            if kept.enabled and 0 <= kept.score <= now.timestamp():
                last = kept.anchor
                run = latest_run(kept.schedule, last, now, self.zone) if last else now
                if run is not None:
                    found[name] = run
        return found

    def lead(self) -> RecordingScheduler:
        """Release the lock, and return a scheduler that leads after its first tick."""
        self.world.client.delete(LOCK)
        scheduler = self.world.scheduler()
        scheduler.tick()
        return scheduler


@pytest.mark.parametrize(("name", "shot"), ALL)
def test_every_entry_is_loaded_as_stored(world: World, name: str, shot: str) -> None:
    replay = Replay(world, name, shot)
    assert set(Schedule(world.app)) == set(replay.kept)
    for entry_name, kept in replay.kept.items():
        entry = replay.entry(entry_name)
        assert (entry.name, entry.task) == (entry_name, kept.definition["task"])
        assert plain(entry.args) == kept.definition.get("args")
        assert plain(entry.kwargs) == kept.definition.get("kwargs", {})
        assert plain(entry.options) == kept.definition.get("options", {})
        assert (entry.enabled, entry.total_run_count) == (kept.enabled, kept.runs)
        assert entry.last_run_at == kept.last_run_at


@pytest.mark.parametrize(("name", "shot"), ALL)
def test_saving_it_changes_no_text(world: World, name: str, shot: str) -> None:
    replay = Replay(world, name, shot)
    for entry_name in replay.kept:
        fields = replay.keys[f"{PREFIX}{entry_name}"]["hash"]
        replay.entry(entry_name).save()
        saved = world.client.hgetall(f"{PREFIX}{entry_name}")
        if not entry_name.startswith("raw"):  # Raw entries omit fields with default values.
            assert saved["definition"] == fields["definition"]
        if "meta" in fields:
            assert saved["meta"] == fields["meta"]


@pytest.mark.parametrize(("name", "shot"), ALL)
def test_the_next_run_counts_from_the_last(world: World, name: str, shot: str) -> None:
    replay = Replay(world, name, shot)
    for entry_name, kept in replay.plain.items():
        last = kept.anchor
        if last is not None:
            expected = next_run(kept.schedule, last, replay.zone)
            found = replay.entry(entry_name).upcoming(1, after=last)
            assert found == [expected] * (expected is not None), entry_name


@pytest.mark.parametrize("shot", ["started", "running"])
def test_the_next_run_is_at_its_score(world: World, shot: str) -> None:
    """2.4.2 stores scores in whole seconds and may run 1 s early, so scores may be earlier."""
    replay = Replay(world, "2.4.2", shot)
    present = datetime.fromtimestamp(replay.snapshot["at"], timezone.utc)
    later = {name: kept for name, kept in replay.kept.items() if kept.score > present.timestamp()}
    assert len(later) > len(replay.kept) / 2
    for entry_name, kept in later.items():
        # The entry's zone determines the score, but only the UTC offset is stored.
        if entry_name == "rule, zone":
            continue
        (found,) = replay.entry(entry_name).upcoming(1, after=present)
        assert 0 <= found.timestamp() - kept.score <= 1, entry_name


@pytest.mark.parametrize("age", [0.0, long(LONG)], ids=["at once", "long after"])
@pytest.mark.parametrize(("name", "shot"), ALL)
def test_due_entries_are_sent_and_the_rest_is_unchanged(
    world: World, name: str, shot: str, age: float
) -> None:
    replay = Replay(world, name, shot, age)
    begin = replay.due(before := world.ago(0))
    sent: dict[str, list[Sent]] = {}
    for message in replay.lead().sent:
        if message.name in replay.plain:
            sent.setdefault(message.name, []).append(message)
    end = replay.due(after := world.ago(0))
    assert begin.keys() <= sent.keys() <= end.keys()
    for entry_name in replay.plain:
        if entry_name in sent:
            last = replay.entry(entry_name).last_run_at
            assert last is not None
            assert before <= last <= after
            check_sent(replay, entry_name, sent[entry_name], begin.get(entry_name), end[entry_name])
        else:
            check_left(replay, entry_name, before)
        fields = replay.keys[f"{PREFIX}{entry_name}"]["hash"]
        assert world.client.hget(f"{PREFIX}{entry_name}", "definition") == fields["definition"]
    assert world.quarantine() == {}
    assert world.client.smembers(STATICS) == replay.statics


def check_sent(
    replay: Replay, name: str, messages: list[Sent], first: datetime | None, last: datetime
) -> None:
    """Check the runs of an entry.

    ``first`` is the run that was due before the tick, and ``last`` the run due after it.
    """
    kept, entry = replay.kept[name], replay.entry(name)
    assert messages[0].task == kept.definition["task"]
    # An entry with a short interval may be due again before the tick ends.
    runs = [message.scheduled_at for message in messages]
    assert runs == sorted({*runs}), name
    assert (first or runs[0]) <= runs[0] <= runs[-1] <= last, name
    for run in runs:
        at = kept.anchor
        assert at is None or run == latest_run(kept.schedule, at, run, replay.zone), name
    assert entry.total_run_count == kept.runs + len(runs)
    following = next_run(kept.schedule, runs[-1], replay.zone)
    score = PARKED if following is None else following.timestamp()
    assert replay.world.score(name) == pytest.approx(score, abs=1e-5), name


def check_left(replay: Replay, name: str, before: datetime) -> None:
    """Check an entry that was not due ``before`` the tick."""
    kept, score = replay.kept[name], replay.world.score(name)
    meta = replay.keys[f"{PREFIX}{name}"]["hash"].get("meta")
    assert replay.world.client.hget(f"{PREFIX}{name}", "meta") == meta
    if not kept.enabled:
        assert score == DISABLED, name
    elif kept.score < 0:
        assert score == PARKED, name
    else:
        assert score is not None
        assert score > before.timestamp(), name


class TestStatics:
    def test_statics_follow_the_new_beat_schedule(self, world: World) -> None:
        replay = Replay(world, "2.4.2", "stopped")
        schedule = world.app.conf.beat_schedule
        schedule["static second"] = {**schedule["static second"], "schedule": 3600.0}
        schedule["static new"] = {"task": "proj.tick", "schedule": 3600.0}
        del schedule[RETIRED]
        replay.lead()
        assert world.client.smembers(STATICS) == {*schedule}
        assert set(Schedule(world.app)) == {*replay.kept, "static new"} - {RETIRED}
        changed = replay.entry("static second")
        assert changed.schedule.run_every == timedelta(hours=1)
        assert changed.total_run_count >= replay.kept["static second"].runs
        added = replay.entry("static new")
        assert (added.task, added.total_run_count) == ("proj.tick", 0)


class TestLock:
    @pytest.mark.parametrize("name", ["2.0.0", "2.4.2"])
    def test_the_lock_of_a_killed_beat_is_waited_for(
        self, world: World, clock: Clock, name: str
    ) -> None:
        replay = Replay(world, name, "killed", age=LONG)
        token = replay.keys[LOCK]["string"]
        before = world.dump()
        standby = world.scheduler(clock=clock)
        while (left := world.client.pttl(LOCK)) > 2000:
            standby.tick()
            assert world.client.get(LOCK) == token
            clock.advance(1.0)
            world.client.pexpire(LOCK, left - 1000)
        assert clock.seconds > 1000 + 2 * SILENCE
        assert standby.sent == []
        assert world.dump() == before
        world.client.delete(LOCK)  # Deleting the lock acts as its expiry.
        standby.tick()
        assert standby.sent
        assert standby.lock is not None
        assert world.client.get(LOCK) == standby.lock.token


#: The arguments of 2.4.2's constructors: the keys of each JSON object in order, and their types.
DEFINITION = {
    "name": str,
    "task": str,
    "args": list | None,
    "kwargs": dict,
    "options": dict,
    "schedule": dict,
    "enabled": bool,
}
RUNS = {"last_run_at": dict | None, "total_run_count": int}
Days: Any = (list, int, type(None))
TYPES: dict[str, dict[str, Any]] = {
    "datetime": {
        **dict.fromkeys(("year", "month", "day", "hour", "minute", "second", "microsecond"), int),
        "timezone": str | float,
    },
    "interval": {"every": float, "relative": bool},
    "crontab": dict.fromkeys(
        ("minute", "hour", "day_of_week", "day_of_month", "month_of_year"), int | str | list
    ),
    "rrule": {
        "freq": int,
        "interval": int,
        "wkst": int | None,
        "count": int | None,
        **dict.fromkeys(
            (
                *("bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster", "byweekno"),
                *("byweekday", "byhour", "byminute", "bysecond"),
            ),
            Days,
        ),
        "dtstart": int,
        "dtstart_tz": float | int,
        "until": int,
        "until_tz": float | int,
    },
}


def has_shape(found: Json, shape: dict[str, Any], optional: int = 0) -> bool:
    """Return whether an object has these keys in order; the last ``optional`` may be absent."""
    names = list(shape)
    return (
        list(found) in (names, names[: len(names) - optional])
        and all(isinstance(value, shape[name]) for name, value in found.items())
        # In Python, a bool is also an int.
        and all(type(value) is not bool or shape[name] is bool for name, value in found.items())
    )


def is_readable(value: Json) -> bool:
    """Return whether 2.4.2 can decode an object that has a ``__type__``."""
    value = dict(value)
    kind = value.pop("__type__")
    return has_shape(value, TYPES[kind], optional=2 if kind == "rrule" else 0)


class TestGoingBack:
    """Tests that data for 2.4.2 has the form that 2.4.2 writes."""

    @pytest.mark.parametrize(("name", "shot"), ALL)
    def test_written_texts_are_accepted_by_redbeat_2(
        self, world: World, name: str, shot: str
    ) -> None:
        replay = Replay(world, name, shot, age=0)
        replay.lead()
        for entry_name in replay.kept:
            replay.entry(entry_name).save()
        self.check(world)

    @pytest.mark.parametrize("shot", RECORDED[OURS]["snapshots"])
    def test_recorded_texts_are_accepted_by_redbeat_2(self, world: World, shot: str) -> None:
        Replay(world, OURS, shot)
        for name in ("raw", "raw, never ran", "interval, moved by its task"):
            Schedule(world.app).pop(name)  # Another program wrote this entry.
        self.check(world)

    def check(self, world: World) -> None:
        """Check every key in Redis."""
        scores = dict(world.client.zrange(SCHEDULE, 0, -1, withscores=True))
        hashes = {
            key for key in world.client.keys(f"{PREFIX}*") if world.client.type(key) == "hash"
        }
        assert hashes == {*scores}
        others = {*world.client.keys("*")} - hashes - {SCHEDULE, STATICS, LOCK}
        assert others <= OUTSIDE
        for key in hashes:
            fields = {name: json.loads(text) for name, text in world.client.hgetall(key).items()}
            definition, meta = fields["definition"], fields["meta"]
            assert has_shape(definition, DEFINITION), key
            assert PREFIX + definition["name"] == key
            assert is_readable(definition["schedule"]), key
            assert has_shape(meta, RUNS, optional=1), key
            assert meta["last_run_at"] is None or is_readable(meta["last_run_at"]), key
            assert scores[key] >= 0 or scores[key] in (PARKED, DISABLED)
