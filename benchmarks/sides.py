"""The compared schedulers, each installed in its own Python environment."""

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

#: The release of RedBeat 2 that RedBeat 3 replaces.
PEER_VERSION = "2.4.2"

#: Name of a scheduler -> its package and version.
PEERS = {
    "peer": ("celery-redbeat", PEER_VERSION),
    "django": ("django-celery-beat", "2.9.0"),
    "redisbeat": ("redisbeat", "1.2.6"),
}

#: The directory of the scripts that run in the Python environments of the compared schedulers.
SCRIPTS = Path(__file__).parent

#: The directory for virtual environments and results. Git ignores this directory.
CACHE = SCRIPTS.parent / ".benchmarks"

#: Packages that must have the same version in all environments.
SHARED = ("celery", "kombu", "redis", "hiredis", "packaging")

#: Packages of :data:`SHARED` that affect the results.
TELLING = SHARED[:4]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared schedulers, with its version and the path of its Python interpreter."""

    name: str
    version: str
    python: str

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment variables for processes of this scheduler, including ``more``.

        Processes of RedBeat 3 import ``redbeat`` from this checkout.
        """
        path = {"PYTHONPATH": str(SCRIPTS.parent)} if self.name == "ours" else {}
        return environment(**path, **more)


def environment(**more: str) -> dict[str, str]:
    """Return the environment variables of this process and ``more``, for a subprocess.

    The result has no ``PYTHONPATH``, so that the subprocess does not import this checkout. The
    result has no ``PYTHONDONTWRITEBYTECODE``, so that the subprocess caches compiled modules.
    """
    removed = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    return {**inherited, **more}


def versions() -> dict[str, str]:
    """Return the versions of the installed :data:`SHARED` packages."""
    installed = {}
    for name in SHARED:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def ours() -> Side:
    """Return the description of RedBeat 3, which runs with the Python of this process."""
    return Side("ours", metadata.version("celery-redbeat"), sys.executable)


def install_peer(name: str = "peer", cache: Path = CACHE) -> Side:
    """Install another scheduler into its own virtual environment and return it.

    An existing installation is reused. Raises :exc:`subprocess.CalledProcessError` if pip fails.
    """
    package, version = PEERS[name]
    shared = versions()
    tag = "-".join(f"{name}{shared[name]}" for name in TELLING if name in shared)
    major, minor = sys.version_info[:2]
    home = cache / f"{package}-{version}-py{major}.{minor}-{tag}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        requirements = [f"{name}=={version}" for name, version in shared.items()]
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{package}=={version}", *requirements], check=True)
        (home / "installed").touch()
    return Side(name, version, str(python))
