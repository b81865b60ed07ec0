"""Calendars: named sets of days on which entries don't run. Nothing here asks Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo
from functools import cached_property, partial
from typing import Any, Final, Literal

from celery.schedules import BaseSchedule

from redbeat.calendar.steps import LIMIT, About, Steps, bounded, spend
from redbeat.calendar.walltime import DAY, END, TICK, instant_of
from redbeat.calendar.zones import UTC, time_from, zone_key, zone_named
from redbeat.errors import DecodeError, InvalidEntryError, TooManyStepsError, described
from redbeat.printing import encodable

from . import ical
from .next_run import find_latest, latest_run, next_run
from .rule import RuleSchedule, rrule, rruleset

#: Whether an occurrence on an excluded day is skipped, or moved to the next or previous day that
#: isn't excluded. A moved occurrence keeps its wall-clock time.
OnExcluded = Literal["skip", "next", "previous"]

#: The most days and rules, together, in one calendar.
MAX_DAYS: Final = 4000

#: The most days that an occurrence can move.
MOST_MOVED: Final = 1100

#: By how much the clocks change at most; around a change, runs of a day are moved out of order.
CHANGE: Final = timedelta(hours=2)

#: Steps: to look up a day in the calendars, and to move a run.
OF_DAY, OF_RUN = 6, 6

#: Steps: to read a rule, to see that it can't contain a day, and to find out whether it does.
READ, PASSED, SEARCHED = 30, 6, 60

READING: Final = ("rules", "the rules of a calendar", "give fewer rules and dates")

#: A day, or the first and last day of a span. A day is a ``date`` or a string in ISO 8601.
Days = date | str | Sequence["date | str"]


@dataclass(frozen=True)
class Calendar:
    """A named set of days on which the entries with this calendar don't run.

    Arguments:
        name: the calendar's name, without commas.
        days: excluded days, each a ``date`` or a string in ISO 8601, and excluded spans, each a
            pair of its first and last day. A time with a time zone means its day in ``zone``; the
            second time of a pair is exclusive.
        rules: rules whose occurrences are excluded days, each RFC 5545 text such as
            ``"FREQ=WEEKLY;BYDAY=SA,SU"``, an ``rrule`` or an ``rruleset``.
        zone: the IANA name of the time zone in which the days begin and end; None for each entry's
            own time zone.

    Raises :exc:`InvalidEntryError`, which names the invalid argument.
    """

    name: str
    days: Sequence[Days] = ()
    rules: Sequence[str | rrule | rruleset] = ()
    zone: str | None = None
    _spans: list[tuple[date, date]] = field(init=False, repr=False, compare=False)
    _schedules: list[rrule | rruleset] = field(init=False, repr=False, compare=False)
    #: A cache: day -> whether it's excluded.
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
        if day not in self._known:
            if len(self._known) > MAX_DAYS:
                self._known.clear()
            spend(1 + len(self._spans) // 16)  # a comparison takes much less than a step
            in_spans = any(first <= day <= last for first, last in self._spans)
            in_rules = (_occurs(schedule, day) for schedule in self._schedules)
            self._known[day] = in_spans or any(in_rules)
        return self._known[day]

    def fields(self) -> dict[str, Any]:
        """Return what Redis stores of the calendar, as a dict of JSON values."""
        return {"days": list(self.days), "rules": list(self.rules), "zone": self.zone}

    def to_json(self) -> str:
        return json.dumps(self.fields())

    @classmethod
    def from_ical(
        cls, name: str, text: str | bytes, zone: str | None = None, now: date | None = None
    ) -> Calendar:
        """Return a calendar that excludes the days of the events in an iCalendar file.

        ``text`` is the file's content. An event that touches a part of a day excludes the whole
        day. Times are converted to ``zone`` before the days are cut; without ``zone``, the days are
        those of each event's own time zone. Cancelled events are left out. What can't be read, such
        as a to-do or an ``EXRULE``, is an error. Events before last year are ignored, and so are
        events ten or more years after this one; ``now`` (default: today) says which year it is.

        Raises :exc:`InvalidEntryError` if the text can't be read, or if the extra ``calendars``
        isn't installed.
        """
        key = cls(name, zone=zone).zone
        of_calendar = None if key is None else zone_named(key)
        events = ical.events_in(text, now or datetime.now(UTC).date())
        days = sorted({_span(event, of_calendar) for event in events})
        return cls(name, days, zone=zone)

    @classmethod
    def from_fields(cls, name: str, fields: Mapping[str, Any]) -> Calendar:
        """Return the calendar with stored fields; raise :exc:`DecodeError` if one is invalid."""
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
    """Return the day of a time in ``zone``; without ``zone``, the day as it is written."""
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
        return ical.from_ical(text)
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
    """Finds the occurrences of an entry with calendars, whose time zone is ``zone``.

    ``on_excluded`` is one of :data:`OnExcluded`.
    """

    calendars: Sequence[Calendar]
    zone: tzinfo
    on_excluded: str = "skip"
    #: The last result of :meth:`_excluded_span`.
    _span: tuple[datetime, datetime] = field(default=(END, END), init=False, repr=False)

    @bounded
    def next_run(self, schedule: BaseSchedule, after: datetime) -> datetime | None:
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
        """Count the occurrences in ``(first, until]``, up to ``limit``."""
        count, found = 0, self.next_run(schedule, first)
        while found is not None and found <= until and count < limit:
            count, found = count + 1, self.next_run(schedule, found)
        return count

    def excludes(self, instant: datetime) -> bool:
        return self._excluded_day(instant) is not None

    def _excluded_day(self, instant: datetime) -> tuple[date, tzinfo] | None:
        """Return the excluded day of ``instant`` and the time zone of the day, or None."""
        spend(OF_DAY, self._about)
        for calendar in self.calendars:
            zone = self.zone if calendar.zone is None else zone_named(calendar.zone)
            day = instant.astimezone(zone).date()
            if calendar.excludes(day):
                return day, zone
        return None

    def _excluded_span(self, instant: datetime) -> tuple[datetime, datetime]:
        """Return the begin and end of the consecutive excluded days around ``instant``.

        Both are ``instant`` if its day isn't excluded. The span begins at most :data:`MOST_MOVED`
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
        """Return ``occurrence``, moved to the next or previous day that isn't excluded.

        Returns None if there's no such day within :data:`MOST_MOVED` days.
        """
        # Steps are in wall-clock time, so the time of day stays the same.
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

        An occurrence before ``after`` may move to an instant after it, so the search begins before
        the excluded days around ``after``. A later occurrence may move to before the best result so
        far, so the search goes on until :meth:`_last_to_search`.
        """
        best, last, stuck = None, END, False
        found = next_run(schedule, self._excluded_span(after - DAY)[0] - DAY, self.zone)
        while found is not None and found <= last:
            spend(OF_RUN)
            moved = self._moved(found)
            stuck = stuck or (moved is None and found > after)
            if moved is not None and moved > after and (best is None or moved < best):
                best, last = moved, self._last_to_search(moved)
            found = next_run(schedule, self._pass_over(found, moved, after, best), self.zone)
        if best is None and stuck:
            raise TooManyStepsError(*self._about, LIMIT)  # not the end of the schedule
        return best

    def _pass_over(
        self, found: datetime, moved: datetime | None, after: datetime, best: datetime | None
    ) -> datetime:
        """Return the instant after ``found`` until which no occurrence moves closer to ``after``.

        The occurrences of a day move by the same number of days, and so stay in order, except near
        a change of the clocks.
        """
        if moved is None or after < moved <= (best or END) + CHANGE:
            return found
        end = self._end_of_day(found) - TICK
        return end if moved > after else max(found, min(end, found + (after - moved - CHANGE)))

    def _end_of_day(self, instant: datetime) -> datetime:
        """Return the first midnight after ``instant`` in any zone of the calendars or the entry."""
        zones = {self.zone, *(zone_named(one.zone) for one in self.calendars if one.zone)}
        return min(_midnight(instant.astimezone(zone).date() + DAY, zone) for zone in zones)

    def _last_to_search(self, best: datetime) -> datetime:
        """No occurrence after the returned instant can move to before ``best``."""
        return best if self.on_excluded == "next" else self._excluded_span(best + DAY)[1] + DAY
