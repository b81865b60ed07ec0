"""Finds what is wrong with a schedule: the one place that status, doctor, pages and metrics ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from redbeat.config import RedBeatConfig
from redbeat.connection.urls import safe_url
from redbeat.entries.status import Overdue
from redbeat.metrics.beats import BeatInfo
from redbeat.metrics.counts import Counts
from redbeat.presentation import describe, text
from redbeat.printing import encodable, plural, printable
from redbeat.storage.checks import memory_limit
from redbeat.storage.keys import layout_of
from redbeat.storage.reading import Reading
from redbeat.storage.words import NO_BROKER, PAUSED_FOR_FAILURES, SILENCE

#: With an error, runs fail or are not sent; with a warning, nothing is lost yet.
ERROR, WARNING = "error", "warning"


class Kind(NamedTuple):
    """A kind of problem; ``stops`` is whether beats publish nothing because of it."""

    severity: str
    remedy: str
    stops: bool = False


CORRECT: Final = "correct or delete the entry; a corrected entry runs again without a restart"

#: Problems of Redis come first, because others may follow from them.
KINDS: Final[dict[str, Kind]] = {
    "settings": Kind(ERROR, "correct the setting"),
    "redis": Kind(
        ERROR, "make it writable again, see its log; then beats go on by themselves", stops=True
    ),
    "lock": Kind(ERROR, "rename or delete the key, or set redbeat_lock_key", stops=True),
    "leader": Kind(ERROR, "start a beat", stops=True),
    "beats": Kind(ERROR, "start a beat with the same key prefix and the same Redis"),
    "broker": Kind(
        ERROR,
        "start the broker, or correct broker_url; then beats send the runs that are due",
        stops=True,
    ),
    "delivery": Kind(
        ERROR,
        "use one Redis for broker and schedule, or set redbeat_delivery to at_least_once",
        stops=True,
    ),
    "beat": Kind(ERROR, "look at the log of the beat for the traceback", stops=True),
    "key": Kind(ERROR, "delete the key with the command", stops=True),
    "shards": Kind(ERROR, "use the same number of shards everywhere"),
    "eviction": Kind(WARNING, "set maxmemory-policy to noeviction or to a volatile-* policy"),
    "quarantined": Kind(ERROR, CORRECT),
    "failing": Kind(
        ERROR, "correct the cause of the error; a beat tries again at least every minute"
    ),
    "failed": Kind(
        ERROR, "look at the log of its worker; celery redbeat show NAME has the last errors"
    ),
    "late": Kind(
        ERROR,
        "celery redbeat show NAME and the log of the beat say why; perhaps the beat lacks time",
    ),
    "overdue": Kind(
        ERROR, "check the entry's history, the log of its worker, and whether a beat sends its runs"
    ),
    "queue": Kind(ERROR, "start a worker that reads it (-Q), or correct the queue of the entry"),
    "worker": Kind(ERROR, "look whether workers run, have time and reach Redis"),
    "task": Kind(WARNING, "correct the entry, or import the task in the app's modules"),
    "missing": Kind(WARNING, "remove the key from the schedule"),
    "unreadable": Kind(ERROR, CORRECT),
    "score": Kind(WARNING, "make the entry due now, so that a beat corrects the score"),
    "orphan": Kind(WARNING, "schedule the entry, or delete it"),
    "busy": Kind(WARNING, "spread the entries"),
    "version_2": Kind(WARNING, "change or delete the entry"),
}

#: What to do about entries that are only counted.
LISTED: Final = "celery redbeat list --state %s lists them with their errors"

#: The kinds that count entries; each of these entries has the problem of its own, too.
OF_ENTRIES: Final = ("failing", "failed", "quarantined", "overdue")

#: The kinds of problems that stop a beat, by how they begin.
STARTS: Final = {NO_BROKER: "broker", "the key ": "key", "the tick ": "beat", "": "delivery"}

#: How late a due entry may be without a problem, in seconds, unless the caller says otherwise.
MAX_LATE: Final = 60.0

#: Seconds without a report after which workers count as silent, and how many messages beats must
#: have sent since: fewer may be a night's batch of long tasks.
SILENT_WORKERS: Final = 900.0
ENOUGH_RUNS: Final = 10

#: Maximum length of an entry's name in a problem, in characters.
LONGEST_NAME: Final = 100

#: Maximum number of entries that are named in problems of one kind.
MOST_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a schedule.

    Attributes:
        kind: one of the kinds that ``doctor`` lists.
        key: the Redis key of the entry, "" for a problem of the whole schedule.
        problem: what is wrong.
        remedy: what ``--fix`` does if ``fixable`` is true, otherwise what the operator can do.
        fixable: whether ``--fix`` repairs the problem.
        fixed: whether ``--fix`` has repaired it.
    """

    kind: str
    key: str
    problem: str
    remedy: str
    fixable: bool = False
    fixed: bool = False

    @property
    def severity(self) -> str:
        """``error`` if runs are not sent or fail, ``warning`` if nothing is lost yet."""
        return KINDS[self.kind].severity

    @property
    def stops(self) -> bool:
        """Whether beats publish nothing because of this problem."""
        return KINDS[self.kind].stops


def finding(kind: str, problem: str, key: str = "", remedy: str = "") -> Finding:
    """Return a problem, by default with the remedy of its kind."""
    return Finding(kind, key, problem, remedy or KINDS[kind].remedy)


def problems_of(
    counts: Counts,
    conf: RedBeatConfig,
    server: Mapping[str, str],
    overdue: Sequence[Overdue] = (),
    max_late: float = MAX_LATE,
) -> list[Finding]:
    """Return the problems of a whole schedule, the causes before what follows from them.

    ``counts`` is from :func:`redbeat.metrics.snapshot.count_entries`, and ``server`` from
    :func:`server_of`. A due entry may be ``max_late`` seconds late.
    """
    if problem := server.get("problem"):
        stops = [finding("redis", f"Redis at {safe_url(conf.redis_url)} {problem}")]
    else:
        stops = [*_of_beats(counts, conf), *_of_a_beat(counts)]
    return [*stops, *_of_entries(counts, conf, overdue, max_late), *_risks(server, conf)]


# -- what stops beats ------------------------------------------------------------------------------


def _risks(server: Mapping[str, str], conf: RedBeatConfig) -> Iterator[Finding]:
    if conf.key_expiry_check != "ignore" and (risk := server.get("eviction")):
        yield finding("eviction", f"Redis may evict entries: {risk}")


def _of_beats(counts: Counts, conf: RedBeatConfig) -> Iterator[Finding]:
    holders = counts.holders or [counts.holder]
    shared = any(not beat.locked for beat in counts.beats)
    if not (any(holders) or shared):
        where = f"the prefix {conf.key_prefix} in {safe_url(conf.redis_url)}"
        remedy = f"start a beat; this schedule has {where}"
        problem = "no beat leads" if conf.lock_key else "no beat is active"
        yield finding("beats", problem, remedy=remedy)
    elif conf.lock_key and not all(counts.holders):
        prefixes = layout_of(conf).prefixes
        free = [prefix for prefix, holder in zip(prefixes, holders, strict=True) if not holder]
        shards = f"{len(free)} of {len(holders)} shards"
        yield finding("beats", f"no beat leads {shards}, for example {free[0]}")
    if conf.lock_key and counts.not_locks:
        key = layout_of(conf).lock_key(counts.not_locks[0], conf.lock_key)
        yield finding("lock", encodable(f"the key {key} is not a lock"))
        return
    problem = silent_leader(counts)
    if problem:
        yield finding("leader", encodable(problem))


def silent_leader(counts: Counts) -> str:
    """Return a message if the leader is probably dead, or "".

    A killed leader holds the lock until another beat takes over.
    """
    leader, last = BeatInfo.read(counts.holder), leader_seen(counts)
    if leader.since is None or last is None:
        return ""
    # A leader that is starting has the last tick of the leader before it.
    silence = counts.now - max(last, leader.since.timestamp())
    if silence <= SILENCE:
        return ""
    name = f"{leader.host}, pid {leader.pid}"
    return f"the leader ({name}) has not reached Redis for {text.duration(silence)}"


def leader_seen(counts: Counts) -> float | None:
    """Return the leader's last sign of life in UNIX seconds, None if there is none."""
    seen = (beat.seen for beat in counts.beats if beat.token == counts.holder)
    # Redis forgets when a beat was seen, but not when the leader last ticked.
    return next(seen, counts.last_tick)


def _of_a_beat(counts: Counts) -> Iterator[Finding]:
    if counts.problem:
        kind = next(kind for start, kind in STARTS.items() if counts.problem.startswith(start))
        yield finding(kind, printable(counts.problem))


# -- entries ---------------------------------------------------------------------------------------


def _of_entries(
    counts: Counts, conf: RedBeatConfig, overdue: Sequence[Overdue], max_late: float
) -> Iterator[Finding]:
    if counts.failing:
        entries = plural(counts.failing, "entry has", "entries have")
        yield finding("failing", f"{entries} a run that cannot be sent", remedy=LISTED % "failing")
    if counts.quarantined:
        problem = plural(counts.quarantined, "entry is quarantined", "entries are quarantined")
        yield finding("quarantined", problem, remedy=LISTED % "quarantined")
    yield from _of_failed(counts, conf)
    yield from _of_workers(counts, conf)
    late = 0.0 if counts.first_due is None else counts.now - counts.first_due
    if late > max_late:
        name = printable(layout_of(conf).name_of(counts.first_key), LONGEST_NAME)
        yield finding("late", f"{name} is {text.duration(late)} late")
    for item in overdue[:MOST_NAMED]:
        yield finding("overdue", f"{item.name} {describe.overdue_text(item)}")
    if len(overdue) > MOST_NAMED:
        yield finding("overdue", f"{len(overdue) - MOST_NAMED} more entries had no success in time")


def _of_workers(counts: Counts, conf: RedBeatConfig) -> Iterator[Finding]:
    silence = 0.0 if counts.last_report is None else counts.now - counts.last_report
    reports = getattr(conf.app, "redbeat_tracks_runs", False)
    if reports and silence > SILENT_WORKERS and counts.unreported >= ENOUGH_RUNS:
        what = f"no worker has reported the end of a run for {text.duration(silence)}"
        yield finding("worker", f"{what}, although beats send runs")


def _of_failed(counts: Counts, conf: RedBeatConfig) -> Iterator[Finding]:
    name_of = layout_of(conf).name_of
    for key, failures in counts.most_failed:
        name = printable(name_of(key), LONGEST_NAME)
        problem = f"the last {failures} runs of {name} failed"
        if failures >= PAUSED_FOR_FAILURES:
            problem = f"{name} is paused, because its runs failed"
        yield finding("failed", problem)
    others = counts.failed - len(counts.most_failed)
    if others > 0:
        entries = plural(others, "other entry", "other entries")
        yield finding("failed", f"the last runs of {entries} failed")


# -- the servers -----------------------------------------------------------------------------------

#: Fields of INFO that are "err" after a server couldn't save its data to disk.
SAVES: Final = ("rdb_last_bgsave_status", "aof_last_write_status")


def server_of(store: Reading) -> dict[str, str]:
    """The server's version and mode from INFO, and what is wrong with it.

    ``problem`` is why a server takes no writes, ``eviction`` why it may evict entries, or "". If
    INFO is refused, nothing is returned. One round trip for each server, and one more if it
    couldn't save its data.
    """
    try:
        found = store.servers()
    except ResponseError:
        return {}
    info = found[0][1]
    # Valkey's redis_version is there only for compatibility.
    version = info.get("valkey_version") or info.get("redis_version", "")
    mode = info.get("redis_mode") or info.get("server_mode", "")
    problems = filter(None, (_why_no_writes(info, server) for server, info in found))
    risks = (limit for limit, evicts in (memory_limit(info) for _, info in found) if evicts)
    troubles = {"problem": next(problems, ""), "eviction": next(risks, "")}
    return {"version": str(version), "mode": str(mode), **troubles}


def _why_no_writes(info: Mapping[str, Any], server: Any) -> str:
    """Why a server refuses writes, by its INFO; "" if it takes them.

    One round trip if it couldn't save its data, else none.
    """
    if info.get("role") == "slave" and info.get("slave_read_only", 1):
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        return f"is a read-only replica of {master}"
    if info.get("loading"):
        return "is loading its data"
    limit, evicts = memory_limit(info)
    used = info.get("used_memory", 0) - info.get("mem_not_counted_for_evict", 0)
    if 0 < info.get("maxmemory", 0) <= used and not evicts:
        return f"is full: {limit}"
    unsaved = [name for name in SAVES if info.get(name) == "err"]
    if unsaved and not _answers_ping(server):
        return f"takes no writes, because it cannot save its data to disk ({unsaved[0]} is err)"
    return ""


def _answers_ping(server: Any) -> bool:
    """Whether a server that couldn't save its data takes writes all the same.

    It refuses PING together with writes (MISCONF), unless stop-writes-on-bgsave-error is off.
    """
    with suppress(ResponseError):
        return bool(server.ping())
    return False
