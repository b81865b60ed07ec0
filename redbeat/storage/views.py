"""What readers get from the store: entries, pages, counts and beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redbeat.codec.stored import is_valid_text
from redbeat.storage.rows import Row

#: The suffix that ``turn.lua`` appends to the token of a beat that uses the lock.
LOCKED = " lock"

#: The score and the key of the entry after which a page begins, as strings.
Cursor = tuple[str, str]


class Shown(NamedTuple):
    """An entry as readers see it.

    Attributes:
        key: the key of the entry.
        score: when the entry is due, UNIX seconds; None if it is not in the schedule.
        stored: the row as beats see it.
        note: the JSON note of the quarantine, "" without one.
        static: whether the entry is from ``beat_schedule``.
        history: lines of runs, the latest first; "" if they were not asked for.
    """

    key: str
    score: float | None
    stored: Row = Row("")
    note: str = ""
    static: bool = False
    history: str = ""

    @property
    def definition(self) -> str | None:
        """The stored definition, None if it is missing."""
        return self.stored.definition

    @property
    def meta(self) -> str:
        """The stored ``meta``, "" if it is missing."""
        return self.stored.meta or ""

    @property
    def policy(self) -> str:
        """The stored policy, "" if it is missing."""
        return self.stored.policy or ""

    @property
    def problem(self) -> str:
        """Why the entry cannot be read, "" if its texts can."""
        if self.stored.problem:
            return f"the key is not a hash ({self.stored.problem})"
        if self.definition is None:
            return "the definition is missing"
        is_valid = is_valid_text(f"{self.definition}{self.meta}{self.policy}")
        return "" if is_valid else "the stored text is not UTF-8"


class Past(NamedTuple):
    """The stored runs of an entry.

    ``lines`` are the lines of its history, the latest first. ``row`` is the entry without its
    score. ``results`` are the texts of the ends that beats have taken in.
    """

    lines: str
    row: Row
    results: str | None


class Page(NamedTuple):
    """A page of entries in due order; entries that are never due come last.

    ``now`` is the time of Redis in UNIX seconds. ``after`` is the cursor of the next page, or
    None if the page is the last page.
    """

    now: float
    rows: list[Shown]
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

    Times are UNIX seconds of the Redis clock. ``failing`` counts the entries whose run could not be
    sent, beyond those in ``perhaps_failing``, which tell it by their states.
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
    perhaps_failing: Sequence[Row] = ()
    #: The keys of the entries that may be overdue.
    expected: Sequence[str] = ()
    #: When the leader last completed a tick, None if unknown.
    last_tick: float | None = None
    #: For each of several shards, the token of the lock holder and the number of entries.
    holders: Sequence[str] = ()
    sizes: Sequence[int] = ()
    #: The numbers of the shards whose lock key does not contain a lock.
    not_locks: Sequence[int] = ()
