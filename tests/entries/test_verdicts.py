"""Tests of the verdict: what leaves, what is stored, and when an entry is looked at again.

:class:`Entry` stores what a beat would store, as texts, and takes turns without a beat.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedstate, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import texts_in
from redbeat.entries import verdicts
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import DISABLED, PARKED, Decision, Plan, decide
from redbeat.entries.history import History, Occurrence, encode_meta, read_history, run_line
from redbeat.entries.policy import Policy
from redbeat.entries.run import Rule, Run
from redbeat.entries.state import (
    BACKFILLED,
    NO_RESULTS,
    SCHEDULED,
    TRIGGERED,
    Failing,
    Hold,
    Results,
    Running,
    State,
    digest_of_meta,
    end_line,
    read_inbox,
    trigger_line,
)
from redbeat.entries.verdicts import (
    Known,
    Rest,
    Verdict,
    hold,
    judge,
    put_back,
    record,
    with_inbox,
)
from redbeat.schedules.calendars import Calendar, Exclusion
from redbeat.schedules.next_run import asks_itself
from redbeat.schedules.rule import clocked
from redbeat.storage.rows import Row

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
NOW = NOON.timestamp()
MINUTE, HOUR = 60.0, 3600.0
PARIS = ZoneInfo("Europe/Paris")


def rule_of(times: Any = MINUTE, *, enabled: bool = True, **fields: Any) -> Rule:
    """Return a rule; ``times`` is a schedule, or the seconds of an interval."""
    if isinstance(times, float):
        times = schedule(timedelta(seconds=times))
    policy = Policy.of(fields)
    texts = (json.dumps({"name": "entry", "task": "t", "fields": repr(fields)}), "")
    key, occurrences = "redbeat:entry", Plan(times, policy.zone or UTC, policy, "entry")
    asks = asks_itself(times)
    return Rule(key, "entry", "t", [], {}, {}, enabled, times, policy, occurrences, *texts, asks)


class Entry:
    """What is stored about one entry. ``sent`` has the runs that left: kind, nominal time, id."""

    def __init__(self, rule: Rule, last: float | None = NOW, count: int = 0) -> None:
        self.rule = rule
        self.meta = None if last is None else encode_meta(from_timestamp(last), count)
        self.state: str | None = None
        self.score = NOW
        self.inbox: list[str] = []
        self.lines: list[str] = []
        self.sent: list[tuple[str, float, str]] = []
        self.end = ""
        self.exclusion: Exclusion | None = None
        self.logged: list[str] = []
        self.clock = NOW
        self.marks = 0

    @property
    def now(self) -> State:
        return State.read(self.state, self.meta)

    @property
    def history(self) -> History:
        return History.read(self.meta or "")

    @property
    def count(self) -> int:
        return self.history.total_run_count

    @property
    def runs(self) -> list[Occurrence]:
        return read_history(texts_in("[" + ",\n".join(self.lines) + "]"))

    @property
    def outcomes(self) -> list[str]:
        return [run.outcome for run in self.runs]

    def change(self, **changes: Any) -> None:
        """Store a state with other fields."""
        self.state = replace(self.now, **changes).text()

    def write(self, last: float, count: int = 0) -> None:
        """Write the history as an application does."""
        self.meta = encode_meta(from_timestamp(last), count)

    def judge(self, now: float) -> Verdict:
        inbox = read_inbox("[" + ",\n".join(self.inbox) + "]")
        plan = replace(self.rule.plan, exclusion=self.exclusion)
        return judge(Known(self.rule, plan, self.history, self.now, now, self.score), inbox)

    def store(self, recorded: Rest, verdict: Verdict | None = None, *, run: bool) -> None:
        state = recorded.state
        state.sign(self.mark(), run=run)
        self.state, self.score, self.end = state.text(), recorded.score, recorded.end
        self.meta = recorded.meta if recorded.meta is not None else self.meta
        if recorded.line:
            self.lines.insert(0, recorded.line)
        if verdict is not None:
            self.take(verdict)
            self.logged += [message % args for _, message, args in verdict.known.notes]

    def mark(self) -> str:
        self.marks += 1
        return f"{self.marks:012}"

    def take(self, verdict: Verdict) -> None:
        """Cut the inbox up to and with the last line that was taken."""
        if verdict.take in self.inbox:
            del self.inbox[: self.inbox.index(verdict.take) + 1]

    def task_id(self, verdict: Verdict) -> str:
        send = verdict.send
        assert send is not None
        return send.held.id if send.held else f"{send.id or send.at.isoformat()}"

    def turn(self, now: float, *, left: bool = True) -> Verdict:
        """Look, decide, and record with the message inside."""
        self.clock = now
        verdict = self.judge(now)
        if verdict.send is None:
            if verdict.rest.state is not self.now:
                self.store(verdict.rest, verdict, run=False)
            return verdict
        self.publish(verdict, left=left)
        recorded = record(verdict, self.now, now, self.task_id(verdict), True, left)
        self.store(recorded, verdict, run=True)
        return verdict

    def turns(self, until: float, most: int = 50) -> None:
        """Take turns as long as the entry is due, until ``until``."""
        for _ in range(most):
            if not 0 <= self.score <= until:
                return
            self.turn(max(self.score, self.clock))
        raise AssertionError("the entry stays due")

    def hold(self, now: float, seconds: float = 30.0) -> Verdict:
        """Hold the run that is due."""
        verdict = self.judge(now)
        self.hold_as(verdict, now, seconds)
        return verdict

    def hold_as(self, verdict: Verdict, now: float, seconds: float = 30.0) -> None:
        state = hold(verdict, self.now, self.meta, now + seconds, self.task_id(verdict))
        state.sign(self.mark(), hold=True)
        self.state, self.score = state.text(), now + seconds
        self.take(verdict)

    def publish(self, verdict: Verdict, *, left: bool = True) -> None:
        send = verdict.send
        assert send is not None
        if left:
            self.sent.append((send.kind, send.at.timestamp() - NOW, self.task_id(verdict)))

    def record(self, verdict: Verdict, now: float, *, left: bool = True) -> None:
        """Record a held run that was published."""
        task_id = self.task_id(verdict)
        self.store(record(verdict, self.now, now, task_id, True, left), run=True)

    @property
    def times(self) -> list[float]:
        return [at for _, at, _ in self.sent]


def ended(run: str, state: str = "succeeded", at: float = NOW, error: str = "") -> str:
    return f"{end_line(run, state, error=error)[:-1]},{at!r}]"  # as Redis dates it


# -- the schedule ----------------------------------------------------------------------------------


def test_an_entry_runs_and_is_due_again() -> None:
    entry = Entry(rule_of(), NOW, 4)
    verdict = entry.turn(NOW + 60.5)
    assert verdict.send == (SCHEDULED, from_timestamp(NOW + 60), "", 0, None)
    assert entry.meta == encode_meta(from_timestamp(NOW + 60.5), 5)
    assert (entry.now.at, entry.score, entry.end) == (NOW + 60, NOW + 120, "")
    assert json.loads(entry.lines[0]) == run_line(NOW + 60, NOW + 60.5)
    assert entry.now.marks == (entry.now.marks.last, "", entry.now.marks.last)


def test_what_is_not_due_changes_nothing() -> None:
    entry = Entry(rule_of())
    state = entry.now
    known = Known(entry.rule, entry.rule.plan, entry.history, state, NOW + 59, NOW)
    verdict = judge(known, [])
    assert (verdict.send, verdict.rest.score, verdict.take) == (None, NOW + 60, "")
    assert verdict.rest.state is state


@pytest.mark.parametrize(
    ("fields", "late", "sent", "outcomes", "score"),
    [
        ({}, 200.0, [180.0], ["sent"], 240.0),
        ({"coalesce": "earliest"}, 200.0, [60.0], ["sent"], 240.0),
        ({"coalesce": "all", "catch_up_limit": 2}, 200.0, [120.0, 180.0], ["sent"] * 2, 240.0),
        ({"misfire_grace_time": 10}, 75.0, [], ["missed:1"], 120.0),
        ({"misfire_grace_time": 10}, 200.0, [], ["missed:3"], 240.0),
        ({"misfire_grace_time": 30}, 200.0, [180.0], ["sent"], 240.0),
        ({"end_time": from_timestamp(NOW + 70)}, 65.0, [60.0], ["sent"], -1.0),
        ({"end_time": from_timestamp(NOW + 50)}, 65.0, [], [], -1.0),
        ({"start_time": from_timestamp(NOW + 90)}, 95.0, [90.0], ["sent"], 150.0),
        ({"max_runs": 1}, 65.0, [60.0], ["sent"], -1.0),
        ({"spread": 50}, 61.0, [], [], None),
    ],
)
def test_rules_of_the_schedule(
    fields: dict[str, Any], late: float, sent: list[float], outcomes: list[str], score: float | None
) -> None:
    entry = Entry(rule_of(**fields))
    for _ in range(4):
        if 0 <= entry.score <= NOW + late:
            entry.turn(NOW + late)
    assert entry.times == sent
    assert entry.outcomes == outcomes
    assert entry.count == len(sent)
    if score is not None:
        assert entry.score == (score if score < 0 else NOW + score)


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_exactly_at_an_occurrence_it_is_due(overlap: str) -> None:
    entry = Entry(rule_of(overlap=overlap))
    entry.turn(NOW + 60)
    assert entry.times == [60.0]
    entry = Entry(rule_of(overlap=overlap))
    verdict = entry.turn(NOW + 120)
    assert (entry.times, verdict.rest.missed, entry.score) == ([120.0], 1, NOW + 180)


def test_missed_runs_are_said() -> None:
    late, too_late = Entry(rule_of()), Entry(rule_of(misfire_grace_time=1))
    assert late.turn(NOW + 200).rest.missed == 2
    assert too_late.turn(NOW + 200).rest.missed == 3
    replaced = f"the beat sent the run of {from_timestamp(NOW + 180)}, which replaces them"
    assert late.logged == [f"beat: Entry entry missed 2 runs: {replaced}"]
    up_to = f"up to {from_timestamp(NOW + 180)}: it is too late to catch up"
    assert too_late.logged == [f"beat: Entry entry missed 3 runs {up_to}"]


@pytest.mark.parametrize(
    ("score", "due", "times", "then"),
    [
        (NOW, None, [0.0], NOW + 60),
        (0.0, None, [8.0], NOW + 68),  # a score below 1 means now
        (NOW + 7, NOW + 2, [2.0], NOW + 62),  # the score was moved, and the state knows the time
        (NOW + 100, None, [], NOW + 100),
    ],
)
def test_a_first_run_has_its_score_as_its_nominal_time(
    score: float, due: float | None, times: list[float], then: float
) -> None:
    entry = Entry(rule_of(), None)
    entry.change(due=due)
    entry.score = score
    entry.turn(NOW + 8)
    assert (entry.times, entry.score, entry.now.due) == (times, then, None)


def test_a_last_run_in_the_future_is_counted_from_now() -> None:
    entry = Entry(rule_of(), NOW + 1000)
    entry.change(at=NOW + 1000)
    entry.turn(NOW)
    assert (entry.times, entry.score, entry.now.at) == ([], NOW + 60, NOW)
    assert "is in the future: counting the next run from now" in entry.logged[0]
    entry.turns(NOW + 60)
    assert entry.times == [60.0]


def test_a_last_run_in_the_future_that_an_application_wrote_is_meant() -> None:
    entry = Entry(rule_of(), NOW + 1000)
    entry.turn(NOW)
    assert entry.score == NOW + 1060


def test_calendars() -> None:
    entry = Entry(rule_of(crontab(minute="0", hour="12"), exclude=["days"]), NOW)
    entry.exclusion = Exclusion([Calendar("days", [date(2026, 11, 27)])], UTC, "skip")
    entry.turn(NOW + 1)
    assert entry.score == NOW + 48 * HOUR


class Asks(schedule):
    """A schedule with its own ``is_due``: 20 seconds after the last run."""

    def __init__(self, now: float) -> None:
        super().__init__(20.0, nowfun=lambda: from_timestamp(now))
        self.asked: list[datetime] = []

    def is_due(self, last_run_at: datetime) -> schedstate:
        self.asked.append(last_run_at)
        left = (last_run_at + timedelta(seconds=20) - self.now()).total_seconds()
        return schedstate(left <= 0, max(left, 5.0))


def test_a_schedule_is_asked_itself() -> None:
    times = Asks(NOW + 30)
    entry = Entry(rule_of(times), NOW)
    entry.score = NOW + 25
    entry.turn(NOW + 30)
    assert entry.sent == [(SCHEDULED, 25.0, from_timestamp(NOW + 25).isoformat())]
    assert times.asked == [from_timestamp(NOW)]
    assert entry.score == NOW + 35


def test_a_schedule_is_not_asked_before_its_time() -> None:
    times = Asks(NOW + 30)
    entry = Entry(rule_of(times), NOW)
    entry.score = NOW + 40
    entry.inbox = [trigger_line("t1", NOW)]
    entry.turn(NOW + 30)
    assert entry.sent == [(TRIGGERED, 0.0, "t1")]
    entry.turn(NOW + 30)
    assert (times.asked, entry.score, len(entry.sent)) == ([], NOW + 40, 1)


def test_nothing_left_of_a_schedule_that_is_asked_uses_the_run_up() -> None:
    times = Asks(NOW + 30)
    entry = Entry(rule_of(times), NOW, 3)
    entry.turn(NOW + 30, left=False)
    assert entry.history[:2] == (from_timestamp(NOW + 30), 3)


# -- sent is what left -----------------------------------------------------------------------------


@pytest.mark.parametrize("last", [NOW, None])
def test_what_did_not_leave_is_used_up_and_does_not_count(last: float | None) -> None:
    entry = Entry(rule_of(max_runs=1, overlap="skip"), last)
    entry.turn(NOW + 61, left=False)
    assert (entry.count, entry.now.running, entry.outcomes) == (0, None, ["not_sent"])
    entry.turns(NOW + 121)
    assert entry.times[-1] == entry.times[0]
    assert (entry.count, entry.score) == (1, PARKED)


def test_a_trigger_whose_call_sent_nothing_is_used_up() -> None:
    entry = Entry(rule_of())
    entry.inbox = [trigger_line("t1", NOW)]
    entry.turn(NOW + 1, left=False)
    assert (entry.now.waiting, entry.outcomes, entry.sent) == ((), ["not_sent"], [])


# -- the end of an entry ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_finish", "end", "score"),
    [("keep", "park", PARKED), ("disable", "disable", DISABLED), ("delete", "delete", PARKED)],
)
def test_an_entry_without_further_runs(on_finish: str, end: str, score: float) -> None:
    last_run = Entry(rule_of(max_runs=1, on_finish=on_finish))
    last_run.turn(NOW + 61)
    none_left = Entry(rule_of(clocked(from_timestamp(NOW - 5)), on_finish=on_finish))
    none_left.turn(NOW + 61)
    for entry in (last_run, none_left):
        assert (entry.end, entry.score) == (end, score)
    assert (len(last_run.sent), len(none_left.sent)) == (1, 0)


def test_a_parked_entry_does_not_finish_again() -> None:
    entry = Entry(rule_of(max_runs=1), NOW, 1)
    entry.score = PARKED
    entry.turn(NOW + 61)
    assert (entry.end, entry.score) == ("", PARKED)


@pytest.mark.parametrize("running", [False, True])
def test_a_waiting_trigger_keeps_an_entry_that_is_to_be_deleted(running: bool) -> None:
    entry = Entry(rule_of(max_runs=1, on_finish="delete", overlap="skip"), NOW, 1)
    if running:
        entry.change(running=Running("other", NOW + 50))
    entry.inbox = [trigger_line("t1", NOW)]
    entry.turn(NOW + 1)
    assert entry.end == ""
    assert len(entry.sent) == (not running)
    assert entry.score == NOW + (50 if running else 1)
    entry.inbox = [ended("other" if running else "t1")]
    entry.turns(NOW + 60)
    assert entry.sent == [(TRIGGERED, 0.0, "t1")]
    assert entry.end == "delete"


def test_a_waiting_backfill_keeps_an_entry_that_is_to_be_deleted() -> None:
    entry = Entry(rule_of(max_runs=1, on_finish="delete"), NOW, 0)
    entry.change(waiting=(filling(2),))
    entry.turn(NOW + 61)
    assert entry.end == ""
    entry.turns(NOW + 65)
    assert [kind for kind, _, _ in entry.sent] == [SCHEDULED, BACKFILLED, BACKFILLED]
    assert entry.end == "delete"


# -- triggers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_triggers_go_first_in_order_also_of_disabled_entries(enabled: bool) -> None:
    entry = Entry(rule_of(enabled=enabled))
    entry.inbox = [trigger_line("t1", NOW + 1), trigger_line("t2", NOW + 2)]
    entry.turns(NOW + 70)
    assert entry.sent[:2] == [(TRIGGERED, 1.0, "t1"), (TRIGGERED, 2.0, "t2")]
    assert entry.times[2:] == ([60.0] if enabled else [])
    assert entry.outcomes[-2:] == ["triggered"] * 2
    assert entry.count == enabled
    assert entry.now.ids == ("t2", "t1")


def test_a_trigger_is_taken_once() -> None:
    entry = Entry(rule_of(HOUR))
    for _ in range(3):  # known as a line, as a waiting run, and as one that left
        entry.inbox = [trigger_line("t1", NOW), trigger_line("t1", NOW + 1)]
        entry.turn(NOW + 1)
    assert [run for _, _, run in entry.sent] == ["t1"]


def test_an_id_that_begins_like_another_is_another() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [trigger_line(run, NOW) for run in ("t1", "t11", "t")]
    entry.turn(NOW + 1)
    assert [one.id for one in entry.now.waiting] == ["t11", "t"]


def test_a_trigger_does_not_move_a_first_run() -> None:
    entry = Entry(rule_of(), None)
    entry.score = NOW + 100
    entry.inbox = [trigger_line("t1", NOW)]
    entry.turn(NOW + 1)
    assert (entry.score, entry.now.due) == (NOW + 1, NOW + 100)
    entry.turns(NOW + 99)
    assert entry.score == NOW + 100
    entry.turns(NOW + 101)
    assert entry.times == [0.0, 100.0]


def test_a_trigger_that_was_sent_ends_a_failure() -> None:
    entry = Entry(rule_of(HOUR))
    entry.change(failing=Failing(NOW, 2, "away"))
    entry.inbox = [trigger_line("t1", NOW)]
    entry.turn(NOW + 1)
    assert entry.now.failing is None


def test_bad_lines_are_removed_and_said() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = ["zonk", trigger_line("t1", NOW)]
    entry.turn(NOW + 1)
    assert (entry.inbox, len(entry.sent)) == ([], 1)
    assert "removed the waiting run 'zonk', which is not valid" in entry.logged[0]


# -- ends of runs and overlap ----------------------------------------------------------------------


def test_a_run_is_skipped_while_another_goes_on() -> None:
    entry = Entry(rule_of(overlap="skip", overlap_timeout=300))
    first = entry.turn(NOW + 60)
    assert (entry.now.running or ())[:2] == (entry.task_id(first), NOW + 360)
    verdict = entry.turn(NOW + 120)
    assert (verdict.send, entry.score, entry.outcomes[0]) == (None, NOW + 180, "skipped")
    assert (entry.now.at, entry.count) == (NOW + 120, 1)
    assert "skips the run of" in entry.logged[-1]
    entry.inbox = [ended(entry.task_id(first))]
    entry.turns(NOW + 180)
    assert entry.times == [60.0, 180.0]


def test_a_skipped_run_is_not_the_last_one() -> None:
    entry = Entry(rule_of(overlap="skip", max_runs=1))
    entry.change(running=Running("other", NOW + 70))
    entry.turn(NOW + 60)
    assert (entry.outcomes, entry.score, entry.end) == (["skipped"], NOW + 120, "")
    entry.turn(NOW + 120)
    assert (entry.times, entry.end) == ([120.0], "park")


def test_a_run_waits_for_another() -> None:
    entry = Entry(rule_of(overlap="buffer_one", overlap_timeout=300))
    first = entry.task_id(entry.turn(NOW + 60))
    verdict = entry.turn(NOW + 120)
    assert (verdict.send, verdict.rest.waits, entry.score) == (None, first, NOW + 360)
    entry.inbox = [ended(first)]
    entry.turn(NOW + 200)
    assert entry.times == [60.0, 180.0]  # the latest one
    assert entry.lines[1:]


def test_a_run_counts_as_ended_after_its_time_or_with_a_wrong_one() -> None:
    for until in (NOW + 119, NOW + 3e9):
        entry = Entry(rule_of(overlap="skip"))
        entry.change(running=Running("lost", until))
        entry.turn(NOW + 120)
        assert len(entry.sent) == 1
        assert (entry.now.running or ())[:2] == (entry.sent[0][2], NOW + 120 + HOUR)


def test_a_first_run_waits_and_keeps_its_nominal_time() -> None:
    entry = Entry(rule_of(overlap="skip"), None)
    entry.change(running=Running("other", NOW + 50))
    assert entry.turn(NOW + 5).rest.waits == "other"
    assert (entry.score, entry.now.due) == (NOW + 50, NOW)
    entry.turns(NOW + 51)
    assert entry.times == [0.0]


def test_a_second_report_about_an_earlier_run_does_not_end_the_new_one() -> None:
    entry = Entry(rule_of(overlap="skip"))
    first = entry.task_id(entry.turn(NOW + 60))
    entry.inbox = [ended(first)]
    second = entry.task_id(entry.turn(NOW + 120))
    entry.inbox = [ended(first), ended(first, "failed")]
    entry.turn(NOW + 180)
    assert entry.now.running is not None
    assert entry.now.running.id == second
    assert len(entry.sent) == 2


def test_a_retry_is_no_end() -> None:
    entry = Entry(rule_of(overlap="skip"))
    first = entry.task_id(entry.turn(NOW + 60))
    entry.inbox = [ended(first, "retried")]
    entry.turn(NOW + 61)
    assert entry.now.running is not None


def test_triggers_and_backfills_wait_for_a_run_and_the_schedule_goes_on() -> None:
    entry = Entry(rule_of(overlap="skip", overlap_timeout=300))
    first = entry.task_id(entry.turn(NOW + 60))
    entry.change(waiting=(filling(1),))
    entry.inbox = [trigger_line("t1", NOW + 70)]
    verdict = entry.turn(NOW + 70)
    assert (verdict.send, verdict.rest.waits, entry.score) == (None, first, NOW + 120)
    verdict = entry.turn(NOW + 120)
    assert (entry.outcomes[0], verdict.rest.waits, entry.score) == ("skipped", first, NOW + 180)
    entry.inbox = [ended(first)]
    entry.turn(NOW + 130)
    assert entry.sent[1:] == [(TRIGGERED, 70.0, "t1")]


def test_ends_are_counted_once() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [ended("a", "failed"), ended("b", "failed"), ended("a", "failed", NOW - 1)]
    entry.turn(NOW)
    assert entry.now.results == Results(None, 2, NOW, ("b", "a"), "failed")
    entry.inbox = [ended("a"), ended("c", at=NOW + 99), ended("b", at=NOW - 9)]
    verdict = entry.turn(NOW + 5)
    assert entry.now.results == Results(NOW + 5, 0, NOW, (), "succeeded")
    assert [(end.id, end.at - NOW) for end in verdict.ends] == [("a", 0.0), ("c", 5.0), ("b", -9.0)]


@pytest.mark.parametrize(
    ("reports", "last"),
    [
        (["failed"], "failed"),
        (["failed", "retried"], "failed"),
        (["retried", "revoked"], "revoked"),
        (["failed", "ignored"], "ignored"),
        (["failed", ""], "failed"),
        (["retried"], ""),
    ],
)
def test_the_last_result_is_that_of_the_run_whose_end_was_reported_last(
    reports: list[str], last: str
) -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [ended(f"run {n}", state) for n, state in enumerate(reports)]
    entry.turn(NOW)
    assert entry.now.results.last == last
    assert State.read(entry.now.text(), None).results.last == last


def test_an_end_without_a_result_changes_no_result() -> None:
    entry = Entry(rule_of(overlap="skip"))
    first = entry.task_id(entry.turn(NOW + 60))
    entry.inbox = [ended(first, "")]
    verdict = entry.turn(NOW + 61)
    assert (entry.now.running, entry.now.results, verdict.ends) == (None, NO_RESULTS, ())


def test_few_failed_runs_are_remembered() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [ended(f"run {n}", "failed") for n in range(15)]
    entry.turn(NOW)
    failed = tuple(f"run {n}" for n in range(14, 4, -1))
    assert entry.now.results == Results(None, 15, NOW, failed, "failed")


def test_a_state_is_shown_with_the_inbox_that_no_beat_has_taken_in() -> None:
    entry = Entry(rule_of(overlap="skip"))
    first = entry.task_id(entry.turn(NOW + 60))
    lines = (ended(first), trigger_line("t1", NOW), "7")
    inbox = read_inbox("[{}]".format(",\n".join(lines)))
    shown = with_inbox(entry.now, inbox, NOW + 61)
    assert (shown.running, shown.results.success) == (None, NOW)
    assert [one.id for one in shown.waiting] == ["t1"]
    assert (entry.now.waiting, entry.now.running is None) == ((), False)


@pytest.mark.parametrize("waits", [False, True])
def test_an_entry_is_paused_after_failures(waits: bool) -> None:
    entry = Entry(rule_of(pause_after_failures=2))
    entry.inbox = [ended("a", "failed", error="E1"), ended("b", "failed", error="E2")]
    if waits:
        entry.inbox.append(trigger_line("t1", NOW))
    verdict = entry.turn(NOW + 61)
    assert (verdict.send, entry.end) == (None, "pause")
    assert entry.score == (NOW + 61 if waits else DISABLED)
    note = "2 failed runs in a row, the last with E2"
    assert entry.now.pause == (NOW + 61, note, "pause_after_failures")
    assert entry.logged == [f"beat: Entry {entry.rule.key} is paused: {note}"]


def test_one_failure_more_does_not_pause_again_a_disabled_entry() -> None:
    entry = Entry(rule_of(pause_after_failures=1, enabled=False))
    entry.inbox = [ended("a", "failed")]
    entry.turn(NOW)
    assert entry.end == ""


# -- held runs -------------------------------------------------------------------------------------


def test_a_held_run_is_published_and_recorded() -> None:
    entry = Entry(rule_of(overlap="skip"))
    entry.inbox = [ended("earlier")]
    verdict = entry.hold(NOW + 61)
    held = entry.now
    assert held.hold == Hold(SCHEDULED, NOW + 60, entry.task_id(verdict), NOW + 91)
    assert (entry.count, entry.inbox, entry.now.marks.hold) == (0, [], entry.now.marks.last)
    entry.record(verdict, NOW + 61)
    assert entry.now.hold is None
    assert (entry.count, entry.score) == (1, NOW + 120)
    assert (entry.now.running or ())[:2] == (entry.task_id(verdict), NOW + 61 + HOUR)
    assert [end.id for end in verdict.ends] == ["earlier"]
    assert entry.now.marks == (entry.now.marks.last, "", entry.now.marks.last)


def test_a_live_hold_is_left_alone() -> None:
    entry = Entry(rule_of())
    entry.hold(NOW + 61)
    state = entry.now
    inbox = read_inbox(f"[{trigger_line('t1', NOW)},\n{ended('another')}]")
    known = Known(entry.rule, entry.rule.plan, entry.history, state, NOW + 70, NOW + 61)
    verdict = judge(known, inbox)
    assert (verdict.send, verdict.rest.score, verdict.take) == (None, NOW + 91, "")
    assert verdict.rest.state is state


@pytest.mark.parametrize(
    "edit",
    [
        lambda: rule_of(7.0),
        lambda: rule_of(crontab()),
        lambda: rule_of(max_runs=1),
        lambda: rule_of(overlap="skip"),
        lambda: rule_of(start_time=from_timestamp(NOW + 500)),
    ],
)
def test_a_dead_hold_goes_again_and_is_not_decided_anew(edit: Any) -> None:
    entry = Entry(rule_of())
    first = entry.hold(NOW + 61)
    entry.rule = edit()
    verdict = entry.judge(NOW + 91)
    assert verdict.send is not None
    assert verdict.send[:4] == (SCHEDULED, from_timestamp(NOW + 60), "", 0)
    assert verdict.send.held == entry.now.hold
    assert entry.task_id(verdict) == entry.task_id(first)
    again = entry.hold(NOW + 91)  # held by the second beat, which dies too
    third = entry.turn(NOW + 125)
    assert entry.task_id(again) == entry.task_id(third) == entry.task_id(first)
    assert (entry.now.at, entry.count, entry.now.hold) == (NOW + 60, 1, None)


def test_a_dead_hold_does_not_wait_for_the_end_of_a_run() -> None:
    entry = Entry(rule_of(overlap="skip"))
    entry.hold(NOW + 61)
    entry.change(running=Running("perhaps this one", NOW + 500))
    verdict = entry.judge(NOW + 91)
    assert verdict.send is not None
    assert verdict.send.held == entry.now.hold


def test_the_hold_keeps_from_where_the_next_run_is_computed() -> None:
    entry = Entry(rule_of(coalesce="earliest"))
    entry.hold(NOW + 200)
    assert entry.now.hold is not None
    assert entry.now.hold[-1] == NOW + 180
    verdict = entry.turn(NOW + 231)
    assert verdict.send is not None
    assert (entry.times, verdict.send.missed, entry.now.at) == ([60.0], 2, NOW + 180)
    assert entry.score == NOW + 240


def test_held_triggers_and_backfills_go_again() -> None:
    entry = Entry(rule_of(HOUR))
    entry.change(waiting=(filling(61),))
    entry.inbox = [trigger_line("t1", NOW)]
    for kind in (TRIGGERED, BACKFILLED):
        entry.score = NOW + 1
        first = entry.hold(NOW + 1)
        assert len(entry.now.waiting) == (2 if kind == TRIGGERED else 1)
        again = entry.turn(NOW + 31)
        assert again.send is not None
        assert first.send is not None
        assert again.send[:3] == first.send[:3]
        assert again.send.kind == kind
        assert entry.now.hold is None
    assert entry.sent[0] == (TRIGGERED, 0.0, "t1")
    backfill = entry.now.waiting[0]
    assert isinstance(backfill, Backfill)
    assert backfill.sent == 1
    entry.turns(NOW + 40)
    assert entry.times[1:] == [-10 * HOUR, -9 * HOUR]


@pytest.mark.parametrize(
    ("edit", "score"),
    [
        (lambda: rule_of(enabled=False, overlap="skip"), DISABLED),
        (lambda: rule_of(misfire_grace_time=10, overlap="skip"), NOW + 91),
        (lambda: rule_of(end_time=from_timestamp(NOW + 59), overlap="skip"), PARKED),
    ],
)
def test_a_held_run_that_the_rules_forbid_perhaps_left(edit: Any, score: float) -> None:
    entry = Entry(rule_of(), NOW, 3)
    first = entry.task_id(entry.hold(NOW + 61))
    entry.rule = edit()
    verdict = entry.turn(NOW + 91)
    assert (verdict.send, entry.outcomes, entry.count) == (None, ["perhaps_sent"], 4)
    assert entry.history.last_run_at == from_timestamp(NOW)
    assert (entry.now.hold, entry.now.at, entry.now.marks.hold) == (None, NOW + 60, "")
    assert (entry.now.running or ())[:2] == (first, NOW + 91 + HOUR)
    assert first in entry.lines[0]
    assert f"may have been sent with id {first}, not sending it again" in entry.logged[0]
    assert entry.score == (NOW + 120 if score > NOW else score)


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_the_runs_that_a_held_run_replaces_are_told(overlap: str) -> None:
    sent, perhaps, proved = (Entry(rule_of(overlap=overlap)) for _ in range(3))
    first = {entry.task_id(entry.hold(NOW + 181)) for entry in (sent, perhaps, proved)}.pop()
    perhaps.rule = rule_of(misfire_grace_time=10, overlap=overlap)
    proved.inbox = [ended(first)]
    verdicts = [entry.turn(NOW + 212) for entry in (sent, perhaps, proved)]
    assert [verdict.rest.missed for verdict in verdicts] == [2, 3, 2]  # for signals and metrics
    found = [(*entry.outcomes, entry.runs[0].missed) for entry in (sent, perhaps, proved)]
    assert found == [("sent", 2), ("perhaps_sent", 2), ("sent", 2)]


@pytest.mark.parametrize(
    "fields", [{"misfire_grace_time": 40}, {"end_time": from_timestamp(NOW + 60)}]
)
def test_a_held_run_within_its_grace_or_at_the_very_end_goes_again(fields: dict[str, Any]) -> None:
    entry = Entry(rule_of(**fields))
    entry.hold(NOW + 61)
    entry.turn(NOW + 99)
    assert entry.times == [60.0]


def test_perhaps_sent_counts_for_max_runs() -> None:
    entry = Entry(rule_of(max_runs=1, misfire_grace_time=10))
    entry.hold(NOW + 61)
    entry.turn(NOW + 91)
    assert (entry.sent, entry.count, entry.score, entry.end) == ([], 1, PARKED, "park")


def test_a_held_trigger_of_a_paused_entry_goes_again_but_a_backfill_does_not() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [trigger_line("t1", NOW)]
    entry.hold(NOW + 1)
    entry.rule = rule_of(HOUR, enabled=False)
    entry.turn(NOW + 31)
    assert entry.sent == [(TRIGGERED, 0.0, "t1")]
    entry = Entry(rule_of(HOUR))
    entry.change(waiting=(filling(2),))
    entry.hold(NOW + 1)
    entry.rule = rule_of(HOUR, enabled=False)
    entry.turns(NOW + 31)
    backfill = entry.now.waiting[0]
    assert isinstance(backfill, Backfill)
    assert (entry.sent, backfill.sent, entry.now.hold, entry.score) == ([], 1, None, DISABLED)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("state", ["succeeded", "retried", ""])
def test_an_end_of_the_held_run_proves_that_it_left(dead: bool, state: str) -> None:
    entry = Entry(rule_of(overlap="skip", max_runs=9), NOW, 3)
    first = entry.task_id(entry.hold(NOW + 61))
    entry.inbox = [ended("another"), ended(first, state)]
    now = NOW + (95 if dead else 62)
    verdict = entry.turn(now)
    assert (verdict.send, entry.outcomes, entry.inbox) == (None, ["sent"], [])
    assert (entry.count, entry.history.last_run_at) == (4, from_timestamp(now))
    assert entry.now.marks.hold == ""  # so that its owner does not record it again
    assert (entry.now.hold, entry.now.at, entry.score) == (None, NOW + 60, NOW + 120)
    assert (entry.now.running is None) == (state != "retried")


def test_a_held_run_that_was_retried_and_then_ended_is_not_running() -> None:
    entry = Entry(rule_of(overlap="skip"))
    first = entry.task_id(entry.hold(NOW + 61))
    entry.inbox = [ended(first, "retried", NOW + 62), ended(first, "succeeded", NOW + 63)]
    entry.turn(NOW + 64)
    assert (entry.outcomes, entry.now.running) == (["sent"], None)
    entry.turn(NOW + 120)
    assert entry.times == [120.0]


def test_an_end_of_a_held_trigger_proves_that_it_left() -> None:
    entry = Entry(rule_of(HOUR))
    entry.inbox = [trigger_line("t1", NOW)]
    entry.hold(NOW + 1)
    entry.inbox = [ended("t1")]
    entry.turn(NOW + 2)
    assert (entry.outcomes, entry.now.waiting, entry.now.ids) == (["triggered"], (), ("t1",))
    assert (entry.count, entry.score) == (0, NOW + 2)


def test_an_end_is_not_forgotten_while_its_run_is_put_back() -> None:
    entry = Entry(rule_of(overlap="skip"))
    verdict = entry.hold(NOW + 61)
    first = entry.task_id(verdict)
    failing = Failing(NOW + 62, 1, "the broker is away")
    state = put_back(verdict, entry.now, NOW + 72, failing, unsure=True)
    entry.state, entry.score = state.text(), NOW + 72
    assert entry.now.hold is not None
    assert entry.now.hold.until == NOW + 72
    entry.inbox = [ended(first)]
    entry.turns(NOW + 72)
    assert (entry.sent, entry.count, entry.now.running, entry.now.failing) == ([], 1, None, None)
    entry.turns(NOW + 120)
    assert entry.times == [120.0]


def test_a_failure_before_the_publish_is_decided_again() -> None:
    entry = Entry(rule_of(), None)
    verdict = entry.hold(NOW + 61)
    failing = Failing(NOW + 61, 1, "no such exchange")
    entry.state = put_back(verdict, entry.now, NOW + 65, failing, unsure=False).text()
    entry.score = NOW + 65
    assert (entry.now.hold, entry.now.failing, entry.now.due) == (None, failing, NOW)
    assert entry.now.marks.hold == ""
    entry.turn(NOW + 65)
    assert (entry.times, entry.now.failing) == ([0.0], None)


def test_a_failure_to_repeat_a_held_run_leaves_it_decided() -> None:
    entry = Entry(rule_of())
    first = entry.task_id(entry.hold(NOW + 61))
    again = entry.hold(NOW + 95)
    failing = Failing(NOW + 95, 1, "away")
    entry.state = put_back(again, entry.now, NOW + 99, failing, unsure=False).text()
    entry.rule = rule_of(7.0)
    assert entry.task_id(entry.turn(NOW + 99)) == first


def test_a_hold_that_was_not_tried_is_released() -> None:
    entry = Entry(rule_of())
    first = entry.hold(NOW + 61)
    dead = entry.now.hold
    assert dead is not None
    entry.state = put_back(first, entry.now, NOW + 61, None, unsure=False).text()
    assert (entry.now.hold, entry.now.marks.hold) == (None, "")
    entry.turn(NOW + 62)
    assert entry.times == [60.0]
    entry.change(hold=dead)
    again = entry.hold(NOW + 95)
    entry.state = put_back(again, entry.now, NOW + 95, None, unsure=False).text()
    assert entry.now.hold == dead._replace(until=NOW + 95)  # the dead beat may have sent it
    assert entry.task_id(entry.judge(NOW + 96)) == entry.task_id(first)


def test_under_another_meta_a_dead_hold_is_void() -> None:
    entry = Entry(rule_of(), NOW, 7)
    entry.hold(NOW + 61)
    entry.write(NOW + 62, 7)
    entry.turn(NOW + 91)
    assert (entry.sent, entry.score, entry.now.hold) == ([], NOW + 122, None)


def test_a_first_run_that_is_held_keeps_its_nominal_time() -> None:
    entry = Entry(rule_of(), None)
    verdict = entry.hold(NOW + 3)
    entry.state = put_back(verdict, entry.now, NOW + 3, None, unsure=False).text()
    entry.score = NOW + 3
    entry.turn(NOW + 4)
    assert entry.times == [0.0]


def test_a_trigger_and_a_pause_wait_for_the_end_of_a_hold() -> None:
    entry = Entry(rule_of())
    entry.hold(NOW + 61)
    entry.inbox = [trigger_line("t1", NOW + 62)]
    entry.turns(NOW + 90)
    assert entry.sent == []
    entry.turns(NOW + 95)
    assert [kind for kind, _, _ in entry.sent] == [SCHEDULED, TRIGGERED]


def test_too_many_failures_while_a_run_is_held() -> None:
    entry = Entry(rule_of(pause_after_failures=1))
    first = entry.task_id(entry.hold(NOW + 61))
    entry.inbox = [ended(first, "failed")]
    entry.turn(NOW + 62)
    assert (entry.count, entry.end, entry.score, entry.now.hold) == (1, "pause", DISABLED, None)
    entry = Entry(rule_of(pause_after_failures=1))
    entry.hold(NOW + 61)
    entry.inbox = [ended("another", "failed")]
    entry.turn(NOW + 95)
    assert (entry.end, entry.score) == ("pause", NOW + 95)
    entry.rule = rule_of(pause_after_failures=1, enabled=False)
    entry.turn(NOW + 95)
    assert (entry.sent, entry.outcomes, entry.score) == ([], ["perhaps_sent"], DISABLED)


# -- the entry was changed while its message left --------------------------------------------------


def over(entry: Entry, verdict: Verdict, now: float, *, left: bool = True) -> None:
    run = Run(Row(entry.rule.key), entry.rule, entry.now, entry.history, now)
    recorded = verdicts.record_held(verdict, run, entry.task_id(verdict), True, left)
    entry.store(recorded, run=True)


def test_a_published_run_is_recorded_with_the_new_texts() -> None:
    entry = Entry(rule_of(overlap="skip"), NOW, 2)
    verdict = entry.hold(NOW + 61)
    entry.rule = rule_of(7.0, overlap="skip")
    over(entry, verdict, NOW + 63)
    assert (entry.count, entry.history.last_run_at) == (3, from_timestamp(NOW + 61))
    assert (entry.now.at, entry.score, entry.now.hold) == (NOW + 60, NOW + 63, None)
    assert entry.now.running is not None
    entry.inbox = [ended(entry.task_id(verdict))]
    entry.turns(NOW + 67)
    assert entry.times == [67.0]


def test_an_entry_that_was_edited_during_its_last_run_goes_on() -> None:
    entry = Entry(rule_of(max_runs=1))
    verdict = entry.hold(NOW + 61)
    assert verdict.rest.end
    entry.rule = rule_of(max_runs=5)
    over(entry, verdict, NOW + 63)
    assert (entry.end, entry.score) == ("", NOW + 63)


def test_the_history_of_an_application_wins() -> None:
    entry = Entry(rule_of(), NOW, 2)
    verdict = entry.hold(NOW + 61)
    entry.write(NOW + 50, 0)
    meta = entry.meta
    over(entry, verdict, NOW + 63)
    assert (entry.meta, entry.now.at, entry.now.hold) == (meta, None, None)
    assert entry.now.meta == digest_of_meta(meta)
    assert len(entry.lines) == 1


def test_a_run_counts_if_an_application_wrote_only_the_last_run() -> None:
    entry = Entry(rule_of(), NOW, 2)
    verdict = entry.hold(NOW + 61)
    entry.write(NOW + 50, 2)
    over(entry, verdict, NOW + 63)
    assert entry.history == (from_timestamp(NOW + 50), 3, None)


def test_what_did_not_leave_does_not_count_over_new_texts() -> None:
    entry = Entry(rule_of(overlap="skip"), NOW, 2)
    verdict = entry.hold(NOW + 61)
    entry.rule = rule_of(7.0, overlap="skip")
    over(entry, verdict, NOW + 63, left=False)
    assert (entry.count, entry.now.at, entry.now.running) == (2, NOW + 60, None)


def test_a_published_trigger_is_taken_out_of_the_new_texts() -> None:
    entry = Entry(rule_of(HOUR), NOW, 2)
    entry.inbox = [trigger_line("t1", NOW), trigger_line("t2", NOW)]
    verdict = entry.hold(NOW + 1)
    entry.write(NOW + 1, 0)
    meta = entry.meta
    over(entry, verdict, NOW + 2)
    assert [one.id for one in entry.now.waiting] == ["t2"]
    assert (entry.meta, entry.score) == (meta, NOW + 2)


# -- backfills -------------------------------------------------------------------------------------


def filling(runs: int, since: float = NOW - 10 * HOUR, rate: float = 10.0) -> Backfill:
    """Return a backfill of the last ``runs`` minutes or hours before noon."""
    begin, end = from_timestamp(since), from_timestamp(since + (runs - 1) * 60 + 1)
    return Backfill("b1", begin, end, rate, 0, runs, ((begin, end),), NOW)


def test_a_backfill_is_sent_run_by_run_at_its_rate() -> None:
    entry = Entry(rule_of(crontab()), NOW)
    entry.change(waiting=(filling(3, rate=0.1),))
    entry.turn(NOW + 1)
    assert entry.score == NOW + 10
    entry.turn(NOW + 5)
    assert len(entry.sent) == 1
    entry.turns(NOW + 59)
    assert [(kind, at + 10 * HOUR) for kind, at, _ in entry.sent] == [
        (BACKFILLED, 0.0),
        (BACKFILLED, 60.0),
        (BACKFILLED, 120.0),
    ]
    backfill = entry.now.waiting[0]
    assert isinstance(backfill, Backfill)
    assert (backfill.finished, backfill.sent) == (True, 3)
    assert (entry.lines, entry.count, entry.score) == ([], 0, NOW + 60)


def test_runs_of_the_schedule_come_before_a_backfill() -> None:
    entry = Entry(rule_of(crontab()), NOW)
    entry.change(waiting=(filling(2),))
    entry.turn(NOW + 61)
    assert entry.sent[0][:2] == (SCHEDULED, 60.0)
    entry.turns(NOW + 62)
    assert len(entry.sent) == 3


def test_a_backfill_of_a_schedule_that_changed_ends() -> None:
    entry = Entry(rule_of(crontab(hour="3", minute="3")), NOW)
    entry.change(waiting=(filling(2),))
    entry.turn(NOW + 1)
    backfill = entry.now.waiting[0]
    assert isinstance(backfill, Backfill)
    assert (entry.sent, backfill.finished, backfill.sent) == ([], True, 0)


def test_a_backfill_of_a_schedule_that_is_asked_is_removed_and_said() -> None:
    entry = Entry(rule_of(Asks(NOW)), NOW)
    entry.change(waiting=(filling(2),))
    entry.turn(NOW + 1)
    assert (entry.sent, entry.now.waiting) == ([], ())
    assert "the class has its own is_due()" in entry.logged[0]


def test_a_backfill_counts_no_runs() -> None:
    entry = Entry(rule_of(crontab(), max_runs=3), NOW, 1)
    entry.change(waiting=(filling(2),))
    entry.turns(NOW + 5)
    assert (len(entry.sent), entry.count, entry.end) == (2, 1, "")


# -- compared with decide() ------------------------------------------------------------------------

schedules = st.sampled_from(
    [
        schedule(timedelta(seconds=60)),
        schedule(timedelta(seconds=7)),
        crontab(),
        crontab(minute="*/7", hour="*/2"),
        clocked(from_timestamp(NOW + 100)),
    ]
)
seconds = st.sampled_from([0, 5, 50, 200])
policies = st.fixed_dictionaries(
    {},
    optional={
        "max_runs": st.integers(1, 4),
        "misfire_grace_time": seconds,
        "jitter": seconds,
        "spread": seconds,
        "start_time": st.sampled_from([-500, 90, 300]).map(lambda s: from_timestamp(NOW + s)),
        "end_time": st.sampled_from([350, 900]).map(lambda s: from_timestamp(NOW + s)),
        "timezone": st.just("Europe/Paris"),
        "overlap_timeout": st.just(5),
    },
)
coalescing = st.sampled_from(
    [{}, {"coalesce": "earliest"}, {"coalesce": "all", "catch_up_limit": 3}]
)
delays = st.lists(st.sampled_from([0.0, 0.001, 3.0, 61.0, 200.0]), min_size=6, max_size=6)


def by_decide(rule: Rule, last: float | None, delays: list[float]) -> list[Any]:
    """Return the sends and the scores if decide() alone decides about each look."""
    ran = anchor = None if last is None else from_timestamp(last)
    score, runs, told = NOW, 0, list[Any]()
    for delay in delays:
        if score < 0:
            break
        now = from_timestamp(score + delay)
        decision: Decision = decide(rule.plan, ran, anchor, now, from_timestamp(score), runs)
        if decision.due:
            assert decision.scheduled_at is not None
            told.append((decision.scheduled_at.timestamp() - NOW, decision.missed))
            ran, anchor, runs = now, decision.anchor or decision.scheduled_at, runs + 1
        elif decision.anchor is not None and ran is not None:
            anchor = decision.anchor
        score = PARKED if decision.next_at is None else decision.next_at.timestamp()
        told.append(score)
    return told


@settings(max_examples=80, deadline=None)
@given(schedules, policies, coalescing, delays, st.booleans())
def test_runs_and_scores_are_those_of_decide(
    times: Any, fields: dict[str, Any], how: dict[str, Any], late: list[float], ran: bool
) -> None:
    rule, last = rule_of(times, **fields, **how), NOW if ran else None
    entry, told = Entry(rule, last), list[Any]()
    for delay in late:
        if entry.score < 0:
            break
        verdict = entry.turn(entry.score + delay)
        if verdict.send is not None:
            told.append((verdict.send.at.timestamp() - NOW, verdict.send.missed))
        told.append(entry.score)
    assert told == by_decide(rule, last, late)
