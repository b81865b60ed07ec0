"""The command line of the simulator."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from tests.simulation.engine import Engine
from tests.simulation.network import know_scripts
from tests.simulation.oracle import judge
from tests.simulation.runner import simulate
from tests.simulation.scenario import PROFILES, Scenario, generate
from tests.simulation.shrink import shrunk

__all__ = ("main",)


def main() -> None:
    """Run the command; exits with 1 when a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), action="append")
    parser.add_argument("--seeds", default="1:20", help="first:last, or one seed")
    parser.add_argument("--replay", type=Path, nargs="+", help="scenarios in files")
    parser.add_argument("--json", action="store_true", help="print one line of JSON a scenario")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--log", default="CRITICAL", help="level of the beats' log")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--keep", type=Path, help="write the shrunk scenarios of failures here")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log, stream=sys.stdout, format="%(levelname)s %(message)s")
    outcome: list[int] = []
    # Signal handlers belong to the main thread; the processes of a simulation have none.
    thread = threading.Thread(target=lambda: outcome.append(work(arguments)), daemon=True)
    thread.start()
    thread.join()
    sys.stdout.flush()
    # What was killed in a simulation is never resumed, not even to be cleaned up.
    os._exit(outcome[0] if outcome else 2)


def work(arguments: argparse.Namespace) -> int:
    """Run scenarios; return how the process ends."""
    know_scripts()
    failed = total = points = 0
    began = time.process_time()
    with ExitStack() as stack:
        engines = {name: stack.enter_context(Engine(name)) for name in ("redis", "broker")}
        for scenario in scenarios(arguments):
            total += 1
            record = simulate(scenario, engines)
            points += record.points
            wrong = judge(record)
            if arguments.json:
                print(json.dumps(wrong), flush=True)
                continue
            if arguments.trace:
                for at, who, what in record.trace:
                    print(f"{at / 1e6 - scenario.start:10.6f} {who}: {what}")
            if not wrong:
                continue
            failed += 1
            print(f"FAILED {scenario.profile} seed {scenario.seed}")
            for line in wrong[:6]:
                print("   ", line)
            if not arguments.no_shrink:
                small = shrunk(scenario, lambda one: bool(judge(simulate(one, engines))))
                print(small)
                for line in judge(simulate(small, engines)):
                    print("   ", line)
                if arguments.keep:
                    name = f"{scenario.profile}-{scenario.seed}.json"
                    (arguments.keep / name).write_text(small.to_json())
            sys.stdout.flush()
    spent = time.process_time() - began
    if not arguments.json:
        print(f"{total} scenarios, {failed} failed, {points} decision points, {spent:.1f} s of CPU")
    return 1 if failed else 0


def scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios that are asked for."""
    if arguments.replay:
        return [Scenario.from_json(path.read_text()) for path in arguments.replay]
    first, _, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    return [generate(seed, name) for name in arguments.profile or PROFILES for seed in seeds]
