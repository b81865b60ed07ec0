"""A bar for work that may take long, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import click

from redbeat.cli.console import Console

__all__ = ("progress",)


@contextmanager
def progress(console: Console, label: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many entries were done.

    Draws on the standard error, and only on a terminal. ``length`` is how many there are, None
    where that is not known.
    """
    if console.ctx.obj.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Click asks for one of the two; nothing is taken from an endless one.
    steps = repeat(None) if length is None else None
    bar: Any = click.progressbar(
        steps, length=length, label=label, show_pos=length is None, file=sys.stderr
    )
    with bar:
        yield bar.update
