"""Makes text to print: safe in logs, on terminals and in labels of metrics, and in English.

A stored name may contain line feeds, terminal escapes or bytes that are not UTF-8. Unescaped, it
could forge log lines, colour a terminal, or cause an encoding error. All of RedBeat's loggers come
from here, and escape their lines.
"""

from __future__ import annotations

import logging
import re
import traceback
import unicodedata
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any, Final

from celery.utils.log import get_logger as celery_logger

#: Unicode categories of characters that could control a terminal or cannot be encoded.
UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

#: UTF-8 cannot encode surrogates, which stand for bytes in Redis replies that are not UTF-8.
SURROGATES: Final = re.compile("[\ud800-\udfff]")

#: Characters of one argument of a log line.
LOG_LIMIT: Final = 1000

#: Characters of one exception's message in a logged traceback.
TRACEBACK_LIMIT: Final = 2000


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def printable(text: str, limit: int | None = None) -> str:
    """Escape control characters and unencodable ones; cut the result off after ``limit``."""
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
    """Escape surrogates, so that UTF-8 can encode ``text``.

    For names in data, such as JSON and signals: valid names stay as they are.
    """
    if text.isascii():
        return text
    return SURROGATES.sub(lambda match: _escaped_char(match[0]), text)


def get_logger(name: str) -> logging.Logger:
    """Return a logger whose lines are safe to print, whatever their arguments contain.

    Each argument is made printable and shortened to :data:`LOG_LIMIT` characters, and so are the
    exception messages in tracebacks. Handlers need no configuration.
    """
    logger: logging.Logger = celery_logger(name)
    logger.addFilter(_make_printable)
    return logger


class _Printed:
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
    args = record.args
    if isinstance(args, Mapping):
        record.args = {name: _safe_argument(value) for name, value in args.items()}
    elif args:
        record.args = tuple(map(_safe_argument, args))
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = _safe_traceback(record.exc_info[1])
    return True


def _safe_argument(value: Any) -> Any:
    """Numbers and short printable strings stay as they are."""
    if value is None or isinstance(value, Number):
        return value
    if type(value) is str and value.isascii() and value.isprintable() and len(value) <= LOG_LIMIT:
        return value
    return _Printed(value)


def _safe_traceback(error: BaseException) -> str | None:
    """None if the original traceback is printable."""
    parts = traceback.format_exception(error)
    safe_parts = [_safe_part(part) for part in parts]
    return None if parts == safe_parts else "".join(safe_parts).rstrip("\n")


#: Parts of a traceback that Python generates begin like this; their line feeds are safe.
_BY_PYTHON: Final = ("Traceback (", "  ", "\nDuring handling", "\nThe above exception")


def _safe_part(part: str) -> str:
    """The message of an exception becomes one line."""
    if part.startswith(_BY_PYTHON):
        return "\n".join(printable(line, TRACEBACK_LIMIT) for line in part.split("\n"))
    return f"{printable(part.rstrip(), TRACEBACK_LIMIT)}\n"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Such as ``1 hour`` or ``2 hours``; ``nouns`` is an irregular plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"
