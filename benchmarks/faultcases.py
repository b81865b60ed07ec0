"""The faults, each done to a side; the numbers go into the table as they are."""

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
#: What was counted -> the number.
Metrics = dict[str, Cell]

HOUR = 3600.0
#: Seconds that a stopped leader is stopped: its lock and its claims end in them.
FROZEN = LOCK_TIMEOUT + 3.0
#: Seconds without a message after which no more is expected: when all are out, and when not.
QUIET_DONE, QUIET_OPEN = LOCK_TIMEOUT + 2.0, 20.0
LONGEST = 120.0
#: Seconds from the end of an outage to the next one.
RECOVERY = 6.0
#: Seconds after which a side is said not to dispatch any more.
PATIENCE = 60.0
NO_LOCK = {"redbeat_lock_key": None, "beat_max_loop_interval": 1}
BEATS = 4


def leader_fails(side: Side, sent: signal.Signals, entries: int, after: int) -> Metrics:
    """Strike the leader when ``after`` messages of ``entries`` are out; a standby is there."""
    wanted = names(entries)
    with scene(side, TIMED) as stage:
        leader = stage.start_leader()
        stage.start()
        first = stage.begin(wanted, HOUR, 3.0)
        within(PATIENCE, lambda: len(stage.ledger) >= after)
        strike(stage, leader, sent, FROZEN)
        if stage.ran_after(wanted, first - HOUR, LONGEST, give_up=QUIET_OPEN):
            stage.quiet(QUIET_DONE, LONGEST)
        counts = once(wanted, stage.ledger.messages)
        return {
            "lost": counts.missed,
            "doubled, same id": counts.same_id,
            "doubled, another id": counts.other_id,
            "process exits": len(stage.beats.exits),
        }


def strike(stage: Scene, number: int, sent: signal.Signals, frozen: float) -> None:
    """Send a signal to a beat; one that stops it is followed by SIGCONT ``frozen`` seconds on."""
    stage.beats.signal(number, sent)
    if sent is signal.SIGSTOP:
        # The length of the pause is the fault.
        time.sleep(frozen)
        stage.beats.signal(number, signal.SIGCONT)


def shared(side: Side, entries: int, seconds: float, fault_every: float | None) -> Metrics:
    """Run four beats without a lock on entries of every second; strike one now and then."""
    wanted, chance = names(entries), random.Random(2)
    kinds = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]
    with scene(side, NO_LOCK) as stage:
        for _ in range(BEATS):
            stage.start()
        first = stage.begin(wanted, 1.0)
        until, strikes = first + seconds - 1.0, 0
        while fault_every and (at := first + fault_every * (strikes + 1)) < until:
            sleep_until(at + chance.random() * 0.2)
            kind = kinds[strikes % len(kinds)]
            strike(stage, chance.randrange(BEATS), kind, chance.choice((2.0, FROZEN)))
            strikes += 1
        sleep_until(until)
        stage.ran_after(wanted, until, PATIENCE / 2)
        sleep_until(time.time() + 1.0)
        return {
            **grid_metrics(stage.count(wanted, 1.0, first, until)),
            "process exits": len(stage.beats.exits),
        }


def sleep_until(instant: float) -> None:
    """Let the beats work until an instant, UNIX seconds."""
    time.sleep(max(0.0, instant - time.time()))


def grid_metrics(counts: Counts) -> Metrics:
    """Return the cells of entries on a grid."""
    told = f" ({counts.lost:,} lost)" if counts.lost is not None else ""
    return {
        "runs expected": counts.expected,
        "messages": counts.sent,
        "doubled, same id": counts.same_id,
        "doubled, another id": counts.other_id,
        "lost or coalesced": f"{counts.missed:,}{told}",
    }


def redis_killed(side: Side, entries: int, times: int) -> Metrics:
    """Kill the Redis of the schedule so often, for up to two seconds each time."""
    chance = random.Random(6)
    lengths = [chance.uniform(0.3, 2.0) for _ in range(times)]
    with scene(side, TIMED, durable=True) as stage:
        return outages(stage, stage.schedule_redis, entries, lengths)


def broker_away(side: Side, entries: int, seconds: float) -> Metrics:
    """Kill the broker, and start it again so many seconds later."""
    with scene(side, TIMED, durable=True) as stage:
        return outages(stage, stage.broker_redis, entries, [seconds])


def outages(stage: Scene, server: RedisServer, entries: int, lengths: Sequence[float]) -> Metrics:
    """Kill a server for each of some lengths, in seconds.

    Besides entries of every second, as many of every hour become due in each outage.
    """
    wanted, hourly, waits = names(entries), list[str](), list[float]()
    stage.start_leader()
    first = stage.begin(wanted, 1.0)
    stage.ran_after(wanted, first + 1.0, PATIENCE)
    until = first + 3.0
    for number, length in enumerate(lengths):
        sleep_until(until)
        fresh = names(entries, f"h{number}-")
        hourly += fresh
        stage.put(fresh, HOUR, time.time() + 0.1 + length / 2)
        outage(server, length)
        waits.append(seconds_to_dispatch(stage, wanted))
        # The same on both sides, unless one needs longer.
        until = max(until + length + RECOVERY, time.time() + 1.0)
    until = float(int(until))
    sleep_until(until)
    stage.ran_after(wanted, until, PATIENCE)
    stage.ran_after(hourly, first, QUIET_OPEN)
    sleep_until(time.time() + 1.0)
    singles = once(hourly, stage.ledger.messages)
    return outage_metrics(stage, waits, singles, stage.count(wanted, 1.0, first, until))


def outage(server: RedisServer, seconds: float) -> None:
    """Kill a server, and start it again so many seconds later."""
    server.kill()
    # The length of the outage is the fault.
    time.sleep(seconds)
    server.restart()


def outage_metrics(
    stage: Scene, waits: Sequence[float], hourly: Counts, every_second: Counts
) -> Metrics:
    """Return the cells of outages; ``waits`` are the seconds from the end of each to a message."""
    return {
        "process exits": len(stage.beats.exits),
        "seconds until it dispatches again, worst": told_seconds(max(waits)),
        "entries of an hour due meanwhile": hourly.expected,
        "these: lost": hourly.missed,
        "these: doubled, same id": hourly.same_id,
        "these: doubled, another id": hourly.other_id,
        **{f"entries of a second: {name}": it for name, it in grid_metrics(every_second).items()},
    }


def seconds_to_dispatch(stage: Scene, entries: Sequence[str]) -> float:
    """Return how long it takes from now until one of these entries is sent."""
    started, wanted = time.monotonic(), set(entries)
    # The ledger may not have read all that was sent before.
    count = stage.sent()
    within(PATIENCE, lambda: any(one.entry in wanted for one in stage.ledger.since(count)))
    return time.monotonic() - started


def told_seconds(seconds: float) -> str:
    """Return seconds for the table; past the deadline nobody knows how many."""
    return f"{seconds:.1f}" if seconds < PATIENCE else f"more than {PATIENCE:.0f}"


def failover(side: Side) -> Metrics:
    """Kill the leader with the settings of a new project, and see when the standby goes on.

    Of the release only the time that its lock lives is told: the standby waits for its end.
    """
    with scene(side, {}) as stage:
        stage.begin(names(1), 1.0)
        leader = stage.start_leader()
        lives = stage.schedule.client.pttl(LOCK) / 1000
        name = "seconds until the standby dispatches"
        if side.name != "ours":
            return {name: f"not waited for: its lock lives {lives:,.0f} s"}
        stage.start()
        stage.ran_after(names(1), time.time(), PATIENCE)
        stage.beats.retire(leader)
        return {name: told_seconds(seconds_to_dispatch(stage, names(1)))}
