"""Limits the computation of a next run, and the expansion of a calendar.

A computation counts its steps, each of about a microsecond. No clock is read, so that the verdict
doesn't depend on how fast or busy a host is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from redbeat.errors import TooManyStepsError

#: The most steps of one computation, such as a beat's decision about one entry.
LIMIT: Final = 250_000

#: A list of runs may take :data:`LIMIT` steps, and this many more for each run.
PER_RUN: Final = 200

#: What :exc:`TooManyStepsError` names: the field, the computation and the fix.
About = tuple[str, str, str]
NEXT_RUN: Final[About] = ("schedule", "the next run", "use a simpler rule")

P = ParamSpec("P")
T = TypeVar("T")


class Steps:
    """The steps that a computation may still take.

    ``with steps:`` counts the steps in the block, unless an outer computation already counts them.
    One object can count several blocks.
    """

    __slots__ = ("_token", "about", "left")

    def __init__(self, left: int = LIMIT, about: About = NEXT_RUN) -> None:
        self.left, self.about = left, about
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
    """Make a function raise :exc:`TooManyStepsError` after :data:`LIMIT` steps.

    Called by another bounded function, it counts as a part of that one's computation.
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

    ``about`` replaces what the error says.
    """
    steps = _running.get()
    if steps is not None:
        steps.about = about or steps.about
        steps.left -= number
        if steps.left < 0:
            raise TooManyStepsError(*steps.about, LIMIT)
