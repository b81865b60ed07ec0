"""Only ``entry.py`` uses the private attributes of an entry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from redbeat import RedBeatSchedulerEntry

PACKAGE = Path(__file__).parents[2] / "redbeat"
HOME = PACKAGE / "entry.py"


def private_names() -> set[str]:
    """Return the private attributes that ``entry.py`` defines or sets."""
    tree = ast.parse(HOME.read_text())
    entry = next(
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == RedBeatSchedulerEntry.__name__
    )
    used = {node.attr for node in ast.walk(entry) if isinstance(node, ast.Attribute)}
    names = {*vars(RedBeatSchedulerEntry), *used}
    names = {name for name in names if name.startswith("_") and not name.endswith("__")}
    # ``_replace`` is a method of named tuples. Programs override ``_next_instance``, and a beat
    # asks whether they do.
    return names - {"_replace", "_next_instance"}


def offences(source: str, path: str, private: set[str]) -> Iterator[str]:
    """Yield each access to a private attribute of an object other than ``self`` and ``cls``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in private:
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield f"{path}:{node.lineno} uses {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and node.value in private:
            yield f"{path}:{node.lineno} names {node.value!r}"


def test_no_other_module_uses_them() -> None:
    private = private_names()
    found = [
        offence
        for path in sorted({*PACKAGE.rglob("*.py")} - {HOME})
        for offence in offences(path.read_text(), str(path.relative_to(PACKAGE)), private)
    ]
    assert not found


def test_offences_are_found() -> None:
    """The test above would fail for each way to use a private attribute."""
    source = "entry._calendars = None\nself._calendars\ngetattr(one.entry, '_calendars')\n"
    assert list(offences(source, "beat/x.py", private_names())) == [
        "beat/x.py:1 uses entry._calendars",
        "beat/x.py:3 names '_calendars'",
    ]
