"""Reads and writes the runs in the history of an entry, and formats their nominal instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from celery.beat import SchedulingError

from redbeat.calendar.zones import EPOCH, from_timestamp

from .decide import aware

__all__ = (
    "PERHAPS_SENT",
    "SENT",
    "SKIPPED",
    "TRIGGERED",
    "Nominal",
    "Occurrence",
    "cause_of",
    "failed",
    "is_line",
    "missed",
    "no_id",
    "nominal",
    "read_history",
    "run_line",
    "with_ids",
)


class Nominal(NamedTuple):
    """An instant in UTC, with its formats ISO 8601 and UNIX seconds.

    ``text`` is the UNIX seconds with six decimals, ``short`` the same without trailing zeros.
    """

    at: datetime
    iso: str
    text: str
    seconds: float
    short: str

    @classmethod
    def of(cls, at: datetime) -> Nominal:
        """Return an instant in UTC with its formats."""
        seconds = at.timestamp()
        text = f"{seconds:.6f}"
        return cls(at, at.isoformat(), text, seconds, text.rstrip("0").rstrip("."))


_last = Nominal.of(EPOCH)


def nominal(scheduled_at: datetime) -> Nominal:
    """Return an instant with its formats; a naive datetime is taken as UTC.

    The last result is cached: one run needs it several times, and entries that are due at the same
    time need the same result.
    """
    global _last  # noqa: PLW0603 - the assignment is atomic, so it is thread-safe
    # Compare in UTC: in local time, the repeated hour of a DST change is ambiguous.
    at, result = aware(scheduled_at), _last
    if result.at != at:
        result = _last = Nominal.of(at)
    return result


SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

#: The mark for "no task id" in lines of the old format.
NO_ID: Final = "-"

#: The lateness in a line always begins with one of these signs. Lines of the old format contain no
#: lateness.
SIGNS: Final = ("+", "-")

OwnId = Callable[[datetime], str | None]


def no_id(_scheduled_at: datetime) -> None:
    """Return None as the task id, for callers that do not need computed task ids."""


class Occurrence(NamedTuple):
    """One run of an entry, with its outcome.

    Attributes:
        scheduled_at: the nominal instant of the run (UTC); for a triggered run, when it was
            requested.
        dispatched_at: when a beat sent the run or gave it up (UTC).
        task_id: the task id of the message, None if no message was sent.
        outcome: one of the following.

            - ``sent``: the run was sent.
            - ``triggered``: a triggered run was sent, in addition to the schedule.
            - ``skipped``: the run was skipped because an earlier run was still running.
            - ``missed:<n>``: this run and the n - 1 runs before it were too late to catch up.
            - ``perhaps_sent``: the beat died or stalled during the publish. Afterwards the run was
              too late to send again.
            - ``failed:<error class>``: the first attempt to send the run failed.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str


def missed(count: int) -> str:
    """Return the outcome of ``count`` missed runs that were given up."""
    return f"missed:{count}"


def cause_of(error: BaseException) -> BaseException:
    """Return the original error if Celery wrapped it in a ``SchedulingError``."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def failed(error: BaseException) -> str:
    """Return the outcome of a run that could not be sent."""
    return f"failed:{type(cause_of(error)).__name__}"


def run_line(scheduled: Nominal, dispatched: float, outcome: str = "", task_id: str = "") -> str:
    """Return the history line of a run; ``dispatched`` is in UNIX seconds.

    The line is ``<scheduled> <signed lateness in seconds> <outcome> <task id>``. If there is no
    task id, the line ends after the outcome. If the outcome is ``sent`` and a reader can compute
    the task id, the line omits both. Most lines therefore have at most 30 bytes.
    """
    lateness = f"{dispatched - scheduled.seconds:+.6f}"
    line = f"{scheduled.short} {lateness.rstrip('0').rstrip('.')}"
    if not outcome:
        return line
    return f"{line} {outcome} {''.join(task_id.splitlines())}".rstrip(" ")


def read_history(text: str, own_id: OwnId = no_id) -> list[Occurrence]:
    """Return the runs in a stored history; invalid lines are skipped.

    ``own_id`` computes the task id of a run from its nominal instant.
    """
    return [run for line in text.splitlines() for run in _read(line, own_id)]


def is_line(line: str) -> bool:
    """Return whether a text is exactly one valid history line."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(text: str, own_id: OwnId) -> str:
    """Return a stored history with all task ids added, so that readers need not compute them."""
    return "".join([f"{_with_id(line, own_id)}\n" for line in text.splitlines()])


def _with_id(line: str, own_id: OwnId) -> str:
    parts = line.split(" ")
    if len(parts) != 2 or not is_line(line):
        return line
    return f"{line} {SENT} {own_id(from_timestamp(float(parts[0])))}"


def _read(line: str, own_id: OwnId) -> Iterator[Occurrence]:
    scheduled, _, rest = line.partition(" ")
    second, _, tail = rest.partition(" ")
    try:
        base = float(scheduled) if second[:1] in SIGNS else 0.0
        instants = from_timestamp(float(scheduled)), from_timestamp(base + float(second))
    except (ValueError, OverflowError, OSError):
        return
    if second[0] not in SIGNS:  # old format: <scheduled> <dispatched> <task id or -> <outcome>
        task_id, blank, outcome = tail.rpartition(" ")
        if blank:
            yield Occurrence(*instants, None if task_id == NO_ID else task_id, outcome)
    elif tail:
        outcome, _, task_id = tail.partition(" ")
        yield Occurrence(*instants, task_id or None, outcome)
    else:
        yield Occurrence(*instants, own_id(instants[0]), SENT)
