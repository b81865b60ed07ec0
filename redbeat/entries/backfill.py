"""Manages the waiting runs of an entry: manually triggered runs and backfills.

A backfill is a request to send the runs of a time span in the past; a beat sends these runs one by
one. The field ``trigger`` of an entry contains the waiting runs of the entry, in the format that
the scripts ``trigger.lua`` and ``backfill.lua`` describe.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import EPOCH, from_timestamp
from redbeat.codec.stored import (
    bytes_of,
    instant_in,
    is_valid_text,
    number_in,
    seconds_in,
    text_of,
    whole_in,
)
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage.reading import not_an_entry
from redbeat.storage.store import store_of
from redbeat.storage.wire import Row

from .decide import LONGEST_ID
from .policy import in_utc
from .runs import SENT_OUTCOMES, nominal, read_history
from .save import SAVE_ATTEMPTS
from .status import Record, how_to_schedule

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

#: Maximum number of manually triggered runs of one entry that wait for a beat.
MAX_TRIGGERS: Final = 100

#: The default rate of a backfill, in runs per second.
BACKFILL_RATE: Final = 10.0

#: The codes that ``trigger.lua`` and ``backfill.lua`` return when the scripts refuse a call.
#: ``REFUSED`` means that too many triggered runs wait, or that another program changed the entry.
UNKNOWN, QUARANTINED, REFUSED, NOT_A_HASH, OUTSIDE = 0, -1, -2, -3, -4

#: The word at the end of the stored text of a finished backfill.
DONE: Final = "done"

#: A backfill that falls behind its rate catches up on at most this number of seconds.
BURST: Final = 1.0

#: The minimum rate of a backfill, in runs per second.
MIN_RATE: Final = 0.0001

#: Maximum number of runs in a backfill.
MAX_RUNS: Final = 100_000

#: Maximum number of spans of one backfill.
#: An entry has at most this number of finished backfills and waiting runs together.
MAX_SPANS: Final = 100

#: The start (included) and the end (excluded) of a time span.
Span = tuple[datetime, datetime]

#: A function that yields the nominal instants of an entry, starting at the given instant.
Occurrences = Callable[[datetime], Iterator[datetime]]


class Backfill(NamedTuple):
    """A backfill of the runs from ``since`` (included) to ``until`` (excluded), and its progress.

    Attributes:
        id: a random id.
        rate: maximum number of runs per second.
        sent: the number of runs that beats have sent.
        total: the number of runs to send, counted when the backfill was requested.
        left: the parts of the span whose runs are not sent yet; empty if the backfill has finished.
        ready_at: the earliest time to send the next run, in UNIX seconds; None if the backfill has
            finished.
    """

    id: str
    since: datetime
    until: datetime
    rate: float
    sent: int
    total: int
    left: tuple[Span, ...]
    ready_at: float | None

    @property
    def finished(self) -> bool:
        """Whether the backfill has no run left to send."""
        return self.ready_at is None

    @classmethod
    def read(cls, token: str) -> Backfill:
        """Return the backfill in ``token``, which is a text from the field ``trigger``.

        Raises ValueError for a text that is not the :attr:`token` of a backfill.
        """
        head, _, ready = token.rpartition(":")
        run_id, rate_text, sent_text, total_text, span, left_text = head.split("/")
        since, until = _span(span)
        left = tuple(map(_span, left_text.split(","))) if left_text else ()
        rate, sent, total = number_in(rate_text), whole_in(sent_text), whole_in(total_text)
        ready_at = None if ready == DONE else seconds_in(ready)
        if rate is None or sent is None or total is None:
            raise ValueError("the rate and the numbers of runs must be numbers")
        if rate < MIN_RATE:
            raise ValueError(f"the rate must be at least {MIN_RATE} runs a second")
        backfill = cls(run_id, since, until, rate, sent, total, left, ready_at)
        if not 0 < len(run_id) <= LONGEST_ID or not is_valid_text(run_id):
            raise ValueError(f"the id must be valid text of at most {LONGEST_ID} characters")
        if len(left) > MAX_SPANS:
            raise ValueError(f"the backfill has more than {MAX_SPANS} spans")
        if backfill.finished == bool(left) or backfill.token != token:
            raise ValueError("RedBeat does not write backfills in this form")
        return backfill

    @property
    def token(self) -> str:
        """The text that represents this backfill in the field ``trigger``."""
        ready = DONE if self.ready_at is None else f"{self.ready_at:.6f}"
        left = ",".join(map(_span_text, self.left))
        span = _span_text((self.since, self.until))
        return f"{self.id}/{self.rate:g}/{self.sent}/{self.total}/{span}/{left}:{ready}"

    def instants(self, occurrences: Occurrences) -> Iterator[datetime]:
        """Yield the nominal instants of the runs that are not sent yet."""
        return _instants(self.left, occurrences)

    def after_run(self, following: datetime | None, now: float, sent: int = 1) -> Backfill:
        """Return a copy of the backfill that counts ``sent`` more runs as sent.

        ``following`` is the nominal instant of the next run, None if no run is left. ``now`` is in
        UNIX seconds.
        """
        done = self._replace(sent=self.sent + sent, left=(), ready_at=None)
        if following is None or self.ready_at is None:
            return done
        left = tuple((max(a, following), b) for a, b in self.left if b > following)
        ready_at = max(self.ready_at + 1 / self.rate, now - BURST)
        return done._replace(left=left, ready_at=ready_at)


def _span(text: str) -> Span:
    since, until = map(instant_in, text.split("~"))
    if since is None or until is None:
        raise ValueError("a span must have two instants in UNIX seconds")
    return since, until


def _span_text(span: Span) -> str:
    return "~".join([nominal(instant).short for instant in span])


def _instants(spans: Iterable[Span], occurrences: Occurrences) -> Iterator[datetime]:
    for since, until in spans:
        for instant in occurrences(since):
            if instant >= until:
                break
            yield instant


def _tokens(waiting: str) -> list[str]:
    """Return the waiting runs in a field ``trigger``.

    Only ASCII white space separates waiting runs, as in the Lua scripts.
    """
    return [text_of(part) for part in bytes_of(waiting).split()]


def is_backfill(token: str) -> bool:
    """Return whether a waiting run is a backfill and not a manually triggered run."""
    return "/" in token


def backfills_in(waiting: str) -> list[Backfill]:
    """Return all valid backfills in a field ``trigger``, including finished backfills.

    A beat logs and removes invalid backfills.
    """
    found = []
    for token in filter(is_backfill, _tokens(waiting)):
        try:
            found.append(Backfill.read(token))
        except ValueError:
            continue
    return found


def waits(waiting: str) -> bool:
    """Return whether a field ``trigger`` contains a run to send, now or later."""
    return any(not token.endswith(f":{DONE}") for token in _tokens(waiting))


def first_ready(waiting: str, now: float, enabled: bool) -> str | None:
    """Return the waiting run to send at ``now`` (UNIX seconds), None if no run is ready.

    Manually triggered runs come before backfills. Backfills wait while the entry is not enabled.
    """
    ready: list[tuple[float, str]] = []
    for token in _tokens(waiting):
        if not is_backfill(token):
            return token
        if not enabled or token.endswith(f":{DONE}"):
            continue
        try:
            at = Backfill.read(token).ready_at or 0.0
        except ValueError:
            at = 0.0  # the beat logs and removes the invalid backfill
        if at <= now:
            ready.append((at, token))
    return min(ready, key=lambda item: item[0])[1] if ready else None


class Planned(NamedTuple):
    """The plan of a request to backfill a span.

    The span begins at ``since`` and ends just before ``until``. The span contains no run that the
    schedule itself will send.

    Attributes:
        instants: the nominal instants of the runs to send.
        left_out: the number of runs in the span that this backfill does not send, because these
            runs were sent before or wait in another backfill.
        backfill: the backfill to store, None if there is no run to send.
    """

    instants: list[datetime]
    left_out: int
    since: datetime
    until: datetime
    backfill: Backfill | None


def with_backfill(waiting: str, backfill: Backfill, again: bool) -> str:
    """Return ``waiting``, the text of a field ``trigger``, with ``backfill`` added.

    Finished backfills whose spans overlap or touch are combined into one backfill. If ``again`` is
    true, finished backfills are removed instead. Raises :exc:`InvalidEntryError` if the
    field would contain too many backfills.
    """
    others = [token for token in _tokens(waiting) if not token.endswith(f":{DONE}")]
    finished = [] if again else _merged([one for one in backfills_in(waiting) if one.finished])
    if len(finished) + len(others) > MAX_SPANS:
        problem = f"has {MAX_SPANS} backfills; the option 'again' removes finished backfills"
        raise InvalidEntryError("backfill", problem)
    return " ".join([*(one.token for one in finished), *others, backfill.token])


def _merged(finished: Sequence[Backfill]) -> list[Backfill]:
    merged: list[Backfill] = []
    for one in sorted(finished, key=lambda one: one.since):
        last = merged[-1] if merged else None
        if last is None or one.since > last.until:
            merged.append(one)
        else:
            until, sent = max(last.until, one.until), last.sent + one.sent
            merged[-1] = last._replace(until=until, sent=sent, total=last.total + one.total)
    return merged


def cancelled(waiting: str) -> str:
    """Return ``waiting``, the text of a field ``trigger``, without the unsent runs of backfills."""
    tokens = []
    for token in _tokens(waiting):
        one = next(iter(backfills_in(token)), None)
        if one is None or one.finished:
            tokens.append(token)
        elif one.sent:
            ended = one._replace(total=one.sent, until=one.left[0][0], left=(), ready_at=None)
            tokens.append(ended.token)
    return " ".join(tokens)


# -- requests --------------------------------------------------------------------------------------


def request_run(entry: RedBeatSchedulerEntry) -> str:
    """Request one run of an entry; see :meth:`RedBeatSchedulerEntry.trigger`. One round trip."""
    run_id, key = uuid.uuid4().hex[:12], entry.writable_key()
    code = store_of(entry.app).trigger(key, run_id, MAX_TRIGGERS)
    if code == REFUSED:
        problem = f"{MAX_TRIGGERS} runs of {entry.name!r} are waiting; check that a beat runs"
        raise InvalidEntryError("trigger", problem)
    _check_code(code, entry, key)
    return entry.task_id_of(run_id)


def request_backfill(
    entry: RedBeatSchedulerEntry,
    since: datetime,
    until: datetime,
    rate: float,
    again: bool,
    dry_run: bool,
) -> Planned:
    """Request a backfill of a span; see :meth:`RedBeatSchedulerEntry.backfill`."""
    span = (in_utc("since", since), in_utc("until", until))
    if not span[0] < span[1]:
        raise InvalidEntryError("until", f"{until} must be later than {since}")
    if span[0] < EPOCH:
        raise InvalidEntryError("since", f"{since} must not be before 1970")
    if not MIN_RATE <= rate < math.inf:
        raise InvalidEntryError("rate", f"{rate!r} must be at least {MIN_RATE} runs a second")
    run_id = uuid.uuid4().hex[:12]
    for _ in range(SAVE_ATTEMPTS):
        row, stored, now = _stored(entry)
        # If a beat records a run after _stored() has read ``meta``, the field ``meta`` changes.
        # If ``meta`` has changed, ``backfill.lua`` refuses the write, and the loop starts over.
        runs = read_history(store_of(entry.app).history(row.key)[0])
        sent = {run.scheduled_at for run in runs if run.outcome in SENT_OUTCOMES}
        earlier = [one for one in backfills_in(row.trigger) if not (again and one.finished)]
        since, until = span[0], max(min(span[1], _first_to_send(stored, now)), span[0])
        plan = _planned(run_id, (since, until), rate, stored.occurrences_from, sent, earlier, now)
        if dry_run or plan.backfill is None:
            return plan
        if _replace_waiting(entry, row, with_backfill(row.trigger, plan.backfill, again)):
            return plan
    raise ConflictError(str(entry.name))


def cancel_backfills(entry: RedBeatSchedulerEntry) -> list[Backfill]:
    """Cancel the unsent runs of all backfills; return the backfills that had unsent runs.

    Raises KeyError if the entry does not exist. Takes two round trips, and two more for each run
    that a beat records during the call.
    """
    for _ in range(SAVE_ATTEMPTS):
        row, _, _ = _stored(entry)
        ended = [one for one in backfills_in(row.trigger) if not one.finished]
        if not ended or _replace_waiting(entry, row, cancelled(row.trigger)):
            return ended
    raise ConflictError(str(entry.name))


def stored_backfills(entry: RedBeatSchedulerEntry) -> list[Backfill]:
    """Return the stored backfills of an entry. One round trip.

    Raises KeyError if the entry does not exist.
    """
    return backfills_in(_stored(entry)[0].trigger)


def _stored(entry: RedBeatSchedulerEntry) -> tuple[Row, RedBeatSchedulerEntry, float]:
    """Return the stored fields of an entry, the decoded entry, and the time of Redis.

    One round trip.
    """
    page = store_of(entry.app).read([entry.writable_key()])
    row = page.rows[0]
    if row.definition is None:
        raise KeyError(entry.name)
    record = Record.read(row, str(entry.name), page.now, entry.app, type(entry))
    if record.entry is None:
        raise DecodeError("definition", record.problem or "cannot be read")
    return row, record.entry, page.now


def _first_to_send(entry: RedBeatSchedulerEntry, now: float) -> datetime:
    """Return the instant from which the schedule itself sends the runs of the entry.

    The result is never later than ``now``, which is in UNIX seconds.
    """
    present, last = from_timestamp(now), entry.anchor
    if last is not None:
        return min(last + TICK, present)
    due = entry.decision_at(present).scheduled_at
    if due is not None:
        return min(due, present)
    plan = entry.occurrence_plan()
    first = present - timedelta(seconds=plan.policy.jitter + plan.policy.spread)
    delayed = (at for at in entry.occurrences_from(first) if plan.due_at(at) > present)
    return min(next(delayed, present), present)


def _planned(
    run_id: str,
    span: Span,
    rate: float,
    occurrences: Occurrences,
    sent: Collection[datetime],
    earlier: Iterable[Backfill],
    now: float,
) -> Planned:
    """Return the plan of a request to backfill ``span``.

    ``sent`` are the nominal instants of the runs that the history reports as sent. All runs in the
    spans of the backfills in ``earlier`` count as sent. Raises :exc:`InvalidEntryError` if the span
    contains too many runs, or if there are too many gaps between the runs to send.
    """
    since, until = span
    covered = [(one.since, one.until) for one in earlier]
    everything = list(islice(_instants([span], occurrences), MAX_RUNS + 1))
    if len(everything) > MAX_RUNS:
        problem = f"the span has more than {MAX_RUNS} runs; backfill the span in parts"
        raise InvalidEntryError("until", problem)
    instants, left, in_gap = list[datetime](), list[list[datetime]](), True
    for instant in everything:
        if instant in sent or any(begin <= instant < end for begin, end in covered):
            in_gap = True
            continue
        if in_gap:
            left.append([instant, instant])
            in_gap = False
        left[-1][1] = instant + TICK
        instants.append(instant)
    if len(left) > MAX_SPANS:
        problem = f"the runs to send have more than {MAX_SPANS} gaps; backfill the span in parts"
        raise InvalidEntryError("until", problem)
    backfill = None
    if instants:
        spans = tuple((begin, end) for begin, end in left)
        backfill = Backfill(run_id, since, until, rate, 0, len(instants), spans, now)
    return Planned(instants, len(everything) - len(instants), since, until, backfill)


def _replace_waiting(entry: RedBeatSchedulerEntry, row: Row, waiting: str) -> bool:
    """Replace the waiting runs of an entry. One round trip.

    Returns False, and changes nothing, if the stored waiting runs or history differ from ``row``.
    """
    code = store_of(entry.app).replace_waiting(row.key, row.trigger, row.meta, waiting)
    _check_code(code, entry, row.key)
    return code != REFUSED


def _check_code(code: int, entry: RedBeatSchedulerEntry, key: str) -> None:
    """Raise the error that belongs to a return code of ``trigger.lua`` or ``backfill.lua``."""
    if code == UNKNOWN:
        raise KeyError(entry.name)
    if code == QUARANTINED:
        raise InvalidEntryError("name", f"{entry.name!r} is in quarantine; repair the entry first")
    if code == NOT_A_HASH:
        raise InvalidEntryError("name", not_an_entry(key))
    if code == OUTSIDE:
        problem = f"{entry.name!r} is not scheduled: {how_to_schedule(str(entry.name))}"
        raise InvalidEntryError("name", problem)
