"""What a beat does besides runs: it keeps the schedule whole, a few milliseconds at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from redbeat.codec.stored import object_in, record_in, seconds_in, text_of
from redbeat.connection.cluster import cluster_errors, node_of
from redbeat.connection.retrying import is_retriable
from redbeat.entries.decide import CLOCK_STEP, DISABLED, PARKED, aware
from redbeat.entries.history import History
from redbeat.errors import DecodeError
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.storage.wire import pairs_of
from tests.edition.beat.load import keep_due
from tests.edition.beat.outcome import HELD, seen_texts
from tests.edition.beat.statics import Exchange
from tests.edition.state import State
from tests.edition.storage.portions import ask, ask_aside, pattern_of, read_rows
from tests.edition.storage.rows import Change, Reply, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import (
    DEFINITION,
    LOST,
    QUARANTINE,
    STANDBY,
    STATE,
    STATS,
)

logger = get_logger("celery.beat")

#: Seconds between two looks at disabled and at quarantined entries.
INTERVAL: Final = 5.0

#: Seconds after which a beat that is never idle does upkeep nevertheless: usually, and in a walk.
BUSY_INTERVAL, BUSY_WALK = 10.0, 0.1

#: How many entries one look reads, and how many keys one portion of a scan. Each takes Python some
#: milliseconds. What is put back is due before all later runs, so a portion puts back only a few.
PAGE: Final = 200
SCANNED: Final = 100

#: The cursor with which a walk begins and ends.
START: Final = 0


@dataclass(slots=True)
class Walk:
    """A walk through all keys or all members, which begins at a local time.

    ``portion`` reads from a cursor, and returns the next cursor and the changes to make. ``end`` is
    called with the number of changes.
    """

    portion: Callable[[int, Reply], tuple[int, list[Change]]]
    end: Callable[[int], None]
    at: float = 0.0
    cursor: int = START
    count: int = 0


class Upkeep:
    """Finds entries that no beat looks at, and puts right what others did to the schedule.

    Every five seconds it looks at a page of the disabled entries, which a program may have enabled
    without a change of their scores, and of the quarantined ones, whose texts may have changed.
    After a loss of the sorted set it scans all keys, and after the clock of Redis went back all
    members. It reads by pipelines, judges here, and its changes expect what it read.

    Arguments:
        store: the schedule in Redis.
        exchange: carries out changes in one round trip.
        clock: returns monotonic seconds.
    """

    def __init__(self, store: Store, exchange: Exchange, clock: Callable[[], float]) -> None:
        self._store, self._client, self._keys = store, store.client, store.keys
        self._exchange = exchange
        self._clock = clock
        self._done_at = self._looked_at = clock()
        #: Where to go on among the disabled entries, and among the quarantined ones.
        self._offset, self._cursor = 0, START
        self._quarantined = 0
        #: The mark of the last known loss, and how many entries its scan leaves outside.
        self._mark, self._outside = "", 0
        self._walks: list[Walk] = []
        self._permitted = True

    def run(self, reply: Reply, *, busy: bool = False) -> bool:
        """Do a portion of what is to be done; return whether the beat must look again at once.

        No round trip in most calls. ``busy`` is a beat that is never idle.
        """
        now = self._clock()
        walk = next((walk for walk in self._walks if walk.at <= now), None)
        interval = BUSY_WALK if walk else BUSY_INTERVAL
        if not self._permitted or (busy and now - self._done_at < interval):
            return False
        self._done_at = now
        try:
            return self._walk(walk, reply) if walk is not None else self._look(reply, now)
        except ResponseError as error:
            if is_retriable(error):
                raise
            self._permitted = False
            logger.warning("beat: Cannot scan for lost entries: %s", error)
            return False

    def clock_went_back(self, seconds: float) -> None:
        """Look at all entries after the clock of Redis was set back, and again after a while.

        Until then, beats may still record what they held by the old clock.
        """
        logger.warning("beat: The clock of Redis went back by %.1f s", seconds)
        now = self._clock()
        self._walks += [Walk(self._from_future, _log_future, at) for at in (now, now + HELD)]

    def note(self, reply: Reply) -> None:
        """Begin a scan for a loss that is not known yet; most replies say nothing about one."""
        if reply.quarantined >= 0:
            self._quarantined = reply.quarantined
        if reply.lost and reply.lost != self._mark:
            self._outside = 0
            self._walks = [walk for walk in self._walks if walk.portion != self._scan]
            self._walks.insert(0, Walk(self._scan, self._end_scan))
        if reply.lost or reply.statics >= 0:
            self._mark = reply.lost

    def _walk(self, walk: Walk, reply: Reply) -> bool:
        """Do the next portion of a walk; an error leaves the walk where it was."""
        cursor, changes = walk.portion(walk.cursor, reply)
        if changes and self._exchange(changes).standing == STANDBY:
            return False
        walk.cursor, walk.count = cursor, walk.count + len(changes)
        if cursor == START:
            walk.end(walk.count)
            self._walks.remove(walk)
        return True

    # -- disabled and quarantined entries ------------------------------------------------------

    def _look(self, reply: Reply, now: float) -> bool:
        """Look at a page of entries that are not due if the last look was some seconds ago."""
        if now - self._looked_at < INTERVAL:
            return False
        self._looked_at = now
        changes = self._enabled(reply)
        if self._quarantined:
            changes += self._reviewed(reply)
        if changes:
            self._exchange(changes)
        return bool(changes)

    def _enabled(self, reply: Reply) -> list[Change]:
        """Return the changes that make due what a program enabled. One or two round trips."""
        page = (self._keys.schedule, DISABLED, DISABLED, "LIMIT", self._offset, PAGE)
        (found,) = ask(self._client, ("ZRANGEBYSCORE", *page))
        keys = [text_of(key) for key in found]
        rows = read_rows(self._store, keys)
        enabled = [row.key for row in rows if not _is_disabled(row)]
        self._offset = self._offset + PAGE - len(enabled) if len(keys) == PAGE else 0
        for key in enabled:
            logger.info("beat: Entry %s was enabled by another program", key)
        return [Change(key, score=reply.now) for key in enabled]

    def _reviewed(self, reply: Reply) -> list[Change]:
        """Return the changes that release what was changed in its quarantine. Two round trips."""
        scan = ("HSCAN", self._keys.quarantine, self._cursor, "COUNT", PAGE)
        cursor, found = ask_aside(self._client, *scan) or (START, {})
        self._cursor = int(cursor)
        notes = {text_of(key): record_in(text_of(note)) for key, note in pairs_of(found)}
        rows = read_rows(self._store, notes)
        changes = []
        for row, note in zip(rows, notes.values(), strict=True):
            version = reply.version or ""
            same_calendars = note.get("version", version) == version
            if note.get("digest") != seen_texts(row) or not same_calendars:
                logger.info("beat: Entry %s was changed and leaves the quarantine", row.key)
                changes.append(_released(row, reply.now))
        return changes

    # -- a lost schedule -----------------------------------------------------------------------

    def _scan(self, cursor: int, reply: Reply) -> tuple[int, list[Change]]:
        """Return what to put back of the next keys. Two or three round trips."""
        node = node_of(self._client, self._keys.schedule)
        pattern = pattern_of(self._keys.prefix)
        scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED, "TYPE", "hash")
        with cluster_errors():
            ((cursor, found),) = ask(node, scan)
        keys = sorted(self._not_members({text_of(key) for key in found}))
        rows = read_rows(self._store, keys)
        entries = [row for row in rows if self._is_entry(row)]
        # A schedule without a note was perhaps never seen whole: what is outside stays there.
        was_whole = seconds_in(self._mark) is not None
        back = [row for row in entries if was_whole and _was_scored(row)]
        self._outside += len(entries) - len(back)
        for row in back:
            logger.warning("beat: Entry %s was missing in the sorted set and is due now", row.key)
        return int(cursor), [_put_back(row, reply.now) for row in back]

    def _not_members(self, keys: Iterable[str]) -> Iterator[str]:
        """Yield the keys that are not in the schedule, neither as keys nor as names."""
        keys = list(keys)
        names = [self._keys.name_of(key) for key in keys]
        scores = ask(
            self._client, *(("ZSCORE", self._keys.schedule, member) for member in (*keys, *names))
        )
        for key, as_key, as_name in zip(keys, scores, scores[len(keys) :], strict=False):
            if as_key is None and as_name is None:
                yield key

    def _is_entry(self, row: Row) -> bool:
        """Return whether the definition has the name of the key; else the hash is of others."""
        name = _definition(row).get("name")
        return name is not None and self._keys.entry(str(name)) == row.key

    def _end_scan(self, _count: int) -> None:
        self._exchange([Change("", index=[["FORGET", STATS, LOST, self._mark]])])
        if self._outside:
            logger.warning(
                "beat: %s stored, but not scheduled: see celery redbeat doctor; "
                "celery redbeat resume NAME schedules an entry",
                plural(self._outside, "entry is", "entries are"),
            )

    # -- the clock went back -------------------------------------------------------------------

    def _from_future(self, cursor: int, reply: Reply) -> tuple[int, list[Change]]:
        """Return the changes of the next members whose history lies in the future."""
        keys, next_cursor = members(
            *(self._client, self._keys.schedule, cursor),
            lambda score: score > reply.now + CLOCK_STEP,
        )
        rows = read_rows(self._store, keys)
        found = (_back_to_now(row, reply.now) for row in rows)
        return next_cursor, [change for change in found if change is not None]


def members(
    client: Any, schedule: str, cursor: int, wanted: Callable[[float], bool]
) -> tuple[list[str], int]:
    """Return the next members with a wanted score, and the next cursor. One round trip."""
    ((cursor, found),) = ask(client, ("ZSCAN", schedule, cursor, "COUNT", PAGE))
    keys = {text_of(key) for key, score in pairs_of(found) if wanted(float(score))}
    return sorted(keys), int(cursor)


def _definition(row: Row) -> dict[str, Any]:
    try:
        return object_in(row.definition or "", DEFINITION)
    except DecodeError:
        return {}


def _is_disabled(row: Row) -> bool:
    """Return whether an entry is disabled; a beat says what is wrong with one it cannot read."""
    return not _definition(row).get("enabled", True)


def _released(row: Row, now: float) -> Change:
    """Return the change that releases an entry from quarantine."""
    index = [["HDEL", QUARANTINE, row.key]]
    if row.definition is None or row.problem:
        return Change(row.key, score=now, index=index)
    state, mark = State.read(row.state, row.meta), new_mark()
    state.quarantine = None
    state.sign(mark)
    fields = {STATE: state.text()}
    return Change(row.key, mark, digest_of(row), set=fields, score=now, index=index)


def _was_scored(row: Row) -> bool:
    """Return whether a change of ours gave the entry its last score."""
    return bool(State.read(row.state, row.meta).marks.last)


def _put_back(row: Row, now: float) -> Change:
    """Return the change that puts an entry back: due now, or where its state says that it was."""
    state = State.read(row.state, row.meta)
    score = now if state.due is None else state.due
    if state.hold is not None:
        score = max(state.hold.until, now)
    return Change(
        row.key, expect=digest_of(row), add=PARKED if state.quarantine is not None else score
    )


def _back_to_now(row: Row, now: float) -> Change | None:
    """Return the change of an entry whose last run, hold or trigger is of the future, else None."""
    if row.definition is None or row.problem:
        return None
    state = State.read(row.state, row.meta)
    if state.hold is not None and state.hold.until > now + HELD + CLOCK_STEP:
        state.hold, mark = state.hold._replace(until=now + HELD), new_mark()
        state.sign(mark)
        fields = {STATE: state.text()}
        return Change(row.key, mark, digest_of(row), set=fields, score=now + HELD)
    if not state.waiting and _last(row, state) <= now + CLOCK_STEP:
        return None
    if not keep_due(row, state):
        return Change(row.key, score=now)
    mark = new_mark()
    state.sign(mark)
    return Change(row.key, mark, digest_of(row), set={STATE: state.text()}, score=now)


def _last(row: Row, state: State) -> float:
    """Return the time of the last run that a beat recorded, 0 without one."""
    try:
        last = History.read(row.meta or "").last_run_at
    except DecodeError:
        return 0.0
    if last is None or state.at is None:
        return 0.0
    return max(aware(last).timestamp(), state.at)


def _log_future(count: int) -> None:
    if count:
        entries = plural(count, "entry", "entries")
        logger.warning("beat: Made %s due: the last run lies in the future", entries)
