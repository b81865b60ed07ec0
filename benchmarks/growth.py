"""How costs grow with the number of entries, ours and those of other schedulers."""

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

#: Due entries of which the release is still asked: it takes long.
RELEASE_DUE = 10_000

#: The plots: due entries and stored ones, and the same beside the others.
DUE, STORED, PEERS_DUE, PEERS_IDLE = "due", "stored", "peers-due", "peers-idle"


def growth(bench: Bench) -> Finding:
    """Cost per due entry from 10 to 100,000 due, cost of a tick from 0 to 1,000,000 stored."""
    due = bench.size(5, 3)
    counts = [10**power for power in range(1, due + 1)]
    stored = [0, *(10**power for power in range(3, bench.size(6, 3) + 1))]
    series = [line(bench, DUE, OURS, counts, due_of)]
    few = [count for count in counts if count <= RELEASE_DUE]
    series.append(line(bench, DUE, RELEASE, few, due_of))
    series.append(line(bench, STORED, OURS, stored, idle_of))
    series.append(line(bench, STORED, RELEASE, [count for count in stored if count < 1e6], idle_of))
    # Of idle ticks the row is beside the targets: that takes both in turn.
    return Finding([flat(series[0])], series)


def due_of(bench: Bench, name: str, count: int) -> float:
    """Return the seconds per entry of a tick with so many due."""
    side = bench.ours if name == OURS else bench.release
    repeat = max(3, min(100, 1000 // count)) if count < RELEASE_DUE else 1
    return bench.case(side, Case("tick", count, repeat=repeat))["later_each"]


def idle_of(bench: Bench, name: str, count: int) -> float:
    """Return the seconds of a tick with so many stored and none due."""
    side = bench.ours if name == OURS else bench.release
    return bench.case(side, Case("idle", count, repeat=100))["each"]


def line(
    bench: Bench,
    plot: str,
    name: str,
    counts: Sequence[int],
    cost: Callable[[Bench, str, int], float],
) -> Series:
    """Measure one line of a plot."""
    points = []
    for count in counts:
        bench.note(f"growth: {count:,} {plot}, {name}")
        points.append((float(count), cost(bench, name, count)))
    return Series(plot, name, points)


def flat(series: Series) -> Row:
    """Return the row that tells whether the cost per due entry is flat.

    A handful of entries share the price of a tick, so what the last point of the line is beside is
    the first of 1,000 or more.
    """
    count, last = series.points[-1]
    beside = next((y for x, y in series.points if x >= 1000), last)
    level = ("flat", lambda _ours, ratio: ratio >= 0.8)
    what = f"time per due entry, {count:,.0f} due"
    return target_row(what, "us", last, beside, "1,000 due", *level)


def peers(bench: Bench) -> Finding:
    """The same for other schedulers, each as far as it goes in the time that it is given."""
    counts = [100] if bench.quick else [1000, 10_000, 100_000, 1_000_000]
    seconds = bench.size(15, 3)
    series, remarks, rows = [], [], []
    for plot, workload in ((PEERS_DUE, "tick"), (PEERS_IDLE, "idle")):
        mine = [(float(count), own(bench, workload, count)) for count in counts[:3]]
        series.append(Series(plot, OURS, mine))
        for name, title in NAMES.items():
            points, told = walk(bench, name, workload, counts, seconds)
            series.append(Series(plot, title, points))
            remarks += [f"{title}, {workload}: {remark}" for remark in told]
        rows += beside(series[-len(NAMES) - 1 :], workload)
    return Finding(rows, series, remarks)


def own(bench: Bench, workload: str, count: int) -> float:
    """Return what we take for the same."""
    cost = due_of if workload == "tick" else idle_of
    return cost(bench, OURS, count)


def walk(
    bench: Bench, name: str, workload: str, counts: Sequence[int], seconds: int
) -> tuple[list[tuple[float, float]], list[str]]:
    """Return the points of a peer up to where it is too slow, and what is to be said about them."""
    points, remarks = [], []
    for count in counts:
        try:
            found = bench.peer(name, workload, count, seconds)
        except RuntimeError as error:
            remarks.append(f"{count:,} entries: it fails, {str(error).strip().splitlines()[-1]}")
            break
        if found is None:
            remarks.append(f"{count:,} entries are not ready in {seconds} s.")
            break
        sent = int(found["sent"])
        if workload == "tick" and not sent:
            remarks.append(f"none of {count:,} is sent in {seconds} s.")
            break
        points.append((float(count), found["each"]))
        if workload == "tick" and sent < count:
            remarks.append(f"{sent:,} of {count:,} are sent in {seconds} s; their mean is shown.")
    return points, remarks


def beside(series: Sequence[Series], workload: str) -> list[Row]:
    """Return a row for each peer and number that both have."""
    mine = dict(series[0].points)
    what = "{:,} due, per entry" if workload == "tick" else "idle tick, {:,} stored"
    return [
        target_row(what.format(int(count)), "us", mine.get(count), each, peer.name)
        for peer in series[1:]
        for count, each in peer.points
    ]
