"""Says what is wrong with the Redis of a schedule: when a beat begins to work, and after errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redbeat.codec.stored import text_of
from redbeat.config import RedBeatConfig
from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.storage import checks
from redbeat.storage.records import Keys
from redbeat.storage.store import Store as SecondStore
from tests.edition.storage.portions import WRONG_TYPE, ask
from tests.edition.storage.store import Store

logger = get_logger("celery.beat")

#: The types of the keys of a schedule, by their attributes in ``Keys``, with their names.
TYPES: Final = {
    **dict.fromkeys(("statics", "calendar_users"), ("set", "set")),
    **dict.fromkeys(("quarantine", "stats", "calendars"), ("hash", "hash")),
    **dict.fromkeys(("schedule", "beats", "failing", "expected"), ("zset", "sorted set")),
}


class Checks:
    """Checks one schedule for rights, eviction, misspelt keys, and keys of a wrong type."""

    def __init__(self, store: Store, conf: RedBeatConfig) -> None:
        self._client, self._keys, self._conf = store.client, store.keys, conf
        self._stored = SecondStore(store.client, store.keys)
        self._done = False
        self._side_error = ""

    def run(self) -> None:
        """Check the server once in the life of this beat. A few round trips.

        Raises :exc:`RedBeatKeyExpiryError` if the setting ``redbeat_key_expiry_check`` says so.
        """
        if self._done:
            return
        checks.check_eviction(self._stored, self._conf.key_expiry_check)
        checks.warn_about_untagged(self._stored, self._conf)
        checks.warn_about_misspelt(self._stored)
        self._done = True

    def explained(self, error: Exception) -> Exception:
        """Return an error that says what to do, ``error`` itself if the cause is not known.

        One round trip if the user of Redis lacks a right, or if a key has a wrong type.
        """
        if isinstance(error, ResponseError) and WRONG_TYPE in str(error):
            try:
                return ResponseError(wrong_type(self._client, self._keys) or str(error))
            except RedisError as failure:
                return failure
        return checks.explained(error, self._stored)

    def note(self, side_error: str) -> None:
        """Log once that a side key cannot be used, which stops nothing."""
        _, _, why = side_error.partition(": ")
        if not why or why == self._side_error:
            return
        self._side_error = why
        if WRONG_TYPE in why:
            logger.error("beat: %s", described(self.explained(ResponseError(why))))
        else:
            self._stored._lacks_keys_aside(NoPermissionError(why))  # noqa: SLF001


@contextmanager
def naming_wrong_types(client: object, keys: Keys) -> Iterator[None]:
    """Let an error about a key of a wrong type name the key; then one round trip."""
    try:
        yield
    except ResponseError as error:
        named = wrong_type(client, keys) if WRONG_TYPE in str(error) else ""
        if not named:
            raise
        raise ResponseError(named) from error


def wrong_type(client: object, keys: Keys) -> str:
    """Return which key of a schedule has a wrong type, and what to do; "" if none has.

    One round trip.
    """
    named = {getattr(keys, name): kind for name, kind in TYPES.items()}
    replies = ask(client, *(("TYPE", key) for key in named))
    for (key, (kind, name)), reply in zip(named.items(), replies, strict=True):
        found = text_of(reply)
        if found not in (kind, "none"):
            return (
                f"WRONGTYPE the key {key!r} is a {found}, but it must be a {name}: rename or "
                "delete the key, or set redbeat_key_prefix to another prefix"
            )
    return ""
