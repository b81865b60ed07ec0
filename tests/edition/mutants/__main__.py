"""``python -m tests.edition.mutants``: plants the mutants of the third edition, and tries killers.

Killers outside ``tests/edition`` run on the third edition; see ``tests.edition.switch``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.edition.mutants import KEPT, MUTANTS, VOID
from tests.edition.switch import VARIABLE, add_hook
from tests.simulation import mutate
from tests.simulation.mutants import MUTANTS as SECOND
from tests.simulation.mutants import Mutant


def make_copy(root: Path, mutant: Mutant) -> None:
    """Copy the project with a mutant; the package and ``tests/edition`` are copied, not linked."""
    ignored = shutil.ignore_patterns("*.pyc")
    (root / "tests").mkdir()
    for path in (*mutate.ROOT.iterdir(), *(mutate.ROOT / "tests").iterdir()):
        copy = root / path.relative_to(mutate.ROOT)
        if path.name in {"redbeat", "edition"}:
            shutil.copytree(path, copy, ignore=ignored)
        elif path.name not in {"tests", ".git", ".venv"}:
            copy.symlink_to(path)
    path = root / ("redbeat" if mutant in SECOND else "tests/edition") / mutant.path
    path.write_text(mutant.applied_to(path.read_text()))


class Trial(mutate.Trial):
    """Searches for a killer of a mutant of the third edition."""

    marked = ""

    def check_copy(self, root: Path) -> None:
        """Assert that programs in the copy import the third edition from the copy."""
        _, output = self.execute(
            root, ["-c", "import tests.edition.plan as it; print(it.__file__)"]
        )
        if not output.startswith(str(root)):
            raise SystemExit(f"{self.mutant.name}: the copy is not what is imported: {output}")


def left(*, kept: bool) -> list[Mutant]:
    """Return the mutants of the second edition that are neither planted here nor void.

    With ``kept`` those of files that stay, else those that are still to be planted.
    """
    done = {mutant.name for mutant in MUTANTS} | VOID.keys()
    return [one for one in SECOND if one.name not in done and (one.path in KEPT) is kept]


def main() -> None:
    """Run the command; the exit code is 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.edition.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument("--piece", default="1/1", help="only those of piece NUMBER/PIECES")
    parser.add_argument("--missing", action="store_true", help="print rules that are not planted")
    parser.add_argument("-j", type=int, default=1, dest="jobs", help="mutants at a time")
    arguments = parser.parse_args()
    if arguments.missing:
        print(*(f"{one.path}: {one.name}: {one.broken}" for one in left(kept=False)), sep="\n")
        return
    os.environ[VARIABLE] = "3"
    add_hook()
    mutate.make_copy = make_copy
    arguments.profile, arguments.seeds = None, "1:4"
    known = [*MUTANTS, *left(kept=True)]
    mutants = [one for one in known if arguments.all or one.name in arguments.names]
    number, pieces = map(int, arguments.piece.split("/"))
    mutants = mutants[number - 1 :: pieces]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trials = pool.map(lambda mutant: Trial(mutant, {}, arguments).run(), mutants)
        results = [mutate.reported(result) for result in trials]
    survivors = [result.mutant.name for result in results if result.killer == mutate.SURVIVED]
    print(f"{len(results)} mutants, {len(survivors)} survived: {' '.join(survivors)}")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
