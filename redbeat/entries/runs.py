"""The runs in the history of an entry, and the text forms of a run's nominal instant."""

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
    """An instant in UTC, in ISO 8601 and in UNIX seconds.

    ``text`` has the seconds with six decimals, ``short`` without trailing zeros.
    """

    at: datetime
    iso: str
    text: str
    seconds: float
    short: str

    @classmethod
    def of(cls, at: datetime) -> Nominal:
        """Return the forms of an instant in UTC."""
        seconds = at.timestamp()
        text = f"{seconds:.6f}"
        return cls(at, at.isoformat(), text, seconds, text.rstrip("0").rstrip("."))


_last = Nominal.of(EPOCH)


def nominal(scheduled_at: datetime) -> Nominal:
    """Return the forms of an instant; a naive one is UTC.

    The last result is cached, since one run needs it several times and entries that are due at the
    same time share it.
    """
    global _last  # noqa: PLW0603 - replaced as a whole, which is safe in any thread
    # Compare in UTC: in local time, both hours of a DST change are equal.
    at, result = aware(scheduled_at), _last
    if result.at != at:
        result = _last = Nominal.of(at)
    return result


SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

#: "No task id" in lines of the old format.
NO_ID: Final = "-"

#: The lateness in a line begins with a sign; lines of the old format have no lateness.
SIGNS: Final = ("+", "-")

OwnId = Callable[[datetime], str | None]


def no_id(_scheduled_at: datetime) -> None:
    """Return None: the task id of a run is unknown."""


class Occurrence(NamedTuple):
    """One run of an entry, with its outcome.

    Attributes:
        scheduled_at: nominal instant of the run, UTC; of a triggered run, when it was requested.
        dispatched_at: when a beat sent the run or gave it up, UTC.
        task_id: id of the message, None without a message.
        outcome: ``sent``; ``triggered``, sent in addition to the schedule; ``skipped``, because an
            earlier run was still going on; ``missed:<n>``, n runs up to this one were too old to
            catch up; ``perhaps_sent``, the beat died or stalled during the publish, and later the
            run was too old to send again; ``failed:<error class>``, the first failed attempt.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str


def missed(count: int) -> str:
    """Return the outcome of runs that were given up."""
    return f"missed:{count}"


def cause_of(error: BaseException) -> BaseException:
    """Return the cause of an error that Celery wrapped in a ``SchedulingError``."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def failed(error: BaseException) -> str:
    """Return the outcome of a run that could not be sent."""
    return f"failed:{type(cause_of(error)).__name__}"


def run_line(scheduled: Nominal, dispatched: float, outcome: str = "", task_id: str = "") -> str:
    """Return the line of a run; ``dispatched`` is UNIX seconds.

    The line is ``<scheduled> <signed lateness in seconds> <outcome> <task id>``. The task id is
    left out if there is none. The outcome is left out as well if it is ``sent`` and a reader can
    compute the task id. So most lines have at most 30 bytes.
    """
    lateness = f"{dispatched - scheduled.seconds:+.6f}"
    line = f"{scheduled.short} {lateness.rstrip('0').rstrip('.')}"
    if not outcome:
        return line
    return f"{line} {outcome} {''.join(task_id.splitlines())}".rstrip(" ")


def read_history(text: str, own_id: OwnId = no_id) -> list[Occurrence]:
    """Return the runs in a stored history, without invalid lines.

    ``own_id`` computes the task id of the run that is due at an instant.
    """
    return [run for line in text.splitlines() for run in _read(line, own_id)]


def is_line(line: str) -> bool:
    """Whether a text is one valid line of a run."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(text: str, own_id: OwnId) -> str:
    """Return a stored history with each task id written, so that no reader must compute one."""
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
