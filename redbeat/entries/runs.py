"""The last runs of an entry, as they are stored: a line for each, the latest first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

from celery.beat import SchedulingError

from redbeat.calendar.zones import from_timestamp

__all__ = (
    "SENT",
    "SKIPPED",
    "TRIGGERED",
    "Occurrence",
    "failed",
    "missed",
    "read_history",
    "run_line",
)

SENT, SKIPPED, TRIGGERED = "sent", "skipped", "triggered"

#: What stands for no task id.
NO_ID: Final = "-"


class Occurrence(NamedTuple):
    """What became of one run.

    Attributes:
        scheduled_at: its nominal instant, UTC; when it was asked for, if it was triggered.
        dispatched_at: when a beat dealt with it, UTC.
        task_id: id of the message, None where there is none.
        outcome: ``sent``; ``triggered``, sent beside the schedule; ``skipped``, because an earlier
            run went on; ``missed:<n>``, n runs up to this one were too old to be made up for;
            ``failed:<error class>``, the first of some attempts that failed.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str


def missed(count: int) -> str:
    """Return the outcome of runs that were given up."""
    return f"missed:{count}"


def failed(error: BaseException) -> str:
    """Return the outcome of a run that could not be sent."""
    cause: BaseException = error
    while isinstance(cause, SchedulingError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    return f"failed:{type(cause).__name__}"


def run_line(scheduled: float, dispatched: float, outcome: str, task_id: str = "") -> str:
    """Return the line of a run; instants are UNIX seconds."""
    shown = "".join(task_id.splitlines()) if task_id else NO_ID
    return f"{scheduled:.6f} {dispatched:.6f} {shown} {outcome}"


def read_history(text: str) -> list[Occurrence]:
    """Return the runs in a stored history; lines that are none are left out."""
    return [run for line in text.splitlines() for run in _read(line)]


def _read(line: str) -> Iterator[Occurrence]:
    try:
        scheduled, dispatched, rest = line.split(" ", 2)
        task_id, _, outcome = rest.rpartition(" ")
        instants = (from_timestamp(float(scheduled)), from_timestamp(float(dispatched)))
    except (ValueError, OverflowError, OSError):
        return
    yield Occurrence(*instants, None if task_id == NO_ID else task_id, outcome)
