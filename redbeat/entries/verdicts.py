"""The verdict about one entry: what leaves now, what is stored, and when to look again.

Pure functions of rule, history, state, inbox and time: no clock, no log, no Redis.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, NamedTuple

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import instant_in
from redbeat.entries import decide
from redbeat.entries import history as histories
from redbeat.entries import state as states
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import DISABLED, Decision, Plan, score_of
from redbeat.entries.history import PERHAPS_SENT, SENT, SKIPPED, History, encode_meta, run_line
from redbeat.entries.run import Rule, Run
from redbeat.entries.state import SCHEDULED, TRIGGERED, Ended, Hold, Pause, Said, State
from redbeat.errors import TooManyStepsError
from redbeat.printing import plural
from redbeat.schedules.next_run import MIN_EVERY

#: What becomes of an entry with no runs left, or with too many failed ones.
PARK, DISABLE, DELETE, PAUSE = "park", "disable", "delete", "pause"

ALLOW, BUFFER_ONE = "allow", "buffer_one"

#: A run that is retried has not ended.
SUCCEEDED, FAILED, RETRIED = "succeeded", "failed", "retried"

#: Seconds. A run whose end is further in the future counts as ended.
LONGEST_OVERLAP: Final = 1e9

#: A last run further in the future was recorded with a wrong clock.
AHEAD: Final = timedelta(seconds=decide.CLOCK_STEP)

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
        state: the new state, without the marks of the change; the judged state itself if nothing
            in it changes.
        counts: whether the run counts: ``total_run_count`` + 1.
        outcome: what the history says of a run that is not sent, "" for no line.
        at: the nominal time of that line, and of what replaces missed occurrences.
        end: "", ``park``, ``disable``, ``delete``, or ``pause`` (after too many failures).
        waits: the id of the run that the entry waits for (the field ``waits``), "" for none.
        meta: the ``meta`` to store, None to leave it.
    """

    score: float
    state: State
    counts: bool = False
    outcome: str = ""
    at: datetime | None = None
    missed: int = 0
    end: str = ""
    waits: str = ""
    meta: str | None = None
    line: str = ""

    def told(self, now: float, outcome: str, at: datetime, task_id: str = "") -> Rest:
        """Add the history line of an occurrence that is not sent now."""
        words = (outcome, task_id, self.missed)
        line = quoted(run_line(at.timestamp(), now, *words)) if outcome else ""
        return self._replace(outcome=outcome, at=at, line=line)


@dataclass(slots=True)  # frozen objects are slower to create
class Known:
    """What a verdict is made from.

    ``plan`` has the calendars. ``now`` is Redis's time at the look and ``score`` the entry's, both
    in UNIX seconds. ``state`` takes in the inbox. ``notes`` are lines to log once the change is
    done: level, message, arguments.
    """

    rule: Rule
    plan: Plan
    history: History
    state: State
    now: float
    score: float
    notes: tuple[Note, ...] = ()

    def note(self, level: int, message: str, *args: Any) -> None:
        self.notes += ((level, message, args),)

    @property
    def never_ran(self) -> bool:
        return self.history.last_run_at is None and self.state.at is None

    @property
    def due(self) -> datetime:
        """The nominal time of a first run: the score, or what the state keeps in its place."""
        kept = self.state.due
        due = self.score if kept is None else kept
        return (instant_in(due) if due >= 1 else None) or from_timestamp(self.now)


class Verdict(NamedTuple):
    """The decision about one entry.

    Attributes:
        take: the last inbox line that the verdict took in (``Change.take``), "" for none.
        ends: the ends of runs among these lines.
    """

    send: Send | None
    rest: Rest
    known: Known
    take: str = ""
    ends: tuple[Ended, ...] = ()


def judge(known: Known, inbox: Sequence[Said]) -> Verdict:
    """Judge an entry and its inbox. Raises whatever the schedule raises."""
    state, now = known.state, known.now
    if not (inbox or state.hold or state.waiting):
        return judge_schedule(known)
    held, ends = state.hold, ends_in(inbox, now)
    proofs = [end for end in ends if held is not None and end.id == held.id]
    if held is not None and held.until > now and not proofs:
        return Verdict(None, Rest(held.until, state), known)
    pause = _take_in(known, inbox, ends)
    if held is not None and proofs:
        verdict = Verdict(None, _found_sent(known, held, proofs), known)
    elif pause is not None:
        verdict = Verdict(None, Rest(now, known.state), known)
    elif held is not None:
        verdict = _judge_dead_hold(known, held)
    elif known.state.triggers and not is_running(known):
        trigger = known.state.triggers[0]
        send = Send(TRIGGERED, trigger.at, trigger.id, 0, None)
        verdict = Verdict(send, _rest_of_waiting(known, send), known)
    else:
        verdict = judge_schedule(known)
    told = tuple(end for end in ends if end.state)
    take = inbox[-1].line if inbox else ""
    return _paused(verdict, pause)._replace(take=take, ends=told)


def asked(verdict: Verdict) -> Verdict | None:
    """Let the entry object decide instead, if nothing leaves only because the schedule waits.

    The class of an entry may compute by itself whether it is due.
    """
    known, rest = verdict.known, verdict.rest
    if verdict.send is not None or rest.end or rest.outcome:
        return None
    waits = rest.score > known.now >= known.score
    if not waits or known.state.hold is not None or is_running(known):
        return None
    send = Send(SCHEDULED, from_timestamp(known.now), "", 0, None)
    return verdict._replace(send=send, rest=rest._replace(counts=True))


# -- the inbox -------------------------------------------------------------------------------------


def _take_in(known: Known, inbox: Sequence[Said], ends: Sequence[Ended]) -> Pause | None:
    """Take an inbox in: triggers wait, and ends are matched by task id.

    Puts a new state in ``known``. Anything that is already known is ignored, so taking a line twice
    changes nothing. Returns a pause after too many failed runs.
    """
    if not inbox:
        return None
    known.state, rule, pause = known.state.copy(), known.rule, None
    state, running = known.state, known.state.running
    limit = rule.policy.pause_after_failures
    for end in ends:
        take_end(state, end, known.now)
        failures = state.results.failures
        if end.state == FAILED and limit and failures >= limit and rule.enabled:
            last = f", the last with {end.error}" if end.error else ""
            note = f"{plural(failures, 'failed run')} in a row{last}"
            pause = Pause(known.now, note, "pause_after_failures")
    if running is not None and running.skipped and state.running is None:
        known.note(logging.WARNING, SKIPPED_SO_MANY, rule.name, running.skipped, running.id)
    _take_triggers(state, inbox)
    for said in inbox:
        if said.error:
            known.note(logging.ERROR, REMOVED, rule.name, said.line[:LONGEST_LINE], said.error)
    if pause is not None:
        known.note(logging.WARNING, PAUSED, rule.key, pause.note)
    return pause


def ends_in(inbox: Sequence[Said], now: float) -> list[Ended]:
    return [said.end._replace(at=min(said.end.at, now)) for said in inbox if said.end is not None]


def with_inbox(state: State, inbox: Sequence[Said], now: float) -> State:
    """The state as it will be once a beat has taken the inbox in, for those who show it."""
    state = state.copy()
    for end in ends_in(inbox, now):
        take_end(state, end, now)
    _take_triggers(state, inbox)
    return state


REMOVED: Final = "beat: Entry %s: removed the waiting run %a, which is not valid: %s"
PAUSED: Final = "beat: Entry %s is paused: %s"

#: Characters of an invalid line that are logged.
LONGEST_LINE: Final = 200

#: How many ids are remembered of triggers that left, and of ended runs.
REMEMBERED: Final = 10


def _take_triggers(state: State, inbox: Sequence[Said]) -> None:
    for said in inbox:
        known = {*state.ids, *(one.id for one in state.waiting)}
        if said.trigger is not None and said.trigger.id not in known:
            state.waiting = (*state.waiting, said.trigger)


def take_end(state: State, end: Ended, now: float) -> None:
    """A repeated report of a failed run doesn't count again."""
    if state.running is not None and state.running.id == end.id and end.state != RETRIED:
        state.running = None
    if not end.state:
        return
    success, failures, since, failed, last = state.results
    if end.state == SUCCEEDED:
        success, failures, failed = max(end.at, success or 0.0), 0, ()
    elif end.state == FAILED and end.id not in failed:
        failures, failed = failures + 1, _with_id(failed, end.id)
    last = last if end.state == RETRIED else end.state
    state.results = states.Results(success, failures, since or now, failed, last)


def _paused(verdict: Verdict, pause: Pause | None) -> Verdict:
    rest = verdict.rest
    if pause is None or rest.end in (DISABLE, DELETE):
        return verdict
    state = rest.state.copy()
    state.pause = pause
    score = rest.score if state.hold or state.triggers else DISABLED
    return verdict._replace(rest=rest._replace(score=score, state=state, end=PAUSE))


# -- held runs -------------------------------------------------------------------------------------


def _judge_dead_hold(known: Known, held: Hold) -> Verdict:
    """Judge a held run whose beat died: it goes again, or may not.

    Nobody decides it again, because another decision would be another run.
    """
    at = from_timestamp(held.at)
    if _forbids(known, held, at):
        return Verdict(None, _perhaps_sent(known, held), known)
    send = Send(held.kind, at, held.trigger, held.missed, held)
    return _leaving(known, send, _rest_of_held(known, held))


def _forbids(known: Known, held: Hold, at: datetime) -> bool:
    """Whether the held run must not go again: paused, or past grace or end."""
    if held.kind == TRIGGERED:
        return False
    if not known.rule.enabled:
        return True
    if held.kind == states.BACKFILLED:
        return not any(one.id == held.trigger for one in known.state.waiting)
    plan, end = known.plan, known.plan.policy.end_time
    if end is not None and at > end:
        return True
    grace = plan.policy.misfire_grace_time
    if grace is None or known.rule.asks or known.never_ran:
        return False
    return from_timestamp(known.now) - plan.due_at(at) > timedelta(seconds=grace)


def _rest_of_held(known: Known, held: Hold) -> Rest:
    if held.kind != SCHEDULED:
        send = Send(held.kind, from_timestamp(held.at), held.trigger, 0, held)
        return _rest_of_waiting(known, send)
    state = _state_after(known, held.at if held.anchor is None else held.anchor)
    return _with_finish(known, Rest(_score_after(known, state, counted=True), state, counts=True))


def _as_sent(known: Known, held: Hold, last: datetime, outcome: str) -> Rest:
    rest = _rest_of_held(known, held)._replace(missed=held.missed)
    if rest.counts:
        count = known.history.total_run_count + 1
        rest = rest._replace(meta=_new_meta(rest.state, last, count))
    return rest.told(known.now, outcome, from_timestamp(held.at), held.id)


def _found_sent(known: Known, held: Hold, proofs: Sequence[Ended]) -> Rest:
    outcome = {SCHEDULED: SENT, TRIGGERED: TRIGGERED, states.BACKFILLED: ""}[held.kind]
    rest = _as_sent(known, held, from_timestamp(known.now), outcome)
    if all(end.state == RETRIED for end in proofs):
        rest.state.running = _running(known.rule, held.id, known.now)
    return rest


def _perhaps_sent(known: Known, held: Hold) -> Rest:
    """The run may have left: it counts, so that the entry does not exceed ``max_runs``."""
    at, is_scheduled = from_timestamp(held.at), held.kind == SCHEDULED
    last, outcome = known.history.last_run_at or at, PERHAPS_SENT if is_scheduled else ""
    rest = _as_sent(known, held, last, outcome)
    rest.state.running = _running(known.rule, held.id, known.now)
    known.note(logging.WARNING, NOT_AGAIN, known.rule.name, at, held.id)
    return rest._replace(missed=held.missed + is_scheduled)


NOT_AGAIN: Final = (
    "beat: Entry %s: the run of %s may have been sent with id %s, not sending it again"
)


# -- the schedule ----------------------------------------------------------------------------------


def judge_schedule(known: Known) -> Verdict:
    state = known.state
    if not known.rule.enabled:
        return Verdict(None, _with_waiting(known, Rest(DISABLED, state)), known)
    decision = _decision(known)
    at = decision.scheduled_at
    if at is None:
        return _judge_backfill(known, decision)
    if state.running is not None and is_running(known):
        return Verdict(None, _overlapping(known, decision), known)
    send = Send(SCHEDULED, at, "", decision.missed, None)
    after = _state_after(known, (decision.anchor or at).timestamp())
    score = decide.PARKED if decision.next_at is None else decision.next_at.timestamp()
    return _leaving(known, send, _with_finish(known, Rest(score, after, True)))


def _decision(known: Known) -> Decision:
    plan, history, now = known.plan, known.history, datetime.fromtimestamp(known.now, UTC)
    anchor, runs = _anchor(known), history.total_run_count
    if anchor is None or known.rule.asks:
        return _asked(known, anchor, now)
    last = history.last_run_at or anchor
    ahead = known.state.at is not None and max(decide.aware(last), anchor) > now + AHEAD
    if ahead:
        last = anchor = min(anchor, now)
    decision = decide.decide(plan, last, anchor, now, now, runs)
    # With the old anchor, which is in the future, each decision would restart the wait.
    return decision._replace(anchor=now) if ahead and anchor is now else decision


def _asked(known: Known, anchor: datetime | None, now: datetime) -> Decision:
    """Decide for an entry that never ran, or whose schedule has its own is_due.

    A trigger or the end of a run can bring a look at such an entry before it is due.
    """
    plan, due, runs = known.plan, known.due, known.history.total_run_count
    asks = known.rule.asks
    if due <= now or (decide.has_start(plan.schedule) and not asks):
        return decide.decide(plan, known.history.last_run_at or anchor, anchor, now, due, runs)
    if asks:
        return Decision(None, due)
    first = plan.first_occurrence(due)
    at = first if first is None or first == due else plan.due_at(first)
    return decide.within_max_runs(Decision(None, at), plan.policy, runs)


def _anchor(known: Known) -> datetime | None:
    return anchor_of(known.history, known.state)


def anchor_of(history: History, state: State) -> datetime | None:
    """The instant from which the next run is computed, None if the entry never ran."""
    if state.at is not None:
        return from_timestamp(state.at)
    return None if history.last_run_at is None else decide.aware(history.last_run_at)


def _state_after(known: Known, anchor: float) -> State:
    state = known.state.copy() if known.state.hold is None else _without_hold(known.state)
    state.at, state.due, state.failing = anchor, None, None
    return state


def _without_hold(state: State) -> State:
    """Also without the hold's mark: whoever published that run records nothing more."""
    state = state.copy()
    if state.hold is not None:
        state.hold, state.marks = None, state.marks._replace(hold="")
    return state


def _score_after(known: Known, state: State, *, counted: bool) -> float:
    """The next look after an occurrence is used up; ``counted`` if it was a run."""
    if not known.rule.enabled:
        return DISABLED
    if known.rule.asks:
        return known.now
    assert state.at is not None
    last, runs, _ = known.history
    history = History(from_timestamp(known.now) if counted else last, runs + counted)
    decision = _decision(replace(known, history=history, state=state))
    return known.now if decision.due else score_of(decision.next_at)


def _not_due(known: Known, decision: Decision) -> Rest:
    """No run is due, or the runs are too late.

    If runs were missed, or if the last run is in the future, another instant is stored from which
    to compute the next run.
    """
    state, anchor, count = known.state, decision.anchor, decision.missed
    rest, name = Rest(score_of(decision.next_at), state), known.rule.name
    if anchor is not None and known.history.last_run_at is not None:
        rest = rest._replace(state=_state_after(known, anchor.timestamp()))
        if count:
            known.note(logging.WARNING, TOO_LATE, name, plural(count, "run"), anchor)
            rest = rest._replace(missed=count).told(known.now, "missed", anchor)
        else:
            known.note(logging.WARNING, IN_FUTURE, name, _anchor(known))
    elif state.failing is not None or (state.due is not None and not known.never_ran):
        after = state.copy()
        after.failing = None
        after.due = state.due if known.never_ran else None
        rest = rest._replace(state=after)
    return _with_finish(known, rest)


TOO_LATE: Final = "beat: Entry %s missed %s up to %s: it is too late to catch up"
REPLACED: Final = "beat: Entry %s missed %s: the beat sent the run of %s, which replaces them"
IN_FUTURE: Final = (
    "beat: The last run of entry %s, at %s, is in the future: counting the next run from now"
)
WAITS: Final = "beat: Entry %s waits until its earlier run has ended"
SKIPS: Final = "beat: Entry %s skips the run of %s%s: an earlier run is still running: %s"
SKIPPED_SO_MANY: Final = "beat: Entry %s skips no more runs, after %d: task %s has ended"


def _leaving(known: Known, send: Send, rest: Rest) -> Verdict:
    if send.missed:
        # The shortest interval means as often as possible.
        shortest = getattr(known.rule.schedule, "run_every", timedelta.max) <= MIN_EVERY
        level = logging.INFO if shortest else logging.WARNING
        known.note(level, REPLACED, known.rule.name, plural(send.missed, "run"), send.at)
        rest = rest._replace(at=send.at, missed=send.missed)
    return Verdict(send, rest, known)


# -- overlap and the end of an entry ---------------------------------------------------------------


def is_running(known: Known) -> bool:
    """Whether a run must wait because an earlier one may still be going on."""
    running = known.state.running
    if running is None or known.rule.policy.overlap == ALLOW:
        return False
    return known.now < running.until <= known.now + LONGEST_OVERLAP


def _running(rule: Rule, task_id: str, now: float) -> states.Running | None:
    if rule.policy.overlap == ALLOW or not task_id:
        return None
    return states.Running(task_id, now + rule.policy.overlap_timeout, now)


def _overlapping(known: Known, decision: Decision) -> Rest:
    running, name = known.state.running, known.rule.name
    assert running is not None
    at = decision.anchor or decision.scheduled_at
    if known.rule.policy.overlap == BUFFER_ONE or known.history.last_run_at is None or at is None:
        known.note(logging.DEBUG, WAITS, name)
        state = known.state.copy()
        _keep_due(known, state)
        return Rest(running.until, state, waits=running.id)
    before = f" and {plural(decision.missed, 'missed run')}" if decision.missed else ""
    level = logging.DEBUG if running.skipped else logging.WARNING
    known.note(level, SKIPS, name, at, before, running.task)
    state = _state_after(known, at.timestamp())
    state.running = running._replace(skipped=running.skipped + decision.missed + 1)
    score = score_of(decision.next_at)
    if not known.rule.asks:
        score = _score_after(known, state, counted=False)
    rest = Rest(score, state, missed=decision.missed).told(known.now, SKIPPED, at)
    return _with_finish(known, rest)


def _keep_due(known: Known, state: State) -> None:
    """Keep the nominal time of a first run before its score is moved."""
    may_be_due = known.rule.enabled and (known.never_ran or known.rule.asks)
    if state.due is None and may_be_due:
        state.due = known.due.timestamp()


def _with_finish(known: Known, rest: Rest) -> Rest:
    """End an entry that has no runs left."""
    if rest.state.waiting:
        rest = _with_waiting(known, rest)
    if rest.score != decide.PARKED:
        return rest
    on_finish = known.rule.policy.on_finish
    if on_finish == DELETE:
        return rest._replace(end=DELETE)
    if on_finish == DISABLE:
        return rest._replace(score=DISABLED, end=DISABLE)
    return rest if known.score < 0 and not rest.counts else rest._replace(end=PARK)


def _with_waiting(known: Known, rest: Rest) -> Rest:
    """Look again when a waiting run may leave."""
    times = [known.now] if rest.state.triggers else []
    if known.rule.enabled:
        times += [one.ready_at for one in rest.state.backfills if one.ready_at is not None]
    if not times:
        return rest
    at = min(times)
    running = known.state.running
    if running is not None and is_running(known):
        at, rest = max(at, running.until), rest._replace(waits=running.id)
    return rest._replace(score=at if rest.score < 0 else min(at, rest.score))


# -- triggers and backfills ------------------------------------------------------------------------


def _rest_of_waiting(known: Known, send: Send) -> Rest:
    """The entry is due at once: other triggers, or a run of the schedule, may be waiting."""
    state = _without_hold(known.state)
    state.failing = None
    _keep_due(known, state)
    triggers = [one for one in state.triggers if one.id != send.id]
    backfills = [
        one.after_run(send.at, known.now) if one.id == send.id else one for one in state.backfills
    ]
    state.waiting = (*triggers, *backfills)
    if send.kind == TRIGGERED:
        state.ids = _with_id(state.ids, send.id)
    return Rest(known.now, state)


def _with_id(ids: tuple[str, ...], new: str) -> tuple[str, ...]:
    return (new, *(one for one in ids if one != new))[:REMEMBERED]


def _judge_backfill(known: Known, decision: Decision) -> Verdict:
    rest = _not_due(known, decision)
    from_other = decision.anchor is not None and known.history.last_run_at is not None
    backfill = _ready_backfill(known) if known.state.waiting and not from_other else None
    if backfill is None:
        return Verdict(None, rest, known)
    try:
        occurrences = partial(known.plan.occurrences_from, _anchor(known))
        instant = next(backfill.instants(occurrences), None)
    except TooManyStepsError:
        raise
    except (ValueError, OverflowError, OSError) as error:
        known.note(logging.ERROR, REMOVED, known.rule.name, backfill.id[:LONGEST_LINE], error)
        return Verdict(None, Rest(known.now, _replaced(known.state, backfill)), known)
    if instant is None:  # the schedule was changed, and nothing is left to backfill
        done = _replaced(known.state, backfill, backfill.without_rest())
        return Verdict(None, Rest(known.now, done), known)
    send = Send(states.BACKFILLED, instant, backfill.id, 0, None)
    after = _rest_of_waiting(known, send)
    rest = _with_waiting(known, after._replace(score=score_of(decision.next_at)))
    return Verdict(send, rest._replace(score=known.now) if rest.score < 0 else rest, known)


def _ready_backfill(known: Known) -> Backfill | None:
    ready = [(one.ready_at, one) for one in known.state.backfills if one.ready_at is not None]
    at, first = min(ready, key=lambda pair: pair[0], default=(math.inf, None))
    return None if at > known.now or is_running(known) else first


def _replaced(state: State, old: Backfill, *new: Backfill) -> State:
    state = state.copy()
    at = state.waiting.index(old)
    state.waiting = (*state.waiting[:at], *new, *state.waiting[at + 1 :])
    return state


# -- what a change stores --------------------------------------------------------------------------


def record(
    verdict: Verdict, state: State, now: float, task_id: str, own_id: bool, left: bool
) -> Rest:
    """What to store after the call that sent the run of ``verdict``, still without a mark.

    Arguments:
        state: the stored state.
        now: when the run was looked at, UNIX seconds.
        own_id: whether a reader can compute ``task_id`` from the nominal time.
        left: whether a message left. If not, the occurrence is used up and does not count.
    """
    send, rest, known = verdict.send, verdict.rest, verdict.known
    assert send is not None
    if not left:
        rest = _unused(known, rest)
        meta = rest.meta
    else:
        count = known.history.total_run_count + 1
        last = datetime.fromtimestamp(now, UTC)
        meta = _new_meta(rest.state, last, count) if rest.counts else None
        if known.rule.policy.overlap != ALLOW or rest.state.running is not None:
            rest.state.running = _running(known.rule, task_id, now)
        if not own_id:  # nobody else can tell that the id belongs to the entry
            rest.state.ids = _with_id(rest.state.ids, task_id)
    rest.state.marks = state.marks
    line = _line(send, now, task_id, own_id, left)
    return rest._replace(meta=meta, line=line)


def _new_meta(state: State, last_run_at: datetime | None, count: int) -> str:
    """Return the text of ``meta``, and make ``state`` belong to it."""
    meta = encode_meta(last_run_at, count or None)
    state.meta = states.digest_of_meta(meta)
    return meta


def _unused(known: Known, rest: Rest) -> Rest:
    """The call of a run sent nothing: the run is used up and does not count."""
    if not rest.counts:
        return rest
    assert rest.state.at is not None
    state, meta, score = _state_after(known, rest.state.at), None, rest.score
    if known.rule.asks:  # its is_due gets the last run
        meta = _new_meta(state, from_timestamp(known.now), known.history.total_run_count)
    else:
        score = _score_after(known, state, counted=False)
    return _with_finish(known, Rest(score, state, meta=meta))


def _line(send: Send, now: float, task_id: str, own_id: bool, left: bool) -> str:
    """A backfill has no lines: a long one would push out those of the schedule."""
    if send.kind == states.BACKFILLED:
        return ""
    at = send.at.timestamp()
    if not left:
        return quoted(run_line(at, now, NOT_SENT))
    usual = "" if own_id else SENT
    outcome = TRIGGERED if send.kind == TRIGGERED else usual
    return quoted(run_line(at, now, outcome, task_id, send.missed))


def record_held(verdict: Verdict, run: Run, task_id: str, own_id: bool, left: bool) -> Rest:
    """What to store after a published run whose entry was changed in between.

    ``run`` has the entry as it is now; ``verdict`` is the one that was published. A history that an
    application wrote in between stays. The score is the time of ``run``, so that the next look
    decides by the new definition and policy.
    """
    send, known = verdict.send, verdict.known
    assert send is not None
    rule = run.rule
    fresh = Known(rule, rule.plan, run.history, run.state, run.now, known.score)
    line, meta = _line(send, run.now, task_id, own_id, left), None
    if send.kind == SCHEDULED:
        new = run.state.copy()
        new.hold, new.failing, new.due = None, None, None
        meta = _merged(fresh, known, verdict.rest, new, left)
    else:
        new = _rest_of_waiting(fresh, send).state
    if left:
        new.running = _running(rule, task_id, run.now)
    return Rest(run.now, new, meta=meta, line=line)


def _merged(fresh: Known, known: Known, rest: Rest, new: State, left: bool) -> str | None:
    """The ``meta`` to store with a run, None to leave what an application wrote.

    ``known`` is the entry as of the decision, ``fresh`` as it is now. ``new`` is made to belong to
    the result.
    """
    stored, before = fresh.history, known.history
    rewritten = not decide.same_instant(stored.last_run_at, before.last_run_at)
    counted = stored.total_run_count != before.total_run_count
    last = stored.last_run_at if rewritten or not left else from_timestamp(known.now)
    count = stored.total_run_count + (left and not counted)
    new.at = None if rewritten else rest.state.at
    old, texts = ((rule.definition, rule.policy_text) for rule in (known.rule, fresh.rule))
    recorded = History(last, count, None)
    now = from_timestamp(fresh.now)
    merged = histories.history_after_save(recorded, old, texts, now, rewritten=rewritten)
    if merged.last_run_at is not last:
        new.at = None
    if (merged.last_run_at, merged.total_run_count) == (stored.last_run_at, stored.total_run_count):
        return None
    return _new_meta(new, merged.last_run_at, merged.total_run_count)


def hold(verdict: Verdict, state: State, meta: str | None, until: float, task_id: str) -> State:
    """The state that holds the run of ``verdict`` until it is published and recorded.

    ``state`` and ``meta`` are the stored ones. The change that makes the hold also takes the inbox
    in (``verdict.take``); the record then takes nothing.
    """
    send, rest, known = verdict.send, verdict.rest, verdict.known
    assert send is not None
    new = known.state.copy()
    _keep_due(known, new)
    new.marks, new.meta = state.marks, states.digest_of_meta(meta)
    at, anchor = send.at.timestamp(), rest.state.at if send.kind == SCHEDULED else None
    words = (until, send.id, send.missed, None if anchor == at else anchor)
    new.hold = Hold(send.kind, at, task_id, *words)
    return new


def put_back(
    verdict: Verdict, state: State, until: float, failing: states.Failing | None, *, unsure: bool
) -> State:
    """The state of an entry whose run could not be sent and is tried again at ``until``.

    ``state`` is the stored one. A run that may have left stays decided: it goes again at ``until``
    with the same id and nominal time, and an end reported before then proves that it left.
    Otherwise the next look decides.
    """
    send, known = verdict.send, verdict.known
    assert send is not None
    held = send.held or (state.hold if unsure else None)
    new = known.state.copy()
    _keep_due(known, new)
    new.marks = state.marks if held else state.marks._replace(hold="")
    new.hold = None if held is None else held._replace(until=until)
    new.failing = failing
    return new
