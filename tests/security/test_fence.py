"""Only ``codec/stored.py`` parses text that comes from Redis: bytes, JSON, numbers, instants."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeGuard

import pytest

PACKAGE = Path(__file__).parents[2] / "redbeat"
FENCE = "codec/stored.py"

#: Modules that decode something else, with what they decode.
OTHERS = {
    "beat/message.py": "JSON that this process has just written",
    "entries/changes.py": "the encoding of a text that it has read",
    "entries/decide.py": "the encoding of a name that was read",
    "entries/state.py": "what beats keep; any error makes a fresh state, with a problem",
    "metrics/counts.py": "JSON that a script has just written",
    "storage/rows.py": "JSON that a script has just written",
    "storage/store.py": "JSON that a script has just written",
    "decoder.py": "the decoder class of the public API, which the fence calls",
    "presentation/describe.py": "JSON that this process has just written",
    "printing.py": "the ASCII escapes of Python",
    "web/pages.py": "what a browser sent",
    "web/api.py": "the OpenAPI document in this package",
    "web/auth.py": "what a browser sent",
    "web/django.py": "what a browser sent",
    "web/values.py": "what a browser sent",
    "web/form.py": "what a browser sent",
    "web/site.py": "what a browser sent",
    "schedules/ical.py": "a file that a user imports",
    "transfer/incoming.py": "a file that a user imports",
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


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a module."""
    return list(ast.walk(ast.parse(text)))


def calls_in(path: Path) -> list[ast.Call]:
    """Return all calls in a module."""
    return [node for node in nodes_of(path.read_text()) if isinstance(node, ast.Call)]


def parsers_in(path: Path) -> list[str]:
    """Return the places in a module that parse JSON, decode bytes or handle invalid bytes."""
    return [ast.unparse(node) for node in nodes_of(path.read_text()) if parses(node)]


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


def test_no_module_parses_what_is_stored() -> None:
    names = MODULES.keys() - OTHERS.keys() - {FENCE}
    found = {name: parsers for name in names if (parsers := parsers_in(MODULES[name]))}
    assert found == {}, "use codec/stored.py, or add the module to OTHERS"


def test_the_check_finds_parsers() -> None:
    found = " ".join(parsers_in(MODULES[FENCE]))
    assert "loads" in found
    assert "JSONDecoder" in " ".join(parsers_in(MODULES["decoder.py"]))
    assert "surrogateescape" in found


# -- numbers and instants --------------------------------------------------------------------------

#: Functions that turn a text into a number, or a number into an instant. Most of them accept
#: infinity, NaN, digits of other scripts, or any length.
NUMBER_PARSERS = {
    *("int", "float", "Decimal", "from_timestamp", "fromtimestamp", "fromisoformat", "strptime"),
}

#: Modules that read no stored text: they read settings, files, and what a user enters.
ELSEWHERE = ("calendar/", "cli/", "connection/", "schedules/", "transfer/", "config.py")

#: The decoder of definitions, which reads values with a type that was checked.
CODEC = ("codec/types.py",)

#: What else modules may parse, with the reason: module -> (reason, call, ...).
NUMBERS: dict[str, tuple[str, ...]] = {
    "beat/lock.py": ("a setting", "int(self.timeout)"),
    "beat/one_step.py": ("a setting", "int(pool.connection_kwargs.get('db') or 0)"),
    "beat/own_code.py": (
        "what the program returns; the time of Redis, and scores that it found due",
        "from_timestamp(at)",
        "from_timestamp(score)",
    ),
    "beat/stop_signals.py": ("a constant", "int(signal.SIGINT)", "int(signal.SIGTERM)"),
    "beat/trouble.py": ("a rate", "int(self._tokens)"),
    "entries/decide.py": ("what is_due() of the program returns", "float(seconds)"),
    "entries/history.py": ("what a regular expression has checked", "map(int, usual.groups('0'))"),
    "entries/policy.py": (
        "JSON that was decoded, of a type and in a range that were checked",
        "float(value)",
        "int(value)",
    ),
    "entries/saving.py": ("a score of Redis", "float(row.score or changes.NOW)", "float(score)"),
    "entries/state.py": ("what seconds_in has checked", "from_timestamp(_seconds(value))"),
    "entries/status.py": (
        "what seconds_in has checked",
        "from_timestamp(last)",
        "from_timestamp(since)",
        "from_timestamp(success)",
    ),
    "management/find.py": ("what a regular expression has checked", "int(after)"),
    "metrics/counts.py": ("in replies of a script", "float(head['now'])", "int(score_in(runs))"),
    "metrics/prometheus.py": (
        "conditions",
        "float(value)",
    ),
    "presentation/cron_text.py": (
        "what regular expressions have checked",
        "int(match[1] or lowest)",
        "int(match[2] or highest)",
        "int(match[3] or 0)",
        "int(match[5] or 1)",
        "int(value)",
    ),
    "presentation/rule_text.py": (
        "what a user entered; ValueError is an error of this text",
        "Decimal(number)",
        "float(latitude)",
        "float(longitude)",
        "float(seconds)",
        "int(seconds)",
    ),
    "presentation/text.py": ("a number", "Decimal(repr(seconds))", "Decimal(str(number))"),
    "schedulers.py": ("a setting", "int(self.lock_timeout)"),
    "storage/reading.py": (
        "replies of TIME and INFO; a cursor of Redis",
        "int(cursor)",
        "int(micros)",
        "int(seconds)",
    ),
    "storage/store.py": (
        "times in the replies of scripts, and what this process sends; the reply of WAIT",
        "float(age)",
        "float(head.get('next', 'inf'))",
        "float(head['now'])",
        "float(value)",
        "int(connection.read_response())",
    ),
    "web/api.py": ("what a regular expression has checked", "int(text)"),
    "web/form.py": ("what a user entered; ValueError is an error of the field", "int(text)"),
    "web/pages.py": ("what a regular expression has checked", "int(at)"),
    "web/values.py": ("the time of Redis", "from_timestamp(seconds)"),
    "worker.py": (
        "headers of a message; an invalid one makes a warning",
        "int(retries)",
    ),
}


def numbers_in(path: Path) -> list[str]:
    """Return the calls in a module that parse numbers or instants, except arithmetic."""
    return [ast.unparse(call) for call in calls_in(path) if parses_number(call)]


def parses_number(call: ast.Call) -> bool:
    """Return whether a call parses a number or an instant."""
    function = name_of(call.func)
    if function in NUMBER_PARSERS:
        return any(not is_number(argument) for argument in call.args)
    mapped = name_of(call.args[0]) if call.args else ""
    return function == "map" and mapped in NUMBER_PARSERS


def name_of(node: ast.expr) -> str:
    """Return the last part of a name, "" for another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


#: Functions that return a number, or nothing that is a text.
NUMERIC = {"total_seconds", "abs", "min", "max", "sum", "_run", "time"}

#: Attributes that are numbers, or scores as Redis writes them.
CHECKED = {"at", "due", "last", "now", "score", "since", "success", "until"}

#: Commands of Redis whose reply is an integer.
INTEGER_COMMANDS = {"ZCARD", "ZCOUNT", "PTTL", "SCARD", "HLEN"}


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is certainly a number.

    That is a literal, a constant, a field that was checked, the result of arithmetic, or a part of
    the reply of a command or a script.
    """
    if isinstance(node, ast.Call) and name_of(node.func) == "_read":
        command = node.args[0]
        return isinstance(command, ast.Constant) and command.value in INTEGER_COMMANDS
    if isinstance(node, ast.Call):
        parses = name_of(node.func) in NUMBER_PARSERS and not parses_number(node)
        return parses or name_of(node.func) in NUMERIC
    if isinstance(node, ast.Subscript):
        return name_of(node.value) == "reply"
    if isinstance(node, ast.BoolOp):
        return all(map(is_number, node.values))
    if isinstance(node, ast.Attribute):
        return node.attr in CHECKED
    if isinstance(node, ast.Name):
        return node.id == "now" or node.id.isupper()  # a constant
    arithmetic = isinstance(node, (ast.BinOp, ast.UnaryOp))
    return arithmetic or isinstance(node, ast.Constant)


def test_no_module_parses_stored_numbers() -> None:
    names = [
        name for name in MODULES if name not in (*CODEC, FENCE) and not name.startswith(ELSEWHERE)
    ]
    found = {name: numbers for name in names if (numbers := set(numbers_in(MODULES[name])))}
    allowed = {name: set(calls) for name, (_reason, *calls) in NUMBERS.items()}
    assert found == allowed, "use codec/stored.py, or change the line in NUMBERS"


@pytest.mark.parametrize(
    "text",
    [
        *("float(text)", "int(words[1])", "from_timestamp(score)", "map(float, words)"),
        *("datetime.fromtimestamp(float(x))", "zones.from_timestamp(x)", "float(x or '0')"),
        *("int(self._read('HGET', key, 'a'))", "float(words[0])"),
    ],
)
def test_the_check_finds_numbers(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert numbers_in(path)
    path.write_text("int(seconds * 1000)\nfloat('inf')\nint(x.total_seconds())\nisinstance(x, int)")
    assert numbers_in(path) == []


# -- printing --------------------------------------------------------------------------------------

#: The modules that print, and that make loggers.
PRINTERS = ("cli/command.py", "printing.py")

#: What else prints, and why it needs no escapes.
PRINTED = {
    "cli/import_export.py": ("lines of JSON in ASCII", "out.write(exported.line + '\\n')"),
}

#: Functions of click, Celery and Python that print, or that make a logger without escapes.
PRINTING = {
    *("print", "echo", "secho", "echo_via_pager", "getLogger", "celery_logger", "pretty"),
    *("getChild", "showwarning", "print_exc"),
}

#: Objects with a method ``write``, ``error`` or ``style`` that prints as it is.
STREAMS = {"stdout", "stderr", "obj", "out", "click"}


def prints_in(path: Path) -> list[str]:
    """Return the calls in a module that print, or that make a logger."""
    return [ast.unparse(call) for call in calls_in(path) if prints(call)]


def prints(call: ast.Call) -> bool:
    """Return whether a call prints, or makes a logger."""
    function = call.func
    if name_of(function) in PRINTING:
        return True
    to_stream = isinstance(function, ast.Attribute) and name_of(function.value) in STREAMS
    return to_stream and name_of(function) in {"write", "writelines", "error", "style"}


def test_no_other_module_prints() -> None:
    names = MODULES.keys() - set(PRINTERS)
    found = {name: calls for name in names if (calls := prints_in(MODULES[name]))}
    assert found == {name: calls for name, (_reason, *calls) in PRINTED.items()}


def makes_loggers(text: str) -> bool:
    """Return whether a module makes its logger itself."""
    return "celery.utils.log" in text or ("import logging\n" in text and "logging.get" in text)


def test_modules_take_their_loggers_from_the_module_that_escapes() -> None:
    texts = {name: MODULES[name].read_text() for name in MODULES.keys() - set(PRINTERS)}
    assert [name for name, text in texts.items() if makes_loggers(text)] == []


#: Where an error is shown by its ``repr``: a stop signal's, and errors of reading stored texts.
SHOWN_BY_REPR = {
    "beat/send.py": ["repr(error)"],
    "entries/state.py": ["{error!r:.200}", "{error!r:.200}"],
}


def reprs_of_errors_in(path: Path) -> list[str]:
    """Return where a module shows an error by its ``repr``, in which redis-py 8 has no message."""
    handlers = (node for node in ast.walk(ast.parse(path.read_text())) if is_named_handler(node))
    return [
        ast.unparse(node)
        for handler in handlers
        for node in ast.walk(handler)
        if shows_by_repr(node, str(handler.name))
    ]


def is_named_handler(node: ast.AST) -> TypeGuard[ast.ExceptHandler]:
    return isinstance(node, ast.ExceptHandler) and node.name is not None


def shows_by_repr(node: ast.AST, name: str) -> bool:
    """Return whether a node shows the variable ``name`` by its ``repr``."""
    if isinstance(node, ast.FormattedValue):
        return node.conversion == ord("r") and ast.unparse(node.value) == name
    if not isinstance(node, ast.Call) or not node.args:
        return False
    if ast.unparse(node.func) == "repr":
        return ast.unparse(node.args[0]) == name
    text, *rest = node.args
    shown = list(map(ast.unparse, chain.from_iterable(map(unpacked, rest))))
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str) or name not in shown:
        return False
    kinds = re.findall(r"%[-.\d]*([a-z])", text.value)
    return len(kinds) == len(shown) and kinds[shown.index(name)] == "r"


def unpacked(node: ast.expr) -> list[ast.expr]:
    """Return the elements of ``*(a, b)``, and any other argument alone."""
    is_many = isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple)
    return node.value.elts if is_many else [node]  # type: ignore[attr-defined]


def test_no_error_of_redis_is_shown_without_its_message() -> None:
    found = {name: calls for name, path in MODULES.items() if (calls := reprs_of_errors_in(path))}
    assert found == SHOWN_BY_REPR


@pytest.mark.parametrize(
    "line",
    [
        *('f"failed: {error!r}"', "text = repr(error)", 'logger.info("%s: %r", a, error)'),
        'logger.info("%s: %r", *(a, error))',
    ],
)
def test_the_check_finds_reprs_of_errors(line: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"try:\n    pass\nexcept OSError as error:\n    {line}\n")
    assert len(reprs_of_errors_in(path)) == 1
    path.write_text(path.read_text().replace("%r", "%s").replace("!r", "").replace("repr", "str"))
    assert reprs_of_errors_in(path) == []


@pytest.mark.parametrize(
    "text",
    [
        *("click.echo(name)", "print(name)", "logging.getLogger('a')", "sys.stdout.write(x)"),
        *("console.ctx.obj.error(x)", "ctx.obj.echo(x)", "self.ctx.obj.style(x)"),
    ],
)
def test_the_check_finds_what_prints(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert prints_in(path) == [text]
