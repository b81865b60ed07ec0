"""The fault scenarios. Each scenario runs with one version of RedBeat and returns table cells."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence

from tests.faults.entries import names
from tests.servers import RedisServer

from .faultcounts import Counts, once
from .faultscene import LOCK, LOCK_TIMEOUT, TIMED, Scene, scene, within
from .sides import Side

__all__ = ("Cell", "Metrics", "broker_away", "failover", "leader_fails", "redis_killed", "shared")

Cell = int | float | str
#: The table cells of a scenario: row title -> value.
Metrics = dict[str, Cell]

HOUR = 3600.0
#: Seconds for which SIGSTOP pauses a beat, so that its lock expires.
FROZEN = LOCK_TIMEOUT + 3.0
#: If all entries have run, a scenario ends after ``QUIET_DONE`` seconds without a message.
#: If some entries have not run, a scenario ends after ``QUIET_OPEN`` seconds without a message,
#: which is longer than a beat holds a run.
QUIET_DONE, QUIET_OPEN = LOCK_TIMEOUT + 2.0, 35.0
LONGEST = 120.0
#: Seconds from the end of an outage to the start of the next outage.
RECOVERY = 6.0
#: Seconds without a message after which RedBeat counts as permanently stopped.
PATIENCE = 60.0
NO_LOCK = {"redbeat_lock_key": None, "beat_max_loop_interval": 1}
BEATS = 4


def leader_fails(side: Side, sent: signal.Signals, entries: int, after: int) -> Metrics:
    """Send a signal to the leader when ``after`` of the ``entries`` due runs have been sent.

    A standby beat is ready to take over from the leader.
    """
    hourly = names(entries)
    with scene(side, TIMED) as stage:
        leader = stage.start_leader()
        stage.start()
        first = stage.begin(hourly, HOUR, 3.0)
        within(PATIENCE, lambda: len(stage.ledger) >= after)
        strike(stage, leader, sent, FROZEN)
        if stage.ran_after(hourly, first - HOUR, LONGEST, give_up=QUIET_OPEN):
            stage.quiet(QUIET_DONE, LONGEST)
        counts = once(hourly, stage.ledger.messages)
        return {
            "lost": counts.missed,
            "duplicates, same task id": counts.same_id,
            "duplicates, another task id": counts.other_id,
            "process exits": len(stage.beats.exits),
        }


def strike(stage: Scene, number: int, sent: signal.Signals, frozen: float) -> None:
    """Send a signal to a beat; after a SIGSTOP, wait ``frozen`` seconds and send SIGCONT."""
    stage.beats.signal(number, sent)
    if sent is signal.SIGSTOP:
        time.sleep(frozen)
        stage.beats.signal(number, signal.SIGCONT)


def shared(side: Side, entries: int, seconds: float, fault_every: float | None) -> Metrics:
    """Run four beats without a lock; send a signal to a random beat every ``fault_every`` seconds.

    Each of the ``entries`` entries runs every second.
    """
    every_second, chance = names(entries), random.Random(2)
    kinds = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]
    with scene(side, NO_LOCK) as stage:
        for _ in range(BEATS):
            stage.start()
        first = stage.begin(every_second, 1.0)
        until, strikes = first + seconds - 1.0, 0
        while fault_every and (at := first + fault_every * (strikes + 1)) < until:
            sleep_until(at + chance.random() * 0.2)
            kind = kinds[strikes % len(kinds)]
            strike(stage, chance.randrange(BEATS), kind, chance.choice((2.0, FROZEN)))
            strikes += 1
        sleep_until(until)
        stage.ran_after(every_second, until, PATIENCE / 2)
        sleep_until(time.time() + 1.0)
        return {
            **grid_metrics(stage.count(every_second, 1.0, first, until)),
            "process exits": len(stage.beats.exits),
        }


def sleep_until(instant: float) -> None:
    """Sleep until an instant, given in UNIX seconds."""
    time.sleep(max(0.0, instant - time.time()))


def grid_metrics(counts: Counts) -> Metrics:
    """Return the table cells for entries that run at a fixed interval."""
    lost = f" ({counts.lost:,} lost)" if counts.lost is not None else ""
    return {
        "runs expected": counts.expected,
        "messages": counts.sent,
        "duplicates, same task id": counts.same_id,
        "duplicates, another task id": counts.other_id,
        "lost or coalesced": f"{counts.missed:,}{lost}",
    }


def redis_killed(side: Side, entries: int, times: int) -> Metrics:
    """Kill the Redis server of the schedule ``times`` times; restart it within two seconds."""
    chance = random.Random(6)
    lengths = [chance.uniform(0.3, 2.0) for _ in range(times)]
    with scene(side, TIMED, durable=True) as stage:
        return outages(stage, stage.schedule_redis, entries, lengths)


def broker_away(side: Side, entries: int, seconds: float) -> Metrics:
    """Kill the broker, and restart the broker ``seconds`` seconds later."""
    with scene(side, TIMED, durable=True) as stage:
        return outages(stage, stage.broker_redis, entries, [seconds])


def outages(stage: Scene, server: RedisServer, entries: int, lengths: Sequence[float]) -> Metrics:
    """Cause outages of a server; ``lengths`` are the durations of the outages in seconds.

    During the scenario, ``entries`` entries run every second. During each outage, ``entries`` new
    hourly entries become due.
    """
    every_second, hourly, waits = names(entries), list[str](), list[float]()
    stage.start_leader()
    first = stage.begin(every_second, 1.0)
    stage.ran_after(every_second, first + 1.0, PATIENCE)
    until = first + 3.0
    for number, length in enumerate(lengths):
        sleep_until(until)
        fresh = names(entries, f"h{number}-")
        hourly += fresh
        stage.put(fresh, HOUR, time.time() + 0.1 + length / 2)
        outage(server, length)
        waits.append(seconds_to_dispatch(stage, every_second))
        # Each version of RedBeat gets ``RECOVERY`` seconds to recover, or more if necessary.
        until = max(until + length + RECOVERY, time.time() + 1.0)
    until = float(int(until))
    sleep_until(until)
    stage.ran_after(every_second, until, PATIENCE)
    stage.ran_after(hourly, first, QUIET_OPEN)
    sleep_until(time.time() + 1.0)
    singles = once(hourly, stage.ledger.messages)
    return outage_metrics(stage, waits, singles, stage.count(every_second, 1.0, first, until))


def outage(server: RedisServer, seconds: float) -> None:
    """Kill a server, and restart the server ``seconds`` seconds later."""
    server.kill()
    time.sleep(seconds)
    server.restart()


def outage_metrics(
    stage: Scene, waits: Sequence[float], hourly: Counts, every_second: Counts
) -> Metrics:
    """Return the table cells for a scenario with outages.

    ``waits`` are the seconds from the end of each outage to the next message.
    """
    return {
        "process exits": len(stage.beats.exits),
        "maximum seconds from the end of an outage to the next message": seconds_cell(max(waits)),
        "hourly entries that became due during an outage": hourly.expected,
        "hourly entries: lost": hourly.missed,
        "hourly entries: duplicates with the same task id": hourly.same_id,
        "hourly entries: duplicates with another task id": hourly.other_id,
        **{
            f"entries that run every second: {name}": n
            for name, n in grid_metrics(every_second).items()
        },
    }


def seconds_to_dispatch(stage: Scene, entries: Sequence[str]) -> float:
    """Wait for a new message of one of ``entries``; return the waiting time in seconds."""
    started, expected = time.monotonic(), set(entries)
    # Ignore all messages that are already in the queue, even if the ledger has not read them yet.
    count = stage.sent()
    within(PATIENCE, lambda: any(one.entry in expected for one in stage.ledger.since(count)))
    return time.monotonic() - started


def seconds_cell(seconds: float) -> str:
    """Return a waiting time as text, such as ``more than 60`` if the time reached the limit."""
    return f"{seconds:.1f}" if seconds < PATIENCE else f"more than {PATIENCE:.0f}"


def failover(side: Side) -> Metrics:
    """Kill the leader, and measure the time until the standby beat sends a message.

    The beats have default settings. For RedBeat 2, the cell contains the TTL of the lock instead of
    a measured time, because the standby waits until the lock expires.
    """
    with scene(side, {}) as stage:
        stage.begin(names(1), 1.0)
        leader = stage.start_leader()
        lock_ttl = stage.schedule.client.pttl(LOCK) / 1000
        name = "seconds until the standby sends a message"
        if side.name != "ours":
            return {name: f"not measured: the lock expires after {lock_ttl:,.0f} s"}
        stage.start()
        stage.ran_after(names(1), time.time(), PATIENCE)
        stage.beats.retire(leader)
        return {name: seconds_cell(seconds_to_dispatch(stage, names(1)))}
