"""Tests that the oracle of the simulator finds violations and accepts correct records."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.simulation.oracle import crontab_slots, judge, rule_slots
from tests.simulation.record import Action, Arrival, Record
from tests.simulation.scenario import Scenario, Step

SCENARIO = Scenario(seed=1, duration=200.0, calm=100.0, lock_timeout=5.0)
EVERY: dict[str, Any] = {"kind": "every", "seconds": 10}


def saved(at: float, version: int = 1, **fields: Any) -> Action:
    """Return the action of saving ``poll``, which takes no time."""
    definition = {**(fields or EVERY), "made_at": at}
    step = Step(at, "save", "web-1", "poll", fields=fields or EVERY)
    return Action(step, version, at, at, "done", definition=definition)


def done(what: str, at: float, version: int = 9) -> Action:
    """Return a successful operation that is not a save."""
    return Action(Step(at, what, "web-1", "poll"), version, at, at, "done")


def sent(nominal: float, at: float | None = None, **more: Any) -> Arrival:
    """Return a message of ``poll``; instants are seconds since the beginning."""
    at = nominal + 0.002 if at is None else at
    start = SCENARIO.start
    values = {
        "at": at,
        "clock": start + at,
        "entry": "poll",
        "task_id": f"id of {nominal}",
        "nominal": start + nominal,
        "version": 1,
        "triggered": False,
        "coalesced": 0,
    }
    return Arrival(**{**values, **more})


def record(arrivals: list[Arrival], *actions: Action, **more: Any) -> Record:
    """Return a record; by default, ``poll`` was saved at 0."""
    return Record(SCENARIO, arrivals, [*(actions or (saved(0.0),))], **more)


def grid(*left_out: int) -> list[Arrival]:
    """Return one message every ten seconds, except the messages with the given numbers."""
    return [sent(10.0 * number) for number in range(1, 21) if number not in left_out]


def with_one_more(arrival: Arrival) -> list[Arrival]:
    return sorted([*grid(), arrival], key=lambda one: one.at)


def test_a_message_for_each_occurrence_is_right() -> None:
    assert judge(record(grid())) == []


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        (grid(7), "was not sent"),
        ([], "never ran"),
        ([sent(n * 10.0, n * 10.0 + 3.0) for n in range(1, 21)], "3.000 s late"),
        (with_one_more(sent(50.0, 50.01)), "was sent again"),
        (with_one_more(sent(50.0, 50.01, task_id="another")), "has 2 ids"),
        (with_one_more(sent(55.0)), "is no occurrence"),
        (sorted([*grid(5), sent(50.0, 62.0)], key=lambda one: one.at), "came after a later one"),
        (with_one_more(sent(30.0, task_id="id of 20.0")), "stands for 2 runs"),
        ([sent(10.0, 9.5), *grid(1)], "0.500 s early"),
        ([sent(10.0, wrong=-300.0), *grid(1)], "expires -300.000 s late"),
        ([*grid()[:5], *[replace(one, version=7) for one in grid()[5:]]], "no longer there"),
    ],
)
def test_violations_are_found(arrivals: list[Arrival], expected: str) -> None:
    wrong = judge(record(arrivals))
    assert any(expected in line for line in wrong)


def on_two_servers(one: Record) -> Record:
    """Return the record, changed to separate servers for broker and schedule."""
    return replace(one, scenario=replace(one.scenario, separate_broker=True))


def has(one: Record, expected: str) -> bool:
    """Return whether a violation in a record contains this text."""
    return any(expected in line for line in judge(one))


FAULT = [(70.0, 75.0, "kill")]


class TestFaults:
    """Tests that a fault explains some violations for some time."""

    def test_missed_occurrences_may_coalesce(self) -> None:
        arrivals = grid(7, 8)
        wrong = judge(record(arrivals, disturbances=FAULT))
        assert any("tells of 0 missed runs, there were 2" in line for line in wrong)
        arrivals[6] = replace(arrivals[6], coalesced=2)
        assert judge(record(arrivals, disturbances=FAULT)) == []

    def test_the_latest_missed_occurrence_is_sent(self) -> None:
        outage = [(70.0, 95.0, "restart")]
        arrivals = grid(7, 8, 9)
        late = sorted([*arrivals, sent(70.0, 95.5)], key=lambda one: one.at)
        wrong = judge(record(late, disturbances=outage))
        assert any("although 2 later runs were due" in line for line in wrong)
        latest = sorted([*arrivals, sent(90.0, 95.5, coalesced=2)], key=lambda one: one.at)
        assert judge(record(latest, disturbances=outage)) == []

    def test_runs_that_are_too_late_need_no_message(self) -> None:
        short = saved(0.0, **EVERY, misfire_grace_time=2)
        late = sorted([*grid(7, 8), sent(80.0, 85.0)], key=lambda one: one.at)
        wrong = judge(record(late, short, disturbances=[(70.0, 84.0, "restart")]))
        assert any("5.000 s late, 2 s are allowed" in line for line in wrong)

    def test_occurrences_long_after_a_fault_must_not_coalesce(self) -> None:
        wrong = judge(record(grid()[:7], disturbances=FAULT))
        assert any("was not sent" in line for line in wrong)

    def test_no_occurrence_may_coalesce_with_coalesce_all(self) -> None:
        every = saved(0.0, **EVERY, coalesce="all")
        wrong = judge(record(grid(7, 8), every, disturbances=FAULT))
        assert sum("was not made up for" in line for line in wrong) == 2

    def test_a_run_has_one_id_whatever_happens(self) -> None:
        again = with_one_more(sent(70.0, 76.0, task_id="another"))
        wrong = judge(record(again, disturbances=FAULT))
        assert any("has 2 ids" in line for line in wrong)


class TestHostClocks:
    """Tests that the clocks of hosts explain almost nothing, because the clock of Redis decides."""

    def test_a_jump_of_a_host_clock_explains_no_missing_run(self) -> None:
        jump = [(25.0, 25.0, "host clock")]
        assert judge(record(grid(), disturbances=jump)) == []
        assert has(record(grid(3, 12, 13), disturbances=jump), "was not sent")

    def test_the_size_of_a_jump_is_no_duration(self) -> None:
        jump = [(25.0, 425.0, "host clock")]
        assert has(record(grid(12, 13), disturbances=jump), "was not sent")

    @pytest.mark.parametrize("by", ["beat-1", "beat-2"])
    def test_a_drift_makes_only_messages_of_that_host_late(self, by: str) -> None:
        late = [replace(sent(n * 10.0, n * 10.0 + 1.1), sender=by) for n in range(1, 21)]
        drifting = record(late, drifts={"beat-1": [(5.0, 0.04)]})
        assert has(drifting, "1.100 s late") is (by == "beat-2")

    def test_a_drift_makes_messages_late_by_its_share_of_a_wait_only(self) -> None:
        late = [replace(sent(n * 10.0, n * 10.0 + 1.4), sender="beat-1") for n in range(1, 21)]
        assert has(record(late, drifts={"beat-1": [(5.0, 0.04)]}), "1.400 s late")

    def test_a_drift_explains_no_missing_run(self) -> None:
        drift = {"beat-1": [(5.0, -0.04)]}
        faults = [(5.0, 405.0, "host drift")]
        assert has(record(grid(12, 13), drifts=drift, disturbances=faults), "was not sent")


class TestOneStep:
    """Tests that faults explain less when broker and schedule share a server.

    Message and record are then one step.
    """

    #: A record with a message that is repeated after a fault of the beat.
    twice = record(with_one_more(sent(70.0, 76.0)), disturbances=FAULT, hit={"": [(70.0, 75.0)]})

    def test_a_message_may_come_twice_on_two_servers_only(self) -> None:
        assert judge(on_two_servers(self.twice)) == []
        assert has(self.twice, "was sent again")

    def test_a_fault_of_another_beat_explains_no_second_message(self) -> None:
        by_another = replace(self.twice, hit={"beat-9": [(70.0, 75.0)]})
        assert has(on_two_servers(by_another), "was sent again")

    def test_at_most_once_explains_no_second_message(self) -> None:
        once = replace(self.twice, actions=[saved(0.0, **EVERY, delivery="at_most_once")])
        assert has(on_two_servers(once), "was sent again")
        assert has(once, "was sent again")

    def test_a_message_may_come_twice_when_older_data_came_back(self) -> None:
        assert not has(replace(self.twice, rollbacks=[(72.0, 69.0)]), "was sent again")

    def test_a_message_may_come_twice_when_the_clock_of_redis_went_back(self) -> None:
        jump = [(55.0, 65.0, "server clock")]
        again = with_one_more(sent(50.0, at=61.0))
        assert judge(record(again, disturbances=jump)) == []
        assert judge(record(again, disturbances=[(55.0, 65.0, "restart")])) != []

    def test_a_message_may_come_twice_when_an_older_beat_led(self) -> None:
        assert not has(replace(self.twice, legacy_leads=[(150.0, 160.0)]), "was sent again")

    @pytest.mark.parametrize("delivery", [None, "at_most_once"])
    def test_a_held_up_message_may_come_after_a_later_one_unless_it_is_one_step(
        self, delivery: str | None
    ) -> None:
        arrivals = sorted([*grid(5), sent(50.0, 62.0)], key=lambda one: one.at)
        action = saved(0.0, **{**EVERY, **({"delivery": delivery} if delivery else {})})
        late = record(arrivals, action, disturbances=[(49.0, 61.0, "freeze")])
        assert not has(on_two_servers(late), "came after a later one")
        assert has(late, "came after a later one") is (delivery is None)

    @pytest.mark.parametrize("what", ["edit", "pause", "delete"])
    def test_a_claimed_run_may_be_sent_after_an_edit_unless_it_is_one_step(self, what: str) -> None:
        until = [arrival for arrival in grid() if arrival.at < 101]
        told = "sent although" if what == "pause" else "no longer there"
        soon = record(until, saved(0.0), done(what, 100.001))
        assert not has(on_two_servers(soon), told)
        assert has(soon, told)
        stuck = record([*until[:-1], sent(100.0, 104.0)], saved(0.0), done(what, 100.001))
        stuck = replace(stuck, disturbances=[(100.0, 103.0, "freeze")])
        assert not has(on_two_servers(stuck), told)
        assert has(stuck, told)


class TestEdits:
    """Tests that the beats follow the operations of applications."""

    @pytest.mark.parametrize("what", ["pause", "delete"])
    def test_a_deleted_or_paused_entry_sends_nothing(self, what: str) -> None:
        until = [arrival for arrival in grid() if arrival.at < 100]
        assert judge(record(until, saved(0.0), done(what, 99.0))) == []
        wrong = judge(record(grid(), saved(0.0), done(what, 99.0)))
        assert len(wrong) >= 10

    def test_an_edit_takes_effect_at_once(self) -> None:
        new = [replace(one, version=9) if one.at > 99 else one for one in grid()]
        assert judge(record(new, saved(0.0), done("edit", 99.0))) == []
        assert judge(record(grid(), saved(0.0), done("edit", 99.0)))

    def test_a_run_may_be_sent_while_an_edit_is_under_way(self) -> None:
        edit = replace(done("edit", 29.0), ended=30.01)
        arrivals = [replace(one, version=1 if one.at < 30.01 else 9) for one in grid()]
        assert judge(record(arrivals, saved(0.0), edit)) == []
        edit.ended = 30.001
        wrong = judge(record(arrivals, saved(0.0), edit))
        assert wrong == ["    30.002 s  poll: sent with what was no longer there (v1)"]

    def test_an_entry_that_runs_again_keeps_its_time(self) -> None:
        arrivals = [arrival for arrival in grid() if not 50 < arrival.at < 80]
        actions = saved(0.0), done("pause", 51.0), done("resume", 79.0)
        assert judge(record(arrivals, *actions)) == []

    def test_a_trigger_makes_a_run(self) -> None:
        trigger = done("trigger", 42.0)
        trigger.result = "triggered"
        wrong = judge(record(grid(), saved(0.0), trigger))
        assert any("was not sent" in line for line in wrong)
        run = sent(42.0, task_id="triggered", triggered=True)
        assert judge(record(with_one_more(run), saved(0.0), trigger)) == []

    def test_a_limit_is_kept(self) -> None:
        limited = saved(0.0, **EVERY, max_runs=3)
        assert judge(record(grid()[:3], limited, stored={"poll": True})) == []
        assert any("on_finish" in line for line in judge(record(grid()[:3], limited)))
        assert any("are the limit" in line for line in judge(record(grid()[:4], limited)))
        assert any("never ran" in line for line in judge(record([], limited)))

    def test_another_schedule_rearms_a_finished_entry(self) -> None:
        limited = {**EVERY, "max_runs": 3}
        stored = {"poll": True}
        runs, first = grid()[:3], saved(0.0, **limited)
        again = saved(100.0, 2, **{**limited, "seconds": 20})
        more = [sent(120.0 + 20 * number, version=2) for number in range(3)]
        assert judge(record([*runs, *more], first, again, stored=stored)) == []
        wrong = judge(record(runs, first, again, stored=stored))
        assert any("never ran" in line for line in wrong)

    def test_the_same_schedule_does_not_rearm_a_finished_entry(self) -> None:
        limited = {**EVERY, "max_runs": 3}
        actions = saved(0.0, **limited), saved(100.0, 2, **limited)
        assert judge(record(grid()[:3], *actions, stored={"poll": True})) == []


def raw(what: str, at: float, version: int = 9, **fields: Any) -> Action:
    """Return an operation of a program without RedBeat."""
    step = Step(at, what, "web-1", "poll", fields=fields)
    return Action(step, version, at, at, "done", definition={**fields, "made_at": at})


class TestProgramsWithoutRedBeat:
    """Tests that the beats follow programs that write entries as the manual describes."""

    @pytest.mark.parametrize("quiet", [False, True])
    def test_an_entry_saved_in_place_keeps_its_stored_policy(self, quiet: bool) -> None:
        first = saved(0.0, **EVERY, jitter=5)
        late = [sent(10.0 * number, 10.0 * number + 4.0) for number in range(1, 21)]
        late = [replace(one, version=9) if one.at > 95 else one for one in late]
        assert judge(record(late, first, raw("raw save", 95.0, **EVERY, quiet=quiet))) == []
        anew = raw("raw save", 95.0, **EVERY, quiet=quiet, anew=True)
        assert has(record(late, first, anew), "4.000 s late")

    def test_a_policy_that_no_beat_stored_goes_with_the_definition(self) -> None:
        first = raw("raw save", 0.0, version=1, **EVERY, jitter=5)
        runs = [sent(10.0 * number, 10.0 * number + 4.0) for number in range(20)]
        late = [replace(one, version=9) if one.at > 95 else one for one in runs]
        assert has(record(late, first, raw("raw save", 95.0, **EVERY)), "4.000 s late")

    def test_a_disabled_entry_sends_nothing_until_it_is_enabled(self) -> None:
        actions = saved(0.0), raw("raw disable", 51.0), raw("raw enable", 79.0)
        silent = [arrival for arrival in grid() if not 50 < arrival.at < 80]
        assert judge(record(silent, *actions)) == []
        assert has(record(grid(), *actions), "sent although the entry was paused")
        assert has(record(silent[:4], *actions), "never ran")

    @pytest.mark.parametrize(("quiet", "at"), [(False, 52.5), (True, 57.5)])
    def test_an_entry_whose_history_is_deleted_runs_at_once(self, quiet: bool, at: float) -> None:
        actions = saved(0.0), raw("raw run", 51.0, quiet=quiet)
        runs = [*grid()[:5], *(sent(51.5 + 10 * number) for number in range(15))]
        assert judge(record(runs, *actions)) == []
        late = [*grid()[:5], *(sent(at + 10 * number) for number in range(15))]
        assert has(record(late, *actions), "did not run at once although it has no history")

    def test_a_rule_without_a_history_waits_for_its_first_run(self) -> None:
        rule: dict[str, Any]
        rule = {"kind": "rrule", "freq": "MINUTELY", "interval": 1, "bysecond": [50]}
        runs = [sent(50.0), sent(110.0), sent(170.0)]
        assert judge(record(runs, raw("raw save", 0.0, version=1, **rule))) == []
        actions = saved(0.0, **rule), raw("raw run", 60.0)
        assert has(record(runs, *actions), "did not run at once")

    def test_a_rule_may_repeat_a_run_after_its_history_was_deleted(self) -> None:
        rule = saved(0.0, kind="rrule", freq="SECONDLY", interval=100)
        runs = [sent(1.0), sent(1.0, 20.5), sent(101.0)]
        assert judge(record(runs, rule, raw("raw run", 20.0))) == []
        assert has(record(runs, rule), "was sent again")


def test_after_older_data_the_older_schedule_counts() -> None:
    deleted = saved(0.0), done("delete", 99.0)
    silent = [arrival for arrival in grid() if not 99 < arrival.at < 120]
    more = {"rollbacks": [(110.0, 95.0)], "disturbances": [(110.0, 112.0, "older data")]}
    assert judge(record(silent, *deleted, **more)) == []
    gone = record(silent[:9], *deleted, **more)
    gone.scenario = replace(SCENARIO, recovery=30.0)
    assert has(gone, "never ran")


def test_runs_that_must_not_overlap() -> None:
    action = saved(0.0, **EVERY, overlap="skip")
    runs = [("poll", "id of 10.0", 10.0, 25.0), ("poll", "id of 20.0", 20.0, 22.0)]
    wrong = judge(record(grid(), action, runs=runs))
    assert any("while another one was at work" in line for line in wrong)


def test_runs_go_on_after_one_that_had_to_end_first() -> None:
    action = saved(0.0, **EVERY, overlap="skip", takes=1.0)
    assert judge(record(grid(), action)) == []
    wrong = judge(record(grid(7, 8), action))
    assert any("nothing was sent for 30.000 s" in line for line in wrong)


def test_one_beat_leads_and_ids_belong_to_one_entry() -> None:
    two = [replace(one, sender=f"beat-{number % 2}") for number, one in enumerate(grid())]
    assert any("sends while beat-0 leads" in line for line in judge(record(two)))
    other = sent(50.0, entry="other")
    assert any("an id of poll" in line for line in judge(record(with_one_more(other))))


def test_a_deleted_entry_must_not_be_stored() -> None:
    gone = saved(0.0), done("delete", 55.0)
    assert judge(record(grid()[:5], *gone)) == []
    wrong = judge(record(grid()[:5], *gone, stored={"poll": True}))
    assert any("is stored although it is gone" in line for line in wrong)


def test_a_good_entry_must_not_be_refused() -> None:
    refused = saved(55.0, version=2)
    refused.outcome = "failed: InvalidEntryError('catch_up_limit: is missing')"
    assert has(record(grid(), saved(0.0), refused), "was refused")


def test_a_busy_loop_is_wrong() -> None:
    assert any(
        "busy loop" in line for line in judge(record(grid(), loops=[(5.0, "beat-1", "poll")]))
    )


def test_a_beat_that_exits_and_an_entry_in_quarantine_are_wrong() -> None:
    wrong = judge(
        record(grid(), exits=[(5.0, "beat-1", "OSError()")], quarantined=["redbeat:poll"])
    )
    assert len(wrong) == 2


def test_a_one_off_that_ran_by_a_wrong_clock_needs_no_other_run() -> None:
    once = saved(0.0, kind="clocked", after=30.0)
    jump = [(20.0, 40.0, "server clock")]
    early = sent(30.0, 27.5, clock=SCENARIO.start + 30.5)
    assert judge(record([early], once, disturbances=jump)) == []
    assert has(record([], once, disturbances=jump), "nothing was sent")


#: The faults of one of two beats, which stays frozen from the 42nd second on.
FROZEN: dict[str, Any] = {
    "disturbances": [(42.0, 900.0, "freeze")],
    "hit": {"beat-1": [(42.0, 900.0)]},
}


class TestDeadlines:
    """Tests of what must have happened some seconds later, although a beat had a fault."""

    def triggered(self, at: float | None, **more: Any) -> Record:
        """Return a record with a trigger at 42 s, and with its run at ``at``."""
        trigger = done("trigger", 42.0)
        trigger.result = "triggered"
        run = [] if at is None else [sent(at, task_id="triggered", triggered=True)]
        arrivals = sorted([*grid(), *run], key=lambda one: one.at)
        return record(arrivals, saved(0.0), trigger, **more)

    def test_a_trigger_leaves_when_the_hold_of_a_dead_beat_ends(self) -> None:
        told = "not sent: 37.0 s are enough"
        assert not has(self.triggered(78.9, **FROZEN), told)
        assert has(self.triggered(79.1, **FROZEN), told)
        assert has(self.triggered(None, **FROZEN), told)

    def test_each_beat_that_dies_later_delays_a_trigger(self) -> None:
        twice = {
            "disturbances": [(42.0, 900.0, "freeze"), (50.0, 51.0, "kill")],
            "hit": {"beat-1": [(42.0, 900.0), (50.0, 51.0)]},
        }
        assert not has(self.triggered(86.9, **twice), "are enough")
        assert has(self.triggered(87.1, **twice), "45.0 s are enough")

    def test_a_trigger_may_wait_while_every_beat_is_away(self) -> None:
        hit = {"beat-1": [(42.0, 900.0)], "beat-2": [(43.0, 44.0)]}
        faults = [(42.0, 900.0, "freeze"), (43.0, 44.0, "kill")]
        assert not has(self.triggered(100.0, hit=hit, disturbances=faults), "are enough")
        assert has(self.triggered(100.0, hit={"beat-1": hit["beat-1"]}, disturbances=faults), "are")

    def test_a_trigger_may_wait_while_a_server_is_away(self) -> None:
        away = {**FROZEN, "disturbances": [(42.0, 900.0, "freeze"), (43.0, 50.0, "restart")]}
        assert not has(self.triggered(100.0, **away), "are enough")

    def test_a_beat_that_stays_frozen_explains_nothing_later(self) -> None:
        assert has(record(grid(15), **FROZEN), "was not sent")
        thawed = [(42.0, 145.0, "freeze")]
        assert not has(record(grid(15), **{**FROZEN, "disturbances": thawed}), "not sent")

    def test_an_end_that_was_reported_is_taken_in(self) -> None:
        action = saved(0.0, **EVERY, overlap="skip", takes=4.0)
        silent = {
            "disturbances": [(42.0, 43.0, "kill")],
            "runs": [("poll", "id of 40.0", 40.1, 44.1)],
        }
        assert has(record(grid()[:4], action, **silent), "ended at 44.100, and nothing was sent")
        assert not has(record(grid(5, 6, 7), action, **silent), "ended at")

    @pytest.mark.parametrize("kind", ["restart", "no data"])
    def test_an_end_whose_report_may_have_failed_is_not_waited_for(self, kind: str) -> None:
        action = saved(0.0, **EVERY, overlap="skip", takes=4.0)
        more = {"runs": [("poll", "id of 40.0", 40.1, 44.1)], "disturbances": [(42.0, 45.0, kind)]}
        assert not has(record(grid()[:4], action, **more), "ended at")

    def test_a_run_that_has_not_ended_is_not_waited_for(self) -> None:
        action = saved(0.0, **EVERY, overlap="skip", takes=190.0)
        runs = [("poll", "id of 10.0", 10.1, 200.1)]
        more = {"disturbances": [(42.0, 43.0, "kill")], "runs": runs}
        assert not has(record(grid()[:1], action, **more), "ended at")

    def test_no_entry_is_failing_after_a_run_was_sent(self) -> None:
        assert not has(record(grid(), failures=[(30.5, "poll")]), "is failing")
        assert has(record(grid(), failures=[(31.5, "poll")]), "is failing 1.5 s after")
        failed_again = record(grid(), failures=[(31.5, "poll")], disturbances=[(30, 31, "restart")])
        assert not has(failed_again, "is failing")

    def test_a_lost_set_is_noticed(self) -> None:
        lost = {"unlisted": ["poll"], "disturbances": [(20.0, 21.0, "set lost")]}
        assert has(record(grid(), **lost), "no beat knows when it is due")
        late = {**lost, "disturbances": [(190.0, 191.0, "set lost")]}
        assert not has(record(grid(), **late), "no beat knows")

    def test_a_trigger_may_be_refused_until_a_lost_set_is_noticed(self) -> None:
        refused = done("trigger", 45.0)
        refused.outcome = "failed: InvalidEntryError('name: is not scheduled')"
        lost = [(44.0, 44.0, "set lost")]
        assert not has(record(grid(), saved(0.0), refused, disturbances=lost), "was refused")
        assert has(record(grid(), saved(0.0), refused), "was refused")


class TestClockChanges:
    """Tests of the oracle's independent implementation of crontabs."""

    def times(self, first: datetime, **fields: Any) -> list[str]:
        begin = first.replace(tzinfo=timezone.utc).timestamp()
        definition = {"kind": "crontab", "timezone": "Europe/Berlin", **fields}
        slots = crontab_slots(definition, begin, begin + 86400)
        return [datetime.fromtimestamp(slot, timezone.utc).strftime("%H:%M") for slot in slots]

    def test_a_time_that_does_not_exist_is_the_first_minute_after_it(self) -> None:
        spring = datetime(2027, 3, 28)
        assert self.times(spring, hour=2, minute=30) == ["01:00"]
        assert self.times(spring, hour=3, minute=0) == ["01:00"]

    def test_a_time_that_exists_twice_is_the_first(self) -> None:
        assert self.times(datetime(2027, 10, 31), hour=2, minute=30) == ["00:30"]

    def test_a_rule_that_begins_between_both_runs_at_the_second(self) -> None:
        rule = {"interval": 1, "byhour": [2], "byminute": [30], "zone": "Europe/Berlin"}
        for minute, runs in ((20, [0, 25]), (40, [1, 25])):
            made = datetime(2027, 10, 31, 0, minute, tzinfo=timezone.utc).timestamp()
            found = [*rule_slots(rule, made, made, made + 86400 + 7200)]
            assert [(at - made + 60 * minute - 1800) / 3600 for at in found] == runs

    def test_a_wildcard_follows_real_time(self) -> None:
        assert len(self.times(datetime(2027, 10, 31), hour="*", minute=30)) == 24
        assert len(self.times(datetime(2027, 3, 28), hour="*", minute=30)) == 24


class TestTheEnd:
    """At the end nothing hinders the beats, so nothing may be left to do."""

    def test_an_entry_that_is_due_for_long(self) -> None:
        assert has(record(grid(), overdue={"poll": 6.0}), "is due for 6.0 s")
        assert not has(record(grid(), overdue={"poll": 4.0}), "is due")

    def test_an_entry_that_is_still_failing(self) -> None:
        assert has(record(grid(), failing=["poll"]), "still failing")

    def test_a_fault_near_the_end_explains_both(self) -> None:
        late = [(190.0, 195.0, "restart")]
        found = record(grid(), disturbances=late, overdue={"poll": 6.0}, failing=["poll"])
        assert not has(found, "is due for")
        assert not has(found, "still failing")
