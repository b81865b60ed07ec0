"""The base class of all commands, which turns an exception into a message and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
from celery.bin.base import CeleryCommand
from celery.exceptions import CeleryCommandException
from celery.platforms import EX_UNAVAILABLE
from redis.exceptions import RedisError

from redbeat.cli.console import pass_console
from redbeat.errors import ConfigurationError, DecodeError, InvalidEntryError
from redbeat.presentation.text import printable

__all__ = (
    "EX_CONFIG",
    "EX_CONFLICT",
    "EX_NOT_FOUND",
    "EX_UNHEALTHY",
    "EX_UNREADABLE",
    "RedBeatCommand",
    "command",
    "failure",
)

#: Exit codes. Commands also exit with 0 (success), 2 (the command line is invalid and nothing was
#: written) and 69 (Redis is unreachable or refuses the command).
EX_UNHEALTHY: Final = 1
EX_NOT_FOUND: Final = 3
EX_CONFLICT: Final = 4
EX_UNREADABLE: Final = 5
EX_CONFIG: Final = 78


def failure(message: str, exit_code: int) -> CeleryCommandException:
    """Return an exception that makes a command exit with this message and exit code."""
    return CeleryCommandException(printable(message), exit_code)


class RedBeatCommand(CeleryCommand):
    """A command that reports known errors as a message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn a known error into a message and an exit code."""
        with _translated_errors():
            return super().invoke(ctx)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise failure(str(error), EX_CONFIG) from error
    except InvalidEntryError as error:
        raise click.UsageError(printable(str(error))) from error
    except DecodeError as error:
        raise failure(f"The entry cannot be read: {error}", EX_UNREADABLE) from error
    except RedisError as error:
        problem = f"Redis cannot be used: {type(error).__name__}: {error}"
        raise failure(problem, EX_UNAVAILABLE) from error


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function into a command; its first argument is a :class:`.Console`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        decorated: click.Command = click.command(name, cls=RedBeatCommand)(pass_console(function))
        return decorated

    return decorate
