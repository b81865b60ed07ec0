"""Whose code a function is: ours, that of a library that wraps it, or the user's.

Celery and kombu count as ours.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from os import sep
from pathlib import Path, PurePath
from typing import Any, Final

import celery
import kombu

import redbeat

OURS, LIBRARY, USER = "ours", "library", "user"

#: Where our code lives.
HOMES: Final = tuple(
    f"{Path(str(file)).parent}{sep}"
    for file in (celery.__file__, kombu.__file__, redbeat.__file__, __file__)
)

#: Directories of installed packages.
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

#: The attributes in which properties, methods and partial functions hold their function.
HOLDS: Final = ("fget", "__func__", "func")

#: Maximum number of wrappers around a function.
MOST_WRAPPERS: Final = 20


def whose(value: Any) -> str:
    """Return whose code a function, method or property is.

    It is a library's if all code that is not ours lives in installed packages (Sentry,
    OpenTelemetry), or if code that looks like ours wraps a function.
    """
    files = [file for file in _files_of(value) if not file.startswith(HOMES)]
    if not files:
        function = getattr(value, "__func__", value)
        wraps = hasattr(function, "__wrapped__") or isinstance(function, functools.partial)
        return LIBRARY if wraps else OURS
    installed = all(INSTALLED.intersection(PurePath(file).parts) for file in files)
    return LIBRARY if installed else USER


def _files_of(value: Any) -> Iterator[str]:
    """Yield the source files of a function: the outermost wrapper's first, "" if it is unknown.

    A wrapper made by ``functools.wraps`` has the name and module of what it wraps, so only its code
    object says where it comes from.
    """
    for _ in range(MOST_WRAPPERS):
        if value is None:
            return
        if hasattr(type(value), "_self_wrapper"):  # wrapt, also the copies of it in other packages
            yield from _files_of(getattr(value, "_self_wrapper", None))
            value = value.__wrapped__
            continue
        held = next((name for name in HOLDS if hasattr(value, name)), "")
        if held:
            value = getattr(value, held)
            continue
        code = getattr(value, "__code__", None)
        yield _file_of_class(type(value)) if code is None else code.co_filename
        value = getattr(value, "__dict__", {}).get("__wrapped__")
    yield ""


def _file_of_class(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def judge(cls: type, name: str) -> str:
    """Return whose code the method ``name`` of a class is.

    What a subclass overrides is the user's, wherever it lives. What stands in a class of ours is
    ours, unless somebody replaced it.
    """
    base = next((one for one in cls.__mro__ if _is_ours(one)), None)
    for owner in cls.__mro__:
        if name in vars(owner):
            value = vars(owner)[name]
            if _is_ours(owner):
                return whose(value)
            return OURS if value is getattr(base, name, None) else USER
    return OURS


def _is_ours(cls: type) -> bool:
    return _file_of_class(cls).startswith(HOMES)


def overridden(cls: type, names: Iterable[str]) -> str:
    """Return the first method that is the user's, as ``Class.method``; "" if there is none."""
    for name in names:
        if judge(cls, name) == USER:
            owner = next(owner for owner in cls.__mro__ if name in vars(owner))
            return f"{owner.__name__}.{name}"
    return ""
