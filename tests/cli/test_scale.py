"""Tests of exporting and importing many entries: memory, round trips, and the progress bar."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.processes import ROOT
from tests.cli.commands import in_terminal
from tests.cli.conftest import Run

FEW, MANY = 2_000, 20_000
#: Maximum additional memory in MiB for the additional entries: names and allocator overhead.
MORE_MEMORY = 25


def write_lines(file: Path, count: int) -> str:
    """Write entries with 50 different schedules; return the path of the file."""
    with file.open("w", encoding="ascii") as out:
        for number in range(count):
            when = {"__type__": "interval", "every": 3600 + number % 50, "relative": False}
            definition = {"name": f"tenant-{number}", "task": "t", "args": [number]}
            line = {"name": f"tenant-{number}", "definition": {**definition, "schedule": when}}
            out.write(json.dumps(line) + "\n")
    return str(file)


def memory_of(url: str, *words: str) -> float:
    """Run a command in its own process; return its peak memory in MiB."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PROJECT_REDIS_URL": url}
    command = [sys.executable, "-m", "celery", "-A", "tests.acceptance.project", "redbeat", *words]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return usage.ru_maxrss / 1024


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "darwin", reason="ru_maxrss is in bytes there")
@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_the_number_of_entries(
    redis_url: str, redis_client: Any, tmp_path: Path
) -> None:
    taken = []
    for count in (FEW, MANY):
        file = write_lines(tmp_path / "in", count)
        taken.append((memory_of(redis_url, "import", file), memory_of(redis_url, "export", file)))
        assert redis_client.zcard("redbeat::schedule") == count
    (import_few, export_few), (import_many, export_many) = taken
    assert import_many < import_few + MORE_MEMORY
    assert export_many < export_few + MORE_MEMORY


@pytest.mark.long
def test_round_trips_are_one_per_500_entries(run: Run, redis_client: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in", FEW)
    for words in (("import", file), ("import", file), ("export", file)):
        redis_client.config_resetstat()
        assert run(*words).code == 0
        stats = redis_client.info("commandstats")
        calls = sum(
            stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha")
        )
        assert calls <= 3 * FEW / 500 + 3, words  # an import reads twice: to check, and to write


@pytest.mark.parametrize(
    ("verb", "labels"),
    [
        ("export", ["Exporting"]),
        pytest.param("import", ["Checking", "Importing"], marks=pytest.mark.long),
    ],
)
def test_a_terminal_shows_a_progress_bar(
    redis_url: str, run: Run, tmp_path: Path, verb: str, labels: list[str]
) -> None:
    file = write_lines(tmp_path / "in", FEW + 7)
    if verb == "export":
        assert run("import", file).code == 0
    text, code = in_terminal(redis_url, verb, file)
    assert code == 0, text
    for label in labels:
        bars = [part for part in re.split("[\r\n]+", text) if label in part]
        assert "100%" in bars[-1]
        assert "-" not in bars[-1]
    assert "100%" not in bars[0]
