"""Build the distribution, look into it, and use it from an environment that has nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LUA = {str(path.relative_to(ROOT)) for path in (ROOT / "redbeat" / "lua").rglob("*.lua")}
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


def check_rebuild(wheel: Path, sdist: Path, place: Path) -> Path:
    """Raise unless the sources of the first build, unpacked in ``place``, give the same again.

    Returns where they are.
    """
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    source = place / sdist.name.removesuffix(".tar.gz")
    for first, second in zip((wheel, sdist), build(source, place / "dist"), strict=True):
        if first.read_bytes() != second.read_bytes():
            raise SystemExit(f"{first.name}: a second build differs")
        print(f"{first.name}: built twice, byte for byte the same")
    return source


def check_names(wheel: Path) -> None:
    """Raise if the wheel lacks a data file or holds more than the package."""
    names = zipfile.ZipFile(wheel).namelist()
    expected = {"redbeat/py.typed", *LUA}
    missing = expected - set(names)
    foreign = {n for n in names if not n.startswith(("redbeat/", "celery_redbeat-"))}
    if missing or foreign or not LUA:
        raise SystemExit(f"{wheel.name}: missing {sorted(missing)}, foreign {sorted(foreign)}")
    print(f"{wheel.name}: {len(names)} files, {len(LUA)} of them Lua")


def check_use(wheel: Path, place: Path) -> Path:
    """Install the wheel into a new environment in ``place`` and use it; return its programs."""
    run(sys.executable, "-m", "venv", place / "venv")
    programs = place / "venv" / "bin"
    run(programs / "pip", "install", "-q", wheel)
    run(programs / "python", "-c", PROBE, cwd=place)
    run(programs / "celery", "beat", "--scheduler", "redbeat", "--help", cwd=place)
    run(programs / "celery", "redbeat", "list", "--help", cwd=place)
    return programs


def check_first_command(programs: Path, sources: Path, place: Path) -> None:
    """Run the README's first command, the demo, with the installed package and nothing else."""
    for name in ("examples", "exampleconf.py"):
        (sources / name).rename(place / name)
    command = [str(programs / "python"), "examples/demo.py", "--seconds", "15"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    for entry in ("every-second", "added-while-running"):
        if not re.search(rf"worker \| .* {entry} .* ms late", done.stdout):
            raise SystemExit(f"the demo did not run {entry}:\n{done.stdout}")
    print("the demo of the README: runs with the wheel")


def main() -> None:
    """Check the source distribution and the wheel made from it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        wheel, sdist = build(ROOT, place / "dist")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_names(wheel)
        sources = check_rebuild(wheel, sdist, place / "again")
        programs = check_use(wheel, place)
        run(programs / "pip", "install", "-q", f"{wheel}[demo]")
        check_first_command(programs, sources, place)


if __name__ == "__main__":
    main()
