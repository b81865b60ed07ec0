"""Computes runs: the upcoming ones, forecasts, load and simulations."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, pairwise, takewhile
from math import inf
from operator import add, gt, itemgetter
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from celery.schedules import crontab
from celery.schedules import schedule as interval

from redbeat.calendar.walltime import BEGINNING, DAY, END, TICK, offset_spans
from redbeat.calendar.zones import fixed_offset
from redbeat.codec.stored import texts_in
from redbeat.config import ensure_conf
from redbeat.entries import decide, history, saving
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError, TooManyStepsError
from redbeat.presentation.rule_text import schedule_text
from redbeat.printing import get_logger
from redbeat.schedules.next_run import MIN_EVERY, asks_itself
from redbeat.storage.reading import BATCH, Page
from redbeat.storage.rows import Row

from .find import pages_of, records_in

if TYPE_CHECKING:
    from .schedule import Schedule

logger = get_logger(__name__)

#: How much earlier than its score an entry may be due. A held run raises the score.
SLACK = timedelta(seconds=60)


#: The heap's items: when an entry runs next, a unique number that decides between equal times, the
#: entry's name, and its later runs.
Next = tuple[datetime, int, str, Iterator[datetime]]


#: The entries in due order: pages of a list, and of when the last entry on it is due (None on the
#: last page). No entry on a later page is due before that.
Pages = Iterable[tuple[list[RedBeatSchedulerEntry], datetime | None]]


def agenda(
    pages: Pages, after: datetime, each: int | None = None
) -> Iterator[tuple[datetime, str]]:
    """Yield the due time and the name of each run after ``after``, in order of time.

    ``each`` is the maximum number of runs of one entry. A page is read only when the runs reach the
    end of the page before it.
    """
    heap: list[Next] = []
    number = 0

    def push(number: int, name: str, later: Iterator[datetime]) -> None:
        at = next(later, None)
        if at is not None:
            heapq.heappush(heap, (at, number, name, later))

    for entries, last_due in chain(pages, [([], None)]):
        for entry in entries:
            number += 1
            push(number, str(entry.name), islice(due_times(entry, after), each))
        while heap and (last_due is None or heap[0][0] < last_due - SLACK):
            at, number_of, name, later = heapq.heappop(heap)
            yield at, name
            push(number_of, name, later)


def due_times(entry: RedBeatSchedulerEntry, after: datetime) -> Iterator[datetime]:
    for run in computable(entry, lambda: entry.due_after(after)):
        yield run.due_at


def computable(
    entry: RedBeatSchedulerEntry, runs: Callable[[], Iterator[decide.Expected]]
) -> Iterator[decide.Expected]:
    """Yield the runs of an entry; warn if the others take too long to compute."""
    try:
        yield from runs()
    except TooManyStepsError as error:
        logger.warning("Entry %s: its runs are incomplete: %s", entry.name, error)


def upcoming_or_problem(
    entry: RedBeatSchedulerEntry, number: int, after: datetime | None = None
) -> tuple[list[datetime], str | None]:
    """Return the next runs of a stored entry, and why there are none, or None.

    A calendar that is missing or unreadable is such a problem. Takes one round trip if the entry
    has calendars.
    """
    try:
        return entry.upcoming(number, after), None
    except (InvalidEntryError, DecodeError) as error:
        return [], str(error)


#: Maximum number of runs in a forecast.
MAX_RUNS: Final = 100_000

MINUTE: Final = timedelta(minutes=1)

#: Maximum number of entries in a forecast, rounded up to a whole page.
MAX_ENTRIES: Final = 5_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The due times, in UTC, of all runs of all entries in a period.

    Attributes:
        since: the start of the period.
        until: the end of the period; ``runs`` has all runs before it.
        runs: the due times by entry name; the entry with the first run comes first.
        complete: whether this is the period that was asked for; with too many runs or entries, the
            forecast ends earlier.
    """

    since: datetime
    until: datetime
    runs: Mapping[str, Sequence[datetime]]
    complete: bool


def forecast(pages: Pages, since: datetime, until: datetime) -> Forecast:
    """Return the runs after ``since`` and before ``until``.

    Only pages whose entries can run then are read. The forecast ends early if there are more than
    :data:`MAX_RUNS` runs or :data:`MAX_ENTRIES` entries.
    """
    entries, end = _due_before(until, pages, MAX_ENTRIES)
    runs: dict[str, list[datetime]] = {}
    for number, (at, name) in enumerate(agenda([(entries, None)], since)):
        if at >= end or number == MAX_RUNS:
            end = min(at, end)
            break
        runs.setdefault(name, []).append(at)
    kept = {name: [at for at in instants if at < end] for name, instants in runs.items()}
    found = {name: instants for name, instants in kept.items() if instants}
    return Forecast(since, max(end, since), found, end == until)


def _due_before(
    end: datetime, pages: Pages, most: int
) -> tuple[list[RedBeatSchedulerEntry], datetime]:
    """Return the entries that can run before ``end``, and until when these are all.

    No page is read after the first ``most`` entries.
    """
    found: list[RedBeatSchedulerEntry] = []
    for entries, last_due in pages:
        found += entries
        if last_due is None or last_due - SLACK >= end:
            break
        if len(found) >= most:
            return found, last_due - SLACK
    return found, end


#: Maximum number of entries that :func:`load` reads, rounded up to a whole page.
MAX_LOADED: Final = 50_000


@dataclass(frozen=True, slots=True)
class Load:
    """The number of runs in consecutive periods; the first begins at ``start``.

    Attributes:
        counts: the number of runs in each period.
        entries: the number of runs of each entry, by name, in each period or in one sum for all;
            entries without runs are left out, and the one with the first run comes first.
        entry: returns the entry with a name in ``entries``.
        complete: whether all entries were counted; beyond :data:`MAX_LOADED`, some are missing.
        read: while the counting goes on, the number of entries that were read, then 0.
    """

    start: datetime
    length: timedelta
    counts: Sequence[int]
    entries: Mapping[str, Sequence[int]]
    entry: Callable[[str], RedBeatSchedulerEntry]
    complete: bool
    read: int = 0


#: The text of a crontab, and its time zone.
Rule = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Periods:
    """Consecutive periods in which the runs after ``since`` are counted.

    The first begins at ``start``. The last ends at ``end``, and may be shorter than ``length``.
    """

    since: datetime
    start: datetime
    length: timedelta
    end: datetime

    @property
    def number(self) -> int:
        return -((self.start - self.end) // self.length)

    def counts(
        self, entry: RedBeatSchedulerEntry, known: dict[Rule, Sequence[int]]
    ) -> Sequence[int]:
        """Return the number of runs of an entry in each period.

        ``known`` keeps the counts of crontabs for entries with nothing but this rule. Their runs,
        and those of intervals, are counted without ``jitter``.
        """
        runs = self.grid(entry)
        if runs is not None:
            return self._count_grid(runs)
        is_limited = entry.effective_policy.spread or entry.runs_left is not None
        is_alike = type(entry.schedule) is crontab and not asks_itself(entry.schedule)
        if not is_alike or is_limited or not _has_only_a_rule(entry):
            return self.count(first_runs(entry, self.since, self.end, MAX_RUNS))
        key = schedule_text(entry.schedule), entry.timezone or ""
        if key not in known:
            known[key] = self.count(self._nominal_instants(entry.occurrence_plan()))
        return known[key]

    def _nominal_instants(self, plan: decide.Plan) -> Iterator[datetime]:
        at = plan.next_run(self.since)
        while at is not None and at < self.end:
            yield at
            at = plan.next_run(at)

    def grid(self, entry: RedBeatSchedulerEntry) -> range | None:
        """Return the runs of an entry with an interval, in microseconds after ``start``.

        Returns None for other schedules, and for entries with a start time, an end time or
        calendars.
        """
        when = entry.schedule
        if type(when) is not interval or when.relative or not _has_only_a_rule(entry):
            return None
        run = next(entry.due_after(self.since), None)
        if run is None:
            return range(0)
        every = max(when.run_every, MIN_EVERY)
        first = run.scheduled_at + entry.occurrence_plan().spread_offset(every - TICK)
        begin, end = (first - self.start) // TICK, (self.end - self.start) // TICK
        return range(begin, end, every // TICK)[: entry.runs_left]

    def count(self, instants: Iterable[datetime]) -> list[int]:
        counts = [0] * self.number
        for instant in instants:
            if self.start <= instant < self.end:
                counts[(instant - self.start) // self.length] += 1
        return counts

    def _count_grid(self, runs: range) -> list[int]:
        length, end = self.length // TICK, (self.end - self.start) // TICK
        if runs.start < 0:
            runs = runs[-(runs.start // runs.step) :]
        if runs.step >= length:
            counts = [0] * self.number
            for at in runs:
                counts[at // length] += 1
            return counts
        if length % runs.step == 0 and runs and runs[-1] + runs.step >= end:
            # All periods but the first and the last have the same number.
            first = runs.start // length
            counts = [0] * first + [length // runs.step] * (self.number - first)
            counts[first] = len(range(runs.start, (first + 1) * length, runs.step))
            counts[-1] += len(runs) - sum(counts)
            return counts
        edges = (min(index * length, end) for index in range(self.number + 1))
        before = [min(max(-((runs.start - at) // runs.step), 0), len(runs)) for at in edges]
        return [later - earlier for earlier, later in pairwise(before)]


def _has_only_a_rule(entry: RedBeatSchedulerEntry) -> bool:
    policy = entry.effective_policy
    return not (policy.exclude or policy.start_time or policy.end_time)


def minutes_between(since: datetime, until: datetime) -> Periods:
    """Return the minutes of a period; the first is the whole minute that contains ``since``."""
    return Periods(since, since.replace(second=0, microsecond=0), MINUTE, until)


@dataclass(slots=True)
class Loading:
    """Counts the runs of a schedule, page by page. With ``totals``, each entry has a single sum."""

    schedule: Schedule
    periods: Periods
    pattern: str | None = None
    totals: bool = False
    sums: list[int] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    found: list[tuple[int, str, Sequence[int]]] = field(default_factory=list)
    known: dict[Rule, Sequence[int]] = field(default_factory=dict)

    def read(self, page: Page) -> None:
        """Count the runs of a page's entries, except those on an earlier page."""
        new, name_of = dict[str, Row](), self.schedule._store.keys.name_of
        for row in page.rows:
            name = name_of(row.key)
            matches = self.pattern is None or fnmatchcase(name, self.pattern)
            if matches and name not in self.rows and row.due is not None and row.due >= 0:
                new[name] = row
        self.rows |= new
        for entry in self._entries_in(new.values()):
            self.add_counts(str(entry.name), self.periods.counts(entry, self.known))

    def _entries_in(self, rows: Iterable[Row]) -> list[RedBeatSchedulerEntry]:
        page = Page(time(), [*rows], None)
        return self.schedule._running(records_in(self.schedule, page))

    def add_counts(self, name: str, each: Sequence[int]) -> None:
        if any(each):
            self.sums = list(map(add, self.sums or [0] * len(each), each))
            first = next(index for index, count in enumerate(each) if count)
            self.found.append((first, name, [sum(each)] if self.totals else each))

    def entry(self, name: str) -> RedBeatSchedulerEntry:
        return self._entries_in([self.rows[name]])[0]

    def result(self, complete: bool, read: int = 0) -> Load:
        periods, sums = self.periods, self.sums or [0] * self.periods.number
        counts = {name: each for _, name, each in sorted(self.found, key=itemgetter(0, 1))}
        return Load(periods.start, periods.length, sums, counts, self.entry, complete, read)


def load_in_steps(loading: Loading, seconds: float = inf) -> Iterator[Load]:
    """Yield what was counted every ``seconds``, and the final result last.

    Takes one round trip per 500 entries in due order, up to the first that are due after all
    periods. The time hardly depends on the number of runs: those of an interval are not listed, and
    those of a crontab are computed once for all entries with it. With totals, the memory doesn't
    depend on the number of periods.
    """
    complete, number, end = True, 0, loading.periods.end.timestamp()
    pause_at = monotonic() + seconds
    for page in pages_of(loading.schedule._store):
        loading.read(page)
        number += len(page.rows)
        last = page.rows[-1].due if page.rows else None
        if last is None or last < 0 or last - SLACK.total_seconds() >= end:
            break
        if number >= MAX_LOADED and page.after is not None:
            complete = False
            break
        if monotonic() >= pause_at and page.after is not None:
            yield loading.result(False, number)
            pause_at = monotonic() + seconds
    yield loading.result(complete)


def past_load(schedule: Schedule, periods: Periods) -> Load:
    """Return the number of runs that beats sent in each period, by the entries' histories.

    Takes one round trip per 500 entries. It's incomplete if an entry ran more often than its
    history shows.
    """
    loading, complete, store = Loading(schedule, periods), True, schedule._store
    kept = ensure_conf(schedule.app).history_size
    for page in islice(pages_of(store, history=True), MAX_LOADED // BATCH):
        for row in page.rows:
            runs = history.read_history(texts_in(row.history))
            counts = periods.count(run.dispatched_at for run in runs if run.was_sent)
            loading.add_counts(store.keys.name_of(row.key), counts)
            if len(runs) >= kept and runs[-1].dispatched_at > periods.start:
                complete = False
    return loading.result(complete)


def first_runs(
    entry: RedBeatSchedulerEntry, since: datetime, until: datetime, number: int
) -> list[datetime]:
    return list(islice(takewhile(partial(gt, until), due_times(entry, since)), number))


@dataclass(frozen=True, slots=True)
class EntrySimulation:
    """The runs of one entry in a simulation.

    Attributes:
        zone: the time zone of the entry's rule, or of the app.
        before: the runs by the stored rules; empty if the entry is not stored.
        after: the runs by the changed rules; None if nothing is changed.
        enabled: whether the entry is enabled, with the change if there is one.
    """

    zone: tzinfo
    before: Sequence[decide.Expected]
    after: Sequence[decide.Expected] | None = None
    enabled: bool = True

    def runs(self) -> Iterator[tuple[decide.Expected, str]]:
        """Yield each run in order of time, with ``"removed"``, ``"added"`` or ``"same"``.

        A removed run takes place only by the stored rules, an added one only by the changed rules.
        """
        before = {run.scheduled_at: run for run in self.before}
        after = before if self.after is None else {run.scheduled_at: run for run in self.after}
        for at in sorted({*before, *after}):
            if at not in after:
                yield before[at], REMOVED
            else:
                yield after[at], SAME if at in before else ADDED

    def count(self) -> dict[str, int]:
        """Return the number of runs for each of ``"same"``, ``"removed"`` and ``"added"``."""
        counts = Counter(change for _, change in self.runs())
        return {change: counts[change] for change in (SAME, REMOVED, ADDED)}


SAME, REMOVED, ADDED = "same", "removed", "added"


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of the UTC offset of a time zone."""

    at: datetime
    offset_before: timedelta
    offset_after: timedelta


@dataclass(frozen=True, slots=True)
class Simulation:
    """The runs, past and future, from ``since`` (included) to ``until`` (excluded).

    Attributes:
        entries: the runs by entry name.
        complete: whether this is all that was asked for; with more than 100,000 runs, the
            simulation ends earlier.
        all_entries: whether all entries are simulated, which are at most 50,000.
    """

    since: datetime
    until: datetime
    entries: Mapping[str, EntrySimulation]
    complete: bool
    all_entries: bool = True

    def clock_changes(self) -> dict[str, list[ClockChange]]:
        """Return the changes of UTC offsets in the period, by the name of the time zone.

        Zones without a change are left out.
        """
        zones = {str(entry.zone): entry.zone for entry in self.entries.values()}
        found = {name: list(_changes(zone, self.since, self.until)) for name, zone in zones.items()}
        return {name: changes for name, changes in found.items() if changes}


def _changes(zone: tzinfo, since: datetime, until: datetime) -> Iterator[ClockChange]:
    if fixed_offset(zone) is not None:
        return
    before: timedelta | None = None
    # At the very start of year 1 or end of year 9999, the wall-clock time may be out of range.
    start = min(max(since, BEGINNING + DAY), END - DAY)
    for begin, _, offset in offset_spans(zone, start):
        if begin >= until:
            return
        if before is not None:
            yield ClockChange(begin, before, offset)
        before = offset


#: Maximum number of entries that :func:`simulate` reads.
MAX_SIMULATED: Final = 50_000

#: An entry with its stored rules, and the same entry with changed rules. Either may be None.
Pair = tuple[RedBeatSchedulerEntry | None, RedBeatSchedulerEntry | None]


def simulate(pairs: Iterable[Pair], since: datetime, until: datetime, now: datetime) -> Simulation:
    """Return the runs from ``since`` to before ``until``, by the stored and by the changed rules.

    ``now`` is when the entries were loaded. A run belongs to the period by its nominal instant.
    Paused entries are simulated as if they were enabled, and changed rules as if they were saved at
    ``since``, with the history that the entry had then.

    Only the first :data:`MAX_SIMULATED` pairs are simulated, and with more than :data:`MAX_RUNS`
    runs the simulation ends early. At most four times as many runs are in memory. Raises
    :exc:`InvalidEntryError` if ``since`` is too close to year 1 or 9999.
    """
    entries: dict[str, EntrySimulation] = {}
    end, count, pairs = until, 0, iter(pairs)
    for stored, changed in islice(pairs, MAX_SIMULATED):
        before, after = list[decide.Expected](), None
        try:
            if stored is not None:
                before = _runs_in(stored, since, end, now)
            if changed is not None:
                after = _runs_in(*_saved_at(since, stored, changed, now), end, now)
        except OverflowError as error:
            problem = f"{since.isoformat()} is too close to the year 1 or 9999; use another time"
            raise InvalidEntryError("since", problem) from error
        count += len(before) + len(after or ())
        either = changed or stored
        if either is not None:
            runs = before, after
            entries[str(either.name)] = EntrySimulation(zone_of(either), *runs, either.enabled)
        if count > 2 * MAX_RUNS:
            end, count = _drop_latest(entries)
    if count > MAX_RUNS:
        end, _ = _drop_latest(entries)
    all_entries = next(pairs, None) is None
    return Simulation(since, end, entries, end == until and all_entries, all_entries)


def _drop_latest(entries: dict[str, EntrySimulation]) -> tuple[datetime, int]:
    """Keep at most :data:`MAX_RUNS` runs, the earliest; return the new end and how many are left.

    Runs at the same instant stay or go together.
    """
    instants = sorted(
        run.scheduled_at
        for entry in entries.values()
        for runs in (entry.before, entry.after or ())
        for run in runs
    )
    end = instants[MAX_RUNS]
    for name, entry in entries.items():
        before = [run for run in entry.before if run.scheduled_at < end]
        after = entry.after and [run for run in entry.after if run.scheduled_at < end]
        entries[name] = replace(entry, before=before, after=after)
    return end, bisect_left(instants, end)


def zone_of(entry: RedBeatSchedulerEntry) -> tzinfo:
    """Return the time zone of an entry's rule, else that of the entry or of the app."""
    rule = entry.schedule
    start = getattr(rule, "dtstart", None) or getattr(rule, "clocked_time", None)
    return getattr(start, "tzinfo", None) or entry.effective_policy.zone or entry.app.timezone


def _saved_at(
    since: datetime,
    stored: RedBeatSchedulerEntry | None,
    changed: RedBeatSchedulerEntry,
    now: datetime,
) -> tuple[RedBeatSchedulerEntry, datetime]:
    """Return a copy of the changed entry as if it was saved at ``since``, and when its runs begin.

    Raises :exc:`InvalidEntryError` if it cannot be saved.
    """
    if stored is None:
        created = changed.created_at(since)
        return created, max(since, (created.anchor or since) + TICK)
    entry, last, runs = copy(changed), stored.anchor, stored.total_run_count
    if entry.policy_field("exclude") != stored.policy_field("exclude"):
        entry.use_calendars(None)
    if last is not None and not asks_itself(stored.schedule):
        last, runs = decide.history_before(stored.occurrence_plan(), last, runs, since, now)
    if last is not None and not asks_itself(entry.schedule):
        last = decide.latest_before(entry.occurrence_plan(), min(last, since), since)
    entry.saved_state = entry.saved_state._replace(texts=stored.seen_texts)
    entry.adopt(history.History(last, runs, last))
    saving.restart_if_finished(entry, entry.texts(), since)
    return entry, since


def _runs_in(
    entry: RedBeatSchedulerEntry, since: datetime, end: datetime, now: datetime
) -> list[decide.Expected]:
    """Return the runs of an entry before ``end``, at most :data:`MAX_RUNS` and one.

    That one shows :func:`_drop_latest` that there are too many.
    """
    runs = computable(entry, lambda: entry.runs_from(since, now))
    return list(islice(takewhile(lambda run: run.scheduled_at < end, runs), MAX_RUNS + 1))
