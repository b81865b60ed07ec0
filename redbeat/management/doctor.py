"""The checks and repairs of ``celery redbeat doctor``, and what RedBeat 2 could not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import record_in, seconds_in
from redbeat.codec.types import TAG
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.entries import changes, definition, edits, state, status
from redbeat.entries.calendars import decode_calendars
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, DecodeError
from redbeat.metrics.problems import OF_ENTRIES, Finding, finding, problems_of, server_of
from redbeat.metrics.snapshot import count_entries
from redbeat.presentation.describe import overdue_text
from redbeat.printing import encodable, printable
from redbeat.schedules.next_run import asks_itself
from redbeat.storage import checks, words
from redbeat.storage.rows import Change, Row
from redbeat.storage.store import Store, store_of

from .find import outside, page_of, pages_of
from .names import UsedNames, UsedQueues

if TYPE_CHECKING:
    from redbeat.management.schedule import Schedule

Used = tuple[UsedNames, UsedQueues]

#: Rounding error of a score, in seconds.
SCORE_TOLERANCE: Final = 0.002

#: Maximum time until a beat looks at a failed or waiting run again, in seconds.
MAX_WAIT: Final = 65.0


def forget(store: Store, members: Iterable[str]) -> None:
    """Take members without an entry out of the schedule.

    A member that has become an entry, or is another kind of key, stays. Two round trips per 500.
    """

    def forgotten(row: Row, _now: float) -> Change | None:
        return edits.deletion(row.key, row) if row.definition is None and not row.problem else None

    changes.change_all(store, members, forgotten, new=True)


#: The repairs by kind. An entry with a wrong score is made due: a beat then sets the right one.
REPAIRS: Final[dict[str, Callable[[Store, list[str]], Any]]] = {
    "missing": forget,
    "score": edits.make_due,
}


def examine(schedule: Schedule, fix: bool = False) -> Iterator[Finding]:
    """Yield the problems of a schedule; with ``fix``, repair those that are fixable.

    Raises :exc:`ConfigurationError` for invalid settings. Imports the app's task modules, and waits
    a second for the answers of workers. Takes one round trip for the calendars, one for the number
    of shards, and one each per 500 entries, per some thousand keys of the database, per 500
    repairs, per 500 entries that are not in the sorted set, and per busy minute.
    """
    conf, store = ensure_conf(schedule.app), store_of(schedule.app)
    for problem, remedy in conf.dubious_settings():
        yield finding("settings", problem, remedy=remedy)
    problem = checks.layout_problem(conf, store.client)
    if problem:
        yield finding("shards", problem)
    counts = count_entries(store, conf, words.FORGET_AFTER)
    problems = problems_of(counts, conf, server_of(store))
    # The entries themselves are checked below.
    yield from (found for found in problems if found.kind not in OF_ENTRIES)
    minutes: Counter[int] = Counter()
    calendars = store.calendars()
    used = UsedNames(schedule.app), UsedQueues(schedule.app)
    for page in pages_of(store):
        scores = (seconds_in(row.score) for row in page.rows)
        minutes.update(int(at // 60) for at in scores if at is not None and at > page.now)
        findings = [
            found
            for row in page.rows
            for found in _of_row(row, schedule, conf, calendars, page.now, used)
        ]
        if fix:
            for kind, repair in REPAIRS.items():
                repair(store, [finding.key for finding in findings if finding.kind == kind])
            findings = [replace(finding, fixed=finding.fixable) for finding in findings]
        yield from findings
    names, queues = used
    yield from (finding("task", encodable(warning)) for warning in names.warnings())
    if not {"redis", "broker"} & {found.kind for found in problems}:
        yield from queues.problems()
    yield from _busy(minutes, partial(_made_by_celery, schedule, store))
    yield from _outside(store, schedule)


# -- entries ---------------------------------------------------------------------------------------


def _of_row(
    row: Row,
    schedule: Schedule,
    conf: RedBeatConfig,
    calendars: Mapping[str, str],
    now: float,
    used: Used,
) -> Iterator[Finding]:
    key = encodable(row.key)
    if row.definition is None and "definition" in row.unreadable:
        problem = "is in the schedule, but has no definition"
        yield replace(finding("missing", problem, row.key), fixable=True)
        return
    if row.note and row.due is not None and row.due < 0:
        reason = status.quarantine_note(row.note)[0]
        yield finding("quarantined", f"is quarantined: {reason}", key)
        return
    overdue = status.overdue_of(row, row.key, now)
    if overdue is not None:
        yield finding("overdue", overdue_text(overdue), key)
    kept = status.shown_state(row, now)
    failures = list(_failures(row, kept, conf, now))
    try:
        entry = _entry_of(row, schedule)
        entry.use_calendars(decode_calendars(calendars, entry.effective_policy.exclude))
        entry.occurrence_plan()  # a missing calendar raises an error here
        problem = wrong_score(row, entry, now)
    except CannotRunHereError as error:
        yield finding("unreadable", f"cannot run with this code and settings: {error}", key, OTHER)
        yield from failures  # of processes that have the code
        return
    except Exception as error:
        # A custom schedule may raise anything.
        yield finding("unreadable", f"cannot be read: {error}", key)
        return
    for one in used if entry.enabled else ():
        one.note(entry)
    yield from (found for found in failures if entry.enabled or found.kind == "failed")
    if problem:
        yield replace(finding("score", problem, row.key), fixable=True)


def _failures(row: Row, kept: state.State, conf: RedBeatConfig, now: float) -> Iterator[Finding]:
    key, pause, failed = encodable(row.key), kept.pause, kept.results.failures
    failing = status.failing_of(row, kept, now)
    if failing is not None:
        since, first = failing.first_at.isoformat(" ", "seconds"), failing.first_error
        before = "" if first == failing.last_error else f"; the first error was {first}"
        yield finding("failing", printable(f"fails since {since}: {failing.reason}{before}"), key)
    if pause is not None and pause.by == "pause_after_failures":
        yield finding("failed", f"is paused: {pause.note}", key)
    elif failed >= conf.max_failures:
        yield finding("failed", f"fails: its last {failed} runs failed", key)


OTHER: Final = "start a beat that can run the entry, or correct or delete the entry"


def _entry_of(row: Row, schedule: Schedule) -> RedBeatSchedulerEntry:
    """Raise an error if this app cannot read or run the entry."""
    if row.unreadable or row.definition is None:
        raise DecodeError("definition", row.unreadable)
    entry: RedBeatSchedulerEntry = schedule._entry_of(row)
    entry.check_allowed()
    return entry


def wrong_score(row: Row, entry: RedBeatSchedulerEntry, now: float) -> str:
    """Return what is wrong with an entry's score, or "".

    A score that is too early is fine: a beat looks at the entry then, and sets the right one.
    RedBeat 2 writes such scores for crontabs, rules and disabled entries. Nothing can be said
    during a run (the beat sets a new score afterwards), with a schedule of a custom class, or after
    a last run in the future.
    """
    score = row.due
    if (
        score is None
        or 0 <= score <= now
        or _is_busy(row, now)
        or asks_itself(entry.schedule)
        or not entry.enabled
    ):
        return ""
    at = from_timestamp(now)
    if entry.ran_after(at):  # the clock of Redis was ahead; a beat decides what is due
        return ""
    decision = entry.decision_at(at)
    if decision.due:
        return "" if 0 <= score <= now + MAX_WAIT else f"is due now, but {_score_text(score)}"
    if decision.next_at is None:
        return "" if score < 0 else f"has finished, but {_score_text(score)}"
    if 0 <= score <= decision.next_at.timestamp() + SCORE_TOLERANCE:
        return ""
    return f"is due at {decision.next_at.isoformat()}, but {_score_text(score)}"


def _score_text(score: float) -> str:
    return f"parked with score {score:g}" if score < 0 else f"has the score {score:.3f}"


# -- entries that are due at the same time ---------------------------------------------------------

#: A minute is busy if at least ``BUSY`` entries are due in it, and ``BUSY_FACTOR`` times as many as
#: in the average minute of its hour.
BUSY: Final = 600
BUSY_FACTOR: Final = 5

#: Maximum number of busy minutes to report.
MAX_BUSY: Final = 3


def _busy(minutes: Counter[int], why_slow: Callable[[int], str]) -> Iterator[Finding]:
    """``minutes`` has the number of entries that are due next in each UNIX minute."""
    hours: Counter[int] = Counter()
    for minute, count in minutes.items():
        hours[minute // 60] += count
    for minute, count in minutes.most_common(MAX_BUSY):
        mean = hours[minute // 60] / 60
        if count < max(BUSY, BUSY_FACTOR * mean):
            return
        at = from_timestamp(minute * 60).isoformat(" ", "minutes")
        times = f"{count / mean:.0f} times the mean per minute of the hour"
        problem = f"{count} entries are due in the minute of {at}, {times}{why_slow(minute)}"
        effect = f"then about {mean:.0f} entries are due in each minute of the hour"
        remedy = f"set spread=3600 for these entries, or use H in their crontabs: {effect}"
        yield finding("busy", problem, remedy=remedy)


def _made_by_celery(schedule: Schedule, store: Store, minute: int) -> str:
    """Return why Celery makes the message of the first entry in a UNIX minute, or ""."""
    for row in page_of(store, (str(minute * 60), ""), limit=1).rows:
        # Another finding names an unreadable entry, whose class may raise any error.
        with suppress(Exception):
            entry = _entry_of(row, schedule)
            if why := schedule.why_not_rendered(entry):
                return f"; Celery makes the message of {encodable(str(entry.name))}: {why}"
    return ""


# -- entries that are not in the sorted set --------------------------------------------------------


def _outside(store: Store, schedule: Schedule) -> Iterator[Finding]:
    for keys in chain.from_iterable(map(outside, store.parts)):
        for row in store.read(keys).rows if keys else ():
            try:
                _entry_of(row, schedule)
            except Exception as error:  # a schedule class may raise any error
                problem = f"is stored, but not in the schedule, and cannot be read: {error}"
                yield finding("unreadable", problem, encodable(row.key))
                continue
            remedy = status.how_to_schedule(encodable(store.keys.name_of(row.key)))
            yield finding("orphan", "is stored, but not scheduled", encodable(row.key), remedy)


# -- the way back to RedBeat 2 ---------------------------------------------------------------------

#: The schedules that RedBeat 2 knows, with the fields it needs.
SCHEDULES: Final = {"interval": {"every", "relative"}, "crontab": set[str](), "rrule": {"freq"}}

#: The fields that RedBeat 2 accepts in a definition; Celery's entry takes the last two.
ACCEPTED: Final = {*definition.FIELDS, "last_run_at", "total_run_count"}

#: The policy fields that change no run.
NOTES: Final = {"description", "managed_by"}

ACCEPT: Final = "change the entry, or accept that it runs without"


def lost_on_the_way_back(schedule: Schedule) -> Iterator[Finding]:
    """Yield what RedBeat 2 cannot read or ignores. Takes one round trip per 500 entries."""
    for row in chain.from_iterable(page.rows for page in pages_of(store_of(schedule.app))):
        key = encodable(row.key)
        problem = _why_unreadable(record_in(row.definition or ""))
        if problem:
            yield finding("version_2", f"cannot be read by RedBeat 2: {problem}", key)
        ignored = ", ".join(sorted(record_in(row.policy or "").keys() - NOTES))
        if ignored:
            yield finding("version_2", f"loses {encodable(ignored)} with RedBeat 2", key, ACCEPT)


def _why_unreadable(definition: Mapping[str, Any]) -> str:
    rule: Any = definition.get("schedule")
    tag = rule.get(TAG) if isinstance(rule, dict) else None
    unknown = [name for name in definition if name not in ACCEPTED]
    if not {"name", "task", "schedule"} <= definition.keys():
        return "its definition is not complete"
    if not isinstance(tag, str) or tag not in SCHEDULES:
        return f"it does not know the schedule type {tag!r:.60}"
    if not SCHEDULES[tag] <= rule.keys():
        return f"its schedule needs {' and '.join(sorted(SCHEDULES[tag]))}"
    if unknown:
        return f"it does not know the field {unknown[0]!r:.60} of a definition"
    return ""


def _is_busy(row: Row, now: float) -> bool:
    """Whether a run is going on, waits or fails; ``now`` is in UNIX seconds."""
    kept = status.shown_state(row, now)
    waits = bool(kept.triggers) or not all(one.finished for one in kept.backfills)
    return waits or bool(kept.running or kept.failing or kept.hold)
