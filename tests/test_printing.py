"""Whatever a log line, a terminal or a label contains is safe to print."""

from __future__ import annotations

import ast
import importlib
import io
import logging
import pkgutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redbeat
from redbeat.printing import LOG_LIMIT, encodable, get_logger, printable

PACKAGE = Path(redbeat.__file__).parent

#: Characters that forge, colour or hide text, or that UTF-8 cannot encode.
BAD = "\n\r\x00\x1b\x7f\x85\x9b\u200b\u2028\u2029\u202e\u2066\ufeff\ud800\udcff\U000e0001"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nightly", "nightly"),
        ("日本 é", "日本 é"),
        ("a\x1b[31mred\n", "a\\x1b[31mred\\n"),
        ("bad \udcff byte", "bad \\xff byte"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("a\u202eb", "a\\u202eb"),
        ("\ufeff\u2028\U000e0001", "\\ufeff\\u2028\\U000e0001"),
    ],
)
def test_control_characters_of_a_name_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()), st.integers(60, 200))
def test_printable_text_is_encodable_short_and_one_line(text: str, limit: int) -> None:
    shown = printable(text * 20, limit)
    shown.encode()
    assert len(shown) <= limit
    assert not set(shown) & set(BAD)
    assert len(shown.splitlines()) <= 1


def test_a_long_text_keeps_its_beginning() -> None:
    shown = printable("begin" + "\n" * 1_000_000 + "end", 100)
    assert shown.startswith("begin\\n")
    assert shown.endswith("\\n...")


def test_a_name_in_data_changes_only_what_cannot_be_encoded() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert encodable(f"{family} \n") == f"{family} \n"
    assert encodable("nm\udcff\ud800") == "nm\\xff\\ud800"


# -- every logger of the package -------------------------------------------------------------------


def test_loggers_are_made_in_one_place() -> None:
    """No module makes a logger another way, and each message is a constant."""
    wrong = [
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "printing.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if _makes_a_logger(node) or _logs_no_constant(node)
    ]
    assert wrong == []


def _makes_a_logger(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return "structlog" in {name.name.partition(".")[0] for name in node.names}
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "logging":
        is_type = node.attr in ("Handler", "LogRecord")
        return not is_type and not node.attr.isupper()  # nor do levels make a logger
    ways = ("logging", "celery.utils.log", "celery.utils", "kombu.log")
    return isinstance(node, ast.ImportFrom) and node.module in ways


def _logs_no_constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not _is_log_call(node):
        return False
    return not isinstance(node.args[0], (ast.Constant, ast.Name))


def _is_log_call(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value).endswith("logger")
        and node.func.attr != "isEnabledFor"
    )


def imported_modules() -> Iterator[ModuleType]:
    """Yield all modules of the package."""
    for info in pkgutil.walk_packages(redbeat.__path__, "redbeat."):
        if info.name != "redbeat.web.django":  # it needs the settings of a Django project
            yield importlib.import_module(info.name)


def test_every_logger_of_the_package_prints_safe_lines() -> None:
    loggers = {
        value
        for module in imported_modules()
        for value in vars(module).values()
        if isinstance(value, logging.Logger)
    }
    assert {logger.name for logger in loggers} >= {"celery.beat", "redbeat.web", "redbeat.worker"}
    for logger in loggers:
        out = io.StringIO()
        handler = logging.StreamHandler(out)
        logger.addHandler(handler)
        try:
            logger.error("%s", "\n")
        finally:
            logger.removeHandler(handler)
        assert out.getvalue() == "\\n\n", logger.name


# -- log lines -------------------------------------------------------------------------------------


class Unprintable:
    """An object whose text forms raise errors."""

    def __str__(self) -> str:
        raise ValueError("\n")

    __repr__ = __str__


def logged(message: str, *args: Any, error: BaseException | None = None) -> str:
    """Return the text that a handler writes for a log call."""
    logger, out = get_logger("redbeat.tests.printing"), io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.addHandler(handler)
    try:
        logger.error(message, *args, exc_info=error)
    finally:
        logger.removeHandler(handler)
    return out.getvalue()


@pytest.mark.parametrize("char", BAD, ids=ascii)
@pytest.mark.parametrize("conversion", ["%s", "%r"])
def test_no_argument_adds_a_line_or_a_control_character(char: str, conversion: str) -> None:
    text = f"a{char}FORGED: b"
    for value in (
        text,
        ValueError(text),
        [text],
        {text: text},
        Path(text),
        text.encode("utf-8", "surrogatepass"),
    ):
        line = logged(f"Entry {conversion}.", value)
        line.encode()
        assert line.startswith("ERROR: Entry ")
        assert line.endswith(".\n")
        assert not set(line[:-1]) & set(BAD)


def test_each_argument_is_shortened() -> None:
    line = logged("%s and %r and %s", "x" * 10_000, ["y" * 10_000], "the end")
    assert len(line) < 2 * LOG_LIMIT + 100
    assert line.endswith("the end\n")


def test_numbers_and_short_texts_stay_as_they_are() -> None:
    assert logged("%d %.1f %s %r %s", 3, 0.25, True, "it", None) == "ERROR: 3 0.2 True 'it' None\n"
    assert logged("%(a)s %(b)d", {"a": "x\ny", "b": 2}) == "ERROR: x\\ny 2\n"
    assert logged("100 %") == "ERROR: 100 %\n"


def test_an_object_without_a_text_does_not_lose_the_line() -> None:
    line = logged("Entry %s: %r", Unprintable(), Unprintable())
    assert line.count("<a Unprintable that cannot be printed: ValueError>") == 2


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Return the error with a traceback."""
    try:
        raise error from cause
    except type(error) as found:
        return found


def test_a_traceback_cannot_forge_a_line() -> None:
    cause = raised(ValueError("a\nERROR: forged \x1b[31m" + "x" * 10_000))
    text = logged(
        "failed", error=raised(KeyError("b\u2028"), raised(RuntimeError("\nERROR: c"), cause))
    )
    assert [line for line in text.splitlines() if line.startswith("ERROR")] == ["ERROR: failed"]
    assert not set(text) & set(BAD.replace("\n", ""))
    assert text.count("Traceback (most recent call last):") == 3
    assert "The above exception was the direct cause" in text
    assert max(map(len, text.splitlines())) <= 2000


def test_an_ordinary_traceback_is_left_to_the_formatter() -> None:
    error = raised(ValueError("plain"))
    assert logged("failed", error=error) == "ERROR: failed\n" + "".join(
        traceback.format_exception(error)
    )
