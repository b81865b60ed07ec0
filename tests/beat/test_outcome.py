"""The outcome table: what the answer to a change means for its run, one cell after the other."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat.beat import message
from redbeat.beat.outcome import (
    AGAIN,
    FAILED,
    NOTHING,
    OTHER_ORDER,
    PUBLISH,
    RECORD_OVER,
    TABLE,
    Outcome,
)
from redbeat.entries import verdicts
from redbeat.entries.history import History
from redbeat.entries.policy import Policy
from redbeat.entries.run import FIRST, HOLD, INSIDE, RECORD, RELEASE, REST, Run
from redbeat.entries.state import Hold, State
from redbeat.metrics.counters import Counters
from redbeat.storage.rows import Answer, Change, Row, digest_of
from redbeat.storage.words import ABSENT, DIFFERS, DONE, ELSEWHERE, REFUSED, STALE
from tests.beat.sending import AT, rule_of

WORDS = (DONE, DIFFERS, ABSENT, STALE, ELSEWHERE, REFUSED)
#: Answers that a change of this kind never gets: only a change with a message is for one server,
#: and only what decides may be too late.
NEVER = {
    *((stage, ELSEWHERE) for stage in (HOLD, RECORD, FIRST, REST, RELEASE)),
    (RECORD, STALE),
}


class Settings:
    """The settings that the outcome of runs reads."""

    history_size = 10
    key_prefix, shards = "redbeat:", 1


class World:
    """An outcome table with its counters."""

    def __init__(self) -> None:
        self.counters = Counters(100)
        self.outcome = Outcome(None, Settings(), self.counters, lambda _run: None)  # type: ignore[arg-type]

    def run(self, stage: str, **policy: Any) -> tuple[Run, Change]:
        """Return a run whose change of this kind is on its way, and the change."""
        rule = rule_of(schedule=schedule(timedelta(minutes=1)), policy=Policy.of(policy))
        row = Row(rule.key, str(AT.timestamp()), "{}", None, None, None, None)
        run = Run(row, rule, State(identity="i"), History(), AT.timestamp() + 0.25)
        words = (rule, rule.plan, run.history, run.state, run.now, AT.timestamp())
        run.verdict = verdicts.judge(verdicts.Known(*words), [])
        run.task_id = run.own_id = "id"
        run.left = True
        changes = {
            INSIDE: lambda: self.outcome.inside(run),
            HOLD: lambda: self.outcome.hold(run),
            RECORD: lambda: (self.outcome.hold(run), self.outcome.record(run))[1],
            FIRST: lambda: self.outcome.first(run),
            REST: lambda: self.outcome.rest(run),
            RELEASE: lambda: (self.outcome.hold(run), self.outcome.put_back(run, 1.0))[1],
        }
        return run, changes[stage]()

    @property
    def dispatched(self) -> int:
        return self.counters.sent


@pytest.fixture
def world() -> World:
    return World()


def test_each_answer_to_each_change_has_its_cell() -> None:
    stages = (INSIDE, HOLD, RECORD, FIRST, REST, RELEASE)
    assert set(TABLE) == {(stage, word) for stage in stages for word in WORDS} - NEVER


CELLS = [
    (INSIDE, DONE, False, NOTHING, 1),
    (INSIDE, DIFFERS, False, AGAIN, 0),
    (INSIDE, DIFFERS, True, AGAIN, 0),
    (INSIDE, ABSENT, False, NOTHING, 0),
    (INSIDE, STALE, False, AGAIN, 0),
    (INSIDE, ELSEWHERE, False, OTHER_ORDER, 0),
    (INSIDE, REFUSED, False, FAILED, 0),
    (HOLD, DONE, False, PUBLISH, 0),
    (HOLD, DIFFERS, False, AGAIN, 0),
    (HOLD, ABSENT, False, NOTHING, 0),
    (HOLD, STALE, False, AGAIN, 0),
    (HOLD, REFUSED, False, FAILED, 0),
    (RECORD, DONE, False, NOTHING, 1),
    (RECORD, ABSENT, False, NOTHING, 1),
    (RECORD, REFUSED, False, NOTHING, 0),
    (FIRST, DONE, False, PUBLISH, 0),
    (FIRST, DIFFERS, False, AGAIN, 0),
    (FIRST, DIFFERS, True, NOTHING, 0),
    (FIRST, ABSENT, False, NOTHING, 0),
    (FIRST, STALE, False, AGAIN, 0),
    (FIRST, STALE, True, NOTHING, 0),
    (FIRST, REFUSED, False, FAILED, 0),
    (REST, DONE, False, NOTHING, 0),
    (REST, DIFFERS, False, AGAIN, 0),
    (REST, ABSENT, False, NOTHING, 0),
    (REST, STALE, False, AGAIN, 0),
    (REST, REFUSED, False, NOTHING, 0),
    (RELEASE, DONE, False, NOTHING, 0),
    (RELEASE, DIFFERS, False, NOTHING, 0),
    (RELEASE, ABSENT, False, NOTHING, 0),
    (RELEASE, STALE, False, NOTHING, 0),
    (RELEASE, REFUSED, False, NOTHING, 0),
]


@pytest.mark.parametrize(("stage", "word", "repeated", "then", "sent"), CELLS)
def test_a_cell(world: World, stage: str, word: str, repeated: bool, then: str, sent: int) -> None:
    """``sent`` is how many messages the answer proves to be out."""
    run, _ = world.run(stage)
    answer = Answer(word, "why", run.row if word == DIFFERS else None)

    assert world.outcome.after(run, answer, repeated) == then
    assert world.dispatched == sent


def test_a_repeated_record_that_differs_is_logged_as_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = world.run(FIRST)

    world.outcome.after(run, Answer(DIFFERS, "", run.row), True)

    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "The run of a at 2026-06-01 12:00:00+00:00 is lost" in line.getMessage()


@pytest.mark.parametrize("left", [True, False])
def test_a_run_that_is_given_back_stays_decided_if_it_perhaps_left(
    world: World, left: bool
) -> None:
    run, _ = world.run(HOLD)
    run.left = left

    change = world.outcome.put_back(run, 1.0)

    hold = State.read(change.set["beat_state"], None).hold
    assert (hold and hold.id) == ("id" if left else None)


def test_a_last_run_that_could_not_be_sent_has_not_finished_its_entry(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run, _ = world.run(INSIDE, max_runs=1)
    run.left = False

    world.outcome.failure(run, ValueError("no such queue"), 1.0)

    assert world.outcome.after(run, Answer(DONE), False) == NOTHING
    assert "has finished" not in caplog.text


def test_a_published_run_that_is_still_held_is_recorded_over_the_edit(world: World) -> None:
    run, _ = world.run(RECORD)
    assert run.stored is not None
    edited = run.stored._replace(definition='{"new": 1}')

    assert world.outcome.after(run, Answer(DIFFERS, "", edited), False) == RECORD_OVER
    assert world.dispatched == 0


def test_a_published_run_whose_hold_is_another_is_out_and_not_recorded(world: World) -> None:
    """A takeover has the same task id, and a mark of its own."""
    run, _ = world.run(RECORD)
    other, _ = world.run(HOLD)
    assert other.stored is not None
    taken = run.row._replace(state=other.stored.state)

    assert world.outcome.after(run, Answer(DIFFERS, "", taken), False) == NOTHING
    assert world.dispatched == 1


def test_a_message_that_left_unheld_is_recorded_over_an_edit(world: World) -> None:
    run, _ = world.run(INSIDE)
    world.outcome.record(run)

    assert world.outcome.after(run, Answer(DIFFERS, "", run.row), False) == RECORD_OVER


def test_a_repeated_change_that_deletes_its_entry_has_done_so(world: World) -> None:
    run, change = world.run(INSIDE, max_runs=1, on_finish="delete")
    assert change.delete

    assert world.outcome.after(run, Answer(ABSENT), True) == NOTHING
    assert world.dispatched == 1


def test_a_repeated_record_that_deletes_its_entry_lets_its_message_leave(world: World) -> None:
    run, change = world.run(FIRST, max_runs=1, on_finish="delete")
    assert change.delete

    assert world.outcome.after(run, Answer(ABSENT), True) == PUBLISH
    assert world.outcome.after(run, Answer(ABSENT), False) == NOTHING


@pytest.mark.parametrize(("on_finish", "score"), [("keep", -1.0), ("disable", -2.0)])
def test_the_last_run_parks_or_disables_its_entry(
    world: World, on_finish: str, score: float
) -> None:
    _, change = world.run(INSIDE, max_runs=1, on_finish=on_finish)

    assert change.score == score
    assert ("definition" in change.set) is (on_finish == "disable")


def test_an_entry_that_failures_pause_keeps_the_score_that_a_hold_or_trigger_needs(
    world: World,
) -> None:
    run, _ = world.run(REST)
    assert run.verdict is not None
    rest = run.verdict.rest._replace(end=verdicts.PAUSE, score=run.now)
    run.verdict = run.verdict._replace(send=None, rest=rest)

    change = world.outcome.rest(run)

    assert change.score == run.now
    assert json.loads(change.set["definition"])["enabled"] is False


def test_a_quarantined_entry_that_never_ran_keeps_its_nominal_time(world: World) -> None:
    row = Row("redbeat:a", str(AT.timestamp()), "{", None, None, None, None)

    change = world.outcome.quarantine(row, "why", AT.timestamp() + 9)

    assert change.score == -1
    assert State.read(change.set["beat_state"], None).due == AT.timestamp()


@pytest.mark.parametrize("score", ["inf", "1e308", "253402300800", "-1e300"])
def test_what_is_stored_for_a_score_that_no_datetime_can_hold_can_be_read(
    world: World, score: str
) -> None:
    row = Row("redbeat:a", score, "{}", None, None, None, None)
    run = Run(row, rule_of(), State(identity="i"), History(), AT.timestamp())

    for change in (
        world.outcome.suspect(row, run.now),
        world.outcome.quarantine(row, "why", run.now),
        world.outcome.failure(run, ValueError("is_due"), 1.0),
    ):
        kept = State.read(change.set["beat_state"], None)
        assert kept.failing or kept.quarantine


def test_a_run_expects_what_was_looked_at_and_never_a_first_runs_moved_score(
    world: World,
) -> None:
    run, change = world.run(INSIDE)

    assert change.expect == digest_of(run.row, "s")
    assert change.expect != digest_of(run.row._replace(score="2"), "s")
    assert change.not_before == run.now
    assert change.not_after == pytest.approx(run.now + 5)
    _, record = world.run(RECORD)
    assert record.not_after is None


def test_a_held_run_keeps_its_id_whatever_its_entry_is_by_now(world: World) -> None:
    run, _ = world.run(HOLD)
    held = Hold("scheduled", AT.timestamp(), "its id", 0.0)
    run.state.identity = "another"
    message.name_run(run, run.send._replace(held=held), "redbeat:")
    assert (run.own_id, run.task_id) == ("its id", "its id")
