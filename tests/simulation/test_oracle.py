"""Tests that the oracle of the simulator finds violations and accepts correct records.

A case of :data:`WRONG` is a record with a part of a violation that is found in it. A case of
:data:`RIGHT` has a part of what must not be found, or nothing for a record without a violation.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def with_policy(**fields: Any) -> Action:
    """Return the action of saving ``poll`` with a policy, at 0."""
    return saved(0.0, **EVERY, **fields)


def done(what: str, at: float, version: int = 9, **more: Any) -> Action:
    """Return a successful operation that is not a save."""
    return Action(
        Step(at, what, "web-1", "poll"), version, at, **{"ended": at, "outcome": "done", **more}
    )


def raw(what: str, at: float, version: int = 9, **fields: Any) -> Action:
    """Return an operation of a program without RedBeat."""
    step = Step(at, what, "web-1", "poll", fields=fields)
    return Action(step, version, at, at, "done", definition={**fields, "made_at": at})


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


def grid(*left_out: int, until: int = 20, late: float = 0.002, **more: Any) -> list[Arrival]:
    """Return one message every ten seconds, except the messages with the given numbers."""
    numbers = [number for number in range(1, until + 1) if number not in left_out]
    return [sent(10.0 * number, 10.0 * number + late, **more) for number in numbers]


def edited(arrivals: Iterable[Arrival], since: float) -> list[Arrival]:
    """Return the messages as they are after an edit."""
    return [replace(one, version=9) if one.at > since else one for one in arrivals]


def record(arrivals: Iterable[Arrival], *actions: Action, **more: Any) -> Record:
    """Return a record; by default, ``poll`` was saved at 0."""
    in_order = sorted(arrivals, key=lambda one: one.at)
    return Record(SCENARIO, in_order, [*(actions or (saved(0.0),))], **more)


def faults(*found: tuple[float, float, str], **more: Any) -> dict[str, Any]:
    """Return the part of a record about faults: beginning, end and kind of each."""
    return {"disturbances": [*found], **more}


def on_two_servers(one: Record) -> Record:
    """Return the record, changed to separate servers for broker and schedule."""
    return replace(one, scenario=replace(one.scenario, separate_broker=True))


def triggered(at: float | None, **more: Any) -> Record:
    """Return a record with a trigger at 42 s, and with its run at ``at``."""
    run = [] if at is None else [sent(at, task_id="triggered", triggered=True)]
    trigger = done("trigger", 42.0, result="triggered")
    return record([*grid(), *run], saved(0.0), trigger, **more)


KILL = faults((70.0, 75.0, "kill"))
#: A message that is repeated after a fault of its beat.
TWICE = record([*grid(), sent(70.0, 76.0)], **KILL, hit={"": [(70.0, 75.0)]})
AT_MOST_ONCE = with_policy(delivery="at_most_once")
JUMP = faults((25.0, 25.0, "host clock"))
DRIFT: dict[str, Any] = {"drifts": {"beat-1": [(5.0, 0.04)]}}
#: The faults of one of two beats, which stays frozen from the 42nd second on.
FROZEN = faults((42.0, 900.0, "freeze"), hit={"beat-1": [(42.0, 900.0)]})
FROZEN_THEN_KILLED = faults(
    *((42.0, 900.0, "freeze"), (50.0, 51.0, "kill")), hit={"beat-1": [(42.0, 900.0), (50.0, 51.0)]}
)
#: The other beat is killed too. Its fault explains a delay only if the record says whom it hit.
BOTH = faults((42.0, 900.0, "freeze"), (43.0, 44.0, "kill"))
HIT: dict[str, list[tuple[float, float]]] = {"beat-1": [(42.0, 900.0)], "beat-2": [(43.0, 44.0)]}
OUTAGE = faults((70.0, 95.0, "restart"))
LIMITED = {**EVERY, "max_runs": 3}
STORED: dict[str, Any] = {"stored": {"poll": True}}
LATER = [sent(120.0 + 20 * number, version=2) for number in range(3)]
REARMED = saved(0.0, **LIMITED), saved(100.0, 2, **{**LIMITED, "seconds": 20})
PAUSED = [arrival for arrival in grid() if not 50 < arrival.at < 80]
RAW_PAUSE = saved(0.0), raw("raw disable", 51.0), raw("raw enable", 79.0)
DELETED = saved(0.0), done("delete", 99.0)
ROLLED_BACK: dict[str, Any] = {"rollbacks": [(110.0, 95.0)], **faults((110.0, 112.0, "older data"))}
SKIPPING = with_policy(overlap="skip", takes=4.0)
#: A run that ends while a beat is dead.
ENDS: dict[str, Any] = {"runs": [("poll", "id of 40.0", 40.1, 44.1)]}
RULE: dict[str, Any] = {"kind": "rrule", "freq": "MINUTELY", "interval": 1, "bysecond": [50]}
RUNS_OF_RULE = [sent(50.0), sent(110.0), sent(170.0)]
SECONDLY = saved(0.0, kind="rrule", freq="SECONDLY", interval=100)
REPEATED = [sent(1.0), sent(1.0, 20.5), sent(101.0)]
ONE_OFF = saved(0.0, kind="clocked", after=30.0)
SERVER_JUMP = faults((20.0, 40.0, "server clock"))


def with_history_deleted(at: float, *, quiet: bool = False) -> Record:
    """Return a record of an entry whose history was deleted at 51 s, with the runs after that."""
    runs = [*grid(until=5), *(sent(at + 10 * number) for number in range(15))]
    return record(runs, saved(0.0), raw("raw run", 51.0, quiet=quiet))


def refused(what: str, at: float, why: str, **more: Any) -> Record:
    """Return a record in which an operation is refused."""
    action = saved(at, 2) if what == "save" else done(what, at)
    action.outcome = f"failed: InvalidEntryError({why!r})"
    return record(grid(), saved(0.0), action, **more)


def saved_in_place(late: float = 4.0, **fields: Any) -> Record:
    """Return a record of an entry with a jitter that a program without RedBeat saves again."""
    actions = saved(0.0, **EVERY, jitter=5), raw("raw save", 95.0, **EVERY, **fields)
    return record(edited(grid(late=late), 95), *actions)


WRONG: list[tuple[Record, str]] = [
    (record(grid(7)), "was not sent"),
    (record([]), "never ran"),
    (record(grid(late=3.0)), "3.000 s late"),
    (record([*grid(), sent(50.0, 50.01)]), "was sent again"),
    (record([*grid(), sent(50.0, 50.01, task_id="another")]), "has 2 ids"),
    (record([*grid(), sent(55.0)]), "is no occurrence"),
    (record([*grid(5), sent(50.0, 62.0)]), "came after a later one"),
    (record([*grid(), sent(30.0, task_id="id of 20.0")]), "stands for 2 runs"),
    (record([sent(10.0, 9.5), *grid(1)]), "0.500 s early"),
    (record([sent(10.0, wrong=-300.0), *grid(1)]), "expires -300.000 s late"),
    (record(edited(grid(), 55)), "no longer there"),
    (record([*grid(), sent(50.0, entry="other")]), "an id of poll"),
    (record([*grid(1), sent(10.0, sender="beat-1")]), "sends while beat-1 leads"),
    (record(grid(), loops=[(5.0, "beat-1", "poll")]), "busy loop"),
    (record(grid(), exits=[(5.0, "beat-1", "OSError()")]), "OSError()"),
    (record(grid(), quarantined=["redbeat:poll"]), "quarantine"),
    # Faults explain some violations for some time.
    (record(grid(7, 8), **KILL), "tells of 0 missed runs, there were 2"),
    (record([*grid(7, 8, 9), sent(70.0, 95.5)], **OUTAGE), "although 2 later runs were due"),
    (
        record(
            [*grid(7, 8), sent(80.0, 85.0)],
            with_policy(misfire_grace_time=2),
            **faults((70.0, 84.0, "restart")),
        ),
        "5.000 s late, 2 s are allowed",
    ),
    (record(grid(until=7), **KILL), "was not sent"),
    (record(grid(7, 8), with_policy(coalesce="all"), **KILL), "was not made up for"),
    (record([*grid(), sent(70.0, 76.0, task_id="another")], **KILL), "has 2 ids"),
    # The clocks of hosts explain almost nothing, because the clock of Redis decides.
    (record(grid(3, 12, 13), **JUMP), "was not sent"),
    (record(grid(12, 13), **faults((25.0, 425.0, "host clock"))), "was not sent"),
    (record(grid(late=1.1, sender="beat-2"), **DRIFT), "1.100 s late"),
    (record(grid(late=1.4, sender="beat-1"), **DRIFT), "1.400 s late"),
    (record(grid(12, 13), **DRIFT, **faults((5.0, 405.0, "host drift"))), "was not sent"),
    # Faults explain less when broker and schedule share a server: one step sends and records.
    (TWICE, "was sent again"),
    (on_two_servers(replace(TWICE, hit={"beat-9": [(70.0, 75.0)]})), "was sent again"),
    (on_two_servers(replace(TWICE, actions=[AT_MOST_ONCE])), "was sent again"),
    (record([*grid(), sent(50.0, 61.0)], **faults((55.0, 65.0, "restart"))), "was sent again"),
    (record([*grid(5), sent(50.0, 62.0)], **faults((49.0, 61.0, "freeze"))), "after a later one"),
    (record(grid(until=10), saved(0.0), done("edit", 100.001)), "no longer there"),
    (record(grid(until=10), saved(0.0), done("pause", 100.001)), "sent although"),
    (
        record(
            [*grid(until=9), sent(100.0, 104.0)],
            *(saved(0.0), done("delete", 100.001)),
            **faults((100.0, 103.0, "freeze")),
        ),
        "no longer there",
    ),
    # Operations of applications.
    (record(grid(), saved(0.0), done("pause", 99.0)), "sent although the entry was paused"),
    (record(grid(), *DELETED), "no longer there"),
    (record(grid(), saved(0.0), done("edit", 99.0)), "no longer there"),
    (
        record(edited(grid(), 30.01), saved(0.0), done("edit", 29.0, ended=30.001)),
        "30.002 s  poll: sent with what was no longer there (v1)",
    ),
    (triggered(None), "was not sent"),
    (record(grid(until=3), with_policy(max_runs=3)), "on_finish"),
    (record(grid(until=4), with_policy(max_runs=3)), "are the limit"),
    (record([], with_policy(max_runs=3)), "never ran"),
    (record(grid(until=3), *REARMED, **STORED), "never ran"),
    (record(grid(until=5), saved(0.0), done("delete", 55.0), **STORED), "is stored although it is"),
    (refused("save", 55.0, "catch_up_limit: is missing"), "was refused"),
    (refused("trigger", 45.0, "name: is not scheduled"), "was refused"),
    # Programs without RedBeat.
    (saved_in_place(anew=True), "4.000 s late"),
    (
        record(
            edited([sent(10.0 * n, 10.0 * n + 4.0) for n in range(20)], 95),
            raw("raw save", 0.0, version=1, **EVERY, jitter=5),
            raw("raw save", 95.0, **EVERY),
        ),
        "4.000 s late",
    ),
    (record(grid(), *RAW_PAUSE), "sent although the entry was paused"),
    (record(grid(until=4), *RAW_PAUSE), "never ran"),
    (with_history_deleted(52.5), "did not run at once although it has no history"),
    (with_history_deleted(57.5, quiet=True), "did not run at once although it has no history"),
    (record(RUNS_OF_RULE, saved(0.0, **RULE), raw("raw run", 60.0)), "did not run at once"),
    (record(REPEATED, SECONDLY), "was sent again"),
    # Overlap, one-off runs, and older data.
    (
        record(
            grid(),
            with_policy(overlap="skip"),
            runs=[("poll", "id of 10.0", 10.0, 25.0), ("poll", "id of 20.0", 20.0, 22.0)],
        ),
        "while another one was at work",
    ),
    (record(grid(7, 8), with_policy(overlap="skip", takes=1.0)), "nothing was sent for 30.000 s"),
    (record([], ONE_OFF, **SERVER_JUMP), "nothing was sent"),
    (
        replace(
            record(grid(until=9), *DELETED, **ROLLED_BACK),
            scenario=replace(SCENARIO, recovery=30.0),
        ),
        "never ran",
    ),
    # What must have happened some seconds later, although a beat had a fault.
    (triggered(79.1, **FROZEN), "not sent: 37.0 s are enough"),
    (triggered(None, **FROZEN), "not sent: 37.0 s are enough"),
    (triggered(87.1, **FROZEN_THEN_KILLED), "45.0 s are enough"),
    (triggered(100.0, **BOTH, hit={"beat-1": HIT["beat-1"]}), "are enough"),
    (record(grid(15), **FROZEN), "was not sent"),
    (
        record(grid(until=4), SKIPPING, **faults((42.0, 43.0, "kill")), **ENDS),
        "ended at 44.100, and nothing was sent",
    ),
    (record(grid(), failures=[(31.5, "poll")]), "is failing 1.5 s after"),
    (
        record(grid(), unlisted=["poll"], **faults((20.0, 21.0, "set lost"))),
        "no beat knows when it is due",
    ),
    (record(grid(), overdue={"poll": 6.0}), "is due for 6.0 s"),
    (record(grid(), failing=["poll"]), "still failing"),
]

RIGHT: list[tuple[Record, str]] = [
    (record(grid()), ""),
    (record([*grid(7, 8, 9), *[sent(90.0, coalesced=2)]], **KILL), ""),
    (record([*grid(7, 8, 9), sent(90.0, 95.5, coalesced=2)], **OUTAGE), ""),
    (record(grid(), **JUMP), ""),
    (record(grid(late=1.1, sender="beat-1"), **DRIFT), "late"),
    (on_two_servers(TWICE), ""),
    (replace(TWICE, rollbacks=[(72.0, 69.0)]), "was sent again"),
    (replace(TWICE, legacy_leads=[(150.0, 160.0)]), "was sent again"),
    (record([*grid(), sent(50.0, 61.0)], **faults((55.0, 65.0, "server clock"))), ""),
    (
        record([*grid(5), sent(50.0, 62.0)], AT_MOST_ONCE, **faults((49.0, 61.0, "freeze"))),
        "came after a later one",
    ),
    (
        on_two_servers(record([*grid(5), sent(50.0, 62.0)], **faults((49.0, 61.0, "freeze")))),
        "came after a later one",
    ),
    (on_two_servers(record(grid(until=10), saved(0.0), done("edit", 100.001))), "no longer there"),
    (on_two_servers(record(grid(until=10), saved(0.0), done("pause", 100.001))), "sent although"),
    (record(grid(until=9), saved(0.0), done("pause", 99.0)), ""),
    (record(grid(until=9), *DELETED), ""),
    (record(edited(grid(), 99), saved(0.0), done("edit", 99.0)), ""),
    (record(edited(grid(), 30.01), saved(0.0), done("edit", 29.0, ended=30.01)), ""),
    (record(PAUSED, saved(0.0), done("pause", 51.0), done("resume", 79.0)), ""),
    (triggered(42.0), ""),
    (record(grid(until=3), with_policy(max_runs=3), **STORED), ""),
    (record([*grid(until=3), *LATER], *REARMED, **STORED), ""),
    (record(grid(until=3), with_policy(max_runs=3), saved(100.0, 2, **LIMITED), **STORED), ""),
    (
        refused("trigger", 45.0, "name: is not scheduled", **faults((44.0, 44.0, "set lost"))),
        "refused",
    ),
    (saved_in_place(), ""),
    (saved_in_place(quiet=True), ""),
    (record(PAUSED, *RAW_PAUSE), ""),
    (with_history_deleted(51.5), ""),
    (with_history_deleted(51.5, quiet=True), ""),
    (record(RUNS_OF_RULE, raw("raw save", 0.0, version=1, **RULE)), ""),
    (record(REPEATED, SECONDLY, raw("raw run", 20.0)), ""),
    (record(grid(), with_policy(overlap="skip", takes=1.0)), ""),
    (record([sent(30.0, 27.5, clock=SCENARIO.start + 30.5)], ONE_OFF, **SERVER_JUMP), ""),
    (record([one for one in grid() if not 99 < one.at < 120], *DELETED, **ROLLED_BACK), ""),
    (triggered(78.9, **FROZEN), "are enough"),
    (triggered(86.9, **FROZEN_THEN_KILLED), "are enough"),
    (triggered(100.0, **BOTH, hit=HIT), "are enough"),
    (
        triggered(100.0, **faults((42.0, 900.0, "freeze"), (43.0, 50.0, "restart"))),
        "are enough",
    ),
    (record(grid(15), **faults((42.0, 145.0, "freeze"), hit=FROZEN["hit"])), "not sent"),
    (record(grid(5, 6, 7), SKIPPING, **faults((42.0, 43.0, "kill")), **ENDS), "ended at"),
    (record(grid(until=4), SKIPPING, **faults((42.0, 45.0, "restart")), **ENDS), "ended at"),
    (record(grid(until=4), SKIPPING, **faults((42.0, 45.0, "no data")), **ENDS), "ended at"),
    (
        record(
            grid(until=1),
            with_policy(overlap="skip", takes=190.0),
            runs=[("poll", "id of 10.0", 10.1, 200.1)],
            **faults((42.0, 43.0, "kill")),
        ),
        "ended at",
    ),
    (record(grid(), failures=[(30.5, "poll")]), "is failing"),
    (record(grid(), failures=[(31.5, "poll")], **faults((30, 31, "restart"))), "is failing"),
    (record(grid(), unlisted=["poll"], **faults((190.0, 191.0, "set lost"))), "no beat knows"),
    (record(grid(), overdue={"poll": 4.0}), "is due"),
    (record(grid(), overdue={"poll": 6.0}, **faults((190.0, 195.0, "restart"))), "is due for"),
    (record(grid(), failing=["poll"], **faults((190.0, 195.0, "restart"))), "still failing"),
]


def numbered(cases: list[tuple[Record, str]]) -> list[Any]:
    return [pytest.param(*case, id=f"{number} {case[1]}") for number, case in enumerate(cases)]


@pytest.mark.parametrize(("found", "told"), numbered(WRONG))
def test_a_violation_is_found(found: Record, told: str) -> None:
    assert any(told in line for line in judge(found))


@pytest.mark.parametrize(("found", "told"), numbered(RIGHT))
def test_what_is_right_or_explained_is_accepted(found: Record, told: str) -> None:
    assert [line for line in judge(found) if told in line] == []


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
