"""What all commands share: output, exit codes, and messages for known errors."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo
from enum import IntEnum
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

from redbeat import RedBeatSchedulerEntry, Schedule, errors
from redbeat.calendar.zones import UTC
from redbeat.config import REDBEAT_REDIS_KEY, client_of, ensure_conf, unretried
from redbeat.connection.urls import safe_url
from redbeat.presentation.text import Room, columns, moment, until
from redbeat.printing import get_logger, printable
from redbeat.storage.checks import explained
from redbeat.storage.store import Store, store_of

#: The package of django-celery-beat. Its entry class has nothing to do with RedBeat's, and outside
#: of a Django project it cannot be imported.
DJANGO: Final = "django_celery_beat."


def entry_class_of(app: Celery) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` class of the scheduler that the setting ``beat_scheduler`` names.

    This is :class:`RedBeatSchedulerEntry` if the scheduler is not based on RedBeat. A scheduler
    that is given only with ``celery beat -S NAME`` isn't found, because ``-S`` doesn't change the
    setting.
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
    """Set up Django first if the import needs its models."""
    try:
        return symbol_by_name(name, aliases=aliases)
    except Exception as error:
        if type(error).__name__ != "AppRegistryNotReady":
            raise
        import_module("django").setup()
        return symbol_by_name(name, aliases=aliases)


def schedule_of(app: Celery) -> Schedule:
    """Return the app's schedule, with a Redis client that doesn't retry failed connections."""
    setattr(app, REDBEAT_REDIS_KEY, unretried(client_of(app)))
    return Schedule(app, entry_class_of(app))


#: The colours of states and last results; the usual ones have none.
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
    """A text that the console prints in a style, such as ``fg="red"``.

    The text itself has no terminal sequences: the console adds them after it has escaped control
    characters. Operations such as ``+`` return a text without a style.
    """

    __slots__ = ("style",)

    style: dict[str, Any]

    def __new__(cls, text: str, **style: Any) -> Styled:
        """``style`` has the arguments of ``click.style``."""
        styled = super().__new__(cls, text)
        styled.style = style
        return styled


JSON: Final = CeleryOption(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")


class Console:
    """The output of a command: for a person, or JSON; ``wide`` leaves nothing out.

    Data goes to standard output; messages, warnings and errors go to standard error. ``--quiet``
    suppresses all but data and errors.

    Commands print only through this class. It escapes control characters, so that callers pass
    names and texts as they are.
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
        return schedule_of(self.app)

    @property
    def store(self) -> Store:
        return store_of(self.schedule.app)

    @property
    def zone(self) -> tzinfo:
        """The time zone of input and output: the app's."""
        zone: tzinfo = self.app.timezone
        return zone

    @property
    def where(self) -> str:
        """Where the schedule is."""
        conf = ensure_conf(self.app)
        return f"under the prefix {conf.key_prefix} in {safe_url(conf.redis_url)}"

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    # -- output --------------------------------------------------------------------------------

    def write(self, *parts: str) -> None:
        """Print a line of data that consists of plain and :class:`Styled` texts.

        Characters that the output encoding lacks are escaped, too.
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
        """Print what the command did: ``value`` with ``--json``, otherwise ``text``."""
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
        """Print a table, or with ``--json`` an object for each item; return the number of rows.

        ``nothing`` is printed instead of an empty table. See :meth:`table` for ``optional`` and
        ``cut``.
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
            # Style the text first: with --no-color, Celery's error() accepts no style.
            self.ctx.obj.error(self._printed(Styled(f"Warning: {text}", fg="yellow")))

    def error(self, text: str) -> None:
        """Print an error to standard error, even with ``--quiet``."""
        self.ctx.obj.error(printable(text))

    def state(self, state: str) -> str:
        """Return a state or a last result, coloured if it is not usual."""
        return Styled(state, fg=STATE_COLORS[state]) if state in STATE_COLORS else state

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[Sequence[str]],
        optional: Sequence[str] = (),
        cut: Mapping[str, int] | None = None,
    ) -> None:
        """Print rows in aligned columns.

        If a terminal is too narrow, the ``optional`` columns are left out, and some are ``cut``;
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
        """Print names with their values, which are texts or lists of lines; skip empty ones."""
        nonempty = [(name, value) for name, value in pairs if value]
        width = max(len(name) for name, _ in nonempty)
        for name, value in nonempty:
            first_line, *more_lines = [value] if isinstance(value, str) else value
            self.write(Styled(f"{name:<{width}}", bold=True), "  ", first_line)
            for line in more_lines:
                self.write(f"{'':<{width}}  ", line)

    def time(self, instant: datetime | None, zone: tzinfo | None = None) -> str:
        """Return an instant as text in ``zone`` or the app's zone, ``-`` for None."""
        return moment(instant, zone or self.zone)

    def when(self, instant: datetime | None, zone: tzinfo | None = None) -> str:
        """Return an instant with its zone and how far away it is, "" for None."""
        if instant is None:
            return ""
        return f"{self.time(instant, zone)} {zone or self.zone}, {until(instant, self.now)}"

    def local(self, text: str, zone: tzinfo | None = None) -> str:
        """Return a text with each time in it as :meth:`when` shows it."""
        return INSTANT.sub(lambda found: self.when(datetime.fromisoformat(found[0]), zone), text)


#: A time in UTC within a text that is the same for people, JSON and logs.
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00")


def _escaped(cell: str) -> str:
    """Escape a cell before its width is measured."""
    return Styled(printable(cell), **cell.style) if isinstance(cell, Styled) else printable(cell)


@contextmanager
def progress(
    console: Console, label: str, length: int | None, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that advances it by a number of entries.

    Only a terminal shows it. Lines about entries would break it, so commands that print them pass
    False for ``shown``. ``length`` is the total, or None if unknown. It is wrong if other
    programs add or remove entries, so the bar jumps to 100 % at the end, unless there is an error.
    """
    if not shown or console.ctx.obj.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Click needs a length or an iterable, although this one is never used.
    steps = repeat(None) if length is None else None
    bar: Any = click.progressbar(
        steps, length=length, label=label, show_pos=length is None, file=sys.stderr
    )
    with bar:
        yield bar.update
        bar.finished = bar.show_percent = True
        bar.render_progress()


# -- the command -----------------------------------------------------------------------------------


class Exit(IntEnum):
    """The exit codes of all commands, with the meanings that the help lists."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        new = int.__new__(cls, code)
        new._value_, new.meaning = code, meaning
        return new

    DONE = EX_OK, "done"
    FAILED = 1, "the command found problems, failed, or was not confirmed with yes"
    UNHEALTHY = FAILED
    USAGE = 2, "the command line is invalid, or plan --detailed-exitcode found planned changes"
    DIFFERENT = USAGE
    NOT_FOUND = 3, "the entry or calendar does not exist; nothing was written"
    CONFLICT = 4, "another program changed the entry, or a different entry is stored already"
    UNREADABLE = 5, "an entry or a file cannot be read"
    UNAVAILABLE = EX_UNAVAILABLE, "Redis cannot be reached, or refuses a command"
    CONFIG = errors.EX_CONFIG, "a setting of the app is invalid"


def failure(message: str, exit_code: Exit) -> CeleryCommandException:
    return CeleryCommandException(printable(message), exit_code)


@contextmanager
def _warnings_to(write: Callable[[str], None]) -> Iterator[None]:
    """Call ``write`` with each warning and error that RedBeat logs within the context.

    Celery does not configure logging for commands.
    """
    logger = get_logger("celery.beat")
    handler = _Writer(logging.WARNING)
    handler.write = write
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Writer(logging.Handler):
    write: Callable[[str], None]

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.getMessage())


class RedBeatCommand(CeleryCommand):
    """Reports known errors without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        with _warnings_to(Console(ctx).warn), _translated_errors(ctx.obj.app):
            return super().invoke(ctx)


@contextmanager
def _translated_errors(app: Celery) -> Iterator[None]:
    try:
        yield
    except errors.ConfigurationError as error:
        raise failure(str(error), Exit.CONFIG) from error
    except errors.InvalidEntryError as error:
        raise click.UsageError(printable(str(error))) from error
    except errors.DecodeError as error:
        raise failure(f"The entry cannot be read: {error}", Exit.UNREADABLE) from error
    except errors.ConflictError as error:
        problem = f"Somebody else keeps changing {str(error)!r}; check the entry and try again"
        raise failure(problem, Exit.CONFLICT) from error
    except RedisError as error:
        reason = errors.described(explained(error, store_of(app)))
        raise failure(f"Redis cannot be used: {reason}", Exit.UNAVAILABLE) from error
    except OSError as error:  # for example, a file cannot be read, or an address is in use
        if isinstance(error, BrokenPipeError):
            raise
        raise failure(str(error), Exit.FAILED) from error


def command(
    name: str, cls: type[RedBeatCommand] = RedBeatCommand
) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function that takes a :class:`Console` first into a command with ``--json``."""

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
