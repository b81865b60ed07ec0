"""The JSON codec of definitions and metas: one table per direction, exact both ways."""

from __future__ import annotations

import calendar
import json
import zoneinfo
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import weekday

from redbeat.codec.writers import MAX_DEPTH, RedBeatJSONEncoder, storable
from redbeat.schedules.registry import tags
from redbeat.schedules.rule import rrule

from .calendar.zones import from_timestamp, get_utcoffset_minutes, to_timestamp
from .codec.readers import DECODERS, LoadError, MalformedError, MissingError, reader_of
from .codec.writers import ENCODERS, TAG, UnstorableError
from .errors import CannotRunHereError, DecodeError, InvalidEntryError, UnknownTypeError

__all__: tuple[str, ...] = (
    "DECODERS",
    "ENCODERS",
    "MAX_DEPTH",
    "MAX_TEXT",
    "MissingPackageError",
    "RedBeatJSONDecoder",
    "RedBeatJSONEncoder",
    "active_codec",
    "decode",
    "decode_schedule",
    "encode",
    "from_timestamp",
    "get_utcoffset_minutes",
    "to_timestamp",
    "use_codec",
)

# Programs import these from here, since they stood in this module of RedBeat 2.
__all__ += ("calendar", "crontab", "datetime", "json", "rrule", "schedule", "timedelta")
__all__ += ("timezone", "weekday", "zoneinfo")

MAX_TEXT = 1024 * 1024  # characters
SHOWN = 60

_PLAIN = json.JSONEncoder(allow_nan=False)
_DEFAULT = RedBeatJSONEncoder().default


class MissingPackageError(DecodeError, InvalidEntryError, CannotRunHereError):
    """A stored schedule needs a package that is not installed, which the message names."""

    def __init__(self, field: str, problem: str) -> None:
        Exception.__init__(self, f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RedBeatJSONDecoder(json.JSONDecoder):
    """JSON with tagged dicts as the objects they stand for; for ``json.loads(text, cls=...)``.

    A dict with another tag, or with one of ours that does not fit, is left as it is: it may
    well be a user's own data. Subclasses override ``dict_to_object``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("object_hook", self.dict_to_object)
        super().__init__(*args, **kwargs)

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """The object that ``d`` stands for, else ``d`` unchanged; raises nothing."""
        tag = d.get(TAG)
        read = None if tag is None else reader_of(tag)
        if read is None:
            return d
        try:
            return read(d)
        except Exception:
            # What the reader does not understand is data. Whoever needs an object there says
            # so, and why it is none: see decode_schedule.
            return d


Codec = tuple[type[json.JSONEncoder], type[json.JSONDecoder]]

_provider: Callable[[], Codec] = lambda: (RedBeatJSONEncoder, RedBeatJSONDecoder)  # noqa: E731


def use_codec(provider: Callable[[], Codec]) -> None:
    """Have ``provider`` return the encoder and decoder in use each time that they are needed."""
    global _provider  # noqa: PLW0603 - one for the process, as the names that programs replace
    _provider = provider


def active_codec() -> Codec:
    """The encoder and decoder in use: those on ``redbeat.schedulers``, where users replace them."""
    return _provider()


def active_encoder() -> type[json.JSONEncoder]:
    """The encoder in use."""
    return _provider()[0]


def active_decoder() -> type[json.JSONDecoder]:
    """The decoder in use."""
    return _provider()[1]


def encode(value: Any, field: str = "") -> str:
    """``value`` as JSON text, by the encoder in use.

    Raises ``InvalidEntryError`` with the path of what cannot be stored exactly, below ``field``.
    """
    try:
        text = _encoded(value, active_codec()[0])
    except UnstorableError as error:
        raise InvalidEntryError(error.field(field) or "value", error.problem) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEntryError(field or "value", f"cannot be stored as JSON: {error}") from error
    problem = _too_much(text)
    if problem:
        raise InvalidEntryError(field or "value", problem)
    return text


def _encoded(value: Any, encoder: type[json.JSONEncoder]) -> str:
    if encoder is RedBeatJSONEncoder:
        return _PLAIN.encode(storable(value, _DEFAULT))
    return json.dumps(value, cls=encoder)


def decode(text: str | bytes, field: str) -> Any:
    """The value of JSON ``text``, by the decoder in use.

    Raises ``DecodeError`` naming ``field`` if the text is no JSON, longer than ``MAX_TEXT`` or
    nested deeper than ``MAX_DEPTH``.
    """
    if len(text) > MAX_TEXT:
        raise DecodeError(field, _too_long(text))
    try:
        value = json.loads(text, cls=active_codec()[1])
    except RecursionError as error:
        raise DecodeError(field, TOO_DEEP) from error
    except Exception as error:
        # ValueError for bad JSON, and whatever a decoder of the user's own may raise.
        raise DecodeError(field, f"cannot be read as JSON: {error}") from error
    if _brackets(text) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise DecodeError(field, TOO_DEEP)
    return value


def decode_schedule(value: Any, field: str = "definition.schedule") -> BaseSchedule:
    """The schedule that stands in a decoded definition.

    A bare number is an interval in seconds. What the decoder left as a dict is read again, to
    raise a ``DecodeError`` that says what is wrong with it: ``UnknownTypeError`` for a type that
    this process does not know.
    """
    if isinstance(value, BaseSchedule):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = {TAG: "interval", "every": value}
    tag = value.get(TAG) if isinstance(value, dict) else None
    read = reader_of(tag) if tag in tags() else None
    if read is None:
        kind = UnknownTypeError if tag and isinstance(tag, str) else DecodeError
        raise kind(field, _no_schedule(value, tag))
    try:
        found: BaseSchedule = read(value)
        return found
    except MissingError as error:
        raise MissingPackageError(field, error.problem) from error
    except LoadError as error:
        raise UnknownTypeError(field, error.problem) from error
    except MalformedError as error:
        path = f"{field}.{error.key}" if error.key else field
        raise DecodeError(path, error.problem) from error


def _no_schedule(value: Any, tag: object) -> str:
    valid = f"use an object with {TAG!r} of {', '.join(tags())}"
    if tag is not None:
        return f"unknown {TAG!r} {_shown(tag)}; {valid}"
    return f"{_shown(value)} is not a schedule; {valid}, or a number of seconds"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep; flatten it"


def _too_much(text: str) -> str:
    if len(text) > MAX_TEXT:
        return _too_long(text)
    if _brackets(text) > MAX_DEPTH and _deeper_than(json.loads(text), MAX_DEPTH):
        return TOO_DEEP
    return ""


def _too_long(text: str | bytes) -> str:
    return f"is {len(text)} characters of JSON; at most {MAX_TEXT}, store large data elsewhere"


def _brackets(text: str | bytes) -> int:
    """How many containers the text opens: no fewer than it nests."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inner if isinstance(child, (dict, list))]
