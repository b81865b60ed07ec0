"""What may be wrong with a schedule in Redis, and how it is put right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import ResponseError

from redbeat.beat.maintenance import START
from redbeat.calendar.zones import from_timestamp
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.entries.decide import DISABLED, Run
from redbeat.entries.status import claimed_until, ends_at, quarantine_note
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, DecodeError
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.checks import misspelt_keys
from redbeat.storage.quarantine import printable
from redbeat.storage.reading import BATCH, batches
from redbeat.storage.records import Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Page, Row

__all__ = ("KINDS", "Finding", "examine")

#: What a finding can be about.
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

#: Seconds by which a score may differ from the one that the definition gives.
TOLERANCE: Final = 0.002

#: Seconds after which a run that failed, or waits for something, is looked at again at the latest.
LONGEST_WAIT: Final = 65.0

TAGGED: Final = re.compile(r"[^{]*\{[^}]+\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    ``remedy`` is what ``--fix`` does where it is ``fixable``, else what a person can do. ``key`` is
    the Redis key of an entry, ``""`` where it is about the schedule as a whole.
    """

    kind: str
    key: str
    problem: str
    remedy: str
    fixable: bool = False
    fixed: bool = False


#: How to make the entries with these keys right.
Repair = Callable[[Store, Sequence[str]], Any]


def _forget(store: Store, keys: Sequence[str]) -> None:
    store.forget(keys)


def _look_again(store: Store, keys: Sequence[str]) -> None:
    """Have a beat look at entries now: it gives them the right score, by what they say then."""
    store.save_all([Writing(key, seen=None, score=None) for key in keys])


def _take_back(store: Store, keys: Sequence[str]) -> None:
    store.sweep("", DISABLED, 0, 0, keys)


REPAIRS: Final[dict[str, Repair]] = {
    "missing": _forget,
    "score": _look_again,
    "orphan": _take_back,
}


def examine(
    app: Any, store: Store, make: type[RedBeatSchedulerEntry], fix: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with the schedule of an app, a page at a time; ``fix`` puts it right.

    Raises :exc:`ConfigurationError` for settings that are impossible. One round trip per 500
    entries, one per 1000 keys of the database, and one per 500 repairs and keys without a member.
    """
    conf = ensure_conf(app)
    yield from _of_settings(conf)
    yield from _of_server(store, conf)
    for page in _pages(store):
        found = [finding for row in page.rows for finding in _of_row(row, app, make, page.now)]
        yield from _repaired(store, found, fix)
    yield from _orphans(app, store, make, fix)


def _repaired(store: Store, found: Sequence[Finding], fix: bool) -> Iterator[Finding]:
    if not fix:
        yield from found
        return
    for kind, repair in REPAIRS.items():
        keys = [finding.key for finding in found if finding.kind == kind and finding.fixable]
        for batch in batches(keys, BATCH):
            repair(store, batch)
    for finding in found:
        yield replace(finding, fixed=finding.fixable)


# -- settings and server ---------------------------------------------------------------------------


def _of_settings(conf: RedBeatConfig) -> Iterator[Finding]:
    for problem, remedy in conf.dubious_settings():
        yield Finding("settings", "", problem, remedy)
    prefix = conf.key_prefix
    if conf.cluster and not TAGGED.match(prefix):
        stem = prefix.rstrip(":")
        tagged = f"{{{stem}}}{prefix[len(stem) :]}"
        problem = f"redbeat_key_prefix {prefix!r} has no hash tag: its keys do not share a slot"
        remedy = f"celery redbeat migrate-prefix {prefix!r} {tagged!r}, then set it to that"
        yield Finding("cluster", "", problem, remedy)


def _of_server(store: Store, conf: RedBeatConfig) -> Iterator[Finding]:
    for problem, remedy in misspelt_keys(store):
        yield Finding("misspelt", "", problem, f"{remedy}, with two colons")
    problem = store.problem()
    if problem:
        remedy = "bring them together again, or set redbeat_delivery to at_least_once"
        yield Finding("delivery", "", printable(problem), remedy)
    if conf.key_expiry_check == "ignore":
        return
    try:
        limit, policy = store.eviction()
    except ResponseError:  # a managed server may refuse to tell
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


def _of_row(row: Row, app: Any, make: type[RedBeatSchedulerEntry], now: float) -> Iterator[Finding]:
    key = printable(row.key)
    if row.definition is None and "definition" in row.problem:
        problem = "is in the schedule, but there is no definition of it"
        yield Finding("missing", row.key, problem, "take it out of the schedule", fixable=True)
        return
    if row.note and row.score is not None and row.score < 0:
        reason = quarantine_note(row.note)[0]
        yield Finding("quarantined", key, f"is set aside: {reason}", CORRECT)
        return
    try:
        problem = wrong_score(row, _entry_of(row, app, make), now)
    except CannotRunHereError as error:
        yield Finding("unreadable", key, f"cannot run with this code and settings: {error}", OTHER)
        return
    except Exception as error:
        # DecodeError, and whatever a schedule may raise that cannot tell when it is due.
        yield Finding("unreadable", key, f"cannot be read: {error}", CORRECT)
        return
    if problem:
        remedy = "have a beat look at it at once, which sets the score"
        yield Finding("score", row.key, problem, remedy, fixable=True)


CORRECT: Final = "correct it, and it is taken up by itself; or delete it"
OTHER: Final = "start a beat that can run it; or correct or delete it"


def _entry_of(row: Row, app: Any, make: type[RedBeatSchedulerEntry]) -> RedBeatSchedulerEntry:
    if row.problem or row.definition is None:
        raise DecodeError("definition", row.problem)
    entry = make.from_texts(app, row.definition, row.meta, row.policy, row.runtime)
    if entry.key != row.key:
        raise DecodeError("definition.name", f"is {entry.name!r:.60}, which is not its key")
    entry.check_allowed()
    return entry


def wrong_score(row: Row, entry: RedBeatSchedulerEntry, now: float) -> str:
    """Return what is wrong with the score of an entry, "" for nothing.

    A score that has passed is right whatever it is: a beat looks at the entry, and knows. So is one
    while a beat works on the entry, or where a schedule of the user's own has given it.
    """
    score = row.score
    if score is None or 0 <= score <= now or _is_busy(row, now) or asks_itself(entry.schedule):
        return ""
    if not entry.enabled:
        return "" if score < 0 else "is disabled, but to be looked at later"
    at = from_timestamp(now)
    entry.run = Run(at, at, at)
    decision = entry.decision()
    if decision.due:
        return "" if 0 <= score <= now + LONGEST_WAIT else f"is due now, but {_put(score)}"
    if decision.next_at is None:
        return "" if score < 0 else f"has finished, but {_put(score)}"
    wanted = decision.next_at.timestamp()
    if abs(score - wanted) <= TOLERANCE:
        return ""
    return f"is due at {decision.next_at.isoformat()}, but {_put(score)}"


def _is_busy(row: Row, now: float) -> bool:
    return bool(row.trigger) or claimed_until(row.claim) > now or ends_at(row.running) > now


def _put(score: float) -> str:
    if score < 0:
        return f"parked with score {score:g}"
    return f"has the score {score:.3f}"


# -- keys without a member -------------------------------------------------------------------------


def _orphans(
    app: Any, store: Store, make: type[RedBeatSchedulerEntry], fix: bool
) -> Iterator[Finding]:
    """Yield hashes that hold an entry and are in no schedule."""
    cursor = START
    while True:
        swept = store.sweep(cursor, DISABLED, 0, 0, ())
        for keys in batches(swept.orphans + swept.bad, BATCH):
            found = [_of_orphan(row, app, make) for row in store.read(keys).rows]
            yield from _repaired(store, found, fix)
        cursor = swept.cursor
        if cursor in (START, ""):
            return


def _of_orphan(row: Row, app: Any, make: type[RedBeatSchedulerEntry]) -> Finding:
    problem = "is stored, but not in the schedule"
    try:
        _entry_of(row, app, make)
    except Exception as error:  # as in _of_row
        problem = f"{problem}, and cannot be read: {error}"
        return Finding("unreadable", printable(row.key), problem, CORRECT)
    return Finding("orphan", row.key, problem, "take it back, due at once", fixable=True)
