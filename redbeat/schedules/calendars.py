"""Calendars: named sets of days on which entries do not run. This module does not access Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any, Final, Literal

from celery.schedules import BaseSchedule

from redbeat.calendar.walltime import TICK, instant_of
from redbeat.calendar.zones import UTC, zone_key, zone_named
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.printing import encodable

from .ical import from_ical
from .next_run import find_latest, latest_run, next_run
from .rule import RuleSchedule, rrule
from .rule_set import rruleset

__all__ = ("MAX_DAYS", "Calendar", "Exclusion", "OnExcluded")

#: Whether to skip an occurrence on an excluded day, or to move the occurrence to another day.
#: A moved occurrence keeps its wall-clock time. Its new day is the next or the previous day that is
#: not excluded.
OnExcluded = Literal["skip", "next", "previous"]

#: Maximum number of days and rules in one calendar.
MAX_DAYS: Final = 4000

#: If a calendar excludes more than ``MAX_ROW`` days in a row, its entries have no next run.
MAX_ROW: Final = 1100

#: Maximum number of occurrences that a search moves from excluded days to other days.
MAX_MOVED: Final = 4000

DAY: Final = timedelta(days=1)

#: A day, or a pair of the first and the last day of a span.
#: A day is a ``date`` or a string in ISO 8601.
Days = date | str | Sequence["date | str"]


@dataclass(frozen=True)
class Calendar:
    """A named set of days on which the entries with this calendar do not run.

    Arguments:
        name: the name of the calendar.
        days: excluded days, each as a ``date`` or a string in ISO 8601, and excluded spans, each as
            a pair of the first and the last day.
        rules: the rules whose occurrences are excluded days, each as RFC 5545 text such as
            ``"FREQ=WEEKLY;BYDAY=SA,SU"``, or as an ``rrule`` or ``rruleset``.
        zone: the IANA name of the time zone in which the days begin and end; None for the time zone
            of each entry.

    Raises :exc:`InvalidEntryError` with the name of the invalid argument.
    """

    name: str
    days: Sequence[Days] = ()
    rules: Sequence[str | rrule | rruleset] = ()
    zone: str | None = None
    _spans: list[tuple[date, date]] = field(init=False, repr=False, compare=False)
    _schedules: list[RuleSchedule] = field(init=False, repr=False, compare=False)
    _known: dict[date, bool] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name or "," in name or encodable(name) != name:
            raise InvalidEntryError(
                "name", f"{name!r:.60} is not a valid name; use text without commas"
            )
        if len(self.days) + len(self.rules) > MAX_DAYS:
            problem = f"there are more than {MAX_DAYS} days and rules; use rules for repeated days"
            raise InvalidEntryError("days", problem)
        set_field = object.__setattr__  # the dataclass is frozen and does not allow assignments
        set_field(self, "_spans", [_span(days) for days in self.days])
        texts = [_rule_text(rule) for rule in self.rules]
        set_field(self, "_schedules", [_schedule(text) for text in texts])
        set_field(self, "rules", tuple(texts))
        set_field(self, "days", tuple(_plain(*span) for span in self._spans))
        zone: Any = self.zone
        if zone is not None:
            try:
                key = zone if isinstance(zone, str) else zone_key(zone)
                zone_named(key or "")
            except ValueError as error:
                raise InvalidEntryError("zone", str(error)) from error
            set_field(self, "zone", key)

    def excludes(self, day: date) -> bool:
        """Return whether the calendar excludes ``day``."""
        known = self._known.get(day)
        if known is None:
            known = any(first <= day <= last for first, last in self._spans) or any(
                _occurs(schedule, day) for schedule in self._schedules
            )
            if len(self._known) > MAX_DAYS:
                self._known.clear()
            self._known[day] = known
        return known

    def fields(self) -> dict[str, Any]:
        """Return the fields of the calendar that are stored in Redis, as a dict of JSON values."""
        return {"days": list(self.days), "rules": list(self.rules), "zone": self.zone}

    def to_json(self) -> str:
        """Return the JSON text of the calendar that is stored in Redis."""
        return json.dumps(self.fields())

    @classmethod
    def from_ical(
        cls, name: str, text: str | bytes, zone: str | None = None, now: date | None = None
    ) -> Calendar:
        """Return a calendar that excludes the days of the events in an iCalendar file.

        ``text`` is the content of the file. Events before last year, and events ten or more years
        after this year, are ignored; the year of ``now`` (default: today) counts as this year.
        Raises :exc:`InvalidEntryError` if the text cannot be read, or if the extra ``calendars`` is
        not installed.
        """
        days = _days_of_events(text, now or datetime.now(UTC).date())
        return cls(name, days, zone=zone)

    @classmethod
    def from_fields(cls, name: str, fields: Mapping[str, Any]) -> Calendar:
        """Return the calendar for a name and its stored fields.

        Raises :exc:`DecodeError` if the name or a field is invalid.
        """
        try:
            return cls(name, fields["days"], fields["rules"], fields["zone"])
        except InvalidEntryError as error:
            raise DecodeError(f"calendar {name!r:.60}.{error.field}", error.problem) from error
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(
                f"calendar {name!r:.60}", f"the stored fields are invalid: {error!r}"
            ) from error


#: Events in iCalendar text that begin ``YEARS`` or more years after this year are ignored.
YEARS: Final = 10


def _days_of_events(text: str | bytes, now: date) -> list[tuple[date, date]]:
    try:
        import icalendar  # noqa: PLC0415 - libraries of an extra
        import recurring_ical_events  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        problem = "the iCalendar packages are missing; use: pip install 'celery-redbeat[calendars]'"
        raise InvalidEntryError("days", problem) from error
    try:
        parsed = icalendar.Calendar.from_ical(text)
        events = recurring_ical_events.of(parsed).between(
            date(now.year - 1, 1, 1), date(now.year + YEARS, 1, 1)
        )
        return sorted({_event_span(event) for event in events})
    except Exception as error:  # the iCalendar packages raise errors of many types
        raise InvalidEntryError("days", f"the iCalendar text cannot be read: {error}") from error


def _event_span(event: Any) -> tuple[date, date]:
    """Return the first and the last day of an event.

    The end of an event is exclusive: the last day of an event that ends at midnight is the day
    before.
    """
    start, end = event.start, event.end
    last = end - TICK if isinstance(end, datetime) else end - DAY
    return _date(start), max(_date(start), _date(last))


def _span(days: Days) -> tuple[date, date]:
    if isinstance(days, (str, date)):
        return _date(days), _date(days)
    with suppress(TypeError, ValueError):
        first, last = days
        if _date(first) <= _date(last):
            return _date(first), _date(last)
    raise InvalidEntryError("days", f"{days!r:.60} is neither a day nor a pair of days")


def _date(day: Any) -> date:
    if isinstance(day, datetime):
        return day.date()
    if isinstance(day, date):
        return day
    try:
        return date.fromisoformat(day)
    except (TypeError, ValueError) as error:
        problem = f"{day!r:.60} is not a day; use a date, or a string such as '2026-12-25'"
        raise InvalidEntryError("days", problem) from error


def _plain(first: date, last: date) -> str | list[str]:
    return first.isoformat() if first == last else [first.isoformat(), last.isoformat()]


def _rule_text(rule: Any) -> str:
    text = rule.to_ical() if isinstance(rule, RuleSchedule) else rule
    if not isinstance(text, str):
        raise InvalidEntryError("rules", f"{rule!r:.60} is not a rule; use RFC 5545 text")
    return text if ":" in text else f"RRULE:{text}"


def _schedule(text: str) -> RuleSchedule:
    try:
        return from_ical(text)
    except ValueError as error:
        raise InvalidEntryError("rules", f"{text!r:.60}: {error}") from error


def _occurs(schedule: RuleSchedule, day: date) -> bool:
    zone = getattr(getattr(schedule, "dtstart", None), "tzinfo", None) or UTC
    start = _midnight(day, zone)
    occurrence = schedule.occurrence_after(start, inclusive=True)
    return occurrence is not None and occurrence < _midnight(day + DAY, zone)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return instant_of(datetime.combine(day, time(), zone))


@dataclass(frozen=True)
class Exclusion:
    """Computes the occurrences of an entry that names calendars.

    Attributes:
        calendars: the calendars that the entry names.
        zone: the time zone of the entry.
        on_excluded: one of the values of :data:`OnExcluded`.
    """

    calendars: Sequence[Calendar]
    zone: tzinfo
    on_excluded: str = "skip"

    def next_run(self, schedule: BaseSchedule, after: datetime) -> datetime | None:
        """Return the first occurrence after ``after``, or None if no occurrence follows.

        Returns None if more than :data:`MAX_ROW` days in a row are excluded.
        """
        if self.on_excluded != "skip":
            return self._next_moved(schedule, after)
        found = next_run(schedule, after, self.zone)
        while found is not None and self.excludes(found):
            end = self._end(found)
            if end is None:
                return None
            last = latest_run(schedule, found, end - TICK, self.zone) or found
            found = next_run(schedule, last, self.zone)
        return found

    def latest_run(
        self, schedule: BaseSchedule, first: datetime, until: datetime
    ) -> datetime | None:
        """Return the last occurrence in ``(first, until]``; ``first`` must be an occurrence."""
        if self.on_excluded != "skip":

            def probe(moment: datetime) -> datetime | None:
                found = self._next_moved(schedule, moment)
                return None if found is None or found > until else found

            return find_latest(probe, first, until)
        found = latest_run(schedule, first, until, self.zone)
        while found is not None and self.excludes(found):
            found = latest_run(schedule, first, self._begin(found) - TICK, self.zone)
        return found

    def count_runs(
        self, schedule: BaseSchedule, first: datetime, until: datetime, limit: int
    ) -> int:
        """Return the number of occurrences in ``(first, until]``, at most ``limit``."""
        count, found = 0, self.next_run(schedule, first)
        while found is not None and found <= until and count < limit:
            count, found = count + 1, self.next_run(schedule, found)
        return count

    def excludes(self, instant: datetime) -> bool:
        """Return whether a calendar excludes the day of ``instant``."""
        return self._excluding(instant) is not None

    def _excluding(self, instant: datetime) -> Calendar | None:
        calendars = self.calendars
        return next((one for one in calendars if one.excludes(self._day(one, instant))), None)

    def _zone_of(self, calendar: Calendar) -> tzinfo:
        return self.zone if calendar.zone is None else zone_named(calendar.zone)

    def _day(self, calendar: Calendar, instant: datetime) -> date:
        return instant.astimezone(self._zone_of(calendar)).date()

    def _end(self, instant: datetime) -> datetime | None:
        """Return the end of the consecutive excluded days around ``instant``.

        Returns ``instant`` if the day of ``instant`` is not excluded. Returns None if the excluded
        days do not end within :data:`MAX_ROW` days.
        """
        for _ in range(MAX_ROW):
            calendar = self._excluding(instant)
            if calendar is None:
                return instant
            instant = _midnight(self._day(calendar, instant) + DAY, self._zone_of(calendar))
        return None

    def _begin(self, instant: datetime) -> datetime:
        """Return the beginning of the consecutive excluded days around ``instant``.

        Returns ``instant`` if the day of ``instant`` is not excluded.
        """
        begin = instant
        for _ in range(MAX_ROW):
            calendar = self._excluding(instant)
            if calendar is None:
                break
            begin = _midnight(self._day(calendar, instant), self._zone_of(calendar))
            instant = begin - TICK
        return begin

    # -- moved occurrences -----------------------------------------------------------------------

    def _moved(self, occurrence: datetime) -> datetime | None:
        """Return ``occurrence``, moved to the next or previous day that is not excluded.

        Returns None if all days within :data:`MAX_ROW` days are excluded.
        """
        step = DAY if self.on_excluded == "next" else -DAY
        local = occurrence.astimezone(self.zone)
        for _ in range(MAX_ROW):
            if not self.excludes(occurrence):
                return occurrence
            local += step  # a step is in wall-clock time, so the time of day does not change
            occurrence = instant_of(local)
        return None

    def _next_moved(self, schedule: BaseSchedule, after: datetime) -> datetime | None:
        """Return the first instant after ``after`` to which :meth:`_moved` moves an occurrence.

        The search begins before the excluded days around ``after``, because an occurrence before
        ``after`` may move to an instant after ``after``. The search continues until
        :meth:`_last_to_search`, because an occurrence after the best result so far may move to an
        instant before this result.
        """
        best: datetime | None = None
        found = next_run(schedule, self._begin(after - DAY) - DAY, self.zone)
        for _ in range(MAX_MOVED):
            if found is None or (best is not None and found > self._last_to_search(best)):
                break
            moved = self._moved(found)
            if moved is not None and moved > after and (best is None or moved < best):
                best = moved
            found = next_run(schedule, found, self.zone)
        if best is None and found is not None:
            # If more than MAX_MOVED occurrences are on excluded days, skip the occurrences.
            return replace(self, on_excluded="skip").next_run(schedule, after)
        return best

    def _last_to_search(self, best: datetime) -> datetime:
        """Return a bound: occurrences after the bound cannot move to a time before ``best``."""
        if self.on_excluded == "next":
            return best
        return (self._end(best + DAY) or best) + DAY
