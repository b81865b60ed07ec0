"""The scheduler with the beat of the third edition, for its tests: ``celery beat -S`` runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from redis.exceptions import RedisError

from redbeat.beat.lock import BeatLock, new_token
from redbeat.beat.shards import ShardedTicker
from redbeat.config import ensure_conf, is_mock
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, DecodeError, described
from redbeat.printing import get_logger
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.client import client_of, unretried
from redbeat.storage.layout import layout_of
from redbeat.storage.store import Store as SecondStore
from redbeat.storage.store import store_of_shard
from tests.edition.beat.beat import Beat, Shared
from tests.edition.beat.own_tick import due_rows
from tests.edition.beat.parts import PartedBeat, StaticParts
from tests.edition.beat.statics import Statics
from tests.edition.saving import entry_of
from tests.edition.storage.rows import Look, Request, Row
from tests.edition.storage.store import Store

logger = get_logger("celery.beat")


class Scheduler(RedBeatScheduler):
    """The scheduler of the second edition with the beat of the third."""

    make_store: type[Store] = Store

    @cached_property
    def stores(self) -> list[Any]:
        """The store of each part of the schedule."""
        client = unretried(client_of(self.app))
        if ensure_conf(self.app).shards == 1:
            return [self.make_store(client, self._stored.keys)]
        return [self.make_store(client, second.keys) for second in self._second_stores]

    @cached_property
    def _second_stores(self) -> list[SecondStore]:
        """The second edition's store of each shard."""
        conf, client = ensure_conf(self.app), unretried(client_of(self.app))
        return [store_of_shard(conf, client, number) for number in range(conf.shards)]

    @property
    def store(self) -> Any:
        """The store of the beat, or of its first part."""
        return self.stores[0]

    @property
    def beat(self) -> BeatFace:
        """The beat of this scheduler."""
        beat: BeatFace = self._ticker
        return beat

    @cached_property
    def _statics(self) -> Any:
        conf = ensure_conf(self.app)
        return Statics() if conf.shards == 1 else StaticParts(layout_of(conf))

    @cached_property
    def _ticker(self) -> Any:
        conf = ensure_conf(self.app)
        if conf.shards > 1:
            return self._shards
        lock = self.lock if isinstance(self.lock, BeatLock) else None
        return BeatFace(self, self.store, lock, conf, self.clock, self._statics)

    @cached_property
    def _shards(self) -> Any:
        if self._overrides_schedule:
            raise ConfigurationError(
                "a scheduler class with its own schedule does not work with redbeat_shards > 1"
            )
        conf, stores = ensure_conf(self.app), self._second_stores
        shared = Shared(self, stores[0].client, conf, self.clock)

        def make(number: int, lock: BeatLock | None) -> BeatFace:
            statics = self._statics.parts[number]
            return BeatFace(self, self.stores[number], lock, conf, self.clock, statics, shared)

        return PartsFace(make, stores, self.lock_key, self.lock_timeout, conf, self.clock)

    def _offer_statics(self) -> None:
        try:
            self._statics_unwritten = False
            if self._leads:
                self.beat.sync_now()
            elif ensure_conf(self.app).shards > 1:
                parts = zip(self._statics.parts, self.stores, self._shards.locks, strict=True)
                for statics, store, lock in parts:
                    _offer(statics, store, lock)
            else:
                lock = self.lock if isinstance(self.lock, BeatLock) else None
                _offer(self._statics, self.store, lock)
        except (RedisError, OSError) as error:
            self._statics_unwritten = True
            logger.warning(
                "beat: Could not write static entries, the next tick tries again: %s",
                described(error),
            )

    def _load_due(self) -> Iterator[RedBeatSchedulerEntry]:
        if is_mock(self.store.client):
            return
        rows, now = _due_rows(self.stores)
        if self._statics_unwritten or (not rows and len(self._statics)):
            self._offer_statics()
            rows, now = _due_rows(self.stores)
        for row in rows:
            try:
                if self.Entry.loads_itself():
                    entry = self.Entry.from_key(row.key, app=self.app)
                else:
                    entry = entry_of(row, self.app, self.Entry)
            except (KeyError, DecodeError) as error:
                logger.warning("beat: Cannot load %s: %s", row.key, error)
                continue
            entry.put_up = bool(row.inbox) or (row.score != "" and float(row.score) <= now)
            self._statics.restore(entry)
            yield entry

    def _tick_overridden_schedule(self) -> float:
        """Run the entries of a subclass's ``schedule``, each separately."""
        beat = self.beat
        seconds = beat.tick(looks=False)
        if not self._leads or not beat.available:
            return seconds
        entries = beat.guarded(lambda: [*self.schedule.values()])
        if not isinstance(entries, list):
            return entries  # the seconds that guarded() returns after an error
        for entry in entries:
            wait = self.maybe_due(entry, **self._maybe_due_kwargs)
            seconds = seconds if wait is None else min(seconds, wait)
            if not self.beat.available:
                break
        return seconds

    def _close(self, beat: Any) -> None:
        try:
            if beat is not None:
                beat.close()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", described(error))
        try:
            if beat is not None:
                if not isinstance(beat, PartedBeat):
                    beat.use_lock(self.lock, self.lock_timeout)
                beat.release_lock()
            elif self.lock is not None and getattr(self.lock, "leading", True):
                self.lock.release()
        except (RedisError, OSError) as error:
            logger.error(
                "beat: Could not release the lock, it expires by itself: %s", described(error)
            )


def _due_rows(stores: Iterable[Store]) -> tuple[list[Row], float]:
    found = [due_rows(store) for store in stores]
    return [row for rows, _ in found for row in rows], max(now for _, now in found)


def _offer(statics: Statics, store: Store, lock: BeatLock | None) -> None:
    key, token = (lock.key, lock.token) if lock else (None, new_token())
    statics.offer_to(store, lambda it: store.turn(Request(token, None, it)), key, token)


class BeatFace(Beat):
    """The methods of the second edition's ticker that its scheduler calls."""

    @property
    def token(self) -> str:
        return self._turn.token

    def take_lock(self) -> None:
        self.guarded(self._take_lock)

    def _take_lock(self) -> None:
        reply = self.look(Look(limit=0))
        if reply is not None:  # a new leader is told once what vanished beats had in hand
            self._suspects.note(reply.hands)

    def use_lock(self, lock: Any, timeout: float) -> None:
        self.lead.use(lock, timeout)


class PartsFace(PartedBeat, ShardedTicker):  # type: ignore[misc]
    """The second edition's scheduler asks for the class of its ticker."""
