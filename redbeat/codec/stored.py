"""Parses the data that RedBeat reads from Redis.

Only this module decodes bytes and JSON from Redis.

Any program may write any bytes into a Redis key. If a definition, a meta or a policy is invalid,
:exc:`DecodeError` is raised, and the beat quarantines the entry. An invalid record of RedBeat's own
counts as empty, because a beat can work without it.
"""

from __future__ import annotations

import json
import json.encoder as json_encoder
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from redbeat.calendar.zones import UTC, from_timestamp, time_from, to_timestamp
from redbeat.errors import DecodeError
from redbeat.printing import SURROGATES, encodable, shortened

#: Maximum number of levels of nested lists and dicts in a JSON text.
MAX_DEPTH: Final = 200

#: Maximum number of characters in a JSON text.
MAX_TEXT: Final = 1024 * 1024

#: Maximum number of characters in a number; RedBeat and Redis write at most 24.
MAX_DIGITS: Final = 64

#: The largest integer in stored data, and of Redis.
MAX_WHOLE: Final = 2**63 - 1

#: The first and the last accepted instant, in UNIX seconds: the years 1 to 9999 without the first
#: two and the last two days, which a datetime cannot represent in some time zones.
EARLIEST: Final = -62_135_424_000.0
LATEST: Final = 253_402_128_000.0

TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep; flatten the data"


def plain_name(name: object) -> str:
    """Return a name as a plain ``str``.

    ``str()`` of a member of an ``Enum`` of strings may return the member's name, not its value.
    """
    # isinstance() is also true of a proxy, such as a lazy text of Django.
    return str.__str__(name) if issubclass(type(name), str) else str(name)


def text_of(value: Any) -> str:
    """Return a reply of Redis as a ``str``; the reply None becomes "".

    Bytes that are not UTF-8 become surrogates, which :func:`bytes_of` converts back.
    """
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""


def bytes_of(text: str) -> bytes:
    """Return the bytes to send to Redis for a text; :func:`text_of` does the inverse."""
    return text.encode("utf-8", "surrogateescape")


def valid_text(value: Any) -> str:
    r"""Return a reply of Redis, or a text, as valid Unicode.

    A byte that is not UTF-8 becomes an escape such as ``\xff``. A lone surrogate becomes an escape
    such as ``\ud800``.
    """
    return encodable(text_of(value))


def is_valid_text(text: str) -> bool:
    """Return whether a text has no surrogates, as :func:`text_of` makes of what is not UTF-8."""
    return text.isascii() or SURROGATES.search(text) is None


# -- JSON ------------------------------------------------------------------------------------------


def json_chunks(encoder: json.JSONEncoder) -> Callable[[Any, bool], Iterable[str]]:
    """Return ``encoder.iterencode`` without indentation, in two thirds of its time.

    Join what it returns for (value, False). The standard library prepares an encoder in C for each
    value; this keeps one. A value that contains itself raises ``RecursionError``.
    """
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return encoder.iterencode
    is_ascii = encoder.ensure_ascii
    quote = json_encoder.encode_basestring_ascii if is_ascii else json_encoder.encode_basestring
    separators, options = (encoder.key_separator, encoder.item_separator), (False, False)
    chunks: Callable[[Any, bool], Iterable[str]] = make(
        None, encoder.default, quote, None, *separators, *options, encoder.allow_nan
    )
    return chunks


def json_in(text: str | bytes, field: str, loads: Callable[[str], Any] = json.loads) -> Any:
    """Return the value of the JSON ``text``; ``loads`` may create objects from tagged dicts.

    Raises ``DecodeError`` if ``text`` is not JSON, is not UTF-8, has more than ``MAX_TEXT``
    characters, or is nested more than ``MAX_DEPTH`` levels deep. The error names ``field``.
    """
    text = text_of(text)
    if len(text) > MAX_TEXT:
        raise DecodeError(field, _too_long(text))
    if not is_valid_text(text):
        raise DecodeError(field, "cannot be read as JSON: the text is not UTF-8")
    try:
        value = loads(text)
    except RecursionError as error:
        raise DecodeError(field, TOO_DEEP) from error
    except Exception as error:
        # Invalid JSON raises ValueError. A custom decoder may raise any error.
        raise DecodeError(field, f"cannot be read as JSON: {error!s:.300}") from error
    if _brackets(text) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise DecodeError(field, TOO_DEEP)
    return value


def object_in(text: str, field: str) -> dict[str, Any]:
    """Return the JSON object in ``text``, ``{}`` if it is empty; raises :exc:`DecodeError`."""
    value = json_in(text, field) if text else {}
    if not isinstance(value, dict):
        raise DecodeError(field, f"must be an object, not {value!r:.60}")
    return value


def record_in(text: str) -> dict[str, Any]:
    """Return the JSON object in a record of RedBeat, ``{}`` if it is invalid."""
    try:
        return object_in(text, "record")
    except DecodeError:
        return {}


def string_in(value: object, longest: int) -> str:
    """Return a decoded JSON value as valid Unicode, shortened to ``longest`` characters.

    None becomes "", and what is not a string its ``repr()``.
    """
    if value is None:
        return ""
    return valid_text(shortened(value if isinstance(value, str) else repr(value), longest))


def exceeded_limit(text: str) -> str:
    """Return a message if a JSON text is too long or nested too deep, otherwise ""."""
    if len(text) > MAX_TEXT:
        return _too_long(text)
    if _brackets(text) > MAX_DEPTH and _deeper_than(json.loads(text), MAX_DEPTH):
        return TOO_DEEP
    return ""


def _too_long(text: str) -> str:
    return (
        f"has {len(text)} characters of JSON; the maximum is {MAX_TEXT}; store large data elsewhere"
    )


def _brackets(text: str) -> int:
    """Return the number of opening brackets, which is at least the nesting depth of the JSON."""
    return text.count("[") + text.count("{")


def _deeper_than(value: Any, limit: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return limit == 0 or any(_deeper_than(item, limit - 1) for item in value)


# -- numbers and instants --------------------------------------------------------------------------


def number_in(value: Any) -> float | None:
    """Return ``value`` as a float, or None if it is neither a finite number nor the text of one."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, int, float)):
        return None
    if isinstance(value, (str, bytes)) and len(value) > MAX_DIGITS:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def whole_in(text: str) -> int | None:
    """Return the integer in a text of digits, None for another text or above ``MAX_WHOLE``."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        return None
    number = int(text)
    return number if number <= MAX_WHOLE else None


def score_in(reply: Any) -> float:
    """Return the score in a reply of Redis, which accepts only numbers; it may be infinite.

    For a score that must be an instant, use :func:`seconds_in` or :func:`instant_in`.
    """
    return float(reply)


def seconds_in(value: Any) -> float | None:
    """Return ``value`` as UNIX seconds, None outside of ``EARLIEST`` to ``LATEST``."""
    seconds = number_in(value)
    return seconds if seconds is not None and EARLIEST <= seconds <= LATEST else None


def instant_in(value: Any) -> datetime | None:
    """Return the datetime in UTC for UNIX seconds, or None if ``value`` is not a valid instant."""
    seconds = seconds_in(value)
    return None if seconds is None else from_timestamp(seconds)


def moment_in(value: Any) -> datetime | None:
    """Return the datetime in UTC for an ISO 8601 string, None if ``value`` is not a valid time.

    A time without a UTC offset is in UTC.
    """
    if not isinstance(value, str) or len(value) > MAX_DIGITS:
        return None
    try:
        moment = time_from(value)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return instant_in(to_timestamp(aware))
    except (ValueError, OverflowError):
        return None


def lines_in(text: str | None) -> list[str]:
    """Return the elements of a JSON array with one element a line, each as JSON."""
    if text is None or not text.startswith("[") or not text.endswith("]"):
        return []
    lines = text[1:-1]
    if lines.endswith(",\n"):
        lines = lines.rstrip(",\n")  # without empty lines at the end, as the scripts read them
    return lines.split(",\n") if lines else []


def texts_in(text: str | None) -> list[str]:
    """Return the strings of a JSON array with one string a line; the others are left out."""
    texts = []
    for line in lines_in(text):
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, str):
                texts.append(valid_text(found))
    return texts


def array_of(texts: Iterable[str]) -> str:
    """Return strings as the JSON array with one string a line that :func:`texts_in` reads."""
    return "[" + ",\n".join(map(json.dumps, texts)) + "]"
