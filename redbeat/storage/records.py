"""What the store takes and gives: keys, claims, completions, as text and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from itertools import chain, islice, repeat
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any, NamedTuple

from redbeat.config import KEYS_ASIDE, key_aside

from .wire import pack, pack_binary, text_in, text_of, unpack_binary

__all__ = (
    "BEFORE_RECORD",
    "CHANGED",
    "CLOCK_AHEAD",
    "CONFLICT",
    "DELETE",
    "DISABLE",
    "ELSEWHERE",
    "GONE",
    "HISTORY_DIFFERS",
    "LEADER",
    "NEW_LEADER",
    "NOT_A_HASH",
    "NOT_SENT",
    "OVERTAKEN",
    "PARK",
    "RAN",
    "RECORDED",
    "REFUSED",
    "RETRY",
    "SAME",
    "SAVED",
    "SKIP",
    "STANDBY",
    "UNSURE",
    "WAITS",
    "WITH_RECORD",
    "Broker",
    "Claim",
    "ClaimReply",
    "ClaimRequest",
    "Completion",
    "Counted",
    "Keys",
    "LockTerms",
    "Result",
    "Saved",
    "StaticRow",
    "Swept",
    "Writing",
    "json_text",
    "key_of",
    "pack_completions",
    "pack_counts",
    "pack_writings",
    "read_saved",
    "read_turn",
)

#: Standings, as ``claim.lua`` returns them.
STANDBY, LEADER, NEW_LEADER = 0, 1, 2

#: What became of a completion, as ``claim.lua`` returns it.
REFUSED, RECORDED, CHANGED, NOT_SENT, ELSEWHERE, OVERTAKEN = range(6)

#: What a completion does, as in ``claim.lua``: the run is out or leaves with it; the occurrence, if
#: any, is given up; it is put back, and nothing was sent, or something may have been.
RAN, SKIP, RETRY, UNSURE = "ran", "skip", "retry", "unsure"

#: What else becomes of an entry for which nothing is left to run: only that, or it is disabled, or
#: deleted.
PARK, DISABLE, DELETE = "park", "disable", "delete"

#: What may be sent before it is recorded: runs, or none.
BEFORE_RECORD, WITH_RECORD = "l", "x"

#: What became of a save, as ``save.lua`` returns it.
CONFLICT, CLOCK_AHEAD, NOT_A_HASH, GONE, HISTORY_DIFFERS, SAVED, SAME = -4, -3, -2, -1, 0, 1, 2

#: In place of a run that goes on: the occurrence that is put back waits for the one that does.
WAITS = "-"


@dataclass(frozen=True)
class Keys:
    """The names of all keys of one schedule.

    Quarantine, beats and stats stand outside the prefix. ``denied`` are those of them that the
    Redis user may not use, as far as that is known.
    """

    prefix: str
    schedule: str
    statics: str
    denied: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def under(cls, prefix: str) -> Keys:
        """Return the keys of the schedule with this prefix."""
        return cls(prefix, f"{prefix}:schedule", f"{prefix}:statics")

    @cached_property
    def quarantine(self) -> str:
        """The hash of the entries that are set aside, and why."""
        return key_aside(self.prefix, "quarantine")

    @cached_property
    def beats(self) -> str:
        """The sorted set of the beats that are present."""
        return key_aside(self.prefix, "beats")

    @cached_property
    def stats(self) -> str:
        """The hash of what beats have counted."""
        return key_aside(self.prefix, "stats")

    def turn(self, beat: str) -> str:
        """Return the key of the last turn of a beat; the schedule's where keys aside are denied."""
        return self.schedule if self.denied else key_aside(self.prefix, f"turn:{beat}")

    @property
    def aside(self) -> list[str]:
        """The keys outside the prefix."""
        return [key_aside(self.prefix, what) for what in KEYS_ASIDE]

    @property
    def wakeup(self) -> str:
        """The channel on which beats are woken up."""
        return self.prefix + ":wakeup"

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.prefix + name


class Claim(NamedTuple):
    """The right to dispatch one occurrence of one entry.

    ``due`` is the score at which it was found, UNIX seconds. ``definition`` is None when the hash
    is gone; ``problem`` says why the key or its text could not be read. ``running_until`` is when
    a run that may still go on counts as ended, UNIX seconds as text, "" for none. ``trigger`` are
    the triggered runs that wait, as in ``trigger.lua``. ``identity`` tells the entry from a deleted
    one of the same name. ``since`` is when the occurrence was first claimed, UNIX seconds as text,
    if its run may have been sent since; it stays the run that was decided then. ``id`` is the id of
    this claim.
    """

    key: str
    due: float
    definition: str | None = None
    meta: str = ""
    policy: str = ""
    runtime: str = ""
    running_until: str = ""
    trigger: str = ""
    identity: str = ""
    since: str = ""
    problem: str = ""
    id: str = ""

    def done(self, operation: str, score: float, meta: str = "", runtime: str = "") -> Completion:
        """Return a completion of this claim."""
        return Completion(self.key, self.id, operation, score, meta, runtime)

    def put_back(self, score: float, unsure: bool = False) -> Completion:
        """Return the completion that puts the occurrence back; ``unsure`` if it may be out."""
        return self.done(UNSURE if unsure or self.since else RETRY, score)


class Completion(NamedTuple):
    """What to record for a claimed entry, as in ``claim.lua``.

    ``operation`` and ``end`` are the constants above, ``score`` is when it is due next. ``meta``
    and ``runtime`` are its new history, "" to leave them. ``seen`` are the stored definition,
    policy and meta which it replaces, None for those that were claimed. ``definition`` is that of
    an entry that is disabled. ``running`` is the task id of a run that goes on now and the seconds
    it may take, "" where nobody wants to know, or :data:`WAITS`. ``trigger`` is the id of a
    triggered run that is not waited for any more, ``history`` a line for the history. ``messages``
    are the commands for the broker on the same server, as in ``claim.lua``.
    """

    key: str
    claim_id: str
    operation: str
    score: float
    meta: str = ""
    runtime: str = ""
    end: str = ""
    seen: tuple[str, ...] | None = None
    definition: str = ""
    running: str = ""
    trigger: str = ""
    history: str = ""
    messages: str = ""


class Broker(NamedTuple):
    """The server of a broker that is Redis: its run id, the broker's database, the schedule's."""

    run_id: str
    database: int
    own_database: int


class Counted(NamedTuple):
    """What a beat counted since it last said so: how much to add to which fields of the stats.

    What bears the same ``id`` is added once; with "" there is nothing.
    """

    id: str = ""
    counts: Mapping[str, int] = MappingProxyType({})


#: Key of the lock, our token, its seconds to live, the token of a leader known to be dead or "".
LockTerms = tuple[str, str, float, str]


class ClaimRequest(NamedTuple):
    """What is asked in one turn.

    Up to ``limit`` due entries are claimed under ``turn_id`` for ``lease`` seconds. ``lock`` is
    None when locking is off; then ``token`` tells who shares the work. With ``reply_lost`` what an
    earlier call with this id recorded counts as recorded, and what it claimed is handed out again.
    An entry has ``history`` lines of it at most. ``counted`` is added to the stats. ``only`` is the
    key of the only entry to claim. ``way`` is what may be sent before it is recorded,
    :data:`BEFORE_RECORD` or :data:`WITH_RECORD`; ``broker`` is where messages go that are recorded
    in the same step. ``late`` is how many of the claimed may have been due for a second, None for
    any number; those that are on time come first then.
    """

    turn_id: str
    limit: int
    lease: float
    completions: Sequence[Completion] = ()
    lock: LockTerms | None = None
    reply_lost: bool = False
    token: str = ""
    history: int = 10
    counted: Counted = Counted()
    only: str = ""
    way: str = BEFORE_RECORD
    broker: Broker | None = None
    late: int | None = None


class Result(NamedTuple):
    """What became of a completion; ``texts`` are those that ``claim.lua`` tells of some."""

    code: int
    texts: tuple[str, ...] = ()


#: How many texts are told with a code.
TEXTS_TOLD = {CHANGED: 3, NOT_SENT: 1}

#: What becomes of most completions.
WITHOUT_TEXTS = {code: Result(code) for code in (REFUSED, RECORDED, ELSEWHERE, OVERTAKEN)}


@dataclass(frozen=True, slots=True)
class ClaimReply:
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
    expires: float
    #: Seconds that Redis worked on it.
    took: float = 0.0


class Swept(NamedTuple):
    """What :meth:`Store.sweep` found: keys without a member, those it made members, and others.

    ``cursor`` is where to go on, "" when it did not scan; ``enabled`` are entries that were
    disabled and are so no more, ``disabled`` is how many there are. ``bad`` are keys without
    a member whose definition has no name, or cannot be read at all.
    """

    cursor: str
    orphans: list[str]
    returned: list[str]
    enabled: list[str]
    disabled: int
    bad: list[str]


@dataclass(frozen=True, slots=True)
class StaticRow:
    """A static entry as it is stored; meta and score are used only when it is new."""

    name: str
    key: str
    definition: str
    policy: str
    meta: str
    score: float


class Writing(NamedTuple):
    """An entry to write, or only its history when ``definition`` is empty.

    ``seen`` is the stored meta the caller believes in, None for any. ``score`` None is the time of
    Redis. ``made_up`` is the instant on the caller's clock from which an entry counts that is new
    or begins again, None when somebody chose it. ``believed`` are the stored definition and policy
    the caller believes in, empty for no entry, None for any. ``history`` are the lines of its last
    runs, "" to leave them. ``identity`` is that of a new entry: another one for each, the same when
    a write is repeated.
    """

    key: str
    definition: str = ""
    policy: str = ""
    meta: str = ""
    runtime: str = ""
    seen: str | None = ""
    score: float | None = None
    made_up: datetime | None = None
    believed: tuple[str, str] | None = None
    history: str = ""
    identity: str = ""

    def fields(self) -> tuple[str, ...]:
        """Return the fields as ``save.lua`` takes them."""
        key, definition, policy, meta, runtime, seen, score, made_up = self[:8]
        believed, history, identity = self[8:]
        return (
            *(key, definition, policy, meta, runtime),
            "*" if seen is None else seen,
            "now" if score is None else f"{score:.6f}",
            "" if made_up is None else f"{made_up.timestamp():.6f}",
            "" if believed is None else _believed_text(*believed),
            json_text(history) if history else "",
            json_text(identity) if identity else "",
        )


def _believed_text(definition: str, policy: str) -> str:
    return f"={definition}\n{policy}" if definition else "-"


class Saved(NamedTuple):
    """What became of a :class:`Writing`.

    ``meta`` and ``runtime`` are the stored ones where they differ from what the caller has seen;
    ``definition`` and ``policy`` are stored beside them with :data:`HISTORY_DIFFERS`.
    ``score`` is UNIX seconds, "" for none: with :data:`SAME` the stored one, with
    :data:`CLOCK_AHEAD` the time of Redis. ``identity`` is the stored one, None where it is the one
    that was given.
    """

    code: int
    meta: str = ""
    runtime: str = ""
    score: str = ""
    identity: str | None = None
    definition: str = ""
    policy: str = ""


#: What ``save.lua`` returns where an entry was written whose identity is told.
SAVED_AS = 3

#: What is told with the codes of a save that tell more.
TOLD: dict[int, tuple[str, ...]] = {
    CLOCK_AHEAD: ("score",),
    HISTORY_DIFFERS: ("meta", "runtime", "definition", "policy"),
    SAME: ("meta", "runtime", "score", "identity"),
    SAVED_AS: ("identity",),
}

#: What becomes of most.
IS_SAVED = Saved(SAVED)


def pack_writings(writings: Sequence[Writing]) -> tuple[bytes, str | bytes]:
    """Return writings as ``save.lua`` takes them."""
    return pack_binary([*chain.from_iterable(map(Writing.fields, writings))])


def read_saved(reply: Sequence[bytes]) -> list[Saved]:
    """Return what became of writings, from the reply of ``save.lua``."""
    codes, texts = reply[0].split(), map(text_of, reply[1:])
    return [IS_SAVED if code == b"1" else _read_saved(int(code), texts) for code in codes]


def _read_saved(code: int, texts: Iterator[str]) -> Saved:
    told = dict(zip(TOLD.get(code, ()), texts))  # noqa: B905 - the rest is told of others
    saved = Saved(SAVED if code == SAVED_AS else code, **told)
    return saved if saved.identity is None else saved._replace(identity=text_in(saved.identity))


def json_text(text: str) -> str:
    """Return a text as JSON, in which no backslash but that of a line feed comes before an n."""
    return encode_basestring_ascii(text).replace("\\\\", "\\u005c")


def key_of(key: str) -> bytes:
    """Return a key as it is sent; the inverse of :func:`text_of`."""
    return key.encode("utf-8", "surrogateescape")


def read_claims(kinds: bytes, sizes: bytes, packed: bytes, turn_id: str) -> list[Claim]:
    """Return the claims in the reply of ``claim.lua``."""
    fields = unpack_binary(sizes, packed)
    keys, dues, *texts = (fields[first::10] for first in range(10))
    # Claims that are no entries are few, so all are made at once, with no step of Python for each.
    rows = zip(
        keys,
        map(float, dues),
        *texts,
        repeat("", len(kinds)),
        repeat(turn_id, len(kinds)),
        strict=True,
    )
    claims = list(map(partial(tuple.__new__, Claim), rows))
    for place, kind in enumerate(kinds.decode()):
        if kind != "e":
            claims[place] = NO_ENTRIES[kind](claims[place])
    return claims if packed.isascii() else list(map(checked, claims))


def _gone(claim: Claim) -> Claim:
    return Claim(claim.key, claim.due, id=claim.id)


def _no_hash(claim: Claim) -> Claim:
    problem = f"the key is not a hash ({claim.definition})"
    return Claim(claim.key, claim.due, problem=problem, id=claim.id)


#: What becomes of each kind of claim that is no entry.
NO_ENTRIES: dict[str, Callable[[Claim], Claim]] = {"g": _gone, "x": _no_hash}


def checked(claim: Claim) -> Claim:
    """Return the claim with a problem if its texts are not UTF-8."""
    texts = (claim.definition or "", claim.meta, claim.policy, claim.runtime)
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return claim._replace(problem="it is not UTF-8 text")
    return claim


def pack_completions(completions: Sequence[Completion]) -> tuple[bytes, str | bytes]:
    """Return completions as ``claim.lua`` takes them."""
    texts: list[str] = []
    for done in completions:
        seen = "" if done.seen is None else "=" + "\n".join(done.seen)
        texts += done.key, done.claim_id, done.operation, done.end, f"{done.score:.6f}"
        running, line = json_text(done.running)[1:-1], json_text(done.history)[1:-1]
        texts += done.meta, done.runtime, seen, done.definition, running, done.trigger, line
        texts.append(done.messages)
    return pack_binary(texts)


def pack_counts(counted: Counted) -> tuple[str, str | bytes, str | bytes]:
    """Return what was counted as ``claim.lua`` takes it."""
    texts = [text for field, number in counted.counts.items() for text in (field, str(number))]
    return counted.id, *pack(texts)


def read_results(codes: bytes, texts: Sequence[bytes]) -> list[Result]:
    """Return what became of the completions, from the reply of ``claim.lua``."""
    told = map(text_of, texts)
    return [
        WITHOUT_TEXTS.get(code) or Result(code, tuple(islice(told, TEXTS_TOLD[code])))
        for code in map(int, codes.decode())
    ]


def read_turn(reply: Sequence[Any], turn_id: str) -> ClaimReply:
    """Return the reply of ``claim.lua``."""
    return ClaimReply(
        standing=reply[0],
        now=float(reply[1]),
        next_due=float(reply[2]) if reply[2] else None,
        members=reply[3],
        statics=reply[4],
        quarantined=reply[5],
        holder=text_of(reply[6]),
        holder_ttl=reply[7] / 1000,
        results=read_results(reply[8], reply[9]),
        claims=read_claims(reply[10], reply[11], reply[12], turn_id),
        expires=float(reply[13]),
        took=reply[14] / 1e6,
    )
