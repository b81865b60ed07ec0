"""The Celery scheduler class, and every name that RedBeat 2 had in this module."""

from __future__ import annotations

import functools
import json
import ssl
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import MINYEAR, datetime
from time import monotonic
from typing import Any

import redis
from celery.app import app_or_default
from celery.app.task import Task
from celery.beat import DEFAULT_MAX_INTERVAL, ScheduleEntry, Scheduler, SchedulingError
from celery.signals import beat_init
from celery.utils.log import get_logger
from celery.utils.time import humanize_seconds
from kombu.exceptions import OperationalError
from kombu.utils.objects import cached_property
from kombu.utils.url import maybe_sanitize_url
from redis import Redis
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError, Sentinel
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from redbeat.beat.lock import BeatLock
from redbeat.beat.publisher import TaskMessage, build_message
from redbeat.beat.session import LONGEST_LEASE, SHORTEST_LEASE
from redbeat.beat.stop_signals import HeldSignals
from redbeat.entries.runs import nominal
from redbeat.storage.client import (
    REDBEAT_REDIS_KEY,
    REDBEAT_SENTINEL_KEY,
    client_of,
    get_redis,
    safe_url,
    unretried,
    use_provider,
)

from .beat.broker import (
    broker_connection,
    declaring_once,
    means_no_broker,
    publishing_connection,
    warn_about_confirms,
)
from .beat.exactly_once import check_possible
from .beat.statics import StaticEntries
from .beat.ticker import Ticker
from .beat.wakeup import DUE, LOCK, WakeUp
from .config import RedBeatConfig, ensure_conf
from .connection.retrying import RetryingConnection
from .decoder import RedBeatJSONDecoder, RedBeatJSONEncoder, to_timestamp, use_codec
from .entry import RedBeatSchedulerEntry, store_of
from .errors import DecodeError, NotAllowedError, described
from .metrics.extra import serve_beat
from .storage.scripts import load_script
from .storage.store import Store

__all__: tuple[str, ...] = (
    "DEFAULT_MAX_INTERVAL",
    "LUA_EXTEND_TO_SCRIPT",
    "REDBEAT_REDIS_KEY",
    "REDBEAT_SENTINEL_KEY",
    "RedBeatConfig",
    "RedBeatJSONDecoder",
    "RedBeatJSONEncoder",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "RetryingConnection",
    "acquire_distributed_beat_lock",
    "ensure_conf",
    "get_redis",
    "logger",
    "to_timestamp",
)

# Programs import these names from here, because this module of RedBeat 2 had them.
__all__ += ("ADD_ENTRY_ERROR", "MINYEAR", "REDBEAT_INTERNAL_OPTIONS", "MasterNotFoundError")
__all__ += ("Redis", "ScheduleEntry", "Sentinel", "app_or_default", "beat_init", "datetime", "json")
__all__ += ("maybe_sanitize_url", "redis", "retry", "retry_if_exception_type", "ssl")
__all__ += ("stop_after_delay", "wait_exponential", "warnings")

logger = get_logger("celery.beat")

LUA_EXTEND_TO_SCRIPT = load_script("extend").text

# Programs replace these names in this module to change them for the whole package.
use_provider(lambda app: get_redis(app))  # noqa: PLW0108 - the name as it is at each call
use_codec(lambda: (RedBeatJSONEncoder, RedBeatJSONDecoder))

#: Default seconds that the lock lives, with Celery's default ``beat_max_loop_interval``.
DEFAULT_LOCK_TIMEOUT = 5 * DEFAULT_MAX_INTERVAL

#: Log line for an entry that cannot be saved: its name, the error, its fields.
ADD_ENTRY_ERROR = "beat: Entry %s is not scheduled: %s. Its fields: %r"

#: Options of ``redbeat_redis_options`` that RedBeat 2 did not pass to redis-py.
REDBEAT_INTERNAL_OPTIONS = (
    *("retry_period", "cluster", "sentinels", "service_name"),
    *("sentinel_kwargs", "startup_nodes"),
)

#: Attempts to connect to the broker in one tick; the next tick tries again.
BROKER_CONNECT_RETRIES = 1

#: Seconds without a publish after which the broker connection is replaced before the next use.
IDLE_CONNECTION = 10.0


class RedBeatScheduler(Scheduler):
    """A Celery Beat scheduler that keeps periodic tasks in Redis.

    Arguments:
        app: the Celery app.
        lock_key: overrides ``redbeat_lock_key``.
        lock_timeout: overrides ``redbeat_lock_timeout``, seconds.
        lazy: do not connect to Redis; Celery makes such a scheduler for its banner.
        kwargs: arguments of :class:`celery.beat.Scheduler`.

    The constructor writes the static entries, see :meth:`setup_schedule`, unless it is ``lazy``.
    Raises :exc:`~redbeat.errors.ConfigurationError`.
    """

    #: The entry class; set it to a subclass to add arguments.
    Entry = RedBeatSchedulerEntry

    #: The beat lock, None if ``redbeat_lock_key`` is None. A program may put its own lock here.
    lock: BeatLock | None = None

    #: Seconds the lock lives without a renewal. The setting and the constructor's argument override
    #: a value of a subclass.
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT

    #: The Redis key of the lock.
    lock_key: str | None = None

    #: The beat service that runs this scheduler, None if a program calls ``tick()`` itself.
    service: Any = None

    #: The clock of ticks and lock: monotonic seconds. Tests may replace it.
    clock: Callable[[], float] = staticmethod(monotonic)

    _published_at = float("-inf")

    #: The lock key in the settings when they were first read.
    _default_lock_key: str | None = None

    #: Whether :meth:`update_from_dict` is called by :meth:`setup_schedule`.
    _setting_up = False

    #: Whether :meth:`setup_schedule` could not write static entries, because Redis was not
    #: available.
    _statics_unwritten = False

    def __init__(
        self,
        app: Any,
        lock_key: str | None = None,
        lock_timeout: float | None = None,
        lazy: bool = False,
        **kwargs: Any,
    ) -> None:
        conf = ensure_conf(app)
        self.lock_key = lock_key or conf.lock_key
        self._default_lock_key = None if lock_key else conf.lock_key
        super().__init__(app, lazy=True, **kwargs)
        of_class = None if self.lock_timeout == DEFAULT_LOCK_TIMEOUT else self.lock_timeout
        configured = lock_timeout or conf.lock_timeout or of_class
        self.lock_timeout = conf.resolve_lock_timeout(configured, self.max_interval)
        if lazy:
            broker_connection(self.app)  # for a wrong URL, a clearer error than the banner's
        else:
            conf.report()
            check_possible(self.app, conf)
            self.setup_schedule()
            self._make_lock()

    def _make_lock(self) -> None:
        """Make the lock, unless a program has set its own."""
        store = self._store  # before the key is read: the program's own client may change it
        if self.lock_key == self._default_lock_key:
            self.lock_key = ensure_conf(self.app).lock_key
        if self.lock is None and self.lock_key:
            self.lock = BeatLock(store, self.lock_key, self.lock_timeout, self.clock)

    @cached_property
    def _statics(self) -> StaticEntries:
        return StaticEntries()

    @cached_property
    def _unsaved(self) -> dict[str, Any]:
        """Entries that :meth:`update_from_dict` could not save yet."""
        return {}

    @cached_property
    def _ticker(self) -> Ticker:
        conf = ensure_conf(self.app)
        lock = self.lock if isinstance(self.lock, BeatLock) else None
        return Ticker(self, self._store, lock, self._statics, conf, self.clock, self._lease)

    @property
    def _lease(self) -> float:
        """Seconds that a claim lasts: the timeout of the lock, within limits."""
        return min(max(self.lock_timeout, SHORTEST_LEASE), LONGEST_LEASE)

    @cached_property
    def _server(self) -> Any:
        """The HTTP server for metrics and health checks, None if no port is set."""
        conf, ticker = ensure_conf(self.app), self._ticker
        if conf.metrics_port is None:
            return None
        return serve_beat(conf, self._store, ticker.health, ticker.counters)

    @cached_property
    def _wakeup(self) -> WakeUp:
        return WakeUp(self._store.client, self._store.keys.wakeup)

    @property
    def _store(self) -> Store:
        return store_of(self.app, unretried(client_of(self.app)))

    # -- the schedule --------------------------------------------------------------------------

    def take_lock(self) -> None:
        """Take the beat lock if it is free. One round trip, none for a program's own lock."""
        if isinstance(self.lock, BeatLock):
            self._ticker.take_lock()

    def setup_schedule(self) -> None:
        """Write the entries of ``beat_schedule`` to Redis.

        Adds and changes entries; while another beat leads, only adds missing ones. The leader
        removes entries that left ``beat_schedule``, at its first tick and at later calls of this
        method. If Redis is not available, the first tick writes the entries. Two round trips, and
        one per 500 entries.
        """
        schedule = ensure_conf(self.app).schedule
        self._statics.collect()
        self._setting_up = True
        try:
            self.install_default_entries(schedule)
            self.update_from_dict(schedule)
        finally:
            self._setting_up = False
        self._make_lock()
        self._offer_statics()

    def _offer_statics(self) -> None:
        lock = self.lock if isinstance(self.lock, BeatLock) else None
        try:
            self._statics_unwritten = False
            self._statics.offer(self._store, lock)
            if self._leads:
                self._statics.prune(self._store, lock, exclusive=lock is not None)
        except (RedisError, OSError) as error:
            self._statics_unwritten = True
            logger.warning(
                "beat: Could not write static entries, the next tick tries again: %s",
                described(error),
            )

    @property
    def _leads(self) -> bool:
        """Whether this beat led at its last tick."""
        return "_ticker" in self.__dict__ and self._ticker.health.leads is True

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Save entries, as ``name -> fields``; they do not become static entries.

        An entry that cannot be made is logged and does not affect other entries. If Redis is not
        available, the next tick saves the entries. One round trip for each.
        """
        for name, fields in dict_.items():
            try:
                entry = self._maybe_entry(name, fields)
                if self._setting_up:
                    self._statics.add(name, entry)
                else:
                    entry.save()
            except (RedisError, OSError) as error:
                logger.error(
                    "beat: Could not save entry %s, the next tick tries again: %s",
                    *(name, described(error)),
                )
                self._unsaved[name] = fields
            except Exception as error:
                if not self._setting_up:
                    logger.error(ADD_ENTRY_ERROR, name, error, fields)
                else:
                    self._statics.refuse(name, error)

    def add(self, **kwargs: Any) -> RedBeatSchedulerEntry:
        """Make an entry and save it. One round trip."""
        return self.Entry(app=self.app, **kwargs).save()

    def get_schedule(self) -> dict[str, RedBeatSchedulerEntry]:
        """Return the entries that are due now and the one after them, by name.

        Claims nothing, as :meth:`maybe_due` does that. Three round trips and one per entry. Writes
        static entries first if :meth:`setup_schedule` could not, or if no entry is left, as after a
        loss of data.
        """
        return {entry.name: entry for entry in self._load_due()}

    def set_schedule(self, schedule: Any) -> None:
        """Accept Celery's assignment of its own schedule, which is not used here."""
        self.data = schedule

    schedule = property(get_schedule, set_schedule)

    @functools.cached_property
    def _overrides_schedule(self) -> bool:
        """Whether a subclass overrides ``schedule``, and so decides which entries exist."""
        return type(self).schedule is not RedBeatScheduler.schedule

    def _load_due(self) -> Iterator[RedBeatSchedulerEntry]:
        store = self._store
        now = store.time()
        due = store.due(now)
        if self._statics_unwritten or (not due and len(self._statics)):
            self._offer_statics()
            due = store.due(now)
        for key, score in due:
            try:
                entry = self.Entry.from_key(key, app=self.app)
            except (KeyError, DecodeError) as error:
                logger.warning("beat: Cannot load %s: %s", key, error)
                continue
            entry.put_up = score <= now
            self._statics.restore_schedule(entry)
            yield entry

    # -- running -------------------------------------------------------------------------------

    def tick(self, **kwargs: Any) -> float:  # noqa: ARG002 - Celery's arguments
        """Dispatch due entries; return the seconds to sleep. See :meth:`Ticker.tick`.

        In a beat service it waits for these seconds itself, so that a message can wake it up, and
        returns 0.
        """
        _ = self._server
        self._ticker.use_lock(self.lock, self.lock_timeout)
        ticker: Ticker = self._ticker
        seconds = self._tick_overridden_schedule() if self._overrides_schedule else ticker.tick()
        self._save_unsaved()
        self._sync_periodically()
        if self.service is None:
            return seconds
        self._wait(seconds)
        return 0.0

    def _tick_overridden_schedule(self) -> float:
        """Run the entries of the mapping that a subclass provides; claim each one separately."""
        seconds: float = self._ticker.tick(claims=False)
        if not self._leads or not self._ticker.available:
            return seconds
        entries = self._ticker.guarded(lambda: [*self.schedule.values()])
        if not isinstance(entries, list):
            return float(entries)  # seconds to wait after an error
        for entry in entries:
            wait = self.maybe_due(entry, **self._maybe_due_kwargs)
            seconds = seconds if wait is None else min(seconds, wait)
            if not self._ticker.available:
                break
        return seconds

    def _save_unsaved(self) -> None:
        """Save the entries that :meth:`update_from_dict` could not save."""
        if self._unsaved and self._ticker.available:
            unsaved = dict(self._unsaved)
            self._unsaved.clear()
            self.update_from_dict(unsaved)

    def _sync_periodically(self) -> None:
        """Call ``sync()`` as often as ``beat_sync_every`` and ``sync_every`` require.

        It does nothing here, but a subclass may override it.
        """
        try:
            if self.should_sync():
                self._do_sync()
        except Exception:
            logger.exception("beat: sync() failed, trying again after %s s", self.sync_every)

    def _wait(self, seconds: float) -> None:
        if self._ticker.available and self._wakeup.listen():
            return  # tick again, because messages before the subscription were missed
        self._wakeup.wait(seconds, DUE if self._leads else LOCK, self.service._is_shutdown.is_set)

    def maybe_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send the entry if it is due; return the seconds until it is due again.

        Outside a tick of this class, for example in a subclass's own tick, this method also claims
        the entry and records the run, in two round trips.
        """
        if entry.run is not None:
            return self.send_if_due(entry, **kwargs)
        self._ticker.use_lock(self.lock, self.lock_timeout)
        seconds: float | None = self._ticker.run_one(entry, kwargs)
        return seconds

    @property
    def _maybe_due_kwargs(self) -> dict[str, Any]:
        """The arguments with which ticks written for RedBeat 2 call :meth:`maybe_due`."""
        try:
            return {"producer": self.producer}
        except Exception as error:
            if not self.broker_failed(error):
                raise
            return {"producer": None}  # the publish then fails, and its run is retried as usual

    def send_if_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send a claimed entry if it is due; return the same as :meth:`maybe_due`."""
        is_due, next_time_to_run = self.is_due(entry)
        if is_due:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            try:
                result = self.apply_async(entry, **kwargs)
            except Exception as error:
                if entry.run is not None:
                    entry.run.error = error
                else:
                    logger.exception("Message Error: %s", error)
            else:
                if entry.run is not None:
                    entry.run.sent = True
                logger.debug("%s sent. id->%s", entry.task, getattr(result, "id", None))
        seconds: float | None = next_time_to_run
        return seconds

    def reserve(self, entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry:
        """Return the entry as it is after this run; outside a tick, also record the run."""
        return entry.next()

    def apply_async(
        self,
        entry: RedBeatSchedulerEntry,
        producer: Any = None,
        advance: bool = True,
        **kwargs: Any,  # noqa: ARG002 - Celery's arguments
    ) -> Any:
        """Send the task of an entry, with the id and the headers of this run."""
        run = entry.run
        if advance:
            entry = self.reserve(entry)
            if run is not None and isinstance(entry, RedBeatSchedulerEntry):
                run.successor = entry  # set here, because a subclass may override reserve()
        if run is not None:
            scheduled_at = run.instant
        else:
            scheduled_at = (entry.scheduled_at if advance else None) or entry.default_now()
        instant = nominal(scheduled_at)
        message = build_message(entry, instant, run)
        try:
            result = self._publish(message, producer)
        except Exception as error:
            if run is not None:
                run.error = error
            raise
        if run is not None:
            run.sent, run.error, run.nominal = True, None, instant
            run.task_id, run.own_id = str(message.options["task_id"]), message.own_id
        self._published_at = monotonic()
        return result

    def _publish(self, message: TaskMessage, producer: Any) -> Any:
        """Send a message as Celery's ``apply_async`` does, raising its error.

        Celery's method also evaluates functions among the arguments, of which none are left here,
        and calls ``sync()``, which :meth:`tick` does. The allowlist checks the final message, with
        all options merged.
        """
        self._tasks_since_sync += 1
        allowlist = ensure_conf(self.app).task_allowlist
        refused = allowlist and allowlist.refusal(message.task, message.options)
        if refused:
            raise NotAllowedError(*refused)
        args, kwargs = list(message.args or ()), dict(message.kwargs or {})
        task = self._tasks.get(message.task)
        try:
            if task:
                return task.apply_async(args, kwargs, producer=producer, **message.options)
            return self.send_task(message.task, args, kwargs, producer=producer, **message.options)
        except Exception as error:
            problem = f"Couldn't apply scheduled task {message.name}: {error}"
            raise SchedulingError(problem) from error

    @functools.cached_property
    def _tasks(self) -> Any:
        """The tasks of the app, cached: Celery's property takes a lock at each access."""
        return self.app.tasks

    @functools.cached_property
    def producer(self) -> Any:
        """The producer of messages; raises an error when the broker is not available."""
        # Cached: Celery's property takes a lock at each access.
        base = getattr(self, "Producer", None) or self.app.amqp.Producer
        return declaring_once(base)(self._ensure_connected(), auto_declare=False)

    @cached_property
    def connection(self) -> Any:
        """The broker connection, with a short timeout for each call."""
        return publishing_connection(self.app, self._lease)

    def check_broker(self) -> None:
        """Check that the broker is available; raises an error when it is not.

        The broker may have closed an idle connection, which only a publish would notice. So an idle
        connection is replaced.
        """
        if monotonic() - self._published_at > IDLE_CONNECTION:
            self._drop_connection()
            self._published_at = monotonic()
        _ = self.producer

    @functools.cached_property
    def overrides_sending(self) -> bool:
        """Whether user code takes part in sending, and may send a message on another channel."""
        ours: Any = RedBeatScheduler
        names = ("apply_async", "maybe_due", "send_task", "send_if_due", "producer", "Producer")
        overridden = any(
            getattr(type(self), name, None) is not getattr(ours, name, None) for name in names
        )
        tasks = {type(task).apply_async for task in self.app.tasks.values()}
        eager = bool(self.app.conf.task_always_eager)
        return overridden or eager or tasks != {Task.apply_async}

    def _ensure_connected(self) -> Any:
        """Connect to the broker or fail within seconds, because the tick has other work."""
        connection = self.connection
        try:
            # No pauses between attempts, because the tick backs off itself.
            return connection.ensure_connection(
                max_retries=BROKER_CONNECT_RETRIES, interval_start=0, interval_step=0
            )
        except OperationalError:
            raise
        except Exception as error:
            # Kombu raises a refused login and other replies unchanged. While connecting, all errors
            # concern the broker and not one message.
            raise OperationalError(described(error)) from None

    def broker_failed(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the broker is not available; if so, disconnect."""
        if not means_no_broker(error, self.__dict__.get("connection")):
            return False
        self._drop_connection()
        return True

    def _drop_connection(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                logger.debug("beat: Could not close the broken broker connection: %r", error)

    def close(self) -> None:
        """Record sent runs and release the lock; a second call does nothing.

        Celery also calls this method from its signal handler. During a tick it does nothing: the
        tick records its runs first, and Celery calls again.
        """
        ticker = self.__dict__.get("_ticker")
        if ticker is not None and ticker.running:
            return
        with HeldSignals():
            self._close(ticker)
        if "_wakeup" in self.__dict__:
            self._wakeup.close()
        if self.__dict__.get("_server") is not None:
            self._server.close()
        super().close()

    def _close(self, ticker: Ticker | None) -> None:
        try:
            if ticker is not None:
                ticker.close()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", described(error))
        try:
            if ticker is not None:
                ticker.use_lock(self.lock, self.lock_timeout)
                ticker.release_lock()
            elif self.lock is not None and getattr(self.lock, "leading", True):
                self.lock.release()
        except (RedisError, OSError) as error:
            logger.error(
                "beat: Could not release the lock, it expires by itself: %s", described(error)
            )

    @property
    def info(self) -> str:
        """The lines about this scheduler in the banner of the beat. No round trip."""
        conf = ensure_conf(self.app)
        lines = [f"       . redis -> {safe_url(conf.redis_url)}"]
        if self.lock_key:
            human = humanize_seconds(self.lock_timeout)
            lines.append(f"       . lock -> `{self.lock_key}` {human} ({self.lock_timeout}s)")
        return "\n".join(lines)


@beat_init.connect
def _service_starts(sender: Any = None, **_kwargs: Any) -> None:
    """Connect a starting beat service to its scheduler, if that is ours."""
    scheduler = getattr(sender, "__dict__", {}).get("scheduler")
    if isinstance(scheduler, RedBeatScheduler):
        scheduler.service = sender
        warn_about_confirms(scheduler.app)


@beat_init.connect
def acquire_distributed_beat_lock(sender: Any = None, **kwargs: Any) -> None:
    """Take the beat lock of ``sender``, a beat service or a scheduler.

    At the start of a beat service, take the lock if it is free and do not wait; the ticks try
    again. In a direct call, wait for the lock. Does nothing for another scheduler class, or without
    a lock.

    Connected at import, so that receivers that a program connects later find the lock held. A
    program with its own lock disconnects this receiver.
    """
    if "signal" not in kwargs:
        scheduler = getattr(sender, "scheduler", sender)
        if isinstance(scheduler, RedBeatScheduler) and scheduler.lock is not None:
            scheduler.lock.acquire()
        return
    scheduler = getattr(sender, "__dict__", {}).get("scheduler")
    if isinstance(scheduler, RedBeatScheduler):
        scheduler.take_lock()


def _set_redbeat_connect(app: Any, connect_name: str, connection: Any, retry_period: float) -> None:
    """Set a client as an attribute of the app; programs for RedBeat 2 call this function."""
    setattr(app, connect_name, RetryingConnection(retry_period, connection))


def _log_skipped_broker_options(skipped_options: Iterable[str]) -> None:
    """Log which broker options are not used for the schedule."""
    logger.debug("beat: Unused broker options: %s", ", ".join(skipped_options))
