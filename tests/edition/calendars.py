"""Stores calendars of one schedule, with their version, and lets beats look at their users."""

from __future__ import annotations

from redis.exceptions import ResponseError

from redbeat.config import key_aside
from tests.edition.saving import apply
from tests.edition.storage.rows import Change, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import CALENDAR_TEXTS, CALENDAR_VERSION


def save(store: Store, name: str, text: str) -> None:
    """Store a calendar as JSON. One round trip.

    The new version makes beats read the calendars, and decisions by the old ones void. Raises
    ``ResponseError`` if Redis refuses it.
    """
    index = [["HSET", CALENDAR_TEXTS, name, text], ["SET", CALENDAR_VERSION, new_mark()]]
    reply = apply(store, [Change("", index=index)])
    if reply.side_error:
        raise ResponseError(reply.side_error)


def delete(store: Store, name: str) -> bool:
    """Delete a calendar that no entry uses; return whether it existed. One round trip."""
    with store.client.pipeline(transaction=False) as pipe:  # users have no right to MULTI
        pipe.hdel(key_aside(store.keys.prefix, CALENDAR_TEXTS), name)
        pipe.set(key_aside(store.keys.prefix, CALENDAR_VERSION), new_mark())
        return bool(pipe.execute()[0])
