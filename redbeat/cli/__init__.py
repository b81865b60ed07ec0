"""The commands of ``celery -A proj redbeat``, found by Celery in the group ``celery.commands``.

Celery loads this module for each of its own commands as well, so the module of a command is
imported when that command is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup

__all__ = ("COMMANDS", "redbeat")

#: The commands by name: where each of them is, as ``module:attribute``.
COMMANDS: Final[dict[str, str]] = {
    "add": "redbeat.cli.adding:add",
    "delete": "redbeat.cli.acting:delete",
    "edit": "redbeat.cli.editing:edit",
    "history": "redbeat.cli.showing:history",
    "list": "redbeat.cli.listing:list_",
    "pause": "redbeat.cli.acting:pause",
    "resume": "redbeat.cli.acting:resume",
    "show": "redbeat.cli.showing:show",
    "status": "redbeat.cli.status:status",
    "timeline": "redbeat.cli.timeline:timeline",
    "trigger": "redbeat.cli.acting:trigger",
    "upcoming": "redbeat.cli.upcoming:upcoming",
}


class LazyGroup(DYMGroup):
    """A group that imports a command when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in order."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, None for an unknown one."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(name="redbeat", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def redbeat(ctx: click.Context, **_preload: Any) -> None:  # noqa: ARG001 - Celery asks for it
    """Look after the schedule that RedBeat keeps in Redis."""
