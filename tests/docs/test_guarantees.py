"""Every statement of ``docs/guarantees.rst`` names the tests that prove it, and these exist.

A statement is a paragraph, an item or a row of a table. Its tests stand in a comment after it::

   .. proof: tests/faults/test_kills.py::test_no_run_is_doubled_by_a_kill
      tests/faults/test_replies.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "guarantees.rst"
MARK = "proof:"


def proofs_in(found: Sequence[nodes.Node]) -> list[str]:
    """Return the tests that the comments among these nodes name."""
    texts = [node.astext() for node in found if isinstance(node, nodes.comment)]
    return [
        name for text in texts if text.startswith(MARK) for name in text.removeprefix(MARK).split()
    ]


def statements(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each statement of a page with the tests that it names; not the first paragraph."""
    document = publish_doctree(text, settings_overrides={"report_level": 5})
    for row in document.findall(nodes.row):
        if not isinstance(row.parent, nodes.thead):
            cells = [cell for cell in row.children if isinstance(cell, nodes.Element)]
            found = [name for cell in cells for name in proofs_in(cell.children)]
            yield row.astext(), found
    for message in [*document.findall(nodes.system_message)]:  # about roles of Sphinx
        message.parent.remove(message)
    paragraphs = [
        found
        for found in document.findall(nodes.paragraph)
        if not isinstance(found.parent, nodes.entry)
    ]
    for paragraph in paragraphs[1:]:
        place = paragraph.parent.index(paragraph) + 1
        yield paragraph.astext(), proofs_in(paragraph.parent.children[place : place + 1])


STATEMENTS = [*statements(PAGE.read_text(encoding="utf-8"))]


@cache
def functions_in(path: Path) -> set[str]:
    """Return the names of the functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_a_statement_without_a_proof_is_found() -> None:
    text = (
        "Page\n====\n\nFirst.\n\n* one\n\n  .. proof: a.py::b c.py\n\n* two\n\nLast.\n\n.. other\n"
    )
    assert [*statements(text)] == [("one", ["a.py::b", "c.py"]), ("two", []), ("Last.", [])]


def test_every_statement_has_a_proof() -> None:
    assert len(STATEMENTS) > 40
    assert [text for text, proofs in STATEMENTS if not proofs] == []


@pytest.mark.parametrize("name", sorted({name for _, found in STATEMENTS for name in found}))
def test_the_proof_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert (ROOT / file).is_file()
    assert not function or function in functions_in(ROOT / file)
