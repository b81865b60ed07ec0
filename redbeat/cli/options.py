"""Options and names that commands share; a wrong one is answered with a valid example."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from os.path import commonprefix
from typing import Any, Final

import click
from celery.bin.base import JSON_ARRAY, JSON_OBJECT, CeleryOption
from celery.exceptions import CeleryCommandException

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import seconds_from, time_from
from redbeat.storage.store import store_of

from .command import EX_NOT_FOUND, failure
from .console import Console

__all__ = (
    "ARRAY",
    "CLEARED",
    "OBJECT",
    "SECONDS",
    "TIME",
    "ExampleOption",
    "bad",
    "check_names",
    "confirm",
    "load",
    "not_found",
    "option",
    "static_names",
)

#: Celery's types, which say what is no JSON.
ARRAY, OBJECT = JSON_ARRAY, JSON_OBJECT


#: What a clearable option gives for the word ``none``.
CLEARED: Final = object()


class ExampleOption(CeleryOption):
    """An option with an ``example`` of its value for its errors.

    One that is ``clearable`` takes the word ``none`` too, and gives :data:`CLEARED` for it.
    """

    def __init__(
        self, *args: Any, example: str = "", clearable: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.example = f"{max(self.opts, key=len)} {example}" if example else ""
        self.clearable = clearable

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as the type of the option has it."""
        if self.clearable and isinstance(value, str) and value.lower() == "none":
            return CLEARED
        return super().type_cast_value(ctx, value)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value; the error for a wrong one shows one that is right."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if not self.example or isinstance(error, click.MissingParameter):
                raise
            message = with_example(error.message, self.example)
            raise click.BadParameter(message, ctx, self) from error


def option(*names: str, **attrs: Any) -> Callable[[Any], Any]:
    """Add an :class:`ExampleOption` to a command."""
    made: Callable[[Any], Any] = click.option(*names, cls=ExampleOption, **attrs)
    return made


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A duration: seconds, or a number with one of the units s, m, h, d."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds as a number."""
        try:
            return seconds_from(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601; naive where it has no offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the datetime."""
        if isinstance(value, datetime):
            return value
        try:
            return time_from(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SECONDS, TIME = Seconds(), Time()


def bad(ctx: click.Context, name: str, problem: object) -> click.BadParameter:
    """Return the error of the option of ``ctx`` whose argument is called ``name``."""
    param = next(param for param in ctx.command.params if param.name == name)
    example = getattr(param, "example", "")
    message = str(problem.problem if isinstance(problem, InvalidEntryError) else problem)
    return click.BadParameter(with_example(message, example), ctx, param)


def with_example(message: str, example: str) -> str:
    """Return what is wrong, followed by what is right."""
    return f"{message.rstrip('.')}; for example: {example}" if example else message


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
