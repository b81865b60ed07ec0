"""Runs the example programs in other languages, with their dependencies."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.embedded import find_redis_server

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES, PAGE = DOCS / "examples", DOCS / "languages.rst"
#: How to install the dependencies of an example, by program name.
HELP = {
    "node": "install Node.js 20 or newer",
    "npm": "install npm, which comes with Node.js",
    "ruby": "apt-get install ruby ruby-redis",
    "redis-cli": "apt-get install redis-tools",
}


def program(name: str) -> str:
    """Return the path of a program; ``redis-cli`` may be next to the Redis server of the tests."""
    beside = Path(find_redis_server()).parent
    found = shutil.which(name) or shutil.which(name, path=str(beside))
    assert found, f"{name} is not installed: {HELP[name]}"
    return found


def redis_cli(place: Path) -> list[str]:
    """Return the command for the shell script."""
    assert place.is_dir()
    return ["sh", str(EXAMPLES / "schedule.sh")]


def javascript(place: Path) -> list[str]:
    """Install the Redis client of the example into ``place``, and return the command."""
    for name in ("package.json", "schedule.mjs"):
        shutil.copy(EXAMPLES / name, place)
    install = [program("npm"), "install", "--silent", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=place, check=True, timeout=120)
    return [program("node"), str(place / "schedule.mjs")]


def ruby(place: Path) -> list[str]:
    """Return the command for the Ruby example."""
    assert place.is_dir()
    return [program("ruby"), "-W0", str(EXAMPLES / "schedule.rb")]


LANGUAGES = {"redis-cli": redis_cli, "javascript": javascript, "ruby": ruby}


class Writer:
    """One of the example programs; all of them accept the same arguments."""

    def __init__(self, command: list[str], url: str) -> None:
        self.command = command
        path = f"{Path(program('redis-cli')).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "REDIS_URL": url}

    def run(self, *arguments: str) -> str:
        """Run the program, assert that it succeeds, and return its output."""
        command = [*self.command, *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def problem(self, name: str) -> str:
        """Return why an entry is quarantined, or an empty string if it is not."""
        output = self.run("problem", name)
        return str(json.loads(output)["reason"]) if output.startswith("{") else output


@pytest.fixture(scope="session", params=LANGUAGES)
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of one example, which is installed once."""
    return LANGUAGES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def writer(command: list[str], redis_client: Any, redis_url: str) -> Writer:
    """Return one example program on an empty Redis, with the Redis user from the manual."""
    found = re.search(r"redis-cli (ACL SETUSER (?:.*\\\n)+.*)\n", PAGE.read_text(encoding="utf-8"))
    assert found
    redis_client.execute_command(*shlex.split(found[1].replace("\\\n", "")))
    return Writer(command, redis_url.replace("://", "://writer:PASSWORD@"))
