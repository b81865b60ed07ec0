"""Option types, name look-ups and completions that several commands use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial, reduce
from glob import escape
from itertools import islice
from typing import Any, Final

import click
from celery.app.utils import find_app
from celery.bin.base import CeleryOption
from celery.exceptions import CeleryCommandException
from click.shell_completion import CompletionItem

from redbeat import InvalidEntryError, Record, RedBeatSchedulerEntry
from redbeat.calendar.zones import time_from
from redbeat.config import ensure_conf
from redbeat.management.find import record_of
from redbeat.management.names import registered_tasks
from redbeat.presentation.rule_text import seconds_from
from redbeat.transfer.incoming import UnreadableSourceError, instant_from

from .command import Console, Exit, failure, schedule_of

#: The value of a clearable option for the word ``none``.
CLEARED: Final = object()


class Argument(click.Argument):
    """An argument with a line in the help; click's own has ``help`` only since 8.5."""

    help_group = "Arguments"

    def __init__(self, *args: Any, help: str, **kwargs: Any) -> None:  # noqa: A002
        super().__init__(*args, **kwargs)
        self._line = self.human_readable_name, help

    def get_help_record(self, _ctx: click.Context) -> tuple[str, str]:
        return self._line


argument: Final = partial(click.argument, cls=Argument)


class ExampleOption(CeleryOption):
    """An option whose error messages include a valid value: ``example`` or the default.

    An option that takes any text needs none. A ``clearable`` option also takes the word ``none``,
    and then has the value :data:`CLEARED`. ``alias`` is an earlier name, which help and completions
    leave out.
    """

    opts: list[str]

    def __init__(
        self, *args: Any, example: str = "", clearable: bool = False, **kwargs: Any
    ) -> None:
        self.alias = kwargs.pop("alias", "")
        super().__init__(*args, **kwargs)
        valid = example or kwargs.get("default")
        self.example = f"{max(self.opts, key=len)} {valid}" if valid else ""
        self.clearable = clearable

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, self.alias] if self.alias else shown
        super().add_to_parser(parser, ctx)
        self.opts = shown

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if self.clearable and isinstance(value, str) and value.lower() == "none":
            return CLEARED
        return super().type_cast_value(ctx, value)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Add the example to the error for an invalid value."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if not self.example or isinstance(error, click.MissingParameter):
                raise
            message = with_example(error.message, self.example)
            raise click.BadParameter(message, ctx, self) from error


def option(*names: str, **attrs: Any) -> Callable[[Any], Any]:
    """Add an :class:`ExampleOption` to a command; the help shows its default."""
    attrs.setdefault("show_default", "default" in attrs)
    decorator: Callable[[Any], Any] = click.option(*names, cls=ExampleOption, **attrs)
    return decorator


def flag(name: str, about: str, *other_names: str) -> Callable[[Any], Any]:
    """Add an option without a value to a command."""
    return option(name, *other_names, is_flag=True, help=about)


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add options or arguments to a command; the help lists them in this order."""
    return lambda function: reduce(lambda added, add: add(added), reversed(decorators), function)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """An option type whose ``parse`` raises ValueError for an invalid text."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def instant_of(text: str) -> datetime:
    """Return a time in UTC; without a UTC offset, it is in the app's time zone."""
    zone = click.get_current_context().obj.app.timezone
    try:
        return instant_from("time", time_from(text.strip()), zone)
    except InvalidEntryError as error:
        raise ValueError(error.problem) from error


#: A duration; the value is in seconds.
SECONDS = Parsed("duration", seconds_from)
#: A time; the datetime is naive if the text has no UTC offset.
TIME = Parsed("time", lambda text: time_from(text.strip()))
#: A time in UTC.
INSTANT = Parsed("time", instant_of)


def option_error(
    ctx: click.Context, name: str, problem: str, example: bool = False
) -> click.BadParameter:
    """Return an error about the option whose parameter is ``name``.

    The example helps only if the form of the value is wrong.
    """
    param = next(param for param in ctx.command.params if param.name == name)
    shown = getattr(param, "example", "") if example else ""
    return click.BadParameter(with_example(problem, shown), ctx, param)


def with_example(message: str, example: str) -> str:
    """Add the example, unless the message names a valid value itself."""
    if not example or "such as" in message or example.partition(" ")[2] in message:
        return message
    return f"{message.rstrip('.')}; for example: {example}"


#: What only a pattern needs.
GLOB: Final = re.compile(r"[*?\[]")

#: Maximum number of names that are compared with an unknown one.
MAX_COMPARED: Final = 10_000


def load(console: Console, name: str) -> RedBeatSchedulerEntry:
    """Return an entry; end the command if the name is unknown. Takes one round trip."""
    with existing(console, name):
        return console.schedule[name]


def not_found(console: Console, name: str) -> CeleryCommandException:
    """Return the error for an unknown name, with similar names.

    If the schedule has the name after all, the error says why the entry cannot be loaded.
    """
    record, where = record_of(console.schedule, name)[1], f" {console.where}"
    if record is not None:
        hint = f", although the schedule lists the name: {problem_in(record)}"
    elif known := list(islice(map(str, console.schedule), MAX_COMPARED)):
        # Programs for RedBeat 2 use keys, which begin with the prefix.
        stem = name.removeprefix(ensure_conf(console.app).key_prefix)
        similar = difflib.get_close_matches(stem, known, cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else where
    else:
        hint = f"{where}; the schedule is empty"
    if GLOB.search(name) and any(param.name == "match" for param in console.ctx.command.params):
        hint = f"; for all that match, use --match {name!r}"
    return failure(f"There is no entry {name!r}{hint}", Exit.NOT_FOUND)


def problem_in(record: Record | None) -> str:
    return (record and record.problem) or "the entry was saved or deleted just now"


@contextmanager
def existing(console: Console, name: str) -> Iterator[None]:
    """End the command with an error if the ``with`` block raises KeyError for a missing entry."""
    try:
        yield
    except KeyError:
        raise not_found(console, name) from None


@contextmanager
def reading(source: str) -> Iterator[None]:
    """End the command if the file or database that is read in the ``with`` block is unreadable."""
    try:
        yield
    except UnreadableSourceError as error:
        raise failure(f"{source}: {error}", Exit.UNREADABLE) from error


# -- completion in the shell -----------------------------------------------------------------------

#: Maximum number of names to offer.
MAX_NAMES: Final = 100

#: Names that no shell changes: the others would need quotes, or could change the command line.
SAFE: Final = re.compile(r"[\w@%+=:,./-]+")


def _complete(
    names_of: Callable[[Any, str], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion function; ``names_of`` gets the app and the text so far.

    Without the app or Redis, it offers nothing. Errors are not reported, because a message would
    appear in the user's command line.
    """

    def complete(ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
        try:
            app = ctx.find_root().params["app"]  # Celery loads no app during a completion
            names = names_of(find_app(app) if isinstance(app, str) else app, start)
            return list(map(CompletionItem, islice(filter(SAFE.fullmatch, names), MAX_NAMES)))
        except (Exception, SystemExit):
            return []

    return complete


#: Complete the names of entries and tasks.
entry_names: Final = _complete(
    lambda app, start: (one.name for one in schedule_of(app).records(f"{escape(start)}*"))
)
task_names: Final = _complete(
    lambda app, start: (name for name in sorted(registered_tasks(app)) if name.startswith(start))
)

# -- arguments and options that several commands have ----------------------------------------------

entry_argument: Final = argument("name", help="Name of an entry.", shell_complete=entry_names)
entry_arguments: Final = argument(
    "names", nargs=-1, metavar="[NAME]...", help="Names of entries.", shell_complete=entry_names
)
match_option: Final = option(
    "--match", alias="--pattern", metavar="GLOB", help="Entries whose name matches this pattern."
)
wide_option: Final = flag(
    "--wide", "Print all columns in full on any terminal, and task ids of runs."
)


def period_options(required: bool) -> Callable[[Any], Any]:
    """Add ``--from`` and ``--to`` to a command; see :func:`check_period`."""
    about = {"type": INSTANT, "required": required}
    since, until = "Start of the period (ISO 8601).", "End of the period (ISO 8601)."
    return options(
        option("--from", "since", example="2026-10-24T00:00", help=since, **about),
        option("--to", "until", example="2026-10-27T00:00", help=until, **about),
    )


def check_period(console: Console, since: datetime, until: datetime) -> None:
    if not since < until:
        problem = f"must be later than --from ({console.time(since)})"
        raise option_error(console.ctx, "until", problem)
