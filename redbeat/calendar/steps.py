"""Bounds the computation of a next run, and the expansion of a calendar.

A computation counts its steps. A step takes about a microsecond, but no clock is read, so that the
verdict is the same on every host. A cached value costs as many steps as computing the value, once
in each computation, so that the verdict does not depend on what was computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from contextvars import ContextVar, Token
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from redbeat.errors import TooManyStepsError

#: Maximum number of steps of one computation, such as a decision of a beat about one entry.
LIMIT: Final = 250_000

#: A list of runs may take :data:`LIMIT` steps, and this number of steps more for each run.
PER_RUN: Final = 200

#: What :exc:`TooManyStepsError` says: the field, the computation and the fix.
About = tuple[str, str, str]
NEXT_RUN: Final[About] = ("schedule", "the next run", "use a simpler rule")

P = ParamSpec("P")
T = TypeVar("T")


class Steps:
    """The steps that a computation may still take.

    ``with steps:`` counts the steps in the block, unless an outer computation already counts them.
    The same object can count several blocks.
    """

    __slots__ = ("_token", "about", "charged", "left")

    def __init__(self, left: int = LIMIT, about: About = NEXT_RUN) -> None:
        self.left, self.about = left, about
        #: The keys of the cached values that this computation has paid for.
        self.charged: set[Hashable] = set()
        self._token: Token[Steps | None] | None = None

    def __enter__(self) -> Steps:
        if _running.get() is None:
            self._token = _running.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._token is not None:
            _running.reset(self._token)
            self._token = None


_running: ContextVar[Steps | None] = ContextVar("steps", default=None)


def bounded(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function raise :exc:`TooManyStepsError` after :data:`LIMIT` steps.

    If the function is called by another bounded function, it takes part in that computation.
    """

    @wraps(function)
    def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        if _running.get() is not None:
            return function(*args, **kwargs)
        with Steps():
            return function(*args, **kwargs)

    return counted


def spend(number: int = 1, about: About | None = None) -> None:
    """Count steps; raise :exc:`TooManyStepsError` if the computation has none left.

    ``about`` changes what the error of this computation says.
    """
    steps = _running.get()
    if steps is not None:
        steps.about = about or steps.about
        steps.left -= number
        if steps.left < 0:
            raise TooManyStepsError(*steps.about, LIMIT)


def once(key: Hashable, cost: int) -> None:
    """Count the steps of a cached value, unless this computation has paid for it before."""
    steps = _running.get()
    if steps is not None and key not in steps.charged:
        steps.charged.add(key)
        spend(cost)


def measured(compute: Callable[[], T]) -> tuple[T, int]:
    """Return what ``compute`` returns, and the steps it takes, which the caller must count."""
    outer = _running.get()
    inner = Steps() if outer is None else Steps(outer.left, outer.about)
    before, token = inner.left, _running.set(inner)
    try:
        return compute(), before - inner.left
    finally:
        _running.reset(token)


def remembered(
    cache: MutableMapping[Hashable, tuple[T, int]], key: Hashable, compute: Callable[[], T]
) -> T:
    """Return the value of ``key`` in a cache; ``compute`` returns a value that is missing."""
    found = cache.get(key)
    if found is None:
        found = cache[key] = measured(compute)
    once((id(cache), key), found[1])
    return found[0]
