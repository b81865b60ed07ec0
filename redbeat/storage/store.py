"""The only module that changes schedule data in Redis; it speaks text and numbers.

Every change of state is one script of ``redbeat/lua``. Redis errors pass through unchanged, unless
they tell about one entry: one saved at a key that is not a hash is an
:exc:`~redbeat.errors.InvalidEntryError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from redbeat.config import ensure_conf
from redbeat.errors import InvalidEntryError

from .client import client_of
from .reading import (
    BATCH,
    GLOB_SPECIAL,
    PROBLEM,
    STATICS,
    TIME_ZONE,
    Reading,
    Texts,
    batches,
    not_an_entry,
    read_texts,
)
from .records import (
    NOT_A_HASH,
    SAVED,
    ClaimReply,
    ClaimRequest,
    Keys,
    Saved,
    StaticRow,
    Swept,
    Writing,
    json_text,
    key_of,
    pack_completions,
    pack_counts,
    pack_writings,
    read_saved,
    read_turn,
)
from .scripts import load_script, overlaps, runs_once
from .wire import Presence, pack, text_of

__all__ = (
    "BATCH",
    "MAX_WAIT",
    "Replicas",
    "Store",
    "batches",
    "store_of",
)

logger = get_logger("celery.beat")


#: Seconds to wait for them at most.
WAIT_SECONDS = 1.0


class Replicas:
    """Has a connection wait until ``wanted`` replicas confirmed what was written on it.

    Too few of them hold up nothing but for a second: that is logged, and so is their return.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._enough = True

    def wait(self, connection: Any) -> None:
        """Wait for them. One round trip. A broken connection is left for the next command."""
        # Half of what the socket allows, so that the answer still comes in time.
        seconds = min(WAIT_SECONDS, (connection.socket_timeout or WAIT_SECONDS * 2) / 2)
        try:
            connection.send_command("WAIT", self.wanted, max(1, int(seconds * 1000)))
            reached = int(connection.read_response())
        except (RedisError, OSError) as error:
            connection.disconnect()
            logger.warning("beat: Cannot tell whether replicas recorded the runs: %s", error)
            return
        self._report(reached, seconds)

    def _report(self, reached: int, seconds: float) -> None:
        before, self._enough = self._enough, reached >= self.wanted
        if before and not self._enough:
            message = "beat: %d replicas of %d recorded the last runs within %.2f s, going on"
            logger.warning(message, reached, self.wanted, seconds)
        elif self._enough and not before:
            logger.warning("beat: %d replicas record the runs again", reached)


#: Seconds a beat waits at most between two looks; what is due later needs no wake-up message.
MAX_WAIT = 5.0

#: Keys looked at in one page of a sweep.
SCAN_PAGE = 1000

#: What ``sync.lua`` returns of the standing of its caller, where it did not write everything.
SYNC_REFUSED, SYNC_ADDED_ONLY = -1, 2

#: Seconds until a member without a definition is looked at again.
MISSING_RETRY = 5


def read_written(writings: Sequence[Writing], reply: Sequence[bytes]) -> list[Saved]:
    """Return what became of writings; raises :exc:`InvalidEntryError` for a key of another type."""
    if not isinstance(reply, list):
        return [Saved(SAVED)] * len(writings)  # a client that a test mocks
    results = read_saved(reply)
    for writing, saved in zip(writings, results, strict=True):
        if saved.code == NOT_A_HASH:
            raise InvalidEntryError("name", not_an_entry(writing.key))
    return results


class Store(Reading):
    """The schedule of one prefix in one Redis.

    ``wait_replicas`` is how many replicas a claim waits for when it recorded something.
    """

    def __init__(self, client: Any, keys: Keys, wait_replicas: int = 0) -> None:
        super().__init__(client, keys)
        self._replicas = Replicas(wait_replicas)

    # -- one turn of a beat ------------------------------------------------------------------

    def claim(self, *terms: Any, **more: Any) -> ClaimReply:
        """Take a turn on the :class:`ClaimRequest` of these arguments. One round trip.

        Keeps the lock, records completions, claims what is due. The client does not try it again: a
        caller whose reply got lost has other things to say the next time.
        """
        asked = ClaimRequest(*terms, **more)
        if runs_once(self.client):
            return self._permitted(partial(self._claim_once, asked))
        return read_turn(self._permitted(partial(self._ask_claim, asked)), asked.turn_id)

    def _ask_claim(self, terms: ClaimRequest) -> Any:
        keys, args = self._claim_call(terms)
        return self._run_with("claim", self._usable(keys), args)

    def _claim_once(self, terms: ClaimRequest) -> ClaimReply:
        return self._send_claim(terms)()

    def begin_claim(self, terms: ClaimRequest) -> Callable[[], ClaimReply]:
        """Do as :meth:`claim`, without waiting; the function returned waits for the answer.

        Where :attr:`overlaps` holds, other commands may be given meanwhile. One round trip.
        """
        return self._send_claim(terms)

    def _send_claim(self, terms: ClaimRequest) -> Callable[[], ClaimReply]:
        self.round_trips += 1
        keys, args = self._claim_call(terms)
        then = self._replicas.wait if terms.completions and self._replicas.wanted else None
        reply = load_script("claim").begin(self.client, self._usable(keys), args, then)
        return lambda: read_turn(reply(), terms.turn_id)

    @property
    def overlaps(self) -> bool:
        """Whether :meth:`begin_claim` works with this client. No round trip."""
        return overlaps(self.client, self.keys.schedule)

    def _claim_call(self, terms: ClaimRequest) -> tuple[list[str], tuple[Any, ...]]:
        own = self.keys
        last_turn = own.turn(terms.turn_id.partition("-")[0])
        keys = self._undeclared(
            *(own.schedule, own.statics, own.quarantine, own.beats, own.stats, last_turn)
        )
        token, ttl, dead = terms.token, 0.0, ""
        if terms.lock is not None:
            lock_key, token, ttl, dead = terms.lock
            keys.append(lock_key)
        asked = (own.prefix, terms.turn_id, terms.limit, terms.lease)
        lock = (token, int(ttl * 1000), dead)
        done = pack_completions(terms.completions)
        counted = pack_counts(terms.counted)
        rest = (int(terms.reply_lost), terms.history, *counted, key_of(terms.only), terms.way)
        broker = "" if terms.broker is None else " ".join(map(str, terms.broker))
        late = "" if terms.late is None else terms.late
        return keys, (*asked, *lock, MISSING_RETRY, *done, *rest, broker, late)

    def park(self, notes: Iterable[tuple[str, str, str]]) -> list[str]:
        """Quarantine entries: (key, claim id or "" when it is no hash, JSON note).

        Returns the keys that were parked. One round trip per 500.
        """
        parked: list[str] = []
        for batch in batches(notes):
            args = [value for key, claim, note in batch for value in (key_of(key), claim, note)]
            reply = self._run("park", self._set_aside, args)
            parked += map(text_of, reply)
        return parked

    @property
    def _set_aside(self) -> list[str]:
        return self._undeclared(self.keys.schedule, self.keys.quarantine)

    def review(self, digests: Iterable[tuple[str, str]]) -> list[str]:
        """Release quarantined entries whose text changed; returns their keys.

        ``digests`` are (key, digest of what was parked). One round trip per 500.
        """
        released: list[str] = []
        for batch in batches(digests):
            args = [value for key, digest in batch for value in (key_of(key), digest)]
            reply = self._run("review", self._set_aside, args)
            released += map(text_of, reply)
        return released

    def wake_beats(self) -> None:
        """Tell beats that wait to look what is due. One round trip; not every user may do it."""
        with suppress(ResponseError):
            self._read("PUBLISH", self.keys.wakeup, "due")

    def forget(self, members: Sequence[str]) -> list[str]:
        """Remove members whose hash is gone; returns those removed. One round trip."""
        args = [self.keys.prefix, *map(key_of, members)]
        reply = self._run("forget", self._undeclared(self.keys.schedule), args)
        return [text_of(member) for member in reply]

    def sweep(
        self, cursor: str, disabled: float, offset: int, limit: int, known: Sequence[str]
    ) -> Swept:
        """Look for entries that are no members, and for disabled ones that are so no more.

        Scans a page of keys from ``cursor`` on, none when it is empty, and ``limit`` members at
        score ``disabled`` from ``offset`` on. The ``known`` keys become due now if they are still
        no members. One round trip.
        """
        prefix = self.keys.prefix
        scan = (cursor, GLOB_SPECIAL.sub(r"\\\g<0>", prefix) + "*", SCAN_PAGE)
        args = [prefix, *scan, disabled, offset, limit, *map(key_of, known)]
        reply = self._run("sweep", self._undeclared(self.keys.schedule), args)
        orphans, returned, enabled = ([text_of(key) for key in found] for found in reply[1:4])
        bad = [text_of(key) for key in reply[5]]
        return Swept(text_of(reply[0]), orphans, returned, enabled, reply[4], bad)

    # -- single entries ----------------------------------------------------------------------

    def save(self, key: str, *fields: Any, **more: Any) -> Saved:
        """Write one :class:`Writing` of these arguments; see :meth:`save_all`. One round trip.

        Raises :exc:`InvalidEntryError` for a key that is not a hash.
        """
        (saved,) = self.save_all([Writing(key, *fields, **more)])
        return saved

    def save_all(self, writings: Sequence[Writing]) -> list[Saved]:
        """Write entries, and wake up beats that wait for something later.

        The code of each is SAVED when it was written; HISTORY_DIFFERS when the stored meta is
        another one; SAME when moreover these texts are stored already and ``made_up`` is given:
        only its score may be wrong then; GONE when there is no entry to change; CLOCK_AHEAD when
        ``made_up`` is ahead of the time of Redis; CONFLICT when the stored
        texts are not those believed in. Raises :exc:`InvalidEntryError` for a key that is not a
        hash; nothing is written then. One round trip; send at most 500.
        """
        return read_written(writings, self._run("save", *self._save_call(writings)))

    def begin_save_all(self, writings: Sequence[Writing]) -> Callable[[], list[Saved]]:
        """Do as :meth:`save_all`, without waiting; the function returned waits for the answer.

        It must be called. Other commands may be given meanwhile; where that cannot be, this waits.
        What fails is written once more by :meth:`save_all`, for which the client tries again: to
        have written the same before changes nothing. One round trip.
        """
        if runs_once(self.client) and self.overlaps:
            with suppress(RedisError, OSError):
                keys, args = self._save_call(writings)
                reply = load_script("save").begin(self.client, self._usable(keys), args)
                self.round_trips += 1
                return partial(self._heard, writings, reply)
        return partial(list, self.save_all(writings))

    def _heard(self, writings: Sequence[Writing], reply: Callable[[], Any]) -> list[Saved]:
        try:
            return read_written(writings, reply())
        except (RedisError, OSError):
            return self.save_all(writings)

    def _save_call(self, writings: Sequence[Writing]) -> tuple[list[Any], tuple[Any, ...]]:
        first_key = key_of(writings[0].key)
        keys = self._undeclared(self.keys.schedule, self.keys.quarantine, first_key)
        return keys, (self.keys.wakeup, MAX_WAIT, *pack_writings(writings))

    def delete(self, key: str) -> bool:
        """Remove an entry and its history; False when there was none. One round trip."""
        return bool(self.delete_all([key]))

    def delete_all(self, keys: Sequence[str]) -> int:
        """Remove entries and their histories; returns how many there were.

        One round trip; send at most 500.
        """
        places = self._undeclared(self.keys.schedule, self.keys.quarantine)
        return int(self._run("delete", places, [key_of(key) for key in keys]))

    def pop(self, key: str) -> Texts:
        """Remove an entry, and return what :meth:`load` would have returned. One round trip."""
        return read_texts(self._run("pop", self._set_aside, [key_of(key)]))

    def end_run(self, key: str, task_id: str) -> bool:
        """Note the end of a run of an entry whose runs must not overlap. One round trip.

        False when it is not the one that the entry waits for.
        """
        keys = [self.keys.schedule, key_of(key)]
        return bool(self._run("ended", keys, [json_text(task_id)[1:-1], self.keys.wakeup]))

    def trigger(self, key: str, run_id: str, most: int) -> int:
        """Ask for a run beside the schedule; what became of it as ``trigger.lua`` says.

        ``most`` is how many may wait. One round trip.
        """
        keys = [self.keys.schedule, key_of(key), self.keys.quarantine]
        return int(self._run("trigger", keys, [run_id, most, self.keys.wakeup]))

    def tidy_stats(self, most: int) -> int:
        """Remove counts of entries that are gone, and those of all if there are more than ``most``.

        Returns how many were removed. One round trip.
        """
        keys = self._undeclared(self.keys.schedule, self.keys.stats)
        return int(self._run("tidy", keys, [self.keys.prefix, most]))

    def note_time_zone(self, zone: str) -> None:
        """Remember the zone in which the scores of the schedule were computed. One round trip."""
        self._note(TIME_ZONE, zone)

    def note_problem(self, text: str) -> None:
        """Tell all who ask that a beat sends nothing, and why; "" that it does. One round trip."""
        if text:
            self._note(PROBLEM, text)
        else:
            with suppress(ResponseError):
                self._read_aside("HDEL", self.keys.stats, PROBLEM)

    def note_statics(self, digest: str) -> None:
        """Remember which static entries were written last at a start. One round trip."""
        self._note(STATICS, digest)

    def _note(self, field: str, text: str) -> None:
        with suppress(ResponseError):  # what is not noted is done once more
            self._read_aside("HSET", self.keys.stats, field, text)

    # -- static entries ----------------------------------------------------------------------

    def _static_keys(self, lock_key: str | None) -> list[str]:
        own = self.keys
        keys = self._undeclared(own.schedule, own.statics, own.quarantine)
        return keys if lock_key is None else [*keys, lock_key]

    def sync_statics(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: float = 0.0
    ) -> list[int] | None:
        """Write the rows that differ; a code per row as ``sync.lua`` gives them.

        The lock then lives for ``ttl`` seconds. None when the caller does not lead any more. One
        round trip; send at most 500 rows.
        """
        standing, codes = self._sync(rows, lock_key, token, str(int(ttl * 1000)))
        return None if standing == SYNC_REFUSED else codes

    def offer_statics(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str
    ) -> tuple[bool, list[int]]:
        """Write the rows that differ, but only those that are missing while another beat leads.

        Returns whether no other beat leads, and the codes as :meth:`sync_statics` does. One round
        trip; send at most 500 rows.
        """
        standing, codes = self._sync(rows, lock_key, token, "")
        return standing != SYNC_ADDED_ONLY, codes

    def _sync(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: str
    ) -> tuple[int, list[int]]:
        """No meta is empty, and one that equals that of the row before is not sent again."""
        fields: list[str] = []
        meta = ""
        for row in rows:
            again = "" if row.meta == meta else row.meta
            fields += row.name, row.key, row.definition, row.policy, again, f"{row.score:.6f}"
            meta = row.meta
        reply = self._run("sync", self._static_keys(lock_key), (token, ttl, *pack(fields)))
        return reply[0], [int(code) for code in reply[1].decode()] if reply[1:] else []

    def prune_statics(self, names: Sequence[str], lock_key: str | None, token: str) -> bool:
        """Remove static entries; False when the caller does not lead any more.

        One round trip; send at most 500 names.
        """
        args: list[Any] = [token]
        for name in names:
            args += key_of(name), key_of(self.keys.entry(name))
        return bool(self._run("prune", self._static_keys(lock_key), args) != -1)

    # -- lock --------------------------------------------------------------------------------

    def acquire_lock(self, key: str, token: str, ttl: float) -> bool:
        """Take or keep the lock for ``ttl`` seconds; False if another holds it. One round trip."""
        return bool(self._run("acquire", [key], [token, int(ttl * 1000)]))

    def extend_lock(self, key: str, token: str, ttl: float) -> bool:
        """Let our lock live ``ttl`` seconds from now; False when it is not ours. One round trip."""
        return bool(self._run("extend", [key], [token, int(ttl * 1000)]))

    def release_lock(self, key: str, token: str) -> bool:
        """Give up our lock and wake up who waits; False when it was not ours. One round trip."""
        present = Presence(token, 0.0, locked=True).member
        args = [token, self.keys.wakeup, present]
        return bool(self._run("release", [key, self.keys.beats], args))

    def leave(self, token: str, locked: bool = False) -> None:
        """Remove a beat from those that are present; ``locked`` as there. One round trip."""
        self._read_aside("ZREM", self.keys.beats, Presence(token, 0.0, locked).member)


def store_of(app: Any, client: Any = None) -> Store:
    """Return the store of an app's schedule, on ``client`` or on the client of the app."""
    client = client_of(app) if client is None else client
    conf = ensure_conf(app)
    keys = Keys(conf.key_prefix, conf.schedule_key, conf.statics_key, conf.denied_keys)
    return Store(client, keys, conf.wait_replicas)
