"""Calendars: named sets of days on which entries do not run. This module does not access Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, tzinfo
from functools import cached_property, partial
from typing import Any, Final, Literal

from celery.schedules import BaseSchedule

from redbeat.calendar.steps import LIMIT, About, Steps, bounded, spend
from redbeat.calendar.walltime import DAY, END, TICK, instant_of
from redbeat.calendar.zones import UTC, time_from, zone_key, zone_named
from redbeat.errors import DecodeError, InvalidEntryError, TooManyStepsError, described
from redbeat.printing import encodable

from . import ical_file
from .ical import from_ical
from .next_run import find_latest, latest_run, next_run
from .rule import RuleSchedule, rrule, rruleset

#: Whether to skip an occurrence on an excluded day, or to move the occurrence to another day.
#: A moved occurrence keeps its wall-clock time. Its new day is the next or the previous day that is
#: not excluded.
OnExcluded = Literal["skip", "next", "previous"]

#: Maximum number of days and rules in one calendar.
MAX_DAYS: Final = 4000

#: An occurrence moves by at most this number of days.
MOST_MOVED: Final = 1100

#: The steps to look up a day in the calendars, and to move a run.
OF_DAY, OF_RUN = 6, 6

#: The steps to read a rule, to see that it does not contain a day, and to find that it may.
READ, PASSED, SEARCHED = 30, 6, 60

#: What :exc:`TooManyStepsError` says about a calendar with too many rules.
READING: Final = ("rules", "the rules of a calendar", "give fewer rules and dates")

#: A day, or a pair of the first and the last day of a span.
#: A day is a ``date`` or a string in ISO 8601.
Days = date | str | Sequence["date | str"]


@dataclass(frozen=True)
class Calendar:
    """A named set of days on which the entries with this calendar do not run.

    Arguments:
        name: the name of the calendar.
        days: excluded days, each as a ``date`` or a string in ISO 8601, and excluded spans, each as
            a pair of the first and the last day. A time with a time zone means its day in ``zone``;
            the second time of a pair is exclusive.
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
    _schedules: list[rrule | rruleset] = field(init=False, repr=False, compare=False)
    #: A cache: day -> whether the calendar excludes it.
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
        zone: Any = self.zone
        if zone is not None:
            try:
                key = zone if isinstance(zone, str) else zone_key(zone)
                zone = zone_named(key or "")
            except ValueError as error:
                raise InvalidEntryError("zone", str(error)) from error
            set_field(self, "zone", key)
        set_field(self, "_spans", [_span(days, zone) for days in self.days])
        texts = [_rule_text(rule) for rule in self.rules]
        with Steps(about=READING):
            set_field(self, "_schedules", [_schedule(text) for text in texts])
        set_field(self, "rules", tuple(texts))
        set_field(self, "days", tuple(_plain(*span) for span in self._spans))

    def excludes(self, day: date) -> bool:
        """Return whether the calendar excludes ``day``."""
        if day not in self._known:
            if len(self._known) > MAX_DAYS:
                self._known.clear()
            spend(1 + len(self._spans) // 16)  # a comparison takes much less than a step
            in_spans = any(first <= day <= last for first, last in self._spans)
            in_rules = (_occurs(schedule, day) for schedule in self._schedules)
            self._known[day] = in_spans or any(in_rules)
        return self._known[day]

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

        ``text`` is the content of the file. A time of an event is converted to ``zone`` before the
        days are cut; without ``zone``, the days are those of the event's own time zone. An event
        that touches a part of a day excludes the day. Cancelled events are left out; what cannot be
        read, such as a to-do or an ``EXRULE``, is an error. Events before last year, and events ten
        or more years after this year, are ignored; the year of ``now`` (default: today) counts as
        this year. Raises :exc:`InvalidEntryError` if the text cannot be read, or if the extra
        ``calendars`` is not installed.
        """
        key = cls(name, zone=zone).zone
        of_calendar = None if key is None else zone_named(key)
        events = ical_file.events_in(text, now or datetime.now(UTC).date())
        days = sorted({_span(event, of_calendar) for event in events})
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
                f"calendar {name!r:.60}", f"the stored fields are invalid: {described(error)}"
            ) from error


def _span(days: Any, zone: tzinfo | None) -> tuple[date, date]:
    if isinstance(days, (str, date)):
        return _date(days, zone), _date(days, zone)
    with suppress(TypeError, ValueError):
        start, end = (time_from(day) for day in days)
        if start.tzinfo and end.tzinfo and start < end:
            end -= TICK  # as in iCalendar, the end of a span of times is exclusive
        first, last = _date(start, zone), _date(end, zone)
        if first <= last:
            return first, last
    raise InvalidEntryError("days", f"{days!r:.60} is neither a day nor a pair of days")


def _date(day: Any, zone: tzinfo | None) -> date:
    """Return the day of ``zone`` that a day or a time is; without ``zone``, the day as written."""
    try:
        moment = time_from(day)
    except ValueError as error:
        problem = f"{day!r:.60} is not a day; use a date, or a string such as '2026-12-25'"
        raise InvalidEntryError("days", problem) from error
    return (moment.astimezone(zone) if zone and moment.tzinfo else moment).date()


def _plain(first: date, last: date) -> str | list[str]:
    return first.isoformat() if first == last else [first.isoformat(), last.isoformat()]


def _rule_text(rule: Any) -> str:
    text = rule.to_ical() if isinstance(rule, RuleSchedule) else rule
    if not isinstance(text, str):
        raise InvalidEntryError("rules", f"{rule!r:.60} is not a rule; use RFC 5545 text")
    return text if ":" in text else f"RRULE:{text}"


def _schedule(text: str) -> rrule | rruleset:
    spend(READ + len(text))
    try:
        return from_ical(text)
    except ValueError as error:
        raise InvalidEntryError("rules", f"{text!r:.60}: {error}") from error


def _occurs(schedule: rrule | rruleset, day: date) -> bool:
    spend(PASSED)
    if not schedule.may_occur_near(day):
        return False
    spend(SEARCHED)
    zone = getattr(getattr(schedule, "dtstart", None), "tzinfo", None) or UTC
    start = _midnight(day, zone)
    occurrence = schedule.occurrence_after(start, inclusive=True)
    return occurrence is not None and occurrence < _midnight(day + DAY, zone)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return instant_of(datetime.combine(day, time(), zone))


@dataclass(eq=False)
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
    #: The last result of :meth:`_excluded_span`.
    _span: tuple[datetime, datetime] = field(default=(END, END), init=False, repr=False)

    @bounded
    def next_run(self, schedule: BaseSchedule, after: datetime) -> datetime | None:
        """Return the first occurrence after ``after``, or None if no occurrence follows."""
        if self.on_excluded != "skip":
            return self._next_moved(schedule, after)
        found = next_run(schedule, after, self.zone)
        while found is not None and self.excludes(found):
            _, end = self._excluded_span(found)
            last = latest_run(schedule, found, end - TICK, self.zone) or found
            found = next_run(schedule, last, self.zone)
        return found

    @bounded
    def latest_run(
        self, schedule: BaseSchedule, first: datetime, until: datetime
    ) -> datetime | None:
        """Return the last occurrence in ``(first, until]``; ``first`` must be an occurrence."""
        if self.on_excluded != "skip":
            return find_latest(partial(self._next_moved, schedule), first, until)
        found = latest_run(schedule, first, until, self.zone)
        while found is not None and self.excludes(found):
            begin, _ = self._excluded_span(found)
            found = latest_run(schedule, first, begin - TICK, self.zone)
        return found

    @bounded
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
        return self._excluded_day(instant) is not None

    def _excluded_day(self, instant: datetime) -> tuple[date, tzinfo] | None:
        """Return the day that excludes ``instant``, and its time zone; None if there is none."""
        spend(OF_DAY, self._about)
        for calendar in self.calendars:
            zone = self.zone if calendar.zone is None else zone_named(calendar.zone)
            day = instant.astimezone(zone).date()
            if calendar.excludes(day):
                return day, zone
        return None

    def _excluded_span(self, instant: datetime) -> tuple[datetime, datetime]:
        """Return the begin and the end of the consecutive excluded days around ``instant``.

        Both are ``instant`` if its day is not excluded. The span begins at most :data:`MOST_MOVED`
        days before ``instant``.
        """
        begin, end = self._span
        if begin <= instant < end:
            return begin, end
        begin = end = moment = instant
        while (excluded := self._excluded_day(end)) is not None:
            day, zone = excluded
            end = _midnight(day + DAY, zone)
        for _ in range(MOST_MOVED):
            if (excluded := self._excluded_day(moment)) is None:
                break
            begin = _midnight(*excluded)
            moment = begin - TICK
        self._span = begin, end
        return begin, end

    # -- moved occurrences -----------------------------------------------------------------------

    @cached_property
    def _about(self) -> About:
        names = " and ".join(repr(one.name) for one in self.calendars)
        what = f"the next run outside the days of {names:.200}"
        return "exclude", what, "exclude fewer days, or skip their runs"

    def _moved(self, occurrence: datetime) -> datetime | None:
        """Return ``occurrence``, moved to the next or previous day that is not excluded.

        Returns None if all days within :data:`MOST_MOVED` days are excluded.
        """
        # A step is in wall-clock time, so the time of day does not change.
        local, moved = occurrence.astimezone(self.zone), 0
        while self.excludes(occurrence):
            begin, end = (at.astimezone(self.zone) for at in self._excluded_span(occurrence))
            if self.on_excluded == "next":
                days = max(-((local - end) // DAY), 1)
            else:
                days = -max((local - begin) // DAY + 1, 1)
            moved += days
            if abs(moved) > MOST_MOVED:
                return None
            local += days * DAY
            occurrence = instant_of(local)
        return occurrence

    def _next_moved(self, schedule: BaseSchedule, after: datetime) -> datetime | None:
        """Return the first instant after ``after`` to which :meth:`_moved` moves an occurrence.

        The search begins before the excluded days around ``after``, because an occurrence before
        ``after`` may move to an instant after ``after``. The search continues until
        :meth:`_last_to_search`, because an occurrence after the best result so far may move to an
        instant before this result.
        """
        best, last, stuck = None, END, False
        found = next_run(schedule, self._excluded_span(after - DAY)[0] - DAY, self.zone)
        while found is not None and found <= last:
            spend(OF_RUN)
            moved = self._moved(found)
            stuck = stuck or (moved is None and found > after)
            if moved is not None and moved > after and (best is None or moved < best):
                best, last = moved, self._last_to_search(moved)
            found = next_run(schedule, found, self.zone)
        if best is None and stuck:
            raise TooManyStepsError(*self._about, LIMIT)  # not the end of the schedule
        return best

    def _last_to_search(self, best: datetime) -> datetime:
        """Return a bound: occurrences after the bound cannot move to a time before ``best``."""
        return best if self.on_excluded == "next" else self._excluded_span(best + DAY)[1] + DAY
