"""How many entries of each kind a schedule has, and the stats of its beats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redbeat.codec.stored import number_in, score_in, seconds_in, text_of, valid_text, whole_in
from redbeat.entries.state import State
from redbeat.storage.reading import (
    LAST_TICK,
    REPORTS_SINCE,
    SCAN_COUNT,
    Presence,
    Reading,
    pairs_of,
)
from redbeat.storage.rows import Row
from redbeat.storage.words import NOT_A_LOCK

#: The most failing entries, and the most entries whose last runs failed, that are read.
MOST_FAILING: Final = 1000
MOST_FAILED: Final = 20


class Counts(NamedTuple):
    """The number of entries of each kind, and the active beats.

    Times are UNIX seconds of Redis's clock. A run that couldn't be sent is due since its nominal
    instant; the score of its entry is the time of the next attempt. A lock key that contains
    something else has no holder.
    """

    now: float
    members: int
    statics: int
    quarantined: int
    disabled: int
    parked: int
    due: int
    first_due: float | None
    holder: str
    beats: list[Presence]
    problem: str = ""
    failing: int = 0
    #: The key of the entry that has been due for longest, "" for none.
    first_key: str = ""
    #: How many entries have too many failed runs in a row. The keys of the worst ones, each with
    #: the number of its failed runs.
    failed: int = 0
    most_failed: Sequence[tuple[str, int]] = ()
    #: The keys of the entries that may be overdue.
    expected: Sequence[str] = ()
    #: When the leader last completed a tick, None if unknown.
    last_tick: float | None = None
    #: Since when the leader leads, None if unknown.
    leads_since: float | None = None
    #: How many seconds the clock of a beat's host is ahead, 0 for a normal difference.
    host_ahead: float = 0.0
    #: When a worker last reported the end of a run, and how many messages were sent since then.
    last_report: float | None = None
    unreported: int = 0
    #: For each of several shards, the token of the lock holder and the number of entries.
    holders: Sequence[str] = ()
    sizes: Sequence[int] = ()
    #: The numbers of the shards whose lock key does not contain a lock.
    not_locks: Sequence[int] = ()


def counts_of(
    store: Reading, lock_key: str | None, disabled: float, within: float, max_failures: int = 3
) -> Counts:
    """The number of entries of each kind, and the active beats. One round trip per shard.

    A beat is active if it was seen in the last ``within`` seconds; with shards, the beats come from
    the first one, on which every beat works. ``disabled`` is the score of disabled entries. An
    entry counts as failed after ``max_failures`` failed runs in a row. A side key of a wrong type
    is the ``problem`` if there is no other.
    """
    args = (disabled, within, MOST_FAILING, max_failures, MOST_FAILED)
    key_of = store.keys.layout.lock_key
    each = [
        _counts_of_part(part, args, number, lock_key and key_of(number, lock_key))
        for number, part in enumerate(store.parts)
    ]
    if len(each) == 1:
        return each[0]
    total = Counts._make(
        sum(column) if isinstance(column[0], int) else column[0]
        for column in zip(*each, strict=True)
    )
    firsts = [one for one in each if one.first_due is not None] or [total]
    first = min(firsts, key=lambda counts: counts.first_due or 0.0)
    return total._replace(
        first_due=first.first_due,
        first_key=first.first_key,
        problem=next((counts.problem for counts in each if counts.problem), ""),
        host_ahead=max((counts.host_ahead for counts in each), key=abs),
        last_report=max(filter(None, (one.last_report for one in each)), default=None),
        holders=[counts.holder for counts in each],
        sizes=[counts.members for counts in each],
        not_locks=[number for counts in each for number in counts.not_locks],
        most_failed=[pair for counts in each for pair in counts.most_failed],
        expected=[key for counts in each for key in counts.expected],
    )


def _counts_of_part(
    part: Reading, args: Sequence[float], number: int, lock_key: str | None
) -> Counts:
    text, rows = part.run_script("count", args, *([lock_key] if lock_key else ()))
    head: dict[str, Any] = json.loads(text_of(text))
    now, beats = float(head["now"]), [valid_text(word) for word in head["beats"]]
    names = ("members", "statics", "quarantined", "disabled", "parked")
    holder, (since, _, token) = valid_text(head["holder"]), head["leader"].partition(" ")
    is_lock = holder != NOT_A_LOCK
    failed = pairs_of([*head["most_failed"]])  # cjson writes an empty list as {}
    reported, _, sent = head["last_report"].partition(" ")
    failing = list(_failing(Row.read_all(rows)))
    firsts = [(due, key) for due, key, _ in failing]
    if head["first_due"]:
        firsts.append((score_in(head["first_due"]), text_of(head["first_key"])))
    first_due, first_key = min(firsts, default=(None, ""))
    return Counts(
        now=now,
        **{name: head[name] for name in names},
        due=head["due"] + sum(score > now for *_, score in failing),
        first_due=first_due,
        first_key=first_key,
        holder=holder if is_lock else "",
        not_locks=() if is_lock else (number,),
        beats=[Presence.read(beat, score_in(seen)) for beat, seen in pairs_of(beats)],
        problem=valid_text(head["problem"]) or part.note_side_error(head.get("side_error", "")),
        failing=max(head["failing"] - MOST_FAILING, 0) + len(failing),
        failed=head["failed"],
        most_failed=[(text_of(key), int(score_in(runs))) for key, runs in failed],
        expected=head["expected"],
        last_tick=seconds_in(head["last_tick"]),
        leads_since=seconds_in(since) if valid_text(token) == holder else None,
        host_ahead=number_in(head["host_ahead"]) or 0.0,
        last_report=seconds_in(reported),
        unreported=(whole_in(head["dispatched"]) or 0) - (whole_in(sent) or 0),
    )


def _failing(rows: Iterable[Row]) -> Iterator[tuple[float, str, float]]:
    """Yield since when each run that couldn't be sent is due, its entry's key, and its score."""
    for row in rows:
        failing = State.read(row.state, row.meta).failing
        if failing is not None and row.due is not None and row.due >= 0:
            yield failing.due, row.key, row.due


def total_stats(parts: Iterable[Reading]) -> dict[str, str]:
    """The stats of a schedule, with the counters of all ``parts`` added up.

    One round trip per about 2000 fields of a part.
    """
    stats: dict[str, str] = {}
    for part in parts:
        portions = part.portions("stats", "HSCAN", SCAN_COUNT)
        fields = dict(pair for items in portions for pair in pairs_of(items))
        for field, value in fields.items():
            name, text = valid_text(field), valid_text(value)
            stats[name] = _total(name, stats[name], text) if name in stats else text
    return stats


def _total(name: str, one: str, other: str) -> str:
    if name in (LAST_TICK, REPORTS_SINCE):
        choose = max if name == LAST_TICK else min
        return choose(one, other, key=lambda text: seconds_in(text) or 0.0)
    first, second = whole_in(one), whole_in(other)
    return one if first is None or second is None else str(first + second)
