"""The only module that changes schedule data in Redis.

The methods of a store work with stored texts and numbers instead of entry objects. Each change of
entries runs one Lua script of ``redbeat/lua``. Redis errors pass through unchanged, except that
saving an entry at a key that is not a hash raises :exc:`~redbeat.errors.InvalidEntryError`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

from redis.exceptions import RedisError, ResponseError

from redbeat.codec.stored import bytes_of as key_of
from redbeat.codec.stored import text_of
from redbeat.config import App, RedBeatConfig, ensure_conf
from redbeat.connection.cluster import is_cluster
from redbeat.errors import InvalidEntryError
from redbeat.printing import get_logger

from .client import client_of
from .layout import layout_of
from .reading import (
    BATCH,
    ESCAPED,
    GLOB_SPECIAL,
    LAYOUT,
    START,
    Reading,
    Texts,
    batches,
    not_an_entry,
    read_texts,
)
from .records import (
    NO_RESULT,
    NOT_A_HASH,
    SAVED,
    STANDBY,
    ClaimReply,
    ClaimRequest,
    Ended,
    Keys,
    RunReport,
    Saved,
    StaticRow,
    Swept,
    Writing,
    json_text,
    pack_completions,
    pack_counts,
    pack_writings,
    read_saved,
    read_turn,
)
from .scripts import exchange, load_script, overlaps, packed, runs_once
from .shards import ShardedKeys, ShardedStore
from .wire import Presence, pack, pairs_of

logger = get_logger("celery.beat")


#: The keys of all entries that this thread saves or deletes, even if a save changes nothing.
#: The value None means that no keys are collected.
CHANGED_KEYS: ContextVar[list[str] | None] = ContextVar("CHANGED_KEYS", default=None)


def _note_changed(keys: Iterable[str]) -> None:
    changed = CHANGED_KEYS.get()
    if changed is not None:
        changed.extend(keys)


#: Maximum time to wait for replicas, in seconds.
WAIT_SECONDS = 1.0


class Replicas:
    """Waits until ``required`` replicas confirm the last writes of a connection.

    If too few replicas confirm within a second, a warning is logged, and the beat continues without
    the replicas. A second log line follows when enough replicas confirm the writes again.
    """

    def __init__(self, required: int) -> None:
        self.required = required
        self._enough = True

    def wait(self, connection: Any) -> None:
        """Wait for the replicas. Closes the connection to Redis after an error. One round trip."""
        # Wait for at most half of the socket timeout, so that the reply arrives in time.
        seconds = min(WAIT_SECONDS, (connection.socket_timeout or WAIT_SECONDS * 2) / 2)
        try:
            connection.send_command("WAIT", self.required, max(1, int(seconds * 1000)))
            confirmed = int(connection.read_response())
        except (RedisError, OSError) as error:
            connection.disconnect()
            logger.warning("beat: Cannot tell whether replicas recorded the runs: %s", error)
            return
        self._report(confirmed, seconds)

    def _report(self, confirmed: int, seconds: float) -> None:
        before, self._enough = self._enough, confirmed >= self.required
        if before and not self._enough:
            message = (
                "beat: Only %d of %d replicas recorded the last runs within %.2f s; "
                "the beat continues"
            )
            logger.warning(message, confirmed, self.required, seconds)
        elif self._enough and not before:
            logger.warning("beat: Enough replicas record the runs again: %d", confirmed)


#: Maximum wait of a beat between two ticks, in seconds.
#: A save wakes up waiting beats only if the entry may be due before their next tick.
MAX_WAIT = 5.0

#: The mark of a :meth:`Store.sweep` that puts nothing back.
LOOK = "-"

#: Codes of ``sync.lua`` if another beat leads: the script wrote nothing, or only missing entries.
SYNC_REFUSED, SYNC_ADDED_ONLY = -1, 2

#: Seconds until a beat looks again at an entry key without a definition.
MISSING_RETRY = 5


def save_results(writings: Sequence[Writing], reply: Sequence[bytes]) -> list[Saved]:
    """Return the result of each saved entry from the reply of ``save.lua``.

    Raises :exc:`InvalidEntryError` for a key that is not a hash.
    """
    if not isinstance(reply, list):
        return [Saved(SAVED)] * len(writings)  # the client is a mock in a test
    results = read_saved(reply)
    # If Redis has written only some of the entries, ``results`` is shorter than ``writings``.
    for writing, saved in zip(writings, results, strict=False):
        if saved.code == NOT_A_HASH:
            raise InvalidEntryError("name", not_an_entry(writing.key))
    return results


class Store(Reading):
    """Reads and changes the schedule under one key prefix.

    After each :meth:`claim` that records completions, the store waits until ``wait_replicas``
    replicas confirm the writes.
    """

    def __init__(self, client: Any, keys: Keys, wait_replicas: int = 0) -> None:
        super().__init__(client, keys)
        self._replicas = Replicas(wait_replicas)

    # -- requests of a beat ------------------------------------------------------------------

    def claim(self, *terms: Any, **more: Any) -> ClaimReply:
        """Acquire or extend the lock, record completions and claim due entries.

        Takes one round trip, or two round trips for a quick request without a lock if an entry is
        due.

        The arguments are the fields of a :class:`ClaimRequest`. The client does not retry the
        script. If the reply is lost, send the request again with ``reply_lost``.
        """
        request = ClaimRequest(*terms, **more)
        return self._retry_if_denied(partial(self._claim_once, request))

    def _claim_once(self, request: ClaimRequest) -> ClaimReply:
        if not runs_once(self.client):
            keys, args = self._claim_call(request)
            reply = self._run_once("claim", self._replace_denied(keys), args)
            return read_turn(reply, request.turn_id, request.quick)
        if request.quick is not None and request.lock is None and not is_cluster(self.client):
            found = self._look(request.quick)
            if found is not None:
                return found
            request = request._replace(quick=None)
        return self._send_claim(request)()

    def _look(self, last_reply: ClaimReply) -> ClaimReply | None:
        """Return the reply to a quick request without a lock, or None if an entry is due.

        The method sends single commands, because a script with the same commands takes Redis twice
        as long. One round trip.
        """
        self.round_trips += 1
        schedule = self.keys.schedule
        with self._naming_wrong_types():
            time, count, first = exchange(self.client, schedule, self._look_commands, 3)
        now = int(time[0]) + int(time[1]) / 1e6
        score = next((float(score) for _, score in pairs_of(first)), 0.0)
        return read_turn([now, score, count], "", last_reply) if score > now else None

    @cached_property
    def _look_commands(self) -> bytes:
        schedule = self.keys.schedule
        first = ("ZRANGEBYSCORE", schedule, 0, "+inf", "WITHSCORES", "LIMIT", 0, 1)
        return b"".join(map(packed, (("TIME",), ("ZCARD", schedule), first)))

    def begin_claim(self, request: ClaimRequest) -> Callable[[], ClaimReply]:
        """Send the request of :meth:`claim`, and return a function that waits for the reply.

        If :attr:`overlaps` is true, you can send other commands before you call the returned
        function. One round trip.
        """
        return self._send_claim(request)

    def _send_claim(self, request: ClaimRequest) -> Callable[[], ClaimReply]:
        self.round_trips += 1
        keys, args = self._claim_call(request)
        then = self._replicas.wait if request.completions and self._replicas.required else None
        reply = self._begin("claim", keys, args, then)
        return lambda: read_turn(reply(), request.turn_id, request.quick)

    @property
    def overlaps(self) -> bool:
        """Whether you can send other commands before the reply to :meth:`begin_claim` arrives."""
        return overlaps(self.client, self.keys.schedule)

    def _claim_call(self, request: ClaimRequest) -> tuple[list[str], tuple[Any, ...]]:
        names = self.keys
        last_turn = names.turn(request.turn_id.partition("-")[0])
        keys = self._with_missing_key(
            *(names.schedule, names.statics, names.quarantine, names.beats, names.stats),
            *(last_turn, names.failing, names.calendars),
        )
        token, ttl, dead = request.token, 0.0, ""
        if request.lock is not None:
            lock_key, token, ttl, dead = request.lock
            keys.append(lock_key)
        turn = (names.prefix, request.turn_id, request.limit, request.lease)
        lock = (token, int(ttl * 1000), dead)
        completions = pack_completions(request.completions)
        counted = pack_counts(request.counted)
        only = key_of(request.only)
        rest = int(request.reply_lost), request.history, *counted, only, request.way
        broker = "" if request.broker is None else " ".join(map(str, request.broker))
        late = "" if request.late is None else request.late
        quick, known_holder = "", ""
        if request.quick is not None:
            if request.quick.standing != STANDBY:
                quick = "1"
            elif not dead:
                known_holder = request.quick.holder
        limits = late, self.max_claim_seconds, quick, known_holder
        return keys, (*turn, *lock, MISSING_RETRY, *completions, *rest, broker, *limits)

    def park(self, notes: Iterable[tuple[str, str, str]]) -> list[str]:
        """Quarantine entries, and return the keys of the entries that were quarantined.

        ``notes`` contains a triple for each entry: key, claim id ("" if the key is not a hash), and
        JSON note. Takes one round trip per 500 entries.
        """
        return self._run_rows("park", notes)

    def _run_rows(self, script: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
        """Run a script with rows that begin with an entry key; return the keys in the replies.

        Takes one round trip per 500 rows.
        """
        found: list[str] = []
        for batch in batches(rows):
            args = [value for key, *rest in batch for value in (key_of(key), *rest)]
            found += map(text_of, self._run(script, self._quarantine_keys, args))
        return found

    @property
    def _quarantine_keys(self) -> list[str]:
        return self._with_missing_key(self.keys.schedule, self.keys.quarantine)

    @property
    def _noted_keys(self) -> list[str]:
        return [*self._quarantine_keys, self.keys.stats]

    def review(self, digests: Iterable[tuple[str, str]]) -> list[str]:
        """Release quarantined entries that changed in Redis; return their keys.

        ``digests`` contains a pair for each entry: the key, and the digest that the stored JSON had
        at the time of the quarantine. Takes one round trip per 500 entries.
        """
        return self._run_rows("review", digests)

    def wake_beats(self) -> None:
        """Wake up waiting beats, if the Redis user has the right to run PUBLISH. One round trip."""
        with suppress(ResponseError):
            self._read("PUBLISH", self.keys.wakeup, "due")

    def forget(self, members: Sequence[str]) -> list[str]:
        """Remove from the schedule the keys whose hash does not exist; return the removed keys.

        One round trip.
        """
        args = [self.keys.prefix, *map(key_of, members)]
        keys = [*self._with_missing_key(self.keys.schedule), self.keys.stats]
        reply = self._run("forget", keys, args)
        return [text_of(member) for member in reply]

    def sweep(
        self, cursor: str, mark: str = LOOK, disabled: float = 0.0, offset: int = 0, limit: int = 0
    ) -> Swept:
        """Find entry hashes that are not in the sorted set, and entries that were enabled again.

        Scans some keys from ``cursor`` on, or no keys if ``cursor`` is "". If the sorted set was
        lost, a beat puts entries back; ``mark`` is the mark of the last page, "" for none, or
        :data:`LOOK` to put nothing back. Checks whether ``limit`` entries with the score
        ``disabled``, beginning at ``offset``, were enabled. One round trip.
        """
        prefix = self.keys.prefix
        scan = (cursor, GLOB_SPECIAL.sub(ESCAPED, prefix) + "*", self._time_limit)
        args = [prefix, *scan, mark, disabled, offset, limit]
        reply = self._run("sweep", self._noted_keys, args)
        lists = ([text_of(key) for key in keys] for keys in reply[3:])
        return Swept(text_of(reply[0]), text_of(reply[1]), reply[2], *lists)

    # -- single entries ----------------------------------------------------------------------

    def save(self, key: str, *fields: Any, **more: Any) -> Saved:
        """Write one entry; see :meth:`save_all`. One round trip.

        The arguments are the fields of a :class:`Writing`. Raises :exc:`InvalidEntryError` for a
        key that is not a hash.
        """
        (saved,) = self.save_all([Writing(key, *fields, **more)])
        return saved

    def save_all(self, writings: Sequence[Writing]) -> list[Saved]:
        """Write entries, and wake up waiting beats whose next tick is too late for the entries.

        The code of each result is one of the following:

        - SAVED: the entry was written.
        - HISTORY_DIFFERS: the stored meta differs from the expected meta.
        - SAME: only the score may be wrong, because the stored meta differs from the expected meta,
          but the definition and the policy are already stored and ``made_up`` is set.
        - GONE: the entry does not exist and cannot be created, because ``definition`` or ``meta``
          is empty.
        - CLOCK_AHEAD: the last run ``made_up`` is later than the time of Redis.
        - CONFLICT: the stored definition or policy differs from the expected definition or policy.

        Raises :exc:`InvalidEntryError` for a key that is not a hash. If one key is not a hash,
        Redis writes no entry. Takes one round trip, or more if Redis needs longer than
        :attr:`max_seconds`; pass at most 500 entries.
        """
        results: list[Saved] = []
        while left := writings[len(results) :]:
            results += save_results(left, self._run("save", *self._save_call(left)))
        return results

    def begin_save_all(self, writings: Sequence[Writing]) -> Callable[[], list[Saved]]:
        """Send the entries of :meth:`save_all`, and return a function that waits for the results.

        You must call the returned function, but you can send other commands before the call. If
        the client cannot send commands while a script runs, this method waits for the results
        itself. After a connection error, the method sends the entries again with the client's
        retries. A repeated write of the same entries does no harm. One round trip.
        """
        if runs_once(self.client) and self.overlaps:
            with suppress(RedisError, OSError):
                keys, args = self._save_call(writings)
                reply = load_script("save").begin(self.client, self._replace_denied(keys), args)
                self.round_trips += 1
                return partial(self._results_or_repeat, writings, reply)
        return partial(list, self.save_all(writings))

    def _results_or_repeat(
        self, writings: Sequence[Writing], reply: Callable[[], Any]
    ) -> list[Saved]:
        try:
            results = save_results(writings, reply())
        except (RedisError, OSError):
            return self.save_all(writings)
        return [*results, *self.save_all(writings[len(results) :])]

    def _save_call(self, writings: Sequence[Writing]) -> tuple[list[Any], tuple[Any, ...]]:
        first_key = key_of(writings[0].key)
        names = self.keys
        keys = self._with_missing_key(names.schedule, names.quarantine, first_key)
        keys += names.expected, names.stats
        _note_changed(writing.key for writing in writings if writing.definition)
        return keys, (self.keys.wakeup, MAX_WAIT, *pack_writings(writings), self._time_limit)

    def delete(self, key: str) -> bool:
        """Delete an entry and its history; return whether the entry existed. One round trip."""
        return bool(self.delete_all([key]))

    def delete_all(self, keys: Sequence[str]) -> int:
        """Delete entries and their histories; return how many entries existed.

        Takes one round trip; pass at most 500 keys.
        """
        _note_changed(keys)
        return int(self._run("delete", self._noted_keys, ["", *map(key_of, keys)]))

    def delete_unchanged(self, key: str, definition: str, policy: str) -> bool:
        """Delete an entry if the stored definition and policy equal ``definition`` and ``policy``.

        One round trip. Returns False if the stored definition or policy differs from the arguments.
        Returns True if the entry was deleted or does not exist.
        """
        _note_changed([key])
        expected = key_of(f"{definition}\n{policy}")
        return int(self._run("delete", self._noted_keys, [expected, key_of(key)])) >= 0

    def pop(self, key: str) -> Texts:
        """Delete an entry, and return its fields like :meth:`load`. One round trip.

        Redis keeps a copy of the fields for a minute, because the client repeats the call if the
        reply is lost.
        """
        _note_changed([key])
        return read_texts(self._retry_if_denied(partial(self._pop_once, key)))

    def _pop_once(self, key: str) -> Any:
        names, call = self.keys, f"pop-{uuid.uuid4().hex[:12]}"
        keys = self._with_missing_key(names.schedule, names.quarantine, names.turn(call))
        keys.append(names.stats)
        return self._run_once("pop", self._replace_denied(keys), [key_of(key)])

    def end_run(self, key: str, task_id: str, result: RunReport = NO_RESULT) -> Ended:
        """Record the end of a run, and its result unless ``result`` is :data:`NO_RESULT`.

        One round trip.
        """
        names = self.keys
        keys = [names.schedule, key_of(key), names.expected, names.stats]
        state, run, age, line, lines = result
        fixed = json_text(task_id)[1:-1], names.wakeup
        args = [*fixed, state, run, f"{age:.6f}", json_text(line)[1:-1], lines]
        active, failures = self._run("ended", keys, args)
        return Ended(bool(active), failures)

    def trigger(self, key: str, run_id: str, most: int) -> int:
        """Request an extra run as soon as possible; return the code of ``trigger.lua``.

        At most ``most`` triggered runs of the entry can wait at the same time. One round trip.
        """
        keys = [self.keys.schedule, key_of(key), self.keys.quarantine]
        return int(self._run("trigger", keys, [run_id, most, self.keys.wakeup]))

    def replace_waiting(self, key: str, expected: str, meta: str, waiting: str) -> int:
        """Replace the waiting runs of an entry; return the code of ``backfill.lua``.

        ``expected`` and ``meta`` are the values that the caller expects in the stored fields
        ``trigger`` and ``meta``. One round trip.
        """
        keys = [self.keys.schedule, key_of(key), self.keys.quarantine]
        return int(self._run("backfill", keys, [expected, meta, waiting, self.keys.wakeup]))

    def tidy_stats(self, most: int) -> int:
        """Remove the counts of deleted entries from the stats; return how many counts were removed.

        Entries that no longer fail are removed from the index of failing entries. Beats whose "last
        seen" time is in the future are removed, because another program must have written the time.
        If the schedule has more than ``most`` entries, the counts of all entries are removed. Takes
        one round trip, and one more round trip per 500 entries that are failing, have counts or
        have ``expect_within``.
        """
        names = self.keys
        keys = self._with_missing_key(
            names.schedule, names.stats, names.beats, names.failing, names.expected
        )
        removed, cursors = 0, [START] * 3
        while any(cursors):
            reply = self._run("tidy", keys, [names.prefix, most, BATCH, *cursors])
            removed += int(reply[0])
            cursors = [text_of(cursor) for cursor in reply[1:]]
        return removed

    def save_calendar(self, name: str, text: str) -> None:
        """Store a calendar as JSON. One round trip."""
        self._read("HSET", self.keys.calendars, name, text)

    def delete_calendar(self, name: str) -> bool:
        """Delete a calendar; return whether the calendar existed. One round trip."""
        return bool(self._read("HDEL", self.keys.calendars, name))

    def note_calendar_users(self, keys: Sequence[str]) -> None:
        """Record that the entries with these ``keys`` have calendars. One round trip."""
        self._read("SADD", self.keys.calendar_users, *map(key_of, keys))

    def forget_calendar_users(self, keys: Sequence[str]) -> None:
        """Record that the entries with these ``keys`` have no calendars. One round trip."""
        self._read("SREM", self.keys.calendar_users, *map(key_of, keys))

    def note(self, field: str, text: str) -> None:
        """Store a text in a field of the stats; the text "" removes the field. One round trip.

        If Redis refuses the command, the method raises no error, because without the text a beat
        only repeats some work.
        """
        stats = self.keys.stats
        command = ("HSET", stats, field, text) if text else ("HDEL", stats, field)
        with suppress(ResponseError):
            self._read_aside(*command)

    def save_layout_note(self, text: str) -> None:
        """Store the note about the number of shards. One round trip."""
        self._read_aside("HSET", self.keys.stats, LAYOUT, text)

    # -- static entries ----------------------------------------------------------------------

    def _static_keys(self, lock_key: str | None, *more: str) -> list[str]:
        names = self.keys
        keys = self._with_missing_key(names.schedule, names.statics, names.quarantine)
        keys += *more, names.stats
        return keys if lock_key is None else [*keys, lock_key]

    def sync_statics(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: float = 0.0
    ) -> list[int] | None:
        """Write the static entries in ``rows`` that are missing or different in Redis.

        Extends the lock to ``ttl`` seconds from now. Returns a code of ``sync.lua`` for each row,
        or None if the caller is no longer the leader. Takes one round trip; pass at most 500 rows.
        """
        standing, codes = self._sync(rows, lock_key, token, str(int(ttl * 1000)))
        return None if standing == SYNC_REFUSED else codes

    def offer_statics(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str
    ) -> tuple[bool, list[int]]:
        """Write the static entries in ``rows`` that are missing or different in Redis.

        If another beat leads, the method writes only the entries that are missing in Redis. The
        first returned value is False if another beat leads. The second returned value is a list
        with a code of ``sync.lua`` for each row. Takes one round trip; pass at most 500 rows.
        """
        standing, codes = self._sync(rows, lock_key, token, "")
        return standing != SYNC_ADDED_ONLY, codes

    def _sync(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: str
    ) -> tuple[int, list[int]]:
        """Run ``sync.lua`` on all rows; return the code of the whole sync, and a code per row.

        Takes one round trip, or more if Redis needs longer than :attr:`max_seconds`.
        """
        standing, codes = self._sync_some(rows, lock_key, token, ttl)
        while codes and len(codes) < len(rows) and standing != SYNC_REFUSED:
            standing, more = self._sync_some(rows[len(codes) :], lock_key, token, ttl)
            codes += more
        return standing, codes

    def _sync_some(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: str
    ) -> tuple[int, list[int]]:
        """Run ``sync.lua`` once; return the code of the whole sync, and the codes of written rows.

        If the script reaches its time limit, the remaining rows have no code. A meta that equals
        the meta of the previous row is sent as "", because most rows have the same meta.
        """
        fields: list[str] = []
        previous = ""
        for row in rows:
            meta = "" if row.meta == previous else row.meta
            fields += row.name, row.key, row.definition, row.policy, meta, f"{row.score:.6f}"
            previous = row.meta
        keys = self._static_keys(lock_key, self.keys.expected)
        reply = self._run("sync", keys, (token, ttl, *pack(fields), self._time_limit))
        return reply[0], [int(code) for code in text_of(reply[1])] if reply[1:] else []

    def prune_statics(self, names: Sequence[str], lock_key: str | None, token: str) -> bool:
        """Delete static entries; return False if the caller is no longer the leader.

        Takes one round trip; pass at most 500 names.
        """
        args: list[Any] = [token]
        for name in names:
            args += key_of(name), key_of(self.keys.entry(name))
        return bool(self._run("prune", self._static_keys(lock_key), args) != -1)

    # -- lock --------------------------------------------------------------------------------

    def acquire_lock(self, key: str, token: str, ttl: float) -> bool:
        """Acquire or extend the lock for ``ttl`` seconds. One round trip.

        Returns False if another beat holds the lock.
        """
        return bool(self._run("acquire", [key], [token, int(ttl * 1000)]))

    def extend_lock(self, key: str, token: str, ttl: float) -> bool:
        """Extend the lock to ``ttl`` seconds from now; return whether ``token`` holds the lock.

        One round trip.
        """
        return bool(self._run("extend", [key], [token, int(ttl * 1000)]))

    def release_lock(self, key: str, token: str) -> bool:
        """Release the lock and wake up standbys; return whether ``token`` held the lock.

        One round trip.
        """
        present = Presence(token, 0.0, locked=True).member
        args = [token, self.keys.wakeup, present]
        return bool(self._run("release", [key, self.keys.beats], args))

    def leave(self, token: str, locked: bool = False) -> None:
        """Remove a beat from the active beats. One round trip.

        ``locked`` must be true if the beat used the lock.
        """
        self._read_aside("ZREM", self.keys.beats, Presence(token, 0.0, locked).member)


def store_of(app: App | None, client: Any = None) -> Store:
    """Return the store of an app's schedule; the default ``client`` is the client of the app."""
    client = client_of(app) if client is None else client
    conf = ensure_conf(app)
    if conf.shards > 1:
        names = (conf.key_prefix, conf.schedule_key, conf.statics_key, conf.denied_keys)
        keys = ShardedKeys(*names, layout_of(conf))
        # A ShardedStore lacks some methods of a Store, but only beats use the missing methods.
        return cast("Store", ShardedStore(client, keys, partial(store_of_shard, conf, client)))
    return base_store(conf, client)


def base_store(conf: RedBeatConfig, client: Any) -> Store:
    """Return the store under the base prefix.

    The store under the base prefix has no entries if the schedule has several shards.
    """
    keys = Keys(conf.key_prefix, conf.schedule_key, conf.statics_key, conf.denied_keys)
    return Store(client, keys, conf.wait_replicas)


def store_of_shard(conf: RedBeatConfig, client: Any, number: int) -> Store:
    """Return the store of one shard of a schedule with several shards."""
    prefix = layout_of(conf).prefixes[number]
    keys = replace(Keys.under(prefix), denied=conf.denied_in(prefix))
    return Store(client, keys, conf.wait_replicas)
