"""``python -m tests.simulation.mutate``: breaks RedBeat on purpose and checks what detects it.

Each mutant is applied to a copy of the package. The simulator runs with this copy: first the
scenario that detected the mutant last time, then others. Then the tests that the mutant names run.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final

from tests.simulation.mutants import MUTANTS, Mutant

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "tests" / "simulation" / "mutants.csv"
COLUMNS: Final = ("Mutant", "What is broken", "File", "Killed by")

#: Seconds of CPU time after which a program with a mutant is considered hanging.
CPU_LIMIT: Final = 100
#: Seconds after which a waiting program is ended, even on a busy machine.
LIMIT: Final = 1500

#: Prefix of killers that are tests. A killer is a scenario or a test that detects a mutant.
TESTS: Final = "tests/"
#: Prefix of killers that are options of the simulator.
OPTIONS: Final = "--"
SURVIVED: Final = "nobody"


@dataclass(frozen=True, slots=True)
class Result:
    """The killer of a mutant, and the CPU time in seconds until the mutant was detected."""

    mutant: Mutant
    killer: str
    seconds: float


def main() -> None:
    """Run the command; the exit code is 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutate", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; see --list")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument(
        "--piece", default="1/1", help="of the mutants, only those of piece NUMBER/PIECES"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all mutants")
    parser.add_argument("--profile", action="append", help="search with these profiles only")
    parser.add_argument("--seeds", default="1:4", help="search with these seeds: first:last")
    parser.add_argument("--again", action="store_true", help="do not begin with known killers")
    parser.add_argument("--write", action="store_true", help=f"update {TABLE.relative_to(ROOT)}")
    parser.add_argument("-j", type=int, default=1, dest="jobs", help="mutants at a time")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if arguments.all or mutant.name in arguments.names]
    unknown = {*arguments.names} - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"there is no mutant named {', '.join(sorted(unknown))}; see --list")
    if arguments.list:
        print(*(f"{mutant.name}: {mutant.broken}" for mutant in MUTANTS), sep="\n")
        return
    number, pieces = map(int, arguments.piece.split("/"))
    mutants = mutants[number - 1 :: pieces]
    known = {} if arguments.again else known_killers()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trials = pool.map(lambda mutant: Trial(mutant, known, arguments).run(), mutants)
        results = [reported(result) for result in trials]
    if arguments.write:
        write_table(results, bool(arguments.profile))
    survivors = [result.mutant.name for result in results if result.killer == SURVIVED]
    total = sum(result.seconds for result in results)
    print(f"{len(results)} mutants, {len(survivors)} survived, {total:.0f} s of CPU")
    sys.exit(1 if survivors else 0)


def reported(result: Result) -> Result:
    """Print a result and return it."""
    print(f"{result.mutant.name:<36} {result.killer:<58} {result.seconds:6.1f} s", flush=True)
    return result


class Trial:
    """Searches for a killer (a scenario or test that fails) of one mutant."""

    #: The tests that may kill, in pytest's notation.
    marked = "not long"

    def __init__(
        self, mutant: Mutant, known: dict[str, str], arguments: argparse.Namespace
    ) -> None:
        self.mutant, self.arguments = mutant, arguments
        self.known = known.get(mutant.name, "")
        self.spent = 0.0

    def run(self) -> Result:
        """Return the first killer found for the mutant."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as name:
            root = Path(name)
            make_copy(root, self.mutant)
            self.check_copy(root)
            return Result(self.mutant, self.killer(root), self.spent)

    def killer(self, root: Path) -> str:
        if self.known and self.kills(root, self.known):
            return self.known
        for killer in self.arguments.profile or self.mutant.by:
            if killer.startswith((TESTS, OPTIONS)):
                if killer != self.known and self.kills(root, killer):
                    return killer
            else:
                found = self.search(root, killer)
                if found:
                    return found
        return SURVIVED

    def kills(self, root: Path, killer: str) -> bool:
        """Return whether a killer from an earlier run still kills the mutant."""
        if killer.startswith(TESTS):
            command = [
                "-m",
                "pytest",
                "-q",
                "-x",
                "-n",
                "0",
                "-m",
                self.marked,
                "-p",
                "no:cacheprovider",
            ]
            command.append(killer)
            code, output = self.execute(root, command)
            if code in {2, 4, 5}:
                raise SystemExit(f"{self.mutant.name}: {killer} did not run:\n{output[-2000:]}")
            # A socket that a test left open may make the program fail although no test fails.
            failed = any(line.startswith(("FAILED ", "ERROR ")) for line in output.splitlines())
            return code < 0 or failed
        if killer.startswith(OPTIONS):
            return bool(self.simulate(root, killer.split()))
        profile, _, seed = killer.partition(" ")
        return bool(self.search(root, profile, seed))

    def search(self, root: Path, profile: str, seeds: str = "") -> str:
        """Return the first failing scenario of a profile, or an empty string."""
        options = ["--profile", profile, "--seeds", seeds or self.arguments.seeds]
        begun = self.simulate(root, options)
        return f"{profile} {begun}" if begun else ""

    def simulate(self, root: Path, options: list[str]) -> str:
        """Run the simulator; return the seed with which it failed, or an empty string."""
        command = ["-m", "tests.simulation", "--no-shrink", "--stop", *options]
        code, output = self.execute(root, command)
        begun = [line.split()[-1] for line in output.splitlines() if line.startswith("begins ")]
        if code == 0:
            return ""
        if not begun and "FAILED" in output:
            return "all"
        if not begun or code > 1:
            raise SystemExit(f"{self.mutant.name}: the simulator failed:\n{output[-2000:]}")
        return begun[-1]

    def check_copy(self, root: Path) -> None:
        """Assert that programs in the copy import the package from the copy."""
        _, output = self.execute(root, ["-c", "import redbeat; print(redbeat.__file__)"])
        if not output.startswith(str(root)):
            raise SystemExit(f"{self.mutant.name}: the copy is not what is imported: {output}")

    def execute(self, root: Path, command: list[str]) -> tuple[int, str]:
        """Run Python in the copy; return the exit code (negative for a hang) and the output."""
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=limit_cpu,  # noqa: PLW1509 - the function takes no lock
                start_new_session=True,
            )
            timer = Timer(LIMIT, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            with suppress(ProcessLookupError):  # This also ends servers that a killed program left.
                os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            text = output.read()
        self.spent += usage.ru_utime + usage.ru_stime
        return process.returncode, text


def limit_cpu() -> None:
    """Limit the CPU time of the calling process."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT))


def make_copy(root: Path, mutant: Mutant) -> None:
    """Copy the project with a mutant; only the package is copied, all other files are links."""
    for path in ROOT.iterdir():
        if path.name in {"redbeat", ".git", ".venv"}:
            continue
        (root / path.name).symlink_to(path)
    shutil.copytree(ROOT / "redbeat", root / "redbeat", ignore=shutil.ignore_patterns("*.pyc"))
    path = root / "redbeat" / mutant.path
    path.write_text(mutant.applied_to(path.read_text()))


def known_killers() -> dict[str, str]:
    """Return the killer of each mutant from the stored table."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["Mutant"]: row["Killed by"] for row in rows if row["Killed by"] != SURVIVED}


def write_table(results: list[Result], partial: bool) -> None:
    """Write the table for the manual; mutants that were not tried keep their rows.

    In a ``partial`` trial, survivors also keep their rows, because not every killer was tried.
    """
    found = {result.mutant.name: result.killer for result in results}
    if partial:
        found = {name: killer for name, killer in found.items() if killer != SURVIVED}
    killers = known_killers() | found
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for mutant in MUTANTS:
            killer = killers.get(mutant.name, SURVIVED)
            writer.writerow((mutant.name, mutant.broken, mutant.path, killer))


if __name__ == "__main__":
    main()
