"""The two sides of the comparison: an interpreter with this project, and one with the release."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = (
    "PEER_VERSION",
    "SCRIPTS",
    "TELLING",
    "Side",
    "environment",
    "install_peer",
    "ours",
    "versions",
)

#: The release that this project is compared to.
PEER_VERSION = "2.4.2"

#: The directory of the scripts that run under both interpreters.
SCRIPTS = Path(__file__).parent

#: Where the environment of the release is kept between two runs; git ignores it.
CACHE = SCRIPTS.parent / ".benchmarks"

#: What both sides must have in the same version, where it is installed here.
SHARED = ("celery", "kombu", "redis", "hiredis", "packaging")

#: Of those, what the numbers depend on.
TELLING = SHARED[:4]


@dataclass(frozen=True, slots=True)
class Side:
    """A version of RedBeat and the interpreter that has it."""

    name: str
    version: str
    python: str


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a subprocess: nothing leads its imports to this directory."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **more}


def versions() -> dict[str, str]:
    """Return what both sides have, package -> version."""
    found = {}
    for name in SHARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def ours() -> Side:
    """Return this project, as the running interpreter has it."""
    return Side("ours", metadata.version("celery-redbeat"), sys.executable)


def install_peer(cache: Path = CACHE) -> Side:
    """Return the release, installed from the package index into an environment of its own.

    One that was installed before is used again. Raises :exc:`subprocess.CalledProcessError` when
    pip fails.
    """
    shared = versions()
    tag = "-".join(f"{name}{shared[name]}" for name in TELLING if name in shared)
    major, minor = sys.version_info[:2]
    home = cache / f"{PEER_VERSION}-py{major}.{minor}-{tag}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        wanted = [f"{name}=={version}" for name, version in shared.items()]
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, f"celery-redbeat=={PEER_VERSION}", *wanted], check=True)
        (home / "installed").touch()
    return Side("peer", PEER_VERSION, str(python))
