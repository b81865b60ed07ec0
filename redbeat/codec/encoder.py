"""Python to JSON: what may be stored, and how each type is written.

A value is walked once before the JSON encoder sees it. The walk refuses what could not be read
back as it was, naming the path to it, turns typed objects into tagged dicts, and escapes plain
dicts that merely look like tagged ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from celery.schedules import BaseSchedule

from redbeat.registry import BUILT_IN, named

from .writers import TAG, UnstorableError, refusal, warn_of_loss, writer_of

__all__ = ("MAX_DEPTH", "TAGS", "RedBeatJSONEncoder", "storable")

VERBATIM = "verbatim"
TAGS = BUILT_IN
MAX_DEPTH = 200

Default = Callable[[Any], Any]


class RedBeatJSONEncoder(json.JSONEncoder):
    """JSON with datetimes, schedules and weekdays; for ``json.dumps(value, cls=...)``.

    Raises ``TypeError`` for what cannot be read back as it was. Subclasses add types in
    ``default(obj)``, which is asked about every object that is no plain JSON value; the dict
    that it returns is written as it is.
    """

    def default(self, obj: Any) -> Any:
        """The tagged dict of ``obj``; ``TypeError`` if its type has none."""
        write = writer_of(obj)
        if write is None:
            raise UnstorableError(refusal(obj))
        try:
            return write(obj)
        except AttributeError as error:  # of a subclass that is made in another way
            raise UnstorableError(f"{refusal(obj)} ({error})") from error

    def iterencode(self, o: Any, _one_shot: bool = False) -> Iterator[str]:
        """Encode ``o`` after the walk; every way into the encoder comes through here."""
        return super().iterencode(storable(o, self.default), _one_shot)


def storable(value: Any, default: Default, depth: int = 0) -> Any:
    """``value`` as plain JSON values; ``UnstorableError`` with the path if that is impossible.

    Values of ``str``, ``int``, ``float``, ``list`` and ``dict`` subclasses are written as the
    plain value they are, as ``json`` does: an ``Enum`` that is a ``str`` is read back as ``str``.
    """
    walk = WALKERS.get(type(value))
    if walk is None:
        walk = next((walk for base, walk in SUBCLASSABLE if isinstance(value, base)), _object)
    return walk(value, default, depth)


def _as_is(value: Any, _default: Default, _depth: int) -> Any:
    return value


def _float(value: float, _default: Default, _depth: int) -> float:
    if value - value != 0:
        raise UnstorableError(f"{value!r} is not a JSON number; use null or a string")
    return value


def _dict(value: dict[Any, Any], default: Default, depth: int) -> dict[str, Any]:
    if not STRING.issuperset(map(type, value)):
        _check_keys(value)
    if TAG in value and _has_meaning(value[TAG]):
        items = _items(value, default, depth)
        return {TAG: VERBATIM, "items": [[key, item] for key, item in items.items()]}
    return _items(value, default, depth)


def _has_meaning(tag: Any) -> bool:
    return isinstance(tag, str) and (tag in TAGS or named(tag) is not None)


def _items(value: dict[str, Any], default: Default, depth: int) -> dict[str, Any]:
    if PLAIN.issuperset(map(type, value.values())):
        return value
    _check_depth(depth)
    walked = {}
    for key, item in value.items():
        try:
            walked[key] = item if type(item) in PLAIN else storable(item, default, depth + 1)
        except UnstorableError as error:
            error.path.insert(0, key)
            raise
    return walked


def _list(value: Any, default: Default, depth: int) -> Any:
    if PLAIN.issuperset(map(type, value)):
        return value
    _check_depth(depth)
    walked = []
    for index, item in enumerate(value):
        try:
            walked.append(item if type(item) in PLAIN else storable(item, default, depth + 1))
        except UnstorableError as error:
            error.path.insert(0, index)
            raise
    return walked


def _object(value: Any, default: Default, depth: int) -> Any:
    _check_depth(depth)
    try:
        written = default(value)
    except UnstorableError:
        raise
    except TypeError as error:
        # A subclass's default() that went on to json's own, or refused in its own words.
        raise UnstorableError(f"{refusal(value)} ({error})") from error
    if isinstance(value, BaseSchedule):
        warn_of_loss(value, written)
    if isinstance(written, dict):
        return _items(written, default, depth + 1)
    return storable(written, default, depth + 1)


WALKERS: dict[type, Callable[[Any, Default, int], Any]] = {
    str: _as_is,
    int: _as_is,
    bool: _as_is,
    type(None): _as_is,
    float: _float,
    dict: _dict,
    list: _list,
    tuple: _list,
}
SUBCLASSABLE = tuple((base, WALKERS[base]) for base in (str, int, float, dict, list, tuple))
PLAIN = frozenset({str, int, bool, type(None)})
STRING = frozenset({str})


def _check_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise UnstorableError(
                f"the key {key!r} is of type {type(key).__name__}; use a string, "
                "as JSON has no other keys"
            )


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise UnstorableError(f"refers to itself, or is nested more than {MAX_DEPTH} levels deep")
