"""Checks the record of a simulation against the documented rules, and against nothing else.

Instants are seconds since the beginning. Nominal instants are UNIX seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

from tests.simulation.deadlines import (
    HELD,
    deadline_of,
    judge_failures,
    judge_reported_ends,
    judge_set,
)
from tests.simulation.lateness import LOOK, PROMPT, SAME, judge_delays, judge_lateness
from tests.simulation.record import Action, Arrival, Record
from tests.simulation.scenario import CLOCK_FAULTS, STEP_FAULTS

#: Seconds after an edit in which an undisturbed beat may still send runs it decided before.
IN_HAND: Final = 0.1
#: Maximum seconds by which a message expires too early or too late.
EXPIRES: Final = 2.0
#: Normal operations on beats: they delay runs and repeat none.
UPKEEP: Final = frozenset(("stop", "deploy", "scripts forgotten"))

DAY: Final = 86400
#: Kinds of entries that run at a fixed interval from their first run.
INTERVALS: Final = ("every", "foreign")

#: Fields that determine when an entry runs; some of them count from the entry's creation.
TIMING: Final = frozenset(
    (
        *("kind", "seconds", "freq", "interval", "count", "after", "timezone", "start", "end"),
        *("minute", "hour", "day_of_week", "day_of_month", "month_of_year"),
        *("byhour", "byminute", "bysecond", "zone"),
    )
)
MADE: Final = "made_at"

#: Fields of the policy. A program without RedBeat writes them into the definition.
POLICY: Final = frozenset(
    (
        *("catch_up_limit", "coalesce", "delivery", "end", "exclude", "jitter", "max_runs"),
        *("misfire_grace_time", "on_finish", "overlap", "spread", "start", "timezone"),
    )
)
WINDOW: Final = frozenset(("start", "end"))

#: The error with which RedBeat refuses an entry.
INVALID: Final = "InvalidEntryError"
#: A part of this error if an entry is not in the set of due times.
UNSCHEDULED: Final = "is not scheduled"

#: Disturbances after which an interval starts a new series of runs.
NEW_GRID: Final = ("server clock", "legacy")
#: Disturbances that belong to a switch to or from a RedBeat 2.4.2 beat.
LEGACY: Final = ("legacy", "stop")

INFINITY: Final = float("inf")

#: Seconds between the instants of a rule with an interval of 1.
UNITS: Final = {"SECONDLY": 1, "MINUTELY": 60}


@dataclass(frozen=True, slots=True)
class State:
    """The state of an entry after an operation of an application.

    The operation began at ``began`` and ended at ``since``. ``definition`` is None if the entry
    does not exist or may not exist.
    """

    began: float
    since: float
    until: float = INFINITY
    #: When the operation returned; until then, the previous state may still be in effect.
    returned: float = 0.0
    definition: dict[str, Any] | None = None
    versions: frozenset[int] = frozenset()
    paused: bool = False
    certain: bool = True
    #: Whether the entry did not exist before.
    new: bool = False
    #: Whether the entry runs immediately, like every entry without a history.
    at_once: bool = False
    #: Whether the entry must run immediately, because its history was just deleted.
    now: bool = False
    #: The policy that RedBeat stored, which a program without RedBeat leaves as it is.
    policy: dict[str, Any] = field(default_factory=dict)
    #: Whether the entry starts to count its runs from zero.
    armed: bool = False
    #: Whether the entry was saved with another schedule, which makes a finished entry run again.
    changed: bool = False

    @property
    def runs(self) -> bool:
        """Return whether the entry runs at least once if its schedule has an occurrence."""
        return self.new or self.armed or self.changed


@dataclass(slots=True)
class Judgement:
    """The violations found in a record, one line each."""

    record: Record
    wrong: list[str] = field(default_factory=list)

    @property
    def recovery(self) -> float:
        """Return the seconds after the end of a fault within which everything works again."""
        if self.record.scenario.recovery:
            return self.record.scenario.recovery
        scenario = self.record.scenario
        return min(scenario.lock_timeout, 25.0) + HELD + 20.0

    def disturbed(self, begin: float, end: float, but: frozenset[str] = frozenset()) -> bool:
        """Return whether a fault affects a period; ``but`` lists kinds of faults to ignore."""
        return any(
            begin <= last + self.recovery and first <= end
            for first, last, kind in self.record.disturbances
            if kind not in but
        )

    def held_up(self, begin: float, end: float) -> bool:
        """Return whether a written message can have arrived late, because no beat can recall it."""
        return any(
            kind in {"freeze", "request delayed", "slow"} and begin <= last and first <= end
            for first, last, kind in self.record.disturbances
        )

    def clock_changed(self, begin: float, end: float) -> bool:
        """Return whether the clock of the schedule's server jumped in a period."""
        return any(
            kind == "server clock" and (begin <= first <= end or begin <= last <= end)
            for first, last, kind in self.record.disturbances
        )

    def was_forgotten(self, at: float) -> bool:
        """Return whether Redis lost all data when a run was due, so that no run can catch it up."""
        return any(
            kind == "no data" and first <= at <= last + self.recovery
            for first, last, kind in self.record.disturbances
        )

    def is_set_lost(self, at: float) -> bool:
        """Return whether the set of due times was lost, and beats may not have noticed it yet."""
        return any(
            kind == "set lost" and first <= at <= last + LOOK
            for first, last, kind in self.record.disturbances
        )

    @property
    def leaves_with_record(self) -> bool:
        """Return whether a message and its record are one step, as with one server for both."""
        return not self.record.scenario.separate_broker and not self.record.legacy_leads

    def is_led_by_legacy(self, at: float) -> bool:
        """Return whether a RedBeat 2.4.2 beat has led for some time without a disturbance."""
        others = [fault for fault in self.record.disturbances if fault[2] not in LEGACY]
        return any(
            begin + IN_HAND < at < end
            and not any(first <= at <= last + self.recovery for first, last, _ in others)
            for begin, end in self.record.legacy_leads
        )

    def unix(self, seconds: float) -> float:
        return self.record.scenario.start + seconds

    def fail(self, entry: str, at: float, what: str) -> None:
        self.wrong.append(f"{at:10.3f} s  {entry}: {what}")


def judge(record: Record) -> list[str]:
    """Return the violations, one line each; an empty list means that the record is correct."""
    # The clock of Redis decides, so a changed clock of a host explains no violation.
    faults = [fault for fault in record.disturbances if fault[2] not in CLOCK_FAULTS]
    record = replace(record, disturbances=[lasting(record, fault) for fault in faults])
    judgement = Judgement(record)
    for at, beat, error in record.exits:
        judgement.fail(beat, at, f"the beat exited: {error}")
    for at, beat, name in record.loops:
        judgement.fail(name, at, f"{beat} reads it again and again, and nothing changes: busy loop")
    judge_leader(judgement)
    judge_quarantine(judgement)
    judge_the_end(judgement)
    judge_set(judgement)
    judge_failures(judgement, bad_entries(record))
    judge_lead(judgement)
    judge_names(judgement)
    judge_refusals(judgement)
    arrivals = defaultdict(list)
    for arrival in record.arrivals:
        arrivals[arrival.entry].append(arrival)
    actions = defaultdict(list)
    for action in record.actions:
        actions[action.step.entry].append(action)
    for name in sorted({*arrivals, *actions, *record.scenario.statics}):
        states = states_of(name, actions[name], record)
        Entry(judgement, name, arrivals[name], actions[name], states).judge()
    return judgement.wrong


def lasting(record: Record, fault: tuple[float, float, str]) -> tuple[float, float, str]:
    """Return a fault as long as it explains anything: a beat frozen for good hinders nobody."""
    first, last, kind = fault
    return (first, first, kind) if last > record.scenario.duration else fault


def judge_lead(judgement: Judgement) -> None:
    """Check that one beat sends all messages if there is a lock."""
    if not judgement.record.scenario.locked:
        return
    for earlier, later in pairwise(judgement.record.arrivals):
        if earlier.sender != later.sender and not judgement.disturbed(earlier.at, later.at):
            judgement.fail(later.sender, later.at, f"sends while {earlier.sender} leads")


def judge_names(judgement: Judgement) -> None:
    """Check that no two entries have the same id."""
    names: dict[str, str] = {}
    for arrival in judgement.record.arrivals:
        other = names.setdefault(arrival.task_id, arrival.entry)
        if other != arrival.entry:
            judgement.fail(arrival.entry, arrival.at, f"has an id of {other}")


def judge_refusals(judgement: Judgement) -> None:
    """Check that no good entry is refused as invalid, except a trigger without a due time."""
    for action in judgement.record.actions:
        lost = UNSCHEDULED in action.outcome and judgement.is_set_lost(action.began)
        if INVALID in action.outcome and not lost:
            judgement.fail(action.step.entry, action.began, f"was refused: {action.outcome}")


def judge_leader(judgement: Judgement) -> None:
    """Check that a leader that must keep the lock keeps it."""
    record = judgement.record
    if record.scenario.leader:
        for at, host in record.holders:
            if host != record.scenario.leader:
                judgement.fail(host, at, f"took the lock from {record.scenario.leader}")


def judge_quarantine(judgement: Judgement) -> None:
    """Check that only bad entries are quarantined."""
    record = judgement.record
    bad = {f"redbeat:{name}" for name in bad_entries(record)}
    for key in sorted({*record.quarantined} - bad):
        judgement.fail(key, record.scenario.duration, "a good entry is in quarantine")


def judge_the_end(judgement: Judgement) -> None:
    """Check that healthy beats have sent what is due, and that no good entry is still failing."""
    record, end = judgement.record, judgement.record.scenario.duration
    if judgement.disturbed(end - LOOK, end) or record.legacy_leads:
        return
    bad = bad_entries(record)
    for name, seconds in record.overdue.items():
        if seconds > LOOK and name not in bad:
            judgement.fail(name, end, f"is due for {seconds:.1f} s, and no beat looks at it")
    for name in sorted({*record.failing} - bad):
        judgement.fail(name, end, "is still failing, although nothing hinders its runs")


def bad_entries(record: Record) -> set[str]:
    """Return the names of the entries that may fail."""
    definitions = {action.step.entry: action.definition for action in record.actions}
    definitions.update(record.scenario.statics)
    return {name for name, one in definitions.items() if one and is_bad(one)}


def is_bad(definition: dict[str, Any]) -> bool:
    """Return whether an entry may fail because its user-defined schedule class is defective."""
    return definition.get("kind") == "own" or "answer" in definition


def states_of(name: str, actions: list[Action], record: Record) -> list[State]:
    """Return the states of an entry in order.

    A failed operation may have been executed or not, and the order of two concurrent operations is
    unknown. The state is then uncertain until the whole entry is saved again.
    """
    states = [State(0.0, 0.0)]
    statics = record.scenario.statics
    if name in statics:
        definition = {**statics[name], "made_at": 0.0}
        states.append(State(0.0, 1.0, definition=definition, versions=frozenset({0}), new=True))
    busy_until = -1.0
    events: list[tuple[float, Any]] = [(action.began, action) for action in actions]
    events += [(at, back_to) for at, back_to in record.rollbacks]
    for at, action in sorted(events, key=lambda event: event[0]):
        last = states[-1]
        if isinstance(action, float):
            states[-1] = replace(last, until=at)
            deployed = [one.ended for one in actions if one.step.who == "beats" and one.began <= at]
            if name in statics or deployed:
                since = max(deployed, default=0.0)
                back = written_again(last, since <= (at if action == 0.0 else action))
            else:
                back = at_time(states, action)
            states.append(replace(back, began=at, since=at, until=INFINITY, returned=at))
            continue
        overlapping = action.began <= busy_until
        busy_until = max(busy_until, action.ended)
        if action.outcome == "missing" and not overlapping and last.certain:
            continue
        certain = action.outcome == "done" and not overlapping
        following = after(action, last, certain)
        if following is not None:
            states[-1] = replace(last, until=action.began)
            states.append(following)
    return states


def written_again(last: State, deployed: bool) -> State:
    """Return the state of a static entry after a beat wrote it again, with a new first run.

    The state is uncertain unless the last deployment ended before the data that came back.
    """
    definition = None if last.definition is None else {**last.definition}
    certain = last.certain and deployed
    return replace(last, new=False, definition=definition, certain=certain)


def at_time(states: list[State], at: float) -> State:
    """Return the state at a time; while an operation runs, the state is uncertain."""
    for state in states:
        if state.since <= at < state.until:
            return replace(state, new=False, changed=False)
    return replace(states[-1], certain=False)


def after(action: Action, last: State, certain: bool) -> State | None:
    """Return the state after an operation, or None if the operation does not change it."""
    what, versions = action.step.what, frozenset({action.version})
    fresh = State(action.began, action.ended, returned=action.ended)
    if what == "trigger":
        return None
    in_place = what == "raw save" and not action.step.fields.get("anew")
    if what in {"save", "rearm", "raw save"} and certain and (last.certain or not in_place):
        new = last.certain and last.definition is None
        state = replace(fresh, definition=action.definition, versions=versions, new=new)
        return (
            after_raw_save(action, last, state) if what == "raw save" else saved(what, last, state)
        )
    if not certain or not last.certain:
        kept = fresh if what in {"save", "rearm", "raw save"} else kept_by(action, last)
        return replace(kept, certain=False, versions=last.versions | versions)
    if what in {"delete", "raw delete"}:
        return fresh
    if what in {"reset", "raw run"}:
        return without_history(action, last)
    return after_change(action, kept_by(action, last))


def saved(what: str, last: State, state: State) -> State:
    """Return the state ``state`` after RedBeat saved a whole entry."""
    state = replace(state, armed=what == "rearm", policy=policy_in(state.definition))
    known = what == "save" and last.certain and last.definition is not None
    return replace(state, changed=known and timing(last) != timing(state))


def after_raw_save(action: Action, last: State, state: State) -> State:
    """Return the state ``state`` after a program without RedBeat saved an entry.

    Unless the program deletes the entry first, history and stored policy stay.
    """
    anew = state.new or action.step.fields.get("anew", False)
    policy = {} if anew else last.policy
    # Beginning and end of a window stay the same instants.
    made = action.definition[MADE]
    window = {name: policy[name] - made for name in WINDOW & {*policy}}
    state = replace(state, definition={**action.definition, **policy, **window}, policy=policy)
    return replace(state, since=seen(action), at_once=anew or last.at_once, now=anew)


def kept_by(action: Action, last: State) -> State:
    """Return the state after an operation that changes neither schedule nor history."""
    kept = replace(last, began=action.began, since=action.ended, until=INFINITY, new=False)
    return replace(kept, returned=action.ended, changed=False, now=False)


def without_history(action: Action, last: State) -> State:
    """Return the state after an operation that sets the count of runs to zero.

    A program without RedBeat deletes the whole history.
    """
    definition = None if last.definition is None else {**last.definition}
    state = replace(kept_by(action, last), definition=definition, armed=True)
    if action.step.what == "raw run":
        # The entry may be disabled or deleted already, because it finished.
        stays = (definition or {}).get("on_finish", "keep") == "keep"
        now = stays and not last.paused
        return replace(state, since=seen(action), at_once=True, now=now, armed=stays)
    versions = frozenset({action.version})
    return replace(state, versions=versions, at_once=False, policy=policy_in(definition))


def after_change(action: Action, kept: State) -> State:
    """Return the state after an edit, or after an entry was disabled or enabled."""
    what = action.step.what
    if what == "edit":
        versions = frozenset({action.version})
        return replace(kept, versions=versions, policy=policy_in(kept.definition))
    since = seen(action) if what == "raw enable" else kept.since
    return replace(kept, since=since, paused=what in {"pause", "raw disable"})


def seen(action: Action) -> float:
    """Return when beats have seen what a program without RedBeat wrote.

    Without a wakeup, beats find it at their next check for due entries.
    """
    return action.ended + (LOOK if action.step.fields.get("quiet") else 0)


def policy_in(definition: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of the policy in a definition, which RedBeat stores separately.

    The beginning and the end of a window become seconds since the beginning of the simulation.
    """
    fields = definition or {}
    policy = {name: value for name, value in fields.items() if name in POLICY}
    return {**policy, **{name: policy[name] + fields[MADE] for name in WINDOW & {*policy}}}


def timing(state: State) -> dict[str, Any]:
    """Return the part of a definition that determines when an entry runs."""
    fields = dict(state.definition or {})
    relative = fields.get("kind") in {"clocked", "rrule"} or fields.keys() & {"start", "end"}
    return {name: fields[name] for name in fields if name in TIMING or (relative and name == MADE)}


class Entry:
    """Checks one entry."""

    def __init__(
        self,
        judgement: Judgement,
        name: str,
        arrivals: list[Arrival],
        actions: list[Action],
        states: list[State],
    ) -> None:
        self.judgement, self.name = judgement, name
        self.arrivals, self.actions, self.states = arrivals, actions, states
        unix = judgement.unix
        #: The scheduled messages, except those sent while the clock of the server was wrong.
        self.scheduled = [
            arrival
            for arrival in arrivals
            if not arrival.triggered and abs(arrival.clock - unix(arrival.at)) < PROMPT
        ]

    def fail(self, at: float, what: str) -> None:
        self.judgement.fail(self.name, at, what)

    @property
    def is_deployed(self) -> bool:
        """Return whether the entry is in a ``beat_schedule``, now or after a deployment."""
        scenario = self.judgement.record.scenario
        return self.name in scenario.statics or any(
            self.name in step.fields.get("statics", ()) for step in scenario.steps
        )

    def judge(self) -> None:
        self.judge_ids()
        self.judge_expiry()
        self.judge_repeats()
        self.judge_order()
        self.judge_edits()
        self.judge_triggers()
        self.judge_overlap()
        self.judge_legacy()
        for state in self.schedules():
            Coverage(self, state).judge()
        self.judge_stored()

    def judge_stored(self) -> None:
        """Check that deleted and finished entries are stored, disabled or removed as required."""
        record, state = self.judgement.record, self.states[-1]
        since = max([state.since, *(arrival.at for arrival in self.arrivals)])
        if not state.certain or since + 2 * self.judgement.recovery > record.scenario.duration:
            return
        if state.definition is None:
            if self.name in record.stored:
                self.fail(state.since, "is stored although it is gone")
            return
        limit, finish = state.definition.get("max_runs"), state.definition.get("on_finish", "keep")
        ids = {one.task_id for one in self.scheduled if one.version in state.versions}
        if limit is None or len(ids) < limit or not state.new:
            return
        wanted = {"keep": True, "disable": False}.get(finish)
        if record.stored.get(self.name) is not wanted:
            self.fail(since, f"has finished, and on_finish={finish!r} was not done")

    # -- ids -------------------------------------------------------------------------------------

    def judge_ids(self) -> None:
        """Check that ids and occurrences match one to one, and that no message is early."""
        ids: dict[float, set[str]] = defaultdict(set)
        nominals: dict[str, set[float]] = defaultdict(set)
        for arrival in self.arrivals:
            if arrival.clock < arrival.nominal - SAME:
                self.fail(arrival.at, f"sent {arrival.nominal - arrival.clock:.3f} s early")
            nominals[arrival.task_id].add(arrival.nominal)
            if not arrival.triggered:
                ids[arrival.nominal].add(arrival.task_id)
        for nominal, found in ids.items():
            if len(found) > 1:
                self.fail(nominal, f"the run of {nominal:.6f} has {len(found)} ids")
        for task_id, instants in nominals.items():
            if len(instants) > 1:
                self.fail(0, f"the id {task_id} stands for {len(instants)} runs")

    def judge_expiry(self) -> None:
        """Check that messages expire by Redis's clock, whatever that of the beat's host shows."""
        for arrival in self.arrivals:
            if abs(arrival.wrong) > EXPIRES:
                self.fail(arrival.at, f"its message expires {arrival.wrong:.3f} s late")

    def judge_repeats(self) -> None:
        """Check that a fault explains each repeated message; at-most-once runs never repeat."""
        seen: dict[str, Arrival] = {}
        for arrival in self.arrivals:
            first = seen.setdefault(arrival.task_id, arrival)
            if first is arrival:
                continue
            if any(first.at <= at <= arrival.at for at, _ in self.judgement.record.rollbacks):
                continue
            if self.judgement.clock_changed(first.at, arrival.at):
                continue  # A run whose record lies in the future by then may run again.
            if self.history_was_deleted(first.at, arrival.at):
                continue  # A rule or a crontab then repeats its latest run, with the same id.
            once = self.leaves_with_record(arrival) or self.is_at_most_once(arrival)
            if once or not self.may_repeat(first, arrival):
                self.fail(arrival.at, f"the run of {arrival.nominal:.6f} was sent again")

    def history_was_deleted(self, begin: float, end: float) -> bool:
        """Return whether a program may have deleted the history of the entry in a period."""
        return any(
            action.step.what == "raw run" and begin <= action.ended and action.began <= end
            for action in self.actions
        )

    def is_at_most_once(self, arrival: Arrival) -> bool:
        """Return whether the run of a message is recorded before it is sent."""
        return self.definition_of(arrival).get("delivery") == "at_most_once"

    def leaves_with_record(self, arrival: Arrival) -> bool:
        """Return whether a message and the record of its run are one step."""
        return self.judgement.leaves_with_record and "delivery" not in self.definition_of(arrival)

    def may_repeat(self, first: Arrival, again: Arrival) -> bool:
        """Return whether a fault of a server or of the sending beat explains a repeated message."""
        judgement = self.judgement
        if judgement.disturbed(first.at, again.at, UPKEEP | {*STEP_FAULTS}):
            return True
        return any(
            first.at <= end + judgement.recovery and begin <= again.at
            for beat in (first.sender, again.sender)
            for begin, end in judgement.record.hit.get(beat, ())
        )

    def definition_of(self, arrival: Arrival) -> dict[str, Any]:
        """Return the definition from which a message was built."""
        for state in self.states:
            if arrival.version in state.versions:
                return state.definition or {}
        return {}

    def judge_order(self) -> None:
        """Check that the runs of one schedule are sent in order."""
        latest: dict[float, float] = {}
        seen: set[str] = set()
        before = 0.0
        for arrival in self.scheduled:
            if self.judgement.clock_changed(before, arrival.at):
                latest.clear()  # Runs are counted from the new time.
            before = arrival.at
            schedule = self.definition_of(arrival).get("made_at", -1.0)
            nominal = arrival.nominal - self.judgement.record.scenario.start
            atomic = self.leaves_with_record(arrival)
            if not atomic and self.judgement.held_up(nominal, arrival.at):
                continue
            if arrival.task_id not in seen and arrival.nominal < latest.get(schedule, 0.0):
                self.fail(arrival.at, f"the run of {arrival.nominal:.6f} came after a later one")
            latest[schedule] = max(latest.get(schedule, 0.0), arrival.nominal)
            seen.add(arrival.task_id)

    # -- edits -----------------------------------------------------------------------------------

    def judge_edits(self) -> None:
        """Check that each message matches the definition stored when the run was decided."""
        for arrival in self.arrivals:
            # A deployment replaces static entries as soon as a new beat leads.
            at_once = self.leaves_with_record(arrival) and not self.is_deployed
            allowed = 0.0 if at_once else IN_HAND
            recovery = self.judgement.recovery
            if allowed and self.judgement.disturbed(arrival.at - recovery, arrival.at):
                allowed = 2 * recovery
            states = self.states_near(arrival.at, allowed)
            if any(not state.certain for state in states):
                continue
            if not any(arrival.version in state.versions for state in states):
                self.fail(arrival.at, f"sent with what was no longer there (v{arrival.version})")
            elif not arrival.triggered and all(state.paused for state in states):
                self.fail(arrival.at, "sent although the entry was paused")

    def judge_triggers(self) -> None:
        """Check that each successful trigger causes exactly one run."""
        sent = {arrival.task_id: arrival.at for arrival in reversed(self.arrivals)}
        end = self.judgement.record.scenario.duration
        for action in self.actions:
            if action.step.what != "trigger" or action.outcome != "done":
                continue
            self.judge_prompt_trigger(action, sent.get(action.result, INFINITY))
            self.judge_trigger_despite_faults(action, sent.get(action.result, INFINITY))
            until = action.ended + 2 * self.judgement.recovery
            others = [
                state
                for state in self.states
                if state.since >= action.began - SAME or state.until > action.began
            ]
            stays = all(
                state.certain and state.definition is not None
                for state in others
                if state.began <= until
            )
            waits = any("overlap" in (state.definition or {}) for state in others)
            if waits and self.judgement.disturbed(0.0, until):
                continue  # A lost end report makes overlap_timeout apply.
            once = any("delivery" in (state.definition or {}) for state in others)
            if once and self.judgement.disturbed(action.began, action.ended + PROMPT):
                continue  # A fault may lose a run that is recorded first.
            if action.result not in sent and stays and until <= end:
                self.fail(action.ended, f"the triggered run {action.result} was not sent")

    def judge_prompt_trigger(self, action: Action, at: float) -> None:
        """Check that a trigger is sent immediately, except after a disturbance or during a run."""
        latest = action.ended + PROMPT
        states = [
            state
            for state in self.states
            if state.began <= latest and state.until >= action.began - SAME
        ]
        plain = all(
            state.certain and state.definition is not None and "overlap" not in state.definition
            for state in states
        )
        calm = not self.judgement.disturbed(action.began - PROMPT, latest)
        if plain and calm and latest < self.judgement.record.scenario.duration and at > latest:
            self.fail(action.ended, f"the triggered run {action.result} was sent late")

    def judge_trigger_despite_faults(self, action: Action, at: float) -> None:
        """Check that a trigger is sent soon if one beat is healthy, whatever others are doing."""
        latest = deadline_of(self.judgement, action)
        if latest is None or at <= latest:
            return
        states = [
            state
            for state in self.states
            if state.began <= latest and state.until >= action.began - SAME
        ]
        definitions = [state.definition for state in states if state.certain]
        if len(definitions) == len(states) and all(
            one is not None and not one.keys() & {"overlap", "delivery"} for one in definitions
        ):
            late = f"{latest - action.ended:.1f} s are enough for a healthy beat"
            self.fail(action.ended, f"the triggered run {action.result} was not sent: {late}")

    def judge_overlap(self) -> None:
        """Check that the runs of an entry that forbids overlaps never overlap."""
        runs = [run for run in self.judgement.record.runs if run[0] == self.name]
        for earlier, later in pairwise(runs):
            definitions = [
                state.definition or {} for state in self.states if state.began <= later[2]
            ]
            forbidden = all(one.get("overlap", "allow") != "allow" for one in definitions[1:])
            if forbidden and earlier[1] != later[1] and later[2] < earlier[3] - SAME:
                self.fail(later[2], "a run began while another one was at work")

    # -- a RedBeat 2.4.2 beat on the same data ---------------------------------------------------

    def judge_legacy(self) -> None:
        """Check that a RedBeat 2.4.2 beat leads alone, sees edits, and has valid records."""
        record = self.judgement.record
        runs = [(at, version) for at, name, version in record.legacy_runs if name == self.name]
        for at, version in runs:
            states = self.states_near(at, IN_HAND)
            if any(not state.certain for state in states):
                continue
            if not any(version in state.versions for state in states):
                self.fail(at, f"an older beat sent what was no longer there (v{version})")
            elif all(state.paused for state in states):
                self.fail(at, "an older beat sent it although the entry was paused")
        for arrival in self.arrivals:
            if self.judgement.is_led_by_legacy(arrival.at):
                self.fail(arrival.at, "sent while an older beat had the lock")
            self.judge_anchor(arrival, runs)

    def judge_anchor(self, arrival: Arrival, runs: list[tuple[float, int]]) -> None:
        """Check that an interval counts from the last run that a RedBeat 2.4.2 beat recorded."""
        before = [at for at, version in runs if at < arrival.at and version == arrival.version]
        definition = self.definition_of(arrival)
        if not before or arrival.triggered or definition.get("kind") != "every":
            return
        early = self.judgement.unix(before[-1]) + definition["seconds"] - arrival.nominal
        if early > PROMPT:
            self.fail(arrival.at, f"sent {early:.3f} s early after a run of an older beat")

    def states_near(self, at: float, allowed: float) -> list[State]:
        """Return the states of an entry at a time and in the ``allowed`` seconds before."""
        returned = [*(following.returned for following in self.states[1:]), INFINITY]
        return [
            state
            for state, replaced in zip(self.states, returned, strict=True)
            if state.began <= at and max(state.until, replaced) >= at - allowed
        ]

    # -- coverage --------------------------------------------------------------------------------

    def schedules(self) -> Iterator[State]:
        """Yield the states with a schedule; a change of arguments does not begin a new state."""
        joined: State | None = None
        for state in self.states:
            if (
                joined is not None
                and joined.definition is state.definition
                and (state.certain and not state.paused)
            ):
                joined = replace(
                    joined, until=state.until, versions=joined.versions | state.versions
                )
                continue
            if joined is not None:
                yield joined
            useful = state.certain and not state.paused and state.definition is not None
            joined = state if useful else None
        if joined is not None:
            yield joined


class Coverage:
    """Checks that every occurrence of a schedule was sent while the schedule was in effect."""

    def __init__(self, entry: Entry, state: State) -> None:
        self.entry, self.state, self.judgement = entry, state, entry.judgement
        assert state.definition is not None
        self.definition = state.definition
        unix = self.judgement.unix
        #: When the schedule begins at the earliest, at the latest, and when it ends, in UNIX
        #: seconds.
        self.earliest, self.begin = unix(state.began), unix(state.since)
        self.end = unix(min(state.until, self.judgement.record.scenario.duration))
        #: When the history of these runs was deleted, so that later messages begin a new one.
        self.deleted = min(
            (
                action.ended
                for action in entry.actions
                if action.step.what == "raw run" and action.began >= state.until
            ),
            default=INFINITY,
        )
        self.sent = [
            arrival
            for arrival in sorted(entry.scheduled, key=lambda arrival: arrival.nominal)
            if arrival.version in state.versions
            and state.began <= arrival.at <= self.deleted
            and arrival.nominal <= self.end + SAME
        ]
        self.nominals = [arrival.nominal for arrival in self.sent]
        by_wrong_clock = [
            arrival
            for arrival in entry.arrivals
            if not (arrival.triggered or arrival in entry.scheduled)
            and arrival.version in state.versions
        ]
        #: The ids of runs that were sent while the clock of the server was wrong.
        self.sent_by_wrong_clock = {arrival.task_id for arrival in by_wrong_clock}
        #: The nominal instants of these runs.
        self.nominals_by_wrong_clock = sorted(arrival.nominal for arrival in by_wrong_clock)
        #: The ids of runs whose records were lost when older data came back.
        self.lost = {
            arrival.task_id
            for arrival in self.sent
            for at, back_to in self.judgement.record.rollbacks
            if back_to <= arrival.at + PROMPT and arrival.at <= at
        }
        deployed = entry.is_deployed
        #: When an interval started a new series of runs. While beats have different configurations,
        #: an old leader removes entries that a new beat added.
        self.jumps = [
            last
            for _, last, what in self.judgement.record.disturbances
            if what in NEW_GRID or (deployed and what == "deploy")
        ]
        #: When a RedBeat 2.4.2 beat sent runs, in UNIX seconds.
        self.legacy = [
            unix(at)
            for at, name, version in self.judgement.record.legacy_runs
            if name == entry.name and version in state.versions
        ]
        self.jitter = float(self.definition.get("jitter", 0.0))
        #: Whether some occurrences may be skipped: if runs would overlap, or if runs are recorded
        #: before they are sent.
        self.may_skip = (
            "overlap" in self.definition
            or "misfire_grace_time" in self.definition
            or (self.definition.get("delivery") == "at_most_once")
            or self.definition.get("catch_up_limit", 100) < 100
        )
        self.duration = self.judgement.record.scenario.duration

    def calm(self, begin: float, end: float) -> bool:
        start = self.judgement.record.scenario.start
        return not self.judgement.disturbed(begin - start, end - start)

    def judge(self) -> None:
        if is_bad(self.definition) or "past" in self.definition:
            return  # The policies of entries with missed runs are tested elsewhere.
        self.judge_first_run()
        slots = list(self.slots())
        judge_delays(self)
        limit = self.definition.get("max_runs")
        if limit is not None:
            self.judge_limit(limit, slots)
            return
        self.judge_membership(slots)
        judge_lateness(self, slots)
        judge_reported_ends(self)
        for slot in slots:
            self.judge_slot(slot)

    def judge_first_run(self) -> None:
        """Check that an entry without a history runs immediately."""
        state, latest = self.state, self.state.since + self.jitter + PROMPT
        required = state.now and not self.may_skip and not self.definition.keys() & WINDOW
        if self.definition["kind"] in {"clocked", "rrule"}:
            made = self.judgement.unix(self.definition[MADE])
            past = slots_between(self.definition, made, made - 1, self.earliest)
            required = required and next(past, None) is not None
        calm = not self.judgement.disturbed(state.began - PROMPT, latest)
        if not required or not calm or min(state.until, self.duration) <= latest:
            return
        if not any(arrival.at <= latest for arrival in self.sent):
            self.entry.fail(state.since, "did not run at once although it has no history")

    def judge_limit(self, limit: int, slots: list[float]) -> None:
        """Check that an entry with a limit of N runs has exactly N runs."""
        ids = {arrival.task_id for arrival in self.sent} | self.sent_by_wrong_clock
        if len(ids - self.lost) > limit:
            self.entry.fail(self.state.since, f"{len(ids)} runs where {limit} are the limit")
        over = len(slots) >= limit and slots[limit - 1] + 2 * self.judgement.recovery < self.end
        if self.state.runs and over and not ids and not self.may_skip:
            self.entry.fail(self.state.since, "never ran")
        last = max((end for _, end, _ in self.judgement.record.disturbances), default=-INFINITY)
        begin = self.judgement.unix(last + 2 * self.judgement.recovery)
        left = sum(slot > begin and slot + PROMPT < self.end for slot in slots)
        if self.state.new and left >= limit > len(ids):
            self.entry.fail(self.state.since, f"{len(ids)} runs, {limit} are wanted")
        if self.state.armed and self.begin + 3 * self.judgement.recovery < self.end:
            expected = min(limit, int(self.runs_after(self.begin + self.judgement.recovery)))
            if len(ids) < expected and not self.may_skip:
                self.entry.fail(self.state.since, f"{len(ids)} runs where {expected} are due")

    def runs_after(self, begin: float) -> float:
        """Return how many runs an interval has after ``begin``; return 1 for other schedules."""
        every = self.definition.get("seconds")
        return (self.end - begin) / every if every else 1

    def judge_membership(self, slots: list[float]) -> None:
        """Check that each message is an occurrence of the schedule."""
        if self.definition["kind"] in INTERVALS and (self.jumps or not self.state.new):
            return
        for arrival in self.sent[self.state.at_once :]:
            if arrival.nominal < self.earliest and (self.jumps or not self.state.new):
                continue  # Missed since the last run of the previous schedule, or by another clock.
            if not is_among(slots, arrival.nominal) and not self.is_caught_up(arrival):
                self.entry.fail(arrival.at, f"{arrival.nominal:.6f} is no occurrence")

    def is_caught_up(self, arrival: Arrival) -> bool:
        """Return whether a run was missed during a pause, or before its schedule was resaved."""
        if self.state.new:
            return False
        made = self.judgement.unix(self.definition["made_at"])
        begin, end = arrival.nominal - 1, arrival.nominal
        return end in slots_between(self.definition, made, begin, end)

    def judge_slot(self, slot: float) -> None:
        """Check that an occurrence was sent, or that a fault explains why another replaced it."""
        up = slot + self.jitter
        if slot < self.begin + SAME or is_among(self.nominals, slot):
            return
        once = self.definition["kind"] == "clocked"
        if once and is_among(self.nominals_by_wrong_clock, slot):
            return  # A one-off that ran too early stays finished.
        at = slot - self.judgement.record.scenario.start
        if self.calm(slot - PROMPT, up + PROMPT):
            if up + PROMPT < self.end and "overlap" not in self.definition:
                self.entry.fail(at, f"the run of {slot:.6f} was not sent")
        elif up + 2 * self.judgement.recovery <= self.end and (
            self.in_time(up) or not self.may_skip
        ):
            self.judge_missed(slot, at)

    def judge_missed(self, slot: float, at: float) -> None:
        """Check that a later run catches up an occurrence that a fault prevented."""
        if self.judgement.was_forgotten(at):
            return
        if self.definition.get("coalesce") == "all":
            self.entry.fail(at, f"the run of {slot:.6f} was not made up for")
            return
        latest = max(self.nominals[-1:] + self.legacy, default=0.0)
        if latest < slot - SAME and "end" not in self.definition:
            self.entry.fail(at, f"nothing was sent for {slot:.6f} or later")

    def in_time(self, slot: float) -> bool:
        """Return whether an entry that skips old runs must still send this occurrence."""
        grace = self.definition.get("misfire_grace_time")
        if grace is None or len(self.definition.keys() & {"overlap", "delivery"}):
            return False
        start, recovery = self.judgement.record.scenario.start, self.judgement.recovery
        faults = self.judgement.record.disturbances
        well = max((last for first, last, _ in faults if first <= slot - start), default=0.0)
        return bool(start + well + recovery + PROMPT < slot + grace)

    def slots(self) -> Iterator[float]:
        """Yield the nominal instants of the schedule while it was in effect."""
        made = self.judgement.unix(self.definition["made_at"])
        begin, end = self.earliest, self.end
        if "start" in self.definition:
            begin = max(begin, made + self.definition["start"])
        if "end" in self.definition:
            end = min(end, made + self.definition["end"])
        if self.definition["kind"] in INTERVALS:
            yield from self.grid(begin, end)
        else:
            yield from slots_between(self.definition, made, begin, end)

    def grid(self, begin: float, end: float) -> Iterator[float]:
        """Yield the instants of an interval, from its start or else from the first message."""
        every = float(self.definition["seconds"])
        if not self.nominals:
            up = self.begin + every + self.jitter
            calm = "start" not in self.definition and self.calm(self.earliest, up + PROMPT)
            bound = PROMPT if calm else 2 * self.judgement.recovery
            fresh = self.state.runs or "max_runs" not in self.definition
            elsewhere = self.legacy or self.sent_by_wrong_clock
            if up + bound < end and fresh and not self.may_skip and not elsewhere:
                self.entry.fail(self.state.since, "never ran")
            return
        later = [one.nominal for one in self.sent if one.at > max(self.jumps, default=0.0)]
        first = (later or self.nominals)[0]
        start = self.judgement.unix(self.definition["made_at"]) + self.definition.get("start", 0.0)
        if "start" in self.definition and first < start - SAME:
            self.entry.fail(self.state.since, f"ran {start - first:.3f} s before its start")
        calm = not self.jumps and self.calm(begin, first + self.jitter)
        if "start" in self.definition and not self.state.at_once:
            first = start + round((first - start) / every) * every
        waits = self.definition.get("start", 0.0) > 0 or "overlap" in self.definition
        if calm and first > self.begin + every + SAME and not waits:
            self.entry.fail(self.state.since, f"ran first {first - begin:.3f} s after it was saved")
        count = int((end - first) / every + SAME)
        for number in range(count + 1):
            yield first + number * every


def is_among(instants: list[float], instant: float) -> bool:
    """Return whether an instant is in a sorted list."""
    at = bisect_left(instants, instant - SAME)
    return at < len(instants) and abs(instants[at] - instant) <= SAME


def slots_between(
    definition: dict[str, Any], made: float, begin: float, end: float
) -> Iterator[float]:
    """Yield the nominal instants in ``(begin, end]`` of a schedule that was created at ``made``."""
    kind = definition["kind"]
    if kind == "clocked":
        instant = made + definition["after"]
        if begin < instant <= end:
            yield instant
    elif kind == "rrule":
        yield from rule_slots(definition, made, begin, end)
    elif kind == "crontab":
        yield from crontab_slots(definition, begin, end)


def rule_slots(
    definition: dict[str, Any], made: float, begin: float, end: float
) -> Iterator[float]:
    """Yield the instants of a rule, from the first whole second after its creation.

    A rule of hours without ``byhour`` follows real time, as a crontab with a wildcard does; a rule
    of days contains wall-clock times.
    """
    first = int(made) + 1
    if "byminute" in definition:
        hour, minute = definition.get("byhour", ["*"]), definition["byminute"]
        fields = {"hour": hour[0], "minute": minute[0], "timezone": definition["zone"]}
        if "byhour" in definition:
            again = second_instant(first, hour[0], minute[0], ZoneInfo(definition["zone"]))
            yield from (at for at in again if begin < at <= end)
        yield from crontab_slots(fields, max(begin, first - SAME), end)
        return
    if "bysecond" in definition:
        yield from seconds_of_minutes(definition, first, begin, end)
        return
    step = definition["interval"] * UNITS[definition["freq"]]
    last = first + step * (definition["count"] - 1) if "count" in definition else INFINITY
    number = max(int((begin - first) // step), 0)
    while (instant := first + number * step) <= min(end, last):
        if instant > begin:
            yield float(instant)
        number += 1


def second_instant(first: int, hour: int, minute: int, zone: ZoneInfo) -> list[float]:
    """Return the second instant of a wall-clock time if a rule began after the first one.

    The list is empty unless the time exists twice on the day on which the rule began.
    """
    day = datetime.fromtimestamp(first, zone)
    wall = day.replace(hour=hour, minute=minute, second=0, fold=0)
    once, again = wall.timestamp(), wall.replace(fold=1).timestamp()
    return [again] if once < first <= again else []


def seconds_of_minutes(
    definition: dict[str, Any], first: int, begin: float, end: float
) -> Iterator[float]:
    """Yield some seconds of each minute, or of every second minute, from ``first``."""
    minute = first - first % 60
    while minute <= end:
        for second in definition["bysecond"]:
            if minute + second >= first and begin < minute + second <= end:
                yield float(minute + second)
        minute += 60 * definition["interval"]


def crontab_slots(definition: dict[str, Any], begin: float, end: float) -> Iterator[float]:
    """Yield the instants of a crontab.

    A crontab with a wildcard or a step in the hour follows real time. Any other crontab contains
    wall-clock times. If a wall-clock time exists twice, the entry runs at the first one. If it does
    not exist, the entry runs in the first minute after the gap.
    """
    zone = ZoneInfo(definition.get("timezone", "UTC"))
    minutes = field_values(definition.get("minute", "*"), 60)
    hour = str(definition.get("hour", "*"))
    hours = field_values(hour, 24)
    months = field_values(definition.get("month_of_year", "*"), 13)
    days = field_values(definition.get("day_of_month", "*"), 32)

    def runs_on(day: datetime) -> bool:
        return day.month in months and day.day in days

    if "*" not in hour:
        times = [(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]
        yield from wall_slots(zone, times, runs_on, begin, end)
        return
    at = datetime.fromtimestamp(int(begin // 60) * 60, timezone.utc)
    while (at := at + timedelta(minutes=1)).timestamp() <= end:
        wall = at.astimezone(zone)
        if not runs_on(wall):
            at += timedelta(minutes=14 - at.minute % 15)  # Go to the next quarter of an hour.
        elif wall.minute in minutes and wall.hour in hours and at.timestamp() > begin:
            yield at.timestamp()


def wall_slots(
    zone: ZoneInfo,
    times: list[tuple[int, int]],
    runs_on: Callable[[datetime], bool],
    begin: float,
    end: float,
) -> Iterator[float]:
    """Yield the instants of wall-clock times on each day on which an entry runs."""
    day = datetime.fromtimestamp(begin, zone).replace(tzinfo=None) - timedelta(days=2)
    latest = begin
    while day.replace(tzinfo=zone).timestamp() <= end + 2 * DAY:
        for hour, minute in times if runs_on(day) else ():
            wall = day.replace(hour=hour, minute=minute, second=0, microsecond=0)
            instant = first_instant(wall, zone)
            if latest < instant <= end:
                yield instant
                latest = instant
        day += timedelta(days=1)


def first_instant(wall: datetime, zone: ZoneInfo) -> float:
    """Return when a clock first shows a wall-clock time, or the first whole minute after a gap."""
    instant = wall.replace(tzinfo=zone, fold=0).timestamp()
    if datetime.fromtimestamp(instant, zone).replace(tzinfo=None) == wall:
        return instant
    # The clock skips this time: go back to the minute of the clock change.
    while datetime.fromtimestamp(instant - 60, zone).replace(tzinfo=None) > wall:
        instant -= 60
    return instant


def field_values(text: Any, size: int) -> set[int]:
    """Return the values that a crontab field matches."""
    values: set[int] = set()
    for part in str(text).split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            low, high = 0, size - 1
        else:
            low, high = int(first), int(last or first)
        values.update(range(low, high + 1, int(step or 1)))
    return values
