"""What a command works with: the app, its schedule, the terminal and progress bars."""

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

#: A scheduler whose entries are none of ours, and which cannot be imported without its project.
DJANGO: Final = "django_celery_beat."


def entry_class_of(app: Any) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` of the scheduler in ``beat_scheduler``, where that is one of RedBeat.

    A scheduler that is only given as ``celery beat -S`` is not known here.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    if str(aliases.get(name, name)).startswith(DJANGO):
        return RedBeatSchedulerEntry
    try:
        found = getattr(_imported(name, aliases), "Entry", None)
    except (ImportError, AttributeError):  # celery beat reports it
        found = None
    if inspect.isclass(found) and issubclass(found, RedBeatSchedulerEntry):
        return found
    return RedBeatSchedulerEntry


def _imported(name: Any, aliases: dict[str, str]) -> Any:
    """Import a scheduler; one that imports models of Django has the project set up, as in beat."""
    try:
        return symbol_by_name(name, aliases=aliases)
    except Exception as error:
        if type(error).__name__ != "AppRegistryNotReady":
            raise
        import_module("django").setup()
        return symbol_by_name(name, aliases=aliases)


def save_unchanged(entry: RedBeatSchedulerEntry) -> None:
    """Save an entry unless somebody else changed it: :exc:`ConflictError` then.

    A ``save()`` of a class that does not know this choice is passed over.
    """
    parameters = inspect.signature(entry.save).parameters
    if "if_unchanged" in parameters or "kwargs" in parameters:
        entry.save(if_unchanged=True)
    else:
        entry._save(if_unchanged=True)


JSON: Final = CeleryOption(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")


class Console:
    """One run of a command; ``as_json`` when it speaks to a script.

    Data goes to the standard output, all else to the standard error, where ``--quiet`` keeps back
    what is no error.
    """

    def __init__(self, ctx: click.Context, as_json: bool = False) -> None:
        self.ctx = ctx
        self.app = ctx.obj.app
        self.as_json = as_json

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the app. A Redis that is away is reported at once, not waited for."""
        setattr(self.app, REDBEAT_REDIS_KEY, unretried(client_of(self.app)))
        return Schedule(self.app, entry_class_of(self.app))

    @property
    def zone(self) -> tzinfo:
        """The zone in which people read and write times: the app's ``timezone``."""
        zone: tzinfo = self.app.timezone
        return zone

    # -- output --------------------------------------------------------------------------------

    def say(self, text: str = "") -> None:
        """Print a line of data for people; what the output cannot write is escaped."""
        encoding = sys.stdout.encoding or "utf-8"
        self.ctx.obj.echo(text.encode(encoding, "backslashreplace").decode(encoding))

    def emit(self, value: Mapping[str, Any]) -> None:
        """Print a line of JSON, in ASCII."""
        click.echo(json.dumps(value))

    def note(self, text: str) -> None:
        """Print what is worth to know beside the data."""
        if not self.ctx.obj.quiet:
            self.ctx.obj.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Print what may be a mistake."""
        if not self.ctx.obj.quiet:
            self.ctx.obj.error(f"Warning: {text}", fg="yellow")

    def style(self, text: str, **style: Any) -> str:
        """Return ``text`` in a colour, unless colours are off."""
        styled: str = self.ctx.obj.style(text, **style)
        return styled

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows below their titles, each column as wide as it needs to be."""
        title, *lines = columns([titles, *rows])
        self.say(self.style(title, bold=True))
        for line in lines:
            self.say(line)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print names with their values, those with an empty value left out."""
        shown = [(name, value) for name, value in pairs if value]
        width = max(len(name) for name, _ in shown)
        for name, value in shown:
            head, *more = value.splitlines()
            self.say(f"{self.style(f'{name:<{width}}', bold=True)}  {head}")
            for line in more:
                self.say(f"{'':<{width}}  {line}")

    def name(self, name: object) -> str:
        """Return the name of an entry so that it can be printed."""
        return printable(str(name))

    def time(self, instant: datetime | None) -> str:
        """Return an instant in the zone of the app, ``-`` for none."""
        return moment(instant, self.zone)

    # -- input ---------------------------------------------------------------------------------

    def instant(self, given: datetime | None, zone: tzinfo | None = None) -> datetime | None:
        """Return a time that was given as an instant: without an offset it is read in ``zone``.

        The default is the zone of the app.
        """
        if given is None:
            return None
        return instant_of(given if given.tzinfo else given.replace(tzinfo=zone or self.zone))


def pass_console(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its :class:`Console` as the first argument, and the option ``--json``."""

    @click.pass_context
    def call(ctx: click.Context, /, as_json: bool, **options: Any) -> Any:
        return function(Console(ctx, as_json), **options)

    wrapped = update_wrapper(call, function)
    # The parameters are in reverse order: the option stands below those of the command.
    wrapped.__dict__["__click_params__"] = [JSON, *getattr(function, "__click_params__", ())]
    return wrapped


@contextmanager
def progress(console: Console, label: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many entries were done.

    Draws on the standard error, and only on a terminal. ``length`` is how many there are, None
    where that is not known.
    """
    if console.ctx.obj.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    # Click asks for one of the two; nothing is taken from an endless one.
    steps = repeat(None) if length is None else None
    bar: Any = click.progressbar(
        steps, length=length, label=label, show_pos=length is None, file=sys.stderr
    )
    with bar:
        yield bar.update
