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

#: The command names, each with the ``module:attribute`` that implements the command.
COMMANDS: Final[dict[str, str]] = {
    "add": "redbeat.cli.edit:add",
    "apply": "redbeat.cli.apply:apply",
    "backfill": "redbeat.cli.backfill:backfill",
    "calendar": "redbeat.cli.calendars:calendar",
    "calendars": "redbeat.cli.calendars:calendars",
    "delete": "redbeat.cli.operate:delete",
    "doctor": "redbeat.cli.status:doctor",
    "edit": "redbeat.cli.edit:edit",
    "export": "redbeat.cli.import_export:export",
    "exporter": "redbeat.cli.exporter:exporter",
    "history": "redbeat.cli.show:history",
    "import": "redbeat.cli.import_export:import_",
    "list": "redbeat.cli.list:list_",
    "migrate-prefix": "redbeat.cli.prefixes:migrate_prefix",
    "pause": "redbeat.cli.operate:pause",
    "plan": "redbeat.cli.apply:plan",
    "resume": "redbeat.cli.operate:resume",
    "shard": "redbeat.cli.prefixes:shard",
    "show": "redbeat.cli.show:show",
    "simulate": "redbeat.cli.simulate:simulate",
    "status": "redbeat.cli.status:status",
    "timeline": "redbeat.cli.timeline:timeline",
    "trigger": "redbeat.cli.operate:trigger",
    "upcoming": "redbeat.cli.timeline:upcoming",
    "web": "redbeat.cli.web:web",
}


class LazyGroup(DYMGroup):
    """A command group that imports the module of a command when click looks up the command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Return the command with the given name, or None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the exit codes into the help, below the list of commands."""
        codes: dict[int, str] = import_module("redbeat.cli.command").EXIT_CODES
        with formatter.section("Exit codes of all commands"):
            formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])


@click.group(name="redbeat", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def redbeat(ctx: click.Context, **_preload: Any) -> None:
    """Manage and inspect the schedule that RedBeat stores in Redis."""
