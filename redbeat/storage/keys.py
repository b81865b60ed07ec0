"""The keys of a schedule; names a key that another program has made of another type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from redis.exceptions import ResponseError

from redbeat.codec.stored import text_of
from redbeat.config import KEYS_ASIDE, key_aside
from redbeat.connection.borrowing import replies_to


def _key_aside(what: str) -> cached_property[str]:
    """Return a property of :class:`Keys` that contains the name of a key outside the key prefix."""
    return cached_property(lambda keys: key_aside(keys.prefix, what))


def _key(what: str) -> cached_property[str]:
    """Return a property of :class:`Keys` that contains the name of a key under the key prefix."""
    return cached_property(lambda keys: f"{keys.prefix}:{what}")


@dataclass(frozen=True)
class Keys:
    """The names of all Redis keys of one schedule.

    The keys of the quarantine, the beats and the stats are outside the key prefix. ``warned``
    contains the prefixes of schedules without a right to these, about which a warning was logged.
    """

    prefix: str
    warned: set[str] = field(default_factory=set, compare=False)

    #: The sorted set of entries: entry key -> when the entry is due, UNIX seconds.
    schedule = _key("schedule")
    #: The set of the names of static entries.
    statics = _key("statics")
    #: The channel on which beats receive wake-up messages.
    wakeup = _key("wakeup")
    #: The hash of quarantined entries: entry key -> JSON note with the reason.
    quarantine = _key_aside("quarantine")
    #: The sorted set of active beats: token -> when the beat was last seen, UNIX seconds.
    beats = _key_aside("beats")
    #: The hash of the stats: counters of all beats.
    stats = _key_aside("stats")
    #: The sorted set of entries whose run could not be sent: entry key -> when the run was due.
    failing = _key_aside("failing")
    #: The sorted set of entries with ``expect_within``: entry key -> when the entry may be overdue.
    expected = _key_aside("expected")
    #: The hash of calendars: name -> JSON of the calendar.
    calendars = _key_aside("calendars")
    #: The set of the keys of all entries with calendars, and of some entries without calendars.
    calendar_users = _key_aside("calendar-users")

    @property
    def aside(self) -> list[str]:
        """The keys of the schedule outside the key prefix."""
        return [key_aside(self.prefix, what) for what in KEYS_ASIDE]

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.prefix + name

    def name_of(self, key: str) -> str:
        """Return the name of the entry with the key ``key``."""
        return key.removeprefix(self.prefix)


#: A part of the errors of Redis about keys of another type.
WRONG_TYPE: Final = "WRONGTYPE"

#: The types of the keys of a schedule, by their attributes in ``Keys``, with their names.
TYPES: Final = {
    **dict.fromkeys(("statics", "calendar_users"), ("set", "set")),
    **dict.fromkeys(("quarantine", "stats", "calendars"), ("hash", "hash")),
    **dict.fromkeys(("schedule", "beats", "failing", "expected"), ("zset", "sorted set")),
}


@contextmanager
def naming_wrong_types(client: Any, keys: Keys) -> Iterator[None]:
    """Let an error about a key of a wrong type name the key; then one round trip."""
    try:
        yield
    except ResponseError as error:
        named = wrong_type(client, keys) if WRONG_TYPE in str(error) else ""
        if not named:
            raise
        raise ResponseError(named) from error


def wrong_type(client: Any, keys: Keys) -> str:
    """Return which key of a schedule has a wrong type, and what to do; "" if none has.

    One round trip.
    """
    named = {getattr(keys, name): kind for name, kind in TYPES.items()}
    replies = replies_to(client, [("TYPE", key) for key in named])
    for (key, (kind, name)), reply in zip(named.items(), replies, strict=True):
        found = kind if isinstance(reply, Exception) else text_of(reply)
        if found not in (kind, "none"):
            return (
                f"WRONGTYPE the key {key!r} is a {found}, but it must be a {name}: rename or "
                "delete the key, or set redbeat_key_prefix to another prefix"
            )
    return ""
