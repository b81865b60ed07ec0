"""Which occurrence of an entry is due: pure functions of schedule, policy, history and the time."""

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
    "TICK",
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

#: Scores of entries that are never due: finished or quarantined; disabled.
PARKED, DISABLED = -1.0, -2.0

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


#: Missed occurrences are counted up to here: walking through a crontab takes its time.
MISSED_LIMIT = 100

#: Seconds by which a history may lie in the future because clocks differ a little. By more, the
#: clock of Redis was wrong.
CLOCK_STEP = 1.0

#: Seconds after which a schedule that asks itself is asked again: at least, at most, and where it
#: says no number.
SHORTEST_WAIT, LONGEST_WAIT, UNKNOWN_WAIT = 0.05, 10 * 365 * 86400.0, 5.0


class Decision(NamedTuple):
    """What to do with an entry at one instant.

    ``scheduled_at`` is the nominal instant of the occurrence to dispatch, None when nothing is due.
    ``next_at`` is the first instant after that at which something is due, None = never. ``missed``
    is how many occurrences before this one never ran and never will, but for intervals counted up
    to :data:`MISSED_LIMIT`. ``anchor`` is the instant from which to count on, None where that is
    ``scheduled_at``; without a run it is the last of those that are given up, or the present where
    the history lies in the future.
    """

    scheduled_at: datetime | None
    next_at: datetime | None
    missed: int = 0
    anchor: datetime | None = None

    @property
    def due(self) -> bool:
        """Whether there is an occurrence to dispatch now."""
        return self.scheduled_at is not None


FINISHED = Decision(None, None)


def first_word(text: str) -> str:
    """Return what stands before the first blank; only in ASCII are there blanks, as in Lua."""
    return text.encode().split(maxsplit=1)[0].decode()


class Trigger(NamedTuple):
    """A run beside the schedule: its id, and when it was asked for."""

    id: str
    at: datetime

    @classmethod
    def first(cls, waiting: str) -> Trigger:
        """Return the first of those that wait, as in ``trigger.lua``; raises ValueError."""
        name, _, at = first_word(waiting).rpartition(":")
        if not name:
            raise ValueError("a trigger needs an id")
        return cls(name, datetime.fromtimestamp(float(at), UTC))


@dataclass(slots=True)
class Run:
    """One turn of an entry while a beat holds a claim on it.

    ``now`` is the time of Redis, ``due`` when the entry was put up for its run, ``decided_at`` when
    the occurrence was first claimed: what is due is decided at that time. What became of it:
    ``sent`` the message is out under ``task_id``, ``error`` why it is not, ``successor`` the entry
    after the run. ``nominal`` is the instant the message tells, ``own_id`` that the id is the one
    which anybody can compute from it. ``at_most_once`` tells that it is recorded before it is sent.
    ``trigger`` is what it is for when it is beside the schedule. ``options`` are those that a
    program's own tick called ``maybe_due`` with, which must not be called once more.
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
        """The nominal instant of the run; when it was asked for, if it was triggered."""
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
    """Return the verdict on an entry.

    ``last_run_at`` is when it ran last, None = never. ``anchor`` is the instant from which the next
    run counts: the nominal instant of the last run, or what an application wrote as its last run.
    ``due`` is when the entry was put up for its run; it names the occurrence of an entry that has
    no history. ``runs`` is how often it ran, ``identity`` its key. Occurrences that were missed
    coalesce into the latest one, unless the policy has it otherwise.
    """
    if policy is not DEFAULT:
        plan = Plan(schedule, zone, policy, identity)
        return limited(decide_by(plan, last_run_at, anchor, now, min(due, now)), policy, runs)
    find = finder_of(schedule)
    if find is None:
        return ask(schedule, last_run_at, now, due)
    if last_run_at is None or anchor is None:
        return decide_first(schedule, now, min(due, now), zone)
    upcoming = find(schedule, anchor, zone)
    if upcoming is None:
        return FINISHED
    if upcoming > now:
        return Decision(None, upcoming)
    return coalesce(schedule, upcoming, find(schedule, upcoming, zone), now, zone)


def limited(decision: Decision, policy: Policy, runs: int) -> Decision:
    """Return a verdict in which nothing happens after ``max_runs``."""
    if policy.max_runs is None:
        return decision
    if runs >= policy.max_runs:
        return FINISHED
    last = decision.due and runs + 1 >= policy.max_runs
    return decision._replace(next_at=None) if last else decision


def decide_by(
    plan: Plan,
    last_run_at: datetime | None,
    anchor: datetime | None,
    now: datetime,
    due: datetime,
) -> Decision:
    """Return the verdict on an entry with a policy of its own."""
    start, end = plan.policy.start_time, plan.policy.end_time
    if asks_itself(plan.schedule):
        decision = ask(plan.schedule, last_run_at, now, due)
        if start is not None and now < start:
            return Decision(None, start)
        if end is not None and now > end:
            return FINISHED
        return decision
    never_ran = last_run_at is None or anchor is None
    first = plan.begin(due) if anchor is None or never_ran else plan.after(anchor)
    if never_ran and first == due:  # as in decide_first: the run of when it was put up
        last = due if plan.policy.coalesce == "all" else plan.latest_up(due, now) or due
        missed = plan.count(due, last, MISSED_LIMIT)
        return Decision(due, next_up(plan, last), missed, last if missed else None)
    if first is None:
        return FINISHED
    latest = plan.latest_up(first, now)
    if latest is None:
        return Decision(None, plan.up_at(first))
    return choose(plan, first, latest, now)


def choose(plan: Plan, first: datetime, latest: datetime, now: datetime) -> Decision:
    """Return the verdict when the occurrences from ``first`` to ``latest`` are up."""
    policy = plan.policy
    oldest = oldest_to_run(plan, first, latest, now)
    if oldest is None:
        missed = plan.count(first, latest, MISSED_LIMIT) + 1
        return Decision(None, next_up(plan, latest), missed, latest)
    if policy.coalesce == "all":
        missed = plan.count(first, oldest, MISSED_LIMIT)
        return Decision(oldest, next_up(plan, oldest), missed)
    missed = plan.count(first, latest, MISSED_LIMIT)
    chosen = oldest if policy.coalesce == "earliest" else latest
    return Decision(chosen, next_up(plan, latest), missed, None if chosen == latest else latest)


def oldest_to_run(plan: Plan, first: datetime, latest: datetime, now: datetime) -> datetime | None:
    """Return the first occurrence that is neither too old nor one too many, None for none."""
    grace, limit = plan.policy.misfire_grace_time, plan.policy.catch_up_limit
    oldest: datetime | None = first
    if grace is not None:
        oldest = plan.up_since(first, now - timedelta(seconds=grace))
    if oldest is None or oldest > latest:
        return None
    return plan.last_few(oldest, latest, limit) if limit is not None else oldest


def next_up(plan: Plan, nominal: datetime) -> datetime | None:
    """Return when the occurrence after ``nominal`` is up."""
    following = plan.after(nominal)
    return None if following is None else plan.up_at(following)


def decide_first(
    schedule: BaseSchedule, now: datetime, due: datetime, zone: tzinfo | None
) -> Decision:
    """Return the verdict on an entry that never ran: due at once, a rule from its start."""
    if has_start(schedule):
        first = first_run(schedule, EPOCH, zone)
        if first is None or first > now:
            return Decision(None, first)
        return coalesce(schedule, first, next_run(schedule, first, zone), now, zone)
    # It is the run of the instant at which it was put up, however late.
    rest = coalesce(schedule, due, next_run(schedule, due, zone), now, zone)
    # The slots since then are over: the next run counts from the last of them.
    return Decision(due, rest.next_at, rest.missed, rest.scheduled_at if rest.missed else None)


def coalesce(
    schedule: BaseSchedule,
    first: datetime,
    following: datetime | None,
    now: datetime,
    zone: tzinfo | None,
) -> Decision:
    """Return the latest of the occurrences from ``first`` to ``now``, and the one after it.

    ``following`` is the occurrence after the first.
    """
    if following is None or following > now:
        return Decision(first, following)
    latest = latest_run(schedule, first, now, zone) or following
    missed = count_runs(schedule, first, latest, MISSED_LIMIT, zone)
    return Decision(latest, next_run(schedule, latest, zone), missed)


def ask(
    schedule: BaseSchedule, last_run_at: datetime | None, now: datetime, due: datetime
) -> Decision:
    """Return the verdict of a schedule that only its own ``is_due`` knows.

    Raises what ``is_due`` raises; ``RuntimeError`` for what may be taken for an error of our
    own connections. ``now`` is the present; the seconds count from there.
    """
    ahead = ahead_of(schedule, now)
    last = aware(last_run_at) + ahead if last_run_at else EPOCH
    try:
        is_due, seconds = schedule.is_due(on_clock_of(schedule, last))
    except (OSError, RedisError) as error:
        # From the user's code: it says nothing of our Redis or broker, and costs this entry only.
        raise RuntimeError(f"is_due() of its schedule raised {described(error)}") from error
    if seconds is None:
        return Decision(due if is_due else None, None)
    # Without the time that it took, the next look would come a little too early, for nothing.
    asked_at = now + (ahead_of(schedule, now) - ahead)
    return Decision(due if is_due else None, asked_at + wait_of(float(seconds)))


def ahead_of(schedule: BaseSchedule, now: datetime) -> timedelta:
    """Return how far the clock that a schedule reads is ahead of ``now``.

    A schedule compares the last run with its own clock. One with another clock, or on a host whose
    clock is ahead of Redis, would find the run that was just made due again.
    """
    try:
        return aware(schedule.now()) - now
    except Exception:
        return timedelta(0)  # a class of the user's own need not have a clock


def wait_of(seconds: float) -> timedelta:
    """Return how long to leave a schedule alone that asks for ``seconds``."""
    if math.isnan(seconds):
        seconds = UNKNOWN_WAIT
    # Such a class may say "in 0 s" for ever, also of what is due.
    return timedelta(seconds=min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT))


def aware(instant: datetime) -> datetime:
    """Return ``instant`` in UTC; a naive one is UTC."""
    if instant.tzinfo is UTC:
        return instant
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else as_utc(instant)


def same_instant(one: datetime | None, other: datetime | None) -> bool:
    """Whether two times are one instant, or both None; both hours that a clock repeats differ."""
    if one is other or one is None or other is None:
        return one is other
    return aware(one) == aware(other)


@lru_cache(maxsize=64)
def namespace_of(prefix: str) -> bytes:
    """Return the UUID namespace of the schedule under ``prefix``."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"redbeat:{prefix}").bytes


#: A digit of a digest, and the one with which a UUID of this kind says what it is.
VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def task_id_of(prefix: str, name: str, instant: str, identity: str = "") -> str:
    """Return the task id of an occurrence: the same one however often it is computed.

    ``instant`` is its nominal instant, ISO 8601 in UTC. The id is the UUID version 5 (RFC 9562) of
    "<instant> <name>" in the namespace of the prefix, or "<instant>/<identity> <name>" where the
    entry has an identity; made by hand, since it is made for each run.
    """
    if identity:
        instant = f"{instant}/{identity}"
    text = namespace_of(prefix) + f"{instant} {name}".encode("utf-8", "surrogateescape")
    digest = sha1(text, usedforsecurity=False).hexdigest()
    variant = VARIANTS[digest[16]]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def score_of(next_at: datetime | None) -> float:
    """Return the score of an entry that is due at ``next_at``, None = never."""
    return PARKED if next_at is None else next_at.timestamp()


def has_clock(schedule: Any) -> bool:
    """Whether a schedule tells the time itself."""
    return isinstance(schedule, BaseSchedule) and (
        getattr(schedule, "nowfun", None) is not None or type(schedule).now is not BaseSchedule.now
    )


def counts_from(schedule: Any, now: datetime) -> datetime:
    """Return the instant from which an entry counts that is made ``now``."""
    return schedule.counts_from(now) if isinstance(schedule, RuleSchedule) else now
