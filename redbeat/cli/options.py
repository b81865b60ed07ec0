"""Option types and name look-ups that several commands use."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from os.path import commonprefix
from typing import Any, Final

import click
from celery.bin.base import CeleryOption, JsonArray, JsonObject
from celery.exceptions import CeleryCommandException

from redbeat.decoder import decode
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.management.find import record_of
from redbeat.presentation.rule_text import interval_from, seconds_from, time_from

from .command import EX_NOT_FOUND, Console, failure

__all__ = (
    "ARRAY",
    "CLEARED",
    "INTERVAL",
    "OBJECT",
    "SECONDS",
    "TIME",
    "Parsed",
    "existing",
    "load",
    "not_found",
    "option",
    "option_error",
    "options",
)


class StoredJson(click.ParamType):  # type: ignore[type-arg]
    """JSON in the form in which entries are stored, so that it may contain datetimes.

    ``plain`` is the type of Celery that accepts such an array or object.
    """

    def __init__(self, plain: click.ParamType) -> None:  # type: ignore[type-arg]
        self.plain, self.name = plain, plain.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the list or dict."""
        plain = self.plain.convert(value, param, ctx)
        try:
            stored = decode(value, "value") if isinstance(value, str) else plain
        except DecodeError as error:
            self.fail(error.problem, param, ctx)
        # A tagged object, such as a datetime, is not a dict of arguments or options.
        return stored if isinstance(stored, type(plain)) else plain


ARRAY, OBJECT = StoredJson(JsonArray()), StoredJson(JsonObject())


#: The value of a clearable option if the user gives the word ``none``.
CLEARED: Final = object()


class ExampleOption(CeleryOption):
    """A command-line option whose error messages include ``example``, a valid value.

    A ``clearable`` option also accepts the word ``none``, which gives the value :data:`CLEARED`.
    """

    def __init__(
        self, *args: Any, example: str = "", clearable: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.example = f"{max(self.opts, key=len)} {example}" if example else ""
        self.clearable = clearable

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value converted to the type of the option."""
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
    """Add an :class:`ExampleOption` to a command; the help shows its default, if it has one."""
    attrs.setdefault("show_default", "default" in attrs)
    decorator: Callable[[Any], Any] = click.option(*names, cls=ExampleOption, **attrs)
    return decorator


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add several options or arguments to a command; the help lists them in this order."""
    return lambda function: reduce(lambda added, add: add(added), reversed(decorators), function)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A text that ``parse`` turns into a value; ``parse`` raises ValueError for an invalid text."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def checked_interval(text: str) -> str:
    """Return the text of an interval; raises ValueError for any other text."""
    interval_from(text)
    return text


#: A duration in seconds.
SECONDS = Parsed("duration", seconds_from)
#: The text of an interval: a duration, which the word ``relative`` may follow.
INTERVAL = Parsed("duration", checked_interval)
#: A time, which is naive if the text has no UTC offset.
TIME = Parsed("time", time_from)


def option_error(ctx: click.Context, name: str, problem: object) -> click.BadParameter:
    """Return an error about the option with the parameter name ``name``."""
    param = next(param for param in ctx.command.params if param.name == name)
    example = getattr(param, "example", "")
    message = str(problem.problem if isinstance(problem, InvalidEntryError) else problem)
    return click.BadParameter(with_example(message, example), ctx, param)


def with_example(message: str, example: str) -> str:
    """Return the message, followed by the example if there is one."""
    return f"{message.rstrip('.')}; for example: {example}" if example else message


#: Maximum number of names that the slow search for similar names compares.
MAX_COMPARED: Final = 200


def load(console: Console, name: str) -> RedBeatSchedulerEntry:
    """Return the entry with this name, or end the command if it is unknown. One round trip."""
    with existing(console, name):
        return console.schedule[name]


def not_found(console: Console, name: str) -> CeleryCommandException:
    """Return the error for an unknown name; the error lists similar names. Reads all names.

    The schedule may list a name whose entry has no definition.
    """
    known = heapq.nlargest(
        MAX_COMPARED, map(str, console.schedule), lambda key: shared_length(name, key)
    )
    similar = difflib.get_close_matches(name, known, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    if name in known:
        hint = f", although the schedule lists it: {problem_of(console, name)}"
    elif not known:
        hint = "; the schedule is empty"
    return failure(f"There is no entry {name!r}{hint}", EX_NOT_FOUND)


def problem_of(console: Console, name: str) -> str:
    """Return why a listed entry cannot be loaded. One round trip."""
    record = record_of(console.schedule, name)[1]
    return (record and record.problem) or "it was saved or deleted just now"


@contextmanager
def existing(console: Console, name: str) -> Iterator[None]:
    """End the command if the entry does not exist, or another program has just deleted it."""
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
