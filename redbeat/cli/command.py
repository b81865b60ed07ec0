"""The common parts of all commands: output, exit codes, and messages for known errors."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo
from functools import cached_property, wraps
from importlib import import_module
from itertools import repeat
from typing import Any, Final

import click
from celery import Celery
from celery.bin.base import CeleryCommand, CeleryOption
from celery.exceptions import CeleryCommandException
from celery.platforms import EX_OK, EX_UNAVAILABLE
from celery.utils.imports import load_extension_class_names, symbol_by_name
from redis.exceptions import RedisError

from redbeat import errors
from redbeat.calendar.zones import UTC
from redbeat.config import REDBEAT_REDIS_KEY, client_of, unretried
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.presentation.text import Room, columns, moment, until
from redbeat.printing import printable, warnings_to
from redbeat.schedule import Schedule
from redbeat.storage.checks import explained
from redbeat.storage.store import Store, store_of

#: The package of django-celery-beat, whose entry class is not based on RedBeat.
#: The package cannot be imported outside of a Django project.
DJANGO: Final = "django_celery_beat."


def entry_class_of(app: Celery) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` class of the scheduler that the setting ``beat_scheduler`` names.

    Returns :class:`RedBeatSchedulerEntry` if the scheduler is not based on RedBeat. The function
    ignores a scheduler that you select only with ``celery beat -S NAME``, because ``-S`` does not
    change the setting ``beat_scheduler``.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    if str(aliases.get(name, name)).startswith(DJANGO):
        return RedBeatSchedulerEntry
    entry_class = None
    with suppress(ImportError, AttributeError):  # ``celery beat`` reports the error at its start
        entry_class = getattr(_import_scheduler(name, aliases), "Entry", None)
    if inspect.isclass(entry_class) and issubclass(entry_class, RedBeatSchedulerEntry):
        return entry_class
    return RedBeatSchedulerEntry


def _import_scheduler(name: Any, aliases: dict[str, str]) -> Any:
    """Return a scheduler class; set up Django first if the import needs Django models."""
    try:
        return symbol_by_name(name, aliases=aliases)
    except Exception as error:
        if type(error).__name__ != "AppRegistryNotReady":
            raise
        import_module("django").setup()
        return symbol_by_name(name, aliases=aliases)


def schedule_of(app: Celery) -> Schedule:
    """Return the app's schedule, with a Redis client that does not retry failed connections."""
    setattr(app, REDBEAT_REDIS_KEY, unretried(client_of(app)))
    return Schedule(app, entry_class_of(app))


#: The colours of states of entries, and of their last runs; the usual ones have none.
STATE_COLORS: Final = {
    "running": "green",
    "failed": "red",
    "paused": "yellow",
    "finished": "bright_black",
    "failing": "red",
    "quarantined": "red",
    "not scheduled": "yellow",
}


class Styled(str):
    """A text with a style, such as ``fg="red"``; the console prints the text in this style.

    A styled text itself contains no terminal sequences. The console escapes control characters in
    the text before it adds the terminal sequences of the style. String operations, such as ``+``,
    return a text without a style.
    """

    __slots__ = ("style",)

    style: dict[str, Any]

    def __new__(cls, text: str, **style: Any) -> Styled:
        """Return ``text`` with a style; ``style`` contains arguments of ``click.style``."""
        styled = super().__new__(cls, text)
        styled.style = style
        return styled


JSON: Final = CeleryOption(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")


class Console:
    """The output of a command, as JSON if ``as_json`` is true, and with all that is ``wide``.

    Data goes to standard output. Messages, warnings and errors go to standard error. ``--quiet``
    suppresses messages and warnings, but not errors.

    All printing methods escape control characters, so callers pass names and texts unescaped.
    Commands print text only through :class:`Console`.
    """

    def __init__(self, ctx: click.Context, as_json: bool = False, wide: bool = False) -> None:
        self.ctx = ctx
        self.app = ctx.obj.app
        self.as_json = as_json
        self.wide = wide
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            # Celery ignores NO_COLOR=0, but by https://no-color.org any value disables colours.
            ctx.obj.no_color = True

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the app, see :func:`schedule_of`."""
        return schedule_of(self.app)

    @property
    def store(self) -> Store:
        """The :class:`Store` that reads and writes the schedule in Redis."""
        return store_of(self.schedule.app)

    @property
    def zone(self) -> tzinfo:
        """The time zone of input and output, from the ``timezone`` setting of the app."""
        zone: tzinfo = self.app.timezone
        return zone

    @property
    def now(self) -> datetime:
        """The time on this host, to which times are related."""
        return datetime.now(UTC)

    # -- output --------------------------------------------------------------------------------

    def write(self, *parts: str) -> None:
        """Print a line of data that consists of plain and :class:`Styled` texts.

        Escapes control characters, and characters that the output encoding cannot represent.
        """
        line = "".join(map(self._printed, parts))
        encoding = sys.stdout.encoding or "utf-8"
        self.ctx.obj.echo(line.encode(encoding, "backslashreplace").decode(encoding))

    def _printed(self, part: str) -> str:
        text = printable(part)
        if not isinstance(part, Styled):
            return text
        styled: str = self.ctx.obj.style(text, **part.style)
        return styled

    def emit(self, value: Mapping[str, Any]) -> None:
        """Print an object as one line of JSON, in ASCII."""
        click.echo(json.dumps(value))

    def result(self, value: Mapping[str, Any], text: str) -> None:
        """Print what the command did: with ``--json`` the object ``value``, otherwise ``text``."""
        if self.as_json:
            self.emit(value)
        else:
            self.note(text)

    def items(
        self,
        items: Iterable[Any],
        as_object: Callable[[Any], Mapping[str, Any]],
        titles: Sequence[str],
        as_row: Callable[[Any], Sequence[str]],
        nothing: str = "",
        optional: Sequence[str] = (),
        cut: Mapping[str, int] | None = None,
    ) -> int:
        """Print each item as an object with ``--json``, otherwise print a table of all items.

        See :meth:`table` for ``optional`` and ``cut``.
        The message ``nothing`` is printed instead of an empty table. Returns the number of rows.
        """
        if self.as_json:
            for item in items:
                self.emit(as_object(item))
            return 0
        rows = list(map(as_row, items))
        if rows:
            self.table(titles, rows, optional, cut)
        elif nothing:
            self.note(nothing)
        return len(rows)

    def note(self, text: str) -> None:
        """Print a message to standard error, unless ``--quiet`` is given."""
        if not self.ctx.obj.quiet:
            self.ctx.obj.echo(printable(text), err=True)

    def warn(self, text: str) -> None:
        """Print a warning to standard error, unless ``--quiet`` is given."""
        if not self.ctx.obj.quiet:
            # Style the text first, because Celery's error() accepts no style with --no-color.
            self.ctx.obj.error(self._printed(Styled(f"Warning: {text}", fg="yellow")))

    def error(self, text: str) -> None:
        """Print an error to standard error, even if ``--quiet`` is given."""
        self.ctx.obj.error(printable(text))

    def state(self, state: str) -> str:
        """Return the state of an entry or of its last run as text, coloured if it is not usual."""
        return Styled(state, fg=STATE_COLORS[state]) if state in STATE_COLORS else state

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[Sequence[str]],
        optional: Sequence[str] = (),
        cut: Mapping[str, int] | None = None,
    ) -> None:
        """Print rows in aligned columns, below the column titles.

        On a terminal, ``optional`` columns are left out, and some are cut, if they need more room;
        see :class:`Room`.
        """
        room = None
        if sys.stdout.isatty() and not self.wide:
            room = Room(shutil.get_terminal_size().columns, optional, cut or {})
        title, *lines = columns([map(_escaped, row) for row in (titles, *rows)], room)
        self.write(Styled("".join(title), bold=True))
        for line in lines:
            self.write(*line)

    def fields(self, pairs: Iterable[tuple[str, str | Sequence[str]]]) -> None:
        """Print each name and its value, which is a text or a list of lines; skip empty values."""
        nonempty = [(name, value) for name, value in pairs if value]
        width = max(len(name) for name, _ in nonempty)
        for name, value in nonempty:
            first_line, *more_lines = [value] if isinstance(value, str) else value
            self.write(Styled(f"{name:<{width}}", bold=True), "  ", first_line)
            for line in more_lines:
                self.write(f"{'':<{width}}  ", line)

    def time(self, instant: datetime | None, zone: tzinfo | None = None) -> str:
        """Return an instant as text in ``zone`` or the app's zone, or ``-`` for None."""
        return moment(instant, zone or self.zone)

    def when(self, instant: datetime | None, zone: tzinfo | None = None) -> str:
        """Return an instant with its zone, by default the app's, and when that is; "" for None."""
        if instant is None:
            return ""
        return f"{self.time(instant, zone)} {zone or self.zone}, {until(instant, self.now)}"

    def local(self, text: str, zone: tzinfo | None = None) -> str:
        """Return a text with each time in it as :meth:`when` returns it."""
        return INSTANT.sub(lambda found: self.when(datetime.fromisoformat(found[0]), zone), text)


#: Matches a time in UTC within a text that is the same for people, JSON and logs.
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00")


def _escaped(cell: str) -> str:
    """Return a table cell as it is printed, so that callers can measure the printed width."""
    return Styled(printable(cell), **cell.style) if isinstance(cell, Styled) else printable(cell)


@contextmanager
def progress(console: Console, label: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that advances the bar by a number of entries.

    The bar is shown only if standard error is a terminal. ``length`` is the total number of
    entries, or None if the total is unknown. If the context ends without an error, the bar jumps
    to 100 %, because ``length`` is wrong if other programs have added or removed entries.
    """
    if console.ctx.obj.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Click needs a length or an iterable, although this function never uses the iterable.
    steps = repeat(None) if length is None else None
    bar: Any = click.progressbar(
        steps, length=length, label=label, show_pos=length is None, file=sys.stderr
    )
    with bar:
        yield bar.update
        bar.finished = bar.show_percent = True
        bar.render_progress()


# -- the command -----------------------------------------------------------------------------------

EX_FAILED: Final = 1
EX_UNHEALTHY: Final = EX_FAILED
EX_USAGE: Final = 2
#: The exit code of ``plan --detailed-exitcode`` if something would change.
EX_DIFFERENT: Final = EX_USAGE
EX_NOT_FOUND: Final = 3
EX_CONFLICT: Final = 4
EX_UNREADABLE: Final = 5

#: The exit codes of all commands, with their meanings, as listed in the help and the manual.
EXIT_CODES: Final[dict[int, str]] = {
    EX_OK: "done",
    EX_FAILED: "the command found problems, failed, or was not confirmed with yes",
    EX_USAGE: "the command line is invalid, or plan --detailed-exitcode found planned changes",
    EX_NOT_FOUND: "the entry or calendar does not exist; nothing was written",
    EX_CONFLICT: "another program changed the entry, or a different entry is stored already",
    EX_UNREADABLE: "an entry or a file cannot be read",
    EX_UNAVAILABLE: "Redis cannot be reached, or refuses a command",
    errors.EX_CONFIG: "a setting of the app is invalid",
}


def failure(message: str, exit_code: int) -> CeleryCommandException:
    """Return an exception that makes a command exit with the given message and exit code."""
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
    except errors.ConfigurationError as error:
        raise failure(str(error), errors.EX_CONFIG) from error
    except errors.InvalidEntryError as error:
        raise click.UsageError(printable(str(error))) from error
    except errors.DecodeError as error:
        raise failure(f"The entry cannot be read: {error}", EX_UNREADABLE) from error
    except errors.ConflictError as error:
        problem = f"Somebody else keeps changing {str(error)!r}; check the entry and try again"
        raise failure(problem, EX_CONFLICT) from error
    except RedisError as error:
        reason = errors.described(explained(error, store_of(app)))
        raise failure(f"Redis cannot be used: {reason}", EX_UNAVAILABLE) from error
    except OSError as error:  # for example, a file cannot be read, or an address is in use
        if isinstance(error, BrokenPipeError):
            raise
        raise failure(str(error), EX_FAILED) from error


def command(
    name: str, cls: type[RedBeatCommand] = RedBeatCommand
) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function into a command with the option ``--json``.

    The command calls the function with a :class:`Console` as the first argument.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @click.command(name, cls=cls)
        @click.pass_context
        @wraps(function)
        def decorated(
            ctx: click.Context, /, as_json: bool, wide: bool = False, **options: Any
        ) -> Any:
            return function(Console(ctx, as_json, wide), **options)

        decorated.params.append(JSON)
        return decorated

    return decorate
