"""What public programs for RedBeat 2 do, typed. Type checkers read this module; it is never run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from celery import Celery, current_app
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from celery.signals import beat_init
from redis import Redis
from redis.exceptions import LockError

import redbeat.schedulers
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.decoder import (
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    from_timestamp,
    get_utcoffset_minutes,
    to_timestamp,
)
from redbeat.schedulers import (
    LUA_EXTEND_TO_SCRIPT,
    RedBeatConfig,
    acquire_distributed_beat_lock,
    ensure_conf,
    get_redis,
)
from redbeat.schedules import rrule

app = Celery("proj")


# -- lists, pages and routes -----------------------------------------------------------------------


def keys() -> list[str]:
    """Return the keys of all entries."""
    found = get_redis(app).zrange(app.redbeat_conf.schedule_key, 0, -1)
    return [key.decode() if isinstance(key, bytes) else key for key in found]


def listed() -> list[dict[str, Any]]:
    """Return a row for each entry, from the members of the sorted set."""
    rows = []
    client = get_redis(app)
    for key in client.zrange(ensure_conf(app).schedule_key, 0, -1):
        entry = RedBeatSchedulerEntry.from_key(key, app=app)
        rows.append(
            {
                "name": entry.name,
                "task": entry.task,
                "due": entry.due_at.isoformat(),
                "last": entry.last_run_at.isoformat(),
                "age": datetime.now(timezone.utc) - entry.last_run_at,
                "left": (entry.due_at - datetime.now(timezone.utc)).total_seconds(),
                "runs": entry.total_run_count + 1,
                "rank": entry.rank + 1,
                "enabled": entry.enabled,
                "kwargs": {**entry.kwargs},
                "args": list(entry.args or ()),
                "queue": entry.options.get("queue"),
            }
        )
    return rows


def scores() -> Iterator[tuple[str, datetime]]:
    """Yield each key and its next run."""
    rows = get_redis(app).zrange(app.redbeat_conf.schedule_key, 0, -1, withscores=True)
    for key, score in rows:
        yield str(key), from_timestamp(score)


def due(client: Redis) -> list[RedBeatSchedulerEntry]:
    """Return the entries that are due."""
    now = to_timestamp(datetime.now(timezone.utc))
    members = client.zrangebyscore(app.redbeat_conf.schedule_key, 0, now)
    return [RedBeatSchedulerEntry.from_key(key, app=app) for key in members]


def scanned() -> dict[str, Any]:
    """Return each definition, as a scan finds them."""
    client, found = get_redis(app), {}
    for key in client.scan_iter(f"{app.redbeat_conf.key_prefix}*"):
        text = client.hget(key, "definition")
        if text:
            found[str(key)] = json.loads(text, cls=RedBeatJSONDecoder)["task"]
    return found


def from_bytes(key: bytes, text: str | bytes | None) -> RedBeatSchedulerEntry | None:
    """Load an entry by the key of a client that does not decode."""
    if text is None:
        return None
    fields = RedBeatSchedulerEntry.load_definition(key, app, text)
    history = RedBeatSchedulerEntry.load_meta(key, app=app)
    fields["last_run_at"] = history["last_run_at"]
    fields["schedule"] = RedBeatSchedulerEntry.decode_definition(text)["schedule"].run_every
    fields["last_run_at"] = RedBeatSchedulerEntry.decode_meta(None, app)["last_run_at"]
    return RedBeatSchedulerEntry(app=app, **fields)


def create(name: str, seconds: int, payload: Mapping[str, Any], user: str | None) -> str:
    """Save an entry, as a web route does."""
    entry = RedBeatSchedulerEntry(
        name,
        "proj.tasks.send",
        schedule(run_every=timedelta(seconds=seconds)),
        args=[user, 1],
        kwargs={"payload": payload},
        options={"queue": "fast", "expires": 60},
        app=current_app,
    )
    entry.save()
    entry.enabled = user is not None
    entry.schedule = crontab(minute="*/5")
    entry.last_run_at = None
    entry.save().reschedule()
    key: str = entry.key
    return key


def upsert(name: str, start: datetime) -> RedBeatSchedulerEntry:
    """Load and change an entry, or create it."""
    key = RedBeatSchedulerEntry.generate_key(app, name)
    try:
        entry = RedBeatSchedulerEntry.from_key(key, app=app)
    except KeyError:
        rule = rrule(freq="DAILY", dtstart=start, until=start + timedelta(days=3), byhour=[9, 17])
        entry = RedBeatSchedulerEntry(name=name, task="t", schedule=rule, app=app)
    entry.kwargs["n"] = 1
    is_due, wait = entry.is_due()
    if is_due and wait < 60 and entry.score > 0:
        entry.reschedule(last_run_at=start)
    return entry.save()


def remove(name: str) -> None:
    """Delete an entry by its name, and one by its key."""
    RedBeatSchedulerEntry(name=name, app=app).delete()
    with get_redis(app).pipeline() as pipe:
        pipe.zrem(app.redbeat_conf.schedule_key, f"redbeat:{name}")
        pipe.delete(f"redbeat:{name}")
        pipe.execute()


def later(when: datetime) -> str:
    """Return a time in JSON."""
    assert get_utcoffset_minutes(when) == 0
    return json.dumps({"at": when}, cls=RedBeatJSONEncoder)


# -- subclasses ------------------------------------------------------------------------------------


class Entry(RedBeatSchedulerEntry):
    """An entry with an argument of its own."""

    tenant: str | None

    def __init__(self, *args: Any, tenant: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tenant = tenant

    def save(self) -> Entry:
        """Write the fields of this class too."""
        fields = {"name": self.name, "schedule": self.schedule, "tenant": self.tenant}
        meta = {"last_run_at": self.last_run_at}
        with get_redis(self.app).pipeline() as pipe:
            pipe.hset(self.key, "definition", json.dumps(fields, cls=RedBeatJSONEncoder))
            pipe.hsetnx(self.key, "meta", json.dumps(meta, cls=RedBeatJSONEncoder))
            pipe.zadd(self.app.redbeat_conf.schedule_key, {self.key: self.score})
            pipe.execute()
        return self

    @classmethod
    def from_key(cls, key: str, app: Celery | None = None) -> Entry:
        """Load the entry."""
        entry = super().from_key(key, app=app)
        entry.tenant = entry.tenant or "none"
        return entry

    @staticmethod
    def generate_key(app: Celery, name: str) -> str:
        """Return a key of this program."""
        return f"{app.redbeat_conf.key_prefix}{name}"

    @staticmethod
    def load_definition(
        key: str, app: Celery | None = None, definition: str | None = None
    ) -> dict[str, Any]:
        """Load the definition."""
        return RedBeatSchedulerEntry.load_definition(key, app, definition)

    @staticmethod
    def decode_definition(definition: str) -> dict[str, Any]:
        """Decode the definition."""
        fields: dict[str, Any] = json.loads(definition, cls=RedBeatJSONDecoder)
        return fields

    @staticmethod
    def load_meta(key: str, app: Celery | None = None) -> dict[str, Any]:
        """Load the history."""
        return RedBeatSchedulerEntry.load_meta(key, app)

    @staticmethod
    def decode_meta(meta: str | None, app: Celery | None = None) -> dict[str, Any]:
        """Decode the history."""
        return RedBeatSchedulerEntry.decode_meta(meta, app)

    def is_due(self) -> tuple[bool, float]:
        """Decide."""
        if self.tenant is None:
            return False, 5.0
        due, wait = super().is_due()
        return bool(due), float(wait)

    @property
    def due_at(self) -> datetime:
        """The next run, never before an hour."""
        return max(super().due_at, datetime.now(timezone.utc) + timedelta(hours=1))

    @property
    def score(self) -> float:
        """The next run in UNIX seconds."""
        return to_timestamp(self.due_at)

    @property
    def key(self) -> str:
        """The key of the entry."""
        return f"{super().key}"

    def _next_instance(
        self, last_run_at: datetime | None = None, only_update_last_run_at: bool = False
    ) -> Entry:
        after = super()._next_instance(last_run_at, only_update_last_run_at)
        after.kwargs = {**after.kwargs, "run": after.total_run_count}
        return after

    __next__ = next = _next_instance

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Count from another run."""
        super().reschedule(last_run_at=last_run_at)

    def delete(self) -> None:
        """Delete the entry."""
        super().delete()


class Short(RedBeatSchedulerEntry):
    """An entry class whose schedule decides."""

    def is_due(self) -> Any:
        """Decide."""
        return self.schedule.is_due(self.last_run_at)


class Scheduler(RedBeatScheduler):
    """A scheduler that overrides what programs override."""

    Entry = Entry
    lock_timeout = 60
    max_interval = 5
    sync_every_tasks = 2
    seen: ClassVar[list[str]] = []

    def __init__(self, app: Celery, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self.lock_timeout = int(os.environ.get("LOCK", "30"))

    def setup_schedule(self) -> None:
        """Save entries of this program."""
        super().setup_schedule()
        self.update_from_dict({"extra": {"task": "t", "schedule": timedelta(seconds=9)}})
        self.install_default_entries(self.schedule)
        for name, entry in self.schedule.items():
            self.seen.append(f"{name} {entry.due_at.isoformat()}")
        lock = get_redis(self.app).lock(self.lock_key, timeout=self.lock_timeout)
        lock.lua_extend = get_redis(self.app).register_script(LUA_EXTEND_TO_SCRIPT)
        if lock.acquire(blocking=False):
            self.lock = lock

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """Leave out what this host does not run."""
        super().update_from_dict({name: dict_[name] for name in dict_ if name != "barred"})

    def maybe_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float:
        """Send the entry if it is due."""
        is_due, wait = self.is_due(entry)
        if is_due:
            result = self.apply_async(entry, **kwargs)
            get_redis(self.app).hset(entry.key, mapping={"last": json.dumps(result.id)})
            return float(wait)
        return super().maybe_due(entry, **kwargs) or 1.0

    def apply_async(
        self,
        entry: RedBeatSchedulerEntry,
        producer: Any = None,
        advance: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Add a header."""
        entry.options = {**entry.options, "headers": {"run": "1"}}
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

    def reserve(self, entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry:
        """Count the run."""
        return super().reserve(entry)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Survive errors."""
        try:
            return super().tick(*args, **kwargs)
        except LockError:
            self.lock.release()
            return 1

    def close(self) -> None:
        """Release the lock."""
        if self.lock and self.lock.owned():
            self.lock.release()
            self.lock = None
        super().close()

    @property
    def info(self) -> str:
        """The banner."""
        return f"{super().info}\n . mine"


class Whole(RedBeatScheduler):
    """A scheduler with a tick and a schedule of its own."""

    @property
    def schedule(self) -> dict[str, Any]:
        """The entries without one."""
        entries = super().schedule
        return {name: entries[name] for name in entries if name != "barred"}

    def tick(self) -> float:
        """Run the entries."""
        if self.lock_key:
            self.lock.extend(int(self.lock_timeout))
        waits = [self.maybe_due(e, **self._maybe_due_kwargs) for e in self.schedule.values()]
        return min([wait for wait in waits if wait] + [self.max_interval])

    def maybe_due(self, entry: Entry, **kwargs: Any) -> float | None:
        """Send the entry if it is due."""
        return super().maybe_due(entry, **kwargs) if entry.tenant else None

    def apply_async(self, entry: Entry, **kwargs: Any) -> Any:
        """Send the entry with the arguments of a tenant."""
        entry.kwargs["tenant"] = entry.tenant
        return super().apply_async(entry, **kwargs)


class Celerys(RedBeatScheduler):
    """A scheduler whose schedule contains Celery's entries."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rows: dict[str, ScheduleEntry] = {}
        super().__init__(*args, **kwargs)

    @property
    def schedule(self) -> dict[str, ScheduleEntry]:
        """The rows of a database."""
        return self.rows

    def tick(self, event_t: Any = None, **kwargs: Any) -> float:
        """Tick, with an argument of Celery's."""
        return super().tick(event_t=event_t, **kwargs)


class Decoder(RedBeatJSONDecoder):
    """A decoder for a type of the program."""

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Return the object."""
        return d["n"] if d.get("__type__") == "n" else super().dict_to_object(d)


class Encoder(RedBeatJSONEncoder):
    """An encoder for a type of the program."""

    def default(self, obj: Any) -> Any:
        """Return what JSON can store."""
        return str(obj) if isinstance(obj, complex) else super().default(obj)


setattr(redbeat.schedulers, "RedBeatJSONDecoder", Decoder)  # noqa: B010 - a name of a class
setattr(redbeat.schedulers, "RedBeatJSONEncoder", Encoder)  # noqa: B010
RedBeatScheduler.Entry = Entry
beat_init.disconnect(acquire_distributed_beat_lock)
app.redbeat_conf = RedBeatConfig(app)
app.redbeat_redis = Redis.from_url("redis://localhost", decode_responses=True)


def run_elsewhere() -> str:
    """Use a scheduler outside a beat."""
    scheduler = Scheduler(app=app, lock_key="x", lock_timeout=9, max_interval=5)
    acquire_distributed_beat_lock(sender=scheduler)
    scheduler.lock.extend(9)
    scheduler.tick()
    scheduler.lock.release()
    assert scheduler.lock_key.startswith("redbeat:")
    assert scheduler.app.redbeat_conf.lock_key.endswith(":lock")
    conf = ensure_conf(app)
    name = conf.lock_key.removeprefix(conf.key_prefix)
    return f"{name} {conf.lock_timeout} {conf.redis_url} {conf.schedule['job']['task']}"
