"""Lazy arguments: functions (``BeatLazyFunc``) in ``beat_schedule`` that a beat calls for each run.

Redis cannot store a function, so the stored definition contains a placeholder with the name of the
function. The policy field ``lazy`` contains the paths to all placeholders in the definition. For
each run, a beat calls the functions in its own ``beat_schedule`` at the paths of the placeholders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from celery.beat import BeatLazyFunc

from redbeat.codec.types import TAG, path_text
from redbeat.decoder import MAX_DEPTH, decode
from redbeat.errors import DecodeError, InvalidEntryError, RedBeatError

#: The name of the policy field for lazy arguments, and the type tag of their placeholders.
FIELD: Final = "lazy"

ARGUMENTS: Final = ("args", "kwargs")

#: Types of values that contain no other values, and therefore no functions.
SCALARS: Final = frozenset({str, int, float, bool, type(None)})

Path = tuple["str | int", ...]
Paths = dict[str, list[Path]]


class LazyArgumentError(RedBeatError):
    """Raised when this process cannot compute a lazy argument."""


@dataclass(frozen=True, slots=True)
class LazyArgument:
    """A lazy argument that was loaded from Redis; only the name of its function is known."""

    function: str


def hidden(definition: dict[str, Any], static: bool) -> tuple[dict[str, Any], Paths]:
    """Return a definition with placeholders for lazy arguments, and the ``lazy`` policy field.

    Raises :exc:`InvalidEntryError` if an entry that is not ``static`` contains a function.
    """
    paths: list[Path] = []

    def hide(value: Any, path: Path) -> Any:
        if isinstance(value, BeatLazyFunc) and not static:
            problem = "only beat_schedule may use BeatLazyFunc; compute the value in the task"
            raise InvalidEntryError(path_text(path), problem)
        paths.append(path)
        return {TAG: FIELD, "function": _described(value)}

    inner = [name for name in ARGUMENTS if isinstance(definition.get(name), (dict, list, tuple))]
    walked = {name: _walk(definition[name], (name,), hide) for name in inner}
    return ({**definition, **walked}, {FIELD: paths}) if paths else (definition, {})


def restore_lazy(arguments: dict[str, Any], policy: str) -> None:
    """Replace each placeholder with a :class:`LazyArgument`.

    Raises :exc:`DecodeError` if a path in the policy does not exist in the constructor arguments.
    """
    paths = decode(policy, "policy").get(FIELD, []) if f'"{FIELD}"' in policy else []
    try:
        for first, *path in paths:
            arguments[first] = _restore_at(arguments[first], path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"contains a path that the arguments do not have; remove this path ({error!r})"
        raise DecodeError(f"policy.{FIELD}", problem) from error


def _restore_at(value: Any, path: list[Any]) -> Any:
    if not path:
        return LazyArgument(str(value["function"]))
    value[path[0]] = _restore_at(value[path[0]], path[1:])
    return value


def resolved(value: Any, configured: Any, path: Path) -> Any:
    """Return ``value`` with each :class:`LazyArgument` replaced by its function.

    ``configured`` contains the arguments of the entry in ``beat_schedule``, with all functions.
    Raises :exc:`LazyArgumentError` if ``configured`` has no function at the path of a placeholder.
    """

    def resolve(argument: Any, at: Path) -> Any:
        function = configured
        try:
            for step in at[len(path) :]:
                function = function[step]
        except (IndexError, KeyError, TypeError):
            function = None
        if isinstance(argument, BeatLazyFunc):
            return argument
        if not isinstance(function, BeatLazyFunc):
            raise LazyArgumentError(
                f"{path_text(at)} must be computed by {argument.function}, but the beat_schedule "
                "of this beat does not contain this function; start the beat with the "
                "beat_schedule that contains the entry, or save the entry with a plain value"
            )
        return function

    return _walk(value, path, resolve)


def evaluated(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with each lazy argument replaced by the result of its function.

    Raises :exc:`LazyArgumentError` if a function raises an error.
    """
    return _walk(args, ("args",), _call), _walk(kwargs, ("kwargs",), _call)


def _call(argument: BeatLazyFunc | LazyArgument, path: Path) -> Any:
    if isinstance(argument, LazyArgument):
        raise LazyArgumentError(f"only a beat can compute {path_text(path)}")
    try:
        return argument()
    except Exception as error:
        problem = f"{path_text(path)}: {_described(argument)} failed: {error!r}"
        raise LazyArgumentError(problem) from error


def _walk(value: Any, path: Path, replace: Callable[[Any, Path], Any]) -> Any:
    """Return ``value`` with each lazy argument replaced by the result of ``replace``.

    Returns ``value`` itself if ``value`` contains no lazy argument.
    """
    inner: dict[Any, Any]
    if isinstance(value, dict):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = dict(enumerate(value))
    else:
        lazy = isinstance(value, (BeatLazyFunc, LazyArgument))
        return replace(value, path) if lazy else value
    if SCALARS.issuperset(map(type, inner.values())) or len(path) > MAX_DEPTH:
        return value
    changed = {step: _walk(item, (*path, step), replace) for step, item in inner.items()}
    if all(changed[step] is item for step, item in inner.items()):
        return value
    return changed if isinstance(value, dict) else list(changed.values())


def _described(value: BeatLazyFunc | LazyArgument) -> str:
    if isinstance(value, LazyArgument):
        return value.function
    function = value._func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"
