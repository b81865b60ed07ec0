"""The base class of all commands, which turns an exception into a message and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
from celery import Celery
from celery.bin.base import CeleryCommand
from celery.exceptions import CeleryCommandException
from celery.platforms import EX_OK, EX_UNAVAILABLE
from redis.exceptions import RedisError

from redbeat.cli.console import Console, pass_console
from redbeat.errors import (
    EX_CONFIG,
    ConfigurationError,
    ConflictError,
    DecodeError,
    InvalidEntryError,
    described,
)
from redbeat.printing import printable, warnings_to
from redbeat.storage.checks import explained
from redbeat.storage.store import store_of

__all__ = (
    "EXIT_CODES",
    "EX_CONFIG",
    "EX_CONFLICT",
    "EX_DIFFERENT",
    "EX_FAILED",
    "EX_NOT_FOUND",
    "EX_UNHEALTHY",
    "EX_UNREADABLE",
    "EX_USAGE",
    "RedBeatCommand",
    "command",
    "failure",
)

EX_FAILED: Final = 1
EX_UNHEALTHY: Final = EX_FAILED
EX_USAGE: Final = 2
#: Only for ``plan --detailed-exitcode``, whose other codes are 0 and 1.
EX_DIFFERENT: Final = EX_USAGE
EX_NOT_FOUND: Final = 3
EX_CONFLICT: Final = 4
EX_UNREADABLE: Final = 5

#: Every exit code of every command, with its meaning. The help and the manual list them.
EXIT_CODES: Final[dict[int, str]] = {
    EX_OK: "done",
    EX_FAILED: "problems were found, something failed, or the question was not answered with yes",
    EX_USAGE: "the command line is invalid; with plan --detailed-exitcode: something would change",
    EX_NOT_FOUND: "there is no such entry; nothing was written",
    EX_CONFLICT: "somebody else changed the entry, or the stored entry differs",
    EX_UNREADABLE: "an entry or a file cannot be read",
    EX_UNAVAILABLE: "Redis cannot be reached, or refuses the command",
    EX_CONFIG: "a setting of the app is invalid",
}


def failure(message: str, exit_code: int) -> CeleryCommandException:
    """Return an exception that makes a command exit with this message and exit code."""
    return CeleryCommandException(printable(message), exit_code)


class RedBeatCommand(CeleryCommand):
    """A command that reports known errors as a message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn a known error into a message and an exit code."""
        with warnings_to(Console(ctx).warn), _translated_errors(ctx.obj.app):
            return super().invoke(ctx)


@contextmanager
def _translated_errors(app: Celery) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise failure(str(error), EX_CONFIG) from error
    except InvalidEntryError as error:
        raise click.UsageError(printable(str(error))) from error
    except DecodeError as error:
        raise failure(f"The entry cannot be read: {error}", EX_UNREADABLE) from error
    except ConflictError as error:
        problem = f"Somebody else keeps changing {str(error)!r}; check the entry and try again"
        raise failure(problem, EX_CONFLICT) from error
    except RedisError as error:
        reason = described(explained(error, store_of(app)))
        raise failure(f"Redis cannot be used: {reason}", EX_UNAVAILABLE) from error
    except OSError as error:  # a file, or an address to listen on
        if isinstance(error, BrokenPipeError):
            raise
        raise failure(str(error), EX_FAILED) from error


def command(
    name: str, cls: type[RedBeatCommand] = RedBeatCommand
) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function into a command; its first argument is a :class:`.Console`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        decorated: click.Command = click.command(name, cls=cls)(pass_console(function))
        return decorated

    return decorate
