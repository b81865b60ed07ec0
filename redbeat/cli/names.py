"""Finding the entries that a command is about, and helping with a name that is wrong."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from typing import Final

import click
from celery.exceptions import CeleryCommandException

from redbeat.cli.command import EX_NOT_FOUND, failure
from redbeat.cli.console import Console
from redbeat.entries.access import store_of
from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("check_names", "confirm", "load", "not_found", "static_names")

#: How many names are compared in full with one that is unknown: a hint is not worth more.
COMPARED: Final = 200

#: Names that are printed before a question.
SHOWN: Final = 10


def load(console: Console, name: str) -> RedBeatSchedulerEntry:
    """Return an entry by name; an unknown one ends the command. One round trip."""
    try:
        return console.schedule[name]
    except KeyError:
        raise not_found(console, name) from None


def not_found(console: Console, name: str) -> CeleryCommandException:
    """Return the error for an unknown name, with the names that are near. Some round trips."""
    known = heapq.nlargest(COMPARED, map(str, console.schedule), lambda key: in_common(name, key))
    near = difflib.get_close_matches(name, known, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if not known:
        hint = "; the schedule is empty"
    return failure(f"There is no entry {name!r}{hint}", EX_NOT_FOUND)


def in_common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their ends: most slips are few."""
    ends = (one, other), (one[::-1], other[::-1])
    return min(sum(len(commonprefix(pair)) for pair in ends), len(one))  # noqa: RUF071


def check_names(console: Console, names: Iterable[str]) -> None:
    """End the command at the first name that is unknown. One round trip for each name."""
    for name in names:
        if name not in console.schedule:
            raise not_found(console, name)


def confirm(console: Console, verb: str, names: Sequence[str]) -> None:
    """Ask whether to go on; the command ends unless the answer is yes."""
    for name in names[:SHOWN]:
        console.note(f"  {console.name(name)}")
    if len(names) > SHOWN:
        console.note(f"  and {len(names) - SHOWN} more")
    what = f"{len(names)} entries" if len(names) > 1 else "this entry"
    click.confirm(f"{verb} {what}?", abort=True, err=True)


def static_names(console: Console) -> set[str]:
    """Return the names of the entries of ``beat_schedule``. One round trip."""
    return store_of(console.app).static_names()
