"""The arguments and results of the methods of a store, such as keys, claims and completions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import chain, islice, repeat
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any, NamedTuple

from redbeat.codec.stored import bytes_of as key_of
from redbeat.codec.stored import is_valid_text, text_of, valid_text
from redbeat.config import KEYS_ASIDE, key_aside

from .wire import identity_in, pack, unpack

#: The roles of a beat that ``claim.lua`` returns.
STANDBY, LEADER, NEW_LEADER = 0, 1, 2

#: The result codes of a completion that ``claim.lua`` returns.
REFUSED, RECORDED, CHANGED, NOT_SENT, ELSEWHERE, OVERTAKEN, EXPIRED, OUTDATED = range(8)

#: The operations of a completion; see ``claim.lua``.
#: ``RAN`` means that the run was sent, or that the completion itself sends the run.
#: ``FIRST`` means that the run is recorded first and sent afterwards.
#: ``SKIP`` means that the occurrence is skipped.
#: ``RETRY`` means that the occurrence was not sent and will be claimed again later.
#: ``UNSURE`` means that the occurrence may have been sent and will be claimed again later.
RAN, FIRST, SKIP, RETRY, UNSURE = "ran", "first", "skip", "retry", "unsure"

#: What to do with an entry that has no runs left. With ``PARK``, the entry is never due.
#: ``DISABLE`` parks and disables the entry. ``DELETE`` deletes the entry.
PARK, DISABLE, DELETE = "park", "disable", "delete"

#: When a run may be sent: before Redis records the run, or only together with the record.
BEFORE_RECORD, WITH_RECORD = "l", "x"

#: The result codes of a save that ``save.lua`` returns.
CONFLICT, CLOCK_AHEAD, NOT_A_HASH, GONE, HISTORY_DIFFERS, SAVED, SAME = -4, -3, -2, -1, 0, 1, 2

#: The value of ``Completion.running`` if the occurrence waits until an earlier run ends.
WAITS = "-"

#: The value of ``Claim.running_until`` if an earlier claim may have sent the run, and a worker
#: reported the end of the run.
RUN_ENDED = "0"


def _key_aside(what: str) -> cached_property[str]:
    """Return a property of :class:`Keys` that contains the name of a key outside the key prefix."""
    return cached_property(lambda keys: key_aside(keys.prefix, what))


@dataclass(frozen=True)
class Keys:
    """The names of all Redis keys of one schedule.

    The keys of the quarantine, the beats and the stats are outside the key prefix. ``denied``
    contains the keys outside the key prefix that the Redis user has no right to access.
    """

    prefix: str
    schedule: str
    statics: str
    denied: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def under(cls, prefix: str) -> Keys:
        """Return the keys of the schedule with the key prefix ``prefix``."""
        return cls(prefix, f"{prefix}:schedule", f"{prefix}:statics")

    #: The hash of quarantined entries: entry key -> JSON note with the reason.
    quarantine = _key_aside("quarantine")
    #: The sorted set of active beats: token -> when the beat was last seen, UNIX seconds.
    beats = _key_aside("beats")
    #: The hash of the stats: counters of all beats.
    stats = _key_aside("stats")
    #: The sorted set of entries whose run could not be sent: entry key -> when the run was due.
    failing = _key_aside("failing")
    #: The sorted set of entries with ``expect_within``, see ``ended.lua``.
    expected = _key_aside("expected")
    #: The hash of calendars: name -> JSON of the calendar.
    calendars = _key_aside("calendars")
    #: The set of the keys of all entries with calendars, and of some entries without calendars.
    calendar_users = _key_aside("calendar-users")

    def turn(self, beat: str) -> str:
        """Return the key that stores the last ``claim.lua`` call of a beat.

        To get the key under which ``pop.lua`` stores a copy of a deleted entry, pass the id of the
        ``pop.lua`` call as ``beat``. Returns the schedule key if the Redis user has no right to
        access keys outside the key prefix.
        """
        return self.schedule if self.denied else key_aside(self.prefix, f"turn:{beat}")

    @property
    def aside(self) -> list[str]:
        """The keys of the schedule outside the key prefix."""
        return [key_aside(self.prefix, what) for what in KEYS_ASIDE]

    @property
    def wakeup(self) -> str:
        """The channel on which beats receive wake-up messages."""
        return self.prefix + ":wakeup"

    def entry(self, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return self.prefix + name

    def name_of(self, key: str) -> str:
        """Return the name of the entry with the key ``key``."""
        return key.removeprefix(self.prefix)


class Claim(NamedTuple):
    """The exclusive right of a beat to send one occurrence of an entry.

    - ``key``: the key of the entry.
    - ``due``: the score with which the entry became due, in UNIX seconds.
    - ``definition``, ``meta``, ``policy`` and ``runtime``: the stored JSON of the entry.
      ``definition`` is None if the hash does not exist.
    - ``running_until``: when an earlier run is assumed to end, as a string of UNIX seconds, or ""
      if no earlier run is active. See also :data:`RUN_ENDED`.
    - ``trigger``: the waiting triggered runs and backfills of the entry, in the formats of
      ``trigger.lua`` and ``backfill.lua``.
    - ``identity``: a value that distinguishes the entry from a deleted entry of the same name.
    - ``since``: when the occurrence was first claimed, as a string of UNIX seconds, or "" if no
      message of the occurrence can have been sent. If a message may have been sent, the beat must
      repeat the decision that was made at the first claim.
    - ``problem``: why the entry cannot be read, or "" if the entry can be read.
    - ``id``: the id of the claim.
    - ``calendars``: the calendars that the beat read for the entry; see :func:`calendars_read`.
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
    calendars: str = ""

    def done(self, operation: str, score: float, meta: str = "", runtime: str = "") -> Completion:
        """Return a :class:`Completion` of this claim."""
        return Completion(
            self.key, self.id, operation, score, meta, runtime, calendars=self.calendars
        )

    def put_back(self, score: float, unsure: bool = False) -> Completion:
        """Return a completion that makes the occurrence due again at ``score`` (UNIX seconds).

        Set ``unsure`` if a message of the occurrence may have been sent.
        """
        return Completion(self.key, self.id, UNSURE if unsure or self.since else RETRY, score)


class Completion(NamedTuple):
    """What to record in Redis for a claimed entry; see ``claim.lua``.

    - ``key`` and ``claim_id``: the key of the entry, and the id of the claim.
    - ``operation``: one of :data:`RAN`, :data:`FIRST`, :data:`SKIP`, :data:`RETRY` and
      :data:`UNSURE`.
    - ``score``: when the entry is due next, in UNIX seconds, or a number below 0 for never.
    - ``meta`` and ``runtime``: the JSON of the new last run and run count, or "" to keep the stored
      JSON.
    - ``end``: what to do with an entry that has no runs left (:data:`PARK`, :data:`DISABLE` or
      :data:`DELETE`), or "" for an entry with more runs.
    - ``seen``: the stored definition, policy and meta that the completion may replace, or None if
      the stored values must be unchanged since the claim.
    - ``definition``: the new definition of an entry to disable.
    - ``running``: the task id of the run and its time limit in seconds, or "" if runs may overlap,
      or :data:`WAITS`.
    - ``trigger``: the id of the waiting triggered run or backfill to remove, or "" for none. A
      space and the replacement of the removed run may follow the id.
    - ``history``: a new line for the run history, or "" for no new line.
    - ``messages``: the Redis commands that publish the run on the server of the schedule; see
      ``claim.lua``.
    - ``failure``: why the run could not be sent, or "" if there was no failure.
    - ``calendars``: the calendars that the completion depends on; see :func:`calendars_read`.
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
    failure: str = ""
    calendars: str = ""


class Broker(NamedTuple):
    """A broker on Redis: run id of the server, and databases of the broker and of the schedule."""

    run_id: str
    database: int
    own_database: int


class Counted(NamedTuple):
    """What a beat counted since its last report, as amounts to add to fields of the stats.

    Redis adds counts with the same ``id`` only once. If ``id`` is "", the beat counted nothing.
    """

    id: str = ""
    counts: Mapping[str, int] = MappingProxyType({})


#: Lock key, token of this beat, lock timeout in seconds, and token of a dead leader (or "").
LockTerms = tuple[str, str, float, str]


class ClaimRequest(NamedTuple):
    """The arguments of one ``claim.lua`` call.

    - ``turn_id``: the id of the call, and of all claims that the call makes.
    - ``limit``: the maximum number of due entries to claim.
    - ``lease``: the number of seconds until the claims expire.
    - ``completions``: the completions to record.
    - ``lock``: the lock to acquire or extend, or None if locking is off.
    - ``reply_lost``: whether the reply to an earlier call with the same id was lost. After a lost
      reply, the script does not repeat completions that the earlier call recorded, and returns the
      claims of the earlier call.
    - ``token``: the token of the beat. If locking is off, beats share the work by their tokens.
    - ``history``: the maximum number of lines in the run history of an entry.
    - ``counted``: the counts to add to the stats.
    - ``only``: the key of the only entry to claim, or "" for all due entries.
    - ``way``: when to send the runs of entries without a delivery policy, either
      :data:`BEFORE_RECORD` or :data:`WITH_RECORD`.
    - ``broker``: the broker, if the script itself publishes the messages of completions.
    - ``late``: the maximum number of claims for entries that are more than a second late, or None
      for no limit. If ``late`` is set, the script first claims the entries that are on time.
    - ``quick``: the last reply to the beat for a quick request, or None for a normal request. A
      request may be quick if the beat has nothing to record or count. The script ends a quick
      request early if the schedule has entries but no entry is due. The script also ends a quick
      request of a standby early if the leader is the same as in the last reply. If the script ends
      a request early, its reply is short, and the missing values are taken from the last reply.
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
    quick: ClaimReply | None = None


class Result(NamedTuple):
    """The result code of a completion, with the strings that ``claim.lua`` adds to the code."""

    code: int
    texts: tuple[str, ...] = ()


#: The number of strings that ``claim.lua`` returns with each result code of a completion.
TEXT_COUNTS = {CHANGED: 3, NOT_SENT: 1}

#: The number of elements in a short reply of ``claim.lua`` to a quick request.
#: A leader without due entries gets ``SHORT`` elements, and a standby ``SHORT_STANDBY`` elements.
SHORT, SHORT_STANDBY = 3, 2

#: All replies share these result objects, because most completions have a result without strings.
COMMON_RESULTS = {code: Result(code) for code in range(OUTDATED + 1) if code not in TEXT_COUNTS}


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """The reply to a :meth:`Store.claim` call; times are UNIX seconds of the Redis clock."""

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


class Swept(NamedTuple):
    """The result of :meth:`Store.sweep`.

    - ``cursor``: the cursor of the next page of keys, "0" after the last page, or "" if no keys
      were scanned.
    - ``mark``: why a beat scans the keys, see ``look_for_loss.lua``; "" for no scan.
    - ``disabled``: the number of disabled entries.
    - ``orphans``: the keys of entry hashes that are not in the schedule's sorted set.
    - ``returned``: the keys that the sweep put back after the sorted set was lost.
    - ``enabled``: the keys of entries that were disabled and are now enabled.
    - ``bad``: the keys of hashes that are not in the sorted set, and whose definition is unreadable
      or has no name.
    """

    cursor: str
    mark: str
    disabled: int
    orphans: list[str]
    returned: list[str]
    enabled: list[str]
    bad: list[str]


@dataclass(frozen=True, slots=True)
class StaticRow:
    """A static entry to write.

    ``score`` is used only for a new entry. ``meta`` is used only for an entry that is new or
    restarts.
    """

    name: str
    key: str
    definition: str
    policy: str
    meta: str
    score: float


class Writing(NamedTuple):
    """An entry to write, or only its last run and run count if ``definition`` is empty.

    - ``key``: the key of the entry.
    - ``definition``, ``policy``, ``meta`` and ``runtime``: the JSON to store.
    - ``seen``: the meta that the caller expects in Redis, or None if the caller accepts any meta.
    - ``score``: when the entry is due next, in UNIX seconds, or None for the time of Redis.
    - ``made_up``: the last run of a new or restarted entry, if the last run is only a default from
      the clock of the caller, else None.
    - ``believed``: the definition and policy that the caller expects in Redis, or None if the
      caller accepts any values. Two empty strings mean that the caller expects no entry.
    - ``history``: the lines of the run history, or "" to keep the stored lines.
    - ``identity``: the identity of a new entry. A caller that repeats a write passes the same
      identity.
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
        """Return the fields of the entry as arguments of ``save.lua``."""
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


class RunReport(NamedTuple):
    """The result of a run, as ``ended.lua`` records it.

    - ``state``: the state of the run, or "" if no result is recorded.
    - ``run``: the nominal instant of the run in UNIX seconds, or "-" if the instant is unknown.
    - ``age``: the number of seconds since the run ended.
    - ``line``: the rest of the line that Redis stores for the run; see ``entries/runs.py``.
    - ``lines``: the maximum number of lines that Redis stores for the entry.
    """

    state: str = ""
    run: str = "-"
    age: float = 0.0
    line: str = ""
    lines: int = 0


NO_RESULT = RunReport()


class Ended(NamedTuple):
    """The result of ``ended.lua``, which records the end of a run.

    - ``active``: whether the run was recorded as the active run of the entry.
    - ``failures``: the number of failed runs in a row if the entry must be paused now, else 0.
    """

    active: bool
    failures: int


class Saved(NamedTuple):
    """The result of a :class:`Writing`.

    - ``code``: a result code of ``save.lua``, such as :data:`SAVED` or :data:`GONE`.
    - ``meta`` and ``runtime``: the stored JSON, for the codes :data:`SAME` and
      :data:`HISTORY_DIFFERS`.
    - ``score``: the stored score for the code :data:`SAME`, or the time of Redis for the code
      :data:`CLOCK_AHEAD`, as a string of UNIX seconds.
    - ``identity``: the stored identity, or None if the stored identity equals the identity in the
      :class:`Writing`.
    - ``definition`` and ``policy``: the stored JSON, for the code :data:`HISTORY_DIFFERS`.
    """

    code: int
    meta: str = ""
    runtime: str = ""
    score: str = ""
    identity: str | None = None
    definition: str = ""
    policy: str = ""


#: The code of ``save.lua`` if the stored identity of an entry differs from the new identity.
#: Redis keeps the stored identity of the entry.
SAVED_AS = 3

#: The fields of :class:`Saved` that ``save.lua`` returns with each result code of a save.
SAVED_FIELDS: dict[int, tuple[str, ...]] = {
    CLOCK_AHEAD: ("score",),
    HISTORY_DIFFERS: ("meta", "runtime", "definition", "policy"),
    SAME: ("meta", "runtime", "score", "identity"),
    SAVED_AS: ("identity",),
}

#: The most frequent result of a save.
#: All replies share this ``Saved`` object, because creating an object takes time.
PLAIN_SAVED = Saved(SAVED)


def pack_writings(writings: Sequence[Writing]) -> tuple[bytes, str | bytes]:
    """Return ``writings`` as arguments of ``save.lua``."""
    return pack([*chain.from_iterable(map(Writing.fields, writings))])


def read_saved(reply: Sequence[bytes]) -> list[Saved]:
    """Return the result of each saved entry from the reply of ``save.lua``."""
    codes, texts = reply[0].split(), map(text_of, reply[1:])
    return [PLAIN_SAVED if code == b"1" else _read_saved(int(code), texts) for code in codes]


def _read_saved(code: int, texts: Iterator[str]) -> Saved:
    fields = dict(zip(SAVED_FIELDS.get(code, ()), texts))  # noqa: B905 - more results follow
    saved = Saved(SAVED if code == SAVED_AS else code, **fields)
    return saved if saved.identity is None else saved._replace(identity=identity_in(saved.identity))


def json_text(text: str) -> str:
    r"""Return ``text`` as a JSON string, in which ``\n`` always means a line feed.

    A backslash becomes ``\u005c``, so that a backslash before an "n" does not look like ``\n``.
    """
    return encode_basestring_ascii(text).replace("\\\\", "\\u005c")


def read_claims(kinds: bytes, sizes: bytes, packed: bytes, turn_id: str) -> list[Claim]:
    """Return the claims in the reply of ``claim.lua``."""
    fields = unpack(sizes, packed)
    keys, dues, *texts = (fields[first::10] for first in range(10))
    # A single map() over all rows is faster than a loop. The loop below changes only the claims of
    # unreadable entries.
    rows = zip(
        keys,
        map(float, dues),
        *texts,
        repeat("", len(kinds)),
        repeat(turn_id, len(kinds)),
        repeat("", len(kinds)),
        strict=True,
    )
    claims = list(map(partial(tuple.__new__, Claim), rows))
    for place, kind in enumerate(text_of(kinds)):
        if kind != "e":
            claims[place] = _unreadable(kind, claims[place])
    return claims if packed.isascii() else list(map(with_utf8_check, claims))


def _unreadable(kind: str, claim: Claim) -> Claim:
    """Return a claim whose problem is that the key of the entry is not a hash.

    ``kind`` is "x" if the key has another type, and "g" if the key does not exist.
    """
    problem = f"the key is not a hash ({claim.definition})" if kind == "x" else ""
    return Claim(claim.key, claim.due, problem=problem, id=claim.id)


def with_utf8_check(claim: Claim) -> Claim:
    """Return the claim, with a ``problem`` if the definition, meta or policy is not UTF-8."""
    texts = (claim.definition or "", claim.meta, claim.policy)
    valid = is_valid_text("".join(texts))
    problem = "" if valid else "the stored text is not UTF-8"
    return claim._replace(problem=claim.problem or problem, identity=valid_text(claim.identity))


def pack_completions(completions: Sequence[Completion]) -> tuple[bytes, str | bytes]:
    """Return ``completions`` as arguments of ``claim.lua``."""
    if not completions:
        return b"", b""
    texts: list[str] = []
    for done in completions:
        seen = "" if done.seen is None else "=" + "\n".join(done.seen)
        texts += done.key, done.claim_id, done.operation, done.end, f"{done.score:.6f}"
        running, line = json_text(done.running)[1:-1], json_text(done.history)[1:-1]
        texts += done.meta, done.runtime, seen, done.definition, running, done.trigger, line
        texts += done.messages, json_text(done.failure)[1:-1] if done.failure else ""
        texts.append(done.calendars)
    return pack(texts)


def calendars_read(texts: Mapping[str, str], names: Sequence[str]) -> str:
    """Return a digest of the JSON of calendars, and their names, in the format of ``claim.lua``."""
    joined = "\n".join(texts.get(name, "") for name in names)
    digest = hashlib.sha1(key_of(joined), usedforsecurity=False).hexdigest()
    return ",".join((digest, *names))


def pack_counts(counted: Counted) -> tuple[str, bytes, str | bytes]:
    """Return ``counted`` as arguments of ``claim.lua``."""
    if not counted.id:
        return "", b"", b""
    texts = [text for field, number in counted.counts.items() for text in (field, str(number))]
    return counted.id, *pack(texts)


def read_results(codes: bytes, texts: Sequence[bytes]) -> list[Result]:
    """Return the result of each completion from the reply of ``claim.lua``."""
    remaining = map(text_of, texts)
    return [
        COMMON_RESULTS.get(code) or Result(code, tuple(islice(remaining, TEXT_COUNTS[code])))
        for code in map(int, text_of(codes))
    ]


def read_turn(
    reply: Sequence[Any], turn_id: str, last_reply: ClaimReply | None = None
) -> ClaimReply:
    """Return the parsed reply of ``claim.lua``.

    The values that are missing in a short reply are taken from ``last_reply``.
    """
    if last_reply is not None and len(reply) in (SHORT, SHORT_STANDBY):
        now = float(reply[0])
        found: dict[str, Any] = (
            {"next_due": float(reply[1]), "members": reply[2]}
            if len(reply) == SHORT
            else {"holder_ttl": reply[1] / 1000}
        )
        return replace(last_reply, now=now, expires=now, results=[], claims=[], **found)
    return ClaimReply(
        standing=reply[0],
        now=float(reply[1]),
        next_due=float(reply[2]) if reply[2] else None,
        members=reply[3],
        statics=reply[4],
        quarantined=reply[5],
        holder=valid_text(reply[6]),
        holder_ttl=reply[7] / 1000,
        results=read_results(reply[8], reply[9]),
        claims=read_claims(reply[10], reply[11], reply[12], turn_id),
        expires=float(reply[13]),
    )
