"""Runs some of the tests of store, lock and scheduler on every other kind of Redis.

To run all of them: ``REDBEAT_TOPOLOGY=cluster python -m pytest tests/storage tests/scheduler
tests/entry``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployments import KINDS, STANDALONE, VARIABLE, chosen_kind
from tests.samples import long

ROOT = Path(__file__).parents[2]
#: Quick tests that fail first if a kind of Redis behaves differently.
SHORT = ("tests/storage/test_changes.py", "tests/scheduler/test_raw_recipes.py")
SLICE = (
    *SHORT,
    "tests/storage/test_inbox.py",
    "tests/storage/test_lock_scripts.py",
    "tests/scheduler/test_bad_entries.py",
)
#: The kind in the short run; other tests in this directory cover most other kinds.
QUICK = "resp2"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "files"),
    # Only these kinds differ in what they allow: keys must be in one slot, or users have limited
    # rights. The other kinds differ only in how programs connect.
    [
        (QUICK, SHORT[-1:]),
        *(long(kind, SLICE if kind in ("cluster", "acl") else SHORT) for kind in KINDS),
    ],
)
def test_a_slice_of_the_suites(kind: str, files: tuple[str, ...]) -> None:
    assert chosen_kind() == STANDALONE, "these tests start the others by themselves"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-m", "", "-q", "--tb=short", *files],
        cwd=ROOT,
        env={**os.environ, VARIABLE: kind, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
