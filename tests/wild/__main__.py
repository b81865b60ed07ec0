"""Run the programs of ``tests/wild`` with ``celery-redbeat`` 2.4.2 and with this package.

``python -m tests.wild`` creates an environment with 2.4.2. It installs the versions of Celery,
redis-py and pytest of the current environment. Then it runs every test with both packages.

The command prints the output of pytest, a row for each test, and the totals. ``-`` marks a test
that does not run with 2.4.2. The exit status is 1 if a test passes with 2.4.2 and fails with this
package. The run takes about three minutes on two cores.

Options: ``--python PATH`` uses an existing environment with 2.4.2 and pytest. ``--names`` writes
``names.json`` with that environment and runs no tests. ``-k EXPRESSION`` selects tests, as in
pytest.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.sides import CACHE, environment, install_peer
from examples.embedded import find_redis_server
from tests.wild import names

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Packages that the tests import, to be installed next to 2.4.2.
TOOLS = ("pytest", "pytest-xdist", "fakeredis[lua]")
SHARED = (
    "tests/__init__.py",
    "tests/waiting.py",
    "tests/servers.py",
    "tests/certificates.py",
    "tests/topologies/__init__.py",
    "tests/topologies/groups.py",
    "examples/__init__.py",
    "examples/embedded.py",
)
#: The number of parallel test processes; most tests only wait.
WORKERS = 3
PASSED, FAILED, ABSENT = "passed", "failed", "-"


def release_python() -> str:
    """Return the path of a Python with 2.4.2 and pytest; create its environment if needed."""
    python = install_peer(cache=CACHE / "wild").python
    # Pin the versions of this environment, so that pip keeps the installed redis-py.
    wanted = [f"{tool}=={metadata.version(tool.partition('[')[0])}" for tool in TOOLS]
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *wanted]
    subprocess.run(pip, check=True)
    return python


def staged(directory: Path) -> Path:
    """Copy the tests to a directory without this package; return the directory."""
    for name in SHARED:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    shutil.copytree(HERE, directory / "tests/wild", ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def outcomes(report: Path) -> dict[str, str]:
    """Return whether each test passed or failed, by test name."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        bad = case.find("failure") is not None or case.find("error") is not None
        found[f"{module}::{case.get('name')}"] = FAILED if bad else PASSED
    return found


def run(python: str, directory: Path, arguments: list[str]) -> dict[str, str]:
    """Run the tests in a directory; return the results by test name.

    The results are empty if pytest could not start. The function prints the output of pytest. Files
    that the tests write go to a temporary directory.
    """
    # Check whether the other Python has the module, not this one.
    probe = [python, "-c", "import xdist"]
    parallel = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [python, "-m", "pytest", "tests/wild", "-q", "-p", "no:cacheprovider"]
        command += [f"--basetemp={scratch}/tmp", "--tb=short", f"--junitxml={report}", *arguments]
        command += ["-n", str(WORKERS)] if parallel else []
        env = environment(REDIS_SERVER=find_redis_server())
        subprocess.run(command, cwd=directory, env=env, check=False)
        return outcomes(report) if report.exists() else {}


def table(release: dict[str, str], ours: dict[str, str]) -> list[str]:
    """Return the lines of the table: a header, a row for each test, and the totals."""
    every = sorted({*release, *ours})
    width = max(map(len, every), default=0)
    sides = (release, ours)
    rows = [(name, *(side.get(name, ABSENT) for side in sides)) for name in every]
    counts = [Counter(side.values())[PASSED] for side in sides]
    totals = (f"{count} of {len(side)}" for count, side in zip(counts, sides, strict=True))
    lines = [("", names.RELEASE, "3"), *rows, ("passed", *totals)]
    return [f"{name:{width}}  {left:12}  {right}".rstrip() for name, left, right in lines]


def main() -> int:
    """Run the tests with both packages and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.wild", description=__doc__)
    parser.add_argument("--python", help="an interpreter that has 2.4.2 and pytest")
    parser.add_argument("--names", action="store_true", help="write names.json, run nothing")
    parser.add_argument("-k", metavar="EXPRESSION", help="which tests, as for pytest")
    options = parser.parse_args()
    python = options.python or release_python()
    if options.names:
        return subprocess.run([python, str(HERE / "names.py")], check=False).returncode
    chosen = ["-k", options.k] if options.k else []
    sys.stdout.write(f"celery-redbeat {names.RELEASE}:\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as directory:
        release = run(
            python, staged(Path(directory)), ["-m", "not ours", "-o", "markers=long", *chosen]
        )
    sys.stdout.write("\nthis package:\n")
    sys.stdout.flush()
    ours = run(sys.executable, ROOT, ["-m", "", *chosen])
    sys.stdout.write("\n" + "\n".join(table(release, ours)) + "\n")
    lost = [name for name, what in release.items() if what == PASSED != ours.get(name)]
    return 1 if lost or not release else 0


if __name__ == "__main__":
    sys.exit(main())
