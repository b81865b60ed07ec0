"""Reads the configurations in the manual; host names and files are replaced by those of a test."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redbeat.settings import SETTINGS

PAGES = Path(__file__).parents[1] / "docs" / "deployment"
BLOCK = re.compile(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)")


def configurations(page: str, replace: Mapping[str, str], **names: Any) -> list[dict[str, Any]]:
    """Execute each code block of a page that sets a URL, and return the settings of each block.

    ``replace`` maps strings in the manual, such as host names and paths, to values of the test.
    ``names`` are the names that the blocks import. Asserts that RedBeat knows all settings.
    """
    found = []
    for block in BLOCK.findall((PAGES / page).read_text(encoding="utf-8") + "\n"):
        text = textwrap.dedent(block)
        for name, replacement in replace.items():
            text = text.replace(name, replacement)
        if "_url =" in text:
            made = dict(names)
            exec(text, made)
            settings = {name: made[name] for name in made if re.match("redbeat_|broker_", name)}
            unknown = {name for name in settings if name.startswith("redbeat_")} - SETTINGS.keys()
            assert not unknown, unknown
            found.append(settings)
    return found
