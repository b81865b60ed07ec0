"""Finds overdue entries: entries without a successful run within their ``expect_within`` seconds.

An entry can be overdue even if no run was ever sent. The sorted set ``expected`` contains the
entries that may become overdue. The score of an entry in ``expected`` is a time before which the
entry cannot be overdue. The hash of an entry shows whether the entry is overdue.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from redbeat.codec.stored import record_in
from redbeat.decoder import decode
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.printing import encodable
from redbeat.storage.reading import BATCH, Reading
from redbeat.storage.wire import Counts, Row

from .policy import Policy
from .runs import Results


class Overdue(NamedTuple):
    """An entry without a successful run within its ``expect_within`` seconds.

    Attributes:
        name: the name of the entry.
        last_success: when the last successful run ended (UTC), None if no success is known.
        seconds: the seconds since the latest of these times: the last success, the first save of
            ``expect_within``, the last resume, and ``start_time``.
        expect_within: the policy field ``expect_within`` of the entry, in seconds.
    """

    name: str
    last_success: datetime | None
    seconds: float
    expect_within: float


def overdue_of(row: Row, name: str, now: float) -> Overdue | None:
    """Return how overdue the entry in ``row`` is, None if the entry is not overdue.

    ``name`` is the exact name of the entry, ``now`` is in UNIX seconds. Paused, finished and
    unreadable entries are never overdue.
    """
    texts = f"{row.policy}{row.definition or ''}"
    if row.problem or row.score is None or row.score < 0 or '"expect_within"' not in texts:
        return None
    fields = _fields_of(row)
    try:
        policy = Policy.of({name: fields.get(name) for name in ("expect_within", "start_time")})
    except InvalidEntryError:  # a beat quarantines an entry with an invalid policy
        return None
    if policy.expect_within is None or not fields.get("enabled", True):
        return None
    results = Results.read(row.results)
    known = (results.last_success, results.since, policy.start_time)
    seconds = now - max((at.timestamp() for at in known if at is not None), default=0.0)
    if seconds <= policy.expect_within:
        return None
    return Overdue(encodable(name), results.last_success, seconds, policy.expect_within)


def _fields_of(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = dict(record_in(row.definition or ""))
    with suppress(DecodeError, ValueError, TypeError):
        fields.update(decode(row.policy or "{}", "policy"))
    return fields


def overdue_entries(store: Reading, counts: Counts) -> list[Overdue]:
    """Return all overdue entries; the entry with the longest time without a success comes first.

    ``counts`` is the reply of :meth:`Reading.counts`. Takes no round trip if no entry has
    ``expect_within``, or if all entries with ``expect_within`` had a success in time. Takes one
    round trip if fewer than 500 entries must be checked, else two round trips per 500 entries.
    """
    found: list[Overdue] = []
    keys, offset = list(counts.expected), 0
    while keys:
        rows = store.read(keys).rows
        items = (overdue_of(row, store.keys.name_of(row.key), counts.now) for row in rows)
        found += [item for item in items if item is not None]
        offset += BATCH
        keys = store.expected_after(counts.now, offset) if len(keys) == BATCH else []
    return sorted(found, key=lambda item: -item.seconds)
