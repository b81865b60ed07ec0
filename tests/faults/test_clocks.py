"""The clock of a beat's host is wrong, or it jumps."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.beats import Beats
from tests.faults.clocks import WrongClock, save
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, SCHEDULE, Schedule, definition_json, meta_json, names
from tests.faults.ledger import Ledger, Message
from tests.faults.oracle import EARLY, Report
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

HOUR = 3600.0
AHEAD_OF_US, BEHIND_US = (5.0, HOUR), (-5.0, -HOUR)
OFFSETS = (*AHEAD_OF_US, *BEHIND_US)
INTERVALS = names(20)
RULES = names(20, "r")
AHEAD = 1.0
#: Maximum number of seconds without a run.
STALL = 2.0
#: Seconds within which a saved entry runs, even if the clock of the saving program is wrong.
SOON = 2.0
NO_LOCK = {"redbeat_lock_key": None}


def rule_json(name: str, start: float) -> str:
    """Return an rrule definition as JSON: every second from ``start``, a whole second."""
    definition = json.loads(definition_json(name, 1.0))
    definition["schedule"] = {"__type__": "rrule", "freq": 6, "interval": 1, "dtstart": start}
    return json.dumps(definition)


def begin(schedule: Schedule, intervals: Sequence[str] = INTERVALS) -> list[Grid]:
    """Store intervals and rules that run every second and start at the same whole second."""
    first = float(math.ceil(schedule.now() + AHEAD))
    pipeline = schedule.client.pipeline()
    for name in RULES:
        pipeline.hset(PREFIX + name, "definition", rule_json(name, first))
        pipeline.zadd(SCHEDULE, {PREFIX + name: first})
    pipeline.execute()
    schedule.put(intervals, 1.0, first)
    return [Grid(intervals, 1.0, first), Grid(RULES, 1.0, first)]


def run_until(schedule: Schedule, instant: float) -> None:
    """Wait until an instant by Redis's clock, while the beats work."""
    wait_until(lambda: schedule.now() >= instant, instant - schedule.now() + 60.0)


def check(report: Report) -> None:
    """Assert that each occurrence was sent exactly once, neither early nor late."""
    assert not report.wrong, report
    assert not report.coalesced, report
    assert report.same_id == 0, report
    assert not report.late(STALL), report


def test_beats_with_wrong_clocks_share_the_work(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    tmp_path: Path,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: four beats without a lock; 120 intervals and 20 rules that run every second.

    Fault: the clocks of the beats' hosts are 5 s or an hour ahead or behind.

    Invariant: each occurrence is sent exactly once, at most 2 s late and never early by the clock
    of Redis. Each beat sends some messages.
    """
    for offset in OFFSETS:
        beats.start(settings=NO_LOCK, wrapper=WrongClock(tmp_path, offset).wrapper)
    for number in range(len(OFFSETS)):
        beats.wait_started(number)
    grids = begin(schedule, names(120))
    until = grids[0].first + profile.pick(5.0, 120.0)
    run_until(schedule, until)
    report = settle(ledger, grids, until)
    sent = Counter(message.sender for message in ledger.messages)
    shares = [sent[beats[number].popen.pid] for number in range(len(OFFSETS))]
    note(f"{report}; sent by each: {shares}")
    check(report)
    assert all(shares)


def jumps(profile: Profile) -> list[float]:
    """Return the clock jumps in seconds; after the last jump the clock is right again."""
    there = [5.0, -5.0, -5.0, 5.0, HOUR, -HOUR, -HOUR, HOUR]
    if not profile.full:
        return there
    chance = random.Random(10)
    some = [chance.choice(OFFSETS) for _ in range(50)]
    return [*there, *some, *(-seconds for seconds in reversed(some))]


def test_the_clock_jumps_while_the_beat_runs(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    tmp_path: Path,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: one beat with the lock; 20 intervals and 20 rules that run every second.

    Fault: the clock of its host jumps by 5 s and by an hour, forward and back, at random moments.

    Invariant: each occurrence is sent exactly once, at most 2 s late and never early by the clock
    of Redis. The beat never loses the lock.
    """
    clock, chance = WrongClock(tmp_path), random.Random(10)
    beats.start(wrapper=clock.wrapper)
    beats.wait_started(0)
    grids = begin(schedule)
    run_until(schedule, grids[0].first)
    for seconds in jumps(profile):
        run_until(schedule, schedule.now() + chance.uniform(0.2, 1.2))
        clock.jump(beats[0], seconds)
    until = schedule.now() + 1.5
    run_until(schedule, until)
    report = settle(ledger, grids, until)
    note(report)
    check(report)
    assert beats[0].output().count("beat: Acquired lock") == 1
    assert "standing by" not in beats[0].output()


def test_the_next_leader_has_another_time(
    beats: Beats, schedule: Schedule, ledger: Ledger, tmp_path: Path, profile: Profile, note: Note
) -> None:
    """Setup: a leader and a standby; 20 intervals and 20 rules that run every second.

    Fault: the clock of one host is an hour ahead, the clock of the other host an hour behind. The
    leader is terminated and restarted several times, so that the beats lead alternately.

    Invariant: each occurrence is sent exactly once, at most 2 s late and never early by the clock
    of Redis.
    """
    beats.start(wrapper=WrongClock(tmp_path, HOUR).wrapper)
    beats[0].wait_for("beat: Acquired lock")
    beats.start(wrapper=WrongClock(tmp_path, -HOUR).wrapper)
    beats[1].wait_for("standing by")
    grids = begin(schedule)
    run_until(schedule, grids[0].first + 1.3)
    for leader in [0, 1] * profile.pick(1, 10):
        assert beats.terminate(leader) == 0
        assert beats.wait_leader() == 1 - leader
        beats.restart(leader)
        beats[leader].wait_for("standing by")
    until = schedule.now() + 1.0
    run_until(schedule, until)
    report = settle(ledger, grids, until)
    note(report)
    check(report)


def test_entries_are_saved_again_by_a_host_with_a_wrong_clock(
    beats: Beats, schedule: Schedule, ledger: Ledger, schedule_redis: RedisServer, note: Note
) -> None:
    """Setup: one beat. For each wrong clock there is an entry that runs every second, and an hourly
    entry that ran 10 minutes ago.

    Fault: processes with clocks that are 5 s or an hour ahead or behind use the API. They load and
    save the entry that runs every second, and make the hourly entry run now.

    Invariant: each instant of the entries that run every second is sent exactly once. Each hourly
    entry runs once, within 2 seconds.
    """
    beats.start()
    beats.wait_started(0)
    first = float(math.ceil(schedule.now() + AHEAD))
    again = [f"again{offset:g}" for offset in OFFSETS]
    hourly = [f"now{offset:g}" for offset in OFFSETS]
    meta = meta_json(schedule.now() - 600.0, 1)
    schedule.put(hourly, HOUR, schedule.now() + HOUR - 600.0, dict.fromkeys(hourly, meta))
    one = Grid.begin(schedule, again, 1.0, first - schedule.now())
    run_until(schedule, one.first + 0.5)
    requested_at = {}
    for offset in OFFSETS:
        save(schedule_redis.url, offset, {f"again{offset:g}": "again", f"now{offset:g}": "now"})
        requested_at[f"now{offset:g}"] = schedule.now()
    until = schedule.now() + SOON
    run_until(schedule, until)
    report = settle(ledger, [one], until)
    now = {message.entry: message.received for message in report.unknown}
    note(f"{report}; of these asked for: {len(now)}")
    assert sorted(now) == sorted(hourly)
    assert len(report.unknown) == len(hourly)
    assert all(received <= requested_at[name] + SOON for name, received in now.items())
    report.unknown = []
    check(report)


@pytest.mark.parametrize("offsets", [AHEAD_OF_US, BEHIND_US], ids=str)
def test_new_entries_come_from_a_host_with_a_wrong_clock(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    note: Note,
    offsets: Sequence[float],
) -> None:
    """Setup: one beat.

    Fault: processes with clocks that are 5 s or an hour wrong each create an interval and a rule
    through the API. Both run every second.

    Invariant: each entry first runs within 2 s, then every second: never early, no instant twice.
    """
    beats.start()
    beats.wait_started(0)
    start, saved = math.floor(schedule.now()) - 10.0, {}
    for offset in offsets:
        new = {f"interval{offset:g}": "interval", f"rule{offset:g}": "rrule"}
        save(schedule_redis.url, offset, new, start)
        saved.update(dict.fromkeys(new, schedule.now()))
    until = schedule.now() + 2 * SOON
    run_until(schedule, until + 0.5)
    note({name: len(of(ledger, name)) for name in saved})
    for name, at in saved.items():
        check_seconds(name, of(ledger, name), at, until)


def of(ledger: Ledger, name: str) -> list[Message]:
    """Return the messages of an entry."""
    return [message for message in ledger.messages if message.entry == name]


def check_seconds(name: str, ran: list[Message], saved: float, until: float) -> None:
    """Assert that an entry ran soon after it was saved, then once every second until ``until``."""
    assert ran, f"{name} did not run"
    assert ran[0].received <= saved + SOON, f"{name} ran {ran[0].received - saved:.1f} s late"
    instants = [message.scheduled_at or 0.0 for message in ran]
    assert all(message.received >= (message.scheduled_at or 0.0) - EARLY for message in ran)
    assert steps(instants) == [1.0] * (len(instants) - 1), f"{name}: {instants}"
    assert instants[-1] > until - 1.0


def steps(instants: Sequence[float]) -> list[float]:
    """Return the differences between consecutive instants, in seconds rounded to milliseconds."""
    return [round(after - before, 3) for before, after in pairwise(instants)]
