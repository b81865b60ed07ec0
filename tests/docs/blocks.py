"""Reads the examples and other code blocks in the README and the manual."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ("PAGES", "ROOT", "Block", "block_named", "blocks", "blocks_of")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.rst", ROOT / "CHANGES.rst", *sorted((ROOT / "docs").rglob("*.rst"))]
BLOCK = re.compile(r"^( *)\.\. code-block:: (\w+)\n((?:\1 +\S.*\n|[ ]*\n)+)", re.MULTILINE)
OPTION = re.compile(r"\A(?: +:\w[\w-]*:.*\n)+")
CAPTION = re.compile(r" +:caption: (\S+)")
NAME = re.compile(r" +:name: (\S+)")


@dataclass(frozen=True)
class Block:
    """An example in a page.

    ``page`` is a path from the root. ``line`` is the line number of the directive, from 1.
    """

    page: str
    line: int
    language: str
    caption: str
    text: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the examples of a page in order."""
    text = page.read_text(encoding="utf-8") + "\n"
    return [_block(page, text, match) for match in BLOCK.finditer(text)]


def block_named(page: Path, name: str) -> str:
    """Return the text of the one code block of a page that has this name."""
    (block,) = (block for block in blocks_of(page) if block.name == name)
    return block.text


def blocks(*languages: str) -> list[Block]:
    """Return all examples in the given languages."""
    return [b for page in PAGES for b in blocks_of(page) if b.language in languages]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    inside = match[3].lstrip("\n")
    options = OPTION.match(inside)
    caption = CAPTION.search(options[0]) if options else None
    name = NAME.search(options[0]) if options else None
    return Block(
        page=str(page.relative_to(ROOT)),
        line=text.count("\n", 0, match.start()) + 1,
        language=match[2],
        caption=caption[1] if caption else "",
        text=textwrap.dedent(OPTION.sub("", inside)).strip("\n") + "\n",
        name=name[1] if name else "",
    )
