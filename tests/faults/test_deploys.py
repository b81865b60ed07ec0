"""A new version with another ``beat_schedule`` replaces the old version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.acceptance.processes import ROOT
from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, SCHEDULE, Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.oracle import judge
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

NO_LOCK = {"redbeat_lock_key": None}
DAY = 86400.0
STATICS = "redbeat::statics"
STATS = ".redbeat::stats"

Release = Callable[[Mapping[str, float]], None]


def statics_of(entries: Mapping[str, float]) -> dict[str, Any]:
    """Return a ``beat_schedule`` of interval entries from a mapping of names to seconds."""
    return {
        name: {"task": f"faults.{name}", "schedule": every, "kwargs": {"entry": name}}
        for name, every in entries.items()
    }


OLD = {"keep": 1.0, "slower": 1.0, "gone": 1.0}
NEW = {"keep": 1.0, "slower": DAY, "added": 1.0}


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    """Return a function that deploys a version: beats started later have its ``beat_schedule``."""

    def put(entries: Mapping[str, float]) -> None:
        monkeypatch.setenv("PROJECT_SCHEDULE", json.dumps(statics_of(entries)))

    return put


def written(schedule: Schedule) -> dict[str, Any]:
    """Return the data that a running beat does not change, such as definitions and policies."""
    client = schedule.client
    members = sorted(client.zrange(SCHEDULE, 0, -1))
    texts = {key: client.hmget(key, "definition", "policy") for key in members}
    return {"members": texts, "statics": sorted(client.smembers(STATICS))}


def dump(schedule: Schedule) -> dict[str, Any]:
    """Return all data in Redis, and whether each key expires."""
    client = schedule.client
    keys = sorted(client.keys("*"))
    return {key: (client.type(key), client.pttl(key) >= 0, _value(client, key)) for key in keys}


def _value(client: Any, key: str) -> Any:
    readers = {
        "hash": client.hgetall,
        "set": client.smembers,
        "zset": lambda name: client.zrange(name, 0, -1, withscores=True),
        "string": client.get,
    }
    return readers[client.type(key)](key)


def is_installed(
    schedule: Schedule, entries: Mapping[str, float], left: Mapping[str, float] | None = None
) -> bool:
    """Return whether Redis has the static entries of this version and the remaining old ones.

    An entry that both versions have must have the interval from ``entries``.
    """
    intervals = {**(left or {}), **entries}
    client, keys = schedule.client, {PREFIX + name for name in intervals}
    if client.smembers(STATICS) != set(intervals):
        return False
    definitions = {name: client.hget(PREFIX + name, "definition") for name in intervals}
    return (
        set(client.zrange(SCHEDULE, 0, -1)) == keys
        and set(client.keys("redbeat:[a-z]*")) == keys
        and all(
            text is not None and json.loads(text)["schedule"]["every"] == intervals[name]
            for name, text in definitions.items()
        )
    )


def without(written: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the written data without the entries of these names."""
    keys = {PREFIX + name for name in names}
    return {
        "members": {key: text for key, text in written["members"].items() if key not in keys},
        "statics": [name for name in written["statics"] if name not in names],
    }


def sent(ledger: Ledger, entry: str) -> list[float]:
    """Return the instants of the messages of an entry."""
    return [message.scheduled_at or 0.0 for message in ledger.messages if message.entry == entry]


def wait_sent(ledger: Ledger, entry: str, more: int = 2) -> None:
    """Wait until ``more`` further messages of an entry are sent."""
    enough = len(sent(ledger, entry)) + more
    wait_until(lambda: len(sent(ledger, entry)) >= enough, 30.0, f"{more} runs of {entry}")


def check_history(schedule: Schedule, ledger: Ledger, entry: str) -> None:
    """Assert that the runs of an entry continue without a gap, and that each of them is counted."""
    instants = sent(ledger, entry)
    until = instants[-1]
    report = judge(
        {entry: Grid([entry], 1.0, instants[0]).expected(until)[entry]},
        [message for message in ledger.messages if message.entry == entry],
    )
    assert not report.lost
    assert not report.unknown
    assert report.same_id == report.other_id == 0
    assert schedule.run_counts([entry]) == {entry: len(instants)}


def test_the_leader_is_replaced_by_a_new_version(
    beats: Beats, schedule: Schedule, ledger: Ledger, release: Release, note: Note
) -> None:
    """Setup: a leader with the old version and a standby with the new version. The new version
    removes one static entry, adds another, and changes the interval of a third. There is also a
    dynamic entry.

    Fault: the old leader is terminated.

    Invariant: before its takeover, the standby adds the new entry and changes nothing else. After
    the takeover, the stored static entries are those of the new version. Entries in both versions
    keep their instants and run counts, removed entries are not sent again, and added entries run.
    The dynamic entry runs all the time.
    """
    release(OLD)
    beats.start()
    beats[0].wait_for("beat: Acquired lock")
    one = Grid.begin(schedule, ["dynamic"], 1.0, 2.0)
    wait_sent(ledger, "slower", 1)
    before = written(schedule)
    release(NEW)
    beats.start()
    beats[1].wait_for("standing by")
    wait_sent(ledger, "gone", 3)
    assert without(written(schedule), "added") == before
    wait_sent(ledger, "added", 1)
    assert beats.terminate(0) == 0
    assert beats.wait_leader() == 1
    beats[1].wait_for("Static entries: ")
    assert "Static entries: 0 added, 1 changed, 1 removed, 3 in all" in beats[1].output()
    gone, slower = len(sent(ledger, "gone")), len(sent(ledger, "slower"))
    wait_sent(ledger, "added", 3)
    wait_sent(ledger, "keep", 3)
    report = settle(ledger, [one], schedule.now())
    note(f"keep: {len(sent(ledger, 'keep'))}, gone: {gone}, slower: {slower}")
    assert len(sent(ledger, "gone")) == gone
    assert len(sent(ledger, "slower")) == slower
    assert schedule.client.smembers(STATICS) == set(NEW)
    assert beats.terminate(1) == 0
    for entry in ("keep", "added", "dynamic"):
        check_history(schedule, ledger, entry)
    assert schedule.run_counts(["slower"]) == {"slower": slower}
    assert not schedule.client.exists(PREFIX + "gone")
    assert not report.lost


WEB = """
from redbeat import RedBeatScheduler
from tests.acceptance.project import app

for lazy in (False, True, False):
    scheduler = RedBeatScheduler(app, lazy=lazy)
    scheduler.info, scheduler.schedule
    if not lazy:
        scheduler.setup_schedule()
    scheduler.close()
    RedBeatScheduler(app=app, lazy=lazy)
"""


def web_process(schedule_url: str, entries: Mapping[str, float]) -> None:
    """Create lazy and normal schedulers in a process that is not a beat."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "PROJECT_REDIS_URL": schedule_url,
        "PROJECT_SCHEDULE": json.dumps(statics_of(entries)),
    }
    subprocess.run(
        [sys.executable, "-c", WEB], env={**os.environ, **environment}, check=True, timeout=60
    )


@pytest.mark.parametrize(
    "version",
    [{}, OLD],
    ids=["no schedule", "an old schedule"],
)
def test_a_scheduler_in_a_web_process_removes_nothing(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    release: Release,
    version: Mapping[str, float],
) -> None:
    """Setup: a beat with the new version, and 20 dynamic entries, some of them due only in an hour.

    Fault: a web process with an empty or old ``beat_schedule`` creates schedulers, lazy and normal,
    and closes some of them. This happens while the beat runs, and again when no beat runs and
    entries are due.

    Invariant: while the beat leads, the web process only adds a missing entry, and the beat keeps
    the lock. Without a beat, no entry is removed, and no byte of the dynamic entries changes. The
    next beat with the new version restores its static entries.
    """
    release(NEW)
    beats.start()
    beats[0].wait_for("beat: Acquired lock")
    schedule.put(names(15), 1.0)
    schedule.put(names(5, "later"), 3600.0, schedule.now() + 3600.0)
    wait_sent(ledger, "keep", 1)
    before, token = written(schedule), schedule.lock_token()
    web_process(schedule_redis.url, version)
    wait_sent(ledger, "keep")
    missing = version.keys() - NEW.keys()
    assert without(written(schedule), *missing) == before
    assert schedule.client.smembers(STATICS) == NEW.keys() | missing
    assert schedule.lock_token() == token
    assert beats.terminate(0) == 0
    due = schedule.now() + 1.0
    wait_until(lambda: schedule.due_before(schedule.now()) > 0 and schedule.now() > due, 30.0)
    everything = dump(schedule)
    web_process(schedule_redis.url, version)
    after = dump(schedule)
    assert after.keys() == everything.keys()
    changed = {SCHEDULE, STATS, *(PREFIX + name for name in version)}
    dynamic = everything.keys() - changed
    assert {key: after[key] for key in dynamic} == {key: everything[key] for key in dynamic}
    beats.start()
    beats[1].wait_for("Static entries: ")
    assert schedule.client.smembers(STATICS) == NEW.keys()
    assert beats.terminate(1) == 0


def test_beats_without_a_lock_are_replaced_one_by_one(
    beats: Beats, schedule: Schedule, ledger: Ledger, release: Release, note: Note
) -> None:
    """Setup: two beats with the old version that share the work, without a lock.

    Fault: a rolling deploy. A beat with the new version starts. An old beat is restarted once with
    the old version. Then the old beats stop and the new beat is restarted.

    Invariant: the static entries of both versions exist. An entry in both versions has the
    definition from the beat that started last. All beats dispatch this definition and do not keep
    overwriting it. These entries run once per second all the time and keep their run counts.
    """
    release(OLD)
    beats.start_many(2, settings=NO_LOCK)
    wait_sent(ledger, "gone")
    release(NEW)
    beats.start_many(1, settings=NO_LOCK)
    wait_until(lambda: is_installed(schedule, NEW, OLD), 30.0, "the new version")
    wait_sent(ledger, "added", 4)
    assert is_installed(schedule, NEW, OLD)
    release(OLD)
    beats.restart(1)
    wait_until(lambda: is_installed(schedule, OLD, NEW), 30.0, "the old version again")
    wait_sent(ledger, "gone", 4)
    assert is_installed(schedule, OLD, NEW)
    for number in (0, 1):
        assert beats.terminate(number) == 0
    release(NEW)
    beats.restart(2)
    wait_until(lambda: is_installed(schedule, NEW, OLD), 30.0, "the new version in the end")
    wait_sent(ledger, "added", 3)
    wait_sent(ledger, "gone", 1)
    note(f"keep: {len(sent(ledger, 'keep'))}, added: {len(sent(ledger, 'added'))}")
    assert beats.terminate(2) == 0
    check_history(schedule, ledger, "keep")
