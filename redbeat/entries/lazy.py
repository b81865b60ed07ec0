"""Arguments that are computed at each dispatch: Celery's ``BeatLazyFunc``, in static entries.

They are code and cannot be stored. The definition holds a description in their place, and the
field ``lazy`` of the policy the paths to these. The beat puts in what its own ``beat_schedule``
has there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery.beat import BeatLazyFunc

from redbeat.codec.writers import TAG
from redbeat.decoder import MAX_DEPTH, decode
from redbeat.errors import DecodeError, InvalidEntryError, RedBeatError

__all__ = (
    "LazyArgument",
    "LazyArgumentError",
    "evaluated",
    "has_scalars",
    "hidden",
    "resolved",
    "restore_lazy",
    "with_field",
)

#: The key of the paths in a policy, and the tag of what stands in for an argument.
FIELD: Final = "lazy"

ARGUMENTS: Final = ("args", "kwargs")

#: What most arguments are: nothing to look into.
SCALARS: Final = frozenset({str, int, float, bool, type(None)})

Path = tuple["str | int", ...]
Paths = dict[str, list[Path]]


class LazyArgumentError(RedBeatError):
    """An argument cannot be computed now."""


@dataclass(frozen=True, slots=True)
class LazyArgument:
    """What is known of such an argument where only Redis is at hand: the function, by its name."""

    function: str


def hidden(definition: dict[str, Any], static: bool) -> tuple[dict[str, Any], Paths]:
    """Return a definition with descriptions in place of lazy arguments, and what a policy adds.

    Raises :exc:`InvalidEntryError` for a function in an entry that is not ``static``.
    """
    found: list[Path] = []

    def hide(value: Any, path: Path) -> Any:
        if isinstance(value, BeatLazyFunc) and not static:
            problem = "a BeatLazyFunc is only for entries of beat_schedule; compute it in the task"
            raise InvalidEntryError(_path_text(path), problem)
        found.append(path)
        return {TAG: FIELD, "function": _described(value)}

    walked = {name: _walk(definition[name], (name,), hide) for name in _containers(definition)}
    return ({**definition, **walked}, {FIELD: found}) if found else (definition, {})


def _containers(definition: dict[str, Any]) -> list[str]:
    """Return which arguments hold others; a function in place of them all is an error."""
    return [name for name in ARGUMENTS if isinstance(definition.get(name), (dict, list, tuple))]


def restore_lazy(arguments: dict[str, Any], policy: str) -> bool:
    """Put a :class:`LazyArgument` in place of each description; whether there are any.

    Raises :exc:`DecodeError` where the policy does not fit the constructor arguments.
    """
    if f'"{FIELD}"' not in policy:
        return False
    paths = decode(policy, "policy").get(FIELD, [])
    try:
        for first, *path in paths:
            arguments[first] = _restore_at(arguments[first], path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"does not fit the arguments; take out what is not in them ({error!r})"
        raise DecodeError(f"policy.{FIELD}", problem) from error
    return bool(paths)


def _restore_at(value: Any, path: list[Any]) -> Any:
    if not path:
        return LazyArgument(str(value["function"]))
    value[path[0]] = _restore_at(value[path[0]], path[1:])
    return value


def resolved(value: Any, configured: Any, path: Path) -> Any:
    """Return arguments with the function that stands in ``configured`` for each description.

    Raises :exc:`LazyArgumentError` where there is none.
    """

    def resolve(argument: Any, at: Path) -> Any:
        found = configured
        try:
            for step in at[len(path) :]:
                found = found[step]
        except (IndexError, KeyError, TypeError):
            found = None
        if isinstance(argument, BeatLazyFunc):
            return argument
        if not isinstance(found, BeatLazyFunc):
            raise LazyArgumentError(
                f"{_path_text(at)} is to be computed by {argument.function}, which beat_schedule of "
                "this beat does not have there; run it with the configuration of the entry, or "
                "save the entry with a value"
            )
        return found

    return _walk(value, path, resolve)


def evaluated(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments with what the functions in them return now.

    Raises :exc:`LazyArgumentError` where one of them raises.
    """
    plain = type(args) is list and type(kwargs) is dict
    if plain and has_scalars((*args, *kwargs.values())):
        return args, kwargs
    return _walk(args, ("args",), _call), _walk(kwargs, ("kwargs",), _call)


def has_scalars(values: Iterable[Any]) -> bool:
    """Whether there is nothing but scalars, into which nobody needs to look."""
    return SCALARS.issuperset(map(type, values))


def _call(argument: BeatLazyFunc | LazyArgument, path: Path) -> Any:
    if isinstance(argument, LazyArgument):
        raise LazyArgumentError(f"{_path_text(path)} is computed by a beat, and only there")
    try:
        return argument()
    except Exception as error:
        problem = f"{_path_text(path)}: {_described(argument)} failed: {error!r}"
        raise LazyArgumentError(problem) from error


def _walk(value: Any, path: Path, replace: Callable[[Any, Path], Any]) -> Any:
    """Return ``value`` with each lazy argument replaced; itself where there is none."""
    inner: Iterable[Any]
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    else:
        lazy = isinstance(value, (BeatLazyFunc, LazyArgument))
        return replace(value, path) if lazy else value
    if has_scalars(inner) or len(path) > MAX_DEPTH:
        return value
    changed = {
        step: after
        for step, item in _items(value)
        if (after := _walk(item, (*path, step), replace)) is not item
    }
    if not changed:
        return value
    if isinstance(value, dict):
        return {**value, **changed}
    return [changed.get(index, item) for index, item in enumerate(value)]


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, Mapping) else enumerate(value))


def _described(value: BeatLazyFunc | LazyArgument) -> str:
    if isinstance(value, LazyArgument):
        return value.function
    function = value._func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _path_text(path: Path) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".")


def with_field(policy: str, field: Mapping[str, Any]) -> str:
    """Return the JSON of a policy with one more field; unchanged where there is none."""
    return json.dumps({**json.loads(policy or "{}"), **field}) if field else policy
