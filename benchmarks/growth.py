"""Measures how the costs of RedBeat 3 and other schedulers grow with the number of entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .bench import Bench
from .rows import Finding, Row, Series, target_row
from .suite import Case

__all__ = ("growth", "peers")

NAMES = {
    "celery": "PersistentScheduler",
    "django": "django-celery-beat (SQLite)",
    "redisbeat": "redisbeat",
}
OURS, RELEASE = "RedBeat 3", "RedBeat 2.4.2"

#: Maximum number of due entries for RedBeat 2, which is too slow for more entries.
RELEASE_DUE = 10_000

#: Names of the plots. Each plot shows times for different numbers of due or stored entries.
#: The plots ``PEERS_DUE`` and ``PEERS_IDLE`` include schedulers other than RedBeat.
DUE, STORED, PEERS_DUE, PEERS_IDLE = "due", "stored", "peers-due", "peers-idle"


def growth(bench: Bench) -> Finding:
    """Measure ticks with up to 100,000 due entries, and idle ticks with up to a million entries."""
    due = bench.size(5, 3)
    counts = [10**power for power in range(1, due + 1)]
    stored = [0, *(10**power for power in range(3, bench.size(6, 3) + 1))]
    series = [line(bench, DUE, OURS, counts, due_of)]
    few = [count for count in counts if count <= RELEASE_DUE]
    series.append(line(bench, DUE, RELEASE, few, due_of))
    series.append(line(bench, STORED, OURS, stored, idle_of))
    series.append(line(bench, STORED, RELEASE, [count for count in stored if count < 1e6], idle_of))
    # The function scheduler_rows.idle() already returns the table row for idle ticks.
    return Finding([flat(series[0])], series)


def due_of(bench: Bench, name: str, count: int) -> float:
    """Return the seconds per entry of a tick with ``count`` due entries."""
    side = bench.ours if name == OURS else bench.release
    repeat = max(3, min(100, 1000 // count)) if count < RELEASE_DUE else 1
    return bench.case(side, Case("tick", count, repeat=repeat))["later_each"]


def idle_of(bench: Bench, name: str, count: int) -> float:
    """Return the seconds that a tick takes with ``count`` stored entries, none of which is due."""
    side = bench.ours if name == OURS else bench.release
    return bench.case(side, Case("idle", count, repeat=100))["each"]


def line(
    bench: Bench,
    plot: str,
    name: str,
    counts: Sequence[int],
    cost: Callable[[Bench, str, int], float],
) -> Series:
    """Measure the points of one line of a plot."""
    points = []
    for count in counts:
        bench.note(f"growth: {count:,} {plot}, {name}")
        points.append((float(count), cost(bench, name, count)))
    return Series(plot, name, points)


def flat(series: Series) -> Row:
    """Return the table row that shows whether the cost per due entry is constant.

    The row compares the last point of ``series`` with the first point of at least 1,000 entries.
    With fewer than 1,000 entries, the fixed cost of a tick dominates.
    """
    count, last = series.points[-1]
    base = next((y for x, y in series.points if x >= 1000), last)
    level = ("flat", lambda _ours, ratio: ratio >= 0.8)
    what = f"time per due entry with {count:,.0f} due entries"
    return target_row(what, "us", last, base, "1,000 due", *level)


def peers(bench: Bench) -> Finding:
    """Compare other schedulers with RedBeat 3 for increasing numbers of entries."""
    counts = [100] if bench.quick else [1000, 10_000, 100_000, 1_000_000]
    seconds = bench.size(15, 3)
    series, remarks, rows = [], [], []
    for plot, workload in ((PEERS_DUE, "tick"), (PEERS_IDLE, "idle")):
        mine = [(float(count), our_cost(bench, workload, count)) for count in counts[:3]]
        series.append(Series(plot, OURS, mine))
        for name, title in NAMES.items():
            points, peer_remarks = measure_peer(bench, name, workload, counts, seconds)
            series.append(Series(plot, title, points))
            remarks += [f"{title}, {workload}: {remark}" for remark in peer_remarks]
        rows += comparison(series[-len(NAMES) - 1 :], workload)
    return Finding(rows, series, remarks)


def our_cost(bench: Bench, workload: str, count: int) -> float:
    """Return the seconds of RedBeat 3 per due entry or, for the workload ``idle``, per tick."""
    cost = due_of if workload == "tick" else idle_of
    return cost(bench, OURS, count)


def measure_peer(
    bench: Bench, name: str, workload: str, counts: Sequence[int], seconds: int
) -> tuple[list[tuple[float, float]], list[str]]:
    """Measure another scheduler; return the points of its plot line, and remarks on its limits.

    ``counts`` are the numbers of entries to measure. The measurement ends if the scheduler fails,
    or if it cannot store the entries or send any message within ``seconds`` seconds.
    """
    points, remarks = [], []
    for count in counts:
        try:
            metrics = bench.peer(name, workload, count, seconds)
        except RuntimeError as error:
            remarks.append(
                f"the scheduler fails with {count:,} entries: {str(error).strip().splitlines()[-1]}"
            )
            break
        if metrics is None:
            remarks.append(f"{count:,} entries could not be stored within {seconds} s.")
            break
        sent = int(metrics["sent"])
        if workload == "tick" and not sent:
            remarks.append(f"none of {count:,} messages were sent within {seconds} s.")
            break
        points.append((float(count), metrics["each"]))
        if workload == "tick" and sent < count:
            remarks.append(
                f"only {sent:,} of {count:,} messages were sent within {seconds} s; "
                "the table shows the mean time per sent message."
            )
    return points, remarks


def comparison(series: Sequence[Series], workload: str) -> list[Row]:
    """Return a table row for each measured point of another scheduler, compared with RedBeat 3."""
    mine = dict(series[0].points)
    what = "{:,} due, per entry" if workload == "tick" else "idle tick, {:,} stored"
    return [
        target_row(what.format(int(count)), "us", mine.get(count), each, peer.name)
        for peer in series[1:]
        for count, each in peer.points
    ]
