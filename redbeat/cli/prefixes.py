"""The commands ``celery redbeat migrate-prefix`` and ``celery redbeat shard``.

Both copy a schedule to other key prefixes, while no beat runs.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click
from redis.exceptions import RedisError

from redbeat import BeatInfo
from redbeat.config import client_of, ensure_conf, unretried
from redbeat.connection.topology import node_of
from redbeat.management import prefixes
from redbeat.management.apply import Change, next_run_of
from redbeat.metrics.counts import total_stats
from redbeat.printing import plural
from redbeat.settings import MAX_SHARDS
from redbeat.storage import checks, reading, store, words
from redbeat.storage.keys import Keys, Layout, layout

from .apply import print_change
from .command import Console, Exit, command, failure, progress
from .options import argument, flag

#: The number of entries for each outcome of a copy.
Counts = dict[str, int]


@command("migrate-prefix")
@argument("old", help="Prefix of the stored entries, such as redbeat:")
@argument("new", help="Prefix of their copies.")
@flag("--delete", "After the copy, delete the copied entries under OLD.")
@flag("--dry-run", "Print what would be done, but write nothing.")
@flag("--force", "Copy even if a beat uses one of the prefixes.")
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
            _refuse_running_beat(console, client, prefix)
    source = _store(client, old)
    note = checks.LayoutNote.read(source)
    if note.shards > 1 or note.copying:
        shards = f"the schedule has {note.shards} shards: first run celery redbeat shard 1"
        raise failure(note.problem(note.shards) or shards, Exit.CONFLICT)
    members = source.members()
    is_empty = not (members or source.calendars() or total_stats(source.parts))
    if is_empty and not _store(client, new).members():
        message = f"There are no entries under {old!r}; check the prefix, for example: redbeat:"
        raise failure(message, Exit.NOT_FOUND)
    outcome = partial(_print_outcome, console) if dry_run else None
    with progress(console, "Copying", members, shown=not dry_run) as advance:
        counts = asdict(prefixes.copy_prefix(client, old, new, delete, advance, outcome, dry_run))
    done = "Dry run, nothing was written: " if dry_run else ""
    text = f"{done}{_text(counts)}"
    console.result({"old": old, "new": new, **counts, "dry_run": dry_run}, text)
    _fail_if_incomplete(counts, f"under {new!r}")
    if not (console.as_json or dry_run):
        console.note(f"Set redbeat_key_prefix = {new!r} in all programs that use the schedule")


def _print_outcome(console: Console, outcome: str, name: str, score: float) -> None:
    print_change(console, Change(name, outcome, {}, next_run_of(score)))


def _text(counts: Counts) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _fail_if_incomplete(counts: Counts, where: str, advice: str = "") -> None:
    """``where`` is where entries of the same name are."""
    if counts["different"] or counts["unreadable"]:
        different = f"{counts['different']} different from the entry of the same name {where}"
        message = f"Not all entries were copied: {different}, {counts['unreadable']} unreadable"
        raise failure(f"{message}{advice}", Exit.CONFLICT)


def _store(client: Any, prefix: str) -> store.Store:
    return store.Store(client, Keys(prefix))


def _refuse_running_beat(console: Console, client: Any, prefix: str) -> None:
    """Takes three round trips."""
    store, conf = _store(client, prefix), ensure_conf(console.app)
    lock_key = conf.lock_key or f"{conf.key_prefix}:lock"
    holder = store.lock_holder(prefix + lock_key.removeprefix(conf.key_prefix))
    tokens = [holder] if holder else [beat.token for beat in store.beats(words.SEEN_WITHIN)]
    if tokens:
        beat = BeatInfo.read(tokens[0])
        process = beat.token if beat.pid is None else f"process {beat.pid} on {beat.host}"
        message = (
            f"A beat runs on {prefix!r}: {process}. Stop that beat first. The lock of a killed "
            "beat remains until its timeout; use --force to ignore the lock"
        )
        raise failure(message, Exit.CONFLICT)


@command("shard")
@argument("shards", type=click.IntRange(1, MAX_SHARDS), help="Number of shards.")
@flag("--delete", "After the copy, delete the entries under earlier prefixes.")
@flag("--dry-run", "Print the size of each new shard, but write nothing.")
@flag("--force", "Continue even if a beat runs or an entry cannot be copied.")
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
        _report_shards(console, client, target, _planned(client, source, target), note, None)
        return
    if not force:
        for prefix in {*source.prefixes, *target.prefixes}:
            _refuse_running_beat(console, client, prefix)
    counts: Counts = {}
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
                counts["deleted"] += prefixes.delete_layout(client, old, advance)
        note = note._replace(left=())
        note.save(base)
    _report_shards(console, client, target, _sizes(client, target), note, counts)


#: The stats that only hold for the number of shards that wrote them.
OF_ONE_LAYOUT: Final = (reading.LAYOUT, "members", "lost")


def _copy(console: Console, client: Any, source: Layout, target: Layout, force: bool) -> Counts:
    with progress(console, "Copying", sum(_sizes(client, source))) as advance:
        counts = asdict(prefixes.copy_layout(client, source, target, advance))
    if not force:
        advice = (
            ". Correct or delete the entries that were not copied, and run the command again; or "
            "use --force"
        )
        _fail_if_incomplete(counts, "in the new shards", advice)
    sums = total_stats([_store(client, prefix) for prefix in source.prefixes])
    stats = Keys(target.prefixes[0]).stats
    for name, text in sums.items():
        if name not in OF_ONE_LAYOUT:
            client.hsetnx(stats, name, text)
    return counts


def _refuse_leftovers(note: checks.LayoutNote, shards: int, base_entries: int) -> None:
    """Refuse if old copies of entries would mix with the new ones."""
    if note.copying not in (0, shards):
        raise failure(note.problem(shards), Exit.CONFLICT)
    if shards in note.left or (shards == 1 and base_entries and not note.copying):
        message = (
            f"There are still entries of programs that used {plural(shards, 'shard')}: "
            f"delete these entries with celery redbeat shard {note.shards} --delete"
        )
        raise failure(message, Exit.CONFLICT)


def _sizes(client: Any, places: Layout) -> list[int]:
    """Takes one round trip per shard."""
    return [_store(client, prefix).members() for prefix in places.prefixes]


def _planned(client: Any, source: Layout, target: Layout) -> list[int]:
    sizes = [0] * target.shards
    for prefix in source.prefixes:
        for part in _store(client, prefix).scan():
            for key, _ in part:
                sizes[target.shard_of(key.removeprefix(prefix))] += 1
    return sizes


def _report_shards(
    console: Console,
    client: Any,
    target: Layout,
    sizes: list[int],
    note: checks.LayoutNote,
    counts: Counts | None,
) -> None:
    """``counts`` are those of the copy, None after a dry run."""
    places = [
        {"shard": number, "prefix": prefix, "master": _master(client, prefix), "entries": size}
        for number, (prefix, size) in enumerate(zip(target.prefixes, sizes, strict=True))
    ]
    if console.as_json:
        fields = {"shards": target.shards, "places": places, "earlier": list(note.left)}
        console.emit({**fields, **(counts or {}), "dry_run": counts is None})
        return
    rows = [tuple(map(str, place.values())) for place in places]
    console.table(("Shard", "Prefix", "Master", "Entries"), rows)
    if counts is None:
        console.note("Dry run, nothing was written")
        return
    if counts:
        console.note(_text(counts))
    console.note(f"Set redbeat_shards = {target.shards} in all programs that use the schedule")
    if note.left:
        earlier = ", ".join(map(str, note.left))
        console.note(
            f"Entries of earlier shard counts still exist ({earlier}). To delete the earlier "
            f"entries, run: celery redbeat shard {target.shards} --delete"
        )


def _master(client: Any, prefix: str) -> str:
    """Return the address of the server with a prefix's keys, "" if unknown."""
    try:
        pool = node_of(client, Keys(prefix).schedule).connection_pool
    except (RedisError, OSError, AttributeError):
        return ""
    terms = getattr(pool, "connection_kwargs", {})
    return f"{terms['host']}:{terms['port']}" if "host" in terms else str(terms.get("path", ""))
