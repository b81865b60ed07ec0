"""The entries of ``beat_schedule``: how they get into Redis, and what only a beat has of them."""

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

#: What became of an entry, as ``sync.lua`` returns it.
ADDED, CHANGED, OCCUPIED = 1, 2, 4

OCCUPIED_BY = "the key %r holds something that is not an entry; rename one of them"


class StaticEntries:
    """What ``beat_schedule`` holds, and how Redis is brought in step with it.

    An entry that cannot be made or stored is reported and leaves the others alone; what Redis holds
    of it stays as it is.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RedBeatSchedulerEntry] = {}
        self._refused: set[str] = set()
        self._removed: set[str] = set()
        self._base_schedules: dict[str, Any] = {}
        #: Whether these are all there are, so that others in Redis are to be removed.
        self.complete = False
        #: How many entries the last :meth:`sync` has added, changed and removed.
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        #: Whether entries were noted that no :meth:`sync` has written yet.
        self.unwritten = False
        #: What :meth:`offer` has written, if it wrote all of them while no other beat led.
        self.offered = ""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def collect(self) -> None:
        """Begin again: what is not added from now on has left ``beat_schedule``."""
        self._removed |= self._entries.keys()
        self._entries, self._refused, self._base_schedules = {}, set(), {}
        self.complete = self.unwritten = True
        self.offered = ""

    def add(self, name: str, entry: RedBeatSchedulerEntry) -> None:
        """Note an entry; raises :exc:`InvalidEntryError` for one that would come back for ever."""
        if entry.policy.on_finish == "delete":
            problem = "'delete' is for entries that are stored at run time; use 'keep' or 'disable'"
            raise InvalidEntryError("on_finish", problem)
        entry._static = True
        self._entries[str(name)] = entry
        self._refused.discard(str(name))
        self._removed.discard(str(name))

    def refuse(self, name: str, error: Exception) -> None:
        """Report an entry that cannot be made or stored."""
        logger.error("beat: Static entry %s is not scheduled: %s", name, error)
        self._entries.pop(str(name), None)
        self._refused.add(str(name))
        self._removed.discard(str(name))

    def restore_schedule(self, entry: RedBeatSchedulerEntry) -> None:
        """Put the schedule object of ``beat_schedule`` into a loaded entry, if it decides itself.

        Redis holds the base form of such a schedule. One that was edited in Redis stays.
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
        """Put the functions that ``beat_schedule`` has among its arguments into a loaded entry.

        Raises :exc:`LazyArgumentError` where it has none for an argument that is to be computed.
        """
        if not entry._lazy:
            return
        static_entry = self._entries.get(str(entry.name))
        entry.args = resolved(entry.args, static_entry and static_entry.args, ("args",))
        entry.kwargs = resolved(entry.kwargs, static_entry and static_entry.kwargs, ("kwargs",))

    def offer(self, store: Store, lock: BeatLock | None) -> None:
        """Add and change entries in Redis; while another beat leads, only add what is missing.

        No round trip without entries, else two, and one per 500 of them.
        """
        if not self._entries:
            return
        lock_key, token = (lock.key, lock.token) if lock else (None, "")
        free, digest = True, sha1(usedforsecurity=False)
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        for rows in batches(self._rows(store, from_timestamp(store.time()), lock)):
            free, codes = store.offer_statics(rows, lock_key, token)
            self._count_results(rows, codes)
            digest.update("".join(row.definition + row.policy for row in rows).encode())
        if free:
            self.offered = digest.hexdigest()
            store.note_statics(self.offered)
        if self.synced["added"] and not free:
            message = "beat: Another beat leads: %d missing static entries added"
            logger.info(message, self.synced["added"])

    def sync(self, store: Store, lock: BeatLock | None, now: datetime, alone: bool = True) -> bool:
        """Add, change and remove entries in Redis so that they are those of ``beat_schedule``.

        ``now`` is the time of Redis: a new entry counts from there. Unless this beat is ``alone``
        in removing entries, it removes only those that were its own. False when the caller does not
        lead any more. Two round trips, one per 500 entries unless :meth:`offer` was the last to
        write them, and one per 500 removed.
        """
        if self.offered and self.offered == store.noted_statics():
            logger.debug("beat: The static entries stand as they were written at the start")
        elif not self._write(store, lock, now):
            return False
        removed = self.prune(store, lock, alone)
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
        """Add and change entries; False when the caller does not lead any more."""
        lock_key, token, ttl = (lock.key, lock.token, lock.timeout) if lock else (None, "", 0.0)
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        for rows in batches(self._rows(store, now)):
            codes = store.sync_statics(rows, lock_key, token, ttl)
            if codes is None:
                return False
            self._count_results(rows, codes)
        return True

    def _count_results(self, rows: Sequence[StaticRow], codes: Sequence[int]) -> None:
        """Count what became of rows, and refuse those whose keys hold something else."""
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
            except Exception as error:  # of a schedule or an entry class of the user's own, too
                self.refuse(name, error)

    def stale(self, store: Store, alone: bool) -> set[str]:
        """Return the names of static entries that :meth:`prune` would remove. One round trip."""
        names = store.static_names()
        return names - self._entries.keys() - self._refused if alone else names & self._removed

    def prune(self, store: Store, lock: BeatLock | None, alone: bool = True) -> int | None:
        """Remove static entries that left ``beat_schedule``; how many, None without the lead.

        One round trip, and one per 500 removed.
        """
        if not self.complete:
            return 0
        stale = sorted(self.stale(store, alone))
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
    """Return definition and policy; a class with a ``save`` of its own stores itself first.

    It leaves what is stored alone while another beat holds ``lock``.
    """
    if type(entry).save is RedBeatSchedulerEntry.save:
        return entry.texts()
    holder = store.lock_holder(lock.key) if lock else ""
    if not holder or (lock and holder == lock.token) or store.load(entry.key)[0] is None:
        entry.save()
    definition, _, policy, *_ = store.load(entry.key)
    return definition or "", policy


class Scores:
    """The scores of new entries, which count from ``now``; equal crontabs are asked once."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._known: dict[Any, float] = {}

    def of(self, entry: RedBeatSchedulerEntry) -> float:
        """Return the score of an entry; raises what its schedule raises."""
        when = entry.schedule
        if not entry.enabled:
            return DISABLED
        if type(when) is not crontab or asks_itself(when) or entry.policy is not DEFAULT:
            return self._computed(entry)
        identity = (entry.app, when.__reduce__()[1])
        try:
            score = self._known.get(identity)
        except TypeError:  # A crontab with a list.
            return self._computed(entry)
        if score is None:
            score = self._known[identity] = self._computed(entry)
        return score

    def _computed(self, entry: RedBeatSchedulerEntry) -> float:
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
