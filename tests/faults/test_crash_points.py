"""A beat dies between two steps; what that costs is what was promised, to the entry."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.beat.at_most_once import GROUP
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from tests.faults.beats import LOCK_TIMEOUT, Beats, lease
from tests.faults.conftest import Note
from tests.faults.crashing import CRASH_AT, MARK, WRAPPER
from tests.faults.entries import Schedule, names
from tests.faults.ledger import QUEUE, Ledger
from tests.faults.oracle import Report, judge
from tests.faults.trial import Grid
from tests.servers import RedisServer
from tests.waiting import wait_until

#: One full group of promises, and some entries that are in none yet.
ENTRIES = names(GROUP + 10)
HOUR = 3600.0
AHEAD = 0.3
DEADLINE = 2 * lease() + LOCK_TIMEOUT + 60.0


@pytest.fixture
def broker(broker_redis: RedisServer) -> Iterator[Any]:
    """A client of the broker."""
    with redis.Redis.from_url(broker_redis.url) as client:
        yield client


@dataclass
class Wreck:
    """What was out and what was recorded when the beat died, and the verdict at the end."""

    published: Counter[str]
    recorded: set[str]
    report: Report

    @property
    def doubled(self) -> set[str]:
        """The entries with a second message of the same id."""
        return {double.occurrence.entry for double in self.report.doubled_same_id}

    @property
    def lost(self) -> set[str]:
        """The entries without a message."""
        return {occurrence.entry for occurrence in self.report.lost}

    def __str__(self) -> str:
        at_death = f"{len(self.published)} published, {len(self.recorded)} recorded at its death"
        return f"{at_death}; {self.report}"


@dataclass
class Trial:
    """One beat that dies and is started again."""

    beats: Beats
    schedule: Schedule
    ledger: Ledger
    broker: Any
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    note: Note

    def run(self, point: str, delivery: str, **settings: object) -> Wreck:
        """Let the beat die at a point, start it again, and wait until all is done."""
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
        wait_until(self.done, DEADLINE, "all runs recorded")
        assert self.beats.terminate(0) == 0
        self.read_all()
        report = judge(one.expected(one.first), self.ledger.messages)
        wreck = Wreck(published, recorded, report)
        self.note(wreck)
        return wreck

    def recorded(self) -> set[str]:
        """Return the entries with a recorded run."""
        return {name for name, count in self.schedule.run_counts(ENTRIES).items() if count}

    def done(self) -> bool:
        """Whether each run is recorded, and no claim is left."""
        return len(self.recorded()) == len(ENTRIES) and not self.schedule.claimed(ENTRIES)

    def read_all(self) -> None:
        """Wait until the ledger has what the broker has."""
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
    """A beat of its own, on servers of its own."""
    return Trial(beats, schedule, ledger, broker, tmp_path, monkeypatch, note)


def check_the_rest(trial: Trial, wreck: Wreck) -> None:
    """Check what holds for all: nothing but the open runs suffered, and each is recorded once."""
    published = set(wreck.published)
    assert wreck.doubled == published - wreck.recorded
    assert wreck.lost == wreck.recorded - published
    assert wreck.report.other_id == 0
    assert not wreck.report.coalesced
    assert not wreck.report.early
    assert not wreck.report.unknown
    assert set(trial.schedule.run_counts(ENTRIES).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_after_the_claim(trial: Trial, delivery: str) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when Redis gave the claims and nothing was published or recorded. The beat is
    started again.

    Invariant: with either delivery, each occurrence has exactly one message.
    """
    wreck = trial.run("claimed:1", delivery)
    assert (len(wreck.published), len(wreck.recorded)) == (0, 0)
    assert (wreck.doubled, wreck.lost) == (set(), set())
    check_the_rest(trial, wreck)


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 7])
def test_at_least_once_after_a_publish(trial: Trial, nth: int) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when the n-th message is out and its run is not recorded. The beat is started
    again.

    Invariant: what was published and not recorded, and nothing else, is sent twice, with the same
    id; nothing is lost.
    """
    wreck = trial.run(f"published:{nth}", AT_LEAST_ONCE, redbeat_publish_window=1)
    assert wreck.published.total() == nth
    assert wreck.doubled
    assert not wreck.lost
    assert wreck.report.same_id == len(wreck.doubled) <= nth
    check_the_rest(trial, wreck)


@pytest.mark.parametrize(
    "point", ["published:7", pytest.param("delivered:1", marks=pytest.mark.long)]
)
def test_at_least_once_in_a_window(trial: Trial, point: str) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s. Messages are
    written together.

    Fault: SIGKILL when some messages were written, or when the broker has confirmed them and their
    runs are not recorded. The beat is started again.

    Invariant: what was published and not recorded, and nothing else, is sent twice, with the same
    id; nothing is lost.
    """
    wreck = trial.run(point, AT_LEAST_ONCE)
    assert bool(wreck.published) or point != "delivered:1"
    assert not wreck.lost
    assert wreck.report.same_id == len(wreck.doubled)
    check_the_rest(trial, wreck)


@pytest.mark.long
def test_at_least_once_after_the_record(trial: Trial) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when Redis has recorded published runs; its reply is not looked at. The beat is
    started again.

    Invariant: what was recorded has exactly one message, and nothing is lost. On a busy machine
    more may be published at that instant, which is sent twice.
    """
    wreck = trial.run("recorded:1", AT_LEAST_ONCE)
    assert wreck.recorded
    assert not wreck.lost
    check_the_rest(trial, wreck)


@pytest.mark.long
@pytest.mark.parametrize("one_server", [True], ids=["one server"])
@pytest.mark.parametrize("point", ["claimed:1", "published:7", "recorded:1", "recorded:2"])
def test_exactly_once(trial: Trial, point: str) -> None:
    """Setup: one beat, broker and schedule on one server; 60 entries of an hour, due at the same
    instant; leases of 5 s.

    Fault: SIGKILL when Redis gave the claims, when some messages were made, or when Redis has
    recorded a group of runs and its reply is not looked at. The beat is started again.

    Invariant: what was recorded was sent, and nothing else. Each occurrence has one message.
    """
    wreck = trial.run(point, EXACTLY_ONCE)
    assert set(wreck.published) == wreck.recorded
    assert wreck.recorded or not point.startswith("recorded")
    assert (wreck.doubled, wreck.lost) == (set(), set())
    check_the_rest(trial, wreck)


@pytest.mark.long
def test_at_most_once_before_the_record(trial: Trial) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when a group of 50 runs is decided on and about to be recorded. The beat is
    started again.

    Invariant: each occurrence has exactly one message.
    """
    wreck = trial.run("decided:1", AT_MOST_ONCE)
    assert (len(wreck.published), len(wreck.recorded)) == (0, 0)
    assert (wreck.doubled, wreck.lost) == (set(), set())
    check_the_rest(trial, wreck)


@pytest.mark.long
def test_at_most_once_after_the_record(trial: Trial) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when a group of 50 runs is recorded and none of it published. The beat is started
    again.

    Invariant: these 50 are lost, the other 10 have one message each; nothing is sent twice.
    """
    wreck = trial.run("recorded:1", AT_MOST_ONCE)
    assert (len(wreck.published), len(wreck.recorded)) == (0, GROUP)
    assert len(wreck.lost) == GROUP
    assert not wreck.doubled
    check_the_rest(trial, wreck)


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, GROUP])
def test_at_most_once_after_a_publish(trial: Trial, nth: int) -> None:
    """Setup: one beat, 60 entries of an hour, due at the same instant; leases of 5 s.

    Fault: SIGKILL when a group of 50 runs is recorded and n of it published. The beat is started
    again.

    Invariant: the rest of the group is lost, all others have one message each; nothing is sent
    twice.
    """
    wreck = trial.run(f"published:{nth}", AT_MOST_ONCE)
    assert (wreck.published.total(), len(wreck.recorded)) == (nth, GROUP)
    assert len(wreck.lost) == GROUP - nth
    assert not wreck.doubled
    check_the_rest(trial, wreck)
