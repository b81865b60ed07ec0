"""The checks and repairs of ``celery redbeat doctor``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import ResponseError

from redbeat.calendar.zones import from_timestamp
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.entries.decide import DISABLED, Run
from redbeat.entries.status import claimed_until, ends_at, quarantine_note
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, DecodeError
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.checks import misspelt_keys
from redbeat.storage.quarantine import START, printable
from redbeat.storage.reading import BATCH, batches
from redbeat.storage.records import Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Page, Row

__all__ = ("KINDS", "Finding", "examine")

#: The kinds of findings.
KINDS: Final = (
    "settings",
    "delivery",
    "cluster",
    "misspelt",
    "eviction",
    "missing",
    "unreadable",
    "quarantined",
    "score",
    "orphan",
)

#: Maximum rounding error between the stored and the computed score, in seconds.
SCORE_TOLERANCE: Final = 0.002

#: Maximum seconds until a beat checks a failed or waiting run again.
MAX_WAIT: Final = 65.0

#: Matches a key prefix that contains a hash tag.
TAGGED: Final = re.compile(r"[^{]*\{[^}]+\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a schedule.

    Attributes:
        kind: one of :data:`KINDS`.
        key: the Redis key of the entry, "" for a problem of the whole schedule.
        problem: what is wrong.
        remedy: what ``--fix`` does if ``fixable`` is true, otherwise what you can do.
        fixable: whether ``--fix`` repairs the problem.
        fixed: whether ``--fix`` has repaired the problem.
    """

    kind: str
    key: str
    problem: str
    remedy: str
    fixable: bool = False
    fixed: bool = False


#: A function that repairs the entries with the given keys.
Repair = Callable[[Store, Sequence[str]], Any]


def _remove_members(store: Store, keys: Sequence[str]) -> None:
    store.forget(keys)


def _make_due(store: Store, keys: Sequence[str]) -> None:
    """Make entries due, so that a beat checks each entry and sets the correct score."""
    store.save_all([Writing(key, seen=None, score=None) for key in keys])


def _restore_members(store: Store, keys: Sequence[str]) -> None:
    store.sweep("", DISABLED, 0, 0, keys)


REPAIRS: Final[dict[str, Repair]] = {
    "missing": _remove_members,
    "score": _make_due,
    "orphan": _restore_members,
}


def examine(
    app: Any, store: Store, entry_class: type[RedBeatSchedulerEntry], fix: bool = False
) -> Iterator[Finding]:
    """Yield the problems of an app's schedule; if ``fix`` is true, repair the fixable problems.

    Raises :exc:`ConfigurationError` for invalid settings. Takes one round trip per 500 entries, one
    per 1000 keys of the database, one per 500 repairs, and one per 500 entries that are missing
    from the sorted set.
    """
    conf = ensure_conf(app)
    yield from _of_settings(conf)
    yield from _of_server(store, conf)
    for page in _pages(store):
        findings = [
            finding for row in page.rows for finding in _of_row(row, app, entry_class, page.now)
        ]
        yield from _repaired(store, findings, fix)
    yield from _orphans(app, store, entry_class, fix)


def _repaired(store: Store, findings: Sequence[Finding], fix: bool) -> Iterator[Finding]:
    """Yield all findings; if ``fix`` is true, first repair the problems that are fixable."""
    if not fix:
        yield from findings
        return
    for kind, repair in REPAIRS.items():
        keys = [finding.key for finding in findings if finding.kind == kind and finding.fixable]
        for batch in batches(keys, BATCH):
            repair(store, batch)
    for finding in findings:
        yield replace(finding, fixed=finding.fixable)


# -- settings and server ---------------------------------------------------------------------------


def _of_settings(conf: RedBeatConfig) -> Iterator[Finding]:
    for problem, remedy in conf.dubious_settings():
        yield Finding("settings", "", problem, remedy)
    prefix = conf.key_prefix
    if conf.cluster and not TAGGED.match(prefix):
        stem = prefix.rstrip(":")
        tagged = f"{{{stem}}}{prefix[len(stem) :]}"
        problem = f"redbeat_key_prefix {prefix!r} has no hash tag, so its keys do not share a slot"
        remedy = (
            f"run celery redbeat migrate-prefix {prefix!r} {tagged!r}, then set "
            f"redbeat_key_prefix to {tagged!r}"
        )
        yield Finding("cluster", "", problem, remedy)


def _of_server(store: Store, conf: RedBeatConfig) -> Iterator[Finding]:
    for problem, remedy in misspelt_keys(store):
        yield Finding("misspelt", "", problem, f"{remedy}, with two colons")
    problem = store.problem()
    if problem:
        remedy = "use one Redis for broker and schedule, or set redbeat_delivery to at_least_once"
        yield Finding("delivery", "", printable(problem), remedy)
    if conf.key_expiry_check == "ignore":
        return
    try:
        limit, policy = store.eviction()
    except ResponseError:  # managed servers may refuse CONFIG GET
        return
    if limit and policy.startswith("allkeys-"):
        problem = f"Redis may evict entries: maxmemory is {limit} with the policy {policy}"
        remedy = "set maxmemory-policy to noeviction or to a volatile-* policy"
        yield Finding("eviction", "", problem, remedy)


# -- entries ---------------------------------------------------------------------------------------


def _pages(store: Store) -> Iterator[Page]:
    page = store.page()
    yield page
    while page.after is not None:
        page = store.page(page.after)
        yield page


def _of_row(
    row: Row, app: Any, entry_class: type[RedBeatSchedulerEntry], now: float
) -> Iterator[Finding]:
    key = printable(row.key)
    if row.definition is None and "definition" in row.problem:
        problem = "is in the schedule, but there is no definition of it"
        yield Finding("missing", row.key, problem, "take it out of the schedule", fixable=True)
        return
    if row.note and row.score is not None and row.score < 0:
        reason = quarantine_note(row.note)[0]
        yield Finding("quarantined", key, f"is quarantined: {reason}", CORRECT)
        return
    try:
        problem = wrong_score(row, _entry_of(row, app, entry_class), now)
    except CannotRunHereError as error:
        yield Finding("unreadable", key, f"cannot run with this code and settings: {error}", OTHER)
        return
    except Exception as error:
        # The error is a DecodeError, or any error that a schedule class raised.
        yield Finding("unreadable", key, f"cannot be read: {error}", CORRECT)
        return
    if problem:
        remedy = "have a beat look at it at once, which sets the score"
        yield Finding("score", row.key, problem, remedy, fixable=True)


CORRECT: Final = "correct or delete it; a corrected entry runs again without a restart"
OTHER: Final = "start a beat that can run it, or correct or delete it"


def _entry_of(
    row: Row, app: Any, entry_class: type[RedBeatSchedulerEntry]
) -> RedBeatSchedulerEntry:
    """Return the entry in a row; raise an error if this app cannot read or run the entry."""
    if row.problem or row.definition is None:
        raise DecodeError("definition", row.problem)
    entry = entry_class.from_texts(app, row.definition, row.meta, row.policy, row.runtime)
    if entry.key != row.key:
        raise DecodeError("definition.name", f"is {entry.name!r:.60}, which does not match its key")
    entry.check_allowed()
    return entry


def wrong_score(row: Row, entry: RedBeatSchedulerEntry, now: float) -> str:
    """Return a description of what is wrong with an entry's score, or "" for a correct score.

    The score counts as correct in three special cases. If the score is in the past, a beat will
    check the entry and set a new score. If a run of the entry is in progress, a beat will set a new
    score after the run. If the schedule is a custom class, any score may be correct.
    """
    score = row.score
    if score is None or 0 <= score <= now or _is_busy(row, now) or asks_itself(entry.schedule):
        return ""
    if not entry.enabled:
        return "" if score < 0 else "is disabled, but has a score for a next run"
    at = from_timestamp(now)
    entry.run = Run(at, at, at)
    decision = entry.decision()
    if decision.due:
        return "" if 0 <= score <= now + MAX_WAIT else f"is due now, but {_score_text(score)}"
    if decision.next_at is None:
        return "" if score < 0 else f"has finished, but {_score_text(score)}"
    if abs(score - decision.next_at.timestamp()) <= SCORE_TOLERANCE:
        return ""
    return f"is due at {decision.next_at.isoformat()}, but {_score_text(score)}"


def _is_busy(row: Row, now: float) -> bool:
    return bool(row.trigger) or claimed_until(row.claim) > now or ends_at(row.running) > now


def _score_text(score: float) -> str:
    if score < 0:
        return f"parked with score {score:g}"
    return f"has the score {score:.3f}"


# -- keys without a member -------------------------------------------------------------------------


def _orphans(
    app: Any, store: Store, entry_class: type[RedBeatSchedulerEntry], fix: bool
) -> Iterator[Finding]:
    """Yield a finding for each entry that is stored as a hash but missing in the sorted set."""
    cursor = START
    while True:
        swept = store.sweep(cursor, DISABLED, 0, 0, ())
        for keys in batches(swept.orphans + swept.bad, BATCH):
            findings = [_of_orphan(row, app, entry_class) for row in store.read(keys).rows]
            yield from _repaired(store, findings, fix)
        cursor = swept.cursor
        if cursor in (START, ""):
            return


def _of_orphan(row: Row, app: Any, entry_class: type[RedBeatSchedulerEntry]) -> Finding:
    problem = "is stored, but not in the schedule"
    try:
        _entry_of(row, app, entry_class)
    except Exception as error:  # the same kinds of errors as in _of_row()
        problem = f"{problem}, and cannot be read: {error}"
        return Finding("unreadable", printable(row.key), problem, CORRECT)
    return Finding("orphan", row.key, problem, "take it back, due at once", fixable=True)
