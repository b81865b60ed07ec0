"""The runs of an entry in its history, and the forms of the nominal instant of a run."""

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

    ``text`` has six decimals of the seconds, ``short`` not the zeros at their end.
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

    The last one is kept: it is asked for several times, and entries that are due together share it.
    """
    global _last  # noqa: PLW0603 - replaced as a whole, so that any thread may
    # In a zone of its own, an instant equals another one of the hour that its clock repeats.
    at, found = aware(scheduled_at), _last
    if found.at != at:
        found = _last = Nominal.of(at)
    return found


SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

#: What stood for no task id in the lines of before.
NO_ID: Final = "-"

#: How the seconds that a run was late begin; what was there before has none.
SIGNS: Final = ("+", "-")

OwnId = Callable[[datetime], str | None]


def no_id(_scheduled_at: datetime) -> None:
    """Know no task id."""


class Occurrence(NamedTuple):
    """What became of one run.

    Attributes:
        scheduled_at: its nominal instant, UTC; when it was asked for, if it was triggered.
        dispatched_at: when a beat dealt with it, UTC.
        task_id: id of the message, None where there is none.
        outcome: ``sent``; ``triggered``, sent beside the schedule; ``skipped``, because an earlier
            run went on; ``missed:<n>``, n runs up to this one were too old to be made up for;
            ``perhaps_sent``, a beat died or stalled while it sent it, and later it was too old to
            be sent again; ``failed:<error class>``, the first of some attempts that failed.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str


def missed(count: int) -> str:
    """Return the outcome of runs that were given up."""
    return f"missed:{count}"


def cause_of(error: BaseException) -> BaseException:
    """Return the error behind Celery's own, which hides why a run could not be sent."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def failed(error: BaseException) -> str:
    """Return the outcome of a run that could not be sent."""
    return f"failed:{type(cause_of(error)).__name__}"


def run_line(scheduled: Nominal, dispatched: float, outcome: str = "", task_id: str = "") -> str:
    """Return the line of a run; ``dispatched`` is UNIX seconds.

    It is ``<scheduled> <signed seconds after that> <outcome> <task id>``. The id is left out where
    there is none, and the outcome too where it is ``sent`` under the id which whoever reads it can
    compute. So most lines have 30 bytes at most.
    """
    since = f"{dispatched - scheduled.seconds:+.6f}"
    line = f"{scheduled.short} {since.rstrip('0').rstrip('.')}"
    if not outcome:
        return line
    return f"{line} {outcome} {''.join(task_id.splitlines())}".rstrip(" ")


def read_history(text: str, own_id: OwnId = no_id) -> list[Occurrence]:
    """Return the runs in a stored history; lines that are none are left out.

    ``own_id`` computes the task id of the run that is due at an instant.
    """
    return [run for line in text.splitlines() for run in _read(line, own_id)]


def is_line(line: str) -> bool:
    """Whether a text is the line of a run."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(text: str, own_id: OwnId) -> str:
    """Return a stored history in which each id is written, so that it is right anywhere."""
    return "".join([f"{_with_id(line, own_id)}\n" for line in text.splitlines()])


def _with_id(line: str, own_id: OwnId) -> str:
    parts = line.split(" ")
    if len(parts) != 2 or not is_line(line):
        return line
    return f"{line} {SENT} {own_id(from_timestamp(float(parts[0])))}"


def _read(line: str, own_id: OwnId) -> Iterator[Occurrence]:
    scheduled, _, rest = line.partition(" ")
    second, _, told = rest.partition(" ")
    try:
        since = float(scheduled) if second[:1] in SIGNS else 0.0
        instants = from_timestamp(float(scheduled)), from_timestamp(since + float(second))
    except (ValueError, OverflowError, OSError):
        return
    if (
        second[0] not in SIGNS
    ):  # as it was before: <scheduled> <dispatched> <task id or -> <outcome>
        task_id, blank, outcome = told.rpartition(" ")
        if blank:
            yield Occurrence(*instants, None if task_id == NO_ID else task_id, outcome)
    elif told:
        outcome, _, task_id = told.partition(" ")
        yield Occurrence(*instants, task_id or None, outcome)
    else:
        yield Occurrence(*instants, own_id(instants[0]), SENT)
