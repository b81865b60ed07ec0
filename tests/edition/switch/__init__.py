"""Runs programs and tests of the second edition on the third.

``python -m tests.edition.switch tests/scheduler`` runs pytest with ``REDBEAT_EDITION=3``. Each
module here replaces methods of one area; each goes when its code has moved into ``redbeat/``.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]

#: The areas, in the order in which they are installed.
AREAS: Final = ("keys", "beats", "entries", "schedules", "calendars", "readers", "workers")

VARIABLE: Final = "REDBEAT_EDITION"

#: Runs at the start of each Python process of this environment. The simulator installs the edition
#: itself, after its clocks.
HOOK: Final = (
    f"import os, sys; os.environ.get('{VARIABLE}') == '3' and "
    "'tests.simulation' not in sys.orig_argv and "
    "(sys.path.append({root!r}), __import__('tests.edition.switch').edition.switch.install())\n"
)


def install() -> None:
    """Let this process run on the third edition."""
    chosen = os.environ.get("REDBEAT_AREAS", ",".join(AREAS)).split(",")
    for area in AREAS:
        if area in chosen and (Path(__file__).parent / f"{area}.py").exists():
            importlib.import_module(f"{__name__}.{area}").install()


def replace(owner: type, methods: dict[str, Any]) -> None:
    """Put ``methods`` into a class of the second edition."""
    for name, method in methods.items():
        setattr(owner, name, method)


def add_hook() -> None:
    """Let each Python process of this environment look at :data:`VARIABLE`."""
    hook = Path(site.getsitepackages()[0]) / "third_edition.pth"
    hook.write_text(HOOK.format(root=str(ROOT)))


def run_tests(arguments: list[str]) -> int:
    """Run pytest on the third edition, and return its exit code."""
    add_hook()
    os.environ[VARIABLE] = "3"
    return os.spawnv(
        os.P_WAIT,
        sys.executable,
        [sys.executable, "-m", "pytest", "-p", f"{__name__}.plugin", *arguments],
    )
