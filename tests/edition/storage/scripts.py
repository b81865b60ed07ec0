"""Load the Lua scripts of the third edition; see :mod:`redbeat.storage.scripts`."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from redbeat.storage.scripts import INCLUDE, Script


@cache
def load_script(name: str) -> Script:
    """Return the script ``lua/<name>.lua``, with each included part as one line."""
    text = INCLUDE.sub(lambda match: _part(match[1]), _read(name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _part(name: str) -> str:
    lines = [line.strip() for line in _read(f"parts/{name}").splitlines()]
    return " ".join(line.partition("  -- ")[0] for line in lines if not line.startswith("--"))


def _read(name: str) -> str:
    return files("tests.edition").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")
