"""The map of the package in ``docs/contributing.rst``: modules import only from lower floors."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.docs.blocks import block_named

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "redbeat"
PAGE = ROOT / "docs" / "contributing.rst"


class Import(NamedTuple):
    """One import of a module of the package, with the importing module and the line."""

    importer: str
    line: int
    imported: str


def module_of(path: Path) -> str:
    """Return the name of a module relative to the package, or "" for the package itself."""
    return (
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        .removesuffix("__init__")
        .strip(".")
    )


@functools.cache
def statements_of(path: Path) -> list[Any]:
    """Return the statements of a module, except the ones under ``TYPE_CHECKING``."""
    blocks: list[Any] = [ast.parse(path.read_text())]
    found = []
    while blocks:
        node = blocks.pop()
        found.append(node)
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            # Only statements contain imports, and most nodes of a tree are expressions.
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                blocks += getattr(node, name, ())
    return found


def imports_of(path: Path) -> list[Import]:
    """Return the imports from the package in a module, except the ones under ``TYPE_CHECKING``."""
    me = module_of(path)
    package = me if path.stem == "__init__" else me.rpartition(".")[0]
    found = []
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*base, node.module or ""] if node.level else [node.module or ""]
            name = ".".join(filter(None, parts))
            if node.level or name.partition(".")[0] == "redbeat":
                found.append(Import(me, node.lineno, name.removeprefix("redbeat").strip(".")))
    return found


def floors() -> dict[str, int]:
    """Return the floor number of each package and module in the map. The top has the highest."""
    lines = block_named(PAGE, "floors").splitlines()
    names = [line.split("   ")[0].split() for line in lines]
    return {name: len(lines) - row for row, found in enumerate(names) for name in found}


FLOORS = floors()
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_module_has_a_floor() -> None:
    found = {module_of(path).partition(".")[0] for path in MODULES} - {""}
    assert found == set(FLOORS)


def imports_up(path: Path) -> list[str]:
    """Return the imports of a module that go up."""
    me = module_of(path).partition(".")[0]
    return [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in imports_of(path)
        if me and FLOORS.get(found.imported.partition(".")[0], 0) > FLOORS[me]
    ]


def test_imports_go_down() -> None:
    assert [found for path in MODULES for found in imports_up(path)] == []


def test_no_two_modules_need_each_other() -> None:
    names = {module_of(path) for path in MODULES}
    graph = {
        module_of(path): {found.imported for found in imports_of(path)} & names - {""}
        for path in MODULES
    }
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph


#: Those that work on schedules from outside of a beat.
TOOLS = ("cli", "management", "metrics", "presentation", "transfer", "web")

#: What a tool may ask the code of a beat: why Celery itself makes the messages of an entry.
MAY_ASK = "redbeat.beat.message.why_not_rendered"

#: Modules, and what they must not import, because that is another one's work.
ROOMS = {
    **dict.fromkeys(TOOLS, ("redbeat.beat",)),
    "entries/verdicts.py": ("redbeat.storage", "redis", "time"),  # it computes
    "beat/turn.py": ("redbeat.entries", "redbeat.entry"),  # it talks to the store, of any change
    "beat/outcome.py": ("redbeat.storage.store", "redis", "kombu"),  # it makes and reads changes
    "beat/send.py": ("redbeat.entries.verdicts", "redbeat.storage", "redis"),  # it publishes
    "beat/one_step.py": ("redbeat.entries.verdicts",),
}

#: The code that calls what users override, and the only modules that may import it.
OWN_CODE, CALLERS = "redbeat.beat.own_code", {"beat/beat.py", "schedulers.py"}


def names_imported_by(path: Path) -> list[str]:
    """Return the full names of all modules, and of what is imported from them."""
    package, found = ["redbeat", *path.relative_to(PACKAGE).parts[:-1]], []
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(filter(None, (*base, node.module)))
            found += [f"{module}.{name.name}" for name in node.names]
    return found


def is_in(name: str, module: str) -> bool:
    """Return whether a name is that of a module, or of something in it."""
    return f"{name}.".startswith(f"{module}.")


@pytest.mark.parametrize("room", ROOMS)
def test_each_keeps_to_its_work(room: str) -> None:
    top = PACKAGE / room
    paths = [top] if top.suffix else sorted(top.rglob("*.py"))
    names = [name for path in paths for name in names_imported_by(path) if name != MAY_ASK]
    assert names
    assert [name for name in names if any(is_in(name, other) for other in ROOMS[room])] == []


def test_plain_runs_never_enter_the_code_for_what_users_override() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if any(is_in(name, OWN_CODE) for name in names_imported_by(path))
    }
    assert users <= CALLERS


def test_the_files_of_a_change_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("\nWhere do I change")[2].partition("\nEnvironment and tests")[0]
    names = re.findall(r"``([\w./-]+/[\w./-]*)``", table)
    assert "entries/policy.py" in names
    missing = [name for name in names if not any((top / name).exists() for top in (ROOT, PACKAGE))]
    assert missing == [], "the table of docs/contributing.rst names them"
