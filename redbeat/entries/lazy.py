"""Lazy arguments: functions (``BeatLazyFunc``) in ``beat_schedule`` that a beat calls for each run.

Redis cannot store a function, so the stored definition has a placeholder with the function's name.
For each run, a beat calls the functions that its own ``beat_schedule`` has at the same paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.beat import BeatLazyFunc

from redbeat.codec.stored import MAX_DEPTH
from redbeat.codec.types import LazyArgument, function_of, path_text
from redbeat.errors import InvalidEntryError, RedBeatError, described

SCALARS: Final = frozenset({str, int, float, bool, type(None)})

Path = tuple["str | int", ...]


class LazyArgumentError(RedBeatError):
    """This process cannot compute a lazy argument."""


def refuse_functions(definition: Mapping[str, Any]) -> None:
    """Raise :exc:`InvalidEntryError` for a function: only static entries have lazy arguments."""

    def refuse(value: Any, path: Path) -> Any:
        if isinstance(value, BeatLazyFunc):
            problem = "only beat_schedule may use BeatLazyFunc; compute the value in the task"
            raise InvalidEntryError(path_text(path), problem)
        return value

    for name in ("args", "kwargs"):
        _walk(definition.get(name), (name,), refuse)


def resolved(value: Any, configured: Any, path: Path) -> Any:
    """Replace each :class:`LazyArgument` by its function.

    ``configured`` has the arguments of the entry in ``beat_schedule``. Raises
    :exc:`LazyArgumentError` if it has no function at the path of a placeholder.
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
    """Call the functions; raises :exc:`LazyArgumentError` if one raises an error."""
    return _walk(args, ("args",), _call), _walk(kwargs, ("kwargs",), _call)


def _call(argument: BeatLazyFunc | LazyArgument, path: Path) -> Any:
    if isinstance(argument, LazyArgument):
        raise LazyArgumentError(f"only a beat can compute {path_text(path)}")
    try:
        return argument()
    except Exception as error:
        problem = f"{path_text(path)}: {function_of(argument)} failed: {described(error)}"
        raise LazyArgumentError(problem) from error


def _walk(value: Any, path: Path, replace: Callable[[Any, Path], Any]) -> Any:
    """Replace each lazy argument; without any, return ``value`` itself."""
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
