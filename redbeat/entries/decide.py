"""Decides which occurrence of an entry is due.

The functions in this module depend only on schedule, policy, history and time.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import BaseSchedule
from celery.schedules import schedule as interval
from redis.exceptions import RedisError

from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import EPOCH, UTC, as_utc
from redbeat.errors import described
from redbeat.schedules.next_run import (
    asks_itself,
    count_runs,
    finder_of,
    first_run,
    latest_run,
    next_run,
    on_clock_of,
)
from redbeat.schedules.rule import RuleSchedule

from .policy import DEFAULT, Policy

if TYPE_CHECKING:
    from .runs import Nominal

__all__ = (
    "DISABLED",
    "PARKED",
    "Decision",
    "Plan",
    "Run",
    "Trigger",
    "aware",
    "counts_from",
    "decide",
    "has_clock",
    "has_start",
    "score_of",
    "task_id_of",
)

#: Scores of entries that are never due: ``PARKED`` if finished or quarantined, else ``DISABLED``.
PARKED, DISABLED = -1.0, -2.0


#: If a schedule reads the clock, two estimates of one instant differ by at most this time.
CLOCK_NOISE = timedelta(milliseconds=1)

#: An instant before all occurrences. It is not a whole second, so no rule has it as occurrence.
BEFORE_EPOCH = EPOCH - TICK


def has_start(schedule: BaseSchedule) -> bool:
    """Return whether a schedule defines its first run; otherwise a new entry is due at once."""
    return first_run(schedule, BEFORE_EPOCH) != BEFORE_EPOCH


@dataclass(frozen=True, slots=True)
class Plan:
    """The occurrences of one entry, from the ``start_time`` to the ``end_time`` of its policy.

    The schedule defines the nominal instant of each occurrence. The occurrence is due at this
    instant plus its jitter. The jitter depends on the nominal instant and ``identity``, the name of
    the entry.
    """

    schedule: BaseSchedule
    zone: tzinfo | None
    policy: Policy
    identity: str

    def after(self, instant: datetime) -> datetime | None:
        """Return the first nominal instant after ``instant``, None if no occurrence follows.

        ``instant`` is an occurrence or an anchor. An interval is added to ``instant``; if
        ``start_time`` is later, ``start_time`` is the first occurrence of an interval.
        """
        start, end = self.policy.start_time, self.policy.end_time
        if start is not None and instant < start:
            on_grid = isinstance(self.schedule, interval)
            following = start if on_grid else next_run(self.schedule, start - TICK, self.zone)
        else:
            following = next_run(self.schedule, instant, self.zone)
        return None if following is None or (end is not None and following > end) else following

    def first_occurrence(self, at: datetime) -> datetime | None:
        """Return the first occurrence of an entry that never ran, None if there is none.

        The first occurrence is ``at``, unless the schedule or ``start_time`` begins later.
        """
        start, end = self.policy.start_time, self.policy.end_time
        if has_start(self.schedule) or (start is not None and start > at):
            return self.after(max(start or BEFORE_EPOCH, BEFORE_EPOCH) - TICK)
        return None if end is not None and at > end else at

    def estimates(self, anchor: datetime, since: datetime, number: int) -> list[datetime]:
        """Return up to ``number`` instants after ``since``, from ``remaining_estimate``.

        Only used for schedules with their own ``is_due``. The list ends when an estimate is not
        later than the previous estimate. Raises any error of ``remaining_estimate``.
        """
        instant = self.after(anchor)
        if instant is not None and instant <= since:
            instant = self.after(since)
        instants: list[datetime] = []
        while instant is not None and instant > since + CLOCK_NOISE and len(instants) < number:
            instants.append(instant)
            since, instant = instant, self.after(instant)
        return instants

    def with_jitter(self, nominal: datetime) -> datetime:
        """Return ``nominal`` plus its jitter, which never reaches the next nominal instant."""
        if not self.policy.jitter:
            return nominal
        following = next_run(self.schedule, nominal, self.zone)
        longest = timedelta(seconds=self.policy.jitter)
        if following is not None:
            longest = min(longest, following - nominal - TICK)
        text = f"{nominal.isoformat()} {self.identity}".encode("utf-8", "surrogateescape")
        digest = hashlib.sha1(text, usedforsecurity=False).digest()
        return nominal + longest * (int.from_bytes(digest[:6], "big") / 2**48)

    def latest_due(self, first: datetime, now: datetime) -> datetime | None:
        """Return the latest due occurrence, from ``first`` on, None if none is due."""
        end = self.policy.end_time
        until = now if end is None else min(now, end)
        if first > until:
            return None
        latest = latest_run(self.schedule, first, until, self.zone) or first
        if self.with_jitter(latest) <= now:
            return latest
        # Jitter never reaches the next occurrence, so the previous occurrence is certainly due.
        if latest == first:
            return None
        return latest_run(self.schedule, first, latest - TICK, self.zone) or first

    def first_since(self, first: datetime, instant: datetime) -> datetime | None:
        """Return the first occurrence at or after ``instant`` and not before ``first``, or None."""
        if instant <= first:
            return first
        before = latest_run(self.schedule, first, instant - TICK, self.zone) or first
        return self.after(before)

    def first_due_since(self, first: datetime, instant: datetime) -> datetime | None:
        """Return the first occurrence, from ``first`` on, that is due at or after ``instant``."""
        if instant <= first:
            return first
        # Jitter never reaches the next occurrence. So the result is either ``before`` or the
        # occurrence after ``before``.
        before = latest_run(self.schedule, first, instant - TICK, self.zone) or first
        return before if self.with_jitter(before) >= instant else self.after(before)

    def count(self, first: datetime, until: datetime, limit: int) -> int:
        """Return how many occurrences are from ``first`` to before ``until``, at most ``limit``."""
        return count_runs(self.schedule, first, until, limit, self.zone)

    def walk(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """Yield the occurrences from ``first`` to ``last``, both included."""
        instant: datetime | None = first
        while instant is not None and instant <= last:
            yield instant
            instant = self.after(instant)

    def first_of_last(self, first: datetime, last: datetime, number: int) -> datetime:
        """Return the earliest of the ``number`` occurrences that end with ``last``."""
        if type(self.schedule) is interval and not self.schedule.relative:
            every: timedelta = self.schedule.run_every
            return max(first, last - (number - 1) * every)
        following = next_run(self.schedule, last, self.zone)
        span = number * (timedelta(days=1) if following is None else following - last)
        while True:
            begin = self.first_since(first, last - min(span, last - first)) or last
            instants = list(self.walk(begin, last))
            if len(instants) >= number or begin == first:
                return instants[-number:][0]
            span *= 2


#: Missed occurrences are counted up to this number, because counting a crontab's runs is slow.
MISSED_LIMIT = 100

#: The last run may be this number of seconds in the future, because clocks differ a little. If it
#: is later, the clock of Redis was wrong when the run was recorded.
CLOCK_STEP = 1.0

#: Seconds until the next ``is_due()`` call of a user's schedule: minimum, maximum, and the default
#: after ``is_due()`` returned NaN.
SHORTEST_WAIT, LONGEST_WAIT, DEFAULT_WAIT = 0.05, 10 * 365 * 86400.0, 5.0


class Decision(NamedTuple):
    """The decision whether an entry runs at one instant, and when it runs next.

    Attributes:
        scheduled_at: the nominal instant of the occurrence to dispatch, None if none is due.
        next_at: when the entry is due again after this decision, None for never.
        missed: the number of earlier occurrences that never ran and never will. Counted up to
            :data:`MISSED_LIMIT`, except for intervals.
        anchor: the instant from which to compute the next run; None means ``scheduled_at``. If
            nothing is due, the anchor is the last occurrence given up, or the current time if the
            last run is in the future.
    """

    scheduled_at: datetime | None
    next_at: datetime | None
    missed: int = 0
    anchor: datetime | None = None

    @property
    def due(self) -> bool:
        """Whether an occurrence must be dispatched now."""
        return self.scheduled_at is not None


FINISHED = Decision(None, None)


def first_word(text: str) -> str:
    """Return the first word; only ASCII white space separates words, as in Lua."""
    return text.encode().split(maxsplit=1)[0].decode()


class Trigger(NamedTuple):
    """A triggered run: its id, and when it was requested."""

    id: str
    at: datetime

    @classmethod
    def first(cls, waiting: str) -> Trigger:
        """Return the first of the waiting runs that ``trigger.lua`` stored; raises ValueError."""
        name, _, at = first_word(waiting).rpartition(":")
        if not name:
            raise ValueError(f"{waiting!r:.60} is not a triggered run, which is '<id>:<seconds>'")
        return cls(name, datetime.fromtimestamp(float(at), UTC))


@dataclass(slots=True)
class Run:
    """The run of a claimed entry: the input for its decision, and the result of the publish.

    Attributes:
        now: the time of Redis.
        due: the time at which the entry became due: its score.
        decided_at: when the occurrence was first claimed; the decision is made for this instant.
        decision: the decision, None before it was made.
        successor: the entry as it is after the run.
        sent: whether the message was sent.
        task_id: the task id of the message.
        nominal: the nominal instant in the message.
        own_id: whether RedBeat computed ``task_id`` from the nominal instant.
        at_most_once: whether the run is recorded before it is sent.
        trigger: the triggered run, None for a scheduled run.
        options: the arguments of ``maybe_due`` if a program's own tick called it, else None.
        error: why the message was not sent.
    """

    now: datetime
    due: datetime
    decided_at: datetime
    decision: Decision | None = None
    successor: Any = None
    sent: bool = False
    task_id: str = ""
    nominal: Nominal | None = None
    own_id: bool = False
    at_most_once: bool = False
    trigger: Trigger | None = None
    options: dict[str, Any] | None = None
    error: Exception | None = None

    @property
    def instant(self) -> datetime:
        """The nominal instant of the run; for a triggered run, when it was requested."""
        if self.trigger is not None:
            return self.trigger.at
        return (self.decision and self.decision.scheduled_at) or self.due


def decide(
    schedule: BaseSchedule,
    last_run_at: datetime | None,
    anchor: datetime | None,
    now: datetime,
    due: datetime,
    zone: tzinfo | None = None,
    policy: Policy = DEFAULT,
    runs: int = 0,
    identity: str = "",
) -> Decision:
    """Return the decision for an entry. By default, missed runs are coalesced into the latest.

    Arguments:
        schedule: the schedule of the entry.
        last_run_at: the last run, None for never.
        anchor: the instant from which to compute the next run: the nominal instant of the last run,
            or ``last_run_at`` if an application wrote it.
        now: the instant for which to decide.
        due: the time at which the entry became due; the nominal instant of a first run.
        zone: the time zone in which to read a crontab.
        policy: the policy of the entry.
        runs: the run count.
        identity: the name of the entry, on which the jitter depends.
    """
    if policy is not DEFAULT:
        plan = Plan(schedule, zone, policy, identity)
        return within_max_runs(
            decide_with_policy(plan, last_run_at, anchor, now, min(due, now)), policy, runs
        )
    find = finder_of(schedule)
    if find is None:
        return decide_by_is_due(schedule, last_run_at, now, due)
    if last_run_at is None or anchor is None:
        return decide_first(schedule, now, min(due, now), zone)
    upcoming = find(schedule, anchor, zone)
    if upcoming is None:
        return FINISHED
    if upcoming > now:
        return Decision(None, upcoming)
    return coalesce(schedule, upcoming, find(schedule, upcoming, zone), now, zone)


def within_max_runs(decision: Decision, policy: Policy, runs: int) -> Decision:
    """Return the decision, limited to ``max_runs`` runs; ``runs`` is the current run count."""
    if policy.max_runs is None:
        return decision
    if runs >= policy.max_runs:
        return FINISHED
    last = decision.due and runs + 1 >= policy.max_runs
    return decision._replace(next_at=None) if last else decision


def decide_with_policy(
    plan: Plan,
    last_run_at: datetime | None,
    anchor: datetime | None,
    now: datetime,
    due: datetime,
) -> Decision:
    """Return the decision for an entry with a policy, without applying ``max_runs``."""
    start, end = plan.policy.start_time, plan.policy.end_time
    if asks_itself(plan.schedule):
        decision = decide_by_is_due(plan.schedule, last_run_at, now, due)
        if start is not None and now < start:
            return Decision(None, start)
        if end is not None and now > end:
            return FINISHED
        return decision
    never_ran = last_run_at is None or anchor is None
    first = plan.first_occurrence(due) if anchor is None or never_ran else plan.after(anchor)
    if never_ran and first == due:  # the first run has the nominal instant ``due``, however late
        last = due if plan.policy.coalesce == "all" else plan.latest_due(due, now) or due
        missed = plan.count(due, last, MISSED_LIMIT)
        return Decision(due, next_due(plan, last), missed, last if missed else None)
    if first is None:
        return FINISHED
    latest = plan.latest_due(first, now)
    if latest is None:
        return Decision(None, plan.with_jitter(first))
    return choose_occurrence(plan, first, latest, now)


def choose_occurrence(plan: Plan, first: datetime, latest: datetime, now: datetime) -> Decision:
    """Return the decision when all occurrences from ``first`` to ``latest`` are due."""
    policy = plan.policy
    oldest = oldest_to_run(plan, first, latest, now)
    if oldest is None:
        missed = plan.count(first, latest, MISSED_LIMIT) + 1
        return Decision(None, next_due(plan, latest), missed, latest)
    if policy.coalesce == "all":
        missed = plan.count(first, oldest, MISSED_LIMIT)
        return Decision(oldest, next_due(plan, oldest), missed)
    missed = plan.count(first, latest, MISSED_LIMIT)
    chosen = oldest if policy.coalesce == "earliest" else latest
    return Decision(chosen, next_due(plan, latest), missed, None if chosen == latest else latest)


def oldest_to_run(plan: Plan, first: datetime, latest: datetime, now: datetime) -> datetime | None:
    """Return the oldest due occurrence that the policy allows to run, None if there is none.

    ``misfire_grace_time`` and ``catch_up_limit`` exclude older occurrences.
    """
    grace, limit = plan.policy.misfire_grace_time, plan.policy.catch_up_limit
    oldest: datetime | None = first
    if grace is not None:
        oldest = plan.first_due_since(first, now - timedelta(seconds=grace))
    if oldest is None or oldest > latest:
        return None
    return plan.first_of_last(oldest, latest, limit) if limit is not None else oldest


def next_due(plan: Plan, nominal: datetime) -> datetime | None:
    """Return when the occurrence after ``nominal`` is due, with its jitter; None if none."""
    following = plan.after(nominal)
    return None if following is None else plan.with_jitter(following)


def decide_first(
    schedule: BaseSchedule, now: datetime, due: datetime, zone: tzinfo | None
) -> Decision:
    """Return the decision for an entry that never ran: due at once, or when its rule starts."""
    if has_start(schedule):
        first = first_run(schedule, EPOCH, zone)
        if first is None or first > now:
            return Decision(None, first)
        return coalesce(schedule, first, next_run(schedule, first, zone), now, zone)
    # The first run has the nominal instant ``due``, however late the run is.
    rest = coalesce(schedule, due, next_run(schedule, due, zone), now, zone)
    # Occurrences missed since ``due`` are given up. The next run is computed from the last of them.
    return Decision(due, rest.next_at, rest.missed, rest.scheduled_at if rest.missed else None)


def coalesce(
    schedule: BaseSchedule,
    first: datetime,
    following: datetime | None,
    now: datetime,
    zone: tzinfo | None,
) -> Decision:
    """Return the decision to run the latest occurrence from ``first`` to ``now``.

    ``following`` is the occurrence after ``first``.
    """
    if following is None or following > now:
        return Decision(first, following)
    latest = latest_run(schedule, first, now, zone) or following
    missed = count_runs(schedule, first, latest, MISSED_LIMIT, zone)
    return Decision(latest, next_run(schedule, latest, zone), missed)


def decide_by_is_due(
    schedule: BaseSchedule, last_run_at: datetime | None, now: datetime, due: datetime
) -> Decision:
    """Return the decision for a schedule with its own ``is_due``.

    ``now`` is the current time, to which the seconds that ``is_due`` returns are added. Raises any
    error of ``is_due``, but converts connection errors to a ``RuntimeError``.
    """
    ahead = clock_offset(schedule, now)
    last = aware(last_run_at) + ahead if last_run_at else EPOCH
    try:
        is_due, seconds = schedule.is_due(on_clock_of(schedule, last))
    except (OSError, RedisError) as error:
        # User code raised this connection error. RedBeat's Redis and broker may work, so only this
        # entry must fail.
        raise RuntimeError(f"is_due() of its schedule raised {described(error)}") from error
    if seconds is None:
        return Decision(due if is_due else None, None)
    # Add the seconds to the time when the call ended; otherwise the next call would be too early.
    called_at = now + (clock_offset(schedule, now) - ahead)
    return Decision(due if is_due else None, called_at + wait_of(float(seconds)))


def clock_offset(schedule: BaseSchedule, now: datetime) -> timedelta:
    """Return how far the clock of a schedule is ahead of ``now``, 0 without a clock.

    A schedule compares the last run with its own clock. Without a correction, a schedule whose
    clock is ahead of Redis would be due again just after a run.
    """
    try:
        return aware(schedule.now()) - now
    except Exception:
        return timedelta(0)  # a user's class may lack now()


def wait_of(seconds: float) -> timedelta:
    """Return the time until the next ``is_due()`` call, after a call that returned ``seconds``."""
    if math.isnan(seconds):
        seconds = DEFAULT_WAIT
    # A user's class may return 0 seconds every time, which would keep the beat busy.
    return timedelta(seconds=min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT))


def aware(instant: datetime) -> datetime:
    """Return ``instant`` in UTC; a naive datetime is taken as UTC."""
    if instant.tzinfo is UTC:
        return instant
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else as_utc(instant)


def same_instant(one: datetime | None, other: datetime | None) -> bool:
    """Return whether two times are the same instant, or both None.

    The times are compared in UTC, because in local time the repeated hour of a DST change is
    ambiguous.
    """
    if one is other or one is None or other is None:
        return one is other
    return aware(one) == aware(other)


@lru_cache(maxsize=64)
def namespace_of(prefix: str) -> bytes:
    """Return the UUID namespace of the schedule under ``prefix``."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"redbeat:{prefix}").bytes


#: Maps a hexadecimal digit to the digit with the variant bits of a UUID (RFC 9562) set.
VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def task_id_of(prefix: str, name: str, instant: str, identity: str = "") -> str:
    """Return the task id of an occurrence; the same arguments always return the same id.

    ``instant`` is the nominal instant, ISO 8601 in UTC. The id is the UUID version 5 (RFC 9562) of
    "<instant> <name>" in the namespace of the prefix, or of "<instant>/<identity> <name>" if the
    entry has an identity. This code is faster than ``uuid5()``.
    """
    if identity:
        instant = f"{instant}/{identity}"
    text = namespace_of(prefix) + f"{instant} {name}".encode("utf-8", "surrogateescape")
    digest = sha1(text, usedforsecurity=False).hexdigest()
    variant = VARIANTS[digest[16]]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def score_of(next_at: datetime | None) -> float:
    """Return the score of an entry that is due at ``next_at``, :data:`PARKED` for None."""
    return PARKED if next_at is None else next_at.timestamp()


def has_clock(schedule: Any) -> bool:
    """Return whether a schedule has its own clock."""
    return isinstance(schedule, BaseSchedule) and (
        getattr(schedule, "nowfun", None) is not None or type(schedule).now is not BaseSchedule.now
    )


def counts_from(schedule: Any, now: datetime) -> datetime:
    """Return the instant from which to compute the first run of an entry created at ``now``."""
    return schedule.counts_from(now) if isinstance(schedule, RuleSchedule) else now
