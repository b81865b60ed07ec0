"""Test of the length of the manual, so that readers find what they look for."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.blocks import ROOT

#: Maximum number of words in the manual, without the pages in which one looks things up.
MOST_WORDS = 26_000
LOOKED_UP = {"configuration.rst", "cli.rst", "json.rst", "metrics.rst"}

CODE = re.compile(r" *\.\. (code-block|literalinclude)::")
OPTION = re.compile(r" *:[\w-]+:( |$)")
#: Tables of results, which commands write.
RESULTS = re.compile(r"\.\. begin ([\w-]+)\n.*?\.\. end \1\n", re.DOTALL)


def prose(text: str) -> list[str]:
    """Return the lines of a page, without code blocks and the options of directives."""
    lines: list[str] = []
    code: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if code is not None and (not line.strip() or indent > code):
            continue
        code = indent if CODE.match(line) else None
        if code is None and not OPTION.match(line):
            lines.append(line)
    return lines


def words(page: Path) -> int:
    """Return the number of words of a page. A word has a letter or a digit.

    Included files, docstrings and tables of results do not count.
    """
    tokens = " ".join(prose(RESULTS.sub("", page.read_text(encoding="utf-8")))).split()
    return sum(any(map(str.isalnum, token)) for token in tokens)


def test_only_prose_counts(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        "Two words - and:\n\n.. code-block:: sh\n   :caption: file\n\n   not\n\n   this\n\n"
        "* an item:\n\n  .. code-block:: sh\n\n     not this\n\n  which goes on\n\n"
        ".. csv-table::\n   :file: not.csv\n",
        encoding="utf-8",
    )
    assert words(page) == 9


def test_the_manual_is_short() -> None:
    files = {str(page.relative_to(ROOT / "docs")): page for page in (ROOT / "docs").rglob("*.rst")}
    pages = {
        name: words(page)
        for name, page in sorted(files.items())
        if name not in LOOKED_UP and not name.startswith("api")
    }
    assert sum(pages.values()) <= MOST_WORDS, pages
