"""``python -m benchmarks.faults`` compares RedBeat 3 with RedBeat 2 under faults."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from examples.embedded import EmbeddedRedis

from .__main__ import note, server_name
from .faultcases import Metrics, broker_away, failover, leader_fails, redis_killed, shared
from .faults_report import as_rst, as_text
from .sides import Side, install_peer, ours
from .suite import in_turn

__all__ = ("FULL", "QUICK", "Sizes", "plan", "run")

Case = Callable[[Side], Metrics]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the scenarios.

    Attributes:
        due: number of entries that are due at once when the leader fails.
        shared: number of entries in scenarios with four beats.
        shared_seconds: duration of scenarios with four beats, in seconds.
        fault_every: seconds between two faults in scenarios with four beats.
        kills: how many times the Redis server of the schedule is killed.
        away: duration of the outage of the broker, in seconds.
    """

    due: int
    shared: int
    shared_seconds: float
    fault_every: float
    kills: int
    away: float


FULL = Sizes(due=5000, shared=200, shared_seconds=30.0, fault_every=5.0, kills=5, away=10.0)
QUICK = Sizes(due=1000, shared=200, shared_seconds=10.0, fault_every=3.0, kills=2, away=3.0)
#: Number of entries that run every second in scenarios with outages.
OUTAGE_ENTRIES = 20


def plan(sizes: Sizes) -> dict[str, Case]:
    """Return a dict with the title and the function of each scenario."""
    middle = sizes.due * 2 // 5
    cases: dict[str, Case] = {}
    for sent in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        more = ", longer than the lock lives" if sent is signal.SIGSTOP else ""
        title = f"{sent.name}{more}: the leader, amid {sizes.due:,} due entries"
        cases[title] = partial(leader_fails, sent=sent, entries=sizes.due, after=middle)
    four = f"four beats, no lock, {sizes.shared} entries a second, {sizes.shared_seconds:g} s"
    each = partial(shared, entries=sizes.shared, seconds=sizes.shared_seconds)
    cases[f"{four}, calm"] = partial(each, fault_every=None)
    faulty = f"{four}, one killed, stopped or restarted every {sizes.fault_every:g} s"
    cases[faulty] = partial(each, fault_every=sizes.fault_every)
    title = f"Redis of the schedule killed {sizes.kills} times, back within 2 s"
    cases[title] = partial(redis_killed, entries=OUTAGE_ENTRIES, times=sizes.kills)
    cases[f"broker away for {sizes.away:g} s"] = partial(
        broker_away, entries=OUTAGE_ENTRIES, seconds=sizes.away
    )
    cases["SIGKILL of the leader, default settings"] = failover
    return cases


def run(
    cases: dict[str, Case], sides: Sequence[Side], tell: Callable[[str], None]
) -> dict[str, dict[str, Metrics]]:
    """Run all scenarios with both versions of RedBeat; return the cells of the table.

    The order of the versions alternates. ``tell`` is called with progress messages.
    """
    table: dict[str, dict[str, Metrics]] = {}
    for index, (title, case) in enumerate(cases.items()):
        table[title] = {}
        for side in in_turn(sides, index):
            tell(f"{index + 1} of {len(cases)}: {title}: {side.version}")
            table[title][side.name] = case(side)
    return table


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="Kill, pause and restart beats, Redis and the broker, with this project and "
        "with the released celery-redbeat, and count lost and duplicate messages. Takes about ten "
        "minutes. The first run downloads the release.",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes; takes five minutes")
    parser.add_argument(
        "--output", type=Path, help="write the table to this file, as reStructuredText"
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Install RedBeat 2, run all scenarios and print the table."""
    options = arguments(argv)
    # On SIGTERM, raise SystemExit, so that all started processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    note("installing the release for comparison")
    sides = (ours(), install_peer())
    with EmbeddedRedis() as server:
        name = server_name(server.url)
    table = run(plan(QUICK if options.quick else FULL), sides, note)
    print(as_text(table, name))
    if options.output:
        flags = "--quick" if options.quick else ""
        options.output.write_text(as_rst(table, name, flags), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
