"""The stored calendars of a schedule, and their version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from redbeat.codec.stored import object_in
from redbeat.errors import DecodeError
from redbeat.schedules.calendars import Calendar
from redbeat.storage.store import Store


def calendar_of(name: str, text: str) -> Calendar:
    found = _read(name, text)
    if isinstance(found, DecodeError):
        raise DecodeError(found.field, found.problem)
    return found


@lru_cache(maxsize=256)
def _read(name: str, text: str) -> Calendar | DecodeError:
    """A calendar, or why it cannot be read: finding that out can take just as long."""
    try:
        return Calendar.from_fields(name, object_in(text, f"calendar {name!r:.60}"))
    except DecodeError as error:
        return error


def decode_calendars(texts: Mapping[str, str], names: Iterable[str]) -> dict[str, Calendar]:
    """Names that ``texts`` does not contain are left out."""
    return {name: calendar_of(name, texts[name]) for name in names if name in texts}


def load_calendars(store: Store, names: Iterable[str] | None = None) -> dict[str, Calendar]:
    """Without ``names``, read all. Raises :exc:`DecodeError`. One round trip."""
    texts = store.calendars(names)
    return decode_calendars(texts, texts)


def readable_calendars(
    store: Store, names: Iterable[str] | None = None
) -> tuple[dict[str, Calendar], set[str]]:
    """Return also the names of those that cannot be read. One round trip."""
    calendars, unreadable = dict[str, Calendar](), set[str]()
    for name, text in store.calendars(names).items():
        try:
            calendars[name] = calendar_of(name, text)
        except DecodeError:
            unreadable.add(name)
    return calendars, unreadable


def give_calendars(store: Store, entries: Iterable[Any]) -> dict[str, Calendar]:
    """Give entries the calendars that they use, and return the readable ones.

    An entry with an unreadable calendar reads it again for its next decision, which then raises the
    error. One round trip; none if no entry has a calendar.
    """
    users = [entry for entry in entries if entry.policy_field("exclude")]
    if not users:
        return {}
    names = {name for entry in users for name in entry.effective_policy.exclude}
    calendars, unreadable = readable_calendars(store, names)
    for entry in users:
        entry.use_calendars(None if unreadable & set(entry.effective_policy.exclude) else calendars)
    return calendars
