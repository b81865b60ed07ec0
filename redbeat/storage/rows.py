"""What a beat and the store say to each other: rows, changes, answers, requests and replies."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redbeat.codec.stored import bytes_of, is_valid_text, score_in
from redbeat.storage.words import CALENDARS, SCORE

#: Makes twelve characters.
_MARK_BYTES = 9


class Row(NamedTuple):
    """What is stored for one entry, read at one moment. None is absent, which is not empty.

    ``score`` is the text that Redis gave, "" if the entry isn't in the schedule. ``problem`` says
    why the entry can't be read; its texts are then None. The rest is only in pages: ``note`` is
    that of the quarantine, ``static`` means the entry is from ``beat_schedule``, and ``history``
    and ``results`` are about its runs, if they were asked for.
    """

    key: str
    score: str = ""
    definition: str | None = None
    meta: str | None = None
    policy: str | None = None
    state: str | None = None
    inbox: str | None = None
    problem: str = ""
    note: str = ""
    static: bool = False
    history: str | None = None
    results: str | None = None

    @classmethod
    def read(cls, text: bytes) -> Row:
        """The row in a script's JSON. Bytes that are not UTF-8 become surrogates."""
        return cls(**json.loads(text.decode("utf-8", "surrogateescape")))

    @classmethod
    def read_all(cls, text: bytes) -> list[Row]:
        return [cls(**fields) for fields in json.loads(text.decode("utf-8", "surrogateescape"))]

    @property
    def due(self) -> float | None:
        """When the entry is due, in UNIX seconds; None if it isn't in the schedule."""
        return score_in(self.score) if self.score else None

    @property
    def texts(self) -> dict[str, str]:
        """The stored text by field, without what beats keep."""
        found = {"definition": self.definition, "policy": self.policy, "meta": self.meta}
        return {name: text for name, text in found.items() if text}

    @property
    def unreadable(self) -> str:
        """Why nobody can read the entry, "" if its text can be read."""
        if self.problem:
            return f"the key is not a hash ({self.problem})"
        if self.definition is None:
            return "the definition is missing"
        is_valid = is_valid_text(f"{self.definition}{self.meta}{self.policy}")
        return "" if is_valid else "the stored text is not UTF-8"


@dataclass(slots=True)
class Change:
    """One compare-and-set on one entry: all or nothing, and safe to repeat.

    Attributes:
        key: the entry's key; "" for a change of side keys alone (``index``).
        mark: twelve characters that ``set[STATE]`` contains; "" if only a score is set.
        expect: the digest of the row that was looked at; None expects nothing.
        covers: what else ``expect`` covers: the score, the version of the calendars.
        set: the fields to write.
        unset: the fields to remove.
        score: when the entry is due, if it is in the schedule; 0 is now. If anything is left in the
            inbox, a marked change makes the entry due now.
        add: like ``score``, and puts the entry into the schedule.
        delete: removes the entry.
        push: the commands that publish a message, in the database of the broker.
        line: a line for the history, one ASCII JSON value.
        lines: how many lines of history stay.
        replaces: the line replaces the newest one, or takes it away if ``line`` is "".
        take: the last line of the inbox that was taken in. It goes, with all before it.
        results: new lines of the field ``results``, [beginning, line], the oldest first. A line
            replaces the one that begins the same. ``lines`` of them stay.
        index: writes to side keys, [command, name of the side key, arguments...]. Their errors
            stop nothing. ``FORGET`` removes a field that still has the given text.
        not_before, not_after: the times of Redis between which the change may be applied.
        twins: key -> definition of other new entries. They are added like this one, which is new.
    """

    key: str
    mark: str = ""
    expect: str | None = None
    covers: str = ""
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    score: float | None = None
    add: float | None = None
    delete: bool = False
    push: list[list[str | bytes]] = field(default_factory=list)
    line: str = ""
    lines: int = 10
    replaces: bool = False
    take: str = ""
    results: list[tuple[str, str]] = field(default_factory=list)
    index: list[list[str]] = field(default_factory=list)
    not_before: float | None = None
    not_after: float | None = None
    twins: dict[str, str] = field(default_factory=dict)


class Answer(NamedTuple):
    """The answer to a change: ``why`` it was refused, or the ``row`` that it differed from.

    After DIFFERS or REFUSED, the key is left out of the look of the same turn. ``left`` are the
    keys of twins that weren't added, because there is something.
    """

    word: str
    why: str = ""
    row: Row | None = None
    left: Sequence[str] = ()


class Look(NamedTuple):
    """What to look at: at most ``limit`` rows, ``max_bytes`` and ``max_ms``.

    ``late`` limits the rows that are more than a second late. ``skip`` leaves out keys as long as
    they have the given digest. ``only`` looks at one key, due or not. With ``shares``, beats
    without a lock look at a share each. ``limit=0`` looks at nothing. ``in_hand`` are keys that an
    earlier look gave out and the beat has not decided about; they are left out. With ``soon``, it
    looks at what isn't due yet but will be within this many seconds, from the member number
    ``offset`` on.
    """

    limit: int = 100
    late: int | None = None
    max_bytes: int = 1 << 20
    max_ms: float = 8.0
    skip: Mapping[str, str] = {}
    only: str = ""
    shares: bool = False
    in_hand: Sequence[str] = ()
    soon: float = 0.0
    offset: int = 0


class Request(NamedTuple):
    """One turn: changes, then a look. Safe to repeat.

    ``lock`` is the lock's key, its time to live in milliseconds, and the token of a leader that
    counts as dead, or "". ``server`` allows changes to push: the run id of the broker's server, the
    broker's database and the schedule's. ``counts`` are added to the stats once for a
    ``counts_id``; such a turn also notes that this beat is there, and how many entries are.
    ``in_hand`` notes the keys that the turn gives out. With ``leads_only``, a standby changes
    nothing: the answers are STALE.
    """

    token: str
    lock: tuple[str, int, str] | None
    changes: Sequence[Change] = ()
    look: Look | None = None
    server: tuple[str, int, int] | None = None
    counts: Mapping[str, int] = {}
    counts_id: str = ""
    in_hand: bool = False
    leads_only: bool = False


class Counted(NamedTuple):
    """What a beat counted since its last report, as amounts to add to fields of the stats.

    Redis adds counts with the same ``id`` only once; "" is for no counts.
    """

    id: str = ""
    counts: Mapping[str, int] = {}


class Hand(NamedTuple):
    """The keys that a beat had in hand when it vanished.

    ``alone`` means that it had looked at its only key on suspicion (``Look.only``). A change with
    ``index=[["HDEL", "hands", token]]`` forgets the note.
    """

    token: str
    keys: Sequence[str]
    alone: bool


class Reply(NamedTuple):
    """What a turn found; times are UNIX seconds of Redis.

    ``standing`` is STANDBY, LEADS (also without a lock) or NEW_LEADER. ``next`` is when there is
    something to look at, ``now`` or earlier if the look left something, None if never. ``crowd`` is
    how many entries are due within a tenth of a second from then on.
    ``answers`` has one answer per change. Turns with a ``counts_id`` count ``statics`` and
    ``quarantined`` (-1 otherwise) and return the mark of a loss of the schedule in ``lost``.
    ``side_error`` is an error of a side key, which stopped nothing. ``hands`` are notes of
    vanished beats, each in one reply. ``back`` is how many seconds Redis's clock went back since
    the last turn that was counted.
    """

    standing: int
    now: float
    next: float | None
    answers: list[Answer]
    rows: list[Row]
    members: int = -1
    holder: str = ""
    holder_ttl: float = 0.0
    statics: int = -1
    quarantined: int = -1
    version: str | None = None
    lost: str = ""
    side_error: str = ""
    hands: Sequence[Hand] = ()
    back: float = 0.0
    crowd: int = 0


def digest_of(row: Row, covers: str = "", version: str | None = None) -> str:
    """SHA-1 of a row's texts, each after its length, as ``lua/parts/row.lua`` computes it.

    ``covers`` adds the score and the version of the calendars.
    """
    texts = [row.definition, row.meta, row.policy, row.state]
    if SCORE in covers:
        texts.append(row.score)
    if CALENDARS in covers:
        texts.append(version)
    joined = b""
    for text in texts:
        if text is None:
            joined += b"-"
        else:
            data = text.encode() if text.isascii() else bytes_of(text)
            joined += b"%d:%b" % (len(data), data)
    return hashlib.sha1(joined, usedforsecurity=False).hexdigest()


def new_mark() -> str:
    """Twelve random characters that no other process returns, not even after a fork."""
    return secrets.token_urlsafe(_MARK_BYTES)
