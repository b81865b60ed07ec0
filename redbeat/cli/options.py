"""Options that name a valid example when what is given is wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click
from celery.bin.base import JSON_ARRAY, JSON_OBJECT, CeleryOption

from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import seconds_from, time_from

__all__ = ("ARRAY", "CLEARED", "OBJECT", "SECONDS", "TIME", "ExampleOption", "bad", "option")

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
