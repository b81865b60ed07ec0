"""Loads and decodes stored calendars, and passes each calendar to the entries that use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from redbeat.codec.stored import object_in
from redbeat.errors import DecodeError
from redbeat.schedules.calendars import Calendar
from redbeat.storage.store import Store

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry


def calendar_of(name: str, text: str) -> Calendar:
    """Return the calendar ``name`` from the JSON in ``text``; raises :exc:`DecodeError`."""
    found = _read(name, text)
    if isinstance(found, DecodeError):
        raise DecodeError(found.field, found.problem)
    return found


@lru_cache(maxsize=256)
def _read(name: str, text: str) -> Calendar | DecodeError:
    """Return a calendar, or why it cannot be read, which can take as long to find out."""
    try:
        return Calendar.from_fields(name, object_in(text, f"calendar {name!r:.60}"))
    except DecodeError as error:
        return error


def decode_calendars(texts: Mapping[str, str], names: Iterable[str]) -> dict[str, Calendar]:
    """Return the calendars with the names in ``names``, decoded from ``texts``.

    ``texts`` maps names of calendars to their JSON. Names that ``texts`` does not contain are
    ignored. Raises :exc:`DecodeError` for a calendar that cannot be decoded.
    """
    return {name: calendar_of(name, texts[name]) for name in names if name in texts}


def load_calendars(store: Store, names: Iterable[str] | None = None) -> dict[str, Calendar]:
    """Return the stored calendars with the names in ``names``, by default all stored calendars.

    Names without a stored calendar are ignored. Raises :exc:`DecodeError` for a calendar that
    cannot be decoded. One round trip.
    """
    texts = store.calendars(names)
    return decode_calendars(texts, texts)


def readable_calendars(store: Store, names: Iterable[str]) -> tuple[dict[str, Calendar], set[str]]:
    """Return the readable calendars in ``names``, and the names of the unreadable calendars.

    Names without a stored calendar are ignored. One round trip.
    """
    calendars, unreadable = dict[str, Calendar](), set[str]()
    for name, text in store.calendars(names).items():
        try:
            calendars[name] = calendar_of(name, text)
        except DecodeError:
            unreadable.add(name)
    return calendars, unreadable


def prepare_calendars(
    store: Store, entries: Iterable[RedBeatSchedulerEntry]
) -> dict[str, Calendar]:
    """Load the calendars of ``entries``, and record in Redis which entries use calendars.

    Returns the calendars by name. An entry with an unreadable calendar gets no calendars, so the
    next decision about the entry loads its calendars and raises :exc:`DecodeError`. Takes two round
    trips, or none if no entry uses a calendar.
    """
    users = [entry for entry in entries if entry.policy_field("exclude")]
    if not users:
        return {}
    store.note_calendar_users([entry.key for entry in users])
    names = {name for entry in users for name in entry.policy.exclude}
    calendars, unreadable = readable_calendars(store, names)
    for entry in users:
        entry.use_calendars(None if unreadable & set(entry.policy.exclude) else calendars)
    return calendars
