"""``python -m benchmarks.faults`` compares how RedBeat 3 and RedBeat 2 handle faults."""

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
from .pages import put
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
    """Return a dict: title of a scenario -> function that runs the scenario."""
    middle = sizes.due * 2 // 5
    cases: dict[str, Case] = {}
    for sent in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        more = " beyond the lock timeout" if sent is signal.SIGSTOP else ""
        title = f"{sent.name}{more}: the leader fails while {sizes.due:,} entries are due"
        cases[title] = partial(leader_fails, sent=sent, entries=sizes.due, after=middle)
    four = f"four beats without a lock, {sizes.shared} runs a second for {sizes.shared_seconds:g} s"
    each = partial(shared, entries=sizes.shared, seconds=sizes.shared_seconds)
    cases[f"{four}, without faults"] = partial(each, fault_every=None)
    faulty = f"{four}, one beat killed, paused or terminated every {sizes.fault_every:g} s"
    cases[faulty] = partial(each, fault_every=sizes.fault_every)
    title = f"the Redis of the schedule is killed {sizes.kills} times and restarted within 2 s"
    cases[title] = partial(redis_killed, entries=OUTAGE_ENTRIES, times=sizes.kills)
    cases[f"the broker is down for {sizes.away:g} s"] = partial(
        broker_away, entries=OUTAGE_ENTRIES, seconds=sizes.away
    )
    cases["SIGKILL of a leader with default settings"] = failover
    return cases


def run(
    cases: dict[str, Case], sides: Sequence[Side], tell: Callable[[str], None]
) -> dict[str, dict[str, Metrics]]:
    """Run all scenarios with RedBeat 3 and RedBeat 2; return the cells of the table.

    RedBeat 3 and RedBeat 2 take turns in running first. ``tell`` is a function that prints progress
    messages.
    """
    table: dict[str, dict[str, Metrics]] = {}
    for index, (title, case) in enumerate(cases.items()):
        table[title] = {}
        for side in in_turn(sides, index):
            tell(f"{index + 1} of {len(cases)}: {title}: {side.version}")
            table[title][side.name] = case(side)
    return table


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command-line options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="Kill, pause and restart beats, Redis and the broker, with RedBeat 3 and with "
        "RedBeat 2, and count lost and duplicate messages. The command takes about ten minutes. "
        "The first run of the command downloads RedBeat 2.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="use smaller sizes, so that the command takes five minutes",
    )
    parser.add_argument(
        "--docs", type=Path, help="write the table into the manual in this directory"
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Install RedBeat 2, run all scenarios and print the table."""
    options = arguments(argv)
    # On SIGTERM, raise SystemExit, so that all started processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    note("installing RedBeat 2 for the comparison")
    sides = (ours(), install_peer())
    with EmbeddedRedis() as server:
        name = server_name(server.url)
    table = run(plan(QUICK if options.quick else FULL), sides, note)
    print(as_text(table, name))
    if options.docs:
        flags = "--quick" if options.quick else ""
        put(options.docs / "tested.rst", "faults-results", as_rst(table, name, flags))


if __name__ == "__main__":
    main(sys.argv[1:])
