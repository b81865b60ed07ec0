"""Reads and writes the runs in the history of an entry, and formats their nominal instants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, get_args

from celery.beat import SchedulingError

from redbeat.calendar.zones import EPOCH
from redbeat.codec.stored import instant_in, number_in, seconds_in, whole_in

from .decide import aware


class Nominal(NamedTuple):
    """An instant in UTC, and the same instant formatted as ISO 8601 and as UNIX seconds.

    ``text`` contains the UNIX seconds with six decimals. ``short`` is ``text`` without trailing
    zeros.
    """

    at: datetime
    iso: str
    text: str
    seconds: float
    short: str

    @classmethod
    def of(cls, at: datetime) -> Nominal:
        """Return the :class:`Nominal` of the instant ``at``, which must be in UTC."""
        seconds = at.timestamp()
        text = f"{seconds:.6f}"
        return cls(at, at.isoformat(), text, seconds, text.rstrip("0").rstrip("."))


_last = Nominal.of(EPOCH)


def nominal(scheduled_at: datetime) -> Nominal:
    """Return the :class:`Nominal` of an instant; a naive datetime counts as UTC.

    The last result is cached, because one run needs the result several times, and because entries
    that are due at the same time need the same result.
    """
    global _last  # noqa: PLW0603 - the assignment is atomic, so it is thread-safe
    # Compare in UTC, because in local time the repeated hour of a DST change is ambiguous.
    at, result = aware(scheduled_at), _last
    if result.at != at:
        result = _last = Nominal.of(at)
    return result


SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

#: The outcomes of scheduled runs that were sent, or may have been sent.
SENT_OUTCOMES: Final = (SENT, PERHAPS_SENT)

#: The mark for "no task id" in history lines of the old format.
NO_ID: Final = "-"

#: The lateness in a history line begins with a plus sign or a minus sign.
#: History lines of the old format contain no lateness.
SIGNS: Final = ("+", "-")

#: The states of a run that was sent; see :class:`RunResult`.
RunState = Literal["succeeded", "failed", "retried", "revoked", "ignored", "lost"]

#: The mark for an unknown duration or an unknown time in stored results.
UNKNOWN: Final = "-"


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


class Results(NamedTuple):
    """The stored results of an entry's runs.

    Attributes:
        last_success: when the last successful run ended (UTC), None if no success is known.
        consecutive_failures: the number of failed runs since the last success, or since the entry
            was resumed.
        since: when the results were first stored, or when the entry was last resumed (UTC).
        by_run: maps the nominal instant of a run, formatted as :attr:`Nominal.short`, to a result.
    """

    last_success: datetime | None = None
    consecutive_failures: int = 0
    since: datetime | None = None
    by_run: dict[str, RunResult] = {}  # noqa: RUF012 - never changed

    @classmethod
    def read(cls, text: str) -> Results:
        """Return the results in a stored text; invalid lines are skipped."""
        first, _, rest = text.partition("\n")
        words = first.split(" ")
        failures = whole_in(words[1]) if len(words) == 4 else None
        if failures is None:
            return NO_RESULTS
        by_run = dict(pair for line in rest.splitlines() for pair in _read_result(line))
        return cls(instant_in(words[0]), failures, instant_in(words[3]), by_run)


NO_RESULTS: Final = Results()


def _read_result(line: str) -> Iterator[tuple[str, RunResult]]:
    run, *words = line.split(" ", 5)
    if len(words) < 4 or words[3] not in get_args(RunState):
        return
    ended_at, count, state, *error = instant_in(words[0]), whole_in(words[2]), *words[3:]
    seconds = None if words[1] == UNKNOWN else number_in(words[1])
    if ended_at is None or count is None or (seconds is None and words[1] != UNKNOWN):
        return
    if seconds is not None and instant_in(ended_at.timestamp() - seconds) is None:
        return
    result = RunResult(
        state,  # type: ignore[arg-type]
        *(ended_at, seconds, count, error[0] if error else None),
    )
    yield run, result


def result_line(state: RunState, seconds: float | None, retries: int, error: str) -> str:
    """Return the line to store for a result, without the nominal instant and the end time."""
    took = UNKNOWN if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"{took} {retries} {state} {error}".rstrip(" ")


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


def missed(count: int) -> str:
    """Return the outcome for a history line that stands for ``count`` missed runs."""
    return f"missed:{count}"


def cause_of(error: BaseException) -> BaseException:
    """Return the error that Celery wrapped in a ``SchedulingError``, or ``error`` itself."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def failed(error: BaseException) -> str:
    """Return the outcome of a run that could not be sent because of ``error``."""
    return f"failed:{type(cause_of(error)).__name__}"


def run_line(scheduled: Nominal, dispatched: float, outcome: str = "", task_id: str = "") -> str:
    """Return the history line of a run; ``dispatched`` is in UNIX seconds.

    The line is ``<scheduled> <signed lateness in seconds> <outcome> <task id>``. If there is no
    task id, the line ends after the outcome. If the outcome is ``sent`` and a reader can compute
    the task id, the line contains neither the outcome nor the task id. Most history lines have at
    most 30 bytes.
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


def with_results(runs: Iterable[Occurrence], results: Results) -> list[Occurrence]:
    """Return the runs, each with its result from ``results``."""
    by_run = results.by_run
    if not by_run:
        return list(runs)
    return [run._replace(result=by_run.get(nominal(run.scheduled_at).short)) for run in runs]


def needs_lost(runs: Iterable[Occurrence]) -> bool:
    """Return whether ``runs`` contains a sent run without a result, which may be lost."""
    return any(run.was_sent and run.result is None for run in runs)


def mark_lost(
    runs: Iterable[Occurrence], reports_since: datetime, lost_before: datetime
) -> list[Occurrence]:
    """Return the runs; a run whose result was not reported in time gets the result ``lost``.

    Only runs that were dispatched from ``reports_since`` to ``lost_before`` can be lost.
    ``reports_since`` is the time at which a worker first reported a run of the schedule.
    """

    def is_lost(run: Occurrence) -> bool:
        unreported = run.was_sent and run.result is None
        return unreported and reports_since <= run.dispatched_at <= lost_before

    return [run._replace(result=LOST) if is_lost(run) else run for run in runs]


def is_line(line: str) -> bool:
    """Return whether a text is exactly one valid history line."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(text: str, own_id: OwnId) -> str:
    """Return a stored history with all task ids, so that no reader needs to compute task ids."""
    return "".join([f"{_with_id(line, own_id)}\n" for line in text.splitlines()])


def _with_id(line: str, own_id: OwnId) -> str:
    parts = line.split(" ")
    if len(parts) != 2 or not is_line(line):
        return line
    return f"{line} {SENT} {own_id(next(_read(line, no_id)).scheduled_at)}"


def _read(line: str, own_id: OwnId) -> Iterator[Occurrence]:
    scheduled, _, rest = line.partition(" ")
    second, _, tail = rest.partition(" ")
    start, then = seconds_in(scheduled), number_in(second)
    if start is None or then is None:
        return
    begun, ended = instant_in(start), instant_in(start + then if second[0] in SIGNS else then)
    if begun is None or ended is None:
        return
    instants = begun, ended
    if second[0] not in SIGNS:  # old format: <scheduled> <dispatched> <task id or -> <outcome>
        task_id, blank, outcome = tail.rpartition(" ")
        if blank:
            yield Occurrence(*instants, None if task_id == NO_ID else task_id, outcome)
    elif tail:
        outcome, _, task_id = tail.partition(" ")
        yield Occurrence(*instants, task_id or None, outcome)
    else:
        yield Occurrence(*instants, own_id(instants[0]), SENT)
