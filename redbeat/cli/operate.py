"""``celery redbeat pause``, ``resume``, ``trigger`` and ``delete``: for names or a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import click

from redbeat.errors import InvalidEntryError

from .command import EX_CONFLICT, EX_NOT_FOUND, command, failure
from .console import Console
from .options import check_names, confirm, load, not_found, option, static_names

__all__ = (
    "delete",
    "pause",
    "resume",
    "trigger",
)

DECORATORS: tuple[Callable[[Any], Any], ...] = (
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    option(
        "--match",
        metavar="GLOB",
        example="'billing-*'",
        help="All entries whose names are like this, in place of names; asks first.",
    ),
    option("--yes", "-y", is_flag=True, help="Do not ask."),
)


def names_or_pattern(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add names, ``--match`` and ``--yes`` to a command."""
    return reduce(lambda made, add: add(made), reversed(DECORATORS), function)


def chosen(console: Console, names: Sequence[str], match: str | None, **filters: Any) -> list[str]:
    """Return the names that a command is about; nothing at all ends the command.

    ``filters`` leave out of the ``match`` what there is nothing to do for.
    """
    if bool(names) == bool(match):
        problem = "give names or --match, and not both; for example: --match 'billing-*'"
        raise click.UsageError(problem, console.ctx)
    if names:
        check_names(console, names)
        return list(dict.fromkeys(names))
    found = [record.name for record in console.schedule.records(pattern=match, **filters)]
    if not found:
        raise failure(f"No entry to do this for has a name like {match!r}", EX_NOT_FOUND)
    return found


def report(console: Console, done: str, names: Iterable[str], **more: str) -> None:
    """Print what was done, a line for each name."""
    for name in names:
        if console.as_json:
            console.emit({"name": name, "action": done, **more})
        else:
            said = "".join(f" ({value})" for value in more.values())
            console.note(f"{done.capitalize()} {console.name(name)}{said}")


@command("pause")
@names_or_pattern
@option("--note", example="'broken export, ask Ann'", help="Why; shown by show and status.")
def pause(
    console: Console, names: tuple[str, ...], match: str | None, yes: bool, note: str | None
) -> None:
    """Stop entries from running until they are resumed."""
    paused = chosen(console, names, match, enabled=True)
    if match and not yes:
        confirm(console, "Pause", paused)
    console.schedule.pause_all(paused, note)
    report(console, "paused", paused)


@command("resume")
@names_or_pattern
def resume(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Let paused entries run again; of the runs they missed one is made up for."""
    resumed = chosen(console, names, match, enabled=False)
    if match and not yes:
        confirm(console, "Resume", resumed)
    console.schedule.resume_all(resumed)
    report(console, "resumed", resumed)


@command("trigger")
@names_or_pattern
def trigger(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Have a beat run entries now, once more than their schedule says."""
    wanted = chosen(console, names, match)
    if match and not yes:
        confirm(console, "Trigger", wanted)
    for name in wanted:
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
    """Remove entries and their histories; asks first."""
    doomed = chosen(console, names, match)
    if not yes:
        confirm(console, "Delete", doomed)
    statics = static_names(console)
    console.schedule.delete_all(doomed)
    report(console, "deleted", doomed)
    back = [name for name in doomed if name in statics]
    if back:
        console.warn(f"{back[0]} is in beat_schedule: beat writes it again when it starts")
