"""The command ``celery redbeat shard``, which changes the number of shards of a schedule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click
from redis.exceptions import RedisError

from redbeat.config import ensure_conf
from redbeat.connection.cluster import node_of
from redbeat.management.prefixes import copy_to_shards, delete_layout
from redbeat.printing import plural
from redbeat.settings import MAX_SHARDS
from redbeat.storage import checks, commands, keys, store
from redbeat.storage.client import client_of, unretried
from redbeat.storage.layout import Layout, layout

from .command import EX_CONFLICT, Console, command, failure, progress
from .migrate_prefix import refuse_running_beat
from .options import option


@command("shard")
@click.argument("shards", type=click.IntRange(1, MAX_SHARDS))
@option("--delete", is_flag=True, help="After the copy, delete the entries under earlier prefixes.")
@option("--dry-run", is_flag=True, help="Print the size of each new shard, but write nothing.")
@option("--force", is_flag=True, help="Continue even if a beat runs or an entry cannot be copied.")
def shard(console: Console, shards: int, delete: bool, dry_run: bool, force: bool) -> None:
    """Change the number of shards of the schedule to SHARDS.

    Each shard has its own key prefix. The prefixes are spread evenly over the slots of a Redis
    Cluster. If SHARDS is 1, the schedule has no shards. The command also copies run histories, the
    quarantine, and the list of static entries. If the command is interrupted, run it again.

    Before the command, stop all beats. After the command, set redbeat_shards to SHARDS in all
    programs.
    """
    conf, client = ensure_conf(console.app), unretried(client_of(console.app))
    base = store.base_store(conf, client)
    note = checks.LayoutNote.read(base)
    target, source = layout(conf.key_prefix, shards), layout(conf.key_prefix, note.shards)
    if dry_run:
        _report(console, client, target, note, {}, _planned(client, source, target), dry_run)
        return
    if not force:
        for prefix in {*source.prefixes, *target.prefixes}:
            refuse_running_beat(console, client, prefix)
    counts = {}
    base_entries = base.members()
    earlier = {*note.left, note.copying, 1 if base_entries else 0}
    if shards != note.shards:
        _refuse_leftovers(note, shards, base_entries)
        note._replace(copying=shards).save(base)
        counts = _copy(console, client, source, target, force)
        earlier = {*note.left, note.shards}
    note = checks.LayoutNote(shards, 0, tuple(sorted(earlier - {0, shards})))
    note.save(base)
    if delete:
        counts["deleted"] = 0
        for number in note.left:
            old = layout(conf.key_prefix, number)
            with progress(console, "Deleting", sum(_sizes(client, old))) as advance:
                counts["deleted"] += delete_layout(client, old, advance)
        note = note._replace(left=())
        note.save(base)
    _report(console, client, target, note, counts, _sizes(client, target))


#: The fields of the stats that hold only for the number of shards that wrote them.
OF_ONE_LAYOUT: Final = (commands.LAYOUT, "members", "lost")


def _copy(
    console: Console, client: Any, source: Layout, target: Layout, force: bool
) -> dict[str, int]:
    """Copy all entries and counters; return the number of entries for each outcome."""
    with progress(console, "Copying", sum(_sizes(client, source))) as advance:
        counts = asdict(copy_to_shards(client, source, target, advance))
    if not force and (counts["different"] or counts["unreadable"]):
        message = (
            f"Not all entries were copied: {counts['different']} different from the entry of the "
            f"same name in the new shards, {counts['unreadable']} unreadable. Correct or delete "
            "the entries that were not copied, and run the command again; or use --force"
        )
        raise failure(message, EX_CONFLICT)
    parts = [store.Store(client, keys.Keys(prefix)) for prefix in source.prefixes]
    sums = commands.total_stats(parts)
    stats = keys.Keys(target.prefixes[0]).stats
    for name, text in sums.items():
        if name not in OF_ONE_LAYOUT:
            client.hsetnx(stats, name, text)
    return counts


def _refuse_leftovers(note: checks.LayoutNote, shards: int, base_entries: int) -> None:
    """End the command with an error if old copies of entries would mix with the new copies."""
    if note.copying not in (0, shards):
        message = (
            f"celery redbeat shard {note.copying} was interrupted: run it again, or celery redbeat "
            f"shard {note.shards} --delete to undo the copy"
        )
        raise failure(message, EX_CONFLICT)
    if shards in note.left or (shards == 1 and base_entries and not note.copying):
        message = (
            f"There are still entries of programs that used {plural(shards, 'shard')}: "
            f"delete these entries with celery redbeat shard {note.shards} --delete"
        )
        raise failure(message, EX_CONFLICT)


def _sizes(client: Any, places: Layout) -> list[int]:
    """Return the number of entries of each shard. Takes one round trip per shard."""
    return [store.Store(client, keys.Keys(prefix)).members() for prefix in places.prefixes]


def _planned(client: Any, source: Layout, target: Layout) -> list[int]:
    """Return the number of entries that each shard of the layout ``target`` would have."""
    sizes = [0] * target.shards
    for prefix in source.prefixes:
        for part in store.Store(client, keys.Keys(prefix)).scan():
            for key, _ in part:
                sizes[target.shard_of(key.removeprefix(prefix))] += 1
    return sizes


def _report(
    console: Console,
    client: Any,
    target: Layout,
    note: checks.LayoutNote,
    counts: dict[str, int],
    sizes: list[int],
    dry_run: bool = False,
) -> None:
    places = [
        {"shard": number, "prefix": prefix, "master": _master(client, prefix), "entries": size}
        for number, (prefix, size) in enumerate(zip(target.prefixes, sizes, strict=True))
    ]
    if console.as_json:
        fields = {"shards": target.shards, "places": places, "earlier": list(note.left)}
        console.emit({**fields, **counts, "dry_run": dry_run})
        return
    rows = [tuple(map(str, place.values())) for place in places]
    console.table(("Shard", "Prefix", "Master", "Entries"), rows)
    if dry_run:
        console.note("Dry run, nothing was written")
        return
    if counts:
        console.note(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    console.note(f"Set redbeat_shards = {target.shards} in all programs that use the schedule")
    if note.left:
        earlier = ", ".join(map(str, note.left))
        console.note(
            f"Entries of earlier shard counts still exist ({earlier}). To delete the earlier "
            f"entries, run: celery redbeat shard {target.shards} --delete"
        )


def _master(client: Any, prefix: str) -> str:
    """Return the address of the server with the keys of a prefix, or "" if it is unknown."""
    try:
        pool = node_of(client, keys.Keys(prefix).schedule).connection_pool
    except (RedisError, OSError, AttributeError):
        return ""
    terms = getattr(pool, "connection_kwargs", {})
    return f"{terms['host']}:{terms['port']}" if "host" in terms else str(terms.get("path", ""))
