"""Copies a whole schedule to another key prefix, or to shards, in the same Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple

from redis import Redis, RedisCluster
from redis.exceptions import ResponseError

from redbeat.codec.stored import array_of, bytes_of, text_of, texts_in
from redbeat.config import App, ensure_conf, key_aside
from redbeat.connection.retrying import replies_to
from redbeat.entries import decide
from redbeat.entries.history import with_ids
from redbeat.entries.state import State
from redbeat.errors import ConfigurationError
from redbeat.storage import checks, reading, rows, store, words
from redbeat.storage.keys import WRONG_TYPE, Keys, Layout, layout

#: Number of entries per batch.
PAGE = 500

DEFINITION, POLICY, HISTORY = map(str.encode, (words.DEFINITION, words.POLICY, words.HISTORY))

#: The outcomes after which an entry is under the new prefix.
PRESENT: Final = ("copied", "same")

#: The fields of an entry's hash.
Fields = dict[bytes, bytes]


@dataclass
class PrefixCopy:
    """The number of entries for each outcome; a deleted entry also counts as copied or same.

    Attributes:
        copied: entries that were copied.
        same: entries that were already there with the same definition; their history stays.
        different: entries that were already there with another definition; neither is changed.
        unreadable: entries without a definition, or not stored as a hash.
        deleted: entries that were deleted under the old prefix.
    """

    copied: int = 0
    same: int = 0
    different: int = 0
    unreadable: int = 0
    deleted: int = 0

    def count(
        self, outcomes: Outcomes, note: Callable[[str, str, float], object] | None = None
    ) -> None:
        """Count entries; call ``note`` with the outcome, name and score of each."""
        for entry, outcome in outcomes:
            setattr(self, outcome, getattr(self, outcome) + 1)
            if note is not None:
                note(outcome, entry.name, entry.score)


class SourceEntry(NamedTuple):
    """An entry and all that Redis has about it; without ``fields`` if its key is not a hash."""

    name: str
    score: float
    fields: Fields
    static: bool
    quarantine_note: bytes | None


#: Entries with their outcomes, which are fields of :class:`PrefixCopy`.
Outcomes = list[tuple[SourceEntry, str]]


def copy_prefix(
    client: Redis | RedisCluster,
    old: str,
    new: str,
    delete: bool = False,
    progress: Callable[[int], object] | None = None,
    note: Callable[[str, str, float], object] | None = None,
    dry_run: bool = False,
) -> PrefixCopy:
    """Copy all entries, what belongs to them, and the counters to another prefix.

    Stop all beats on both prefixes first. What is under ``new`` is never changed, so an interrupted
    copy can be repeated. If ``delete`` is true, what was copied is deleted under ``old``. With
    ``dry_run``, nothing is written.

    ``progress`` is called with the number of entries in each batch, and ``note`` with the outcome
    (a field of :class:`PrefixCopy`), the name and the score of each entry.

    No command uses two keys, so the prefixes may be in different slots of a cluster. Takes about
    five round trips per 500 entries. Raises ``ValueError`` for empty or equal prefixes. Redis
    errors are not caught.
    """
    if not old or not new or old == new:
        raise ValueError(f"the prefixes are {old!r} and {new!r}: pass two different prefixes")
    places = layout(old, 1), layout(new, 1)
    result = copy_layout(client, *places, progress or int, note, delete, dry_run)
    if not dry_run:
        source = Keys(old)
        _copy_hash(client, source.stats, Keys(new).stats, delete)
        if delete:
            indexes = source.expected, source.failing, source.failed
            client.delete(source.calendars, source.calendar_users, *indexes)
    return result


def copy_layout(
    client: Any,
    source: Layout,
    target: Layout,
    progress: Callable[[int], object] = int,
    note: Callable[[str, str, float], object] | None = None,
    delete: bool = False,
    dry_run: bool = False,
) -> PrefixCopy:
    """Copy all entries, and what belongs to them, to another layout; see :func:`copy_prefix`.

    The counters are not copied. Takes about five round trips per 500 entries and target shard.
    """
    result, targets = PrefixCopy(), [Keys(prefix) for prefix in target.prefixes]
    for keys in [] if dry_run else targets:
        _copy_hash(client, Keys(source.prefixes[0]).calendars, keys.calendars)

    def keys_of(entry: SourceEntry) -> Keys:
        return targets[target.shard_of(entry.name)]

    for keys in map(Keys, source.prefixes):
        for page in _entries(client, keys):
            entries = page
            if source.prefix != target.prefix:  # RedBeat computes task ids from it
                entries = [_with_task_ids(keys, entry) for entry in page]
            outcomes = _copy(client, entries, keys_of, dry_run)
            result.count(outcomes, note)
            present = [entry.name for entry, outcome in outcomes if outcome in PRESENT]
            if delete:
                result.deleted += len(present)
            if delete and not dry_run:
                _delete(client, keys, present)
            progress(len(page))
    return result


def delete_layout(client: Any, layout: Layout, progress: Callable[[int], object] = int) -> int:
    """Delete all entries of a layout, and what belongs to them; return the number of entries.

    The stored number of shards stays. Takes about two round trips per 500 entries, and one more per
    key of the schedule that is not an entry.
    """
    deleted = 0
    for keys in map(Keys, layout.prefixes):
        for page in _pages(client, keys):
            _delete(client, keys, [name for name, _ in page])
            deleted += len(page)
            progress(len(page))
        stats = _hash(client, keys.stats) or {}
        fields = [name for name in stats if name != bytes_of(reading.LAYOUT)]
        if fields:
            reading.ask(client, ("HDEL", keys.stats, *fields))
        client.delete(*{keys.schedule, keys.statics, *keys.aside} - {keys.stats})
    return deleted


def _pages(client: Any, keys: Keys) -> Iterator[list[tuple[str, float]]]:
    """Yield the names and scores of entries in lists of at most :data:`PAGE`.

    Some may come twice, above all if others of the last reply are not deleted yet.
    """
    for part in store.Store(client, keys).scan():
        members = [(key.removeprefix(keys.prefix), score) for key, score in part]
        yield from reading.batches(members, PAGE)


def _entries(client: Any, keys: Keys) -> Iterator[list[SourceEntry]]:
    for page in _pages(client, keys):
        commands = list[tuple[Any, ...]]()
        for name, _ in page:
            key = bytes_of(keys.prefix + name)
            commands += [
                ("HGETALL", key),
                ("SISMEMBER", keys.statics, bytes_of(name)),
                ("HGET", keys.quarantine, key),
            ]
        replies = iter(replies_to(client, commands))
        yield [
            SourceEntry(name, score, _fields(next(replies)) or {}, next(replies), next(replies))
            for name, score in page
        ]


def _hash(client: Any, key: str) -> Fields | None:
    return _fields(*replies_to(client, [("HGETALL", key)]))


def _fields(reply: Any) -> Fields | None:
    """Return the fields of a hash, or None for a key that is not a hash."""
    if isinstance(reply, ResponseError) and WRONG_TYPE in text_of(str(reply)):
        return None
    if isinstance(reply, Exception):
        raise reply
    return dict(reading.pairs_of(reply))


def _with_task_ids(keys: Keys, entry: SourceEntry) -> SourceEntry:
    """Return the entry; in its history, each run has its task id."""
    texts = {text_of(name): text_of(text) for name, text in entry.fields.items()}
    definition, history = texts.get(words.DEFINITION), texts.get(words.HISTORY)
    if definition is None or history is None:
        return entry
    key, meta, state = keys.entry(entry.name), texts.get(words.META), texts.get(words.STATE)
    identity = State.of(rows.Row(key, "", definition, meta, state=state)).identity

    def task_id(scheduled_at: datetime) -> str:
        return decide.task_id_of(keys.prefix, entry.name, scheduled_at.isoformat(), identity)

    lines = with_ids(texts_in(history), task_id)
    return entry._replace(fields={**entry.fields, HISTORY: array_of(lines).encode()})


def _copy(
    client: Any,
    entries: Iterable[SourceEntry],
    keys_of: Callable[[SourceEntry], Keys],
    dry_run: bool,
) -> Outcomes:
    readable = [entry for entry in entries if DEFINITION in entry.fields]
    outcomes = [(entry, "unreadable") for entry in entries if DEFINITION not in entry.fields]
    keys = [bytes_of(keys_of(entry).prefix + entry.name) for entry in readable]
    replies = replies_to(client, [("HGETALL", key) for key in keys])
    commands = list[tuple[Any, ...]]()
    for entry, reply in zip(readable, replies, strict=True):
        outcome = _outcome(entry.fields, _fields(reply))
        outcomes.append((entry, outcome))
        if outcome in PRESENT and not dry_run:
            commands += _writing(keys_of(entry), entry, with_fields=outcome == "copied")
    reading.ask(client, *commands)
    return outcomes


def _outcome(fields: Fields, stored: Fields | None) -> str:
    """``stored`` is None if the key is not a hash."""
    if stored == {}:
        return "copied"
    names = DEFINITION, POLICY
    same = stored and all(stored.get(name) == fields.get(name) for name in names)
    return "same" if same else "different"


def _writing(keys: Keys, entry: SourceEntry, with_fields: bool) -> Iterator[tuple[Any, ...]]:
    """Yield the commands that store an entry; what an interrupted copy has stored stays."""
    key = bytes_of(keys.prefix + entry.name)
    if with_fields:
        yield "HSET", key, *chain.from_iterable(entry.fields.items())
    yield "ZADD", keys.schedule, "NX", repr(entry.score), key
    if with_fields and words.INBOX.encode() in entry.fields:
        yield "ZADD", key_aside(keys.prefix, words.INBOX), 0, key
    if entry.static:
        yield "SADD", keys.statics, bytes_of(entry.name)
    if entry.quarantine_note is not None:
        yield "HSETNX", keys.quarantine, key, entry.quarantine_note
    if b'"exclude"' in entry.fields.get(POLICY, b""):
        yield "SADD", keys.calendar_users, key
    if any(b'"expect_within"' in text for text in entry.fields.values()):
        yield "ZADD", keys.expected, "NX", 0, key


def _copy_hash(client: Any, source: str, target: str, delete: bool = False) -> None:
    """Copy the fields that the target lacks; a source that is not a hash is left out."""
    fields = _hash(client, source) or {}
    reading.ask(client, *(("HSETNX", target, *pair) for pair in fields.items()))
    if fields and delete:
        client.delete(source)


def _delete(client: Any, keys: Keys, names: Iterable[str]) -> None:
    commands = list[tuple[Any, ...]]()
    for name in names:
        key = bytes_of(keys.prefix + name)
        commands += [
            ("ZREM", keys.schedule, key),
            ("SREM", keys.statics, bytes_of(name)),
            ("HDEL", keys.quarantine, key),
            ("DEL", key),
        ]
    reading.ask(client, *commands)


@dataclass
class Copied:
    """The names of the entries for each outcome.

    Attributes:
        copied: entries that were copied.
        kept: entries that were already under the new prefix, and were not changed.
        unreadable: entries without a definition.
    """

    copied: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def copy_untagged(app: App | None = None, prefix: str | None = None) -> Copied:
    """Copy the entries under ``prefix`` to the app's key prefix, with history and score.

    The default is the app's prefix without braces, such as ``redbeat:`` for ``{redbeat}:``. Stop
    the beats on both prefixes first. Entries under the app's prefix are never changed, so an
    interrupted copy can be repeated; the old keys are kept, so it can be undone. See
    :func:`.copy_prefix`.

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
