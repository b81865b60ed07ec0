"""Programs with a loop of their own, and entries that decide for themselves."""

from __future__ import annotations

from typing import Any

import pytest

from redbeat.beat.trouble import Suspects
from redbeat.calendar.zones import from_timestamp
from redbeat.entries.history import History, encode_meta
from redbeat.entries.state import SCHEDULED, Hold, State
from redbeat.entries.verdicts import Known, Verdict, asked, judge
from redbeat.storage.rows import Hand
from tests.entries.test_verdicts import HOUR, MINUTE, NOW, rule_of


def verdict_of(
    state: State | None = None, *, last: float = NOW - MINUTE, score: float = NOW, **rule: Any
) -> Verdict:
    """Return the verdict about an hourly entry that ran a minute ago."""
    history = History.read(encode_meta(from_timestamp(last), 1))
    one = rule_of(HOUR, **rule)
    return judge(Known(one, one.plan, history, state or State(), NOW, score), [])


def test_the_object_of_an_entry_decides_before_its_time() -> None:
    waiting = verdict_of()
    verdict = asked(waiting)
    assert verdict is not None
    assert verdict.send is not None
    assert (verdict.send.kind, verdict.send.at) == (SCHEDULED, from_timestamp(NOW))
    assert verdict.rest == waiting.rest._replace(counts=True), "the grid stays as it is"


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of(last=NOW - HOUR),  # it runs anyway
        verdict_of(score=NOW + 1),  # nobody has made it due
        verdict_of(enabled=False),
        verdict_of(max_runs=1),
        verdict_of(State(hold=Hold(SCHEDULED, NOW, "id", NOW + 10))),
    ],
)
def test_the_object_of_an_entry_does_not_decide(verdict: Verdict) -> None:
    assert asked(verdict) is None


def test_a_loop_of_a_program_looks_at_suspects_too() -> None:
    suspects = Suspects()
    suspects.note([Hand("gone", ["a", "b"], False)])
    suspects.looked_at("a")
    suspects.looked_at("of nobody")
    assert suspects.done() == []
    suspects.looked_at("b")
    (change,) = suspects.done()
    assert change.index == [["HDEL", "hands", "gone"]]
