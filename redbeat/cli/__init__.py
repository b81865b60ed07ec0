"""The commands of ``celery -A proj redbeat``, which Celery finds through a package entry point.

Celery imports this module for every command, such as ``celery worker``, so it must be fast: the
module of a RedBeat command is imported only when that command runs.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from itertools import chain
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options
from celery.signals import beat_init
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

#: The modules with the commands in each.
MODULES: Final = {
    "apply": ("apply", "plan"),
    "calendars": ("calendar", "calendars"),
    "edit": ("add", "edit"),
    "import_export": ("export", "import"),
    "operate": ("backfill", "delete", "pause", "resume", "trigger"),
    "prefixes": ("migrate-prefix", "shard"),
    "runs": ("simulate", "upcoming"),
    "show": ("history", "list", "show"),
    "status": ("doctor", "status"),
    "web": ("exporter", "web"),
}

#: The command names, each with its module.
COMMANDS: Final = {name: module for module, names in MODULES.items() for name in names}


#: The commands as the help lists them, by purpose.
GROUPS: Final = {
    "Look": ("status", "list", "show", "history", "upcoming", "simulate"),
    "Change": ("add", "edit", "delete", "plan", "apply", "calendar", "calendars"),
    "Operate": ("doctor", "pause", "resume", "trigger", "backfill"),
    "Move": ("export", "import", "migrate-prefix", "shard"),
    "Serve": ("web", "exporter"),
}


class LazyGroup(DYMGroup):
    """Imports the module of a command only when click looks it up."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = vars(import_module(f"redbeat.cli.{COMMANDS[cmd_name]}")).values()
        commands = (each for each in found if isinstance(each, click.Command))
        return next(command for command in commands if command.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), one.get_short_help_str(80)) for name, one in found if one]
                )

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        codes = import_module("redbeat.cli.command").Exit
        with formatter.section("Exit codes of all commands"):
            formatter.write_dl([(f"{code:d}", code.meaning) for code in codes])


@click.group(name="redbeat", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def redbeat(ctx: click.Context, **_preload: Any) -> None:
    """Manage and inspect the schedule that RedBeat stores in Redis."""


#: An option or the name of a setting that is meant for RedBeat.
MEANT: Final = re.compile(r"(^|[_=]|^-s)redbeat([.:_]|$)", re.IGNORECASE)

OTHER_SCHEDULER: Final = (
    "beat: This beat is %s, not RedBeat: it sends nothing of the schedule in Redis. Start it with "
    "celery beat -S redbeat, or celery worker -B --scheduler redbeat (-S means --statedb there)"
)


@beat_init.connect
def warn_of_another_scheduler(sender: Any, **_event: Any) -> None:
    """Warn if a beat has another scheduler, although options or settings name RedBeat."""
    kinds = type(sender.scheduler).__mro__
    is_ours = any(f"{kind.__module__}.".startswith("redbeat.") for kind in kinds)
    given = chain(sys.argv[1:], *sender.app.conf.maps[:-1])
    if not is_ours and any(MEANT.search(str(one)) for one in given):
        logger = import_module("redbeat.printing").get_logger("celery.beat")
        logger.warning(OTHER_SCHEDULER, kinds[0].__qualname__)
