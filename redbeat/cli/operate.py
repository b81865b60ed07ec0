"""The commands ``pause``, ``resume``, ``trigger`` and ``delete`` of ``celery redbeat``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import click

from redbeat.entries import edits
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.management.find import record_of
from redbeat.printing import encodable, plural
from redbeat.storage.reading import static_among

from .command import EX_CONFLICT, EX_NOT_FOUND, EX_UNREADABLE, Console, command, failure
from .options import entry_arguments, match_option, not_found, option, options, problem_in

#: Maximum number of names to print before a question.
MAX_PRINTED: Final = 10

#: Adds the argument NAME and the options ``--match`` and ``--yes`` to a command.
names_or_pattern: Final = options(
    entry_arguments,
    match_option,
    option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
)


def select_names(
    console: Console,
    verb: str,
    paused: bool | None = None,
    *,
    names: Sequence[str],
    match: str | None,
    yes: bool,
) -> list[str]:
    """Return the names of the selected entries; end the command if there are none.

    With ``match``, the user must confirm ``verb`` unless ``yes`` is true, and ``paused=True``
    selects only paused entries, ``paused=False`` all others, including unreadable ones.
    """
    if bool(names) == bool(match):
        problem = "Give either names or --match; for example: --match 'billing-*'"
        raise click.UsageError(problem, console.ctx)
    if names:
        for name in names:
            if name not in console.schedule:
                raise not_found(console, name)
        return list(dict.fromkeys(names))
    name_of = console.store.keys.name_of
    # Take the names from the keys: the name of a record is escaped, and may be that of another
    # entry.
    matching = [
        name_of(record.key)
        for record in console.schedule.records(pattern=match)
        if paused is None or paused is (record.entry is not None and not record.entry.enabled)
    ]
    if not matching:
        raise failure(f"No entry matches {match!r}", EX_NOT_FOUND)
    if not yes:
        confirm(console, verb, matching)
    return matching


def confirm(console: Console, verb: str, names: Sequence[str]) -> None:
    """End the command unless the user answers yes."""
    for name in names[:MAX_PRINTED]:
        console.note(f"  {name}")
    if len(names) > MAX_PRINTED:
        console.note(f"  and {len(names) - MAX_PRINTED} more")
    target = f"{len(names)} entries" if len(names) > 1 else "this entry"
    click.confirm(f"{verb} {target}?", abort=True, err=True)


def report(console: Console, action: str, names: Iterable[str], **details: str) -> None:
    suffix = "".join(f" ({value})" for value in details.values())
    for name in names:
        text = f"{action.capitalize()} {name}{suffix}"
        console.result({"name": encodable(name), "action": action, **details}, text)


def not_done(console: Console, action: str, left: Sequence[str], reason: str = "") -> str:
    """Return the message about the entries that are ``left``; ``reason`` is that of the first."""
    others = f" and {plural(len(left) - 1, 'other entry', 'other entries')}" if left[1:] else ""
    reason = reason or problem_in(record_of(console.schedule, left[0])[1])
    return f"{left[0]!r}{others} {'were' if others else 'was'} not {action}: {reason}"


def report_changed(
    console: Console, action: str, names: Sequence[str], changed: Container[str]
) -> None:
    """Report the entries whose keys are in ``changed``; fail if some are not."""
    entry_key = console.store.keys.entry
    report(console, action, [name for name in names if entry_key(name) in changed])
    left = [name for name in names if entry_key(name) not in changed]
    if left:
        raise failure(not_done(console, action, left), EX_UNREADABLE)


@command("pause")
@names_or_pattern
@option("--note", help="Reason for the pause, which 'show' and the dashboard display.")
def pause(console: Console, note: str | None, **selection: Any) -> None:
    """Pause entries until they are resumed."""
    names = select_names(console, "Pause", paused=False, **selection)
    store = console.store
    changed = edits.pause(store, map(store.keys.entry, names), note, None)
    report_changed(console, "paused", names, changed)


@command("resume")
@names_or_pattern
def resume(console: Console, **selection: Any) -> None:
    """Resume paused entries.

    An entry that missed runs during the pause catches up only one run.
    """
    names = select_names(console, "Resume", paused=True, **selection)
    store, schedule = console.store, console.schedule
    keys = map(store.keys.entry, names)
    changed = edits.resume(store, keys, schedule.app, schedule.entry_class)
    report_changed(console, "resumed", names, changed)


@command("trigger")
@names_or_pattern
def trigger(console: Console, **selection: Any) -> None:
    """Run entries now, in addition to their schedule."""
    failed: dict[str, Exception] = {}
    for name in select_names(console, "Trigger", **selection):
        try:
            task_id = console.schedule[name].trigger()
        except (KeyError, DecodeError, InvalidEntryError) as error:
            failed[name] = error
        else:
            report(console, "triggered", [name], task_id=task_id)
    first = next(iter(failed.values()), None)
    if isinstance(first, InvalidEntryError):
        message = not_done(console, "triggered", [*failed], first.problem)
        raise failure(message, EX_CONFLICT)
    if failed:
        raise failure(not_done(console, "triggered", [*failed]), EX_UNREADABLE)


@command("delete")
@names_or_pattern
def delete(console: Console, names: tuple[str, ...], match: str | None, yes: bool) -> None:
    """Delete entries and their run histories."""
    selected = select_names(console, "Delete", names=names, match=match, yes=yes)
    if names and not yes:
        confirm(console, "Delete", selected)
    statics = static_among(console.store, selected)
    count = console.schedule.delete_all(selected)
    if count < len(selected):
        message = f"Deleted {count} of {len(selected)} entries; the other entries are already gone"
        raise failure(message, EX_CONFLICT)
    report(console, "deleted", selected)
    for name in [name for name in selected if name in statics][:1]:
        console.warn(f"{name} is in beat_schedule: the next start of a beat adds the entry again")
