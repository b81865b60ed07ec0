"""Which occurrence of an entry is due: pure functions of schedule, history and the time."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import BaseSchedule
from redis.exceptions import RedisError

from redbeat.calendar.zones import EPOCH, UTC, as_utc
from redbeat.errors import described
from redbeat.timing import (
    asks_itself,
    count_runs,
    finder_of,
    first_run,
    latest_run,
    next_run,
    on_clock_of,
)

from .planning import Plan, has_start
from .policy import DEFAULT, Policy

if TYPE_CHECKING:
    from .nominal import Nominal

__all__ = ("Run", "Trigger", "Verdict", "aware", "decide", "task_id_of")


#: Missed occurrences are counted up to here: walking through a crontab takes its time.
MISSED_LIMIT = 100

#: Seconds by which a history may lie in the future because clocks differ a little. By more, the
#: clock of Redis was wrong.
CLOCK_STEP = 1.0

#: Seconds after which a schedule that asks itself is asked again: at least, at most, and where it
#: says no number.
SHORTEST_WAIT, LONGEST_WAIT, UNKNOWN_WAIT = 0.05, 10 * 365 * 86400.0, 5.0


class Verdict(NamedTuple):
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


FINISHED = Verdict(None, None)


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
    verdict: Verdict | None = None
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
        return (self.verdict and self.verdict.scheduled_at) or self.due


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
) -> Verdict:
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
        return Verdict(None, upcoming)
    return coalesce(schedule, upcoming, find(schedule, upcoming, zone), now, zone)


def limited(verdict: Verdict, policy: Policy, runs: int) -> Verdict:
    """Return a verdict in which nothing happens after ``max_runs``."""
    if policy.max_runs is None:
        return verdict
    if runs >= policy.max_runs:
        return FINISHED
    last = verdict.due and runs + 1 >= policy.max_runs
    return verdict._replace(next_at=None) if last else verdict


def decide_by(
    plan: Plan,
    last_run_at: datetime | None,
    anchor: datetime | None,
    now: datetime,
    due: datetime,
) -> Verdict:
    """Return the verdict on an entry with a policy of its own."""
    start, end = plan.policy.start_time, plan.policy.end_time
    if asks_itself(plan.schedule):
        verdict = ask(plan.schedule, last_run_at, now, due)
        if start is not None and now < start:
            return Verdict(None, start)
        if end is not None and now > end:
            return FINISHED
        return verdict
    never_ran = last_run_at is None or anchor is None
    first = plan.begin(due) if anchor is None or never_ran else plan.after(anchor)
    if never_ran and first == due:  # as in decide_first: the run of when it was put up
        last = due if plan.policy.coalesce == "all" else plan.latest_up(due, now) or due
        missed = plan.count(due, last, MISSED_LIMIT)
        return Verdict(due, next_up(plan, last), missed, last if missed else None)
    if first is None:
        return FINISHED
    latest = plan.latest_up(first, now)
    if latest is None:
        return Verdict(None, plan.up_at(first))
    return choose(plan, first, latest, now)


def choose(plan: Plan, first: datetime, latest: datetime, now: datetime) -> Verdict:
    """Return the verdict when the occurrences from ``first`` to ``latest`` are up."""
    policy = plan.policy
    oldest = oldest_to_run(plan, first, latest, now)
    if oldest is None:
        missed = plan.count(first, latest, MISSED_LIMIT) + 1
        return Verdict(None, next_up(plan, latest), missed, latest)
    if policy.coalesce == "all":
        missed = plan.count(first, oldest, MISSED_LIMIT)
        return Verdict(oldest, next_up(plan, oldest), missed)
    missed = plan.count(first, latest, MISSED_LIMIT)
    chosen = oldest if policy.coalesce == "earliest" else latest
    return Verdict(chosen, next_up(plan, latest), missed, None if chosen == latest else latest)


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
) -> Verdict:
    """Return the verdict on an entry that never ran: due at once, a rule from its start."""
    if has_start(schedule):
        first = first_run(schedule, EPOCH, zone)
        if first is None or first > now:
            return Verdict(None, first)
        return coalesce(schedule, first, next_run(schedule, first, zone), now, zone)
    # It is the run of the instant at which it was put up, however late.
    rest = coalesce(schedule, due, next_run(schedule, due, zone), now, zone)
    # The slots since then are over: the next run counts from the last of them.
    return Verdict(due, rest.next_at, rest.missed, rest.scheduled_at if rest.missed else None)


def coalesce(
    schedule: BaseSchedule,
    first: datetime,
    following: datetime | None,
    now: datetime,
    zone: tzinfo | None,
) -> Verdict:
    """Return the latest of the occurrences from ``first`` to ``now``, and the one after it.

    ``following`` is the occurrence after the first.
    """
    if following is None or following > now:
        return Verdict(first, following)
    latest = latest_run(schedule, first, now, zone) or following
    missed = count_runs(schedule, first, latest, MISSED_LIMIT, zone)
    return Verdict(latest, next_run(schedule, latest, zone), missed)


def ask(
    schedule: BaseSchedule, last_run_at: datetime | None, now: datetime, due: datetime
) -> Verdict:
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
        return Verdict(due if is_due else None, None)
    # Without the time that it took, the next look would come a little too early, for nothing.
    asked_at = now + (ahead_of(schedule, now) - ahead)
    return Verdict(due if is_due else None, asked_at + wait_of(float(seconds)))


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
