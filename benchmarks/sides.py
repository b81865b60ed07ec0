"""The sides of the comparison: Python environments with this project and with other schedulers."""

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

#: The other schedulers: package and version by name.
PEERS = {
    "peer": ("celery-redbeat", PEER_VERSION),
    "django": ("django-celery-beat", "2.9.0"),
    "redisbeat": ("redisbeat", "1.2.6"),
}

#: The directory of the scripts, which run with the interpreter of each side.
SCRIPTS = Path(__file__).parent

#: The directory of virtual environments and results, which git ignores.
CACHE = SCRIPTS.parent / ".benchmarks"

#: Packages that must have the same version on all sides.
SHARED = ("celery", "kombu", "redis", "hiredis", "packaging")

#: Shared packages that affect the results.
TELLING = SHARED[:4]


@dataclass(frozen=True, slots=True)
class Side:
    """A measured scheduler, with its version and the path of its Python interpreter."""

    name: str
    version: str
    python: str

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment variables of its processes, with ``more`` variables.

        Processes of this project import the package of this checkout.
        """
        path = {"PYTHONPATH": str(SCRIPTS.parent)} if self.name == "ours" else {}
        return environment(**path, **more)


def environment(**more: str) -> dict[str, str]:
    """Return the environment variables of a subprocess: those of this process, and ``more``.

    Without ``PYTHONPATH`` it does not import this checkout; without ``PYTHONDONTWRITEBYTECODE`` it
    caches compiled modules.
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
    """Return the side of this project, with the running interpreter."""
    return Side("ours", metadata.version("celery-redbeat"), sys.executable)


def install_peer(name: str = "peer", cache: Path = CACHE) -> Side:
    """Return another scheduler, installed from the package index into its own environment.

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
