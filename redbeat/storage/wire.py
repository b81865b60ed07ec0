"""Encode the arguments of the Lua scripts, and decode the replies."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from redbeat.codec.stored import (
    bytes_of,
    is_valid_text,
    score_in,
    seconds_in,
    text_in,
    text_of,
    valid_text,
)

#: Maximum number of characters of a stored identity. RedBeat writes 10.
LONGEST_IDENTITY = 200


def pack(texts: Sequence[str]) -> tuple[bytes, str | bytes]:
    """Return the sizes of the strings ``texts`` in bytes, and the joined strings.

    Each size is a big-endian integer of four bytes. The strings are encoded in UTF-8. A surrogate
    character that :func:`unpack` made from a byte becomes the original byte again.
    """
    joined: str | bytes = "".join(texts)
    sizes: Iterable[int] = map(len, texts)
    if not joined.isascii():
        encoded = [bytes_of(text) for text in texts]
        sizes, joined = map(len, encoded), b"".join(encoded)
    return struct.pack(f">{len(texts)}I", *sizes), joined


def unpack(sizes: bytes, packed: bytes) -> list[str]:
    """Return the strings that :func:`pack` joined; bytes that are not UTF-8 become surrogates."""
    ends = list(accumulate(struct.unpack(f">{len(sizes) // 4}I", sizes)))
    pieces = zip(chain((0,), ends), ends)  # noqa: B905 - the two sequences differ in length by one
    if packed.isascii():
        text = text_of(packed)
        return [text[begin:end] for begin, end in pieces]
    return [text_of(packed[begin:end]) for begin, end in pieces]


def pairs_of(reply: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (field, value) or (member, score) pairs of a reply.

    In RESP3, a reply is a dict or a list of pairs; in RESP2, a reply is a flat list.
    """
    if isinstance(reply, dict):
        return reply.items()
    if not reply or isinstance(reply[0], (list, tuple)):
        pairs: Iterable[tuple[Any, Any]] = reply
        return pairs
    return zip(reply[::2], reply[1::2], strict=True)


def identity_in(stored: str) -> str:
    """Return the identity of an entry, or "" if ``stored`` is not a valid identity."""
    return text_in(stored, LONGEST_IDENTITY)


#: The suffix that ``claim.lua`` appends to the token of a beat that uses the lock.
LOCKED = " lock"

#: The score and the key of the entry after which a page begins, as strings.
Cursor = tuple[str, str]


#: The first words of :attr:`Row.problem` if the key of the entry is not a hash.
NO_HASH = "the key is not a hash"


class Row(NamedTuple):
    """The stored fields of one entry.

    ``score`` is None if the entry is not in the sorted set of the schedule. ``definition`` is None
    if the entry has no definition. ``problem`` is the reason why the entry cannot be read. ``note``
    is the JSON note of a quarantined entry. ``history`` is "" if the caller did not request the
    history. ``failing`` is JSON with the reason why the run of the entry could not be sent; see
    ``still_fails.lua``. ``results`` is the first line of the stored results, see
    ``lua/parts/results.lua``.
    """

    key: str
    score: float | None
    definition: str | None = None
    meta: str = ""
    policy: str = ""
    runtime: str = ""
    claim: str = ""
    running: str = ""
    trigger: str = ""
    identity: str = ""
    note: str = ""
    static: bool = False
    problem: str = ""
    history: str = ""
    failing: str = ""
    results: str = ""

    @property
    def is_hash(self) -> bool:
        """Whether the key of the entry is a hash, so that the stored fields can be read."""
        return not self.problem.startswith(NO_HASH)


class Page(NamedTuple):
    """A page of entries in due order; entries that are never due come last.

    ``now`` is the time of Redis in UNIX seconds. ``after`` is the cursor of the next page, or
    None if the page is the last page.
    """

    now: float
    rows: list[Row]
    after: Cursor | None


class Presence(NamedTuple):
    """An active beat. ``seen`` is the time when the beat was last seen, in UNIX seconds.

    ``locked`` is true if the beat uses the lock. A beat that uses the lock is the leader or a
    standby. Beats that do not use the lock share the work.
    """

    token: str
    seen: float
    locked: bool

    @classmethod
    def read(cls, member: str, seen: float) -> Presence:
        """Return the beat for a member of the sorted set of beats and the score of the member."""
        return cls(member.removesuffix(LOCKED), seen, member.endswith(LOCKED))

    @property
    def member(self) -> str:
        """The member for this beat in the sorted set of beats."""
        return self.token + LOCKED if self.locked else self.token


class Counts(NamedTuple):
    """The number of entries of each kind, and the active beats.

    Times are UNIX seconds of the Redis clock. ``due`` and ``first_due`` include the ``failing``
    entries. A run that could not be sent counts as due since its nominal instant, although its
    score is the time of the next attempt.
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
    #: The keys of at most 500 entries that may be overdue.
    expected: Sequence[str] = ()
    #: When the leader last completed a tick, None if unknown.
    last_tick: float | None = None
    #: For each of several shards, the token of the lock holder and the number of entries.
    holders: Sequence[str] = ()
    sizes: Sequence[int] = ()
    #: The numbers of the shards whose lock key does not contain a lock.
    not_locks: Sequence[int] = ()


def read_page(reply: Sequence[Any]) -> Page:
    """Return the parsed reply of ``page.lua``."""
    now, score, member, kinds, sizes, packed = reply
    fields = iter(unpack(sizes, packed))
    groups = zip(text_of(kinds), *[fields] * 15, strict=True)
    after = (text_of(score), text_of(member)) if score else None
    return Page(score_in(now), [_row(*group) for group in groups], after)


def _row(kind: str, key: str, score: str, definition: str, *texts: str) -> Row:
    meta, policy, runtime, claim, running, trigger, identity, note, static, *rest = texts
    history, failing, results = rest
    place = key, score_in(score) if score else None
    flags = note, bool(static)
    if kind == "x":
        return Row(*place, note=note, static=bool(static), problem=f"{NO_HASH} ({definition})")
    # Use only the first string of the claim, because the rest of the claim may contain the whole
    # definition, policy and meta.
    claim = claim.removeprefix('["').partition('"')[0]
    running, trigger, identity = text_in(running), text_in(trigger), identity_in(identity)
    fields = meta, policy, runtime, claim, running, trigger, identity
    if kind == "g":
        return Row(*place, None, *fields, *flags, "the definition is missing")
    text = f"{definition}{meta}{policy}"
    problem = "" if is_valid_text(text) else "the stored text is not UTF-8"
    return Row(*place, definition, *fields, *flags, problem, text_in(history), failing, results)


def read_counts(reply: Sequence[Any]) -> Counts:
    """Return the parsed reply of ``count.lua``."""
    now, members, statics, quarantined, disabled, parked, due, first_due, *rest = reply
    holder, beats, problem, failing, expected, last_tick = rest
    first = score_in(first_due) if first_due else None
    numbers = (members, statics, quarantined, disabled, parked, due)
    pairs = zip(beats[::2], beats[1::2], strict=True)
    present = [Presence.read(valid_text(beat), score_in(seen)) for beat, seen in pairs]
    state = (valid_text(holder), present, valid_text(problem), failing)
    keys = [text_of(key) for key in expected]
    return Counts(score_in(now), *numbers, first, *state, keys, seconds_in(text_of(last_tick)))
