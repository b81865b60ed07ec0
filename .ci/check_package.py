"""Build the distribution, look into it, and use it from an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LUA = {path.name for path in (ROOT / "redbeat" / "lua").glob("*.lua")}
PROBE = """
from importlib.resources import files
from celery.utils.imports import load_extension_class_names, symbol_by_name
import redbeat, redbeat.schedulers
aliases = dict(load_extension_class_names("celery.beat_schedulers"))
assert symbol_by_name("redbeat", aliases=aliases) is redbeat.RedBeatScheduler, aliases
assert (files("redbeat") / "py.typed").is_file()
print("imported from", redbeat.__file__)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command that must succeed; the environment cannot lead it to this tree."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def check_names(wheel: Path) -> None:
    """Raise if the wheel lacks a data file or holds more than the package."""
    names = zipfile.ZipFile(wheel).namelist()
    expected = {"redbeat/py.typed", *(f"redbeat/lua/{name}" for name in LUA)}
    missing = expected - set(names)
    foreign = {n for n in names if not n.startswith(("redbeat/", "celery_redbeat-"))}
    if missing or foreign or not LUA:
        raise SystemExit(f"{wheel.name}: missing {sorted(missing)}, foreign {sorted(foreign)}")
    print(f"{wheel.name}: {len(names)} files, {len(LUA)} of them Lua")


def check_use(wheel: Path, place: Path) -> None:
    """Install the wheel into a new environment in ``place`` and use it there."""
    run(sys.executable, "-m", "venv", place / "venv")
    programs = place / "venv" / "bin"
    run(programs / "pip", "install", "-q", wheel)
    run(programs / "python", "-c", PROBE, cwd=place)
    run(programs / "celery", "beat", "--scheduler", "redbeat", "--help", cwd=place)


def main() -> None:
    """Check the source distribution and the wheel made from it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        run(sys.executable, "-m", "build", "--outdir", place / "dist", ROOT)
        built = sorted((place / "dist").iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *built)
        wheel = next(path for path in built if path.suffix == ".whl")
        check_names(wheel)
        check_use(wheel, place)


if __name__ == "__main__":
    main()
