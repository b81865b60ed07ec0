"""Makes text to print: safe in logs, on terminals and in labels of metrics, and in English.

A stored name may contain line feeds, terminal escapes or bytes that are not UTF-8. Without
escaping, a stored name could forge log lines, colour a terminal, or cause an encoding error. All
loggers of RedBeat come from this module, which escapes the log lines.
"""

from __future__ import annotations

import logging
import re
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any, Final

from celery.utils.log import get_logger as celery_logger

#: The Unicode categories of characters that could control a terminal or cannot be encoded.
UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: Surrogates, which UTF-8 cannot encode, replace the bytes in Redis replies that are not UTF-8.
SURROGATES: Final = re.compile("[\ud800-\udfff]")

#: Maximum length of one argument of a log line, in characters.
LOG_LIMIT: Final = 1000

#: Maximum length of the message of one exception in a logged traceback, in characters.
TRACEBACK_LIMIT: Final = 2000


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def printable(text: str, limit: int | None = None) -> str:
    """Return ``text`` with control characters and unencodable characters escaped.

    If the escaped text is longer than ``limit`` characters, its end is left out.
    """
    if limit is not None:
        text = text[: limit + 1]  # escaping never shortens a text
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_escaped_char, text))
    return text if limit is None else shortened(text, limit)


def _escaped_char(char: str) -> str:
    if unicodedata.category(char) not in UNPRINTABLE:
        return char
    if "\udc80" <= char <= "\udcff":  # the surrogate replaces a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def encodable(text: str) -> str:
    """Return ``text`` with surrogates escaped, so that UTF-8 can encode it.

    For names in data, such as JSON and signals: valid names stay as they are.
    """
    if text.isascii():
        return text
    return SURROGATES.sub(lambda match: _escaped_char(match[0]), text)


def get_logger(name: str) -> logging.Logger:
    """Return a logger whose lines are safe to print, whatever their arguments contain.

    It makes each argument printable, shortens it to :data:`LOG_LIMIT` characters, and makes the
    exception messages in tracebacks printable. Handlers need no configuration.
    """
    logger: logging.Logger = celery_logger(name)
    logger.addFilter(_make_printable)
    return logger


@contextmanager
def warnings_to(write: Callable[[str], None]) -> Iterator[None]:
    """Call ``write`` with each warning and error that RedBeat logs within the context.

    For the command line: Celery does not configure logging for commands.
    """
    logger = get_logger("celery.beat")
    handler = _Writer(logging.WARNING)
    handler.write = write
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Writer(logging.Handler):
    """Passes each log message, without time and level, to the function ``write``."""

    write: Callable[[str], None]

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.getMessage())


class _Printed:
    """An argument of a log line; its ``str`` and ``repr`` are printable and of limited length."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return self._text(str)

    def __repr__(self) -> str:
        return self._text(repr)

    def _text(self, convert: Callable[[Any], str]) -> str:
        try:
            return printable(convert(self._value), LOG_LIMIT)
        except Exception as error:
            kinds = type(self._value).__name__, type(error).__name__
            return "<a {} that cannot be printed: {}>".format(*kinds)


def _make_printable(record: logging.LogRecord) -> bool:
    """Make the arguments and the traceback printable; return True, so that the record is logged."""
    args = record.args
    if isinstance(args, Mapping):
        record.args = {name: _safe_argument(value) for name, value in args.items()}
    elif args:
        record.args = tuple(map(_safe_argument, args))
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = _safe_traceback(record.exc_info[1])
    return True


def _safe_argument(value: Any) -> Any:
    """Return a number or a short printable string unchanged, any other value as ``_Printed``."""
    if value is None or isinstance(value, Number):
        return value
    if type(value) is str and value.isascii() and value.isprintable() and len(value) <= LOG_LIMIT:
        return value
    return _Printed(value)


def _safe_traceback(error: BaseException) -> str | None:
    """Return a printable traceback, or None if the original traceback is printable."""
    parts = traceback.format_exception(error)
    safe_parts = [_safe_part(part) for part in parts]
    return None if parts == safe_parts else "".join(safe_parts).rstrip("\n")


#: The prefixes of the traceback parts that Python generates and whose line feeds are safe.
_BY_PYTHON: Final = ("Traceback (", "  ", "\nDuring handling", "\nThe above exception")


def _safe_part(part: str) -> str:
    """Return a printable part of a traceback. The message of an exception becomes one line."""
    if part.startswith(_BY_PYTHON):
        return "\n".join(printable(line, TRACEBACK_LIMIT) for line in part.split("\n"))
    return f"{printable(part.rstrip(), TRACEBACK_LIMIT)}\n"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with a noun, such as ``1 hour`` or ``2 hours``.

    ``nouns`` is the plural of the noun if the plural is irregular.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"
