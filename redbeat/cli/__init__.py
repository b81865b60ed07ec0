"""The commands of ``celery -A proj redbeat``, found by Celery in the group ``celery.commands``.

Celery loads this module for each of its own commands as well, so the module of a command is
imported when that command is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

__all__ = ("COMMANDS", "redbeat")

#: The commands by name: where each of them is, as ``module:attribute``.
COMMANDS: Final[dict[str, str]] = {
    "add": "redbeat.cli.add:add",
    "delete": "redbeat.cli.operate:delete",
    "doctor": "redbeat.cli.doctor:doctor",
    "edit": "redbeat.cli.edit:edit",
    "export": "redbeat.cli.import_export:export",
    "exporter": "redbeat.cli.exporter:exporter",
    "history": "redbeat.cli.show:history",
    "import": "redbeat.cli.import_export:import_",
    "list": "redbeat.cli.list:list_",
    "migrate-prefix": "redbeat.cli.migrate_prefix:migrate_prefix",
    "pause": "redbeat.cli.operate:pause",
    "resume": "redbeat.cli.operate:resume",
    "show": "redbeat.cli.show:show",
    "status": "redbeat.cli.status:status",
    "timeline": "redbeat.cli.timeline:timeline",
    "trigger": "redbeat.cli.operate:trigger",
    "upcoming": "redbeat.cli.upcoming:upcoming",
    "web": "redbeat.cli.web:web",
}


class LazyGroup(DYMGroup):
    """A group that imports a command when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, in order."""
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Return the command of a name, None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(name="redbeat", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def redbeat(ctx: click.Context, **_preload: Any) -> None:
    """Look after the schedule that RedBeat keeps in Redis."""
