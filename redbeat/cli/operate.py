"""The commands ``pause``, ``resume``, ``trigger`` and ``delete`` of ``celery redbeat``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import click

from redbeat.errors import InvalidEntryError

from .command import EX_CONFLICT, EX_NOT_FOUND, command, failure
from .completion import entry_names
from .console import Console
from .options import check_names, confirm, load, not_found, option, static_among

__all__ = (
    "delete",
    "pause",
    "resume",
    "trigger",
)

DECORATORS: tuple[Callable[[Any], Any], ...] = (
    click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=entry_names),
    option(
        "--match",
        metavar="GLOB",
        example="'billing-*'",
        help="Select all entries whose name matches this pattern. Asks for confirmation.",
    ),
    option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
)


def names_or_pattern(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument NAME and the options ``--match`` and ``--yes`` to a command."""
    return reduce(lambda decorated, add: add(decorated), reversed(DECORATORS), function)


def select_names(
    console: Console,
    verb: str,
    names: Sequence[str],
    match: str | None,
    yes: bool,
    **filters: Any,
) -> list[str]:
    """Return the names of the selected entries; end the command if no entry is selected.

    With ``match``, the user must confirm the action ``verb``, unless ``yes`` is true. ``filters``
    apply only with ``match``. They exclude, for example, entries that are already paused.
    """
    if bool(names) == bool(match):
        problem = "Give either names or --match; for example: --match 'billing-*'"
        raise click.UsageError(problem, console.ctx)
    if names:
        check_names(console, names)
        return list(dict.fromkeys(names))
    matching = [record.name for record in console.schedule.records(pattern=match, **filters)]
    if not matching:
        raise failure(f"No entry matches {match!r}", EX_NOT_FOUND)
    if not yes:
        confirm(console, verb, matching)
    return matching


def report(console: Console, action: str, names: Iterable[str], **details: str) -> None:
    """Print one line per entry; ``action`` is what was done, such as ``paused``."""
    for name in names:
        if console.as_json:
            console.emit({"name": name, "action": action, **details})
        else:
            suffix = "".join(f" ({value})" for value in details.values())
            console.note(f"{action.capitalize()} {name}{suffix}")


@command("pause")
@names_or_pattern
@option(
    "--note",
    example="'broken export, ask Ann'",
    help="Reason for the pause; 'show' and the dashboard display it.",
)
def pause(
    console: Console, names: tuple[str, ...], match: str | None, yes: bool, note: str | None
) -> None:
    """Pause entries until they are resumed."""
    paused = select_names(console, "Pause", names, match, yes, enabled=True)
    console.schedule.pause_all(paused, note)
    report(console, "paused", paused)


@command("resume")
@names_or_pattern
def resume(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Resume paused entries.

    An entry that missed runs while it was paused catches up one of them.
    """
    resumed = select_names(console, "Resume", names, match, yes, enabled=False)
    console.schedule.resume_all(resumed)
    report(console, "resumed", resumed)


@command("trigger")
@names_or_pattern
def trigger(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Run entries now, in addition to their schedule."""
    selected = select_names(console, "Trigger", names, match, yes)
    for name in selected:
        try:
            task_id = load(console, name).trigger()
        except InvalidEntryError as error:
            raise failure(f"{name!r} was not triggered: {error.problem}", EX_CONFLICT) from error
        except KeyError:
            raise not_found(console, name) from None
        report(console, "triggered", [name], task_id=task_id)


@command("delete")
@names_or_pattern
def delete(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Delete entries and their run histories."""
    selected = select_names(console, "Delete", names, match, yes)
    if names and not yes:
        confirm(console, "Delete", selected)
    statics = static_among(console, selected)
    console.schedule.delete_all(selected)
    report(console, "deleted", selected)
    deleted_statics = [name for name in selected if name in statics]
    if deleted_statics:
        name = deleted_statics[0]
        console.warn(f"{name} is in beat_schedule: the next start of a beat adds the entry again")
