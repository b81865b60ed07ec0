"""Four beats without a lock share the work."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest

from tests.faults.beats import HELD, Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.waiting import wait_until

pytestmark = pytest.mark.long

BEATS = 4
ENTRIES = names(200)
AHEAD = 2.0
#: Seconds within which each beat sends its first message, even on a busy machine.
START = 8.0
NO_LOCK = {"redbeat_lock_key": None}


def spread(ledger: Ledger, beats: Beats) -> str:
    """Return how many messages each process sent; ended processes are listed as `ended`."""
    sent = Counter(message.sender for message in ledger.messages)
    shares = [f"beat {number}: {sent.pop(beats[number].popen.pid, 0)}" for number in range(BEATS)]
    return ", ".join([*shares, f"ended: {sum(sent.values())}"])


def test_four_beats_run_each_occurrence_once(
    beats: Beats, schedule: Schedule, ledger: Ledger, profile: Profile, note: Note
) -> None:
    """Setup: four beats, no lock, 200 entries every second (short profile: every three seconds).

    Fault: none. All beats process the same entries at the same time.

    Invariant: each occurrence is sent exactly once.
    """
    beats.start_many(BEATS, settings=NO_LOCK)
    one = Grid.begin(schedule, ENTRIES, profile.pick(3.0, 1.0), AHEAD)
    until = one.first + profile.pick(17.0, 120.0)
    wait_until(lambda: schedule.now() >= until, profile.pick(60.0, 300.0))
    report = settle(ledger, [one], until)
    note(f"{report}; {spread(ledger, beats)}")
    # On a busy machine, a process may need seconds for the imports before its first publish.
    assert all(late.instant < one.first + profile.pick(START, 0.0) for late in report.coalesced)
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0


def pick(instant: float, beats: Beats, ledger: Ledger, chance: random.Random) -> int:
    """Wait until some runs of an instant are sent, and choose the beat that will fail."""
    wait_until(lambda: time.time() >= instant - 0.1, 60.0)
    enough = len(ledger) + chance.randrange(10, 100)
    wait_until(lambda: len(ledger) >= enough, 60.0, "some of the runs")
    sender = ledger.since(-1)[0].sender
    pids = [beats[number].popen.pid for number in range(BEATS)]
    busy = sender in pids and chance.random() < 0.75
    return pids.index(sender) if busy else chance.randrange(BEATS)


def kill(beats: Beats, number: int, _chance: random.Random) -> str:
    """Kill a beat and start it again."""
    beats.kill(number)
    beats.restart(number)
    return f"kill {number}"


def restart(beats: Beats, number: int, _chance: random.Random) -> str:
    """Terminate a beat and start it again."""
    assert beats.terminate(number) == 0
    beats.restart(number)
    return f"restart {number}"


def freeze(beats: Beats, number: int, chance: random.Random) -> str:
    """Stop a beat with SIGSTOP, for a shorter or a longer time than a hold."""
    seconds = chance.choice((1.0, 5.0, HELD + 2.0))
    beats.signal(number, signal.SIGSTOP)
    # The beat stays stopped for this time.
    time.sleep(seconds)
    beats.signal(number, signal.SIGCONT)
    return f"stop {number} for {seconds:.1f} s"


FAULTS = (kill, freeze, restart)


@BOTH_BROKERS
def test_four_beats_of_which_one_fails_every_few_seconds(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    profile: Profile,
    note: Note,
    one_server: bool,
) -> None:
    """Setup: four beats, no lock, 200 entries every second.

    Fault: every few seconds, during the runs of one second, one beat fails. The beat is killed and
    restarted, terminated and restarted, or stopped for a shorter or longer time than a hold.
    Usually this is the beat that sent the last message, sometimes a random beat.

    Invariant: each occurrence has a message or is coalesced into a later one. No occurrence has
    messages with different ids. If broker and schedule share a server, no occurrence is sent twice.
    Beats that were not killed are alive.
    """
    beats.start_many(BEATS, settings=NO_LOCK)
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    chance, struck = random.Random(2), []
    for number in range(profile.pick(3, 24)):
        time_of_fault = one.first + profile.pick(3.0, 5.0) * (number + 1)
        victim = pick(time_of_fault, beats, ledger, chance)
        fault = FAULTS[number] if number < len(FAULTS) else chance.choice(FAULTS)
        struck.append(fault(beats, victim, chance))
    until = schedule.now() + 3.0
    wait_until(lambda: schedule.now() >= until, 60.0)
    report = settle(ledger, [one], until)
    note(f"{report}; {spread(ledger, beats)}; {', '.join(struck)}")
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0 or not one_server
    assert all(beats[number].is_alive for number in range(BEATS))
