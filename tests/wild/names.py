"""Write ``names.json``: every name in the modules of ``celery-redbeat`` 2.4.2.

Run ``python -m tests.wild.names`` with a Python that has 2.4.2 installed. ``python -m tests.wild
--names`` creates an environment with 2.4.2 and runs this module in it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from importlib import metadata
from pathlib import Path

__all__ = ("NAMES", "RELEASE", "listed", "main")

#: The version of celery-redbeat that this project replaces.
RELEASE = "2.4.2"
NAMES = Path(__file__).with_name("names.json")
ROOT = Path(__file__).resolve().parents[2]


def listed() -> dict[str, list[str]]:
    """Return the names in each module of the installed package, without ``__dunder__`` names.

    The result includes imported names, because a program may import any of them.
    """
    package = importlib.import_module("redbeat")
    modules = [
        "redbeat",
        *(f"redbeat.{one.name}" for one in pkgutil.iter_modules(package.__path__)),
    ]
    loaded = {name: importlib.import_module(name) for name in modules}
    return {
        name: sorted(one for one in vars(module) if not one.startswith("__"))
        for name, module in loaded.items()
    }


def main() -> None:
    """Write ``names.json``; exit with a message if another version is installed."""
    # Without this line, Python would import the package of this checkout instead of 2.4.2.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
    version = metadata.version("celery-redbeat")
    if version != RELEASE:
        sys.exit(f"this needs celery-redbeat {RELEASE}, {sys.executable} has {version}")
    NAMES.write_text(json.dumps(listed(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
