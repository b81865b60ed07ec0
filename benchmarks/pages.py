"""Puts tables of results into the pages of the manual, between two comments.

The tables stand in the pages themselves, because a repository's page shows no included files.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ("put", "taken")


def _marks(name: str) -> tuple[str, str]:
    return f".. begin {name}\n\n", f"\n.. end {name}\n"


def put(page: Path, name: str, text: str) -> None:
    """Replace the results called ``name`` in a page. A page without them gets them at its end."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    begin, end = _marks(name)
    before, found, after = old.partition(begin)
    after = after.partition(end)[2] if found else ""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def taken(page: Path, name: str) -> str:
    """Return the results called ``name`` in a page."""
    begin, end = _marks(name)
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
