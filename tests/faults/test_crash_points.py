"""A beat dies between two steps; runs are lost or repeated exactly as the manual states."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.beat.turn import MOST_CHANGES as GROUP
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from tests.faults.beats import HELD, LOCK_TIMEOUT, Beats
from tests.faults.conftest import Note
from tests.faults.crashing import CRASH_AT, MARK, WRAPPER
from tests.faults.entries import Schedule, names
from tests.faults.ledger import QUEUE, Ledger
from tests.faults.oracle import Report, judge
from tests.faults.trial import Grid
from tests.samples import long
from tests.servers import RedisServer
from tests.waiting import wait_until

#: Two full groups of at-most-once runs and 10 more entries.
ENTRIES = names(2 * GROUP + 10)
HOUR = 3600.0
AHEAD = 0.3
DEADLINE = 2 * HELD + LOCK_TIMEOUT + 60.0


@pytest.fixture
def broker(broker_redis: RedisServer) -> Iterator[Any]:
    """Return a client of the broker."""
    with redis.Redis.from_url(broker_redis.url) as client:
        yield client


@dataclass
class Crash:
    """The sent and recorded runs when the beat died, and the final report."""

    published: Counter[str]
    recorded: set[str]
    report: Report

    @property
    def doubled(self) -> set[str]:
        """Return the entries that have a second message with the same id."""
        return {double.occurrence.entry for double in self.report.doubled_same_id}

    @property
    def lost(self) -> set[str]:
        """Return the entries without a message."""
        return {occurrence.entry for occurrence in self.report.lost}

    def __str__(self) -> str:
        at_death = f"{len(self.published)} published, {len(self.recorded)} recorded at its death"
        return f"{at_death}; {self.report}"


@dataclass
class Trial:
    """One beat that dies and is restarted."""

    beats: Beats
    schedule: Schedule
    ledger: Ledger
    broker: Any
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    note: Note

    def run(self, point: str, delivery: str, **settings: object) -> Crash:
        """Let the beat die at a point, restart the beat, and wait until all runs are recorded."""
        wrapper = self.directory / "wrapper.py"
        wrapper.write_text(WRAPPER)
        self.monkeypatch.setenv(CRASH_AT, point)
        self.beats.start(wrapper=wrapper, settings={"redbeat_delivery": delivery, **settings})
        self.beats[0].wait_for("beat: Acquired lock")
        one = Grid.begin(self.schedule, ENTRIES, HOUR, AHEAD)
        assert self.beats[0].popen.wait(60) == -signal.SIGKILL
        assert (self.directory / MARK).exists()
        self.read_all()
        published = Counter(message.entry for message in self.ledger.messages)
        recorded = self.recorded()
        self.beats.restart(0)
        self.beats[0].wait_for("beat: Acquired lock")
        wait_until(lambda: self.done(recorded), DEADLINE, "all runs sent and recorded")
        assert self.beats.terminate(0) == 0
        self.read_all()
        report = judge(one.expected(one.first), self.ledger.messages)
        crash = Crash(published, recorded, report)
        self.note(crash)
        return crash

    def recorded(self) -> set[str]:
        """Return the entries with a recorded run."""
        return {name for name, count in self.schedule.run_counts(ENTRIES).items() if count}

    def done(self, before: set[str]) -> bool:
        """Return whether all runs are recorded, and those left over from ``before`` are sent."""
        sent = {message.entry for message in self.ledger.messages}
        is_recorded = len(self.recorded()) == len(ENTRIES) and not self.schedule.held(ENTRIES)
        return is_recorded and {*ENTRIES} <= before | sent

    def read_all(self) -> None:
        """Wait until the ledger has read all messages of the broker."""
        wait_until(lambda: len(self.ledger) == self.broker.llen(QUEUE), 30.0, "the whole queue")


@pytest.fixture
def trial(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    broker: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    note: Note,
) -> Trial:
    """Return a trial with its own servers and one beat."""
    return Trial(beats, schedule, ledger, broker, tmp_path, monkeypatch, note)


def check_the_rest(trial: Trial, crash: Crash) -> None:
    """Assert the common rules: only unfinished runs are affected; each run is recorded once."""
    published = set(crash.published)
    assert crash.doubled == published - crash.recorded
    assert crash.lost == crash.recorded - published
    assert crash.report.other_id == 0
    assert not crash.report.coalesced
    assert not crash.report.early
    assert not crash.report.unknown
    assert set(trial.schedule.run_counts(ENTRIES).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_after_the_look(trial: Trial, delivery: str) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when the beat knows what is due, before any run was published or recorded. The
    beat is restarted.

    Invariant: each occurrence is sent exactly once, with at-least-once and at-most-once delivery.
    """
    crash = trial.run("looked:1", delivery)
    assert (len(crash.published), len(crash.recorded)) == (0, 0)
    assert (crash.doubled, crash.lost) == (set(), set())
    check_the_rest(trial, crash)


@pytest.mark.long
def test_at_least_once_after_the_hold(trial: Trial) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when Redis holds runs and none of them is published. The beat is restarted.

    Invariant: each occurrence is sent exactly once.
    """
    crash = trial.run("held:1", AT_LEAST_ONCE)
    assert (len(crash.published), len(crash.recorded)) == (0, 0)
    assert (crash.doubled, crash.lost) == (set(), set())
    check_the_rest(trial, crash)


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 7])
def test_at_least_once_after_a_publish(trial: Trial, nth: int) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when the n-th message is sent and its run is not recorded. The beat is restarted.

    Invariant: exactly the published, unrecorded runs are sent twice, with the same id. No run is
    lost.
    """
    crash = trial.run(f"published:{nth}", AT_LEAST_ONCE, redbeat_publish_window=1)
    assert crash.published.total() == nth
    assert crash.doubled
    assert not crash.lost
    assert crash.report.same_id == len(crash.doubled) <= nth
    check_the_rest(trial, crash)


@pytest.mark.long
@pytest.mark.parametrize("point", ["published:7", "decided:1"])
def test_at_least_once_in_a_window(trial: Trial, point: str) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant. The beat writes
    several messages to the broker together.

    Fault: SIGKILL when some messages were written, or when the broker confirmed them and their runs
    are not recorded. The beat is restarted.

    Invariant: exactly the published, unrecorded runs are sent twice, with the same id. No run is
    lost.
    """
    crash = trial.run(point, AT_LEAST_ONCE)
    assert bool(crash.published) or point != "decided:1"
    assert not crash.lost
    assert crash.report.same_id == len(crash.doubled)
    check_the_rest(trial, crash)


@pytest.mark.long
def test_at_least_once_after_the_record(trial: Trial) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL after Redis recorded published runs, before the beat read the reply. The beat is
    restarted.

    Invariant: each recorded run has exactly one message, and no run is lost. On a busy machine the
    beat may have published more runs by then; these runs are sent twice.
    """
    crash = trial.run("recorded:1", AT_LEAST_ONCE)
    assert crash.recorded
    assert not crash.lost
    check_the_rest(trial, crash)


@pytest.mark.long
@pytest.mark.parametrize("one_server", [True], ids=["one server"])
@pytest.mark.parametrize("point", ["looked:1", "published:7", "recorded:1", "recorded:2"])
def test_exactly_once(trial: Trial, point: str) -> None:
    """Setup: one beat, broker and schedule on one server; 110 hourly entries, due at the same
    instant.

    Fault: SIGKILL when the beat knows what is due, when it built some messages, or when Redis
    recorded a group of runs and the beat has not read the reply. The beat is restarted.

    Invariant: at the crash, exactly the recorded runs were sent. Each occurrence is sent exactly
    once.
    """
    crash = trial.run(point, EXACTLY_ONCE)
    assert set(crash.published) == crash.recorded
    assert crash.recorded or not point.startswith("recorded")
    assert (crash.doubled, crash.lost) == (set(), set())
    check_the_rest(trial, crash)


@pytest.mark.long
def test_at_most_once_before_the_record(trial: Trial) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when the beat is about to record a group of runs. The beat is restarted.

    Invariant: each occurrence is sent exactly once.
    """
    crash = trial.run("decided:1", AT_MOST_ONCE)
    assert (len(crash.published), len(crash.recorded)) == (0, 0)
    assert (crash.doubled, crash.lost) == (set(), set())
    check_the_rest(trial, crash)


@pytest.mark.parametrize("nth", [1, long(2)])
def test_at_most_once_after_the_record(trial: Trial, nth: int) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when a group of at most 50 runs is recorded and none of them is published. The
    beat is restarted.

    Invariant: these runs are lost, and the others have one message each. No run is sent twice.
    """
    crash = trial.run(f"recorded:{nth}", AT_MOST_ONCE)
    assert 0 < len(crash.lost) <= GROUP
    assert not crash.doubled
    check_the_rest(trial, crash)


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, GROUP, GROUP + 1])
def test_at_most_once_after_a_publish(trial: Trial, nth: int) -> None:
    """Setup: one beat, 110 hourly entries, due at the same instant.

    Fault: SIGKILL when a group of at most 50 runs is recorded, and n runs are published. The beat
    is restarted.

    Invariant: the rest of the group is lost, and all other runs have one message each. No run is
    sent twice.
    """
    crash = trial.run(f"published:{nth}", AT_MOST_ONCE)
    assert crash.published.total() == nth
    assert len(crash.lost) <= GROUP
    assert not crash.doubled
    check_the_rest(trial, crash)
