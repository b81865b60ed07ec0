"""The command ``celery redbeat migrate-prefix``, which copies a schedule to another prefix."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click

from redbeat.config import ensure_conf
from redbeat.management.apply import Change, next_run_of
from redbeat.management.prefixes import PrefixCopy, copy_prefix
from redbeat.printing import plural
from redbeat.storage import beats, checks, keys
from redbeat.storage.client import client_of, unretried
from redbeat.storage.store import Store

from .apply import print_change
from .command import EX_CONFLICT, EX_NOT_FOUND, Console, command, failure, progress
from .options import option


@command("migrate-prefix")
@click.argument("old")
@click.argument("new")
@option("--delete", is_flag=True, help="After the copy, delete the copied entries under OLD.")
@option("--dry-run", is_flag=True, help="Print what would be done, but write nothing.")
@option("--force", is_flag=True, help="Copy even if a beat uses one of the prefixes.")
def migrate_prefix(
    console: Console, old: str, new: str, delete: bool, dry_run: bool, force: bool
) -> None:
    """Copy all entries from key prefix OLD to key prefix NEW.

    The command also copies run histories, the quarantine, and the list of static entries. Entries
    that exist under NEW are never changed, so you can repeat the command.

    Before the copy, stop all beats on both prefixes. After the copy, set redbeat_key_prefix to NEW.
    """
    if not old or not new or old == new:
        raise click.UsageError(
            "Give two different prefixes; for example: migrate-prefix redbeat: '{redbeat}:'"
        )
    client = unretried(client_of(console.app))
    if not (force or dry_run):
        for prefix in (old, new):
            refuse_running_beat(console, client, prefix)
    source = Store(client, keys.Keys(old))
    layout = checks.LayoutNote.read(source)
    if layout.shards > 1 or layout.copying:
        shards = f"the schedule has {layout.shards} shards: first run celery redbeat shard 1"
        message = layout.problem(layout.shards) or shards
        raise failure(message, EX_CONFLICT)
    members = source.members()
    if not (members or source.calendars() or source.stats()):
        _report_nothing_left(console, old, new, Store(client, keys.Keys(new)).members(), dry_run)
        return
    if dry_run:
        note = partial(_print_outcome, console)
        result = copy_prefix(client, old, new, delete, note=note, dry_run=True)
    else:
        with progress(console, "Copying", members) as advance:
            result = copy_prefix(client, old, new, delete, advance)
    _report(console, old, new, asdict(result), dry_run)
    if result.different or result.unreadable:
        message = (
            f"Not all entries were copied: {result.different} different from the entry of the same "
            f"name under {new!r}, {result.unreadable} unreadable"
        )
        raise failure(message, EX_CONFLICT)


def _print_outcome(console: Console, outcome: str, name: str, score: float) -> None:
    print_change(console, Change(name, outcome, {}, next_run_of(score)))


def _report_nothing_left(console: Console, old: str, new: str, moved: int, dry_run: bool) -> None:
    """Report that the old prefix has no data; fail if the new prefix has no entries either."""
    if not moved:
        message = f"There are no entries under {old!r}; check the prefix, for example: redbeat:"
        raise failure(message, EX_NOT_FOUND)
    entries = plural(moved, "entry is", "entries are")
    text = f"Nothing is left to copy: {entries} under {new!r}, and none under {old!r}"
    _report(console, old, new, asdict(PrefixCopy()), dry_run, text)


def _report(
    console: Console, old: str, new: str, counts: dict[str, int], dry_run: bool, text: str = ""
) -> None:
    text = text or ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    text = f"Dry run, nothing was written: {text}" if dry_run else text
    console.result({"old": old, "new": new, **counts, "dry_run": dry_run}, text)
    complete = not (counts["different"] or counts["unreadable"])
    if complete and not (console.as_json or dry_run):
        console.note(f"Set redbeat_key_prefix = {new!r} in all programs that use the schedule")


def refuse_running_beat(console: Console, client: Any, prefix: str) -> None:
    """End the command with an error if a beat uses the prefix. Three round trips."""
    store, conf = Store(client, keys.Keys(prefix)), ensure_conf(console.app)
    lock_key = conf.lock_key or f"{conf.key_prefix}:lock"
    holder = store.lock_holder(prefix + lock_key.removeprefix(conf.key_prefix))
    tokens = [holder] if holder else [beat.token for beat in store.beats(beats.SEEN_WITHIN)]
    if tokens:
        beat = beats.BeatInfo.read(tokens[0])
        process = beat.token if beat.pid is None else f"process {beat.pid} on {beat.host}"
        message = (
            f"A beat runs on {prefix!r}: {process}. Stop that beat first. The lock of a killed "
            "beat remains until its timeout; use --force to ignore the lock"
        )
        raise failure(message, EX_CONFLICT)
