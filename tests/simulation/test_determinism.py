"""The same scenario takes the same course: each time, after others, and on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def trace(*arguments: str, hash_seed: int = 0) -> list[str]:
    """Return what happened in scenarios, line by line."""
    command = [sys.executable, "-m", "tests.simulation", "--trace", "--no-shrink", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    # Whether the oracle liked what it saw does not matter here.
    assert done.returncode in {0, 1}, done.stderr
    # The last line has the time that it took.
    return done.stdout.splitlines()[:-1]


def test_a_scenario_that_is_replayed_takes_the_same_course() -> None:
    alone = trace("--profile", "everything", "--seeds", "33", hash_seed=1)
    after_another = trace("--profile", "everything", "--seeds", "32:33", hash_seed=2)
    assert alone
    assert after_another[-len(alone) :] == alone


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_scenario_takes_the_same_course_on_both_engines() -> None:
    emulated = trace("--seeds", "1:3", hash_seed=1)
    assert emulated
    assert trace("--seeds", "1:3", "--shim", hash_seed=2) == emulated
