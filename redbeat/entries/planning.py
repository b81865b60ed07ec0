"""Which occurrence is due under a policy: pure functions of schedule, history and the time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from celery.schedules import BaseSchedule
from celery.schedules import schedule as interval

from redbeat.calendar.zones import EPOCH
from redbeat.timing import count_runs, first_run, latest_run, next_run

from .policy import Policy

__all__ = ("TICK", "Plan", "has_start")

TICK = timedelta.resolution

#: By how much the answers of a schedule with a running clock may differ for the same instant.
JITTER = timedelta(milliseconds=1)

#: An instant before all others, which no rule of whole seconds hits.
ODD = EPOCH - TICK


def has_start(schedule: BaseSchedule) -> bool:
    """Whether a schedule says itself when it begins; any other is due at once."""
    return first_run(schedule, ODD) != ODD


@dataclass(frozen=True, slots=True)
class Plan:
    """The occurrences of one entry, within the window of its policy.

    ``identity`` is what the jitter depends on besides the occurrence: the key of the entry. Nominal
    instants are those of the schedule; an occurrence is up when its jitter has passed too.
    """

    schedule: BaseSchedule
    zone: tzinfo | None
    policy: Policy
    identity: str

    def after(self, instant: datetime) -> datetime | None:
        """Return the first nominal instant after ``instant``, which is the last one or an anchor.

        An interval counts from there, or from ``start_time`` if that is later.
        """
        start, end = self.policy.start_time, self.policy.end_time
        if start is not None and instant < start:
            on_grid = isinstance(self.schedule, interval)
            found = start if on_grid else next_run(self.schedule, start - TICK, self.zone)
        else:
            found = next_run(self.schedule, instant, self.zone)
        return None if found is None or (end is not None and found > end) else found

    def begin(self, at: datetime) -> datetime | None:
        """Return the first occurrence of an entry that never ran: ``at`` once it may begin."""
        start, end = self.policy.start_time, self.policy.end_time
        if has_start(self.schedule) or (start is not None and start > at):
            return self.after(max(start or ODD, ODD) - TICK)
        return None if end is not None and at > end else at

    def asked(self, anchor: datetime, since: datetime, number: int) -> list[datetime]:
        """Return the next instants after ``since`` of a schedule that computes them itself.

        At most ``number``, and no more once it does not get any further. Raises what its
        ``remaining_estimate`` raises.
        """
        found = self.after(anchor)
        if found is not None and found <= since:
            found = self.after(since)
        instants: list[datetime] = []
        while found is not None and found > since + JITTER and len(instants) < number:
            instants.append(found)
            since, found = found, self.after(found)
        return instants

    def up_at(self, nominal: datetime) -> datetime:
        """Return when an occurrence is to be sent: later by its jitter, before the next one."""
        if not self.policy.jitter:
            return nominal
        following = next_run(self.schedule, nominal, self.zone)
        longest = timedelta(seconds=self.policy.jitter)
        if following is not None:
            longest = min(longest, following - nominal - TICK)
        text = f"{nominal.isoformat()} {self.identity}".encode("utf-8", "surrogateescape")
        digest = hashlib.sha1(text, usedforsecurity=False).digest()
        return nominal + longest * (int.from_bytes(digest[:6], "big") / 2**48)

    def latest_up(self, first: datetime, now: datetime) -> datetime | None:
        """Return the last occurrence from ``first`` on that is up, None when none is."""
        end = self.policy.end_time
        until = now if end is None else min(now, end)
        if first > until:
            return None
        latest = latest_run(self.schedule, first, until, self.zone) or first
        if self.up_at(latest) <= now:
            return latest
        # Jitter ends before the next occurrence, so that the one before is up for certain.
        if latest == first:
            return None
        return latest_run(self.schedule, first, latest - TICK, self.zone) or first

    def since(self, first: datetime, instant: datetime) -> datetime | None:
        """Return the first occurrence at or after ``instant``, on the grid that begins at first."""
        if instant <= first:
            return first
        before = latest_run(self.schedule, first, instant - TICK, self.zone) or first
        return self.after(before)

    def up_since(self, first: datetime, instant: datetime) -> datetime | None:
        """Return the first occurrence from ``first`` on that is up at or after ``instant``."""
        if instant <= first:
            return first
        # Jitter ends before the next occurrence, so that no earlier one can be.
        before = latest_run(self.schedule, first, instant - TICK, self.zone) or first
        return before if self.up_at(before) >= instant else self.after(before)

    def count(self, first: datetime, until: datetime, limit: int) -> int:
        """Return how many occurrences there are from ``first`` until before ``until``."""
        return count_runs(self.schedule, first, until, limit, self.zone)

    def walk(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """Yield the occurrences from ``first`` to ``last``."""
        found: datetime | None = first
        while found is not None and found <= last:
            yield found
            found = self.after(found)

    def last_few(self, first: datetime, last: datetime, number: int) -> datetime:
        """Return the first of the last ``number`` occurrences up to ``last``."""
        if type(self.schedule) is interval and not self.schedule.relative:
            every: timedelta = self.schedule.run_every
            return max(first, last - (number - 1) * every)
        following = next_run(self.schedule, last, self.zone)
        span = number * (timedelta(days=1) if following is None else following - last)
        while True:
            begin = self.since(first, last - min(span, last - first)) or last
            found = list(self.walk(begin, last))
            if len(found) >= number or begin == first:
                return found[-number:][0]
            span *= 2
