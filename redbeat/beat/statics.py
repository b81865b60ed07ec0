"""The static entries: writes ``beat_schedule`` to Redis, and keeps what Redis cannot store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha1
from typing import Any

from celery.schedules import crontab
from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.calendar.zones import from_timestamp
from redbeat.entries.decide import DISABLED, counts_from, decide, score_of
from redbeat.entries.history import encode_meta
from redbeat.entries.lazy import resolved
from redbeat.entries.policy import DEFAULT
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.records import StaticRow
from redbeat.storage.store import Store, batches

from .lock import BeatLock

__all__ = ("StaticEntries",)

logger = get_logger("celery.beat")

#: Results for one entry, as ``sync.lua`` returns them.
ADDED, CHANGED, OCCUPIED = 1, 2, 4

OCCUPIED_BY = "the key %r holds something that is not an entry; rename the entry or the key"


class StaticEntries:
    """The entries of ``beat_schedule``, and their synchronization with Redis.

    An entry that cannot be made or stored is logged and does not affect other entries. Redis keeps
    the stored version of such an entry.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RedBeatSchedulerEntry] = {}
        self._refused: set[str] = set()
        self._removed: set[str] = set()
        self._base_schedules: dict[str, Any] = {}
        #: Whether all entries are known, so that other static entries in Redis may be removed.
        self.complete = False
        #: Numbers of entries that the last :meth:`sync` added, changed and removed.
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        #: Whether some entries were not yet written by :meth:`sync`.
        self.unwritten = False
        #: Digest of the entries that :meth:`offer` wrote while no other beat led, else "".
        self.offered = ""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def collect(self) -> None:
        """Start a new collection of entries; entries that are not added again have left it."""
        self._removed |= self._entries.keys()
        self._entries, self._refused, self._base_schedules = {}, set(), {}
        self.complete = self.unwritten = True
        self.offered = ""

    def add(self, name: str, entry: RedBeatSchedulerEntry) -> None:
        """Add an entry; raises :exc:`InvalidEntryError` for ``on_finish="delete"``.

        Each start of a beat would create such an entry again.
        """
        if entry.policy.on_finish == "delete":
            problem = "'delete' is for entries that are stored at run time; use 'keep' or 'disable'"
            raise InvalidEntryError("on_finish", problem)
        entry._static = True
        self._entries[str(name)] = entry
        self._refused.discard(str(name))
        self._removed.discard(str(name))

    def refuse(self, name: str, error: Exception) -> None:
        """Log an entry that cannot be made or stored."""
        logger.error("beat: Static entry %s is not scheduled: %s", name, error)
        self._entries.pop(str(name), None)
        self._refused.add(str(name))
        self._removed.discard(str(name))

    def restore_schedule(self, entry: RedBeatSchedulerEntry) -> None:
        """Give a loaded entry the schedule object of ``beat_schedule``, if that has its own code.

        Redis holds only the base form of such a schedule. A schedule that was edited in Redis is
        kept.
        """
        name = str(entry.name)
        static_entry = self._entries.get(name)
        if static_entry is None or not asks_itself(static_entry.schedule):
            return
        if name not in self._base_schedules:
            stored = type(static_entry).from_definition(static_entry.app, *static_entry.texts())
            self._base_schedules[name] = stored.schedule
        if entry.schedule == self._base_schedules[name]:
            entry.schedule = static_entry.schedule

    def restore_functions(self, entry: RedBeatSchedulerEntry) -> None:
        """Give a loaded entry the functions among its arguments in ``beat_schedule``.

        Raises :exc:`LazyArgumentError` if ``beat_schedule`` has no function for an argument.
        """
        if not entry._lazy:
            return
        static_entry = self._entries.get(str(entry.name))
        entry.args = resolved(entry.args, static_entry and static_entry.args, ("args",))
        entry.kwargs = resolved(entry.kwargs, static_entry and static_entry.kwargs, ("kwargs",))

    def offer(self, store: Store, lock: BeatLock | None) -> None:
        """Add and change entries in Redis; while another beat leads, only add missing entries.

        No round trip without entries, else two, and one per 500 of them.
        """
        if not self._entries:
            return
        lock_key, token = (lock.key, lock.token) if lock else (None, "")
        no_other_leader, digest = True, sha1(usedforsecurity=False)
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        for rows in batches(self._rows(store, from_timestamp(store.time()), lock)):
            no_other_leader, codes = store.offer_statics(rows, lock_key, token)
            self._count_results(rows, codes)
            digest.update("".join(row.definition + row.policy for row in rows).encode())
        if no_other_leader:
            self.offered = digest.hexdigest()
            store.note_statics(self.offered)
        if self.synced["added"] and not no_other_leader:
            message = "beat: Another beat leads: %d missing static entries added"
            logger.info(message, self.synced["added"])

    def sync(
        self, store: Store, lock: BeatLock | None, now: datetime, exclusive: bool = True
    ) -> bool:
        """Add, change and remove entries in Redis so that they match ``beat_schedule``.

        ``now`` is the Redis time from which new entries count. Unless ``exclusive``, this beat
        removes only entries that left its own ``beat_schedule``. Returns False if this beat lost
        the lead. Two round trips, one per 500 entries unless :meth:`offer` was the last to write
        them, and one per 500 removed entries.
        """
        if self.offered and self.offered == store.noted_statics():
            logger.debug("beat: The static entries are unchanged since the start")
        elif not self._write(store, lock, now):
            return False
        removed = self.prune(store, lock, exclusive)
        if removed is None:
            return False
        self.unwritten, self.offered = False, ""
        self.synced["removed"] = removed
        logger.info(
            "beat: Static entries: %d added, %d changed, %d removed, %d in all",
            *(*self.synced.values(), len(self)),
        )
        return True

    def _write(self, store: Store, lock: BeatLock | None, now: datetime) -> bool:
        """Add and change entries; return False if this beat lost the lead."""
        lock_key, token, ttl = (lock.key, lock.token, lock.timeout) if lock else (None, "", 0.0)
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        for rows in batches(self._rows(store, now)):
            codes = store.sync_statics(rows, lock_key, token, ttl)
            if codes is None:
                return False
            self._count_results(rows, codes)
        return True

    def _count_results(self, rows: Sequence[StaticRow], codes: Sequence[int]) -> None:
        """Count the results of rows, and refuse entries whose keys hold another type."""
        self.synced["added"] += codes.count(ADDED)
        self.synced["changed"] += codes.count(CHANGED)
        for row, code in zip(rows, codes, strict=True):
            if code == OCCUPIED:
                self.refuse(row.name, InvalidEntryError("name", OCCUPIED_BY % row.key))

    def _rows(
        self, store: Store, now: datetime, lock: BeatLock | None = None
    ) -> Iterator[StaticRow]:
        scores, meta_of_now = Scores(now), encode_meta(now)
        for name, entry in list(self._entries.items()):
            try:
                definition, policy = _stored_texts(entry, store, lock)
                begins = counts_from(entry.schedule, now)
                meta = meta_of_now if begins is now else encode_meta(begins)
                yield StaticRow(name, entry.key, definition, policy, meta, scores.of(entry))
            except (RedisError, OSError):
                raise
            except Exception as error:  # user code in a schedule or entry class may raise anything
                self.refuse(name, error)

    def stale(self, store: Store, exclusive: bool) -> set[str]:
        """Return the names of static entries that :meth:`prune` would remove. One round trip.

        Unless ``exclusive``, these are only entries that left this beat's own ``beat_schedule``.
        """
        names = store.static_names()
        return names - self._entries.keys() - self._refused if exclusive else names & self._removed

    def prune(self, store: Store, lock: BeatLock | None, exclusive: bool = True) -> int | None:
        """Remove static entries that left ``beat_schedule``; return their number.

        Returns None if this beat lost the lead. One round trip, and one per 500 removed entries.
        """
        if not self.complete:
            return 0
        stale = sorted(self.stale(store, exclusive))
        lock_key, token = (lock.key, lock.token) if lock else (None, "")
        for names in batches(stale):
            if not store.prune_statics(names, lock_key, token):
                return None
            for name in names:
                logger.info("beat: Removed entry %s: it left beat_schedule", name)
        self._removed.clear()
        return len(stale)


def _stored_texts(
    entry: RedBeatSchedulerEntry, store: Store, lock: BeatLock | None = None
) -> tuple[str, str]:
    """Return definition and policy; an entry class with its own ``save`` is saved first.

    Does not change a stored entry while another beat holds ``lock``.
    """
    if type(entry).save is RedBeatSchedulerEntry.save:
        return entry.texts()
    holder = store.lock_holder(lock.key) if lock else ""
    if not holder or (lock and holder == lock.token) or store.load(entry.key)[0] is None:
        entry.save()
    definition, _, policy, *_ = store.load(entry.key)
    return definition or "", policy


class Scores:
    """Computes the scores of new entries from ``now``, once for all equal crontabs."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._by_crontab: dict[Any, float] = {}

    def of(self, entry: RedBeatSchedulerEntry) -> float:
        """Return the score of an entry; raises any error of its schedule."""
        schedule = entry.schedule
        if not entry.enabled:
            return DISABLED
        if type(schedule) is not crontab or asks_itself(schedule) or entry.policy is not DEFAULT:
            return self._compute(entry)
        identity = (entry.app, schedule.__reduce__()[1])
        try:
            score = self._by_crontab.get(identity)
        except TypeError:  # not hashable: a crontab made from a list
            return self._compute(entry)
        if score is None:
            score = self._by_crontab[identity] = self._compute(entry)
        return score

    def _compute(self, entry: RedBeatSchedulerEntry) -> float:
        now = self._now
        if entry.scores_itself():
            return entry.score
        policy, zone = entry._rules()
        begins = counts_from(entry.schedule, now)
        name = str(entry.name)
        decision = decide(entry.schedule, begins, begins, now, now, zone, policy, 0, name)
        if decision.due:
            return now.timestamp()
        return score_of(decision.next_at)
