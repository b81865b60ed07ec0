"""Copies a whole schedule to another key prefix, or to shards, in the same Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from redis import Redis, RedisCluster
from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from redbeat.codec.stored import bytes_of as key_of
from redbeat.codec.stored import score_in, text_of, texts_in
from redbeat.config import App, ensure_conf, key_aside
from redbeat.entries import changes, decide
from redbeat.entries.runs import with_ids
from redbeat.errors import ConfigurationError
from redbeat.storage import checks, commands, rows, store
from redbeat.storage.keys import Keys
from redbeat.storage.layout import Layout
from redbeat.storage.words import DEFINITION, HISTORY, INBOX, META, STATE

#: Number of entries per batch.
PAGE = 500

#: The fields of an entry's hash.
Fields = dict[bytes, bytes]

#: A function that counts one entry. The function receives a field of the class :class:`PrefixCopy`,
#: the entry name, and the score of the entry under the old prefix.
Count = Callable[[str, bytes, float], None]


@dataclass
class PrefixCopy:
    """The number of entries for each outcome; a deleted entry also counts as copied or same.

    Attributes:
        copied: entries that were copied.
        same: entries that already existed under the new prefix with the same definition; their
            history under the new prefix was not changed.
        different: entries that already existed under the new prefix with another definition, and
            were not changed under either prefix.
        unreadable: entries that have no definition, or that are not stored as a hash.
        deleted: entries that were deleted under the old prefix.
    """

    copied: int = 0
    same: int = 0
    different: int = 0
    unreadable: int = 0
    deleted: int = 0


class SourceEntry(NamedTuple):
    """An entry under the old prefix, with all data that Redis stores about the entry."""

    member: bytes
    name: bytes
    score: float
    fields: Fields
    static: bool
    quarantine_note: bytes | None


def copy_prefix(  # noqa: C901 - a dry run takes the same steps, but writes nothing
    client: Redis | RedisCluster,
    old: str,
    new: str,
    delete: bool = False,
    progress: Callable[[int], object] | None = None,
    note: Callable[[str, str, float], object] | None = None,
    dry_run: bool = False,
) -> PrefixCopy:
    """Copy all entries, all data about the entries, and the counters to another prefix.

    Before the copy, stop all beats on both prefixes. Existing data under ``new`` is never changed,
    so you can repeat an interrupted copy. If ``delete`` is true, the copied data under ``old`` is
    deleted.

    ``progress`` is called with the number of entries in each batch. ``note`` is called for each
    entry, with the outcome (a field of :class:`PrefixCopy`), the entry name and the score of the
    entry. If ``dry_run`` is true, nothing is written.

    Each command uses only one key, so the two prefixes may be in different slots of a cluster.
    Takes about five round trips per 500 entries. Raises ``ValueError`` for empty or equal prefixes.
    Redis errors are not caught.
    """
    if not old or not new or old == new:
        raise ValueError(f"the prefixes are {old!r} and {new!r}: pass two different prefixes")
    source, target, result = Keys(old), Keys(new), PrefixCopy()
    count = _counter(result, note)
    if not dry_run:
        _copy_hash(client, source.calendars, target.calendars, delete=False)
    for page in _pages(client, source):
        entries = _read(client, source, page, count)
        present = _write(client, target, entries, count, dry_run)
        if delete:
            result.deleted += len(present)
        if delete and not dry_run:
            _delete(client, source, [entry.member for entry in present])
        if progress is not None:
            progress(len(page))
    if not dry_run:
        _copy_hash(client, source.stats, target.stats, delete)
    if delete and not dry_run:
        for key in (source.calendars, source.calendar_users, source.expected, source.failing):
            _raw(client, "DEL", key)
    return result


def _counter(result: PrefixCopy, note: Callable[[str, str, float], object] | None = None) -> Count:
    """Return a function that counts an entry in ``result``, and calls ``note``."""

    def count(outcome: str, name: bytes, score: float) -> None:
        setattr(result, outcome, getattr(result, outcome) + 1)
        if note is not None:
            note(outcome, text_of(name), score)

    return count


def copy_to_shards(
    client: Any, source: Layout, target: Layout, progress: Callable[[int], Any] = int
) -> PrefixCopy:
    """Copy all entries, and all data about the entries, to the shards of another layout.

    Before the copy, stop all beats. Existing entries in the target are never changed, so you can
    repeat an interrupted copy. The counters of all source shards are added up in the first target
    shard. ``progress`` is called with the number of entries in each batch. Takes about five round
    trips per 500 entries and target shard. Redis errors are not caught.
    """
    result = PrefixCopy()
    targets, count = [Keys(prefix) for prefix in target.prefixes], _counter(result)
    for number, prefix in enumerate(source.prefixes):
        keys = Keys(prefix)
        if number == 0:
            for each in targets:
                _copy_hash(client, keys.calendars, each.calendars, delete=False)
        for page in _pages(client, keys):
            # Both layouts have the same base prefix, so the task ids stay the same.
            entries = _read(client, keys, page, count, new_ids=False)
            parts: defaultdict[int, list[SourceEntry]] = defaultdict(list)
            for entry in entries:
                parts[target.shard_of(text_of(entry.name))].append(entry)
            for shard, part in parts.items():
                _write(client, targets[shard], part, count)
            progress(len(page))
    return result


def delete_layout(client: Any, layout: Layout, progress: Callable[[int], Any] = int) -> int:
    """Delete all entries of a layout, and all data about the entries; return the number of entries.

    The stored number of shards is not deleted. Takes about two round trips per 500 entries, and one
    more round trip per key of the schedule that is not an entry.
    """
    deleted = 0
    for prefix in layout.prefixes:
        keys = Keys(prefix)
        for page in _pages(client, keys):
            _delete(client, keys, [member for member, _ in page])
            deleted += len(page)
            progress(len(page))
        stats = commands.pairs_of(_raw(client, "HGETALL", keys.stats))
        fields = [name for name, _ in stats if name != key_of(commands.LAYOUT)]
        if fields:
            _raw(client, "HDEL", keys.stats, *fields)
        for key in (keys.schedule, keys.statics, *keys.aside):
            if key != keys.stats:
                _raw(client, "DEL", key)
    return deleted


def _pages(client: Any, keys: Keys) -> Iterator[list[tuple[bytes, float]]]:
    """Yield pages of members and scores; a member can occur twice, because ZSCAN may repeat it."""
    cursor: Any = 0
    while True:
        cursor, reply = _raw(client, "ZSCAN", keys.schedule, cursor, "COUNT", PAGE)
        pairs = commands.pairs_of(reply)
        members = [(bytes(member), score_in(score)) for member, score in pairs]
        for start in range(0, len(members), PAGE):
            yield members[start : start + PAGE]
        if int(cursor) == 0:
            return


def _read(
    client: Any, keys: Keys, page: Sequence[tuple[bytes, float]], count: Count, new_ids: bool = True
) -> list[SourceEntry]:
    """Return the entries of a page; count entries without a definition as unreadable."""
    prefix = key_of(keys.prefix)
    names = [member.removeprefix(prefix) for member, _ in page]
    pipe = client.pipeline(transaction=False)
    for name, (member, _) in zip(names, page, strict=True):
        _raw(pipe, "HGETALL", prefix + name)
        _raw(pipe, "SISMEMBER", keys.statics, name)
        _raw(pipe, "HGET", keys.quarantine, member)
    replies = iter(pipe.execute(raise_on_error=False))
    entries = []
    for name, (member, score) in zip(names, page, strict=True):
        fields, static, note = next(replies), next(replies), next(replies)
        _raise_unless_wrong_type(fields)
        fields = {} if isinstance(fields, Exception) else dict(commands.pairs_of(fields))
        if b"definition" in fields:
            fields = _with_task_ids(keys, name, fields) if new_ids else fields
            entries.append(SourceEntry(member, name, score, fields, bool(static), note))
        else:
            count("unreadable", name, score)
    return entries


def _with_task_ids(keys: Keys, name: bytes, fields: Fields) -> Fields:
    """Return the fields of an entry, with the task id of each run added to the run history.

    RedBeat computes task ids from the prefix, so another prefix would change them.
    """
    if HISTORY.encode() not in fields:
        return fields
    found = (fields.get(field.encode()) for field in (DEFINITION, META, STATE))
    definition, meta, state = (None if text is None else text_of(text) for text in found)
    entry = text_of(name)
    row = rows.Row(keys.entry(entry), definition=definition, meta=meta, state=state)
    identity = changes.state_of(row).identity

    def task_id(scheduled_at: datetime) -> str:
        return decide.task_id_of(keys.prefix, entry, scheduled_at.isoformat(), identity)

    lines = with_ids("\n".join(texts_in(text_of(fields[HISTORY.encode()]))), task_id).splitlines()
    history = ",\n".join(map(quoted, lines))
    return {**fields, HISTORY.encode(): f"[{history}]".encode()}


def _write(
    client: Any, keys: Keys, entries: Sequence[SourceEntry], count: Count, dry_run: bool = False
) -> list[SourceEntry]:
    """Store entries under the new prefix; return the entries that count as copied or same.

    If ``dry_run`` is true, nothing is written.
    """
    prefix = key_of(keys.prefix)
    pipe = client.pipeline(transaction=False)
    for entry in entries:
        # HSETNX writes the definition first, so only one of two concurrent writers creates the
        # entry.
        if not dry_run:
            _raw(pipe, "HSETNX", prefix + entry.name, "definition", entry.fields[b"definition"])
        _raw(pipe, "HGETALL", prefix + entry.name)
    replies = iter(pipe.execute(raise_on_error=False))
    pipe = client.pipeline(transaction=False)
    present = []
    for entry in entries:
        created, reply = None if dry_run else next(replies), next(replies)
        _raise_unless_wrong_type(created)
        _raise_unless_wrong_type(reply)
        # A key that is not a hash counts as a different entry.
        stored = {} if isinstance(reply, Exception) else dict(commands.pairs_of(reply))
        # An earlier copy may have stopped after it had written only the definition.
        has_only_definition = stored == {b"definition": entry.fields[b"definition"]}
        if not reply or (has_only_definition and (created or len(entry.fields) > 1)):
            outcome = "copied"
        elif all(stored.get(name) == entry.fields.get(name) for name in (b"definition", b"policy")):
            outcome = "same"
        else:
            outcome = "different"
        count(outcome, entry.name, entry.score)
        if outcome == "different":
            continue
        present.append(entry)
        if not dry_run:
            _write_rest(pipe, keys, entry, with_fields=outcome == "copied")
    pipe.execute()
    return present


def _write_rest(pipe: Any, keys: Keys, entry: SourceEntry, with_fields: bool) -> None:
    """Store all data of an entry except its definition.

    The fields of the entry's hash are written only if ``with_fields`` is true.
    """
    key = key_of(keys.prefix) + entry.name
    others = [pair for pair in entry.fields.items() if pair[0] != b"definition"]
    if with_fields and others:
        _raw(pipe, "HSET", key, *chain.from_iterable(others))
    _raw(pipe, "ZADD", keys.schedule, "NX", repr(entry.score), key)
    if with_fields and INBOX.encode() in entry.fields:
        _raw(pipe, "ZADD", key_aside(keys.prefix, INBOX), 0, key)
    if entry.static:
        _raw(pipe, "SADD", keys.statics, entry.name)
    if entry.quarantine_note is not None:
        _raw(pipe, "HSETNX", keys.quarantine, key, entry.quarantine_note)
    if b'"exclude"' in entry.fields.get(b"policy", b""):
        _raw(pipe, "SADD", keys.calendar_users, key)
    if any(b'"expect_within"' in text for text in entry.fields.values()):
        _raw(pipe, "ZADD", keys.expected, "NX", 0, key)


def _copy_hash(client: Any, source: str, target: str, delete: bool) -> None:
    """Copy the fields of a hash that the target lacks; skip a source that is not a hash."""
    try:
        fields = dict(commands.pairs_of(_raw(client, "HGETALL", source)))
    except ResponseError as error:
        _raise_unless_wrong_type(error)
        return
    pipe = client.pipeline(transaction=False)
    for name, value in fields.items():
        _raw(pipe, "HSETNX", target, name, value)
    if fields and delete:
        _raw(pipe, "DEL", source)
    pipe.execute()


def _delete(client: Any, keys: Keys, members: Iterable[bytes]) -> None:
    prefix = key_of(keys.prefix)
    pipe = client.pipeline(transaction=False)
    for member in members:
        name = member.removeprefix(prefix)
        _raw(pipe, "ZREM", keys.schedule, member)
        _raw(pipe, "SREM", keys.statics, name)
        _raw(pipe, "HDEL", keys.quarantine, member)
        _raw(pipe, "DEL", prefix + name)
    pipe.execute()


def _raw(client: Any, *command: Any) -> Any:
    """Run a command, or queue it in a pipeline; the reply contains bytes instead of strings."""
    return client.execute_command(*command, **{NEVER_DECODE: True})


def _raise_unless_wrong_type(reply: Any) -> None:
    if isinstance(reply, Exception):
        if isinstance(reply, ResponseError) and "WRONGTYPE" in text_of(str(reply)):
            return
        raise reply


@dataclass
class Copied:
    """The names of the entries for each outcome.

    Attributes:
        copied: entries that were copied.
        kept: entries that already existed under the new prefix, and were not changed.
        unreadable: entries without a definition.
    """

    copied: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def copy_untagged(app: App | None = None, prefix: str | None = None) -> Copied:
    """Copy the entries under ``prefix`` to the app's key prefix, with history and score.

    By default, ``prefix`` is the app's key prefix without braces, such as ``redbeat:`` for
    ``{redbeat}:``. Before the copy, stop the beats on both prefixes. Existing entries under the
    app's key prefix are never changed, so you can repeat an interrupted copy. The old keys are
    kept, so you can undo the migration. See :func:`.copy_prefix`.

    Raises :exc:`ConfigurationError` if the two prefixes are the same. Redis errors are not caught.
    """
    conf, result = ensure_conf(app), Copied()
    old = prefix or checks.untagged_prefix(conf.key_prefix)
    if old == conf.key_prefix:
        raise ConfigurationError(
            f"the old prefix and redbeat_key_prefix are both {conf.key_prefix!r}: "
            "add a hash tag to the setting, or pass another prefix"
        )
    lists = {"copied": result.copied, "unreadable": result.unreadable}

    def note(outcome: str, name: str, _score: float) -> None:
        lists.get(outcome, result.kept).append(name)

    copy_prefix(store.store_of(app).client, old, conf.key_prefix, note=note)
    return result
