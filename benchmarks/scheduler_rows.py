"""Measures the scheduler alone: no messages are published."""

from __future__ import annotations

import subprocess
import time

from .bench import Bench
from .delay import delayed
from .metering import Metrics
from .rows import Finding, Row, target_row
from .sides import PEER_VERSION, Side
from .suite import Case
from .timing import CASES, measure

__all__ = ("crontab", "due_entry", "far_redis", "idle", "imports", "memory", "save", "startup")

#: The name of RedBeat 2 in the results table.
RELEASE = PEER_VERSION

#: Simulated network latency, in seconds per round trip.
NETWORK = 1e-3


def due_entry(bench: Bench) -> Finding:
    """Measure the scheduler's time per due entry, without publishing."""
    rows, count = [], bench.size(5000, 500)
    for kind in ("interval", "crontab"):
        # In many short rounds, other load on the machine affects RedBeat 3 and RedBeat 2 equally.
        mine, theirs = bench.both(Case("tick", count, schedule=kind, repeat=1), rounds=7)
        what = f"scheduler time per due entry, {count:,} entries due ({kind})"
        per_entry = (mine["later_each"], theirs["later_each"], RELEASE)
        goal = ("<= 25 µs, 15 times less", lambda ours, ratio: ours <= 25e-6 and ratio >= 15)
        rows.append(target_row(what, "us", *per_entry, *(goal if kind == "interval" else ())))
        server = (mine["redis_each"], theirs["redis_each"], RELEASE)
        rows.append(
            target_row(
                f"time of Redis per due entry, {count:,} entries due ({kind})", "us", *server
            )
        )
        trips = (mine["round_trips"], theirs["round_trips"], RELEASE)
        rows.append(
            target_row(
                f"round trips of a tick with {count:,} due entries ({kind})", "count", *trips
            )
        )
    return Finding(rows)


def far_redis(bench: Bench) -> Finding:
    """Measure the scheduler's time per due entry with network latency to Redis."""
    count = bench.size(5000, 500)
    with delayed(bench.port, NETWORK) as port:
        url = f"redis://127.0.0.1:{port}/0"
        mine = bench.times(
            3, [bench.ours], lambda side: bench.case(side, Case("tick", count), url)["later_each"]
        )[0]
        few = Case("tick", bench.size(500, 50), repeat=1)
        theirs = bench.case(bench.release, few, url)["later_each"]
    what = f"scheduler time per due entry, {count:,} entries due, 1 ms of network latency to Redis"
    goal = ("<= 40 µs", lambda ours, _ratio: ours <= 40e-6)
    return Finding([target_row(what, "us", mine, theirs, RELEASE, *goal)])


def startup(bench: Bench) -> Finding:
    """Measure how long a beat with many static entries takes to start."""
    count = bench.size(100_000, 1000)
    mine, theirs = bench.both(Case("startup", count), rounds=1)
    title = f"start of a beat with {count:,} static entries"
    return Finding(
        [
            target_row(
                f"{title}, {kind}",
                "s",
                mine[metric],
                theirs[metric],
                RELEASE,
                f"{least} times less",
                lambda _ours, ratio, least=least: ratio >= least,  # type: ignore[misc]
            )
            for kind, metric, least in (("none stored", "cold", 12), ("unchanged", "warm", 16))
        ]
    )


def save(bench: Bench) -> Finding:
    """Measure the time to save entries one by one, and to save many entries at once."""
    mine, theirs = bench.both(Case("save", bench.size(1000, 100)), rounds=5)
    one, base = theirs["new_each"], "2.4.2, save()"
    faster = ("not slower", lambda _ours, ratio: ratio >= 1.0)
    goal = ("10 times less", lambda _ours, ratio: ratio >= 10)
    trips = (mine["new_round_trips"], theirs["new_round_trips"], RELEASE, "1", equals_one)
    again = (mine["again_each"], theirs["again_each"], RELEASE)
    return Finding(
        [
            target_row("save() of a new entry", "us", mine["new_each"], one, RELEASE, *faster),
            target_row("round trips of save()", "count", *trips),
            target_row("save() of a new object that replaces a stored entry", "us", *again),
            target_row("save_all(), per new entry", "us", mine["all_each"], one, base, *goal),
        ]
    )


def equals_one(ours: float, _ratio: float) -> bool:
    """Return whether the value of RedBeat 3 is 1."""
    return ours == 1


def idle(bench: Bench) -> Finding:
    """Measure a tick without due entries, for an empty schedule and for a very large schedule."""
    count = bench.size(1_000_000, 10_000)
    mine, theirs = bench.both(Case("idle", count, repeat=200), rounds=1)
    alone = bench.both(Case("idle", bench.size(20_000, 2_000), repeat=200, lock=False), rounds=1)
    title = f"idle tick, {count:,} stored"
    trips = (mine["round_trips"], theirs["round_trips"], RELEASE, "1", equals_one)
    growth = ("no growth", lambda _ours, ratio: ratio >= 0.8)
    return Finding(
        [
            target_row(f"{title}: round trips", "count", *trips),
            target_row(title, "us", mine["each"], mine["none"], "none stored", *growth),
            *compared(title, mine, theirs),
            *compared("idle tick without a lock", *alone),
        ]
    )


def compared(title: str, mine: Metrics, theirs: Metrics) -> list[Row]:
    """Return two rows about idle ticks: the time of a tick, and the CPU time of Redis."""
    return [
        target_row(title, "us", mine["each"], theirs["each"], RELEASE),
        target_row(f"{title}: Redis", "us", mine["redis_each"], theirs["redis_each"], RELEASE),
    ]


#: Memory sizes count as equal if their ratio is at least this value.
#: The memory of a sorted set is partly random, and the allocator rounds sizes up.
EQUAL_MEMORY = 0.97


def memory(bench: Bench) -> Finding:
    """Measure how much memory Redis needs per entry."""
    mine, theirs = bench.both(Case("memory", bench.size(5000, 500)), rounds=1)
    goal = ("not more", lambda _ours, ratio: ratio >= EQUAL_MEMORY)
    saved = (mine["saved_each"], theirs["saved_each"], RELEASE, *goal)
    ran = (mine["ran_each"], theirs["ran_each"], RELEASE)
    return Finding(
        [
            target_row("memory of Redis per entry after save()", "bytes", *saved),
            target_row("memory of Redis per entry after a run", "bytes", *ran),
        ]
    )


def crontab(bench: Bench) -> Finding:
    """Compare how fast RedBeat 3 and Celery compute a next run."""
    rounds, calls = bench.size(15, 3), bench.size(1000, 100)
    bench.note("next runs")
    goal = ("5 times less", lambda _ours, ratio: ratio >= 5)
    rows = []
    for case in CASES:
        result = measure(case, rounds, calls)
        what, values = f"next run of {case.title}", (result.ours, result.celery, "Celery")
        rows.append(target_row(what, "us", *values, *(goal if "*" in case.title else ())))
    return Finding(rows)


def timed(side: Side, code: str) -> float:
    """Return the seconds that a new interpreter needs to start and run ``code``."""
    started = time.perf_counter()
    variables = side.environment()
    subprocess.run([side.python, "-c", code], check=True, env=variables, cwd="/", timeout=60)
    return time.perf_counter() - started


def imports(bench: Bench) -> Finding:
    """Measure how much time the import of the scheduler adds to the start of ``celery beat``."""
    celery = "import celery.bin.celery, celery.apps.beat, celery.beat, redis"
    bench.note("imports")
    sides = [
        (bench.ours, celery),
        (bench.ours, f"{celery}, redbeat.schedulers"),
        (bench.release, celery),
        (bench.release, f"{celery}, redbeat.schedulers"),
    ]
    our_base, mine, their_base, theirs = bench.times(11, sides, lambda job: timed(*job))
    our_share, their_share = max(mine - our_base, 0.0), max(theirs - their_base, 0.0)
    return Finding(
        [
            target_row("time to import Celery beat and RedBeat", "ms", mine, theirs, RELEASE),
            target_row("time to import only RedBeat", "ms", our_share, their_share, RELEASE),
        ]
    )
