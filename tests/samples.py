"""Functions that limit the parameters and hypothesis examples of a test in the short run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def long(*values: object) -> Any:
    """Return one set of parameters that only the long run uses."""
    return pytest.param(*values, marks=pytest.mark.long)


def one_in(step: int, values: Iterable[object]) -> list[Any]:
    """Return all values of one parameter. The short run uses only every ``step``-th value."""
    return rows_in(step, ((value,) for value in values))


def rows_in(step: int, rows: Iterable[Iterable[object]]) -> list[Any]:
    """Return all rows of several parameters. The short run uses only every ``step``-th row."""
    return [long(*row) if number % step else pytest.param(*row) for number, row in enumerate(rows)]


def examples(count: int) -> Any:
    """Return the hypothesis settings of a test that tries ``count`` examples in the long run.

    The short run tries a third of ``count``. ``--hypothesis-profile long`` selects the long run.
    """
    full = settings.get_profile("long").max_examples
    return settings(deadline=None, max_examples=max(1, count * settings().max_examples // full))
