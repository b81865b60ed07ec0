"""Parses the data that RedBeat reads from Redis; no other module decodes its bytes and JSON.

Any program may write any bytes into a Redis key. An invalid definition, meta or policy raises
:exc:`DecodeError`, and the beat quarantines the entry. An invalid record of RedBeat's own counts as
empty, because a beat can work without it.
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

#: Of JSON: levels of nested lists and dicts, and characters.
MAX_DEPTH: Final = 200
MAX_TEXT: Final = 1024 * 1024

#: Characters of a number; RedBeat and Redis write at most 24.
MAX_DIGITS: Final = 64

#: Redis's largest integer.
MAX_WHOLE: Final = 2**63 - 1

#: The accepted instants, in UNIX seconds: the years 1 to 9999, but without the first two and the
#: last two days, which a datetime cannot represent in some time zones.
EARLIEST: Final = -62_135_424_000.0
LATEST: Final = 253_402_128_000.0

TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep; flatten the data"


def text_of(value: Any) -> str:
    """Return a Redis reply as a ``str``; None becomes "".

    Bytes that are not UTF-8 become surrogates, which :func:`bytes_of` converts back.
    """
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def valid_text(value: Any) -> str:
    r"""Return a Redis reply, or a string, as valid Unicode.

    Bytes that are not UTF-8 and lone surrogates become escapes such as ``\xff`` and ``\ud800``.
    """
    return encodable(text_of(value))


def is_valid_text(text: str) -> bool:
    """Whether there are no surrogates, which stand for bytes that are not UTF-8."""
    return text.isascii() or SURROGATES.search(text) is None


# -- JSON ------------------------------------------------------------------------------------------


def json_chunks(encoder: json.JSONEncoder) -> Callable[[Any, bool], Iterable[str]]:
    """``encoder.iterencode`` without indentation, in two thirds of its time.

    Join what it returns for (value, False). The standard library prepares an encoder in C for each
    value; this one is kept. A value that contains itself raises ``RecursionError``.
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
    """Parse JSON; ``loads`` may create objects from tagged dicts.

    Raises ``DecodeError`` that names ``field``, if ``text`` is not JSON or not UTF-8, has more than
    ``MAX_TEXT`` characters, or is nested more than ``MAX_DEPTH`` levels deep.
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
    """``{}`` if ``text`` is empty; raises :exc:`DecodeError`."""
    value = json_in(text, field) if text else {}
    if not isinstance(value, dict):
        raise DecodeError(field, f"must be an object, not {value!r:.60}")
    return value


def record_in(text: str) -> dict[str, Any]:
    """``{}`` if ``text`` is invalid."""
    try:
        return object_in(text, "record")
    except DecodeError:
        return {}


def string_in(value: object, longest: int) -> str:
    """Make valid Unicode of a decoded JSON value, shortened to ``longest`` characters.

    None becomes "", anything else that is not a string its ``repr()``.
    """
    if value is None:
        return ""
    return valid_text(shortened(value if isinstance(value, str) else repr(value), longest))


def exceeded_limit(text: str) -> str:
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
    """The number of opening brackets is at least the nesting depth."""
    return text.count("[") + text.count("{")


def _deeper_than(value: Any, limit: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return limit == 0 or any(_deeper_than(item, limit - 1) for item in value)


# -- numbers and instants --------------------------------------------------------------------------


def number_in(value: Any) -> float | None:
    """None for anything but a finite number or the text of one."""
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
    """None for anything but digits, and above ``MAX_WHOLE``."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        return None
    number = int(text)
    return number if number <= MAX_WHOLE else None


def score_in(reply: Any) -> float:
    """Redis accepts only numbers as scores, but also infinity.

    For a score that must be an instant, use :func:`seconds_in` or :func:`instant_in`.
    """
    return float(reply)


def seconds_in(value: Any) -> float | None:
    seconds = number_in(value)
    return seconds if seconds is not None and EARLIEST <= seconds <= LATEST else None


def instant_in(value: Any) -> datetime | None:
    """A datetime in UTC from UNIX seconds, None for anything else."""
    seconds = seconds_in(value)
    return None if seconds is None else from_timestamp(seconds)


def moment_in(value: Any) -> datetime | None:
    """A datetime in UTC from ISO 8601, None for anything else; without an offset, it is UTC."""
    if not isinstance(value, str) or len(value) > MAX_DIGITS:
        return None
    try:
        moment = time_from(value)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return instant_in(to_timestamp(aware))
    except (ValueError, OverflowError):
        return None


def lines_in(text: str | None) -> list[str]:
    """Split a JSON array that has one element a line into elements, each as JSON."""
    if text is None or not text.startswith("[") or not text.endswith("]"):
        return []
    lines = text[1:-1]
    if lines.endswith(",\n"):
        lines = lines.rstrip(",\n")  # the scripts don't count empty lines at the end, either
    return lines.split(",\n") if lines else []


def texts_in(text: str | None) -> list[str]:
    """The strings of a JSON array with one string a line; anything else is left out."""
    texts = []
    for line in lines_in(text):
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, str):
                texts.append(valid_text(found))
    return texts


def array_of(texts: Iterable[str]) -> str:
    return "[" + ",\n".join(map(json.dumps, texts)) + "]"
