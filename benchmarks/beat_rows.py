"""Measures the throughput, the lateness and the memory of complete beat processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .beats import BeatCase, run_beat
from .bench import Bench
from .delay import delayed
from .drain import drain_bare, drain_beats
from .rows import Finding, Row, target_row
from .scheduler_rows import NETWORK, RELEASE

__all__ = ("burst", "far_broker", "lateness", "real_beat", "regular", "two_beats")

BARE = "bare send_task loop"


def real_beat(bench: Bench) -> Finding:
    """Compare the throughput of a beat with that of a loop that only sends tasks to Redis."""
    count, plain = bench.size(5000, 500), bench.scene()
    configured = bench.scene(**bench.settings)
    jobs: list[Callable[[], float]] = [
        lambda: drain_beats(bench.ours, plain, configured, count),
        lambda: drain_bare(bench.ours, plain, plain, count),
        lambda: drain_beats(bench.release, plain, plain, count),
    ]
    bench.note(f"comparing a beat with a loop that only sends tasks, for {count:,} due entries")
    mine, bare, theirs = bench.times(3, jobs, lambda job: job())
    what = f"a real beat sends {count:,} due entries"
    goal = ("at most 1.10 times the time of the bare loop", lambda _ours, ratio: ratio >= 1 / 1.10)
    return Finding(
        [
            target_row(what, "s", mine, bare, BARE, *goal),
            target_row(what, "s", mine, theirs, RELEASE),
        ]
    )


def two_beats(bench: Bench) -> Finding:
    """Compare the throughput of two beats and of one beat; all beats run without a lock."""
    count, plain = bench.size(5000, 500), bench.scene()
    unlocked = bench.scene(redbeat_lock_key=None, **bench.settings)
    bench.note(f"comparing two beats with one beat, for {count:,} due entries")
    one, two = bench.times(
        3, (1, 2), lambda beats: drain_beats(bench.ours, plain, unlocked, count, beats)
    )
    what = f"two active-active beats send {count:,} due entries"
    goal = ("at least 1.7 times as fast as one beat", lambda _ours, ratio: ratio >= 1.7)
    return Finding([target_row(what, "s", two, one, "one beat", *goal)])


def far_broker(bench: Bench) -> Finding:
    """Measure the throughput of a beat with 1 ms of network latency to the broker."""
    count, plain, goal = bench.size(5000, 500), bench.scene(), "5 times as fast"
    with delayed(bench.port, NETWORK) as port:
        far, near = f"redis://127.0.0.1:{port}/1", plain.redis
        delayed_scene = type(plain)(near, far, dict(bench.settings))
        jobs: list[Callable[[], float]] = [
            lambda: drain_beats(bench.ours, plain, delayed_scene, count),
            lambda: drain_bare(bench.ours, plain, delayed_scene, count),
        ]
        bench.note(f"measuring {count:,} due entries with 1 ms of network latency to the broker")
        mine, bare = bench.times(2, jobs, lambda job: job())
    what = f"a beat sends {count:,} due entries with 1 ms of network latency to the broker"
    reached: Any = lambda _ours, ratio: ratio >= 5  # noqa: E731
    remark = f"Beats published with {dict(bench.settings) or 'their default settings'}."
    return Finding([target_row(what, "s", mine, bare, BARE, goal, reached)], remarks=[remark])


def lateness(bench: Bench) -> Finding:
    """Measure the lateness of runs at a steady rate, without a broker."""
    pace, seconds = bench.size(1000, 200), bench.size(60, 5)
    bench.note(f"measuring {pace:,} dispatches a second for {seconds} s")
    metrics = bench.module("paced", bench.url, "--entries", pace, "--seconds", seconds)
    title = f"{pace:,} dispatches a second for {seconds} s, without a broker"
    burst, every = pace // 10, 0.1
    bench.note(f"measuring {burst} entries every {every} s for {seconds} s")
    options = ("--entries", burst, "--seconds", seconds, "--every", every)
    together = bench.module("paced", bench.url, *options)
    joint = f"{burst} entries run at once every {every} s for {seconds} s, without a broker"
    late = ("<= 20 ms", lambda ours, _ratio: ours <= 0.02)
    later = ("< 50 ms", lambda ours, _ratio: ours < 0.05)
    lost = ("0", lambda ours, _ratio: ours == 0)
    return Finding(
        [
            target_row(f"{title}: late, p99", "ms", metrics["p99"], None, "", *late),
            target_row(f"{title}: late, median", "ms", metrics["p50"]),
            target_row(f"{title}: lost", "count", metrics["lost"], None, "", *lost),
            target_row(f"{joint}: late, p99", "ms", together["p99"], None, "", *later),
            target_row(f"{joint}: lost", "count", together["lost"], None, "", *lost),
        ]
    )


def regular(bench: Bench) -> Finding:
    """Measure how regularly messages arrive in the queue if entries run every second."""
    case = BeatCase(bench.size(100, 20), bench.size(20, 3))
    bench.note(f"measuring beats with {case.entries} entries a second for {case.seconds} s")
    mine, theirs = (run_beat(side, bench.url, case) for side in (bench.ours, bench.release))
    even = run_beat(bench.ours, bench.url, replace(case, spread=True))
    joint = ("<= 25 ms", lambda ours, _ratio: ours <= 0.025)
    single = ("<= 6 ms", lambda ours, _ratio: ours <= 0.006)
    title = f"a real beat runs {case.entries} entries a second"
    share = (mine["share"], theirs["share"])
    return Finding(
        [
            Row(
                f"{title}: share of runs that were sent",
                share[0],
                "share",
                share[1],
                RELEASE,
                None,
                "100 %",
                full(*share),
            ),
            target_row(
                f"{title}: time between two runs of an entry, p99",
                "ms",
                mine["gap_p99"],
                theirs["gap_p99"],
                RELEASE,
            ),
            target_row(
                f"{title}, all at the same instant: lateness of messages, p99",
                "ms",
                mine["late_p99"],
                None,
                "",
                *joint,
            ),
            target_row(
                f"{title}, evenly distributed: lateness of messages, p99",
                "ms",
                even["late_p99"],
                None,
                "",
                *single,
            ),
        ]
    )


def full(ours: float, _theirs: float) -> bool:
    """Return whether a message arrived for each expected run."""
    return ours >= 1.0


def burst(bench: Bench) -> Finding:
    """Measure the memory of a beat while many entries are due at once."""
    count = bench.size(100_000, 5000)
    bench.note(f"measuring a burst of {count:,} due entries")
    metrics = bench.module("burst", bench.url, "--entries", count)
    title = f"burst of {count:,} due entries: memory of a beat above its idle memory"
    goal = ("<= 40 MiB", lambda ours, _ratio: ours <= 40 * 2**20)
    return Finding(
        [
            target_row(f"{title}, peak", "MiB", metrics["above"], None, "", *goal),
            target_row(f"{title}, afterwards", "MiB", metrics["stays"]),
        ]
    )
