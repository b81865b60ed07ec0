"""One beat on a schedule with shards: each shard is a part, with its own lock and deadline.

A part is a :class:`Beat` of its own and knows nothing of the others; they share what belongs to the
process, such as the broker, messages and own code. So a schedule without shards has one beat and
pays nothing for parts. (A single beat whose rows, lock, holds, upkeep and suspects all name their
part would put a number into every file.)

The parts tick one after another. A server that doesn't answer, or to which no connection can be
made, delays the other parts once, by the deadline of a request. After that a thread asks it, and
its parts go on once it has answered.

Every beat works on the first part, as its leader or as a standby, so that part has the list of all
active beats. From this list each beat computes which parts are its own. Two beats that read
different lists do no harm: each part has its own lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from hashlib import blake2b
from typing import Any, Final, cast

from redis import exceptions

from redbeat.beat.lock import BeatLock, new_token
from redbeat.beat.stop_signals import HeldSignals
from redbeat.config import ensure_conf
from redbeat.connection.topology import node_of
from redbeat.errors import ConfigurationError, described
from redbeat.metrics.counters import BeatHealth
from redbeat.printing import get_logger, plural
from redbeat.storage.keys import layout_of
from redbeat.storage.reading import Presence
from redbeat.storage.rows import Reply, Request
from redbeat.storage.scripts import SPARE_CONNECTIONS
from redbeat.storage.store import Store
from redbeat.storage.words import FORGET_AFTER, SEEN_WITHIN

from .beat import MAX_TICK, Beat, Shared
from .statics import Statics

logger = get_logger("celery.beat")

#: Seconds between two reads of the list of active beats.
LOOK_INTERVAL: Final = 1.0

#: Seconds after which a request counts as failed.
DEADLINE: Final = 0.5
LATE: Final = f"Redis has not answered for {DEADLINE} s"

#: Errors after which a thread finds out when a server answers again.
AWAY: Final = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError),
    OSError,
)

THREAD: Final = "redbeat-part"


class PatientStore:
    """A part's store, whose requests have a deadline.

    A request that takes longer counts as failed, and goes on in its thread. Until it has ended and
    the server answers again, the next requests to its server fail at once. So they do after a
    connection error: a cluster client may need long to notice one.

    ``late`` is shared by all parts. For each silent server it has the request that failed, or the
    one that has been asking since then whether the server answers.
    """

    def __init__(self, store: Store, executor: Executor, late: dict[object, Future[Any]]) -> None:
        self._store, self._executor, self._late = store, executor, late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def turn(self, request: Request) -> Reply:
        return self.begin_turn(request)()

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Begin a turn; the function returned waits for the reply until the deadline."""
        return self._begin(self._store.turn, request)

    def beats(self, within: float) -> list[Presence]:
        found: list[Presence] = self._begin(self._store.beats, within)()
        return found

    def settle(self) -> None:
        """Wait for a late request, until the deadline."""
        late = self._late.get(server_of(self._store))
        if late is not None:
            wait([late], DEADLINE)

    def _begin(self, work: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        server = server_of(self._store)
        if server in self._late:
            self._check(server)
        future = self._executor.submit(work, *args)
        return lambda: self._answer(server, future)

    def _answer(self, server: object, future: Future[Any]) -> Any:
        if wait([future], DEADLINE).not_done:
            if not future.cancel():
                self._late[server] = future
            raise exceptions.TimeoutError(LATE)
        try:
            return future.result()
        except AWAY:
            self._late[server] = future
            raise

    def _check(self, server: object) -> None:
        """Raise an error at once while a server is silent."""
        late = self._late[server]
        if not late.done():
            raise exceptions.TimeoutError(LATE)
        error = late.exception()
        if error is not None:
            self._late[server] = self._executor.submit(self._store.time)
            raise error
        del self._late[server]


def server_of(store: Store) -> object:
    """What identifies a part's server, "" if that is unknown."""
    try:
        node = node_of(store.client, store.keys.schedule)
    except (exceptions.RedisError, OSError):
        return ""
    if node is store.client:
        return node
    where = node.connection_pool.connection_kwargs
    return where.get("host"), where.get("port")


class Part:
    """The beat of one part, and the local time of its next tick."""

    def __init__(self, number: int, store: PatientStore, beat: Beat) -> None:
        self.number, self.store, self.beat = number, store, beat
        #: Whether this beat works on the part. Every beat works on the first one.
        self.owned = number == 0
        #: Whether another beat has the part now, though this one may still hold its lock.
        self.leaving = False
        self.next_at = -math.inf

    @property
    def answers(self) -> bool:
        return self.owned and self.beat.available


class PartedBeat:
    """Runs the ticks of one beat on its parts; has the methods of a :class:`Beat`.

    ``stores`` and ``statics`` have one item per part. The scheduler gives clock, lock key and lock
    timeout.
    """

    def __init__(self, scheduler: Any, stores: Sequence[Store], statics: Sequence[Statics]) -> None:
        self.running = False
        conf = ensure_conf(scheduler.app)
        self._clock: Callable[[], float] = scheduler.clock
        self._layout = layout_of(conf)
        shared, late = Shared(scheduler, stores[0].client), dict[object, "Future[Any]"]()
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
            patient = PatientStore(store, self.executor, late)
            beat = Beat(scheduler, cast("Store", patient), lock, statics[number], shared)
            self._parts.append(Part(number, patient, beat))
        self.health = BeatHealth(self._clock)
        self._looked_at = -math.inf
        #: When each beat sent its last request to the first part, in local time.
        self._seen_at: dict[str, float] = {}
        #: When the first and the last list of beats were read, in local time.
        self._first_look = self._last_look = 0.0
        #: The tokens of the active beats, and of the holder of the first part's lock.
        self._view: tuple[frozenset[str], str] = frozenset(), ""

    @property
    def sent(self) -> int:
        return sum(part.beat.sent for part in self._parts)

    def totals(self) -> dict[str, int]:
        """Sums of all counts of the parts; see :meth:`Beat.totals`."""
        totals: Counter[str] = Counter()
        for part in self._parts:
            totals.update(part.beat.totals())
        return totals

    def unfinished(self) -> set[str]:
        return set[str]().union(*(part.beat.unfinished() for part in self._parts))

    # -- ticks ---------------------------------------------------------------------------------

    def tick(self) -> float:
        """Tick each part that is due; return the seconds until the next tick.

        Raises the errors of :meth:`Beat.tick`. A stop signal ends the tick after the current part.
        """
        self.running = True
        try:
            with HeldSignals() as stop:
                return self._tick(stop)
        finally:
            self.running = False
            self._observe_health()

    def _tick(self, stop: HeldSignals) -> float:
        own_parts = self._own_parts()
        for part in sorted(own_parts, key=lambda part: part.next_at):
            if part.next_at > self._clock():
                break
            part.beat.max_tick = MAX_TICK / len(own_parts)
            pause = part.beat.tick()
            part.beat.settle()
            part.next_at = self._clock() + pause
            if stop.pending:
                return 0.0
        self._read_beats()
        for part in self._parts:
            if part.leaving:
                self._leave(part)
        times = [self._looked_at + LOOK_INTERVAL, *(part.next_at for part in self._own_parts())]
        return max(min(times) - self._clock(), 0.0)

    def _own_parts(self) -> list[Part]:
        return [part for part in self._parts if part.owned]

    # -- which parts ---------------------------------------------------------------------------

    def _read_beats(self) -> None:
        """Read the list of active beats each second; assign the parts again if it has changed.

        Two round trips, none if the first part didn't answer its last tick.
        """
        part, lock = self._parts[0], self.locks[0]
        if self._clock() - self._looked_at < LOOK_INTERVAL:
            return
        self._looked_at = self._clock()
        if not part.beat.available:
            return
        try:
            found = part.store.beats(FORGET_AFTER)
        except (exceptions.RedisError, OSError) as error:
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
        """Give a part to its new owner, unless the part doesn't answer. A few round trips."""
        part.beat.guarded(part.beat.resign)
        if part.beat.available:
            part.next_at, part.leaving = -math.inf, False

    def _silence_of(self, token: str) -> float:
        """Seconds since a beat's last request to the first part.

        They are counted up to the last list of beats, and from the first one for a beat that was
        never on it. 0 while this beat isn't on the list, which is then out of date.
        """
        if self._parts[0].beat.token not in self._seen_at:
            return 0.0
        return self._last_look - self._seen_at.get(token, self._first_look)

    # -- the wake-up ---------------------------------------------------------------------------

    @property
    def channels(self) -> list[str]:
        """The wake-up channels of all parts; those on servers that don't answer come last."""
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
        return any(part.answers for part in self._parts)

    def take_lock(self) -> None:
        """Acquire the first part's lock if it's free. One round trip."""
        self._parts[0].beat.take_lock()

    def run_one(self, entry: Any, options: dict[str, Any]) -> float | None:
        number, _ = self._layout.split(entry.key)
        return self._parts[number].beat.run_one(entry, options)

    def use_lock(self, lock: Any, _timeout: float) -> None:
        if lock is not self.locks[0]:
            raise ConfigurationError(
                "a custom lock does not work with redbeat_shards > 1: do not assign "
                "scheduler.lock, or set redbeat_shards = 1"
            )

    def sync_now(self) -> None:
        """Write the static entries that the program has set up again, for this beat's own parts.

        The next ticks try again where a part doesn't answer.
        """
        for part in self._own_parts():
            if part.beat.health.leads:
                part.beat.guarded(part.beat.sync_now)

    def close(self) -> None:
        try:
            self._each(lambda beat: beat.close())
        finally:
            self.executor.shutdown(wait=False)

    def release_lock(self) -> None:
        """Release the locks of all parts. One round trip per held lock."""
        self._each(lambda beat: beat.release_lock())

    def _each(self, work: Callable[[Beat], None]) -> None:
        """Call ``work`` for each beat, the first part's last.

        After an error, parts that failed in the last tick are left out: each would cost a timeout.
        """
        failed: list[Exception] = []
        for part in reversed(self._parts):
            if failed and not part.beat.available:
                continue
            part.store.settle()
            try:
                work(part.beat)
            except (exceptions.RedisError, OSError) as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _observe_health(self) -> None:
        """The beat is as healthy as the best of its parts."""
        health, parts = self.health, [part.beat.health for part in self._parts]
        health.ticked()
        health.observe(any(part.leads for part in parts), no_lock=False)
        health.problem = next(filter(None, (part.problem for part in parts)), "")
        if self.available:
            health.completed()
        else:
            reason = next(filter(None, (part.failure for part in parts)), "no answer")
            health.failed(reason, refused=any(part.may_answer for part in parts))


def owners(beats: Collection[str], shards: int, first: str = "") -> list[str]:
    """The owner of each shard, as a token; ``beats`` are the tokens of all beats.

    Two beats' numbers of shards differ by at most one. If ``first`` is among the beats, it owns the
    first shard. For each other shard, the beats are ranked by a hash of beat and shard (rendezvous
    hashing), and the highest-ranked one that has room owns it. So when a beat starts or stops, most
    shards keep their owner.
    """
    least, extra = divmod(shards, len(beats))
    counts = dict.fromkeys(sorted(beats), 0)
    result = []
    for shard in range(shards):
        most = least + (extra > 0)
        with_room = [beat for beat, count in counts.items() if count < most]
        own = [first] if shard == 0 and first in counts else with_room
        owner = max(own, key=partial(_rank, shard))
        extra -= counts[owner] == least
        counts[owner] += 1
        result.append(owner)
    return result


def _rank(shard: int, beat: str) -> bytes:
    return blake2b(f"{shard} {beat}".encode(), digest_size=8).digest()
