"""The commands of ``celery -A proj redbeat``, which Celery finds through a package entry point.

Celery imports this module for every command, such as ``celery worker``. The import is fast, because
RedBeat imports the module of a RedBeat command only when a user runs the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

#: The modules of the commands, and the names of their commands.
MODULES: Final = {
    "apply": ("apply", "plan"),
    "backfill": ("backfill",),
    "calendars": ("calendar", "calendars"),
    "edit": ("add", "edit"),
    "import_export": ("export", "import"),
    "operate": ("delete", "pause", "resume", "trigger"),
    "prefixes": ("migrate-prefix", "shard"),
    "runs": ("simulate", "timeline", "upcoming"),
    "show": ("history", "list", "show"),
    "status": ("doctor", "status"),
    "web": ("exporter", "web"),
}

#: The command names, each with its module.
COMMANDS: Final = {name: module for module, names in MODULES.items() for name in names}


class LazyGroup(DYMGroup):
    """A command group that imports the module of a command when click looks up the command."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with the given name, or None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        found = vars(import_module(f"redbeat.cli.{COMMANDS[cmd_name]}")).values()
        commands = (each for each in found if isinstance(each, click.Command))
        return next(command for command in commands if command.name == cmd_name)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes into the help, below the list of commands."""
        codes: dict[int, str] = import_module("redbeat.cli.command").EXIT_CODES
        with formatter.section("Exit codes of all commands"):
            formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])


@click.group(name="redbeat", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def redbeat(ctx: click.Context, **_preload: Any) -> None:
    """Manage and inspect the schedule that RedBeat stores in Redis."""
