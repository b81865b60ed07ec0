"""Build the distributions, check their contents, and use the wheel in an empty environment."""

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
TOP_FILES = ("CHANGES.rst", "LICENSE", "README.rst", "SECURITY.md")
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
    """Run a command that must succeed, without variables that would add this tree to its path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def build(source: Path, output: Path) -> tuple[Path, Path]:
    """Build into ``output``; return the paths of the wheel and the source distribution."""
    run(sys.executable, "-m", "build", "--outdir", output, source)
    return next(output.glob("*.whl")), next(output.glob("*.tar.gz"))


def check_rebuild(wheel: Path, sdist: Path, directory: Path) -> Path:
    """Unpack the source distribution and build it again; return the path of the unpacked sources.

    Raises SystemExit if a file is missing or if the second build differs.
    """
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    source = directory / sdist.name.removesuffix(".tar.gz")
    missing = [name for name in TOP_FILES if not (source / name).is_file()]
    if missing:
        raise SystemExit(f"{sdist.name}: missing {missing}")
    for first, second in zip((wheel, sdist), build(source, directory / "dist"), strict=True):
        if first.read_bytes() != second.read_bytes():
            raise SystemExit(f"{first.name}: a second build differs")
        print(f"{first.name}: both builds are identical")
    return source


def check_names(wheel: Path) -> None:
    """Raise if the wheel lacks a data file or contains files outside of the package."""
    names = zipfile.ZipFile(wheel).namelist()
    expected = {"redbeat/py.typed", *LUA}
    missing = expected - set(names)
    foreign = {n for n in names if not n.startswith(("redbeat/", "celery_redbeat-"))}
    if missing or foreign or not LUA:
        raise SystemExit(f"{wheel.name}: missing {sorted(missing)}, foreign {sorted(foreign)}")
    print(f"{wheel.name}: {len(names)} files, {len(LUA)} of them Lua")


def check_use(wheel: Path, directory: Path) -> Path:
    """Install the wheel into a new environment and use it; return the path of its programs."""
    run(sys.executable, "-m", "venv", directory / "venv")
    programs = directory / "venv" / "bin"
    run(programs / "pip", "install", "-q", wheel)
    run(programs / "python", "-c", PROBE, cwd=directory)
    run(programs / "celery", "beat", "--scheduler", "redbeat", "--help", cwd=directory)
    run(programs / "celery", "redbeat", "list", "--help", cwd=directory)
    run(programs / "celery", "redbeat", "--help", cwd=directory)  # without any extra
    return programs


def check_first_command(programs: Path, sources: Path, directory: Path) -> None:
    """Run the demo, the first command of the README, with the installed package only."""
    for name in ("examples", "exampleconf.py"):
        (sources / name).rename(directory / name)
    command = [str(programs / "python"), "examples/demo.py", "--seconds", "15"]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    for entry in ("every-second", "added-while-running"):
        if not re.search(rf"worker \| .* {entry} .* ms late", ran.stdout):
            raise SystemExit(f"the demo did not run {entry}:\n{ran.stdout}")
    print("the demo of the README runs with the wheel")


def main() -> None:
    """Check the source distribution and the wheel made from it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wheel, sdist = build(ROOT, directory / "dist")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_names(wheel)
        sources = check_rebuild(wheel, sdist, directory / "again")
        programs = check_use(wheel, directory)
        run(programs / "pip", "install", "-q", f"{wheel}[demo]")
        check_first_command(programs, sources, directory)


if __name__ == "__main__":
    main()
