"""An entry as a point in time: what it did last, and when it is due."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from inspect import signature
from typing import Any

from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedstate

from redbeat.calendar.zones import UTC, as_utc
from redbeat.config import ensure_conf
from redbeat.decoder import to_timestamp
from redbeat.schedules import RuleSchedule
from redbeat.timing import asks_itself

from .history import History
from .occurrences import CLOCK_STEP, Run, Verdict, aware, decide, same_instant
from .pauses import Pause
from .planning import TICK, Plan
from .policy import DEFAULT, FIELDS, Policy

__all__ = ("DISABLED", "PARKED", "DueEntry", "counts_from", "has_clock", "score_of")

#: Scores of entries that are never due: finished or quarantined; disabled.
PARKED, DISABLED = -1.0, -2.0

#: Seconds after which a disabled entry asks to be looked at again, when it is asked.
DISABLED_RECHECK = 5.0


NAMES = frozenset(FIELDS)


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


class DueEntry(ScheduleEntry):
    """The side of an entry that knows its history and the time. No round trips."""

    enabled: bool
    #: When it ran last; None to have it run now.
    last_run_at: datetime | None
    total_run_count: int

    # What a policy may say, see there for what it is by default.
    timezone: str | None
    start_time: datetime | None
    end_time: datetime | None
    max_runs: int | None
    on_finish: str
    misfire_grace_time: float | None
    coalesce: str
    catch_up_limit: int | None
    jitter: float
    overlap: str
    overlap_timeout: float
    delivery: str | None

    #: The nominal instant of the last run, None when it is not known.
    scheduled_at: datetime | None = None

    #: Set while a beat holds a claim on the entry; then nothing is written by the entry itself.
    run: Run | None = None

    #: Whether the sorted set has it up to be looked at, whatever the entry itself says.
    put_up = False

    #: Fields of a policy whose names a subclass uses for attributes or arguments of its own.
    _foreign_fields: frozenset[str] = frozenset()

    #: The zone of the app, where it was looked up already.
    _zone: tzinfo | None = None

    #: Text of the stored meta this entry was made from; None for an entry not seen in Redis.
    _seen_meta: str | None = None

    #: The stored definition and policy this entry was made from; empty when not seen in Redis.
    _seen_texts: tuple[str, str] = ("", "")

    #: An operator's pause that lies on it, while it is not enabled.
    _pause: Pause | None = None

    #: The last run and the run count that are not a change of the caller's.
    _known_history: tuple[Any, int] = (None, 0)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:  # what is mixed in is the subclass's own too
            if base in DueEntry.__mro__:
                continue
            named = {*vars(base)}
            with suppress(KeyError, TypeError, ValueError):
                named |= {*signature(vars(base)["__init__"]).parameters}
            cls._foreign_fields |= NAMES & named

    def policy_field(self, name: str) -> Any:
        """Return what the entry says in a field of its policy, else the default."""
        return getattr(DEFAULT if name in self._foreign_fields else self, name)

    def default_now(self) -> datetime:
        """Return the time of the schedule's clock, or of the app's where there is no schedule."""
        if has_clock(self.schedule):
            now: datetime = self.schedule.now()
            return now
        # What Celery computes in several steps, at each entry that is made.
        return datetime.now(self.app.timezone)

    def _present(self) -> datetime:
        """Return the instant in UTC at which to decide outside a claim.

        The clock of a schedule tells it, unless that is one on the wall: without a zone.
        """
        now = self.default_now()
        return datetime.now(UTC) if now.tzinfo is None else as_utc(now)

    def recall(self, meta: str, runtime: str = "") -> None:
        """Take over a stored history; raises :exc:`DecodeError`. No round trip."""
        self.adopt(meta, *self._history_in(meta, runtime))

    def _history_in(self, meta: str, runtime: str) -> History:
        return History.read(meta, runtime)

    def adopt(
        self,
        meta: str,
        last_run_at: datetime | None,
        total_run_count: int,
        scheduled_at: datetime | None,
    ) -> None:
        """Take over a history, as in :class:`History`, and the text of it. No round trip."""
        self.last_run_at, self.total_run_count = last_run_at, total_run_count
        self.scheduled_at = scheduled_at
        self._known_history = (last_run_at, total_run_count)
        self._seen_meta = meta

    @property
    def anchor(self) -> datetime | None:
        """The instant in UTC from which the next run counts, None when it never ran."""
        last, known = self.last_run_at, self._known_history[0]
        if last is None:
            return None
        if self.scheduled_at and same_instant(last, known):
            return self.scheduled_at
        return aware(last)

    def ran_after(self, now: datetime) -> bool:
        """Whether a beat recorded a run after ``now``: the clock of Redis was ahead then.

        What an application wrote as the last run is no run of a beat.
        """
        last, known = self.last_run_at, self._known_history[0]
        if last is None or self.scheduled_at is None or not same_instant(last, known):
            return False
        return aware(last) > now + timedelta(seconds=CLOCK_STEP)

    def verdict(self) -> Verdict:
        """Return which occurrence is due, and when the next one is. No round trip."""
        run = self.run
        if run is None:
            now = self._present()
            return self._decide(now, now)
        verdict = run.verdict
        if verdict is None:
            # Code of the user's own knows the present only.
            at = run.now if asks_itself(self.schedule) else run.decided_at
            verdict = run.verdict = self._decide(at, run.due)
        return verdict

    @property
    def is_too_late(self) -> bool:
        """Whether the run that was decided on is too old to be sent by now."""
        run = self.run
        scheduled_at = run and run.verdict and run.verdict.scheduled_at
        if run is None or not scheduled_at or self.last_run_at is None:
            return False
        policy, zone = self._rules()
        grace = policy.misfire_grace_time
        if grace is None or asks_itself(self.schedule):
            return False
        up_at = Plan(self.schedule, zone, policy, str(self.name)).up_at(scheduled_at)
        return run.now - up_at > timedelta(seconds=grace)

    @property
    def policy(self) -> Policy:
        """What the attributes say; raises :exc:`InvalidEntryError` that names the field."""
        given = self.__dict__
        if NAMES.isdisjoint(given):
            return DEFAULT
        foreign = self._foreign_fields
        return Policy.of(
            {name: given[name] for name in FIELDS if name in given and name not in foreign}
        )

    def _decide(self, now: datetime, due: datetime) -> Verdict:
        policy, zone = self._rules()
        last, anchor = self.last_run_at, self.anchor
        ahead = self.run is not None and anchor is not None and self.ran_after(now)
        if ahead and anchor is not None:
            last = anchor = min(anchor, now)
        runs, name = self.total_run_count, str(self.name)
        verdict = decide(self.schedule, last, anchor, now, due, zone, policy, runs, name)
        # Noted as what it counts from, or it would begin to wait again at each look.
        return verdict._replace(anchor=now) if ahead and anchor is now else verdict

    def _rules(self) -> tuple[Policy, tzinfo]:
        """Return the policy with what the app adds to it, and the zone to read a crontab in."""
        policy = self.policy
        if isinstance(self.schedule, crontab) and policy.misfire_grace_time is None:
            deadline = ensure_conf(self.app).cron_deadline
            if deadline is not None:
                policy = replace(policy, misfire_grace_time=deadline)
        return policy, self._zone or policy.zone or self.app.timezone

    @property
    def runs_left(self) -> int | None:
        """How many runs ``max_runs`` still allows, None for any number."""
        most = self.policy.max_runs
        return None if most is None else max(most - self.total_run_count, 0)

    def upcoming(self, n: int = 10, after: datetime | None = None) -> list[datetime]:
        """Return the next ``n`` nominal instants after ``after`` (default now), UTC.

        Fewer when fewer are left. Whether the entry is enabled does not matter. No round trip.

        A schedule that only its own ``is_due`` knows tells of them by ``remaining_estimate``;
        where it has none, only of the next one.
        """
        since = aware(after) if after else self._present()
        policy, zone = self._rules()
        left = self.runs_left
        if left is not None:
            n = min(n, left)
        plan = Plan(self.schedule, zone, policy, str(self.name))
        anchor = self.anchor
        if asks_itself(self.schedule):
            try:
                return plan.asked(anchor or since, since, n)
            except NotImplementedError:
                at = self.verdict().next_at
                return [at] if at is not None and at > since and n > 0 else []
        first = plan.begin(since) if anchor is None else plan.after(anchor)
        found = None if first is None else plan.since(first, since + TICK)
        instants: list[datetime] = []
        while found is not None and len(instants) < n:
            instants.append(found)
            found = plan.after(found)
        return instants

    def is_due(self) -> schedstate:
        """Return (whether it is due, seconds until the run after that; None = never)."""
        if not self.enabled:
            return schedstate(False, DISABLED_RECHECK)
        verdict = self.verdict()
        if verdict.next_at is None:
            return schedstate(verdict.due, None)
        now = self.run.now if self.run else self._present()
        return schedstate(verdict.due, max((verdict.next_at - now).total_seconds(), 0.0))

    @property
    def due_at(self) -> datetime | None:
        """The next run, UTC: now when it never ran or is overdue, None when nothing is left."""
        verdict = self.verdict()
        return self._present() if verdict.due else verdict.next_at

    @property
    def score(self) -> float:
        """The next run as UNIX seconds; -1 when nothing is left, -2 when it is disabled."""
        if not self.enabled:
            return DISABLED
        due_at = self.due_at
        return PARKED if due_at is None else to_timestamp(due_at)

    @classmethod
    def scores_itself(cls) -> bool:
        """Return whether a subclass overrides :attr:`score` or :attr:`due_at`."""
        return cls.score is not DueEntry.score or cls.due_at is not DueEntry.due_at

    def _stored_score(self, now: datetime | None = None) -> float | None:
        """Return the score to store: None = due at once, by the clock of Redis.

        ``now`` is UTC, None for what the clock of the entry says. That clock may be wrong. So what
        seems to have finished, to be too late or to have run in the future is due at once: a beat
        decides, and parks it.
        """
        if not self.enabled:
            return DISABLED
        if self.scores_itself():
            return self.score
        verdict = self.verdict() if now is None else self._decide(now, now)
        if self.ran_after(now or self._present()):
            return None
        if verdict.due or verdict.missed or verdict.next_at is None:
            return None
        return score_of(verdict.next_at)


# An attribute that is not set on an entry says nothing.
for _name in FIELDS:
    setattr(DueEntry, _name, getattr(DEFAULT, _name))
