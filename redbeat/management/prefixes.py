"""A whole schedule from one key prefix to another, of the same Redis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from redbeat.config import ensure_conf
from redbeat.entries.decide import task_id_of
from redbeat.entries.runs import with_ids
from redbeat.errors import ConfigurationError
from redbeat.storage.checks import untagged_prefix
from redbeat.storage.records import Keys, json_text, key_of
from redbeat.storage.store import store_of
from redbeat.storage.wire import text_in, text_of

__all__ = ("Copied", "PrefixCopy", "copy_prefix", "copy_untagged")

#: Members of the schedule looked at in one go.
PAGE = 500

#: A claim belongs to a beat of the old prefix; it is not copied.
NOT_COPIED = frozenset({b"claim"})

Fields = dict[bytes, bytes]
Count = Callable[[str, bytes], None]


def ignore(_what: str, _name: str) -> None:
    """Take no note."""


@dataclass
class PrefixCopy:
    """How many entries were met: each of them counts once, ``deleted`` apart.

    ``same`` were there already, equal but for their history, which is kept as it is there.
    ``different`` are other entries of the same names: they and the old ones stay as they are.
    ``unreadable`` have no definition, or a key that is not a hash.
    """

    copied: int = 0
    same: int = 0
    different: int = 0
    unreadable: int = 0
    deleted: int = 0


class Row(NamedTuple):
    """A member of the old schedule with what is stored of it."""

    member: bytes
    name: bytes
    score: float
    fields: Fields
    static: bool
    note: bytes | None


def copy_prefix(
    client: Any,
    old: str,
    new: str,
    delete: bool = False,
    progress: Callable[[int], Any] | None = None,
    note: Callable[[str, str], Any] = ignore,
) -> PrefixCopy:
    """Copy all entries, with history, score, static mark and quarantine, to another prefix.

    What is under ``new`` already is never changed, so a copy that broke off can be repeated. With
    ``delete`` the old of what is under both prefixes then goes. No beat may run on either prefix.
    ``progress`` is told the number of entries of each page, ``note`` what became of each entry, a
    field of the result, and its name.

    What beats have counted is copied too, and with ``delete`` goes.

    Each command is about one key, so that the prefixes need not share a slot of a cluster, nor the
    keys of one of them. Some five round trips per 500 entries. Raises ``ValueError`` for prefixes
    that are empty or equal; Redis errors pass through.
    """
    if not old or not new or old == new:
        raise ValueError(f"the prefixes are {old!r} and {new!r}: give two that differ")
    source, target, result = Keys.under(old), Keys.under(new), PrefixCopy()

    def count(what: str, name: bytes) -> None:
        setattr(result, what, getattr(result, what) + 1)
        note(what, text_of(name))

    for page in _pages(client, source):
        rows = _read(client, source, page, count)
        there = _write(client, target, rows, count)
        if delete:
            _delete(client, source, there)
            result.deleted += len(there)
        if progress is not None:
            progress(len(page))
    _move_stats(client, source, target, delete)
    return result


def _pages(client: Any, keys: Keys) -> Iterator[list[tuple[bytes, float]]]:
    """Yield all members with their scores; the same one twice at the worst."""
    cursor: Any = 0
    while True:
        cursor, found = _raw(client, "ZSCAN", keys.schedule, cursor, "COUNT", PAGE)
        pairs = found if not found or isinstance(found[0], (list, tuple)) else _pairs(found)
        members = [(bytes(member), float(score)) for member, score in pairs]
        for start in range(0, len(members), PAGE):
            yield members[start : start + PAGE]
        if int(cursor) == 0:
            return


def _read(client: Any, keys: Keys, page: Sequence[tuple[bytes, float]], count: Count) -> list[Row]:
    """Return what is stored of the members that have a definition."""
    prefix = key_of(keys.prefix)
    names = [member.removeprefix(prefix) for member, _ in page]
    pipe = client.pipeline(transaction=False)
    for name, (member, _) in zip(names, page, strict=True):
        _raw(pipe, "HGETALL", prefix + name)
        _raw(pipe, "SISMEMBER", keys.statics, name)
        _raw(pipe, "HGET", keys.quarantine, member)
    replies = iter(pipe.execute(raise_on_error=False))
    rows = []
    for name, (member, score) in zip(names, page, strict=True):
        fields, static, note = next(replies), next(replies), next(replies)
        _raise_unless_wrong_type(fields)
        fields = {} if isinstance(fields, Exception) else _as_dict(fields)
        if b"definition" in fields:
            rows.append(Row(member, name, score, _portable(keys, name, fields), bool(static), note))
        else:
            count("unreadable", name)
    return rows


def _portable(keys: Keys, name: bytes, fields: Fields) -> Fields:
    """Return fields whose history tells the ids that runs had under this prefix."""
    if b"history" not in fields:
        return fields
    entry, identity = text_of(name), text_in(text_of(fields.get(b"identity")))

    def own_id(scheduled_at: datetime) -> str:
        return task_id_of(keys.prefix, entry, scheduled_at.isoformat(), identity)

    history = with_ids(text_in(text_of(fields[b"history"])), own_id)
    return {**fields, b"history": key_of(json_text(history))}


def _write(client: Any, keys: Keys, rows: Sequence[Row], count: Count) -> list[Row]:
    """Store rows; returns those that are there now, be it since before."""
    prefix = key_of(keys.prefix)
    pipe = client.pipeline(transaction=False)
    for row in rows:
        # The definition first, and only if there is none: whoever comes second changes nothing.
        _raw(pipe, "HSETNX", prefix + row.name, "definition", row.fields[b"definition"])
        _raw(pipe, "HGETALL", prefix + row.name)
    replies = pipe.execute(raise_on_error=False)
    pipe = client.pipeline(transaction=False)
    there = []
    for row, made, found in zip(rows, replies[::2], replies[1::2], strict=True):
        _raise_unless_wrong_type(made)
        stored = {} if isinstance(found, Exception) else _as_dict(found)
        begun = stored == {b"definition": row.fields[b"definition"]} and (
            made or len(row.fields) > 1
        )
        if begun:
            count("copied", row.name)
            _complete(pipe, keys, row)
        elif _is_same(stored, row.fields):
            count("same", row.name)
        else:
            count("different", row.name)
            continue
        _enlist(pipe, keys, row)
        there.append(row)
    pipe.execute()
    return there


def _is_same(stored: Fields, fields: Fields) -> bool:
    return all(stored.get(name) == fields.get(name) for name in (b"definition", b"policy"))


def _complete(pipe: Any, keys: Keys, row: Row) -> None:
    rest = [
        value
        for pair in row.fields.items()
        if pair[0] not in NOT_COPIED and pair[0] != b"definition"
        for value in pair
    ]
    if rest:
        _raw(pipe, "HSET", key_of(keys.prefix) + row.name, *rest)


def _enlist(pipe: Any, keys: Keys, row: Row) -> None:
    key = key_of(keys.prefix) + row.name
    _raw(pipe, "ZADD", keys.schedule, "NX", repr(row.score), key)
    if row.static:
        _raw(pipe, "SADD", keys.statics, row.name)
    if row.note is not None:
        _raw(pipe, "HSETNX", keys.quarantine, key, row.note)


def _move_stats(client: Any, source: Keys, target: Keys, delete: bool) -> None:
    """Copy what was counted and is not there yet; a key that is no hash stays."""
    try:
        counted = _as_dict(_raw(client, "HGETALL", source.stats))
    except ResponseError as error:
        _raise_unless_wrong_type(error)
        return
    pipe = client.pipeline(transaction=False)
    for field, value in counted.items():
        _raw(pipe, "HSETNX", target.stats, field, value)
    if counted and delete:
        _raw(pipe, "DEL", source.stats)
    pipe.execute()


def _delete(client: Any, keys: Keys, rows: Sequence[Row]) -> None:
    pipe = client.pipeline(transaction=False)
    for row in rows:
        _raw(pipe, "ZREM", keys.schedule, row.member)
        _raw(pipe, "SREM", keys.statics, row.name)
        _raw(pipe, "HDEL", keys.quarantine, row.member)
        _raw(pipe, "DEL", key_of(keys.prefix) + row.name)
    pipe.execute()


def _raw(client: Any, *command: Any) -> Any:
    """Run a command, or queue it; texts in the reply are bytes."""
    return client.execute_command(*command, **{NEVER_DECODE: True})


def _raise_unless_wrong_type(reply: Any) -> None:
    if isinstance(reply, Exception):
        if isinstance(reply, ResponseError) and "WRONGTYPE" in text_of(str(reply)):
            return
        raise reply


def _as_dict(reply: Any) -> Fields:
    return dict(reply) if isinstance(reply, dict) else dict(_pairs(reply))


def _pairs(reply: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(*[iter(reply)] * 2, strict=True))


@dataclass
class Copied:
    """What became of the entries: copied, there already, or without a definition to copy."""

    copied: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)
    unreadable: list[str] = dataclasses.field(default_factory=list)


def copy_untagged(app: Any = None, prefix: str | None = None) -> Copied:
    """Copy the entries under ``prefix`` to the prefix of the app, with history and score.

    ``prefix`` is by default that of the app without its braces: ``redbeat:`` for ``{redbeat}:``.
    Stop the beats of both first. What is under the new prefix already is kept as it is, so a copy
    that broke off can be repeated; the old keys stay, for a way back. See :func:`.copy_prefix`.

    Raises :exc:`ConfigurationError` when the two prefixes are the same; Redis errors pass through.
    """
    conf, result = ensure_conf(app), Copied()
    old = prefix or untagged_prefix(conf.key_prefix)
    if old == conf.key_prefix:
        raise ConfigurationError(
            f"redbeat_key_prefix is {conf.key_prefix!r}, which is where the entries are: "
            "give it a hash tag, or name the old prefix"
        )
    lists = {"copied": result.copied, "unreadable": result.unreadable}

    def note(what: str, name: str) -> None:
        lists.get(what, result.kept).append(name)

    copy_prefix(store_of(app).client, old, conf.key_prefix, note=note)
    return result
