"""What the store takes and gives: keys, claims, completions, as text and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = (
    "GONE",
    "HISTORY_CHANGED",
    "HISTORY_DIFFERS",
    "LEADER",
    "NEW_LEADER",
    "NOT_A_HASH",
    "RECORDED",
    "REFUSED",
    "SAVED",
    "STANDBY",
    "Claim",
    "Completion",
    "Keys",
    "Result",
    "StaticRow",
    "Turn",
    "key_of",
    "read_claim",
    "read_turn",
    "text_of",
)

#: Standings, as ``claim.lua`` returns them.
STANDBY, LEADER, NEW_LEADER = 0, 1, 2

#: What became of a completion, as ``claim.lua`` returns it.
REFUSED, RECORDED, HISTORY_CHANGED = 0, 1, 2

#: What became of a save, as ``save.lua`` returns it.
NOT_A_HASH, GONE, HISTORY_DIFFERS, SAVED = -2, -1, 0, 1


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of all keys of one schedule."""

    prefix: str
    schedule: str
    statics: str
    quarantine: str

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.prefix + name


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to dispatch one occurrence of one entry.

    ``due`` is the score at which it was found, UNIX seconds. ``definition`` is None when the hash
    is gone; ``problem`` says why the key or its text could not be read.
    """

    key: str
    due: float
    definition: str | None = None
    meta: str = ""
    policy: str = ""
    runtime: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What to record for a claimed entry: its next score and, if it ran, its new history."""

    key: str
    claim_id: str
    score: float
    meta: str = ""
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a completion; ``meta`` is the stored one when somebody else changed it."""

    code: int
    meta: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """The reply to one :meth:`Store.claim`; times are UNIX seconds of the Redis clock."""

    standing: int
    now: float
    next_due: float | None
    members: int
    statics: int
    quarantined: int
    holder: str
    holder_ttl: float
    results: list[Result]
    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class StaticRow:
    """A static entry as it is stored; meta and score are used only when it is new."""

    name: str
    key: str
    definition: str
    policy: str
    meta: str
    score: float


def text_of(value: Any) -> str:
    """Return a reply as text; bytes that are not UTF-8 survive as surrogates."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""


def key_of(key: str) -> bytes:
    """Return a key as it is sent; the inverse of :func:`text_of`."""
    return key.encode("utf-8", "surrogateescape")


def read_claim(row: Sequence[Any]) -> Claim:
    """Return a claim from its row in the reply of ``claim.lua``."""
    key, due = text_of(row[0]), float(row[1])
    if len(row) == 2:
        return Claim(key, due)
    if len(row) == 3:
        return Claim(key, due, problem=f"the key is not a hash ({text_of(row[2])})")
    try:
        definition, meta, policy, runtime = [value.decode() for value in row[2:]]
    except UnicodeDecodeError as error:
        definition, meta, policy, runtime = map(text_of, row[2:])
        problem = f"it is not UTF-8 text ({error})"
        return Claim(key, due, definition, meta, policy, runtime, problem)
    return Claim(key, due, definition, meta, policy, runtime)


def read_turn(reply: Sequence[Any]) -> Turn:
    """Return the reply of ``claim.lua``."""
    return Turn(
        standing=reply[0],
        now=float(reply[1]),
        next_due=float(reply[2]) if reply[2] else None,
        members=reply[3],
        statics=reply[4],
        quarantined=reply[5],
        holder=text_of(reply[6]),
        holder_ttl=reply[7] / 1000,
        results=[Result(row[0], text_of(row[1]) if len(row) > 1 else "") for row in reply[8]],
        claims=[read_claim(row) for row in reply[9]],
    )
