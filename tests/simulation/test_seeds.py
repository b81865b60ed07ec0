"""Replays the scenarios that are kept: what went wrong once, and what is known to be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.json"))
#: A part of what the oracle says of those whose defect is known; empty for the others.
EXPECTED = {path.stem: json.loads(path.read_text()).get("expected", "") for path in SEEDS}


class KnownDefectError(Exception):
    """The oracle said what a scenario expects it to say."""


@pytest.fixture(scope="module")
def judgements(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> dict[str, list[str]]:
    """What the oracle says of each scenario, asked for once in a run of the tests.

    The simulator needs an interpreter of its own.
    """
    kept = tmp_path_factory.getbasetemp().parent / f"seeds-{testrun_uid}"
    with kept.open("a+") as file:
        flock(file, LOCK_EX)
        file.seek(0)
        if not (text := file.read()):
            command = [sys.executable, "-m", "tests.simulation", "--json", "--replay"]
            command += map(str, SEEDS)
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            file.write(text)
    return dict(zip(EXPECTED, map(json.loads, text.splitlines()), strict=True))


def marked(name: str) -> object:
    """Return a parameter: a known defect must fail, and by what the oracle says of it."""
    reason = f"the second edition of the protocol: {EXPECTED[name]}"
    known = pytest.mark.xfail(strict=True, raises=KnownDefectError, reason=reason)
    return pytest.param(name, marks=[known] if EXPECTED[name] else [])


@pytest.mark.parametrize("name", [marked(name) for name in EXPECTED])
def test_a_scenario_that_is_kept(name: str, judgements: dict[str, list[str]]) -> None:
    """Setup, fault and invariant: the story in the file of the scenario."""
    wrong = judgements[name]
    if EXPECTED[name] and any(EXPECTED[name] in line for line in wrong):
        raise KnownDefectError(*wrong)
    assert wrong == []
