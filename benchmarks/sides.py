"""The sides of the comparison: interpreters with this project, with the release, with others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = (
    "PEERS",
    "PEER_VERSION",
    "SCRIPTS",
    "TELLING",
    "Side",
    "environment",
    "install_peer",
    "ours",
    "versions",
)

#: The release that this project replaces.
PEER_VERSION = "2.4.2"

#: Who is compared: package and version, by name; Celery itself is what all have.
PEERS = {
    "peer": ("celery-redbeat", PEER_VERSION),
    "django": ("django-celery-beat", "2.9.0"),
    "redisbeat": ("redisbeat", "1.2.6"),
}

#: The directory of the scripts that run under both interpreters.
SCRIPTS = Path(__file__).parent

#: Where the environments are kept, and what was measured, between two runs; git ignores it.
CACHE = SCRIPTS.parent / ".benchmarks"

#: What both sides must have in the same version, where it is installed here.
SHARED = ("celery", "kombu", "redis", "hiredis", "packaging")

#: Of those, what the numbers depend on.
TELLING = SHARED[:4]


@dataclass(frozen=True, slots=True)
class Side:
    """Something that is measured, and the interpreter that has it."""

    name: str
    version: str
    python: str

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of its processes; ours import the package of this checkout."""
        path = {"PYTHONPATH": str(SCRIPTS.parent)} if self.name == "ours" else {}
        return environment(**path, **more)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a subprocess: nothing leads its imports to this directory.

    Nor does anything keep it from compiling a module only once.
    """
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
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


def install_peer(name: str = "peer", cache: Path = CACHE) -> Side:
    """Return a peer, installed from the package index into an environment of its own.

    One that was installed before is used again. Raises :exc:`subprocess.CalledProcessError` when
    pip fails.
    """
    package, version = PEERS[name]
    shared = versions()
    tag = "-".join(f"{name}{shared[name]}" for name in TELLING if name in shared)
    major, minor = sys.version_info[:2]
    home = cache / f"{package}-{version}-py{major}.{minor}-{tag}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        wanted = [f"{name}=={version}" for name, version in shared.items()]
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{package}=={version}", *wanted], check=True)
        (home / "installed").touch()
    return Side(name, version, str(python))
