"""Reads the rows of many entries, in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, ResponseError

from redbeat.codec.stored import bytes_of, text_of
from redbeat.storage.reading import ESCAPED, GLOB_SPECIAL
from redbeat.storage.wire import pairs_of
from tests.edition.storage.rows import Change, Request, Row
from tests.edition.storage.store import Store
from tests.edition.words import DEFINITION, INBOX, META, POLICY, STATE

FIELDS = (DEFINITION, META, POLICY, STATE, INBOX)

#: The cursor with which a scan begins and ends, and how much one portion of it reads.
START: Final = 0
SCANNED: Final = 5000

#: No row has this digest.
NOTHING_HAS = "-"

#: A part of the errors of Redis about keys of another type.
WRONG_TYPE = "WRONGTYPE"


def ask(client: Any, *commands: Sequence[Any]) -> list[Any]:
    """Return the replies to commands, as bytes. One round trip; raises the first error."""
    return [_raised(reply) for reply in _replies(client, commands)]


def ask_aside(client: Any, *command: Any) -> Any:
    """Return the reply about a key aside of the prefix. One round trip.

    Returns None without a right to the key, or if another program has made it of another type.
    """
    try:
        return ask(client, command)[0]
    except NoPermissionError:
        return None
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
        return None


def stored_calendars(store: Store) -> dict[str, str]:
    """Return the JSON of all calendars, by name; none without a right to them.

    One round trip per :data:`SCANNED` calendars. (Users of Redis have no right to HGETALL.)
    """
    found, cursor = dict[str, str](), START
    while True:
        scan = ("HSCAN", store.keys.calendars, cursor, "COUNT", SCANNED)
        cursor, page = ask_aside(store.client, *scan) or (START, {})
        found.update((text_of(name), text_of(text)) for name, text in pairs_of(page))
        if int(cursor) == START:
            return found


def static_names(store: Store, *commands: Sequence[Any]) -> tuple[set[str], list[Any]]:
    """Return the names of all static entries, and the replies to ``commands``.

    One round trip per :data:`SCANNED` names. (Users of Redis have no right to SMEMBERS.)
    """
    scan = ("SSCAN", store.keys.statics)
    (cursor, names), *replies = ask(store.client, (*scan, START, "COUNT", SCANNED), *commands)
    found = {text_of(name) for name in names}
    while int(cursor) != START:
        ((cursor, names),) = ask(store.client, (*scan, cursor, "COUNT", SCANNED))
        found.update(map(text_of, names))
    return found, replies


def reading(keys: Iterable[str]) -> list[Change]:
    """Return changes that only read: they expect what no row has, so their answers are the rows."""
    return [Change(key, expect=NOTHING_HAS) for key in keys]


def read_rows(store: Store, keys: Iterable[str]) -> list[Row]:
    """Return the rows of entries. One round trip, one more if some do not exist; none without keys.

    The answers to changes take a fifth of the time of a pipeline, which reads only what has no
    definition.
    """
    keys = list(keys)
    if not keys:
        return []
    answers = store.turn(Request("", None, reading(keys))).answers
    found = {answer.row.key: answer.row for answer in answers if answer.row is not None}
    missing = [key for key in keys if key not in found]
    if missing:
        found.update((row.key, row) for row in _read_missing(store, missing))
    return [found[key] for key in keys]


def _read_missing(store: Store, keys: Sequence[str]) -> list[Row]:
    """Return the rows of entries without a definition, with what is left of them."""
    commands = list[Sequence[Any]]()
    for key in keys:
        commands.append(("HMGET", bytes_of(key), *FIELDS))
        commands.append(("ZSCORE", store.part_of(key).keys.schedule, bytes_of(key)))
    replies = iter(_replies(store.client, commands))
    rows = [_row(key, next(replies), next(replies)) for key in keys]
    store.note_rows(rows)
    return rows


def pattern_of(prefix: str) -> str:
    """Return the glob pattern of all keys that begin with ``prefix``."""
    return GLOB_SPECIAL.sub(ESCAPED, prefix) + "*"


def _replies(client: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if not commands:
        return []
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command, **{NEVER_DECODE: True})
    replies: list[Any] = pipe.execute(raise_on_error=False)
    return replies


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _row(key: str, texts: Any, score: Any) -> Row:
    score = _raised(score)
    text = "" if score is None else repr(float(score))
    if isinstance(texts, ResponseError) and WRONG_TYPE in str(texts):
        return Row(key, text, problem=str(texts))
    found = (None if one is None else text_of(one) for one in _raised(texts))
    definition, meta, policy, state, inbox = found
    return Row(key, text, definition, meta, policy, state, inbox)
