"""A scenario has the same trace on each run, after other scenarios, and on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def trace(*arguments: str, hash_seed: int = 0) -> list[str]:
    """Return the trace of the simulator with these arguments, line by line."""
    command = [sys.executable, "-m", "tests.simulation", "--trace", "--no-shrink", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    # This test ignores whether the oracle reports violations.
    assert done.returncode in {0, 1}, done.stderr
    # The last line contains the elapsed time.
    return done.stdout.splitlines()[:-1]


def test_a_replayed_scenario_has_the_same_trace() -> None:
    with ThreadPoolExecutor() as pool:
        one = pool.submit(trace, "--profile", "everything", "--seeds", "22", hash_seed=1)
        two = pool.submit(trace, "--profile", "everything", "--seeds", "21:22", hash_seed=2)
    alone, after_another = one.result(), two.result()
    assert alone
    assert after_another[-len(alone) :] == alone


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_scenario_has_the_same_trace_with_the_shim() -> None:
    emulated = trace("--seeds", "1:3", hash_seed=1)
    assert emulated
    assert trace("--seeds", "1:3", "--shim", hash_seed=2) == emulated
