"""Replays the stored scenarios: past failures and known defects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.json"))
#: A part of the oracle's report for scenarios with a known defect; empty for other scenarios.
EXPECTED = {path.stem: json.loads(path.read_text()).get("expected", "") for path in SEEDS}


#: The scenarios that the short run replays.
SHORT = [
    "backfill-before-a-delayed-run",
    "broker-became-a-replica",
    "finished-one-off-saved-again",
    "limit-exceeded-after-a-kill",
    "own-schedule-offline",
    "saved-after-a-hold",
    "stall-longer-than-the-socket-timeout",
    "trigger-during-the-last-run",
]
#: The scenarios that the short run omits; three interpreters share them.
OTHERS = [name for name in EXPECTED if name not in SHORT]
PARTS = [SHORT, *(OTHERS[number::3] for number in range(3))]


class KnownDefectError(Exception):
    """The oracle reported the violation that the scenario expects."""


def judgement_of(name: str, directory: Path) -> list[str]:
    """Return the oracle's report on a scenario.

    The simulator needs a separate interpreter, which replays several scenarios. All workers of a
    test run share the results in ``directory``.
    """
    names = next(part for part in PARTS if name in part)
    paths = [path for path in SEEDS if path.stem in names]
    with (directory / names[0]).open("a+") as file:
        flock(file, LOCK_EX)
        file.seek(0)
        if not (text := file.read()):
            command = [sys.executable, "-m", "tests.simulation", "--json", "--replay"]
            command += map(str, paths)
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            file.write(text)
    findings: Iterator[tuple[str, list[str]]] = zip(
        (path.stem for path in paths), map(json.loads, text.splitlines()), strict=True
    )
    return dict(findings)[name]


def marked(name: str) -> object:
    """Return a test parameter; with a known defect, the test must fail with the expected report."""
    reason = f"a known defect: {EXPECTED[name]}"
    known = pytest.mark.xfail(strict=True, raises=KnownDefectError, reason=reason)
    length = [] if name in SHORT else [pytest.mark.long]
    return pytest.param(name, marks=[known, *length] if EXPECTED[name] else length)


@pytest.mark.parametrize("name", [marked(name) for name in EXPECTED])
def test_a_stored_scenario(
    name: str, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str
) -> None:
    """Replay a scenario; its file describes setup, fault and invariant."""
    directory = tmp_path_factory.getbasetemp().parent / f"seeds-{testrun_uid}"
    directory.mkdir(exist_ok=True)
    wrong = judgement_of(name, directory)
    if EXPECTED[name] and any(EXPECTED[name] in line for line in wrong):
        raise KnownDefectError(*wrong)
    path = f"tests/simulation/seeds/{name}.json"
    assert wrong == [], f".venv/bin/python -m tests.simulation --replay {path} --no-shrink --trace"
