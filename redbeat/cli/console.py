"""The context of a command: the app, its schedule, terminal output and progress bars."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from functools import cached_property, update_wrapper
from importlib import import_module
from itertools import repeat
from typing import Any, Final

import click
from celery.bin.base import CeleryOption
from celery.utils.imports import load_extension_class_names, symbol_by_name

from redbeat.calendar.walltime import instant_of
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.presentation.text import columns, moment, printable
from redbeat.schedule import Schedule
from redbeat.storage.client import REDBEAT_REDIS_KEY, client_of, unretried

__all__ = (
    "Console",
    "entry_class_of",
    "pass_console",
    "progress",
    "save_unchanged",
)

#: The package of the Django scheduler. Its entry class is not a subclass of ours, and its import
#: fails outside of a Django project.
DJANGO: Final = "django_celery_beat."


def entry_class_of(app: Any) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` class of the scheduler that the setting ``beat_scheduler`` names.

    Returns :class:`RedBeatSchedulerEntry` if that is not a RedBeat scheduler. A scheduler that is
    only named by ``celery beat -S`` is unknown here.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    if str(aliases.get(name, name)).startswith(DJANGO):
        return RedBeatSchedulerEntry
    try:
        entry_class = getattr(_import_scheduler(name, aliases), "Entry", None)
    except (ImportError, AttributeError):  # celery beat reports this error
        entry_class = None
    if inspect.isclass(entry_class) and issubclass(entry_class, RedBeatSchedulerEntry):
        return entry_class
    return RedBeatSchedulerEntry


def _import_scheduler(name: Any, aliases: dict[str, str]) -> Any:
    """Return a scheduler class; set up Django first if its module imports Django models."""
    try:
        return symbol_by_name(name, aliases=aliases)
    except Exception as error:
        if type(error).__name__ != "AppRegistryNotReady":
            raise
        import_module("django").setup()
        return symbol_by_name(name, aliases=aliases)


def save_unchanged(entry: RedBeatSchedulerEntry) -> None:
    """Save an entry; raises :exc:`ConflictError` if it has changed in Redis since it was loaded.

    If ``save()`` of a subclass lacks the argument ``if_unchanged``, that method is not called.
    """
    parameters = inspect.signature(entry.save).parameters
    if "if_unchanged" in parameters or "kwargs" in parameters:
        entry.save(if_unchanged=True)
    else:
        entry._save(if_unchanged=True)


JSON: Final = CeleryOption(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")


class Console:
    """One run of a command; ``as_json`` is true if it prints JSON for a script.

    Data goes to standard output, everything else to standard error. ``--quiet`` suppresses all of
    standard error except errors.
    """

    def __init__(self, ctx: click.Context, as_json: bool = False) -> None:
        self.ctx = ctx
        self.app = ctx.obj.app
        self.as_json = as_json

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the app; its client fails at once if Redis is unreachable."""
        setattr(self.app, REDBEAT_REDIS_KEY, unretried(client_of(self.app)))
        return Schedule(self.app, entry_class_of(self.app))

    @property
    def zone(self) -> tzinfo:
        """The time zone of input and output: the ``timezone`` of the app."""
        zone: tzinfo = self.app.timezone
        return zone

    # -- output --------------------------------------------------------------------------------

    def write(self, text: str = "") -> None:
        """Print a line of data; escape characters that the output encoding lacks."""
        encoding = sys.stdout.encoding or "utf-8"
        self.ctx.obj.echo(text.encode(encoding, "backslashreplace").decode(encoding))

    def emit(self, value: Mapping[str, Any]) -> None:
        """Print an object as one line of JSON, in ASCII."""
        click.echo(json.dumps(value))

    def note(self, text: str) -> None:
        """Print a message to standard error, unless ``--quiet`` is given."""
        if not self.ctx.obj.quiet:
            self.ctx.obj.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Print a warning to standard error, unless ``--quiet`` is given."""
        if not self.ctx.obj.quiet:
            self.ctx.obj.error(f"Warning: {text}", fg="yellow")

    def style(self, text: str, **style: Any) -> str:
        """Return ``text`` with this style, unchanged if colours are off."""
        styled: str = self.ctx.obj.style(text, **style)
        return styled

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows below their titles, in aligned columns."""
        title, *lines = columns([titles, *rows])
        self.write(self.style(title, bold=True))
        for line in lines:
            self.write(line)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print each name with its value; leave out empty values."""
        nonempty = [(name, value) for name, value in pairs if value]
        width = max(len(name) for name, _ in nonempty)
        for name, value in nonempty:
            first_line, *more_lines = value.splitlines()
            self.write(f"{self.style(f'{name:<{width}}', bold=True)}  {first_line}")
            for line in more_lines:
                self.write(f"{'':<{width}}  {line}")

    def name(self, name: object) -> str:
        """Return the name of an entry with control characters escaped."""
        return printable(str(name))

    def time(self, instant: datetime | None) -> str:
        """Return an instant as text in the zone of the app, ``-`` for None."""
        return moment(instant, self.zone)

    # -- input ---------------------------------------------------------------------------------

    def instant(self, value: datetime | None, zone: tzinfo | None = None) -> datetime | None:
        """Return the instant of a datetime.

        A naive datetime is a wall-clock time in ``zone``, by default the zone of the app.
        """
        if value is None:
            return None
        return instant_of(value if value.tzinfo else value.replace(tzinfo=zone or self.zone))


def pass_console(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a :class:`Console` as the first argument, and add the option ``--json``."""

    @click.pass_context
    def call(ctx: click.Context, /, as_json: bool, **options: Any) -> Any:
        return function(Console(ctx, as_json), **options)

    wrapped = update_wrapper(call, function)
    # Click keeps parameters in reverse order: --json comes last in the help.
    wrapped.__dict__["__click_params__"] = [JSON, *getattr(function, "__click_params__", ())]
    return wrapped


@contextmanager
def progress(console: Console, label: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yields a function to call with the number of entries just processed.

    The bar is drawn on standard error, if that is a terminal. ``length`` is the total number of
    entries, None if unknown.
    """
    if console.ctx.obj.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Click needs an iterable or a length. It does not consume this endless iterable.
    steps = repeat(None) if length is None else None
    bar: Any = click.progressbar(
        steps, length=length, label=label, show_pos=length is None, file=sys.stderr
    )
    with bar:
        yield bar.update
