"""Build the distribution, look into it, and use it from an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LUA = {path.name for path in (ROOT / "redbeat" / "lua").glob("*.lua")}
EPOCH = "1700000000"  # seconds; any fixed time makes builds alike
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
    environment.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def build(source: Path, place: Path) -> tuple[Path, Path]:
    """Build in ``place``; return the wheel and the source distribution."""
    run(sys.executable, "-m", "build", "--outdir", place, source)
    return next(place.glob("*.whl")), next(place.glob("*.tar.gz"))


def contents(sdist: Path) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the bytes of each file in a source distribution."""
    with tarfile.open(sdist) as archive:
        files = [member for member in archive if member.isfile()]
        opened = {member.name: archive.extractfile(member) for member in files}
        return {m.name: (m.mode, file.read()) for m in files if (file := opened[m.name])}


def check_rebuild(wheel: Path, sdist: Path, place: Path) -> None:
    """Raise unless a second build, in ``place``, gives both once more."""
    again, sources = build(ROOT, place)
    if again.read_bytes() != wheel.read_bytes():
        raise SystemExit(f"{wheel.name}: a second build differs")
    # Setuptools puts times of its own into the archive; what is in it must be the same.
    first, second = contents(sdist), contents(sources)
    differing = {n for n in first.keys() | second.keys() if first.get(n) != second.get(n)}
    if differing:
        raise SystemExit(f"{sdist.name}: a second build differs in {sorted(differing)}")
    print(f"{wheel.name}: built twice, byte for byte the same")


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
    run(programs / "celery", "redbeat", "list", "--help", cwd=place)


def main() -> None:
    """Check the source distribution and the wheel made from it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        wheel, sdist = build(ROOT, place / "dist")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_names(wheel)
        check_rebuild(wheel, sdist, place / "again")
        check_use(wheel, place)


if __name__ == "__main__":
    main()
