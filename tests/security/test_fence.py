"""Only ``codec/stored.py`` decodes bytes and JSON that come from Redis."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "redbeat"
FENCE = "codec/stored.py"

#: Modules that decode something else, with what they decode.
OTHERS = {
    "decoder.py": "the decoder class of the public API, which the fence calls",
    "presentation/describe.py": "JSON that this process has just written",
    "printing.py": "the ASCII escapes of Python",
    "web/auth.py": "what a browser sent",
    "web/values.py": "what a browser sent",
    "web/entry.py": "what a browser sent",
    "web/form.py": "what a browser sent",
    "web/site.py": "what a browser sent",
    "transfer/jsonlines.py": "a file that a user imports",
    "transfer/crontab_file.py": "a file that a user imports",
    "transfer/django.py": "a file that a user imports",
    "transfer/entry_file.py": "a file that a user plans",
    "management/apply.py": "JSON of a plan that this process has made",
}

#: Names in the module ``json`` that parse.
JSON_PARSERS = {"loads", "raw_decode", "JSONDecoder", "scan_once"}

#: The error handlers of codecs that accept invalid bytes.
CODECS = {"surrogateescape", "surrogatepass"}


def parsers_in(path: Path) -> list[str]:
    """Return the places in a module that parse JSON, decode bytes or handle invalid bytes."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if parses(node)]
    return [ast.unparse(node) for node in nodes]


def parses(node: ast.AST) -> bool:
    """Return whether a node of the syntax tree parses JSON or decodes bytes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # Python's bytes.decode() has names of codecs as arguments, or none.
        names = all(isinstance(argument, ast.Constant) for argument in node.args)
        return node.func.attr == "decode" and names
    if isinstance(node, ast.Attribute):
        return node.attr in JSON_PARSERS
    if isinstance(node, ast.alias):
        return node.name in JSON_PARSERS
    if isinstance(node, ast.keyword):
        return node.arg == "errors"
    return isinstance(node, ast.Constant) and node.value in CODECS


MODULES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("name", sorted(MODULES.keys() - OTHERS.keys() - {FENCE}))
def test_a_module_does_not_parse_what_is_stored(name: str) -> None:
    assert parsers_in(MODULES[name]) == []


def test_the_check_finds_parsers() -> None:
    found = " ".join(parsers_in(MODULES[FENCE]))
    assert "loads" in found
    assert "JSONDecoder" in found
    assert "surrogateescape" in found
