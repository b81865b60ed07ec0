"""Computes which shards of a schedule belong to one beat, and ticks these shards.

The first shard has a list of all active beats, because every beat ticks the first shard, as its
leader or as a standby. From the list of active beats, each beat computes which shards are its own;
see :func:`owners`. Even if two beats read different lists, no run is sent twice, because each shard
has its own lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from redis.exceptions import RedisError

from redbeat.config import RedBeatConfig
from redbeat.connection.cluster import node_of
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, described
from redbeat.metrics.counters import Counters
from redbeat.metrics.health import BeatHealth
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.storage.layout import layout_of
from redbeat.storage.store import Store, store_of_shard

from .lock import FORGET_AFTER, SEEN_WITHIN, SILENCE, TOKEN_PREFIX, BeatLock
from .publisher import Publisher
from .retries import Pace
from .scheduler_protocol import SchedulerProtocol
from .statics import StaticEntries
from .stop_signals import HeldSignals
from .ticker import MAX_TICK, Ticker

logger = get_logger("celery.beat")

#: Seconds between two reads of the list of active beats.
LOOK_INTERVAL: Final = 1.0

#: After a failed tick, a beat waits before it sends the next request to the failed server.
#: The wait is at least ``FAILURE_PAUSE`` times as long as the failed tick.
#: Because of the wait, a failing server delays the shards on other servers only a little.
FAILURE_PAUSE: Final = 4


def owners(beats: Collection[str], shards: int, first: str = "") -> list[str]:
    """Return the token of the owner of each shard; ``beats`` are the tokens of all beats.

    The numbers of shards of two beats differ by at most one. If ``first`` is the token of one of
    the beats, that beat owns the first shard. For each shard after the first, the beats are ranked
    by a hash of beat and shard (rendezvous hashing). The highest-ranked beat that has room for
    another shard owns the shard. When a beat starts or stops, the owners of most shards do not
    change.
    """
    least, extra = divmod(shards, len(beats))
    counts = dict.fromkeys(sorted(beats), 0)

    def has_room(beat: str) -> bool:
        return counts[beat] < least or (counts[beat] == least and extra > 0)

    def rank(beat: str, shard: int) -> bytes:
        return blake2b(f"{shard} {beat}".encode(), digest_size=8).digest()

    result = []
    for shard in range(shards):
        if shard == 0 and first in counts:
            owner = first
        else:
            owner = max(filter(has_room, counts), key=lambda beat: rank(beat, shard))
        extra -= counts[owner] == least
        counts[owner] += 1
        result.append(owner)
    return result


class ShardLock(BeatLock):
    """The lock of one shard; all locks of a beat have the same token.

    The holder of the lock also counts as dead if it has sent no request to the first shard for
    :data:`SILENCE` seconds. A standby can therefore take over a shard without watching the
    lock of the shard first.
    """

    def __init__(
        self, *args: Any, token: str | None, silent: Callable[[str], float], **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.token = token or self.token
        self._silent = silent

    def _dead_holder(self) -> str:
        holder = self._holder
        if holder.startswith(TOKEN_PREFIX):
            silence = self._silent(holder)
            if silence >= SILENCE:
                logger.warning(
                    "beat: The beat %s is silent, so this beat takes over %s", holder, self.key
                )
                return holder
        return super()._dead_holder()


def stores_of_shards(conf: RedBeatConfig, client: Any) -> list[Store]:
    """Return a store for each shard of a schedule. No round trip."""
    return [store_of_shard(conf, client, number) for number in range(conf.shards)]


class ShardedStatics:
    """The entries of ``beat_schedule``, each in the :class:`StaticEntries` of its shard."""

    def __init__(self, conf: RedBeatConfig, shards: Callable[[], ShardedTicker]) -> None:
        self._layout = layout_of(conf)
        self._shards = shards
        self.parts = [StaticEntries() for _ in range(conf.shards)]

    def _part(self, name: object) -> StaticEntries:
        return self.parts[self._layout.shard_of(str(name))]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def collect(self) -> None:
        """Start a new collection; static entries that are not added to it count as removed."""
        for part in self.parts:
            part.collect()

    def add(self, name: str, entry: RedBeatSchedulerEntry) -> None:
        """Add a static entry to its shard, see :meth:`StaticEntries.add`."""
        self._part(name).add(name, entry)

    def refuse(self, name: str, error: Exception) -> None:
        """Log an entry that cannot be created or stored, and remove it from the collection."""
        self._part(name).refuse(name, error)

    def restore_schedule(self, entry: RedBeatSchedulerEntry) -> None:
        """Restore the schedule of a loaded entry, see :meth:`StaticEntries.restore_schedule`."""
        self._part(entry.name).restore_schedule(entry)

    def offer(self, *_: Any) -> None:
        """Add and change the static entries of each shard, see :meth:`StaticEntries.offer`."""
        shards = self._shards()
        for part, store, lock in zip(self.parts, shards.stores, shards.locks, strict=True):
            part.offer(store, lock)

    def prune(self, *_: Any, exclusive: bool) -> None:
        """Remove entries that ``beat_schedule`` no longer contains from the shards of this beat."""
        shards = self._shards()
        for number in shards.owned:
            self.parts[number].prune(shards.stores[number], shards.locks[number], exclusive)


class SummedCounters(Counters):
    """The sums of the counters of all shards."""

    def __init__(self, parts: Mapping[int, Ticker], max_entries: int) -> None:
        super().__init__(max_entries)
        self._parts = parts

    @property
    def by_entry(self) -> bool:
        """Whether the counters of every shard count each entry separately."""
        return all(ticker.counters.by_entry for ticker in [*self._parts.values()])

    def totals(self) -> dict[str, int]:
        """Return all counts since the start of the beat, by field. This method is thread-safe."""
        totals: Counter[str] = Counter()
        for ticker in [*self._parts.values()]:
            totals.update(ticker.counters.totals())
        return dict(totals)


class ShardedTicker:
    """Runs the ticks of one beat on its shards; has the same methods as :class:`Ticker`.

    The arguments are those of :class:`Ticker`, but with a ``client`` instead of a store, and with a
    ``lock_key`` instead of a lock. ``lock_key`` is None if several beats share the work. If only
    one beat works at a time, the key of each shard's lock is ``lock_key`` with the prefix of the
    shard.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        client: Any,
        lock_key: str | None,
        timeout: float,
        statics: ShardedStatics,
        conf: RedBeatConfig,
        clock: Callable[[], float],
        lease: float,
    ) -> None:
        self.running = False
        self.layout = layout_of(conf)
        self.stores = stores_of_shards(conf, client)
        self.locks: list[ShardLock | None] = []
        for number, store in enumerate(self.stores):
            key = lock_key and self.layout.lock_key(number, lock_key)
            token = self.locks[0].token if self.locks and self.locks[0] else None
            terms: dict[str, Any] = {"clock": clock, "token": token, "silent": self._silence_of}
            self.locks.append(ShardLock(store, key, timeout, **terms) if key else None)
        #: The numbers of the shards that this beat ticks. Every beat ticks shard 0.
        self.owned: set[int] = {0}
        #: The shards that now belong to other beats, but whose locks this beat may still hold.
        self._leaving: set[int] = set()
        self._scheduler = scheduler
        self._client = client
        self._statics = statics
        self._conf = conf
        self._clock = clock
        self._lease = lease
        self._publisher = Publisher(conf.publish_window, clock)
        self._pace = Pace(conf.max_rate)
        self._tickers: dict[int, Ticker] = {}
        self.counters = SummedCounters(self._tickers, conf.metrics_entries)
        self.health = BeatHealth(clock)
        #: The local time of the next tick of each shard.
        self._next: dict[int, float] = {}
        #: The servers that did not answer the last request, and when to try each server again.
        self._retry_at: dict[object, float] = {}
        self._looked_at = self._first_ticked_at = -math.inf
        #: The local time of the last request of each beat to the first shard.
        self._seen_at: dict[str, float] = {}
        #: The local times of the first and the last read of the list of active beats.
        self._first_look = self._last_look = 0.0
        #: The tokens of the active beats, and the token of the holder of the first shard's lock.
        self._view: tuple[frozenset[str], str] = frozenset(), ""
        #: The servers whose settings and keys a ticker has checked.
        self._checked_nodes: set[object] = set()

    # -- ticks -------------------------------------------------------------------------------

    def tick(self) -> float:
        """Tick each shard of this beat that is due; return the seconds until the next tick.

        Raises the errors of :meth:`Ticker.tick`. A stop signal ends the tick after the current
        shard.
        """
        self.running = True
        try:
            with HeldSignals() as stop:
                return self._tick(stop)
        finally:
            self.running = False
            self._observe_health()

    def _tick(self, stop: HeldSignals) -> float:
        for number in self._due():
            if number and self._clock() - self._first_ticked_at >= LOOK_INTERVAL:
                self._tick_shard(0)  # other beats must see that this beat is alive
            self._tick_shard(number)
            if stop.pending:
                return 0.0
        self._look()
        now = self._clock()
        waits = [self._next.get(number, now) for number in self.owned]
        return max(min(*waits, self._looked_at + LOOK_INTERVAL) - now, 0.0)

    def _due(self) -> list[int]:
        now = self._clock()
        due = [number for number in self.owned if self._next.get(number, now) <= now]
        return sorted(due, key=lambda number: self._next.get(number, now))

    def _tick_shard(self, number: int) -> None:
        """Tick a shard; skip the tick if the server of the shard failed a moment ago."""
        node, began = self._node(number), self._clock()
        if number == 0:
            self._first_ticked_at = began
        if not self._may_try(node, began):
            self._next[number] = self._retry_at[node]
            return
        ticker = self._ticker(number)
        ticker.max_tick = MAX_TICK / len(self.owned)
        ticker.server_checked |= node in self._checked_nodes
        wait = ticker.tick()
        now = self._clock()
        if ticker.available:
            self._checked_nodes.add(node)
            self._retry_at.pop(node, None)
        else:
            wait = max(wait, FAILURE_PAUSE * (now - began))
            self._retry_at[node] = now + wait
        self._next[number] = now + wait

    def _node(self, number: int) -> object:
        """Return a value that identifies the server of a shard."""
        try:
            node = node_of(self._client, self.stores[number].keys.schedule)
        except (RedisError, OSError):
            return None
        if node is self._client:
            return node
        where = node.connection_pool.connection_kwargs
        return where.get("host"), where.get("port")

    def _ticker(self, number: int) -> Ticker:
        if number not in self._tickers:
            self._tickers[number] = Ticker(
                self._scheduler,
                self.stores[number],
                self.locks[number],
                self._statics.parts[number],
                self._conf,
                self._clock,
                self._lease,
                self._publisher,
                self._pace,
            )
        return self._tickers[number]

    # -- which shards ------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the list of active beats, and assign the shards to beats again if the list changed.

        Takes two round trips a second, and a few for each shard that this beat hands over.
        """
        first, now = self._ticker(0), self._clock()
        if now - self._looked_at < LOOK_INTERVAL:
            return
        self._looked_at = now
        if first.available and self._may_try(self._node(0), now):
            try:
                self._read_beats(first)
            except (RedisError, OSError) as error:
                logger.warning("beat: Cannot read which beats are active: %s", described(error))
                failed_at = self._clock()
                self._retry_at[self._node(0)] = failed_at + FAILURE_PAUSE * (failed_at - now)
        for number in [*self._leaving]:
            if self._may_try(self._node(number), now):
                self._leave(number)

    def _may_try(self, node: object, now: float) -> bool:
        """Return whether a server has not failed, or the wait after its failure is over."""
        return now >= self._retry_at.get(node, -math.inf)

    def _read_beats(self, first: Ticker) -> None:
        lock, own = self.locks[0], first.token
        beats = [
            beat for beat in self.stores[0].beats(FORGET_AFTER) if beat.locked is (lock is not None)
        ]
        now, redis_now = self._clock(), first.redis_time
        self._first_look, self._last_look = self._first_look or now, now
        self._seen_at.update({beat.token: now - (redis_now - beat.seen) for beat in beats})
        active = {beat.token for beat in beats if beat.seen >= redis_now - SEEN_WITHIN}
        view = frozenset(active | {own}), "" if lock is None else lock.holder
        if view != self._view:
            self._view = view
            self._assign(own, owners(view[0], len(self.stores), view[1]))

    def _assign(self, own: str, result: Sequence[str]) -> None:
        assigned = {number for number, owner in enumerate(result) if owner == own}
        logger.info(
            "beat: %s active, this beat has %d of %d shards: %s",
            plural(len(self._view[0]), "beat"),
            *(len(assigned), len(result), ", ".join(map(str, sorted(assigned))) or "none"),
        )
        self._leaving |= self.owned - assigned - {0}
        self._leaving -= assigned
        self.owned = assigned | {0}

    def _leave(self, number: int) -> None:
        ticker = self._tickers.get(number)
        if ticker is None or ticker.resign():
            self._leaving.discard(number)
            self._next.pop(number, None)

    def _silence_of(self, token: str) -> float:
        """Return the seconds since the last request of a beat to the first shard.

        The seconds are counted up to the last read of the list of active beats. For a beat that was
        never active, the seconds are counted from the first read of the list of active beats.
        Returns 0 while this beat is not on the list of active beats, because a list without this
        beat is out of date.
        """
        if self._ticker(0).token not in self._seen_at:
            return 0.0
        return self._last_look - self._seen_at.get(token, self._first_look)

    # -- the wake-up -------------------------------------------------------------------------

    @property
    def channels(self) -> list[str]:
        """The wake-up channels of all shards; channels on servers that do not answer come last."""
        numbers = sorted(range(len(self.stores)), key=self._answers, reverse=True)
        return [self.stores[number].keys.wakeup for number in numbers]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {store.keys.wakeup: number for number, store in enumerate(self.stores)}

    def wake(self, channel: str) -> bool:
        """Let the next :meth:`tick` tick the shard that has this wake-up channel.

        Returns False if the shard does not belong to this beat.
        """
        number = self._numbers.get(channel, -1)
        self._next.pop(number, None)
        return number in self.owned

    # -- more methods of a ticker ------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether the server of any shard answered at its last tick."""
        return any(map(self._answers, self._tickers))

    def _answers(self, number: int) -> bool:
        """Return whether this beat has ticked a shard, and its server answered the last request."""
        ticker = self._tickers.get(number)
        return ticker is not None and ticker.available and self._node(number) not in self._retry_at

    def take_lock(self) -> None:
        """Acquire the lock of the first shard if the lock is free. One round trip."""
        self._ticker(0).take_lock()

    def run_one(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Claim one entry, send it if it is due, and record the run; see :meth:`Ticker.run_one`."""
        if self.running:
            return self._scheduler.send_if_due(entry, **options)
        return self._ticker(self.layout.split(entry.key)[0]).run_one(entry, options)

    def use_lock(self, lock: Any, _timeout: float) -> None:
        """Raise :exc:`ConfigurationError` if a program replaced the lock."""
        if lock is not self.locks[0]:
            raise ConfigurationError(
                "a custom lock does not work with redbeat_shards > 1: do not assign "
                "scheduler.lock, or set redbeat_shards = 1"
            )

    def close(self) -> None:
        """Record published runs, and close the connections, as :meth:`Ticker.close` does."""
        self._each(lambda ticker: ticker.close())

    def release_lock(self) -> None:
        """Release the locks of all shards. Takes one round trip per held lock."""
        self._each(lambda ticker: ticker.release_lock())

    def _each(self, work: Callable[[Ticker], None]) -> None:
        """Call ``work`` for each ticker, and for the first shard last; skip failed servers."""
        broken: set[object] = set()
        errors: list[Exception] = []
        for number in sorted(self._tickers, reverse=True):
            node = self._node(number)
            if node in broken:
                continue
            try:
                work(self._tickers[number])
            except (RedisError, OSError) as error:
                broken.add(node)
                errors.append(error)
        if errors:
            raise errors[0]

    def _observe_health(self) -> None:
        """Combine the health of the shards: the beat is healthy if any shard is healthy."""
        health, tickers = self.health, [*self._tickers.values()]
        health.ticked()
        health.observe(any(ticker.health.leads for ticker in tickers), no_lock=False)
        health.problem = next(filter(None, (ticker.health.problem for ticker in tickers)), "")
        (health.completed if self.available else health.failed)()
