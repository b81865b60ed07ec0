"""The verdict about one entry: what leaves now, what is stored, and when to look again.

Pure functions of rule, history, state, inbox and time: no clock, no log, no Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, NamedTuple

from celery.utils.time import timezone as celery_zones

from redbeat.calendar.zones import UTC, from_timestamp, zone_named
from redbeat.codec.stored import instant_in
from redbeat.entries.backfill import Backfill, backfills_in, with_backfill
from redbeat.entries.decide import (
    CLOCK_STEP,
    DISABLED,
    PARKED,
    Decision,
    Plan,
    Trigger,
    aware,
    decide,
    decide_after_change,
    has_start,
    runs_from,
    same_instant,
    score_of,
    within_max_runs,
)
from redbeat.entries.history import (
    Change,
    History,
    encode_meta,
    history_after_save,
)
from redbeat.entries.policy import DEFAULT, Policy
from redbeat.entries.runs import PERHAPS_SENT, SENT, SKIPPED, missed, nominal, run_line
from redbeat.entries.runs import TRIGGERED as TRIGGERED_LINE
from redbeat.errors import InvalidEntryError, TooManyStepsError
from redbeat.presentation.english import plural
from redbeat.schedules.calendars import Exclusion
from redbeat.schedules.next_run import MIN_EVERY, asks_itself, finder_of

from .run import Rule
from .state import (
    BACKFILLED,
    BAD,
    END,
    SCHEDULED,
    TRIGGER,
    TRIGGERED,
    Ended,
    Failing,
    Hold,
    Pause,
    Results,
    Running,
    Said,
    State,
    Waiting,
    digest_of_meta,
    history_line,
)

#: What becomes of an entry without further runs, or with too many failed runs.
PARK, DISABLE, DELETE, PAUSE = "park", "disable", "delete", "pause"

ALLOW, BUFFER_ONE = "allow", "buffer_one"

#: States of runs that have ended; a run that is retried has not.
SUCCEEDED, FAILED, RETRIED = "succeeded", "failed", "retried"

#: A run counts as ended if its end is more than ``LONGEST_OVERLAP`` seconds in the future.
LONGEST_OVERLAP: Final = 1e9

#: A last run that is further in the future was recorded with a wrong clock.
AHEAD: Final = timedelta(seconds=CLOCK_STEP)

#: The outcome of an occurrence whose call sent no message.
NOT_SENT = "not_sent"

Note = tuple[int, str, tuple[Any, ...]]


class Send(NamedTuple):
    """A run that leaves now.

    Attributes:
        kind: ``scheduled``, ``triggered`` or ``backfilled``.
        at: the nominal time, UTC.
        id: the id of the trigger or backfill, "" for a scheduled run.
        missed: how many earlier occurrences the run replaces.
        held: the dead hold that this run repeats, with its task id.
    """

    kind: str
    at: datetime
    id: str
    missed: int
    held: Hold | None


class Rest(NamedTuple):
    """What to store: after the send if there is one, else now.

    Attributes:
        score: the next look, UNIX seconds; below 0 for parked.
        state: the new state, without the marks of the change; the very state that was judged if
            nothing in it changes.
        counts: whether the run counts: ``total_run_count`` + 1.
        outcome: the outcome in the history of what was not sent, "" for no line.
        at: the nominal time of that line, and of what replaces missed occurrences.
        missed: how many occurrences were missed.
        end: "", ``park``, ``disable``, ``delete``, or ``pause`` (after too many failures).
        notes: lines to log once the change is done: level, message, arguments.
        waits: the id of the run that the entry waits for (for the field ``waits``), "" for none.
        meta: the text of ``meta`` to store if nothing is sent, None to leave it.
        task_id: the task id of that line.
    """

    score: float
    state: State
    counts: bool = False
    outcome: str = ""
    at: datetime | None = None
    missed: int = 0
    end: str = ""
    notes: tuple[Note, ...] = ()
    waits: str = ""
    meta: str | None = None
    task_id: str = ""


@dataclass(slots=True)  # frozen objects are slower to create
class Known:
    """What a verdict is made from.

    ``state`` has the inbox taken in, ``plan`` has the calendars, ``score`` is that of the look.
    ``decision`` is the one about the schedule's run, if that run leaves.
    """

    rule: Rule
    plan: Plan
    history: History
    state: State
    now: float
    score: float
    app_zone: tzinfo | None = None
    decision: Decision | None = None

    @property
    def never_ran(self) -> bool:
        """Whether the next run is the first one."""
        return self.history.last_run_at is None and self.state.at is None

    @property
    def due(self) -> datetime:
        """The nominal time of a first run: the score, or what the state keeps in its place."""
        kept = self.state.due
        due = self.score if kept is None else kept
        return (instant_in(due) if due >= 1 else None) or _instant(self.now)

    @property
    def keeps_due(self) -> bool:
        """Whether :attr:`due` must outlive a change of the score."""
        return self.rule.enabled and (self.never_ran or asks_itself(self.plan.schedule))


class Verdict(NamedTuple):
    """The decision about one entry.

    Attributes:
        send: what leaves now, None for nothing.
        rest: what to store.
        take: the last inbox line that the verdict took in (``Change.take``), "" for none.
        known: what the verdict was made from.
        ends: the ends of runs among these lines.
    """

    send: Send | None
    rest: Rest
    take: str = ""
    known: Known | None = None
    ends: tuple[Ended, ...] = ()

    @property
    def facts(self) -> Known:
        """What the verdict was made from, for verdicts of :func:`judge`."""
        assert self.known is not None
        return self.known


class Recorded(NamedTuple):
    """What a change stores.

    Attributes:
        state: the state, to be signed with the mark of the change.
        meta: the text of ``meta``, None to leave the stored one.
        line: the history line, "" for none.
        score: the next look.
        end: as in :class:`Rest`.
    """

    state: State
    meta: str | None
    line: str
    score: float
    end: str


def judge(
    rule: Rule,
    history: History,
    state: State,
    inbox: Sequence[Said],
    now: float,
    score: float,
    *,
    exclusion: Exclusion | None = None,
    app_zone: tzinfo | None = None,
) -> Verdict:
    """Return the verdict about an entry at ``now``, whose score was ``score`` (UNIX seconds).

    ``app_zone`` is the time zone of the app. Raises whatever the schedule raises.
    """
    plan = rule.plan if exclusion is None else replace(rule.plan, exclusion=exclusion)
    if not inbox and (quick := quick_verdict(rule, plan, history, state, now, score)):
        return quick
    known = Known(rule, plan, history, state, now, score, app_zone)
    if not (inbox or state.hold or state.waiting):
        return judge_schedule(known, ())
    held = state.hold
    if held is not None and held.until > now and not _proves(inbox, held):
        return Verdict(None, Rest(held.until, state), "", known)
    taken = take_in(known, inbox)
    verdict = _judge_taken(replace(known, state=taken.state), taken)
    if taken.pause is not None:
        verdict = _paused(verdict, taken.pause)
    return verdict._replace(take=inbox[-1].line if inbox else "", ends=taken.ends)


#: The parts of a state without which most verdicts need no more than the schedule.
_QUIET: Final = (None, None, None, None, (), None)


def quick_verdict(
    rule: Rule, plan: Plan, history: History, state: State, now: float, score: float
) -> Verdict | None:
    """Return the verdict about an entry with nothing special, None if there is anything.

    Nearly all runs go this way, with half of the calls and of the time of the other. ``plan`` is
    that of ``rule`` with the calendars; they are nothing special if they skip and exclude neither
    this run nor the next one.
    """
    last, exclusion = history.last_run_at, plan.exclusion
    parts = (state.due, state.hold, state.running, state.failing, state.waiting, state.change)
    if parts != _QUIET or last is None or last.tzinfo is not UTC or not rule.enabled:
        return None
    policy, at = plan.policy, datetime.fromtimestamp(now, UTC)
    if policy is not DEFAULT and (policy.max_runs is not None or not _decides_nothing(policy)):
        return None
    if exclusion is not None and exclusion.on_excluded != "skip":
        return None
    anchor = history.scheduled_at or (
        last if state.at is None else datetime.fromtimestamp(state.at, UTC)
    )
    if anchor > at:
        return None
    upcoming: datetime | None
    following: datetime | None
    if rule.every is not None:
        upcoming, following = anchor + rule.every, anchor + rule.every + rule.every
    else:
        find = finder_of(plan.schedule)
        upcoming = find and find(plan.schedule, anchor, plan.zone)
        following = find and upcoming and find(plan.schedule, upcoming, plan.zone)
    if upcoming is None or following is None or not upcoming <= at < following:
        return None
    if exclusion is not None and (exclusion.excludes(upcoming) or exclusion.excludes(following)):
        return None
    after = state.copy()
    after.at = upcoming.timestamp()
    known = Known(rule, plan, history, state, now, score)
    known.decision = Decision(upcoming, following)
    rest = Rest(following.timestamp(), after, True)
    return Verdict(Send(SCHEDULED, upcoming, "", 0, None), rest, "", known)


def _judge_taken(known: Known, taken: Taken) -> Verdict:
    """Return the verdict after the inbox was taken in."""
    held, state = known.state.hold, known.state
    if held is not None and taken.left:
        return Verdict(None, _found_sent(known, held, taken), "", known)
    if taken.pause is not None:
        return Verdict(None, Rest(known.now, state, notes=taken.notes), "", known)
    if held is not None:
        return _judge_dead_hold(known, held, taken.notes)
    trigger = next((one for one in state.waiting if isinstance(one, Trigger)), None)
    if trigger is not None and not is_running(known):
        send = Send(TRIGGERED, trigger.at, trigger.id, 0, None)
        return Verdict(send, _rest_of_waiting(known, send, taken.notes), "", known)
    return judge_schedule(known, taken.notes)


def asked(verdict: Verdict) -> Verdict | None:
    """Return the verdict with which the object of an entry decides, if the schedule waits.

    The class of an entry may compute by itself whether it is due. Returns None if there is another
    reason why nothing leaves.
    """
    known, rest = verdict.known, verdict.rest
    if known is None or verdict.send is not None or rest.end or rest.outcome:
        return None
    waits = rest.score > known.now >= known.score
    if not waits or known.state.hold is not None or is_running(known):
        return None
    send = Send(SCHEDULED, _instant(known.now), "", 0, None)
    return verdict._replace(send=send, rest=rest._replace(counts=True))


# -- the inbox -------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """An inbox that was taken in.

    Attributes:
        state: the new state, the old object if the inbox was empty.
        left: whether an end proves that the held run left.
        ended: whether the held run has also ended.
        pause: the pause after too many failed runs, None without one.
        notes: lines to log.
        ends: the ends, the oldest first, none in the future.
    """

    state: State
    left: bool = False
    ended: bool = False
    pause: Pause | None = None
    notes: tuple[Note, ...] = ()
    ends: tuple[Ended, ...] = ()


def _proves(inbox: Sequence[Said], held: Hold) -> bool:
    """Return whether an inbox proves that the held run left."""
    return any(said.kind == END and said.id == held.id for said in inbox)


def take_in(known: Known, inbox: Sequence[Said]) -> Taken:
    """Take an inbox in: triggers and backfills wait, and ends are matched by task id.

    What is known is ignored, so that taking a line twice changes nothing.
    """
    if not inbox:
        return Taken(known.state)
    state, notes, pause = known.state.copy(), list[Note](), None
    held = "" if state.hold is None else state.hold.id
    ends = ends_in(inbox, known.now)
    for end in ends:
        pause = _take_end(known, state, end) or pause
    for said in inbox:
        if said.kind == BAD or (said.kind != END and not _take_request(state, said)):
            notes.append(_unreadable(known.rule, said))
    if pause is not None:
        notes.append((logging.WARNING, PAUSED, (known.rule.key, pause.note)))
    of_held = [end.state for end in ends if end.id == held]
    has_ended = any(state != RETRIED for state in of_held)
    results = tuple(end for end in ends if end.state)
    return Taken(state, bool(of_held), has_ended, pause, tuple(notes), results)


def ends_in(inbox: Sequence[Said], now: float) -> list[Ended]:
    """Return the ends of runs in an inbox, the oldest report first; none is later than ``now``."""
    return [
        Ended(said.id, said.state, min(said.at, now), said.seconds, said.retries, said.error)
        for said in inbox
        if said.kind == END
    ]


def with_inbox(state: State, inbox: Sequence[Said], now: float) -> State:
    """Return the state as it is once a beat has taken an inbox in, for those who show it."""
    if not inbox:
        return state
    state = state.copy()
    for end in ends_in(inbox, now):
        take_end(state, end, now)
    for said in inbox:
        if said.kind not in (END, BAD):
            _take_request(state, said)
    return state


#: What is logged about lines that are no use, and about entries that fail too often.
REMOVED: Final = "beat: Entry %s: removed the waiting run %a, which is not valid: %s"
PAUSED: Final = "beat: Entry %s is paused: %s"

#: At most this number of characters of an invalid line is logged.
LONGEST_LINE: Final = 200

#: This number of ids of triggers and backfills that left, and of ends of runs, is remembered.
REMEMBERED: Final = 10


def _unreadable(rule: Rule, said: Said) -> Note:
    reason = said.error or "too many backfills wait"
    return (logging.ERROR, REMOVED, (rule.name, said.line[:LONGEST_LINE], reason))


def _take_request(state: State, said: Said) -> bool:
    """Add a trigger or a backfill to the waiting runs, in place; return whether there is room."""
    if said.id in state.ids or any(one.id == said.id for one in state.waiting):
        return True
    if said.kind == TRIGGER:
        state.waiting = (*state.waiting, Trigger(said.id, from_timestamp(said.at)))
        return True
    assert said.backfill is not None
    triggers = tuple(one for one in state.waiting if isinstance(one, Trigger))
    stored = " ".join(one.token for one in state.waiting if isinstance(one, Backfill))
    try:
        text = with_backfill(stored, said.backfill, bool(said.retries))
    except InvalidEntryError:
        return False
    state.waiting = (*triggers, *backfills_in(text))
    state.ids = _with_id(state.ids, said.id)
    return True


def _take_end(known: Known, state: State, end: Ended) -> Pause | None:
    """Take an end in, in place; return the pause if too many runs in a row failed."""
    now, limit = known.now, known.rule.policy.pause_after_failures
    take_end(state, end, now)
    failures = state.results.failures
    if end.state != FAILED or not limit or failures < limit or not known.rule.enabled:
        return None
    last = f", the last with {end.error}" if end.error else ""
    return Pause(now, f"{plural(failures, 'failed run')} in a row{last}", "pause_after_failures")


def take_end(state: State, end: Ended, now: float) -> None:
    """Take an end in, in place. A repeated report of a failed run does not count again."""
    if state.running is not None and state.running.id == end.id and end.state != RETRIED:
        state.running = None
    if not end.state:
        return
    success, failures, since, failed = state.results
    if end.state == SUCCEEDED:
        success, failures, failed = max(end.at, success or 0.0), 0, ()
    elif end.state == FAILED and end.id not in failed:
        failures, failed = failures + 1, _with_id(failed, end.id)
    state.results = Results(success, failures, now if since is None else since, failed)


def _paused(verdict: Verdict, pause: Pause) -> Verdict:
    """Return the verdict that also pauses the entry."""
    rest = verdict.rest
    if rest.end in (DISABLE, DELETE):
        return verdict
    state = rest.state.copy()
    state.pause = pause
    score = rest.score if state.hold or _has_trigger(state) else DISABLED
    return verdict._replace(rest=rest._replace(score=score, state=state, end=PAUSE))


def _has_trigger(state: State) -> bool:
    return any(isinstance(one, Trigger) for one in state.waiting)


# -- held runs -------------------------------------------------------------------------------------


def _judge_dead_hold(known: Known, held: Hold, notes: tuple[Note, ...]) -> Verdict:
    """Return the verdict about a held run whose beat died: it goes again, or may not.

    Nobody decides a held run again, because another decision is another run.
    """
    at = from_timestamp(held.at)
    if _forbids(known, held, at):
        return Verdict(None, _perhaps_sent(known, held, notes), "", known)
    send = Send(held.kind, at, held.trigger, held.missed, held)
    notes = (*notes, *_missed_notes(known, send))
    rest = _rest_of_held(known, held)._replace(missed=held.missed, notes=notes)
    if held.missed:
        rest = rest._replace(at=at)
    return Verdict(send, rest, "", known)


def _forbids(known: Known, held: Hold, at: datetime) -> bool:
    """Return whether the rules forbid that a held run goes again: paused, or past grace or end."""
    if held.kind == TRIGGERED:
        return False
    if not known.rule.enabled:
        return True
    if held.kind == BACKFILLED:
        return not any(one.id == held.trigger for one in known.state.waiting)
    plan, end = known.plan, known.plan.policy.end_time
    if end is not None and at > end:
        return True
    grace = plan.policy.misfire_grace_time
    if grace is None or asks_itself(plan.schedule) or known.never_ran:
        return False
    return _instant(known.now) - plan.due_at(at) > timedelta(seconds=grace)


def _rest_of_held(known: Known, held: Hold) -> Rest:
    """Return what is stored after a held run that counts as sent."""
    if held.kind != SCHEDULED:
        send = Send(held.kind, from_timestamp(held.at), held.trigger, 0, held)
        return _rest_of_waiting(known, send, (), _following(known, held))
    state = _state_after(known, held.at if held.anchor is None else held.anchor)
    return _with_finish(known, Rest(_score_after(known, state, counted=True), state, counts=True))


def _found_sent(known: Known, held: Hold, taken: Taken) -> Rest:
    """Return what is stored about a held run whose end was reported: it is recorded as sent."""
    rest = _rest_of_held(known, held)
    state = rest.state
    if rest.counts:
        rest = rest._replace(meta=_counted(known, state, known.now))
    if not taken.ended:
        state.running = _running(known.rule, held.id, known.now)
    outcome = {SCHEDULED: SENT, TRIGGERED: TRIGGERED_LINE, BACKFILLED: ""}[held.kind]
    return rest._replace(
        outcome=outcome, at=from_timestamp(held.at), task_id=held.id, notes=taken.notes
    )


def _perhaps_sent(known: Known, held: Hold, notes: tuple[Note, ...]) -> Rest:
    """Return what is stored about a held run that may have left and must not go again.

    A scheduled run counts, so that the entry does not exceed ``max_runs``.
    """
    rest, at = _rest_of_held(known, held), from_timestamp(held.at)
    state, last = rest.state, known.history.last_run_at
    state.running = _running(known.rule, held.id, known.now)
    note: Note = (logging.WARNING, NOT_AGAIN, (known.rule.name, at, held.id))
    rest = rest._replace(notes=(*notes, note))
    if held.kind != SCHEDULED:
        return rest
    meta = encode_meta(last or at, known.history.total_run_count + 1)
    state.meta = digest_of_meta(meta)
    return rest._replace(
        outcome=PERHAPS_SENT, at=at, missed=1, meta=meta, task_id=held.id, counts=True
    )


NOT_AGAIN: Final = (
    "beat: Entry %s: the run of %s may have been sent with id %s, not sending it again"
)


# -- the schedule ----------------------------------------------------------------------------------


def judge_schedule(known: Known, notes: tuple[Note, ...]) -> Verdict:
    """Return the verdict about the schedule's run, and about backfills."""
    state = known.state
    if not known.rule.enabled:
        rest = _with_waiting(known, Rest(DISABLED, state, notes=notes))
        return Verdict(None, rest, "", known)
    decision = _decision(known)
    at = decision.scheduled_at
    if at is None:
        return _judge_backfill(known, decision, notes)
    if state.running is not None and is_running(known):
        return Verdict(None, _overlapping(known, decision, notes), "", known)
    send = Send(SCHEDULED, at, "", decision.missed, None)
    if decision.missed:
        notes = (*notes, *_missed_notes(known, send))
    known.decision = decision
    after = _state_after(known, (decision.anchor or at).timestamp())
    line_at = at if decision.missed else None
    rest = Rest(score_of(decision.next_at), after, True, "", line_at, decision.missed, "", notes)
    return Verdict(send, _with_finish(known, rest), "", known)


def _decision(known: Known) -> Decision:
    """Return which occurrence of the schedule is due, and when the entry is due next."""
    plan, history, now = known.plan, known.history, _instant(known.now)
    anchor, runs = _anchor(known), history.total_run_count
    if anchor is None or asks_itself(plan.schedule):
        return _asked(known, anchor, now)
    last = history.last_run_at or anchor
    ahead = max(aware(last), anchor) > now + AHEAD and known.state.at is not None
    if ahead:
        last = anchor = min(anchor, now)
    change = known.state.change
    if change is not None:
        return decide_after_change(_plan_before(known, change), plan, change.at, anchor, now, runs)
    policy = plan.policy
    if policy is not DEFAULT and plan.exclusion is None and _decides_nothing(policy):
        plan = Plan(plan.schedule, plan.zone)
    decision = within_max_runs(decide(plan, last, anchor, now, now, runs), policy, runs)
    # With the old anchor, which is in the future, each decision would restart the wait.
    return decision._replace(anchor=now) if ahead and anchor is now else decision


def _decides_nothing(policy: Policy) -> bool:
    """Return whether a policy has no influence on occurrences, besides ``max_runs`` and calendars.

    Without such a policy, a decision takes a third of the time.
    """
    return (
        policy.coalesce == "latest"
        and policy.misfire_grace_time is None
        and policy.start_time is None
        and policy.end_time is None
        and not policy.jitter
        and not policy.spread
    )


def _asked(known: Known, anchor: datetime | None, now: datetime) -> Decision:
    """Return the decision about an entry that never ran, or whose schedule has its own is_due.

    Such an entry can be looked at before it is due, because of a trigger or of the end of a run.
    """
    plan, due, runs = known.plan, known.due, known.history.total_run_count
    asks = asks_itself(plan.schedule)
    if due <= now or (has_start(plan.schedule) and not asks):
        return decide(plan, known.history.last_run_at or anchor, anchor, now, due, runs)
    if asks:
        return Decision(None, due)
    first = plan.first_occurrence(due)
    at = first if first is None or first == due else plan.due_at(first)
    return within_max_runs(Decision(None, at), plan.policy, runs)


def _anchor(known: Known) -> datetime | None:
    """Return the instant from which the next run is computed, None if the entry never ran."""
    history, at = known.history, known.state.at
    if history.scheduled_at is not None:
        return history.scheduled_at
    if at is not None:
        return from_timestamp(at)
    return None if history.last_run_at is None else aware(history.last_run_at)


def _plan_before(known: Known, change: Change) -> Plan:
    """Return the plan of the entry until a change of its time zone or start time."""
    plan = known.plan
    try:
        zone = zone_named(change.timezone) if change.timezone else known.app_zone or plan.zone
    except ValueError:  # before Celery 5.7, the local time zone of a host has no name
        zone = celery_zones.local
    end = min(change.at, plan.policy.end_time or change.at)
    policy = replace(plan.policy, start_time=change.start_time, end_time=end)
    return replace(plan, zone=zone, policy=policy)


def _state_after(known: Known, anchor: float) -> State:
    """Return the state after an occurrence was used up; the next run is computed from ``anchor``.

    Older runs may be owed by an earlier time zone, which the state then keeps.
    """
    state = _without_hold(known.state)
    state.at, state.due, state.failing = anchor, None, None
    if state.change is not None and anchor >= state.change.at.timestamp():
        state.change = None
    return state


def _without_hold(state: State) -> State:
    """Return a copy without the hold and its mark: who published that run records nothing more."""
    state = state.copy()
    if state.hold is not None:
        state.hold, state.marks = None, state.marks._replace(hold="")
    return state


def _score_after(known: Known, state: State, *, counted: bool) -> float:
    """Return the next look after an occurrence was used up; ``counted`` if it was a run."""
    if not known.rule.enabled:
        return DISABLED
    if asks_itself(known.plan.schedule):
        return known.now
    assert state.at is not None
    last, runs, _ = known.history
    anchor = from_timestamp(state.at)
    history = History(_instant(known.now) if counted else last, runs + counted, anchor)
    decision = _decision(replace(known, history=history, state=state))
    return known.now if decision.due else score_of(decision.next_at)


def _not_due(known: Known, decision: Decision, notes: tuple[Note, ...]) -> Rest:
    """Return what is stored if no run is due, or if the runs are too late.

    Usually the next run is computed from the last run. If runs were missed, or if the last run is
    in the future, another instant is stored from which to compute it.
    """
    state, anchor = known.state, decision.anchor
    rest = Rest(score_of(decision.next_at), state, notes=notes)
    if anchor is not None and known.history.last_run_at is not None:
        rest = _from_other_anchor(known, decision, anchor, rest)
    elif state.failing is not None or (state.due is not None and not known.never_ran):
        after = state.copy()
        after.failing = None
        after.due = state.due if known.never_ran else None
        rest = rest._replace(state=after)
    return _with_finish(known, rest)


def _from_other_anchor(known: Known, decision: Decision, anchor: datetime, rest: Rest) -> Rest:
    name, count = known.rule.name, decision.missed
    state = _state_after(known, anchor.timestamp())
    if not count:
        note: Note = (logging.WARNING, IN_FUTURE, (name, _anchor(known)))
        return rest._replace(state=state, notes=(*rest.notes, note))
    note = (logging.WARNING, TOO_LATE, (name, plural(count, "run"), anchor))
    notes = (*rest.notes, note)
    return rest._replace(state=state, notes=notes, outcome=missed(count), at=anchor, missed=count)


TOO_LATE: Final = "beat: Entry %s missed %s up to %s: it is too late to catch up"
REPLACED: Final = "beat: Entry %s missed %s: the beat sent the run of %s, which replaces them"
IN_FUTURE: Final = (
    "beat: The last run of entry %s, at %s, is in the future: counting the next run from now"
)
WAITS: Final = "beat: Entry %s waits until its earlier run has ended"
SKIPS: Final = "beat: Entry %s skips the run of %s%s: an earlier run is still running"


def _missed_notes(known: Known, send: Send) -> tuple[Note, ...]:
    """Return what is logged about the occurrences that a run replaces."""
    if not send.missed:
        return ()
    # The shortest interval means as often as possible.
    shortest = getattr(known.rule.schedule, "run_every", timedelta.max) <= MIN_EVERY
    level = logging.INFO if shortest else logging.WARNING
    return ((level, REPLACED, (known.rule.name, plural(send.missed, "run"), send.at)),)


# -- overlap and the end of an entry ---------------------------------------------------------------


def is_running(known: Known) -> bool:
    """Return whether a run must wait because an earlier run of the entry may still be going on."""
    running = known.state.running
    if running is None or known.rule.policy.overlap == ALLOW:
        return False
    return known.now < running.until <= known.now + LONGEST_OVERLAP


def _running(rule: Rule, task_id: str, now: float) -> Running | None:
    """Return what to store about a run that left, None if runs may overlap."""
    if rule.policy.overlap == ALLOW or not task_id:
        return None
    return Running(task_id, now + rule.policy.overlap_timeout)


def _overlapping(known: Known, decision: Decision, notes: tuple[Note, ...]) -> Rest:
    """Return what is stored if a run is due while an earlier run is still going on."""
    running, name = known.state.running, known.rule.name
    assert running is not None
    at = decision.anchor or decision.scheduled_at
    if known.rule.policy.overlap == BUFFER_ONE or known.history.last_run_at is None or at is None:
        note: Note = (logging.DEBUG, WAITS, (name,))
        state = _with_due(known, known.state)
        return Rest(running.until, state, notes=(*notes, note), waits=running.id)
    before = f" and {plural(decision.missed, 'missed run')}" if decision.missed else ""
    note = (logging.WARNING, SKIPS, (name, at, before))
    state = _state_after(known, at.timestamp())
    score = score_of(decision.next_at)
    if not asks_itself(known.plan.schedule):
        score = _score_after(known, state, counted=False)
    rest = Rest(score, state, False, SKIPPED, at, decision.missed, "", (*notes, note))
    return _with_finish(known, rest)


def _with_due(known: Known, state: State) -> State:
    """Return the state that keeps the nominal time of a first run, whose score is moved."""
    if state.due is not None or not known.keeps_due:
        return state
    state = state.copy()
    state.due = known.due.timestamp()
    return state


def _with_finish(known: Known, rest: Rest) -> Rest:
    """Return ``rest`` with the end of an entry without further runs."""
    if rest.state.waiting:
        rest = _with_waiting(known, rest)
    if rest.score != PARKED:
        return rest
    on_finish = known.rule.policy.on_finish
    if on_finish == DELETE:
        return rest._replace(end=DELETE)
    if on_finish == DISABLE:
        return rest._replace(score=DISABLED, end=DISABLE)
    return rest if known.score < 0 and not rest.counts else rest._replace(end=PARK)


def _with_waiting(known: Known, rest: Rest) -> Rest:
    """Return ``rest`` with a look at the time at which a waiting run may leave."""
    enabled = known.rule.enabled
    times = [
        known.now if isinstance(one, Trigger) else one.ready_at
        for one in rest.state.waiting
        if isinstance(one, Trigger) or (enabled and one.ready_at is not None)
    ]
    at = min([time for time in times if time is not None], default=None)
    if at is None:
        return rest
    running = known.state.running
    if running is not None and is_running(known):
        at, rest = max(at, running.until), rest._replace(waits=running.id)
    return rest._replace(score=at if rest.score < 0 else min(at, rest.score))


# -- triggers and backfills ------------------------------------------------------------------------


def _rest_of_waiting(
    known: Known, send: Send, notes: tuple[Note, ...], following: datetime | None = None
) -> Rest:
    """Return what is stored after a triggered or backfilled run: the entry is due at once.

    Other triggers or a run of the schedule may be waiting. ``following`` is the nominal time of the
    next run of the backfill.
    """
    state, waiting = _without_hold(known.state), list[Waiting]()
    state.failing = None
    if known.keeps_due:
        state.due = known.due.timestamp()
    for one in state.waiting:
        if one.id != send.id:
            waiting.append(one)
        elif isinstance(one, Backfill):
            waiting.append(one.after_run(following, known.now))
    state.waiting = tuple(waiting)
    if send.kind == TRIGGERED:
        state.ids = _with_id(state.ids, send.id)
    return Rest(known.now, state, notes=notes)


def _with_id(ids: tuple[str, ...], new: str) -> tuple[str, ...]:
    return (new, *(one for one in ids if one != new))[:REMEMBERED]


def _judge_backfill(known: Known, decision: Decision, notes: tuple[Note, ...]) -> Verdict:
    """Return the verdict if no run of the schedule is due: the next run of a backfill may go."""
    rest = _not_due(known, decision, notes)
    from_other = decision.anchor is not None and known.history.last_run_at is not None
    backfill = _ready_backfill(known) if known.state.waiting and not from_other else None
    if backfill is None:
        return Verdict(None, rest, "", known)
    try:
        instants = backfill.instants(lambda since: _occurrences(known, since))
        instant, following = next(instants, None), next(instants, None)
    except TooManyStepsError:
        raise
    except (ValueError, OverflowError, OSError) as error:
        return Verdict(None, _without(known, backfill, error, notes), "", known)
    if instant is None:  # the schedule was changed, and the backfill has no runs left
        done = backfill.after_run(None, known.now, sent=0)
        return Verdict(None, Rest(known.now, _with(known, backfill, done), notes=notes), "", known)
    send = Send(BACKFILLED, instant, backfill.id, 0, None)
    after = _rest_of_waiting(known, send, notes, following)
    rest = _with_waiting(known, after._replace(score=score_of(decision.next_at)))
    return Verdict(send, rest._replace(score=known.now) if rest.score < 0 else rest, "", known)


def _ready_backfill(known: Known) -> Backfill | None:
    """Return the backfill whose run may leave now, None if there is none."""
    ready = [
        (one.ready_at, one)
        for one in known.state.waiting
        if isinstance(one, Backfill) and one.ready_at is not None and one.ready_at <= known.now
    ]
    if not ready or is_running(known):
        return None
    return min(ready, key=lambda pair: pair[0])[1]


def _occurrences(known: Known, since: datetime) -> Iterator[datetime]:
    """Yield the nominal times of the entry at ``since`` and later, ignoring ``max_runs``."""
    plan = known.plan
    if asks_itself(plan.schedule):
        problem = "the class has its own is_due(), so the runs of a span cannot be computed"
        raise InvalidEntryError("schedule", problem)
    plan = replace(plan, policy=replace(plan.policy, max_runs=None))
    return (run.scheduled_at for run in runs_from(plan, _anchor(known), 0, since, since))


def _following(known: Known, held: Hold) -> datetime | None:
    """Return the nominal time of the run that follows a held run of a backfill, None if none."""
    at = from_timestamp(held.at)
    for one in known.state.waiting:
        if isinstance(one, Backfill) and one.id == held.trigger:
            with suppress(ValueError, OverflowError, OSError):
                instants = one.instants(lambda since: _occurrences(known, since))
                return next((instant for instant in instants if instant > at), None)
    return None


def _with(known: Known, old: Backfill, new: Backfill) -> State:
    """Return the state with another text of a backfill."""
    state = known.state.copy()
    state.waiting = tuple(new if one is old else one for one in state.waiting)
    return state


def _without(known: Known, backfill: Backfill, error: Exception, notes: tuple[Note, ...]) -> Rest:
    """Return what is stored about a backfill that is not valid: it is removed."""
    state = known.state.copy()
    state.waiting = tuple(one for one in state.waiting if one is not backfill)
    note: Note = (logging.ERROR, REMOVED, (known.rule.name, backfill.token[:LONGEST_LINE], error))
    return Rest(known.now, state, notes=(*notes, note))


# -- what a change stores --------------------------------------------------------------------------


def record(
    verdict: Verdict, state: State, now: float, task_id: str, own_id: bool, left: bool
) -> Recorded:
    """Return what to store after the call that sent the run of ``verdict``.

    Arguments:
        state: the stored state; its identity stays.
        now: when the run was looked at, UNIX seconds.
        task_id: the id of the message.
        own_id: whether a reader can compute ``task_id`` from the nominal time.
        left: whether a message left. If not, the occurrence is used up and does not count.
    """
    send, rest, known = verdict.send, verdict.rest, verdict.known
    assert send is not None
    assert known is not None
    if not left:
        rest = _unused(known, rest)
        meta = rest.meta
    else:
        meta = _counted(known, rest.state, now) if rest.counts else None
        if known.rule.policy.overlap != ALLOW or rest.state.running is not None:
            rest.state.running = _running(known.rule, task_id, now)
    rest.state.marks = state.marks
    line = _line(send, now, task_id, own_id, left)
    return Recorded(rest.state, meta, line, rest.score, rest.end)


def _counted(known: Known, state: State, now: float) -> str:
    """Return the ``meta`` with one more run, and make ``state`` belong to it."""
    meta = encode_meta(datetime.fromtimestamp(now, UTC), known.history.total_run_count + 1 or None)
    state.meta = digest_of_meta(meta)
    return meta


def _meta_text(last_run_at: datetime | None, count: int) -> str:
    return encode_meta(last_run_at, count or None)


def _unused(known: Known, rest: Rest) -> Rest:
    """Return what is stored if the call of a run sent nothing: it is used up and does not count."""
    if not rest.counts:
        return rest
    assert rest.state.at is not None
    state, meta, score = _state_after(known, rest.state.at), None, rest.score
    if asks_itself(known.plan.schedule):  # it is asked about the last run
        meta = _meta_text(_instant(known.now), known.history.total_run_count)
        state.meta = digest_of_meta(meta)
    else:
        score = _score_after(known, state, counted=False)
    return _with_finish(known, Rest(score, state, meta=meta))


def _line(send: Send, now: float, task_id: str, own_id: bool, left: bool) -> str:
    """Return the history line of a run; a long backfill would push out those of the schedule."""
    if send.kind == BACKFILLED:
        return ""
    if own_id and left and send.kind == SCHEDULED:  # as run_line(), which takes more calls
        at = send.at.timestamp()
        short = f"{at:.6f}".rstrip("0").rstrip(".")
        return f'"{short} {f"{now - at:+.6f}".rstrip("0").rstrip(".")}"'
    outcome = SENT
    if not left:
        outcome, task_id = NOT_SENT, ""
    elif send.kind == TRIGGERED:
        outcome = TRIGGERED_LINE
    return quoted(run_line(nominal(send.at), now, outcome, task_id))


def record_held(
    rule: Rule,
    history: History,
    state: State,
    verdict: Verdict,
    now: float,
    task_id: str,
    own_id: bool,
    left: bool,
) -> Recorded:
    """Return what to store after a published run whose entry was changed in between.

    ``rule``, ``history`` and ``state`` are the entry as it is now; ``verdict`` is the one that was
    published. The history that an application wrote in between stays. The score is ``now``, so that
    the next look decides by the new texts.
    """
    send, known = verdict.send, verdict.facts
    assert send is not None
    fresh = replace(known, rule=rule, plan=rule.plan, history=history, state=state, now=now)
    line, meta = _line(send, now, task_id, own_id, left), None
    if send.kind == SCHEDULED:
        new = state.copy()
        new.hold, new.failing, new.due = None, None, None
        meta = _merged(fresh, known, verdict.rest, new, left)
    else:
        held = known.state.hold or Hold(send.kind, send.at.timestamp(), "", 0.0, send.id)
        new = _rest_of_waiting(fresh, send, (), _following(fresh, held)).state
    if left:
        new.running = _running(rule, task_id, now)
    return Recorded(new, meta, line, now, "")


def _merged(fresh: Known, known: Known, rest: Rest, new: State, left: bool) -> str | None:
    """Return the ``meta`` to store with a run, None to leave what an application wrote.

    ``known`` is the entry as it was when the run was decided, ``fresh`` as it is now. Makes ``new``
    belong to the result.
    """
    stored, before = fresh.history, known.history
    rewritten = not same_instant(stored.last_run_at, before.last_run_at)
    counted = stored.total_run_count != before.total_run_count
    last = stored.last_run_at if rewritten or not left else _instant(known.now)
    count = stored.total_run_count + (left and not counted)
    new.at = None if rewritten else rest.state.at
    old, texts = ((rule.definition, rule.policy_text) for rule in (known.rule, fresh.rule))
    recorded = History(last, count, None)
    merged = history_after_save(recorded, old, texts, _instant(fresh.now), rewritten=rewritten)
    if merged.last_run_at is not last:
        new.at = None
    if (merged.last_run_at, merged.total_run_count) == (stored.last_run_at, stored.total_run_count):
        return None
    meta = _meta_text(merged.last_run_at, merged.total_run_count)
    new.meta = digest_of_meta(meta)
    return meta


def record_unsent(verdict: Verdict, now: float) -> Recorded:
    """Return what to store if nothing leaves."""
    rest, line = verdict.rest, ""
    if rest.outcome and rest.at is not None:
        line = history_line(rest.at.timestamp(), now, rest.outcome, rest.task_id)
    return Recorded(rest.state, rest.meta, line, rest.score, rest.end)


def hold(verdict: Verdict, state: State, meta: str | None, until: float, task_id: str) -> State:
    """Return the state that holds the run of ``verdict`` until it is published and recorded.

    ``state`` is the stored state and ``meta`` the stored text. The change that makes the hold also
    takes the inbox in (``verdict.take``); the record then takes nothing.
    """
    send, rest, known = verdict.send, verdict.rest, verdict.facts
    assert send is not None
    new = _with_due(known, known.state.copy())
    new.marks, new.meta = state.marks, digest_of_meta(meta)
    at, anchor = send.at.timestamp(), rest.state.at if send.kind == SCHEDULED else None
    words = (until, send.id, send.missed, None if anchor == at else anchor)
    new.hold = Hold(send.kind, at, task_id, *words)
    return new


def release(state: State, held: Hold | None = None) -> State:
    """Return the state without its hold, because its run was not tried.

    ``held`` is the dead hold that the run would have repeated (``send.held``). It comes back, for
    it may have left already, and the next beat repeats it.
    """
    new = state.copy()
    new.hold, new.marks = held, state.marks._replace(hold="")
    return new


def put_back(
    verdict: Verdict, state: State, until: float, failing: Failing | None, *, unsure: bool
) -> State:
    """Return the state of an entry whose run could not be sent and is tried again at ``until``.

    ``state`` is the stored state. If the run may have left, it stays decided: it goes again at
    ``until`` with the same id and nominal time, and an end that is reported before proves that it
    left. Else the next look decides.
    """
    send, known = verdict.send, verdict.facts
    assert send is not None
    held = send.held or (state.hold if unsure else None)
    new = _with_due(known, known.state.copy())
    new.marks = state.marks if held else state.marks._replace(hold="")
    new.hold = None if held is None else held._replace(until=until)
    new.failing = failing
    return new


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
