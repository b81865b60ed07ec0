"""Tests of the helper that runs several beats for the fault tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.beats import Beats
from tests.faults.entries import Schedule, meta_json
from tests.faults.ledger import Ledger
from tests.faults.profile import chosen
from tests.faults.trial import Grid, settle
from tests.waiting import wait_until

WRAPPER = """
import sys
from celery.__main__ import main
print("wrapped", flush=True)
sys.exit(main())
"""


@pytest.mark.long
def test_the_leader_is_known_and_beats_can_be_restarted(beats: Beats, schedule: Schedule) -> None:
    """Setup: a leader and a standby. Fault: each is killed.

    Invariant: the helper returns the number of the leader.
    """
    assert beats.leader() is None
    beats.start_leader_and_standby(settings={"redbeat_lock_timeout": 2.0})
    assert beats.leader() == 0
    beats.kill(0)
    assert not beats[0].is_alive
    wait_until(lambda: beats.leader() == 1, 60.0, "the takeover")
    beats.restart(0)
    beats[0].wait_for("standing by")
    beats.signal(1, signal.SIGTERM)
    wait_until(lambda: beats.leader() == 0, 60.0, "the way back")
    assert beats.wait_leader() == 0
    assert (schedule.lock_token() or "").startswith("redbeat3:")
    assert "wrapped" not in beats.log_tails()


@pytest.mark.long
def test_a_wrapper_runs_the_same_beat(
    beats: Beats, schedule: Schedule, ledger: Ledger, tmp_path: Path
) -> None:
    """Setup: a beat with a wrapper script, no lock. Fault: none. Invariant: the beat dispatches."""
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(WRAPPER)
    beats.start(wrapper=wrapper, settings={"redbeat_lock_key": None})
    beats.wait_started(0)
    assert "wrapped" in beats[0].output()
    one = Grid.begin(schedule, ["a", "b"], 1.0, 0.5)
    report = settle(ledger, [one], one.first + 1.0)
    assert (report.expected, report.dispatched + len(report.coalesced)) == (4, 4)
    assert not report.lost
    assert {message.sender for message in ledger.messages} == {beats[0].popen.pid}
    assert beats.leader() is None
    assert beats.terminate(0) == 0


@pytest.mark.long
def test_a_history_that_is_set_before_counts(
    beats: Beats, schedule: Schedule, ledger: Ledger
) -> None:
    """Setup: an hourly entry that last ran 3 hours and 10 minutes ago. Fault: none.

    Invariant: one run, at an instant of the interval, also replaces the two missed runs. The run
    count is increased.
    """
    last = round(schedule.now()) - 3 * 3600.0 - 600.0
    schedule.put(["a"], 3600.0, meta={"a": meta_json(last, 7)})
    beats.start()
    report = settle(ledger, [Grid(["a"], 3600.0, last + 3600.0)], last + 3 * 3600.0)
    assert (report.dispatched, len(report.coalesced), len(report.lost)) == (1, 2, 0)
    wait_until(lambda: schedule.run_counts(["a"]) == {"a": 8})
    wait_until(lambda: not schedule.held(["a"]))


def test_the_profile_is_short_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDBEAT_FAULTS", raising=False)
    assert not chosen(None).full
    assert chosen("full").full
    assert (chosen(None).trials(30), chosen(None).trials(4), chosen("full").trials(30)) == (
        3,
        1,
        30,
    )
    monkeypatch.setenv("REDBEAT_FAULTS", "full")
    assert chosen(None).pick("short", "full") == "full"
    assert not chosen("short").full
    monkeypatch.setenv("REDBEAT_FAULTS", "fast")
    with pytest.raises(ValueError, match="fast"):
        chosen(None)
