"""Tests of the benchmark under faults: its counts, its report and the end of its processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.faultcounts import Counts, by_occurrence, by_run, once
from benchmarks.sides import Side
from benchmarks.supervisor import Supervisor
from tests.faults.ledger import Message
from tests.faults.oracle import grid
from tests.waiting import wait_until

FIRST, EVERY = 100.0, 1.0


def messages_without_instant(
    *arrivals: float, entry: str = "a", task_id: str = ""
) -> list[Message]:
    """Return messages without nominal instants. By default, each has its own task id."""
    return [Message(entry, task_id or f"{entry}{at}", None, at) for at in arrivals]


def of(instant: float, task_id: str, coalesced: int = 0) -> Message:
    """Return a message that arrives 10 ms after its nominal instant."""
    return Message("a", task_id, instant, instant + 0.01, coalesced)


def test_an_entry_that_must_run_once() -> None:
    messages = [
        *messages_without_instant(1.0, entry="well"),
        *messages_without_instant(1.0, 2.0, 3.0, entry="same", task_id="x"),
        *messages_without_instant(1.0, 2.0, entry="other"),
        *messages_without_instant(1.0, 2.0, entry="stranger"),
    ]

    counts = once(["well", "same", "other", "none"], messages)

    assert counts == Counts(expected=4, sent=6, missed=1, lost=1, same_id=2, other_id=1)


def test_messages_with_their_instants() -> None:
    expected = {"a": grid(100.0, 1.0, 105.0)}
    messages = [of(100.0, "1"), of(100.0, "1"), of(102.0, "3", coalesced=1), of(102.0, "4")]

    counts = by_occurrence(
        expected, [*messages, of(105.0, "6"), *messages_without_instant(1.0, entry="stranger")]
    )

    assert counts == Counts(expected=6, sent=5, missed=3, lost=2, same_id=1, other_id=1)


def counted(messages: list[Message], seconds: int = 4) -> tuple[int, int, int, int]:
    counts = by_run({"a": grid(FIRST, EVERY, FIRST + seconds - 1)}, messages, EVERY)
    assert (counts.expected, counts.lost) == (seconds, None)
    return counts.sent, counts.missed, counts.same_id, counts.other_id


@pytest.mark.parametrize(
    ("arrivals", "sent", "missed", "doubled"),
    [
        ((100.0, 101.0, 102.0, 103.0), 4, 0, 0),
        ((), 0, 4, 0),
        ((100.0, 103.0), 2, 2, 0),
        ((100.0, 101.1, 102.2, 103.3), 4, 0, 0),
        ((100.0, 101.2, 102.4, 103.6), 3, 1, 0),
        ((100.0, 100.1, 100.2, 101.0), 4, 2, 2),
        ((103.0, 100.1, 100.0), 3, 2, 1),
        ((99.9, 100.4, 100.9, 101.4, 101.9, 102.4), 6, 0, 2),
        ((100.0, 200.0), 1, 3, 0),
    ],
    ids=["all", "none", "gap", "drift", "drift-out", "bunch", "unordered", "too-many", "later"],
)
def test_messages_without_instants_are_counted_by_arrival(
    arrivals: tuple[float, ...], sent: int, missed: int, doubled: int
) -> None:
    assert counted(messages_without_instant(*arrivals)) == (sent, missed, 0, doubled)


def test_doubles_are_counted_by_id() -> None:
    messages = [
        *messages_without_instant(100.0, 100.1, task_id="x"),
        *messages_without_instant(100.2, 101.0, 102.0, 103.0),
    ]

    assert counted(messages) == (6, 0, 1, 1)


def test_entries_are_counted_apart() -> None:
    expected = {name: grid(FIRST, EVERY, FIRST + 1) for name in ("a", "b", "c")}
    messages = [
        *messages_without_instant(100.0, 100.1, 101.0),
        *messages_without_instant(100.0, entry="b"),
        *messages_without_instant(100.0, entry="d"),
    ]

    assert by_run(expected, messages, EVERY) == Counts(6, 4, 3, None, 0, 1)


def program(directory: Path, script: str) -> Side:
    """Return a side of the comparison whose Python interpreter is a shell script."""
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return Side("ours", "0", str(path))


def pid_of(beats: Supervisor, number: int) -> int:
    """Wait until a process prints its id, and return the id."""
    return int(wait_until(lambda: beats.output(number).partition("\n")[0], 30.0))


def exists(pid: int) -> bool:
    """Return whether a process exists. A dead child exists until its parent waits for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_unexpected_exit_is_counted_and_the_beat_restarted(tmp_path: Path) -> None:
    side = program(tmp_path, "exit 3")
    with Supervisor(side, tmp_path, "redis://", {}) as beats:
        beats.add()
        wait_until(lambda: len(beats.exits) >= 2, 30.0)
    assert set(beats.exits) == {3}


def test_a_killed_beat_is_started_again_and_is_no_exit(tmp_path: Path) -> None:
    side = program(tmp_path, "echo $$; exec sleep 300")
    with Supervisor(side, tmp_path, "redis://", {}) as beats:
        number = beats.add()
        first = pid_of(beats, number)
        assert beats.signal(number, signal.SIGKILL)
        wait_until(lambda: pid_of(beats, number) != first, 30.0)
        second = pid_of(beats, number)
        assert not exists(first)
    assert beats.exits == []
    assert not exists(second)


def test_a_retired_beat_is_gone_and_a_stopped_one_ends_too(tmp_path: Path) -> None:
    side = program(tmp_path, "echo $$; exec sleep 300")
    with Supervisor(side, tmp_path, "redis://", {}) as beats:
        pids = [pid_of(beats, number) for number in (beats.add(), beats.add())]
        beats.retire(0)
        assert not exists(pids[0])
        assert not beats.signal(0, signal.SIGTERM)
        assert beats.signal(1, signal.SIGSTOP)
    assert not exists(pids[1])
    assert beats.exits == []
