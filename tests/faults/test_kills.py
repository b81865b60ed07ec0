"""Two beats are killed repeatedly while entries of all kinds are due.

The full form kills 300 times for each kind of broker::

    python -m pytest -n 2 -m "" --faults full tests/faults/test_kills.py
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat.worker
from redbeat import RedBeatSchedulerEntry
from redbeat.entries.history import RunResult
from redbeat.worker import End, Reports
from tests.faults.beats import LOCK_TIMEOUT, Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import QUEUE, Ledger, Message
from tests.faults.oracle import Report, Rules, grid, judge
from tests.faults.profile import Profile
from tests.servers import RedisServer
from tests.waiting import wait_until

#: The lock timeout in seconds, after which a killed leader is replaced; a hold is longer.
SETTINGS = {"redbeat_lock_timeout": 2.0}
NO_LOCK = {"redbeat_lock_key": None}

STEADY, EVERY = names(200), 1.0
#: Entries with runs that must not overlap: a worker ends some runs, the others time out.
ENDING, HANGING, OFTEN = names(3, "ends"), names(3, "hangs"), 0.5
TIMEOUT = 1.5
#: Entries that run only when they are triggered.
TRIGGERED, DAY = names(5, "triggered"), 86400.0
LIMIT = 3
#: What the workers report.
DONE = RunResult("succeeded")
#: Seconds from the first to the second instant of an entry that is saved during the test.
SHORT = 2.0
AHEAD = 0.5
#: Maximum number of messages that a killed beat has published and not recorded.
MOST_UNRECORDED = 100
#: Maximum seconds until messages arrive after a kill, and until all runs end after the last kill.
DEADLINE = 120.0


@pytest.fixture
def app(schedule_redis: RedisServer, broker_redis: RedisServer) -> Iterator[Celery]:
    """Return the app of the program that saves and triggers entries."""
    app = Celery("client", broker=broker_redis.url, set_as_current=False)
    app.conf.update(redbeat_redis_url=schedule_redis.url, timezone="UTC", enable_utc=True)
    redbeat.worker.enable(app)
    yield app
    app.close()


class Life:
    """Does what an application and its workers do, and records the expected results."""

    def __init__(
        self, app: Celery, beats: Beats, schedule: Schedule, ledger: Ledger, seed: str
    ) -> None:
        self.beats, self.ledger = beats, ledger
        # How often a beat was killed while it held runs.
        self.amid_holds = 0
        self._app, self._schedule, self._reports = app, schedule, Reports(app)
        self._chance = random.Random(seed)
        self._steps: dict[str, tuple[float, float]] = {}
        self._limits: dict[str, int] = {}
        self._triggers: dict[str, dict[str, float]] = defaultdict(dict)
        self._ends: dict[str, float] = {}
        self._worked = 0
        #: The entries that run every second.
        self.steady = STEADY

    def begin(self) -> None:
        """Store the entries that exist during the whole test."""
        for name in self.steady:
            self.save(name, EVERY)
        for name in (*ENDING, *HANGING):
            self.save(name, OFTEN, overlap="skip", overlap_timeout=self.timeout(name))
        for name in TRIGGERED:
            self.save(name, DAY, ahead=DAY)

    def save(self, name: str, every: float, ahead: float = AHEAD, **options: Any) -> None:
        """Save an entry with known instants; its first run is ``ahead`` seconds from now."""
        first = round(self._schedule.now() + ahead, 3)
        before = datetime.fromtimestamp(first - every, timezone.utc)
        RedBeatSchedulerEntry(
            name, "faults.run", every, last_run_at=before, app=self._app, **options
        ).save()
        self._steps[name] = (first, every)

    def go_on(self, number: int) -> None:
        """Save a one-off and an entry with a run limit, and trigger some entries."""
        endings = ("delete", "keep")
        once, few = f"once{number}", f"few{number}"
        self.save(once, SHORT, one_off=True, on_finish=self._chance.choice(endings))
        self.save(few, OFTEN, max_runs=LIMIT, on_finish=self._chance.choice(endings))
        self._limits.update({once: 1, few: LIMIT})
        recent = list(self._limits)[-6:]
        for name in (self._chance.choice(TRIGGERED), self._chance.choice(recent)):
            with suppress(KeyError):  # The entry has finished and was deleted.
                entry = RedBeatSchedulerEntry(name, "faults.run", EVERY, app=self._app)
                asked_at = time.time()
                self._triggers[name][entry.trigger()] = asked_at

    def work(self) -> None:
        """Act as the workers: report the end of some entries' runs when their messages arrive."""
        fresh = self.ledger.since(self._worked)
        self._worked += len(fresh)
        for message in fresh:
            if message.entry in ENDING:
                self._ends.setdefault(message.task_id, time.time())
                self._reports.add(
                    End(message.entry, "", message.task_id, None, time.monotonic(), DONE)
                )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the workers report the ends of runs."""

        def holds() -> bool:
            self.work()
            return condition()

        wait_until(holds, DEADLINE, what)

    def kill(self, within: int) -> int:
        """Kill a beat within ``within`` messages, usually the last sender; return its pid."""
        enough = len(self.ledger) + self._chance.randrange(1, within)
        self.wait(lambda: len(self.ledger) >= enough, "messages after a kill")
        pids = [self.beats[number].popen.pid for number in range(len(self.beats))]
        sender = self.ledger.since(-1)[0].sender
        at_work = sender in pids and self._chance.random() < 0.8
        victim = pids.index(sender) if at_work else self._chance.randrange(len(pids))
        self.beats.kill(victim)
        self.amid_holds += bool(self._schedule.held(self.steady))
        self.beats.restart(victim)
        return pids[victim]

    def decision(self, until: float) -> Report:
        """Check the messages of all runs that were due until ``until``, and return the report."""
        expected = {name: grid(*step, until) for name, step in self._steps.items()}
        overlap = {name: self.timeout(name) for name in (*ENDING, *HANGING)}
        rules = {
            name: Rules(
                self._limits.get(name),
                self._triggers.get(name, {}),
                overlap.get(name),
                self._ends,
            )
            for name in self._steps
        }
        return judge(expected, self.ledger.messages, rules=rules)

    def recorded(self) -> dict[str, int]:
        """Return the recorded run count of each entry that exists during the whole test."""
        return self._schedule.run_counts((*self.steady, *ENDING, *HANGING))

    def sent(self) -> dict[str, int]:
        """Return how many ids were sent for each entry that exists during the whole test."""
        ids = {(message.entry, message.task_id) for message in self.ledger.messages}
        counts = Counter(entry for entry, _ in ids)
        return {name: counts[name] for name in (*self.steady, *ENDING, *HANGING)}

    def timeout(self, name: str) -> float:
        """Return the ``overlap_timeout`` of an entry."""
        return DAY if name in ENDING else TIMEOUT

    def end(self, broker: redis.Redis) -> Report:
        """Wait until all runs ended and no beat holds one; return the report."""
        settled = self._schedule.now() + LOCK_TIMEOUT
        self.wait(lambda: self._schedule.now() > settled, "a new leader")
        self.wait(lambda: not self._schedule.held(self.steady), "the end of the last holds")
        until = self._schedule.now()
        with suppress(AssertionError):  # The report explains the failure better than a timeout.
            self.wait(lambda: not self.decision(until).lost, "all runs")
        for number in range(len(self.beats)):
            self.beats.wait_started(number)
            self.beats.signal(number, signal.SIGTERM)
        assert [self.beats[number].popen.wait(30) for number in range(len(self.beats))] == [0, 0]
        wait_until(lambda: len(self.ledger) == broker.llen(QUEUE), 30.0, "the whole queue")
        return self.decision(until)


def doubles(messages: list[Message]) -> Counter[int]:
    """Return how many messages repeat an earlier id, by sender of the earlier message."""
    senders: dict[str, int] = {}
    again: Counter[int] = Counter()
    for message in messages:
        if message.task_id in senders:
            again[senders[message.task_id]] += 1
        senders[message.task_id] = message.sender
    return again


@pytest.fixture
def life(
    app: Celery, beats: Beats, schedule: Schedule, ledger: Ledger, request: pytest.FixtureRequest
) -> Life:
    """Run two beats; the random seed comes from the name of the test."""
    return Life(app, beats, schedule, ledger, request.node.name)


@pytest.fixture
def broker(broker_redis: RedisServer) -> Iterator[redis.Redis]:
    """Return a client of the broker."""
    with redis.Redis.from_url(broker_redis.url) as client:
        yield client


def check_kills(
    life: Life, broker: redis.Redis, note: Note, kills: int, within: int, locked: bool
) -> Counter[int]:
    """Kill beats, each within ``within`` messages; assert what is true with any broker.

    Return the number of repeated messages for each killed process.
    """
    life.beats.start_many(2, settings={**SETTINGS, **({} if locked else NO_LOCK)})
    life.begin()
    killed = set()
    for number in range(kills):
        life.go_on(number)
        killed.add(life.kill(within))
    report = life.end(broker)
    again = doubles(life.ledger.messages)
    most = max(again.values(), default=0)
    note(
        f"{len(killed)} kills, {life.amid_holds} amid holds, {len(life.ledger)} messages, "
        f"{again.total()} doubled, {most} by one kill at most; {report}"
    )
    assert not report.wrong
    assert set(again) <= killed
    assert most <= MOST_UNRECORDED
    assert life.recorded() == life.sent()
    return again


@pytest.mark.parametrize("one_server", [True], ids=["one server"])
def test_no_run_is_doubled_by_a_kill(life: Life, broker: redis.Redis, note: Note) -> None:
    """Setup: two beats without a lock, broker and schedule on one server; entries of all kinds.

    Fault: a beat is killed while it works, and restarted.

    Invariant: each occurrence and each trigger has one message or is coalesced. No entry exceeds
    its run limit.
    """
    life.steady = STEADY[:40]
    assert not check_kills(life, broker, note, 1, len(life.steady) // 2, locked=False)


@pytest.mark.long
@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
@BOTH_BROKERS
def test_beats_are_killed_again_and_again(
    life: Life, broker: redis.Redis, profile: Profile, note: Note, one_server: bool, locked: bool
) -> None:
    """Setup: two beats, with or without a lock. The entries are intervals, limited entries,
    one-offs, triggered entries, and entries with runs that must not overlap. One-offs and limited
    entries are saved continuously.

    Fault: a beat is killed at a random moment of its work and restarted, five times (full profile:
    150 times).

    Invariant: each occurrence and each trigger has a message or is coalesced into a later one. No
    occurrence has two ids, no entry exceeds its limit, and runs that must not overlap do not
    overlap. If broker and schedule share a server, no run is sent twice.
    """
    again = check_kills(life, broker, note, profile.pick(5, 150), 2 * len(STEADY), locked)
    assert not again or not one_server
