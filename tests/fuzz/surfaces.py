"""The surfaces that the fuzzer attacks: what a case of each is, and what must hold after it.

A surface makes cases from seeds and runs a batch of them. Reports are lines of text; an empty list
means that everything held. All cases are literals, so that a file can keep them.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote_from_bytes, urlencode
from zlib import crc32

import redis
from celery import Celery
from celery.beat import ScheduleEntry, SchedulingError
from celery.schedules import crontab, solar
from celery.schedules import schedule as interval
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry
from werkzeug.test import EnvironBuilder

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.wakeup import DUE, WakeUp
from redbeat.cli.import_export import SHELVE, read_source
from redbeat.config import ensure_conf
from redbeat.entries.decide import Run
from redbeat.entries.saving import entry_of
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.management.schedule import Schedule
from redbeat.metrics.prometheus import RedisCollector
from redbeat.metrics.snapshot import take_snapshot
from redbeat.storage.rows import Row
from redbeat.storage.store import store_of
from redbeat.transfer.importing import Importer
from redbeat.transfer.incoming import UnreadableSourceError
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from redbeat.web.timeline import forecasts_of
from tests.cli.commands import run_command
from tests.fuzz.mutator import TAGGED_VALUES, Mutator
from tests.fuzz.vocabulary import (
    CALENDAR,
    DEFINITION,
    FIELDS,
    HASH_FIELDS,
    HISTORY,
    ICAL,
    NOTE,
    RUNTIME,
    SCORES,
    STATS,
    TABLE,
)
from tests.scheduler.conftest import Clock, RecordingScheduler, on_clock

__all__ = ("SURFACES", "Surface", "World")

PREFIX: Final = b"redbeat:"
SCHEDULE: Final = b"redbeat::schedule"
QUARANTINE: Final = b".redbeat::quarantine"
BEATS: Final = b".redbeat::beats"
STATS_KEY: Final = b".redbeat::stats"
STATICS: Final = b"redbeat::statics"
LOCK: Final = b"redbeat::lock"
CALENDARS: Final = b".redbeat::calendars"
USERS: Final = b".redbeat::calendar-users"
FAILING: Final = b".redbeat::failing"
EXPECTED: Final = b".redbeat::expected"
HANDS: Final = b".redbeat::hands"

#: Keys of other programs, which nothing may change.
FOREIGN: Final = {"foreign": b"1", "redbeat": b"2", "redbeat-other:a": b"3"}
#: The entry that must be sent at its tick, whatever else is stored.
SENTINEL: Final = "sentinel"
#: More seconds than pass between two sweeps or two reviews of the quarantine.
A_WHILE: Final = 90.0
#: The pages and commands that show the whole schedule.
PAGES: Final = ("/?per=200", "/beats")
COMMANDS: Final = ("list", "status", "export --history")
SLOW_PAGES: Final = (
    *("/timeline?span=hour", "/?per=200&sort=name", "/?sort=last", "/?sort=-state"),
    *("/api/entries?limit=500", "/api/upcoming", "/api/status"),
)
SLOW_COMMANDS: Final = (
    *("list --json --sort last", "upcoming", "doctor", "status --json", "calendars"),
    *("calendars --json", "migrate-prefix redbeat: {other}: --dry-run"),
)
#: The pages and commands that show one entry; each entry takes one of them in turn.
ENTRY_PAGES: Final = (
    *("/entry/edit", "/entry/simulate", "/api/entry", "/api/entry/history", "/entry/delete"),
)
ENTRY_COMMANDS: Final = (
    *("show --json", "history --json", "upcoming", "backfill", "backfill --cancel"),
    "backfill --from 2026-11-20 --to 2026-11-21 --rate 1/h",
    "simulate --from 2026-11-20 --to 2026-11-21",
)

#: CPU seconds that a beat, a page or a command may need for a batch.
PATIENCE: Final = 20.0
#: Maximum length of an error message, in characters.
LONGEST_ERROR: Final = 10_000
NOW: Final = datetime(2026, 3, 29, 0, 59, 59, 500_000, tzinfo=timezone.utc)


class Tracebacks(logging.Handler):
    """Keeps the log records that contain a traceback, or are critical."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info and record.exc_info[1]
        # Celery's own error for a task that cannot be sent comes with a traceback, as documented.
        if error and not isinstance(error, SchedulingError):
            self.lines.append(f"log: {described(error)}")
        elif record.levelno >= logging.CRITICAL:
            self.lines.append(f"log: {record.getMessage():.300}")


def described(error: BaseException) -> str:
    """Return the error with the innermost place in RedBeat where it was raised."""
    place, at = "", error.__traceback__
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if "/redbeat/" in name:
            place = f"{Path(name).parent.name}/{Path(name).name}:{at.tb_lineno}"
        at = at.tb_next
    return f"{type(error).__name__} at {place or '?'}: {str(error)[:200]!r}"


class World:
    """One Redis server, the app, and the log of a process of the fuzzer."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.app = Celery("fuzz", broker="memory://", set_as_current=False)
        self.app.conf.update(
            redbeat_redis_url=url, timezone="UTC", result_expires=None, redbeat_lock_key=None
        )
        self.schedule = Schedule(self.app)
        self.web = create_app(self.schedule, Access())
        self.browser = self.web.test_client()
        self.tracebacks = Tracebacks()
        #: The kinds of findings so far, for each of which one case was made small.
        self.known: set[str] = set()
        #: Whether to run all readers after a batch. Otherwise the slow ones take turns.
        self.thorough = False
        self.clock = Clock()
        names = ("celery.beat", "redbeat", "redbeat.web", "celery")
        loggers = [logging.getLogger(name) for name in names]
        self._loggers = [(one, one.handlers, one.propagate) for one in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [self.tracebacks], False

    def close(self) -> None:
        """Close all connections, and let the loggers be as before."""
        for logger, handlers, propagate in self._loggers:
            logger.handlers, logger.propagate = handlers, propagate
        self.client.close()
        with suppress(AttributeError):
            self.app.redbeat_redis.close()

    @contextmanager
    def watched(self, what: str, found: list[str], patience: float = PATIENCE) -> Iterator[None]:
        """Report what the block raises and logs, and whether it takes too long."""
        self.tracebacks.lines.clear()
        started = time.thread_time()
        try:
            yield
        except Exception as error:
            found.append(f"{what}: {described(error)}")
        found += [f"{what}: {line}" for line in dict.fromkeys(self.tracebacks.lines)]
        if (took := time.thread_time() - started) > patience:
            found.append(f"{what}: took {took:.0f} s")

    def execute(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Write to Redis, as any other program may; a command that Redis refuses has no effect."""
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        pipe.execute(raise_on_error=False)

    def put_sentinel(self) -> None:
        """Store the entry that must be sent at the next tick."""
        # Its runs are 300 days apart, so that none is due between two ticks.
        every = {"__type__": "interval", "every": 300 * 86400}
        text = {"name": SENTINEL, "task": "t", "schedule": every}
        self.client.delete(PREFIX + SENTINEL.encode())
        self.client.hset(PREFIX + SENTINEL.encode(), "definition", json.dumps(text))
        self.client.zadd(SCHEDULE, {PREFIX + SENTINEL.encode(): 1})
        self.client.mset(FOREIGN)

    def beat(self, ticks: int = 3, must_send: bool = True) -> list[str]:
        """Run a new beat for some ticks with time for all maintenance; return what went wrong."""
        found: list[str] = []
        scheduler = on_clock(RecordingScheduler, self.clock)(self.app)
        for number in range(ticks):
            with self.watched(f"tick {number + 1}", found):
                wait = scheduler.tick()
                if not 0 <= wait <= 300:
                    found.append(f"tick {number + 1}: waits {wait} s")
                if must_send and (sent := scheduler.names.count(SENTINEL)) != 1:
                    found.append(f"tick {number + 1}: sent the good entry {sent} times")
                    must_send = False
            self.clock.advance(A_WHILE)
        with self.watched("stop", found):
            scheduler.close()
        if self.client.mget(FOREIGN) != list(FOREIGN.values()):
            found.append("a key that is not of RedBeat was changed")
        return found

    def page(self, found: list[str], path: str, largest: int = 499, **request: Any) -> None:
        """Request a page; report a status above ``largest``."""
        method = request.pop("method", "GET")
        with self.watched(f"page {path:.80}", found):
            answer = self.browser.open(path, method=method, **request)
            answer.close()
            if answer.status_code > largest:
                found.append(f"page {path:.80}: status {answer.status_code}")

    def command(self, found: list[str], *words: str) -> None:
        """Run a command; report an unexpected error or an unknown exit code."""
        with self.watched(f"celery redbeat {' '.join(words):.80}", found):
            result = run_command(self.app, *words)
            if result.code not in (0, 1, 2, 3, 4, 5, 69):
                found.append(f"celery redbeat {' '.join(words):.80}: exit code {result.code}")

    def read_all(self, cases: list[Any], largest: int = 499) -> list[str]:
        """Show the whole schedule on every page and with every command that reads.

        Only one of the slow readers runs, chosen by the cases, unless the world is thorough.
        """
        found: list[str] = []
        self.web.extensions["forecasts"] = forecasts_of(self.schedule)
        slow = [*SLOW_PAGES, *SLOW_COMMANDS]
        if not self.thorough:
            slow = [slow[crc32(repr(cases[:1]).encode()) % len(slow)]]
        for path in (*PAGES, *slow):
            if path.startswith("/"):
                self.page(found, path, largest)
        for line in (*COMMANDS, *slow):
            if not line.startswith("/"):
                self.command(found, *line.split())
        with self.watched("exporter", found):
            conf, store = ensure_conf(self.app), store_of(self.app)
            registry = CollectorRegistry()
            registry.register(
                RedisCollector(lambda: take_snapshot(store, conf), conf.metrics_entries)
            )
            generate_latest(registry)
        return found

    def read_one(self, name: bytes) -> list[str]:
        """Show one entry on every page and with every command that shows one."""
        found: list[str] = []
        at = crc32(name)
        for path in ("/entry", ENTRY_PAGES[at % len(ENTRY_PAGES)]):
            self.page(found, f"{path}?name={quote_from_bytes(name)}")
        text = name.decode("utf-8", "surrogateescape")
        if text and not text.startswith("-"):
            for command in ("show", "history", ENTRY_COMMANDS[at % len(ENTRY_COMMANDS)]):
                self.command(found, *command.split(), text)
        return found


class Surface:
    """A kind of case. ``size`` is the number of cases that run together."""

    name: ClassVar[str]
    size: ClassVar[int] = 1
    #: Share of all cases, in thousandths.
    share: ClassVar[int]

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return the case with this number."""
        raise NotImplementedError

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Run cases together; return what went wrong."""
        raise NotImplementedError


def schedule_of(mutator: Mutator) -> Any:
    """Return a schedule as JSON."""
    return mutator.choice(TAGGED_VALUES)


def valid_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


def stored(content: Any, as_json: Callable[[Any], bytes] = valid_json) -> bytes:
    """Return the content of a field as it is stored: lists have one element a line."""
    if not isinstance(content, list):
        return as_json(content)
    return b"[" + b",\n".join(map(as_json, content)) + b"]"


class Stored(Surface):
    """Entries with hostile fields, members and scores. A case is a list of Redis commands.

    All entries of a batch are due; the beat must send the good entry at its first tick. All pages
    and commands show all entries, and some of them alone.
    """

    name = "stored"
    share = 400
    size = 200
    #: Number of entries of a batch that are also shown alone.
    alone = 3

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return the commands that store one entry."""
        name = b"e%d" % number
        if mutator.chance(0.15):
            name = mutator.damaged(name)
        key = PREFIX + name
        example = {**DEFINITION, "name": name.decode("utf-8", "replace")}
        # Most cases damage one field, since the first bad field hides the others.
        bad = mutator.choice(("definition", "definition", *HASH_FIELDS, "score", "type", "all"))
        example["schedule"] = TAGGED_VALUES[0]
        if bad in ("definition", "beat_state", "policy"):
            example["schedule"] = schedule_of(mutator)
        commands: list[tuple[Any, ...]] = []
        if bad == "type":
            commands.append(wrong_type(mutator, key))
        else:
            fields = self._fields(mutator, example, bad)
            commands += [("HSET", key, field, text) for field, text in fields.items()]
        score = mutator.choice(SCORES) if bad == "score" or mutator.chance(0.1) else "1"
        commands.append(("ZADD", SCHEDULE, score, name if mutator.chance(0.05) else key))
        if mutator.chance(0.1):
            commands.append(("HSET", QUARANTINE, key, mutator.json(NOTE)))
            commands.append(("ZADD", SCHEDULE, "-1", key))
        if mutator.chance(0.1):
            commands.append(("SADD", STATICS, name))
        return commands

    def _fields(self, mutator: Mutator, example: Any, bad: str) -> dict[bytes, bytes]:
        """Return the fields of an entry, of which those that ``bad`` names are damaged."""
        fields = {b"definition": json.dumps(example).encode()}
        if bad in ("definition", "all"):
            fields[b"definition"] = mutator.json(example)
        for field, content in HASH_FIELDS.items():
            if bad in (field, "all"):
                name = mutator.noise() if field == "unknown" else field.encode()
                fields[name] = stored(content, mutator.json)
            elif mutator.chance(0.15) and field not in ("beat_state", "policy"):
                fields[field.encode()] = stored(content)
        return fields

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Store all entries, look at them before and after a beat has run."""
        world.client.flushall()
        world.execute([("HSET", CALENDARS, "de", json.dumps(CALENDAR))])
        world.execute([command for case in cases for command in case])
        world.put_sentinel()
        names = [case[0][1].removeprefix(PREFIX) for case in cases if case]
        found = [line for name in names[: self.alone] for line in world.read_one(name)]
        found += world.beat()
        found += world.read_all(cases)
        return found + [line for name in names[: self.alone] for line in world.read_one(name)]


def wrong_type(mutator: Mutator, key: bytes) -> tuple[Any, ...]:
    """Return a command that stores a value of any type under a key."""
    text = mutator.noise()
    return mutator.choice(
        (
            ("SET", key, text),
            ("RPUSH", key, text),
            ("SADD", key, text),
            ("ZADD", key, "1", text),
            ("XADD", key, "*", "a", text),
            ("HSET", key, text, text),
        )
    )


class Own(Surface):
    """Hostile content of the keys that are no entries. A case is a list of Redis commands.

    The fields of the stats and of the quarantine, the beats, the statics, the members and scores of
    the schedule, calendars, failing and expected entries, and what beats have in hand. The beat
    must send the good entry at its first tick.
    """

    name = "own keys"
    share = 25
    size = 25

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return commands that write to some of these keys."""
        makers: tuple[Callable[[], tuple[Any, ...]], ...] = (
            lambda: ("HSET", QUARANTINE, self._key(mutator, number), mutator.json(NOTE)),
            lambda: ("HSET", STATS_KEY, self._field(mutator), self._text(mutator)),
            lambda: ("ZADD", BEATS, mutator.choice(SCORES), self._beat(mutator)),
            lambda: ("SADD", STATICS, mutator.noise()),
            lambda: ("ZADD", SCHEDULE, mutator.choice(SCORES), self._key(mutator, number)),
            lambda: ("HSET", HANDS, mutator.noise(), self._text(mutator)),
            lambda: ("HSET", CALENDARS, self._calendar(mutator), mutator.json(CALENDAR)),
            lambda: ("SADD", USERS, self._key(mutator, number)),
            lambda: ("ZADD", FAILING, mutator.choice(SCORES), self._key(mutator, number)),
            lambda: ("ZADD", EXPECTED, mutator.choice(SCORES), self._key(mutator, number)),
        )
        return [mutator.one(*makers) for _ in range(mutator.random.randint(1, 3))]

    def _key(self, mutator: Mutator, number: int) -> bytes:
        name = mutator.choice((b"redbeat:m%d" % number, b"m%d" % number, mutator.noise()))
        return mutator.choice((name, PREFIX + mutator.noise(), mutator.damaged(name)))

    def _calendar(self, mutator: Mutator) -> bytes:
        return mutator.noise() if mutator.chance(0.2) else mutator.choice((b"de", b"fr"))

    def _field(self, mutator: Mutator) -> bytes:
        known = mutator.choice(STATS).encode()
        return mutator.choice((known, known, mutator.damaged(known), mutator.noise()))

    def _text(self, mutator: Mutator) -> bytes:
        return mutator.choice((b"1795462250.1", b"12", mutator.noise(), mutator.json({"a": 1})))

    def _beat(self, mutator: Mutator) -> bytes:
        token = b"host-1-0123456789ab lock"
        return mutator.choice((mutator.damaged(token), mutator.noise()))

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Write the keys, look at the schedule before and after a beat has run."""
        world.client.flushall()
        for name, fields in EXCLUDING.items():
            world.execute(excluding(name, fields))
        world.execute([command for case in cases for command in case])
        world.put_sentinel()
        found = world.read_all(cases)
        for name in EXCLUDING:
            found += world.read_one(name.encode())
        found += world.beat() + world.read_all(cases)
        return found + [line for name in EXCLUDING for line in world.read_one(name.encode())]


#: Policies of entries that name calendars.
EXCLUDING: Final[dict[str, dict[str, Any]]] = {
    "spread": {"exclude": ["de"], "spread": 600},
    "ended": {"exclude": ["de", "fr"], "spread": 60, "end_time": "2026-01-01T00:00:00Z"},
    "moved": {"exclude": ["fr"], "on_excluded": "next", "jitter": 5},
    "expected": {"expect_within": 60},
}


def excluding(name: str, policy: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the commands that store an entry with this policy, and a history."""
    key, cron = PREFIX + name.encode(), TAGGED_VALUES[1]
    text = json.dumps({**DEFINITION, "name": name, "schedule": cron})
    fields = {"definition": text, "policy": json.dumps(policy)}
    more = {field: stored(HASH_FIELDS[field]) for field in ("meta", "history", "results")}
    return [("HSET", key, field, text) for field, text in (fields | more).items()] + [
        ("ZADD", SCHEDULE, "1", key)
    ]


class Damaged(Surface):
    """A key of RedBeat that holds a value of another type, or a lock with any content.

    The beat cannot send while the key is in the way. It must go on, and send the good entry after
    the key was deleted. Pages may answer 503.
    """

    name = "damaged keys"
    share = 1

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return the command that damages a key."""
        del number
        key = mutator.choice(KEYS)
        command = ("SET", key, mutator.noise()) if key == LOCK else wrong_type(mutator, key)
        return [("DEL", key), command]

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Damage a key, look at the schedule, repair the key and look again."""
        world.client.flushall()
        world.put_sentinel()
        world.app.conf.redbeat_lock_key = "redbeat::lock"
        found: list[str] = []
        for case in cases:
            world.execute(case)
            found += world.read_all(cases, largest=503) + world.beat(ticks=2, must_send=False)
            world.client.delete(case[0][1])
        world.put_sentinel()
        return found + world.beat(ticks=1) + world.read_all(cases)


#: All keys of a schedule that belong to no entry.
KEYS: Final = (
    *(SCHEDULE, QUARANTINE, BEATS, STATS_KEY, STATICS, LOCK, LOCK, CALENDARS, USERS, FAILING),
    EXPECTED,
)

#: Packages that libraries import when they are first needed.
LAZY: Final = {"_strptime", "stringprep", "difflib", "tzdata", "pytz", "ephem"}


def packages() -> set[str]:
    """Return the names of all imported packages."""
    return {name.partition(".")[0] for name in sys.modules}


#: Valid contents of the texts besides the definition.
TEXTS: Final = (HASH_FIELDS["meta"], HASH_FIELDS["policy"], HASH_FIELDS["beat_state"])


class Texts(Surface):
    """The texts of an entry, decoded without Redis. A case is definition, meta, policy, state.

    Every case gives an entry or a ``DecodeError``. An entry that can be written reads the same
    again.
    """

    name = "texts"
    share = 344
    size = 200

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return the four texts."""
        del number
        example = {**DEFINITION, "name": "a", "schedule": schedule_of(mutator)}
        texts = [json.dumps(example).encode(), b"", b"", b""]
        bad = mutator.choice((0, 0, 0, 1, 2, 3))
        if bad == 0:
            texts[0] = mutator.json(example)
        else:
            texts[bad] = mutator.json(TEXTS[bad - 1])
        return tuple(texts)

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Decode all texts."""
        found: list[str] = []
        imported = packages()
        for case in cases:
            with world.watched("texts", found, patience=2.0):
                self._decode(world.app, *(text.decode("utf-8", "surrogateescape") for text in case))
        imported = packages() - imported - LAZY
        return [*found, f"texts: imported {', '.join(imported)}"] if imported else found

    def _decode(self, app: Celery, *texts: str) -> None:
        try:
            definition, meta, policy, state = (text or None for text in texts)
            row = Row("", "", definition, meta, policy, state)
            entry = entry_of(row, app, RedBeatSchedulerEntry)
        except DecodeError as error:
            if not error.field or len(str(error)) > LONGEST_ERROR:
                raise ValueError(f"unclear: {error!s:.200}") from error
            return
        due: Any = True
        seconds: Any = 0.0
        with suppress(Exception):  # a beat quarantines such an entry
            entry.run = Run(NOW, NOW)
            due, seconds = entry.is_due()
        if not isinstance(due, bool) or (seconds is not None and seconds < 0):
            raise ValueError(f"is_due() returns {due}, {seconds}")
        with suppress(DecodeError, InvalidEntryError):
            written = entry.texts()
            again = RedBeatSchedulerEntry.from_definition(app, *written)
            assert again.texts() == written, "the entry reads differently"


#: The paths of the API.
API: Final = (
    *("/api/entry", "/api/entry", "/api/entry/history", "/api/entry/pause", "/api/entry/resume"),
    *("/api/entry/trigger", "/api/entries", "/api/upcoming", "/api/status", "/api/openapi.json"),
)


class Pages(Surface):
    """Requests to the dashboard. A case is method, path, query, body, content type and cookies."""

    name = "pages"
    share = 80
    size = 20

    paths: Final = (
        *("/", "/timeline", "/entry", "/beats", "/login", "/logout", "/static/redbeat.css"),
        *("/entry/pause", "/entry/resume", "/entry/trigger", "/entry/preview", "/entry/edit"),
        *("/entry/delete", "/quarantine/retry", "/static/", "/new", "/new/preview", "/selected"),
        *("/selected", "/entry/simulate", "/entry/simulate", *API, *API),
    )
    parameters: Final = (
        *("name", "q", "task", "state", "static", "sort", "after", "per", "span", "note", "kind"),
        *("rule", "timezone", "seen", "token", "next", "csrf_token", "action", "entry", "from"),
        *("confirmed", "to", "exclude", "limit", "at", "start_time", "args", "kwargs", "max_runs"),
    )
    values: Final = (
        *("a", "b", "paused", "due", "-last", "name", "50", "1795462249.9 redbeat:a", "hour"),
        *("interval", "crontab", "rrule", "* * * * *", "60", "FREQ=DAILY;COUNT=3", "Europe/Paris"),
        *("solar", "clocked", "2027-01-01T09:00", "[[]", "*" * 300, "a*b?[c", "pause", "resume"),
        *("trigger", "delete", "1", "de", "cal", "cal", "2026-11-20T00:00", "every", "cron"),
    )

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return a request."""
        del number
        path = mutator.choice(self.paths)
        if path.startswith("/api"):
            return self._api(mutator, path)
        if mutator.chance(0.05):
            path = "/" + quote_from_bytes(mutator.noise().replace(b"?", b""))
        method = mutator.choice(("GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS"))
        query = self._pairs(mutator, path)
        body = self._pairs(mutator, path) if method == "POST" else b""
        kind = "application/x-www-form-urlencoded"
        if mutator.chance(0.1):
            kind = mutator.choice(("multipart/form-data; boundary=x", "", "text/\xff"))
            body = mutator.damaged(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n')
        cookie = mutator.noise() if mutator.chance(0.1) else b""
        cookie = cookie.translate(None, b"\r\n")  # servers accept no such header
        return method, path, query, body, kind, cookie

    def _api(self, mutator: Mutator, path: str) -> Any:
        """Return a request to the API, with a body of JSON for what changes an entry."""
        method = mutator.choice(("GET", "GET", "POST", "PUT", "PATCH", "DELETE"))
        body = mutator.json(mutator.choice((TABLE, {"note": "why"}))) if method != "GET" else b""
        kind = "application/json" if mutator.chance(0.9) else mutator.choice(("", "text/plain"))
        return method, path, self._pairs(mutator, path), body, kind, b""

    def _pairs(self, mutator: Mutator, path: str) -> bytes:
        pairs: list[tuple[bytes, bytes]] = []
        if path.startswith(("/entry", "/quarantine", "/api/entry")) and mutator.chance(0.8):
            pairs.append((b"name", mutator.choice((b"a", b"b", b"bad", b"cal"))))
        for _ in range(mutator.random.randint(0, 4)):
            value = mutator.choice(self.values).encode()
            if mutator.chance(0.7):
                value = mutator.choice((mutator.damaged(value), mutator.noise()))
            pairs.append((mutator.choice(self.parameters).encode(), value))
        text = urlencode(pairs).encode()
        return mutator.damaged(text) if mutator.chance(0.1) else text

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Send all requests in one session; the page must still work in it afterwards."""
        world.client.flushall()
        for name in ("a", "b"):
            RedBeatSchedulerEntry(name, "t", 60, app=world.app).save()
        world.execute([("HSET", b"redbeat:bad", "definition", "{")])
        world.execute(excluding("cal", EXCLUDING["ended"]))
        world.execute([("HSET", CALENDARS, "fr", "[1"), ("ZADD", SCHEDULE, "-1", b"redbeat:cal")])
        world.execute(
            [("ZADD", SCHEDULE, "1", b"redbeat:bad"), ("ZADD", SCHEDULE, "1", b"\xed\xa0\x80")]
        )
        world.web.config["WTF_CSRF_ENABLED"] = False
        world.browser = world.web.test_client()
        found: list[str] = []
        for method, path, query, body, kind, cookie in cases:
            self._send(world, found, method, path, query, body, kind, cookie)
        world.page(found, "/")
        return found

    def _send(
        self,
        world: World,
        found: list[str],
        method: str,
        path: str,
        query: bytes,
        body: bytes,
        kind: str,
        cookie: bytes,
    ) -> None:
        environ = EnvironBuilder(path, method=method).get_environ()
        environ["QUERY_STRING"] = query.decode("latin-1")
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"], environ["CONTENT_TYPE"] = str(len(body)), kind
        if cookie:
            environ["HTTP_COOKIE"] = "redbeat_web=" + cookie.decode("latin-1")
        with world.watched(f"{method} {path}", found):
            answer = world.browser.open(environ)
            answer.close()
            if answer.status_code >= 500:
                found.append(f"{method} {path}: status {answer.status_code}")


def toml(value: Any) -> str:
    """Return a value of JSON in TOML, which has no null: an inline table for an object."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).lower() if isinstance(value, float) else json.dumps(value)


#: Formats of files that have commands of their own, with these commands.
FILE_COMMANDS: Final = {
    **dict.fromkeys(("json", "toml"), (("plan",), ("apply", "--yes"))),
    "ical": (("calendar", "de", "--ical"),),
}


class Files(Surface):
    """Files of each importer, of ``apply`` and of ``calendar``. A case is format and content.

    Every file gives entries, problems with a position, or one clear error.
    """

    name = "files"
    share = 50
    size = 20

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return a format and the content of a file."""
        del number
        maker: Callable[[Mutator], tuple[str, bytes]] = mutator.choice(
            (self._lines, self._crontab, self._fixture, self._shelve, self._entries, self._ical)
        )
        return maker(mutator)

    def _lines(self, mutator: Mutator) -> tuple[str, bytes]:
        definition = {**DEFINITION, "name": "a", "schedule": schedule_of(mutator)}
        line = {"name": "a", "definition": definition, "static": True, "identity": "x"}
        line |= {"policy": HASH_FIELDS["policy"], "meta": HASH_FIELDS["meta"]}
        line |= {"runtime": RUNTIME, "history": HISTORY}
        if mutator.chance(0.7):
            del line["policy"]  # it is wrong here, and hides what comes after it
        lines = [mutator.json(line) for _ in range(mutator.random.randint(1, 2))]
        return "jsonlines", mutator.choice((b"\n", b"\r\n", b"\n\n")).join(lines)

    def _crontab(self, mutator: Mutator) -> tuple[str, bytes]:
        lines = (
            b'*/5 0-23/2 * * mon proj.task {"a": 1}',
            b"@daily proj.task",
            b"CRON_TZ=Europe/Paris\n0 9 * * 5-7 proj.task",
            b"0 0 31 2 * proj.task",
        )
        return "crontab", mutator.damaged(mutator.choice(lines), 4)

    def _fixture(self, mutator: Mutator) -> tuple[str, bytes]:
        rows = {
            "interval": {"every": 10, "period": "seconds"},
            "crontab": {"minute": "*/5", "hour": "*", "timezone": "Europe/Paris"},
            "solar": {"event": "sunset", "latitude": "48.8", "longitude": "2.3"},
            "clocked": {"clocked_time": "2027-01-01T00:00:00Z"},
        }
        kind = mutator.choice(tuple(rows))
        task = {"name": "a", "task": "t", kind: 1, "args": "[1]", "kwargs": "{}", "queue": "q"}
        task |= {"enabled": True, "one_off": False, "priority": 3, "headers": "{}"}
        task |= {"last_run_at": "2026-01-01T00:00:00Z", "total_run_count": 3, "expires": None}
        task |= {"start_time": "2026-01-01T00:00:00Z", "date_changed": "2026-01-01T00:00:00Z"}
        models = ((f"{kind}schedule", rows[kind]), ("periodictask", task))
        return "django-celery-beat", mutator.json(
            [{"model": f"django_celery_beat.{m}", "pk": 1, "fields": row} for m, row in models]
        )

    def _shelve(self, mutator: Mutator) -> tuple[str, bytes]:
        when = mutator.choice(
            (interval(60), crontab("*/5"), solar("sunset", 48.8, 2.3), interval(timedelta(1)))
        )
        entry = ScheduleEntry("a", "t", NOW, 3, when, (1,), {"a": 1}, {"queue": "q"})
        for _ in range(mutator.random.randint(0, 2)):
            owner = mutator.choice((entry, when))
            with suppress(AttributeError, TypeError):
                owner.__dict__[mutator.choice((*vars(owner), *FIELDS))] = mutator.value()
        with suppress(Exception):
            data = pickle.dumps({"a": entry}, mutator.choice((0, 2, 4)))
            return SHELVE, mutator.damaged(data, 4) if mutator.chance(0.7) else data
        return SHELVE, mutator.noise()

    def _entries(self, mutator: Mutator) -> tuple[str, bytes]:
        if mutator.chance(0.5):
            table = {**TABLE, mutator.choice(("every", "at", "rrule")): mutator.value()}
            table = mutator.choice((TABLE, TABLE, table))
            return "json", mutator.json({"managed_by": "x", "entries": {"a": table, "b": TABLE}})
        lines = [f"{name} = {toml(value)}" for name, value in TABLE.items()]
        text = "\n".join(['managed_by = "x"', "[entries.a]", *lines])
        at = mutator.random.randrange(3, len(lines) + 2)
        changed = text.split("\n")
        changed[at] = f"{changed[at].partition(' = ')[0]} = {toml(mutator.value())}"
        text = "\n".join(changed)
        data = text.encode("utf-8", "surrogatepass")
        return "toml", mutator.choice((data, mutator.damaged(data, 3)))

    def _ical(self, mutator: Mutator) -> tuple[str, bytes]:
        lines = ICAL.split(b"\r\n")
        at = mutator.random.randrange(len(lines))
        name, colon, value = lines[at].partition(b":")
        lines[at] = mutator.choice(
            (
                name + colon + mutator.reworded(value.decode() or "a b").encode("utf-8", "replace"),
                name + colon + mutator.noise(),
                mutator.damaged(lines[at]),
                b"",
                b"\r\n".join([lines[at]] * 3),
            )
        )
        return "ical", b"\r\n".join(lines)

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Check each file as the import command does, and write what is right."""
        world.client.flushall()
        found: list[str] = []
        with tempfile.TemporaryDirectory() as directory:
            for file_format, content in cases:
                with world.watched(f"import --format {file_format}", found):
                    self._import(world, file_format, content, Path(directory))
        return found + world.read_all(cases)

    def _import(self, world: World, file_format: str, content: bytes, directory: Path) -> None:
        path = directory / "file"
        if file_format in FILE_COMMANDS:
            path = directory / f"file.{file_format}"
            path.write_bytes(content)
            for words in FILE_COMMANDS[file_format]:
                result = run_command(world.app, *words, str(path))
                if result.code not in (0, 1, 2, 4, 5):
                    raise ValueError(f"{words[0]}: exit code {result.code}")
            return
        if file_format == SHELVE:
            write_dumb(path, content)
        else:
            path.write_bytes(content)
        source = read_source(file_format, world.schedule, str(path))
        importer = Importer(world.schedule, "replace")
        with suppress(UnreadableSourceError), warnings_ignored():
            importer.check(source)
            if not importer.problems:
                importer.write()


@contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignore warnings about odd but valid values in files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_dumb(path: Path, content: bytes) -> None:
    """Write a database of Python's own format with the key ``entries``."""
    path.with_suffix(".dat").write_bytes(content)
    path.with_suffix(".dir").write_text(f"'entries', (0, {len(content)})\n")


class Messages(Surface):
    """Messages on the wake-up channel. A case is the bytes of a message.

    The subscription of a beat survives all messages, or is made again; then it wakes the beat up.
    """

    name = "messages"
    share = 100
    size = 200

    def make(self, mutator: Mutator, number: int) -> Any:
        """Return a message."""
        del number
        return mutator.choice(
            (mutator.noise(), mutator.damaged(DUE), mutator.json({"a": 1}), mutator.noise() * 100)
        )

    def run(self, world: World, cases: list[Any]) -> list[str]:
        """Publish all messages to a listening beat, and then the one that wakes it up."""
        found: list[str] = []
        store = store_of(world.app)
        wakeup = WakeUp(store.client, store.keys.wakeup)
        with world.watched("messages", found):
            wakeup.listen()
            for message in cases:
                if message != DUE:
                    world.client.publish(store.keys.wakeup, message)
            deadline = time.monotonic() + 10
            while not self._wakes_up(world, wakeup, store.keys.wakeup):
                if time.monotonic() > deadline:
                    found.append("messages: the beat does not wake up any more")
                    break
            wakeup.close()
        return found

    def _wakes_up(self, world: World, wakeup: WakeUp, channel: str) -> bool:
        wakeup.listen()
        world.client.publish(channel, DUE)
        return wakeup.wait(0.3, DUE, lambda: False)


SURFACES: Final = {
    surface.name: surface
    for surface in (Stored(), Own(), Damaged(), Texts(), Pages(), Files(), Messages())
}
