"""Decides which occurrence of an entry is due, from schedule, policy, history and time alone."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha1
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

from celery.schedules import BaseSchedule, solar
from celery.schedules import schedule as interval
from redis.exceptions import RedisError

from redbeat.calendar.steps import PER_RUN, Steps, bounded, spend
from redbeat.calendar.walltime import END, TICK
from redbeat.calendar.zones import EPOCH, UTC, as_utc
from redbeat.codec.stored import bytes_of, is_valid_text
from redbeat.errors import InvalidEntryError, described
from redbeat.schedules import next_run as occurrences
from redbeat.schedules.calendars import Exclusion
from redbeat.schedules.rule import RuleSchedule

from .policy import DEFAULT, Policy

#: Characters of a triggered run's id. RedBeat's own ids have 12.
LONGEST_ID = 200


def is_id(text: str) -> bool:
    return 0 < len(text) <= LONGEST_ID and is_valid_text(text)


#: The scores of finished and quarantined entries, and of disabled ones.
PARKED, DISABLED = -1.0, -2.0

#: Before all occurrences of all schedules. It's not a whole second, so no rule hits it.
BEFORE_EPOCH = EPOCH - TICK


def has_start(schedule: BaseSchedule) -> bool:
    """Whether the schedule says when a new entry first runs. If not, a new entry is due at once."""
    return isinstance(schedule, RuleSchedule) and not occurrences.asks_itself(schedule)


def spread_fraction(name: str) -> float:
    """Return a number in ``[0, 1)`` that depends only on ``name``.

    It's a CRC-32, which spreads names that differ only in a number, such as ``job1`` and ``job2``,
    more evenly than a cryptographic hash.
    """
    return crc32(name.encode("utf-8", "backslashreplace")) / 2**32


def hash_fraction(text: str) -> float:
    """Return a number in ``[0, 1)`` that looks random, but depends only on ``text``."""
    digest = sha1(text.encode("utf-8", "backslashreplace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


@dataclass(slots=True)  # each decision creates a plan, and frozen objects are slower to create
class Plan:
    """The occurrences of one entry, from the ``start_time`` to the ``end_time`` of its policy.

    The schedule gives each occurrence its nominal instant; spread and jitter delay when it is due.
    Spread depends on ``identity``, the entry's name, and jitter also on the nominal instant.
    ``exclusion`` skips or moves the occurrences on excluded days; it is None without calendars.
    """

    schedule: BaseSchedule
    zone: tzinfo | None = None
    policy: Policy = DEFAULT
    identity: str = ""
    exclusion: Exclusion | None = None

    def on_grid(self, instant: datetime) -> datetime:
        """The runs of an interval are counted from the ``start_time``, if there is one."""
        start = self.policy.start_time
        if start is None or instant <= start or not isinstance(self.schedule, interval):
            return instant
        return occurrences.latest_run(self.schedule, start, instant, self.zone) or start

    @bounded
    def next_run(self, instant: datetime) -> datetime | None:
        if self.exclusion is None:
            return occurrences.next_run(self.schedule, instant, self.zone)
        return self.exclusion.next_run(self.schedule, instant)

    @bounded
    def latest_run(self, first: datetime, until: datetime) -> datetime | None:
        """The last allowed occurrence in ``(first, until]``."""
        first = self.on_grid(first)
        if self.exclusion is None:
            return occurrences.latest_run(self.schedule, first, until, self.zone)
        return self.exclusion.latest_run(self.schedule, first, until)

    def after(self, instant: datetime) -> datetime | None:
        """The first nominal instant after an occurrence or an anchor."""
        start, end = self.policy.start_time, self.policy.end_time
        if start is not None and instant < start:
            on_grid = isinstance(self.schedule, interval)
            following = start if on_grid else self.next_run(start - TICK)
            if on_grid and self.exclusion is not None and self.exclusion.excludes(start):
                following = self.next_run(start)
        else:
            following = self.next_run(self.on_grid(instant))
        return None if following is None or (end is not None and following > end) else following

    def first_occurrence(self, at: datetime) -> datetime | None:
        """The first occurrence of an entry that never ran.

        That is ``at``, unless the schedule, the ``start_time`` or a calendar says otherwise.
        """
        start, end = self.policy.start_time, self.policy.end_time
        if start is not None and isinstance(self.schedule, solar):
            at = max(at, start)
        if has_start(self.schedule) or (start is not None and start > at):
            return self.after(max(start or BEFORE_EPOCH, BEFORE_EPOCH) - TICK)
        if self.exclusion is not None and self.exclusion.excludes(at):
            return self.after(at)
        return None if end is not None and at > end else at

    def estimates(self, anchor: datetime, since: datetime) -> Iterator[datetime]:
        """For schedules with their own ``is_due``; raises what ``remaining_estimate`` raises."""
        instant = self.after(anchor)
        if instant is not None and instant <= since:
            instant = self.after(since)
        while instant is not None and instant > since + occurrences.CLOCK_NOISE:
            yield instant
            since, instant = instant, self.after(instant)

    def due_at(self, nominal: datetime) -> datetime:
        """When the occurrence is due, after spread and jitter: always before the next one."""
        if not (self.policy.spread or self.policy.jitter):
            return nominal
        following = self.next_run(nominal)
        most = END - nominal if following is None else following - nominal - TICK
        offset = self.spread_offset(most)
        jitter = min(timedelta(seconds=self.policy.jitter), most - offset)
        return nominal + offset + jitter * hash_fraction(f"{nominal.isoformat()} {self.identity}")

    def spread_offset(self, most: timedelta) -> timedelta:
        """``most`` is the time from the occurrence to just before the next one."""
        return min(timedelta(seconds=self.policy.spread), most) * spread_fraction(self.identity)

    def latest_due(self, first: datetime, now: datetime) -> datetime | None:
        """The latest occurrence, from ``first`` on, that is due at ``now``."""
        end = self.policy.end_time
        until = now if end is None else min(now, end)
        if first > until:
            return None
        latest = self.latest_run(first, until) or first
        if self.due_at(latest) <= now:
            return latest
        # Each occurrence is due before the next nominal instant, so the one before ``latest`` is
        # certainly due.
        if latest == first:
            return None
        return self.latest_run(first, latest - TICK) or first

    @bounded
    def first_due_since(self, first: datetime, instant: datetime) -> datetime | None:
        """The first occurrence, from ``first`` on, that is due at or after ``instant``."""
        if instant <= first:
            return first
        # Each occurrence is due before the next nominal instant, so the result is either ``before``
        # or the one after it.
        before = self.latest_run(first, instant - TICK) or first
        return before if self.due_at(before) >= instant else self.after(before)

    @bounded
    def count(self, first: datetime, until: datetime, limit: int) -> int:
        """How many occurrences are in ``[first, until)``, up to ``limit``."""
        first = self.on_grid(first)
        if self.exclusion is None:
            return occurrences.count_runs(self.schedule, first, until, limit, self.zone)
        return self.exclusion.count_runs(self.schedule, first, until, limit)

    def occurrences_from(self, anchor: datetime | None, since: datetime) -> Iterator[datetime]:
        """Raises :exc:`InvalidEntryError` for a schedule class with its own ``is_due``."""
        if occurrences.asks_itself(self.schedule):
            problem = "the class has its own is_due(), so the runs of a span cannot be computed"
            raise InvalidEntryError("schedule", problem)
        plan = replace(self, policy=replace(self.policy, max_runs=None))
        return (run.scheduled_at for run in runs_from(plan, anchor, 0, since, since))

    @bounded
    def number_between(self, after: datetime, until: datetime, limit: int) -> int:
        """How many occurrences are after ``after`` and before ``until``, up to ``limit``."""
        between = self.walk(self.after(after), until - TICK)
        return sum(1 for _ in islice(between, max(limit, 0)))

    def walk(self, first: datetime | None, last: datetime) -> Iterator[datetime]:
        while first is not None and first <= last:
            yield first
            first = self.after(first)

    def first_of_last(self, first: datetime, last: datetime, number: int) -> datetime:
        """The earliest of the last ``number`` occurrences from ``first`` to ``last``."""
        following, before = self.next_run(last), self.latest_run(first, last - TICK) or first
        gaps = [gap for gap in ((following or before) - last, last - before) if gap > timedelta(0)]
        span = number * min(gaps, default=timedelta(days=1))
        while True:
            begin = self.first_due_since(first, last - min(span, last - first)) or last
            instants = list(self.walk(begin, last))
            if len(instants) >= number or begin == first:
                return instants[-number:][0]
            span *= 2


#: Counting stops at this many missed occurrences, because it is slow for crontabs.
MISSED_LIMIT = 100

#: Clocks differ a little. A last run more than this number of seconds in the future was recorded
#: while Redis had a wrong clock.
CLOCK_STEP = 1.0

#: A clock this close to the host's clock shows the host's time.
HOST_CLOCK = timedelta(seconds=0.5)

#: Seconds until the next ``is_due()`` call: at least, at most, and for NaN.
SHORTEST_WAIT, LONGEST_WAIT, DEFAULT_WAIT = 0.05, 10 * 365 * 86400.0, 5.0


class Decision(NamedTuple):
    """Whether an entry runs at one instant, and when it runs next.

    Attributes:
        scheduled_at: the nominal instant of the occurrence to dispatch, None if none is due.
        next_at: when the entry is due again after this decision, None if never.
        missed: how many earlier occurrences did not run and never will, counted up to
            :data:`MISSED_LIMIT` except for intervals.
        anchor: the instant from which to compute the next run; None means ``scheduled_at``. If
            nothing is due, this is the last missed occurrence, or the current time if the last run
            is in the future.
    """

    scheduled_at: datetime | None
    next_at: datetime | None
    missed: int = 0
    anchor: datetime | None = None

    @property
    def due(self) -> bool:
        return self.scheduled_at is not None


FINISHED = Decision(None, None)


class Trigger(NamedTuple):
    """A run requested outside the schedule, and when it was requested."""

    id: str
    at: datetime


@dataclass(slots=True)
class Run:
    """The run that an entry object takes part in: its decision, and what came of the publish.

    Attributes:
        now: Redis's time.
        due: when the entry became due, from its score.
        successor: the entry as it is after the run.
        at_most_once: whether the run is recorded before it is sent.
        headers: the message's headers that are not in the entry's options.
        task_id: the id of the run, for an entry whose options have none.
    """

    now: datetime
    due: datetime
    decision: Decision | None = None
    successor: Any = None
    sent: bool = False
    at_most_once: bool = False
    headers: dict[str, Any] = field(default_factory=dict)
    task_id: str = ""
    error: Exception | None = None


def decide(
    plan: Plan,
    last_run_at: datetime | None,
    anchor: datetime | None,
    now: datetime,
    due: datetime,
    runs: int = 0,
) -> Decision:
    """Decide whether an entry runs now. By default, missed runs are coalesced into the latest one.

    Arguments:
        last_run_at: None if the entry never ran.
        anchor: the instant from which to compute the next run: the nominal instant of the last run,
            or ``last_run_at`` if an application wrote it.
        due: when the entry became due, which is the nominal instant of its first run.
    """
    schedule, zone, policy = plan.schedule, plan.zone, plan.policy
    find = occurrences.finder_of(schedule)
    if (find is not None and last_run_at is not None and anchor is not None) and (
        policy is DEFAULT or keeps_times(policy)
    ):
        # Most decisions take this fast path: decide_by_policy() takes three times as long.
        upcoming = find(schedule, anchor, zone)
        if upcoming is None:
            return FINISHED
        excludes = plan.exclusion.excludes if plan.exclusion is not None else None
        if upcoming > now and excludes is None:
            return Decision(None, upcoming)
        following = find(schedule, upcoming, zone)
        is_excluded = excludes and (excludes(upcoming) or (following and excludes(following)))
        if upcoming <= now and (following is None or following > now) and not is_excluded:
            return Decision(upcoming, following)
    decision = decide_by_policy(plan, last_run_at, anchor, now, min(due, now))
    return within_max_runs(decision, policy, runs)


def keeps_times(policy: Policy) -> bool:
    """Whether a policy neither moves nor limits runs, except by calendars."""
    limits = policy.max_runs, policy.misfire_grace_time, policy.start_time, policy.end_time
    moves = policy.jitter or policy.spread or policy.on_excluded != "skip"
    return limits == (None, None, None, None) and not moves


def is_overdue(plan: Plan, anchor: datetime, now: datetime, runs: int) -> bool:
    """Whether an entry that ran owes a run, or has missed one; see :func:`decide`."""
    decision = decide(plan, anchor, anchor, now, now, runs)
    return decision.due or decision.missed > 0


def within_max_runs(decision: Decision, policy: Policy, runs: int) -> Decision:
    if policy.max_runs is None:
        return decision
    if runs >= policy.max_runs:
        return FINISHED
    last = decision.due and runs + 1 >= policy.max_runs
    return decision._replace(next_at=None) if last else decision


@bounded
def decide_by_policy(
    plan: Plan, last_run_at: datetime | None, anchor: datetime | None, now: datetime, due: datetime
) -> Decision:
    start, end = plan.policy.start_time, plan.policy.end_time
    if occurrences.asks_itself(plan.schedule):
        decision = decide_by_is_due(plan.schedule, last_run_at, now, due)
        if start is not None and now < start:
            return Decision(None, start)
        if end is not None and now > end:
            return FINISHED
        return decision
    never_ran = last_run_at is None or anchor is None
    first = plan.first_occurrence(due) if anchor is None or never_ran else plan.after(anchor)
    if never_ran and first == due and not has_start(plan.schedule):
        # The first run has the nominal instant ``due``, even if it is late. The occurrences between
        # ``due`` and ``now`` never run, unless the policy is to send all missed runs; the next run
        # is computed from the last of them.
        last = due if plan.policy.coalesce == "all" else plan.latest_due(due, now) or due
        missed = plan.count(due, last, MISSED_LIMIT)
        return Decision(due, next_due(plan, last), missed, last if missed else None)
    if first is None:
        return FINISHED
    latest = plan.latest_due(first, now)
    if latest is None:
        return Decision(None, plan.due_at(first))
    return choose_occurrence(plan, first, latest, now)


def choose_occurrence(plan: Plan, first: datetime, latest: datetime, now: datetime) -> Decision:
    """Decide when all occurrences from ``first`` to ``latest`` are due."""
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
    """The oldest due occurrence that ``misfire_grace_time`` and ``catch_up_limit`` allow."""
    grace, limit = plan.policy.misfire_grace_time, plan.policy.catch_up_limit
    oldest: datetime | None = first
    if grace is not None:
        oldest = plan.first_due_since(first, now - timedelta(seconds=grace))
    if oldest is None or oldest > latest:
        return None
    return plan.first_of_last(oldest, latest, limit) if limit is not None else oldest


def next_due(plan: Plan, nominal: datetime) -> datetime | None:
    """When the occurrence after ``nominal`` is due, with spread and jitter."""
    following = plan.after(nominal)
    return None if following is None else plan.due_at(following)


class Expected(NamedTuple):
    """A simulated run: its nominal instant, and when a punctual beat sends it."""

    scheduled_at: datetime
    due_at: datetime


def runs_from(
    plan: Plan, anchor: datetime | None, runs: int, since: datetime, now: datetime
) -> Iterator[Expected]:
    """Yield the runs that a beat which is never late would send from ``since`` on.

    :func:`decide` is called when the next run is due, with the history after the previous one.
    ``anchor`` and ``runs`` are those of the entry at ``now``, which may be before or after
    ``since``. Not for schedules that satisfy :func:`~redbeat.schedules.next_run.asks_itself`.
    """
    if anchor is not None:
        anchor, runs = history_before(plan, anchor, runs, since, now)
    last, moment, steps = anchor, since, Steps()
    while True:
        with steps:
            spend()
            decision = decide(plan, last, anchor, moment, moment, runs)
        steps.left += PER_RUN
        if decision.scheduled_at is not None:
            if decision.scheduled_at >= since:
                yield Expected(decision.scheduled_at, moment)
            last, anchor, runs = moment, decision.anchor or decision.scheduled_at, runs + 1
        if decision.next_at is None:
            return
        moment = decision.next_at


@bounded
def history_before(
    plan: Plan, anchor: datetime, runs: int, since: datetime, now: datetime
) -> tuple[datetime, int]:
    """Anchor and run count of an entry just before ``since``, from those at ``now``.

    Going back, the run count shrinks by the occurrences between ``since`` and ``anchor``. Going
    forward, it grows by those between ``now`` and ``since``. Occurrences between ``anchor`` and
    ``now`` don't count: they were missed or are overdue.
    """
    latest, limit = latest_before(plan, anchor, since), plan.policy.max_runs
    if limit is None:
        return latest, runs
    if anchor >= since:
        return latest, runs - plan.number_between(latest, anchor + TICK, runs)
    known = latest_before(plan, anchor, now) if now > anchor else anchor
    return latest, runs + plan.number_between(known, since, max(limit - runs, 0))


@bounded
def latest_before(plan: Plan, anchor: datetime, instant: datetime) -> datetime:
    """The anchor just before ``instant`` of an entry whose runs are not delayed.

    The runs of an interval are a whole number of intervals away from ``anchor``. For any other
    schedule, this is the last moment before ``instant``.
    """
    latest = instant - TICK
    if not isinstance(plan.schedule, interval):
        return latest
    if anchor >= instant:
        return occurrences.run_before(plan.schedule, anchor, instant, plan.zone)
    first = plan.after(anchor)
    if first is None or first >= instant:
        return anchor
    return plan.latest_run(first, latest) or first


def decide_by_is_due(
    schedule: BaseSchedule, last_run_at: datetime | None, now: datetime, due: datetime
) -> Decision:
    """Raises what ``is_due`` raises, but a connection error becomes a ``RuntimeError``."""
    ahead = clock_offset(schedule, now)
    last = aware(last_run_at) + ahead if last_run_at else EPOCH
    try:
        is_due, seconds = schedule.is_due(occurrences.on_clock_of(schedule, last))
    except (OSError, RedisError) as error:
        # A connection error of user code must fail only this entry: RedBeat's own connections may
        # work.
        raise RuntimeError(f"is_due() of the schedule raised {described(error)}") from error
    if seconds is None:
        return Decision(due if is_due else None, None)
    # The wait begins when is_due() returns, because a slow is_due() returns long after ``now``.
    called_at = now + (clock_offset(schedule, now) - ahead)
    return Decision(due if is_due else None, called_at + wait_of(float(seconds)))


def clock_offset(schedule: BaseSchedule, now: datetime) -> timedelta:
    """A schedule compares the last run with its own clock, which may be ahead of Redis's."""
    try:
        return aware(schedule.now()) - now
    except Exception:
        return timedelta(0)  # a user's class may lack now()


def wait_of(seconds: float) -> timedelta:
    if math.isnan(seconds):
        seconds = DEFAULT_WAIT
    # A class that always returns 0 seconds would keep the beat busy without SHORTEST_WAIT.
    return timedelta(seconds=min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT))


def aware(instant: datetime) -> datetime:
    """In UTC, as a plain datetime; a naive datetime counts as UTC."""
    if type(instant) is datetime and instant.tzinfo is UTC:
        return instant
    return as_utc(instant if instant.tzinfo else instant.replace(tzinfo=UTC))


def same_instant(one: datetime | None, other: datetime | None) -> bool:
    """Compares in UTC: in local time, the hour that a DST change repeats is ambiguous."""
    if one is other or one is None or other is None:
        return one is other
    return aware(one) == aware(other)


@lru_cache(maxsize=64)
def namespace_of(prefix: str) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"redbeat:{prefix}").bytes


#: The variant bits of a UUID, put into each hexadecimal digit.
VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def task_id_of(prefix: str, name: str, instant: str, identity: str = "") -> str:
    """The task id of an occurrence; the same arguments always give the same id.

    ``instant`` is the nominal instant in UTC, as ISO 8601. The id is the UUID version 5 (RFC 9562)
    of "<instant> <name>" in the namespace of the prefix, or of "<instant>/<identity> <name>" if the
    entry has an identity.
    """
    if identity:
        instant = f"{instant}/{identity}"
    text = f"{instant} {name}"
    data = namespace_of(prefix) + (text.encode() if text.isascii() else bytes_of(text))
    # str(uuid.UUID(...)) takes three times as long.
    digits = sha1(data, usedforsecurity=False).hexdigest()
    last = f"{VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:32]}"
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{last}"


def score_of(next_at: datetime | None) -> float:
    return PARKED if next_at is None else next_at.timestamp()


def has_clock(schedule: Any) -> bool:
    return isinstance(schedule, BaseSchedule) and (
        getattr(schedule, "nowfun", None) is not None or type(schedule).now is not BaseSchedule.now
    )


def is_own_time(at: datetime) -> bool:
    """Whether a clock that shows ``at`` differs from the host's clock.

    Programs use such a clock to set when an interval begins: ``nowfun=lambda: start``.
    """
    # A clock that shows a naive time may show UTC or the local time.
    host, wall = datetime.now(UTC), datetime.now(at.tzinfo)
    return min(abs(aware(at) - host), abs(at - wall)) > HOST_CLOCK


def counts_from(schedule: Any, now: datetime) -> datetime:
    """The instant from which to compute the first run of an entry created at ``now``."""
    if has_clock(schedule) and is_own_time(schedule.now()):
        now = aware(schedule.now())
    return schedule.counts_from(now) if isinstance(schedule, RuleSchedule) else now
