"""One beat on a schedule with shards: each shard is a part, with its own lock and its own deadline.

A part is a :class:`Beat` of its own, which knows nothing of other parts; the parts share what
belongs to the process, such as the broker, messages and own code. So a schedule without shards has
one beat, no list of parts, and pays nothing for them. (The other way, one beat whose rows, lock,
holds, upkeep and suspects each name their part, puts a number into every file of the beat.)

The first turn of each tick is carried out in a thread: all parts are asked at once, and those that
have answered go on, one after another. A server that does not answer, or to which no connection can
be made, keeps only its own parts waiting, until the time-outs of its connections have passed. If it
falls silent in the middle of a tick, it delays the others once, by the deadline of a turn.

The first part has the list of all active beats, because every beat works on the first part, as its
leader or as a standby. From that list each beat computes which parts are its own. Two beats that
read different lists do no harm, because each part has its own lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from hashlib import blake2b
from threading import current_thread
from typing import Any, Final, cast

from redis import exceptions
from redis.exceptions import RedisError

from redbeat.beat.lock import BeatLock, new_token
from redbeat.beat.stop_signals import HeldSignals
from redbeat.config import ensure_conf
from redbeat.connection.cluster import node_of
from redbeat.errors import ConfigurationError, described
from redbeat.metrics.health import BeatHealth
from redbeat.printing import get_logger, plural
from redbeat.storage.beats import FORGET_AFTER, SEEN_WITHIN
from redbeat.storage.keys import layout_of
from redbeat.storage.rows import Reply, Request
from redbeat.storage.scripts import SPARE_CONNECTIONS
from redbeat.storage.store import Store

from .beat import MAX_TICK, Beat, Shared
from .statics import Statics

logger = get_logger("celery.beat")

#: Seconds between two reads of the list of active beats.
LOOK_INTERVAL: Final = 1.0

#: Seconds for which a tick waits for the parts that it has asked.
PATIENCE: Final = 0.1

#: Seconds after which a turn that was not asked ahead counts as failed.
DEADLINE: Final = 0.5
LATE: Final = f"Redis has not answered for {DEADLINE} s"

#: How the names of the threads begin that wait for parts.
THREAD: Final = "redbeat-part"

#: Seconds until the next tick looks whether the other parts have answered.
ANSWER_POLL: Final = 0.05


class PatientStore:
    """The store of a part, whose turns have a deadline.

    A turn that takes longer counts as failed. It goes on in its thread, and the next turn, which
    repeats its changes, fails as well until it has ended.
    """

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store, self._executor = store, executor
        self._late: Future[Reply] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def turn(self, request: Request) -> Reply:
        """Carry out a turn, in this thread if it is one of the executor; see :class:`Store`."""
        if current_thread().name.startswith(THREAD):
            self._end_late()
            return self._store.turn(request)
        return self.begin_turn(request)()

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Begin a turn, and return a function that waits for the reply until the deadline."""
        self._end_late()
        future = self._executor.submit(self._store.turn, request)
        return lambda: self._answer(future)

    def _answer(self, future: Future[Reply]) -> Reply:
        if wait([future], DEADLINE).not_done:
            self._late = None if future.cancel() else future
            raise exceptions.TimeoutError(LATE)
        return future.result()

    def _end_late(self) -> None:
        if self._late is not None and wait([self._late], DEADLINE).not_done:
            raise exceptions.TimeoutError(LATE)
        self._late = None


class Part:
    """The beat of one part, the local time of its next tick, and what it was asked."""

    def __init__(self, number: int, store: Store, beat: Beat) -> None:
        self.number, self.store, self.beat = number, store, beat
        #: Whether this beat works on the part. Every beat works on the first one.
        self.owned = number == 0
        #: Whether the part now belongs to another beat, but this beat may still hold its lock.
        self.leaving = False
        self.next_at = -math.inf
        self.asked: Future[Reply] | None = None
        #: The local time until which a tick waits for the answer.
        self.awaited_until = 0.0

    @property
    def answers(self) -> bool:
        """Whether this beat works on the part, and the part answered its last tick."""
        return self.owned and self.beat.available

    def settle(self) -> Beat:
        """Wait until the part has answered, and return its beat."""
        if self.asked is not None:
            wait([self.asked])
        return self.beat


class PartedBeat:
    """Runs the ticks of one beat on its parts; has the methods of a :class:`Beat`.

    Arguments:
        scheduler: the scheduler that users may subclass, with its clock, lock key and lock timeout.
        stores: the store of each part.
        statics: the entries of ``beat_schedule`` of each part.
    """

    def __init__(self, scheduler: Any, stores: Sequence[Store], statics: Sequence[Statics]) -> None:
        self.running = False
        conf = ensure_conf(scheduler.app)
        self._clock: Callable[[], float] = scheduler.clock
        self._layout = layout_of(conf)
        self._client, shared = stores[0].client, Shared(scheduler, stores[0].client)
        lock_key = scheduler.lock_key
        terms = (scheduler.lock_timeout, self._clock, new_token(), self._silence_of)
        # Of few connections, one is for the wake-up, and one for the beat itself.
        limit = conf.redbeat_redis_options.get("max_connections")
        threads = min(len(stores), max(limit - SPARE_CONNECTIONS, 1)) if limit else len(stores)
        self.executor = ThreadPoolExecutor(threads, THREAD)
        self.locks: list[BeatLock | None] = []
        self._parts: list[Part] = []
        for number, store in enumerate(stores):
            key = lock_key and self._layout.lock_key(number, lock_key)
            lock = BeatLock(store, key, *terms) if key else None
            self.locks.append(lock)
            patient = PatientStore(store, self.executor) if threads == len(stores) else store
            beat = Beat(scheduler, cast("Store", patient), lock, statics[number], shared)
            self._parts.append(Part(number, store, beat))
        self.health = BeatHealth(self._clock)
        #: The read of the list of beats that has not ended.
        self._beats: Future[Any] | None = None
        #: The local times of the last read of the list of beats, and of the last tick of part 0.
        self._looked_at = self._first_ticked_at = -math.inf
        #: The local time of the last request of each beat to the first part.
        self._seen_at: dict[str, float] = {}
        #: The local times of the first and the last list of beats.
        self._first_look = self._last_look = 0.0
        #: The tokens of the active beats, and the token of the holder of the first part's lock.
        self._view: tuple[frozenset[str], str] = frozenset(), ""

    @property
    def sent(self) -> int:
        """How many runs were sent."""
        return sum(part.beat.sent for part in self._parts)

    def totals(self) -> dict[str, int]:
        """Return the sums of all counts of the parts; see :meth:`Beat.totals`."""
        totals: Counter[str] = Counter()
        for part in self._parts:
            totals.update(part.beat.totals())
        return totals

    def unfinished(self) -> set[str]:
        """Return the names of the entries whose runs are on their way; see :class:`Beat`."""
        return set[str]().union(*(part.beat.unfinished() for part in self._parts))

    # -- ticks ---------------------------------------------------------------------------------

    def tick(self) -> float:
        """Tick each part that is due; return the seconds until the next tick.

        Raises the errors of :meth:`Beat.tick`. A stop signal ends the tick after a part.
        """
        self.running = True
        try:
            with HeldSignals() as stop:
                return self._tick(stop)
        finally:
            self.running = False
            self._observe_health()

    def _tick(self, stop: HeldSignals) -> float:
        self._ask(self._due())
        for part in self._answered():
            part.asked, part.beat.max_tick = None, MAX_TICK / len(self._own_parts())
            pause = part.beat.tick()
            part.beat.settle()
            part.next_at = self._clock() + pause
            if not part.beat.available:
                self._hold_back(part)
            if stop.pending:
                return 0.0
            if self._clock() - self._first_ticked_at >= LOOK_INTERVAL:
                self._ask([self._parts[0]])  # other beats must see that this beat is alive
        self._read_beats()
        for part in self._parts:
            if part.leaving:
                self._leave(part)
        return self._pause()

    def _due(self) -> list[Part]:
        """Return the parts to ask; of those that failed on one server, only one."""
        now, found, tried = self._clock(), [], set[object]()
        for part in sorted(self._own_parts(), key=lambda part: part.next_at):
            server = None if part.beat.available else self._server_of(part)
            if part.next_at <= now and server not in tried:
                found.append(part)
                tried |= {server} - {None}
        return found

    def _hold_back(self, failed: Part) -> None:
        """Let all parts of a server that failed wait until it is tried again.

        A client of a cluster asks for all nodes after a failure, and connects to them again.
        """
        server = self._server_of(failed)
        for part in self._own_parts():
            if self._server_of(part) == server:
                part.next_at = max(part.next_at, failed.next_at)

    def _ask(self, parts: Iterable[Part]) -> None:
        """Carry out the first turn of the next tick of parts, in threads."""
        for part in parts:
            if part.number == 0:
                self._first_ticked_at = self._clock()
            if part.asked is None:
                part.awaited_until = self._clock() + PATIENCE
                part.asked = part.beat.ask(self.executor.submit)

    def _answered(self) -> Iterator[Part]:
        """Yield the parts that have answered, those first that were due first.

        Waits a moment for those that were just asked; for a part that failed the last time only if
        all did.
        """
        while asked := [part for part in self._parts if part.asked is not None]:
            done = [part for part in asked if part.asked is not None and part.asked.done()]
            yield from sorted(done, key=lambda part: part.next_at)
            if done:
                continue
            now = self._clock()
            usual = [part for part in asked if part.beat.available]
            awaited = [part for part in usual or asked if part.awaited_until > now]
            futures = [part.asked for part in awaited if part.asked is not None]
            left = max((part.awaited_until - now for part in awaited), default=0.0)
            if not wait(futures, left, FIRST_COMPLETED).done:
                return

    def _pause(self) -> float:
        now = self._clock()
        times = [self._looked_at + LOOK_INTERVAL]
        for part in self._own_parts():
            waits = part.asked is not None or not part.beat.available
            times.append(max(part.next_at, now + ANSWER_POLL) if waits else part.next_at)
        return max(min(times) - now, 0.0)

    def _own_parts(self) -> list[Part]:
        return [part for part in self._parts if part.owned]

    # -- which parts ---------------------------------------------------------------------------

    def _read_beats(self) -> None:
        """Read the list of active beats every second, and assign the parts again if it has changed.

        Two round trips, unless the first part did not answer its last tick.
        """
        part, lock = self._parts[0], self.locks[0]
        patience = 0.0
        if self._beats is None:
            if self._clock() - self._looked_at < LOOK_INTERVAL:
                return
            self._looked_at = self._clock()
            if part.asked is not None or not part.beat.available:
                return
            self._beats, patience = self.executor.submit(part.store.beats, FORGET_AFTER), PATIENCE
        if wait([self._beats], patience).not_done:
            return
        asked, self._beats = self._beats, None
        try:
            found = asked.result()
        except (RedisError, OSError) as error:
            logger.warning("beat: Cannot read which beats are active: %s", described(error))
            return
        beats = [beat for beat in found if beat.locked is (lock is not None)]
        first, now, redis_now = part.beat, self._clock(), part.beat.time()
        self._first_look, self._last_look = self._first_look or now, now
        self._seen_at.update({beat.token: now - (redis_now - beat.seen) for beat in beats})
        active = {beat.token for beat in beats if beat.seen >= redis_now - SEEN_WITHIN}
        view = frozenset(active | {first.token}), "" if lock is None else lock.holder
        if view != self._view:
            self._view = view
            self._assign(first.token, *view)

    def _assign(self, own: str, active: Collection[str], leader: str) -> None:
        result = owners(active, len(self._parts), leader)
        assigned = [number for number, owner in enumerate(result) if owner == own]
        logger.info(
            "beat: %s active, this beat has %d of %d shards: %s",
            plural(len(active), "beat"),
            *(len(assigned), len(result), ", ".join(map(str, assigned)) or "none"),
        )
        for part in self._parts:
            owned = part.number in (0, *assigned)
            part.leaving = (part.owned or part.leaving) and not owned
            part.owned = owned

    def _leave(self, part: Part) -> None:
        """Give a part to its new owner, unless the part does not answer. A few round trips."""
        if part.asked is not None and not part.asked.done():
            return
        part.asked = None
        part.beat.guarded(part.beat.resign)
        if part.beat.available:
            part.next_at, part.leaving = -math.inf, False

    def _silence_of(self, token: str) -> float:
        """Return the seconds since the last request of a beat to the first part.

        The seconds are counted up to the last list of beats; for a beat that was never on it, from
        the first one. Returns 0 while this beat is not on the list, which is then out of date.
        """
        if self._parts[0].beat.token not in self._seen_at:
            return 0.0
        return self._last_look - self._seen_at.get(token, self._first_look)

    # -- the wake-up ---------------------------------------------------------------------------

    @property
    def channels(self) -> list[str]:
        """The wake-up channels of all parts; channels on servers that do not answer come last."""
        parts = sorted(self._parts, key=lambda part: part.answers, reverse=True)
        return [part.store.keys.wakeup for part in parts]

    def wake(self, channel: str) -> bool:
        """Let the next tick ask the part with this wake-up channel; return whether it will."""
        for part in self._parts:
            if part.answers and part.store.keys.wakeup == channel:
                part.next_at = -math.inf
                return True
        return False

    # -- more methods of a beat ----------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether any part answered its last tick."""
        return any(part.answers for part in self._parts)

    def take_lock(self) -> None:
        """Acquire the lock of the first part if it is free. One round trip."""
        self._parts[0].settle().take_lock()

    def run_one(self, entry: Any, options: dict[str, Any]) -> float | None:
        """Send one entry if it is due, and record the run; see :meth:`Beat.run_one`."""
        number, _ = self._layout.split(entry.key)
        return self._parts[number].settle().run_one(entry, options)

    def use_lock(self, lock: Any, _timeout: float) -> None:
        """Raise :exc:`ConfigurationError` if a program replaced the lock."""
        if lock is not self.locks[0]:
            raise ConfigurationError(
                "a custom lock does not work with redbeat_shards > 1: do not assign "
                "scheduler.lock, or set redbeat_shards = 1"
            )

    def sync_now(self) -> None:
        """Write the static entries of the parts of this beat, which the program has set up again.

        What a part does not answer, the next ticks try again.
        """
        for part in self._own_parts():
            beat = part.settle()
            if beat.health.leads:
                beat.guarded(beat.sync_now)

    def close(self) -> None:
        """Record published runs, and close the connections of all parts."""
        try:
            self._each(lambda beat: beat.close())
        finally:
            self.executor.shutdown(wait=False)

    def release_lock(self) -> None:
        """Release the locks of all parts. One round trip per held lock."""
        self._each(lambda beat: beat.release_lock())

    def _each(self, work: Callable[[Beat], None]) -> None:
        """Call ``work`` for each beat, the first part's last; try each failing server once."""
        broken: set[object] = set()
        errors: list[Exception] = []
        for part in reversed(self._parts):
            server = self._server_of(part)
            if server in broken:
                continue
            try:
                work(part.settle())
            except (RedisError, OSError) as error:
                broken.add(server)
                errors.append(error)
        if errors:
            raise errors[0]

    def _server_of(self, part: Part) -> object:
        """Return a value that identifies the server of a part, "" if it is unknown."""
        try:
            node = node_of(self._client, part.store.keys.schedule)
        except (RedisError, OSError):
            return ""
        if node is self._client:
            return node
        where = node.connection_pool.connection_kwargs
        return where.get("host"), where.get("port")

    def _observe_health(self) -> None:
        """Combine the health of the parts: the beat is healthy if any of its parts is."""
        health, parts = self.health, [part.beat.health for part in self._parts]
        health.ticked()
        health.observe(any(part.leads for part in parts), no_lock=False)
        health.problem = next(filter(None, (part.problem for part in parts)), "")
        (health.completed if self.available else health.failed)()


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
