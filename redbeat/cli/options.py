"""Option types and name look-ups that several commands use."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from os.path import commonprefix
from typing import Any, Final

import click
from celery.bin.base import CeleryOption
from celery.exceptions import CeleryCommandException

from redbeat.calendar.times import time_from
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.management.find import record_of
from redbeat.presentation.rule_text import seconds_from
from redbeat.transfer.incoming import instant_from

from .command import EX_NOT_FOUND, Console, failure

#: The value of a clearable option for which the user enters the word ``none``.
CLEARED: Final = object()


class ExampleOption(CeleryOption):
    """A command-line option whose error messages include ``example``, a valid value.

    The default of an option is an example, too. An option that takes any text needs no example.
    A ``clearable`` option also accepts the word ``none``, and then has the value :data:`CLEARED`.
    """

    def __init__(
        self, *args: Any, example: str = "", clearable: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        valid = example or kwargs.get("default")
        self.example = f"{max(self.opts, key=len)} {valid}" if valid else ""
        self.clearable = clearable

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the converted value, or :data:`CLEARED` for the word ``none``."""
        if self.clearable and isinstance(value, str) and value.lower() == "none":
            return CLEARED
        return super().type_cast_value(ctx, value)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the processed value; the error for an invalid value includes the example."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if not self.example or isinstance(error, click.MissingParameter):
                raise
            message = with_example(error.message, self.example)
            raise click.BadParameter(message, ctx, self) from error


def option(*names: str, **attrs: Any) -> Callable[[Any], Any]:
    """Add an :class:`ExampleOption` to a command; the help shows the default of the option."""
    attrs.setdefault("show_default", "default" in attrs)
    decorator: Callable[[Any], Any] = click.option(*names, cls=ExampleOption, **attrs)
    return decorator


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add several options or arguments to a command; the help lists them in the given order."""
    return lambda function: reduce(lambda added, add: add(added), reversed(decorators), function)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """An option type. ``parse`` converts the option text, or raises ValueError for invalid text."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value; report the ValueError of ``parse`` as an error of the option."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def instant_of(text: str) -> datetime:
    """Return a time in UTC; a time without a UTC offset is in the time zone of the app."""
    zone = click.get_current_context().obj.app.timezone
    try:
        return instant_from("time", time_from(text.strip()), zone)
    except InvalidEntryError as error:
        raise ValueError(error.problem) from error


#: The type of an option that accepts a duration; the value is a number of seconds.
SECONDS = Parsed("duration", seconds_from)
#: The type of an option that accepts a time; the datetime is naive if the text has no UTC offset.
TIME = Parsed("time", lambda text: time_from(text.strip()))
#: The same, but the value is in UTC.
INSTANT = Parsed("time", instant_of)


def option_error(ctx: click.Context, name: str, problem: str) -> click.BadParameter:
    """Return an error about the option with the parameter name ``name``."""
    param = next(param for param in ctx.command.params if param.name == name)
    example = getattr(param, "example", "")
    return click.BadParameter(with_example(problem, example), ctx, param)


def with_example(message: str, example: str) -> str:
    """Return the message, followed by the example unless the example is empty."""
    return f"{message.rstrip('.')}; for example: {example}" if example else message


#: Maximum number of names that the slow search for similar names compares.
MAX_COMPARED: Final = 200


def load(console: Console, name: str) -> RedBeatSchedulerEntry:
    """Return the entry ``name``; end the command if the name is unknown. Takes one round trip."""
    with existing(console, name):
        return console.schedule[name]


def not_found(console: Console, name: str) -> CeleryCommandException:
    """Return the error for an unknown name; the error lists similar names. Reads all names.

    If the schedule lists the name, the error contains the reason why the entry cannot be loaded.
    """
    known = heapq.nlargest(
        MAX_COMPARED, map(str, console.schedule), lambda key: shared_length(name, key)
    )
    similar = difflib.get_close_matches(name, known, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    if name in known:
        hint = f", although the schedule lists the name: {problem_of(console, name)}"
    elif not known:
        hint = "; the schedule is empty"
    return failure(f"There is no entry {name!r}{hint}", EX_NOT_FOUND)


def problem_of(console: Console, name: str) -> str:
    """Return the reason why a listed entry cannot be loaded. Takes one round trip."""
    record = record_of(console.schedule, name)[1]
    return (record and record.problem) or "the entry was saved or deleted just now"


@contextmanager
def existing(console: Console, name: str) -> Iterator[None]:
    """End the command with an error if the ``with`` block raises KeyError for a missing entry."""
    try:
        yield
    except KeyError:
        raise not_found(console, name) from None


def shared_length(one: str, other: str) -> int:
    """Return the combined length of the common prefix and the common suffix of two names.

    A name with a typo still has a long prefix or suffix in common with the correct name.
    """
    ends = (one, other), (one[::-1], other[::-1])
    return min(sum(len(commonprefix(pair)) for pair in ends), len(one))  # noqa: RUF071
