"""The command line of the simulator."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shlex
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.clock_changes import ZONES
from tests.simulation.engine import Engine
from tests.simulation.exhaustive import BEATS, Case, explore, judged
from tests.simulation.lookback import SPANS, first_backfills, violations
from tests.simulation.record import Record
from tests.simulation.runner import simulate
from tests.simulation.scenario import PROFILES, STEP_FAULTS, Scenario, generate
from tests.simulation.shim import ShimmedEngine
from tests.simulation.shrink import kind_of, shrunk
from tests.simulation.world import WINDOW
from tests.simulation.years import changing_zones, years

#: The modes of the exhaustive search (with a lock, without a lock), by option value.
MODES = {"both": (True, False), "lock": (True,), "no-lock": (False,)}
#: The brokers of the exhaustive search (whether they are separate), by option value.
BROKERS = {"both": (False, True), "same": (False,), "separate": (True,)}
#: The first year of the sparse profile.
FIRST_YEAR = 2027


def main() -> None:
    """Run the command; the exit code is 1 if a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), action="append")
    parser.add_argument("--seeds", default="1:20", help="first:last, or one seed")
    parser.add_argument("--exhaustive", action="store_true", help="all orders with one fault")
    parser.add_argument("--switches", type=int, default=2, help="most switches of such an order")
    parser.add_argument("--mode", choices=("both", "lock", "no-lock"), default="both")
    parser.add_argument("--broker", choices=sorted(BROKERS), default="both")
    parser.add_argument("--fault", choices=sorted(STEP_FAULTS), action="append", default=[])
    parser.add_argument("--beat", choices=BEATS, action="append", help="only faults of this beat")
    parser.add_argument(
        "--piece", default="1/1", help="of the orders, only those of piece NUMBER/PIECES"
    )
    parser.add_argument("--case", help="one case of the exhaustive search, as it prints it")
    parser.add_argument("--years", type=int, help="live through this many years with one beat")
    parser.add_argument("--zones", help="in these zones only, separated by commas")
    parser.add_argument("--all-zones", action="store_true", help="in all zones whose clocks change")
    parser.add_argument(
        "--look-back", type=int, metavar="N", help="simulate and backfill N spans; 0: a short one"
    )
    parser.add_argument(
        "--first-backfills",
        type=int,
        metavar="N",
        help="of new entries, in N spans; 0: short",
    )
    parser.add_argument("--replay", type=Path, nargs="+", help="scenarios in files")
    parser.add_argument("--json", action="store_true", help="print one line of JSON a scenario")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--shim", action="store_true", help="servers with a clock of C; needs cc")
    parser.add_argument("--log", default="CRITICAL", help="level of the beats' log")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--keep", type=Path, help="write the shrunk scenarios of failures here")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log, stream=sys.stdout, format="%(levelname)s %(message)s")
    outcome: list[int] = []
    # In the main thread, the simulated beats would install signal handlers.
    thread = threading.Thread(target=lambda: outcome.append(work(arguments)), daemon=True)
    thread.start()
    thread.join()
    sys.stdout.flush()
    # Processes killed in a simulation must never resume, not even to clean up.
    os._exit(outcome[0] if outcome else 2)


def work(arguments: argparse.Namespace) -> int:
    """Run the requested scenarios and return the exit code."""
    summary = Summary()
    with ExitStack() as stack:
        kind = ShimmedEngine if arguments.shim else Engine
        engines = {name: stack.enter_context(kind(name)) for name in ("redis", "broker")}
        if arguments.exhaustive:
            return explore_all(engines, arguments)
        if arguments.look_back is not None or arguments.first_backfills is not None:
            return look_back(engines, arguments)
        for selection in selections(arguments):
            scenario = selection.scenario
            if arguments.stop:
                print(f"begins {scenario.profile} {scenario.seed}", flush=True)
            record, wrong = examined(selection, arguments, engines)
            summary.add(record, bool(wrong))
            show(record, wrong, arguments)
            if wrong and not arguments.json:
                report(selection, wrong, arguments, engines)
            if wrong and arguments.stop:
                break
    if arguments.json:
        return 0
    print(summary)
    return 1 if summary.failed else 0


def examined(
    selection: Selection, arguments: argparse.Namespace, engines: dict[str, Engine]
) -> tuple[Record, list[str]]:
    """Run a scenario and return its record and its violations."""
    try:
        record = simulate(selection.scenario, engines)
        return record, judged(record)
    except Exception:
        print(f"The simulator failed:\n{commands(selection.options, arguments)}", flush=True)
        raise


def show(record: Record, wrong: list[str], arguments: argparse.Namespace) -> None:
    """Print the output that the command line requests for a scenario."""
    if arguments.json:
        print(json.dumps(wrong), flush=True)
    if arguments.trace:
        for at, who, what in record.trace:
            print(f"{at / 1e6 - record.scenario.start:10.6f} {who}: {what}")


@dataclass(frozen=True, slots=True)
class Selection:
    """A scenario, the options that select it, and the name of a file for it."""

    scenario: Scenario
    options: tuple[str, ...]
    name: str


def commands(options: Sequence[str], arguments: argparse.Namespace) -> str:
    """Return the command that replays a selected scenario, and the one that shrinks it."""
    words = [".venv/bin/python", "-m", "tests.simulation", *options]
    words += ["--shim"] if arguments.shim else []
    replay = shlex.join([*words, "--no-shrink", "--trace"])
    shrink = shlex.join([*words, "--keep", str(arguments.keep or tempfile.gettempdir())])
    return f"    replay: {replay}\n    shrink: {shrink}"


def report(
    selection: Selection,
    wrong: list[str],
    arguments: argparse.Namespace,
    engines: dict[str, Engine],
) -> None:
    """Print the violations of a scenario, and the smallest scenario that fails like the first."""
    scenario = selection.scenario
    print(f"FAILED {scenario.profile} seed {scenario.seed}")
    for line in wrong[:6]:
        print("   ", line)
    print(commands(selection.options, arguments))
    if not arguments.no_shrink:
        kind = kind_of(wrong[0])

        def fails(one: Scenario) -> bool:
            return kind in map(kind_of, judged(simulate(one, engines)))

        small = shrunk(scenario, fails)
        print(small)
        for line in judged(simulate(small, engines)):
            print("   ", line)
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            path = arguments.keep / f"{selection.name}.json"
            path.write_text(small.to_json())
            print(f"    kept: {path}")
    sys.stdout.flush()


class Summary:
    """Totals of the completed simulations."""

    def __init__(self) -> None:
        self.scenarios = self.failed = self.switches = 0
        self.points = self.looks = self.requests = 0
        self.orders: set[int] = set()
        self.struck: Counter[str] = Counter()
        self._began = cpu_seconds()

    def add(self, record: Record, failed: bool) -> None:
        """Count a simulation."""
        self.scenarios += 1
        self.failed += failed
        self.points += record.points
        self.looks += record.looks
        self.requests += record.requests
        self.switches += record.switches
        self.orders |= record.orders
        self.struck.update(record.struck)

    def __str__(self) -> str:
        spent = cpu_seconds() - self._began
        rate, points = 60 * self.points / spent, max(self.points, 1)
        others = self.points - self.looks - self.requests
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.struck.items()))
        return (
            f"{self.scenarios} scenarios, {self.failed} failed; {self.points} decision points "
            f"({self.looks / points:.0%} looks at a clock, {self.requests / points:.0%} requests, "
            f"{others / points:.0%} waits and connections), {rate:.0f} a minute of CPU with the "
            f"servers ({spent:.1f} s); {self.switches} changes of process, "
            f"{len(self.orders)} different orders of {WINDOW} requests; "
            f"{self.struck.total()} faults: {faults or 'none'}"
        )


def cpu_seconds() -> float:
    """Return the CPU time of this program and of the servers that it has ended, in seconds."""
    servers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + servers.ru_utime + servers.ru_stime


def explore_all(engines: dict[str, Engine], arguments: argparse.Namespace) -> int:
    """Run all cases of the exhaustive search and return the exit code."""
    began = time.process_time()
    modes = MODES[arguments.mode], BROKERS[arguments.broker]
    faults = arguments.fault, arguments.beat or BEATS
    number, _, pieces = arguments.piece.partition("/")
    piece = (int(number), int(pieces))
    found = explore(engines, arguments.switches, *modes, *faults, piece)
    for case, wrong in found.failures[:10]:
        print(f"FAILED {case}")
        for line in wrong:
            print("   ", line)
        print(commands(("--case", case.text), arguments))
    spent = time.process_time() - began
    struck = found.struck.total()
    print(
        f"{found.runs} orders and faults (piece {arguments.piece} of {found.with_switches} with "
        f"switches), {struck} faults struck, {len(found.failures)} failed, "
        f"{found.points} decision points, {spent:.1f} s of CPU"
    )
    return 1 if found.failures else 0


def look_back(engines: dict[str, Engine], arguments: argparse.Namespace) -> int:
    """Compare simulations or backfills with beats in some spans; return the exit code."""
    check, count = violations, arguments.look_back
    if count is None:
        check, count = first_backfills, arguments.first_backfills
    spans = SPANS[: count or 1]
    wrong = [line for span in spans for line in check(engines, *span, short=not count)]
    for line in wrong:
        print(f"FAILED {line}")
    print(f"{len(spans)} spans, {len(wrong)} wrong")
    return 1 if wrong else 0


def selections(arguments: argparse.Namespace) -> list[Selection]:
    """Return the scenarios that the command line selects."""
    if arguments.case:
        return [
            Selection(Case.from_text(arguments.case).scenario(), ("--case", arguments.case), "case")
        ]
    if arguments.years:
        zones: Sequence[str] = ZONES
        if arguments.zones:
            zones = arguments.zones.split(",")
        elif arguments.all_zones:
            zones = changing_zones(FIRST_YEAR, arguments.years)
        options = "--years", str(arguments.years), "--zones", ",".join(zones)
        return [Selection(years(FIRST_YEAR, arguments.years, zones), options, "years")]
    if arguments.replay:
        return [
            Selection(Scenario.from_json(path.read_text()), ("--replay", str(path)), path.stem)
            for path in arguments.replay
        ]
    first, _, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    return [
        Selection(generate(seed, name), ("--profile", name, "--seeds", str(seed)), f"{name}-{seed}")
        for seed in seeds
        for name in arguments.profile or PROFILES
    ]
