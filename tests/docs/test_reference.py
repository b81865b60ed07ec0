"""Tests of the signatures in the API reference, as Sphinx renders them."""

from __future__ import annotations

import html
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery.utils.dispatch import Signal

import redbeat
import redbeat.signals
from redbeat.entries import policy
from tests.docs.blocks import ROOT

SIGNALS = [one for one in vars(redbeat.signals).values() if isinstance(one, Signal)]

pytest.importorskip("sphinx", reason="Sphinx builds the reference")
pytestmark = pytest.mark.long

#: Builds only the reference, without source code and without links into other manuals.
BUILD = """
import sys
from sphinx.application import Sphinx

docs, out = sys.argv[1:]
changes = {
    "root_doc": "api/index",
    "include_patterns": ["api/*.rst"],
    "extensions": ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "redbeat_reference"],
    "html_theme": "basic",
}
Sphinx(docs, docs, out, out + "/doctrees", "html", changes, status=None).build()
"""

#: Each signature or field with ``Any`` that is allowed, and the reason.
ALLOWED = {
    "RedBeatSchedulerEntry": "the arguments of a task have any type",
    "RedBeatScheduler": "passes the arguments of Celery's scheduler on",
    "tick": "Celery may pass more arguments",
    "maybe_due": "Celery may pass more arguments",
    "apply_async": "Celery may pass more arguments",
    "reserve": "the entry may be Celery's",
    "update_from_dict": "programs pass dicts of any types",
    "get_redis": "redis-py's own types refuse usual code",
    "either_or": "each setting has a type of its own",
    "Kind": "checks a value of any type",
    "Setting": "each setting has a type of its own",
    "value": "each setting has a type of its own",
}
#: A dict or a mapping of fields or arguments, whose values have different types.
FIELDS = re.compile(r"(dict|Mapping)\[str, Any\]")
#: ``Any`` in the place of None, and for an app, so that programs for RedBeat 2, which has no types,
#: pass strict type checkers.
OF_REDBEAT_2 = re.compile(r" \| Any\b|\bapp: Any\b")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the HTML of all pages of the reference."""
    out = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-c", BUILD, str(ROOT / "docs"), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = sorted((out / "api").glob("*.html"))
    assert len(pages) == len([*(ROOT / "docs" / "api").glob("*.rst")])
    return "".join(page.read_text(encoding="utf-8") for page in pages)


def text_of(markup: str) -> str:
    """Return HTML without its tags, in one line."""
    return " ".join(html.unescape(re.sub("<[^>]*>", "", markup)).split())


@pytest.fixture(scope="module")
def signatures(page: str) -> list[str]:
    """Return the signature of each name in the reference."""
    marked = re.findall(r'<dt class="sig sig-object py"[^>]*>(.*?)</dt>', page, re.DOTALL)
    found = [text_of(markup).removesuffix("¶") for markup in marked]
    assert len(found) > 100
    return found


def name_of(signature: str) -> str:
    """Return the name that a signature defines, without its module."""
    words = re.findall(r"[\w.]+", signature.split("(", maxsplit=1)[0].split(":", maxsplit=1)[0])
    return str(words[-1].rpartition(".")[2])


def test_signatures_have_no_marks_of_autodoc(signatures: list[str]) -> None:
    marks = re.compile(r"~|<class|<factory>|<Signal|providing_args|\bForwardRef\b")
    assert [signature for signature in signatures if marks.search(signature)] == []


def test_public_names_have_public_paths(page: str) -> None:
    public = {name: getattr(redbeat, name) for name in redbeat.__all__ if name != "__version__"}
    private = {f"{value.__module__}.{name}" for name, value in public.items()} - {
        f"redbeat.{name}" for name in public
    }
    assert len(private) > 40
    shown = {*re.findall(r"redbeat(?:\.\w+)+", text_of(page))}
    targets = {*re.findall(r'(?:title|href)="(?:(?:\w+\.html)?#)?(redbeat(?:\.\w+)+)"', page)}
    assert (shown | targets) & private == set()


def test_signatures_have_known_types(signatures: list[str]) -> None:
    known = [OF_REDBEAT_2.sub("", FIELDS.sub("dict", one)) for one in signatures]
    vague = {name_of(one) for one in known if re.search(r"\bAny\b", one)}
    assert vague == {*ALLOWED}


def test_types_of_this_package_are_links_to_public_names(page: str) -> None:
    known = {f"redbeat.{name}" for name in redbeat.__all__}
    linked = {*re.findall(r'href="(?:\w+\.html)?#(redbeat\.\w+)"', page)}
    assert {"redbeat.Calendar", "redbeat.Policy", "redbeat.Record"} <= linked <= known


def test_the_arguments_of_signals_are_described(page: str) -> None:
    text = text_of(page)
    assert "redbeat.signals.entry_dispatched" in text
    assert "arguments are entry, scheduled_at (the nominal time of the run, a datetime)" in text
    assert all(f"redbeat.signals.{signal.name}" in text for signal in SIGNALS)


def test_every_name_of_this_package_must_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sphinx ignores unresolved names of other manuals and type variables only."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # conf.py adds directories
    settings: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    patterns = [re.compile(pattern) for _, pattern in settings["nitpick_ignore_regex"]]
    names = {"EntryState", "RunState", "Span", "TypedSignal"}
    for file in Path(redbeat.__file__).parent.rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        defined = re.findall(r"^ *class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        names |= {*defined} | {f"{module}.{name}" for name in defined}
    assert len(names) > 400
    assert [name for name in names if any(one.fullmatch(name) for one in patterns)] == []


def test_the_arguments_of_an_entry_are_named_and_described(
    page: str, signatures: list[str]
) -> None:
    by_name = {name_of(one): one for one in signatures}
    text = text_of(page).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    entry, find = by_name["RedBeatSchedulerEntry"], by_name["find"]
    for name, field in policy.FIELDS.items():
        assert f" {name}: " in entry
        assert f"{name}{field.metadata['description']}" in text
    assert [one for one in redbeat.EntryFilters.__annotations__ if f" {one}: " not in find] == []
