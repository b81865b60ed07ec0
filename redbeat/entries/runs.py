"""Reads and writes the runs in the history of an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from celery.beat import SchedulingError

from redbeat.codec.stored import instant_in, number_in, seconds_in

SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

#: The outcomes of scheduled runs that were sent, or may have been sent.
SENT_OUTCOMES: Final = (SENT, PERHAPS_SENT)

#: The states of a run that was sent; see :class:`RunResult`.
RunState = Literal["succeeded", "failed", "retried", "revoked", "ignored", "lost"]


class RunResult(NamedTuple):
    """The result of a run that was sent, as a worker reported it.

    Attributes:
        state: how the run ended.

            - ``succeeded``: the task returned.
            - ``failed``: the task raised an error, exceeded its time limit, lost its process, was
              rejected, or is unknown to the worker.
            - ``retried``: the task failed and will run again.
            - ``revoked``: the task was revoked, terminated, or expired before it started.
            - ``ignored``: the task raised Celery's ``Ignore``, or was replaced by another task.
            - ``lost``: no worker reported the end of the run within ``overlap_timeout``.

        ended_at: when the run ended (UTC), None for a lost run.
        seconds: the duration of the last attempt, None if unknown.
        retries: how many times the task was retried.
        error: the class and the message of the exception, None without an exception.
    """

    state: RunState
    ended_at: datetime | None = None
    seconds: float | None = None
    retries: int = 0
    error: str | None = None

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt started (UTC), None if unknown."""
        if self.ended_at is None or self.seconds is None:
            return None
        return self.ended_at - timedelta(seconds=self.seconds)


LOST: Final = RunResult("lost")


OwnId = Callable[[datetime], str | None]


def no_id(_scheduled_at: datetime) -> None:
    """Return None as the task id, for callers that do not need computed task ids."""


class Occurrence(NamedTuple):
    """One run of an entry, with its outcome.

    Attributes:
        scheduled_at: the nominal instant of the run (UTC); for a triggered run, the time of the
            request.
        dispatched_at: when a beat sent or gave up the run (UTC).
        task_id: the task id of the message, None if no message was sent.
        outcome: whether the run was sent, or why the run was not sent.

            - ``sent``: the run was sent.
            - ``triggered``: a triggered run was sent, in addition to the schedule.
            - ``skipped``: the run was skipped because an earlier run was still running.
            - ``missed:<n>``: this run and the n - 1 runs before it were too late to catch up.
            - ``perhaps_sent``: the beat died or stalled during the publish, and the run became too
              late to send again.
            - ``failed:<error class>``: the first attempt to send the run failed.
            - ``failed:<error class>:<n>``: the last of ``n`` failed attempts to send the run.

        result: the result of the run, None if no worker has reported the result.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str
    result: RunResult | None = None

    @property
    def was_sent(self) -> bool:
        """Whether a worker should report the result of this run."""
        return self.outcome in (SENT, TRIGGERED)


def cause_of(error: BaseException) -> BaseException:
    """Return the error that Celery wrapped in a ``SchedulingError``, or ``error`` itself."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def run_line(at: float, now: float, outcome: str = "", task_id: str = "") -> str:
    """Return the history line of a run; ``at`` and ``now`` are in UNIX seconds.

    The line is ``<at> <signed lateness in seconds> <outcome> <task id>``. If there is no task id,
    the line ends after the outcome. If the outcome is ``sent`` and a reader can compute the task
    id, the line contains neither the outcome nor the task id. Most history lines have at most 30
    bytes.
    """
    scheduled = f"{at:.6f}".rstrip("0").rstrip(".")
    line = f"{scheduled} {now - at:+.6f}".rstrip("0").rstrip(".")
    if not outcome:
        return line
    return f"{line} {outcome} {''.join(task_id.splitlines())}".rstrip(" ")


def read_history(lines: Iterable[str], own_id: OwnId = no_id) -> list[Occurrence]:
    """Return the runs in the lines of a history; invalid ones are skipped.

    ``own_id`` computes the task id of a run from its nominal instant.
    """
    return [run for line in lines for run in _read(line, own_id)]


def is_line(line: str) -> bool:
    """Return whether a text is exactly one valid history line."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(lines: Iterable[str], own_id: OwnId) -> list[str]:
    """Return the lines of a history with all task ids, so that no reader needs to compute them."""
    return [_with_id(line, own_id) for line in lines]


def _with_id(line: str, own_id: OwnId) -> str:
    parts = line.split(" ")
    if len(parts) != 2 or not is_line(line):
        return line
    return f"{line} {SENT} {own_id(next(_read(line, no_id)).scheduled_at)}"


def _read(line: str, own_id: OwnId) -> Iterator[Occurrence]:
    scheduled, _, rest = line.partition(" ")
    late, _, tail = rest.partition(" ")
    start, seconds = seconds_in(scheduled), number_in(late)
    if start is None or seconds is None or late[0] not in "+-":
        return
    begun, ended = instant_in(start), instant_in(start + seconds)
    if begun is None or ended is None:
        return
    outcome, _, task_id = tail.partition(" ")
    found = (task_id or None) if tail else own_id(begun)
    yield Occurrence(begun, ended, found, outcome or SENT)
