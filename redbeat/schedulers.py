"""The Celery scheduler class, and all names that this module contained in RedBeat 2."""

from __future__ import annotations

import gc
import json
import ssl
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import MINYEAR, datetime
from functools import cached_property
from time import monotonic
from typing import Any, NoReturn

import redis
from celery import Celery
from celery.app import app_or_default
from celery.beat import DEFAULT_MAX_INTERVAL, ScheduleEntry, Scheduler
from celery.result import AsyncResult
from celery.signals import beat_init
from celery.utils.time import humanize_seconds
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from redis import Redis
from redis.exceptions import LockNotOwnedError, RedisError
from redis.sentinel import MasterNotFoundError, Sentinel
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from redbeat.beat import broker
from redbeat.beat.beat import LONGEST_WAIT, Beat
from redbeat.beat.lock import BeatLock
from redbeat.beat.message import headers_of, options_of, publish
from redbeat.beat.own_code import due_rows
from redbeat.beat.parts import PartedBeat
from redbeat.beat.statics import Statics
from redbeat.beat.stop_signals import STOP, HeldSignals
from redbeat.beat.wakeup import DUE, LOCK, WakeUp
from redbeat.connection.urls import safe_url
from redbeat.entries import decide, saving, state, verdicts
from redbeat.printing import get_logger, plural

from . import config, decoder, metrics
from .config import App, RedBeatConfig, ensure_conf, get_redis, is_mock
from .config import ensure_conf as conf_of  # tests of programs replace the name ensure_conf
from .connection.retrying import RetryingConnection
from .decoder import RedBeatJSONDecoder, RedBeatJSONEncoder, to_timestamp
from .entry import RedBeatSchedulerEntry, is_redbeat_entry
from .errors import ConfigurationError, DecodeError, described
from .settings import LOG_EACH
from .storage import checks, scripts
from .storage.keys import layout_of, own_keys
from .storage.rows import Row
from .storage.store import Store, store_of_shard
from .storage.words import SILENCE

__all__: tuple[str, ...] = ("RedBeatConfig", "RedBeatScheduler", "RedBeatSchedulerEntry", "logger")
__all__ += ("RedBeatJSONDecoder", "RedBeatJSONEncoder", "RetryingConnection", "to_timestamp")
__all__ += ("LUA_EXTEND_TO_SCRIPT", "acquire_distributed_beat_lock", "ensure_conf", "get_redis")
__all__ += ("DEFAULT_MAX_INTERVAL", "REDBEAT_REDIS_KEY", "REDBEAT_SENTINEL_KEY")

# Programs for RedBeat 2 import these names from here.
__all__ += ("ADD_ENTRY_ERROR", "MINYEAR", "REDBEAT_INTERNAL_OPTIONS", "MasterNotFoundError")
__all__ += ("Redis", "ScheduleEntry", "Sentinel", "app_or_default", "beat_init", "datetime", "json")
__all__ += ("maybe_sanitize_url", "redis", "retry", "retry_if_exception_type", "ssl")
__all__ += ("stop_after_delay", "wait_exponential", "warnings")

logger = get_logger("celery.beat")

REDBEAT_REDIS_KEY, REDBEAT_SENTINEL_KEY = config.REDBEAT_REDIS_KEY, config.REDBEAT_SENTINEL_KEY

LUA_EXTEND_TO_SCRIPT = scripts.load_script("extend").text

# Programs replace ``get_redis`` or the JSON classes here to change the client or codec of the whole
# package.
config.use_provider(lambda app: get_redis(app))  # noqa: PLW0108 - the name as it is at each call
decoder.names = sys.modules[__name__]

#: In seconds, for Celery's default ``beat_max_loop_interval``.
DEFAULT_LOCK_TIMEOUT = 5 * DEFAULT_MAX_INTERVAL

#: Logged for an entry that cannot be saved, with its name, the error and its fields.
ADD_ENTRY_ERROR = "beat: Entry %s is not scheduled: %s. Its fields: %r"

#: Logged when a program adds entries in a way of Celery's own schedulers.
UNUSED = "beat: %s adds no entries: call update_from_dict() with a dict of names and fields"

#: Keys of ``redbeat_redis_options`` that RedBeat 2 did not pass to redis-py.
REDBEAT_INTERNAL_OPTIONS = (
    *("retry_period", "cluster", "sentinels", "service_name"),
    *("sentinel_kwargs", "startup_nodes"),
)

#: The limits for one publish, in seconds; in between, the lock timeout decides.
SHORTEST_PATIENCE, LONGEST_PATIENCE = 5.0, 30.0


class RedBeatScheduler(Scheduler):
    """A Celery Beat scheduler that keeps periodic tasks in Redis.

    Arguments:
        app: the Celery app.
        lock_key: overrides ``redbeat_lock_key``.
        lock_timeout: overrides ``redbeat_lock_timeout``, in seconds.
        lazy: if true, do not connect to Redis, because Celery only prints the beat's banner.
        kwargs: the arguments of :class:`celery.beat.Scheduler`.

    The constructor writes the static entries unless ``lazy`` is true; see :meth:`setup_schedule`.
    It raises :exc:`~redbeat.errors.ConfigurationError` for invalid settings, or, if Celery's beat
    service creates the scheduler, logs the invalid setting and ends the process.
    """

    # Two underscores: subclasses of programs have own helpers with names such as _tick and _close.

    #: The class of the entries; to add arguments to entries, set this attribute to a subclass.
    Entry: type[RedBeatSchedulerEntry] = RedBeatSchedulerEntry

    #: The beat lock, None if ``redbeat_lock_key`` is None. A program may assign its own lock.
    lock: BeatLock | Any = None

    #: The seconds after which the lock expires if the beat does not renew it.
    #: ``redbeat_lock_timeout`` and the constructor's argument override a subclass's timeout.
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT

    #: The Redis key of the lock.
    lock_key: str | Any = None

    #: Celery's beat service that runs this scheduler, None if a program calls ``tick()`` itself.
    service: Any = None

    #: The clock for ticks and the lock, in monotonic seconds. Tests may replace it.
    clock: Callable[[], float] = staticmethod(monotonic)

    #: How many sent runs already count for ``beat_sync_every``.
    _counted = 0

    #: The lock key in the settings, None if the constructor got another ``lock_key``.
    _default_lock_key: str | None = None

    #: Whether the constructor is running :meth:`setup_schedule`, perhaps of a subclass.
    _constructing = False

    #: Whether :meth:`setup_schedule` is running, so that :meth:`update_from_dict` adds static
    #: entries.
    _setting_up = False

    _exit_code = 0

    _layout_checked = False

    _logged_unfinished = False

    #: Whether the static entries must still be written, because Redis was unavailable.
    _statics_unwritten = False

    def __init__(
        self,
        app: App,
        lock_key: str | None = None,
        lock_timeout: float | None = None,
        lazy: bool = False,
        **kwargs: Any,
    ) -> None:
        try:
            self.__prepare(app, lock_key, lock_timeout, kwargs)
            if not lazy:
                if "schedule_filename" in kwargs:  # only Celery's beat service passes it
                    STOP.enable()
                with HeldSignals():
                    self.__start()
        except ConfigurationError as error:
            # The service creates a lazy scheduler only for the banner of ``celery beat``, whose
            # errors Celery prints as one line.
            if lazy or "schedule_filename" not in kwargs:
                raise
            _exit(error)

    def __prepare(self, app: App, lock_key: str | None, timeout: float | None, kwargs: Any) -> None:
        ensure_conf(app)  # a program's own may set ``app.redbeat_conf``
        conf = conf_of(app)
        broker.broker_connection(conf.app)  # its error for a wrong URL is clearer than the banner's
        self._check_entry_class()
        self.lock_key = lock_key or conf.lock_key
        self._default_lock_key = None if lock_key else conf.lock_key
        # Celery's constructor would overwrite these attributes of a subclass.
        arguments = {
            "Producer": getattr(self, "Producer", None),
            "sync_every_tasks": conf.app.conf.beat_sync_every or self.sync_every_tasks,
        }
        arguments |= {name: value for name, value in kwargs.items() if value is not None}
        super().__init__(app, lazy=True, **arguments)
        of_class = None if self.lock_timeout == DEFAULT_LOCK_TIMEOUT else self.lock_timeout
        configured = timeout or conf.lock_timeout or of_class
        self.lock_timeout = conf.resolve_lock_timeout(configured, self.max_interval)

    def __start(self) -> None:
        if STOP.over:  # Celery's signal handler makes a scheduler, if there is none
            raise SystemExit(0)
        conf = conf_of(self.app)
        conf.report()
        broker.check_possible(self.app, conf)
        self._check_layout()
        self._constructing = True
        self.setup_schedule()
        self._constructing = False
        self._report_data()
        self._make_lock()

    def _check_entry_class(self) -> None:
        stored = not self._overrides_schedule and isinstance(self.Entry, type)
        if stored and not issubclass(self.Entry, RedBeatSchedulerEntry):
            raise ConfigurationError(
                f"{type(self).__name__}.Entry is {self.Entry.__name__}, whose entries cannot be "
                "stored in Redis: use a subclass of RedBeatSchedulerEntry"
            )

    def _check_layout(self) -> None:
        """Raise :exc:`ConfigurationError` if ``redbeat_shards`` does not fit the stored schedule.

        With one shard, its beat makes this check. If Redis is not available, the next tick checks.
        One round trip, only once.
        """
        if self._layout_checked:
            return
        conf = conf_of(self.app)
        if conf.shards == 1:
            self._layout_checked = True
            return
        client = config.unretried(config.client_of(self.app))
        try:
            problem = checks.layout_problem(conf, client, adopt=True)
        except (RedisError, OSError) as error:
            logger.debug("beat: Cannot check the number of shards: %s", described(error))
            return
        if problem:
            raise ConfigurationError(problem)
        self._layout_checked = True

    def _make_lock(self) -> None:
        """Unless a program has set its own lock."""
        store = self.stores[0]  # read first, because a client provider may change the lock key
        if self.lock_key == self._default_lock_key:
            self.lock_key = conf_of(self.app).lock_key
        if self._parted is not None:
            self.lock = self._parted.locks[0] if self.lock is None else self.lock
            self._parted.use_lock(self.lock, self.lock_timeout)
        elif self.lock is None and self.lock_key:
            self.lock = BeatLock(store, self.lock_key, self.lock_timeout, self.clock)

    @cached_property
    def stores(self) -> list[Store]:
        client, conf = config.unretried(config.client_of(self.app)), conf_of(self.app)
        return [store_of_shard(conf, client, number) for number in range(conf.shards)]

    @cached_property
    def _statics(self) -> list[Statics]:
        return [Statics() for _ in range(conf_of(self.app).shards)]

    def _statics_with(self, name: object) -> Statics:
        if len(self._statics) == 1:
            return self._statics[0]
        return self._statics[layout_of(conf_of(self.app)).shard_of(str(name))]

    @cached_property
    def _unsaved(self) -> dict[str, Any]:
        return {}

    @property
    def _locks(self) -> Sequence[BeatLock | None]:
        if self._parted is not None:
            return self._parted.locks
        return [self.lock if isinstance(self.lock, BeatLock) else None]

    @cached_property
    def _beat(self) -> Beat | PartedBeat:
        return self._parted or Beat(self, self.stores[0], self._locks[0], self._statics[0])

    @cached_property
    def _parted(self) -> PartedBeat | None:
        """None for one shard."""
        if conf_of(self.app).shards <= 1:
            return None
        if self._overrides_schedule:
            raise ConfigurationError(
                "a scheduler class with its own schedule does not work with redbeat_shards > 1"
            )
        return PartedBeat(self, self.stores, self._statics)

    @cached_property
    def _metrics_server(self) -> Any:
        conf, beat = conf_of(self.app), self._beat
        if conf.metrics_port is None:
            return None
        serve = metrics.prometheus_module(metrics.BEAT).serve_beat
        return serve(conf, self.stores[0].client, beat.health, beat.totals)

    @cached_property
    def _wakeup(self) -> WakeUp:
        wakeup = WakeUp(self.stores[0].client, self.stores[0].keys.wakeup)
        wakeup.wanted = self._parted.wake if self._parted is not None else None
        return wakeup

    # -- the schedule --------------------------------------------------------------------------

    def setup_schedule(self) -> None:
        """Write the entries of ``beat_schedule`` to Redis.

        If no other beat leads, this adds and changes entries; while another one leads, it only adds
        missing entries. At its first tick and in later calls, the leader also removes entries that
        are no longer in ``beat_schedule``. If Redis is not available, the first tick writes the
        entries. Takes three round trips, and one more per 500 entries.
        """
        schedule = conf_of(self.app).schedule
        for statics in self._statics:
            statics.collect()
        self._setting_up = True
        try:
            self.install_default_entries(schedule)
            self.update_from_dict(schedule)
        finally:
            self._setting_up = False
        self._make_lock()
        self._offer_statics()

    def _offer_statics(self) -> None:
        try:
            self._statics_unwritten = False
            if self._leads:
                self._beat.sync_now()
                return
            for statics, store, lock in zip(self._statics, self.stores, self._locks, strict=True):
                statics.offer(store, lock)
        except (RedisError, OSError) as error:
            self._statics_unwritten = True
            logger.warning(
                "beat: Could not write static entries, the next tick tries again: %s",
                described(error),
            )

    @property
    def _leads(self) -> bool:
        """Whether this beat led at its last tick."""
        return "_beat" in self.__dict__ and self._beat.health.leads is True

    def update_from_dict(self, dict_: Any) -> None:
        """Save the entries in a mapping from names to fields; they do not become static.

        An invalid entry is logged and does not affect the others. If Redis is not available, the
        next tick saves the entries. Takes one round trip per entry.
        """
        makes = type(self)._maybe_entry
        is_usual = self.Entry is RedBeatSchedulerEntry and makes is Scheduler._maybe_entry
        for name, fields in dict_.items():
            try:
                if not self._setting_up:
                    self._maybe_entry(name, fields).save()
                    continue
                statics = self._statics_with(name)
                if not (is_usual and statics.add_item(self.app, name, fields)):
                    statics.add(name, self._maybe_entry(name, fields))
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
                    self._statics_with(name).refuse(name, error)

    def add(self, **kwargs: Any) -> RedBeatSchedulerEntry:
        """Create an entry, save it and return it. One round trip."""
        return self.Entry(app=self.app, **kwargs).save()

    def get_schedule(self) -> dict[str, RedBeatSchedulerEntry]:
        """Return name -> entry, for the entries that are due now and the one that is due next.

        The mapping is only for reading; :meth:`maybe_due` decides what is sent. Static entries are
        written first if :meth:`setup_schedule` could not write them, or if Redis has lost all
        entries. Four round trips, and more for many due entries.
        """
        entries = {entry.name: entry for entry in self._load_due()}
        return DueEntries(entries) if self._constructing else entries

    def set_schedule(self, schedule: Any) -> None:
        """Set :attr:`data`, as Celery's scheduler does, and warn that RedBeat does not use it."""
        self.data = schedule
        if not self._constructing:
            self._report_data()

    schedule = property(get_schedule, set_schedule)

    @cached_property
    def _overrides_schedule(self) -> bool:
        """Whether a subclass overrides ``schedule``, which then contains the entries to run."""
        return type(self).schedule is not RedBeatScheduler.schedule

    def _report_data(self) -> None:
        if self.data and not self._overrides_schedule:
            logger.warning(UNUSED, "an assignment to schedule or data")

    def _load_due(self) -> Iterator[RedBeatSchedulerEntry]:
        if is_mock(config.client_of(self.app)):
            return
        rows, now = _due_rows(self.stores)
        if self._statics_unwritten or (not rows and any(map(len, self._statics))):
            self._offer_statics()
            rows, now = _due_rows(self.stores)
        for row in rows:
            try:
                if self.Entry.overrides("from_key"):
                    entry = self.Entry.from_key(row.key, app=self.app)
                else:
                    entry = saving.entry_of(row, self.app, self.Entry)
            except (KeyError, DecodeError) as error:
                logger.warning("beat: Cannot load %s: %s", row.key, error)
                continue
            entry.put_up = bool(row.inbox) or (row.score != "" and float(row.score) <= now)
            self._statics_with(entry.name).restore(entry)
            yield entry

    # -- running -------------------------------------------------------------------------------

    def tick(self, *args: Any, **kwargs: Any) -> float:  # noqa: ARG002 - Celery's arguments
        """Dispatch due entries; return the seconds to sleep. See ``Beat.tick()``.

        In a beat service, this method itself sleeps and then returns 0, so that a wake-up message
        can end the sleep early.
        """
        try:
            _ = self._metrics_server
            seconds = self.__tick()
        except (ConfigurationError, LockNotOwnedError) as error:
            if self.service is None:
                raise
            # Celery ignores SystemExit in a tick, so close() exits with ``_exit_code``.
            self._exit_code = getattr(error, "exit_code", 1)
            _exit(error)
        self._save_unsaved()
        self._sync_periodically()
        if self.service is None:
            return seconds
        self.__wait(seconds)
        return 0.0

    def __tick(self) -> float:
        self._check_layout()
        if self._mocked:
            return self._tick_alone()
        beat = self._beat
        beat.use_lock(self.lock, self.lock_timeout)
        return self._tick_overridden_schedule() if self._overrides_schedule else beat.tick()

    @cached_property
    def _mocked(self) -> bool:
        """A test replaced the app or the client, so no beat can work."""
        return is_mock(self.app) or is_mock(config.client_of(self.app))

    def _tick_alone(self) -> float:
        if self.lock is not None:
            self.lock.extend(int(self.lock_timeout))
        return self._run_each([*self.schedule.values()], self.max_interval)

    def _tick_overridden_schedule(self) -> float:
        beat = self._beat
        assert isinstance(beat, Beat)
        seconds = beat.tick(looks=False)
        if not self._leads or not beat.available:
            return seconds
        entries = beat.guarded(lambda: [*self.schedule.values()])
        if not isinstance(entries, list):
            return entries  # the seconds that guarded() returns after an error
        return self._run_each(entries, seconds)

    def _run_each(self, entries: Iterable[Any], seconds: float) -> float:
        """Return the shortest wait, which is at most ``seconds``."""
        for entry in entries:
            wait = self.maybe_due(entry, **self._maybe_due_kwargs)
            seconds = seconds if wait is None else min(seconds, wait)
            if not (self._mocked or self._beat.available):
                break
        return seconds

    def _save_unsaved(self) -> None:
        if self._unsaved and self._beat.available:
            unsaved = dict(self._unsaved)
            self._unsaved.clear()
            self.update_from_dict(unsaved)

    def _sync_periodically(self) -> None:
        """Call ``sync()`` as often as ``beat_sync_every`` and ``sync_every`` require.

        RedBeat's does nothing, but a subclass may override it.
        """
        if "_beat" in self.__dict__:
            before, self._counted = self._counted, self._beat.sent
            self._tasks_since_sync += self._counted - before
        try:
            if self.should_sync():
                self._do_sync()
        except Exception:
            logger.exception("beat: sync() failed, trying again after %s s", self.sync_every)

    def __wait(self, seconds: float) -> None:
        if self._parted is not None:
            self._wakeup.channels = self._parted.channels
        if self._beat.available and self._wakeup.listen():
            return  # tick again, because messages from before the subscription are lost
        self._wakeup.wait(seconds, DUE if self._leads else LOCK, self.service._is_shutdown.is_set)

    def maybe_due(self, entry: Any, **kwargs: Any) -> float | Any:
        """Send the entry if it is due; return the seconds until its next run.

        Outside of a tick of this class, for example in a subclass's own tick, this method also
        reads what is stored and records the run, in two or three round trips.
        """
        if getattr(entry, "run", None) is not None or self._mocked:
            return self.send_if_due(entry, **kwargs)
        self._beat.use_lock(self.lock, self.lock_timeout)
        return self._beat.run_one(entry, kwargs)

    @property
    def _maybe_due_kwargs(self) -> dict[str, Any]:
        """The arguments with which a tick of RedBeat 2 calls :meth:`maybe_due`."""
        try:
            return {"producer": self.producer}
        except Exception as error:
            if not self.broker_failed(error):
                raise
            return {"producer": None}  # without a producer, the publish fails and is retried

    def send_if_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send an entry if its object is due; return the seconds until its next run."""
        is_due, next_time_to_run = self.is_due(entry)
        run = getattr(entry, "run", None)
        if is_due:
            if conf_of(self.app).log_dispatch == LOG_EACH:
                logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            try:
                result = self.apply_async(entry, **kwargs)
            except Exception as error:
                if run is not None:
                    run.error = error
                else:
                    logger.exception("Message Error: %s", error)
            else:
                if run is not None:
                    run.sent = True
                logger.debug("%s sent. id->%s", entry.task, getattr(result, "id", None))
        seconds: float | None = next_time_to_run
        return seconds

    def reserve(self, entry: Any) -> RedBeatSchedulerEntry:
        """Count a run, and return a copy of the entry with the new last run and run count.

        Outside of a tick, this method also records the run in Redis.
        """
        after: RedBeatSchedulerEntry = next(entry)
        return after

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> AsyncResult:
        """Send the task of an entry, with the task id and the headers of the run.

        The arguments are Celery's: ``producer``, and ``advance``, which is false if the caller
        calls :meth:`reserve`. An entry of another class, such as Celery's, is sent as Celery does.
        """
        return self.__apply(entry, *args, **kwargs)

    def __apply(
        self, entry: Any, producer: Any = None, advance: bool = True, **_celerys: Any
    ) -> AsyncResult:
        if not is_redbeat_entry(entry):
            return self._send_foreign(entry, producer, advance)
        run = entry.run
        after = self.reserve(entry) if advance else entry
        if run is None:
            self._tasks_since_sync += 1  # a tick counts its runs itself
            at = decide.aware((after.nominal_at if advance else None) or after.default_now())
            send = verdicts.Send(state.SCHEDULED, at, "", 0, None)
            headers = headers_of(after, send, at.isoformat())
            options = options_of(after.options, headers, after.own_task_id(at), False)
            return publish(self, after, options, producer)
        if advance and isinstance(after, RedBeatSchedulerEntry):
            run.successor = after  # an overridden reserve() does not set ``successor``
        headers = {**run.headers, "periodic_task_name": after.name}
        options = options_of(after.options, headers, run.task_id, run.at_most_once)
        try:
            result = publish(self, after, options, producer)
        except Exception as error:
            run.error = error
            raise
        run.sent, run.error = True, None
        return result

    def _send_foreign(self, entry: Any, producer: Any, advance: bool) -> Any:
        """The entry is not RedBeat's; its object remembers the run."""
        after = self.reserve(entry) if advance else entry
        headers = {"periodic_task_name": after.name}
        self._tasks_since_sync += 1
        result = publish(self, after, options_of(after.options, headers, None, False), producer)
        if isinstance(entry, ScheduleEntry):
            entry.last_run_at, entry.total_run_count = after.last_run_at, after.total_run_count
        return result

    @cached_property
    def producer(self) -> Any:
        """Raises an error if the broker is not available."""
        # Cached, because Celery's property acquires a lock at each access.
        base = getattr(self, "Producer", None) or self.app.amqp.Producer
        make = broker.checked_producer(base, conf_of(self.app).task_allowlist)
        producer = make(self._ensure_connected(), auto_declare=False)
        producer.app, producer.own_keys = self.app, own_keys(self.app)
        return producer

    @cached_property
    def connection(self) -> Any:
        patience = min(max(self.lock_timeout, SHORTEST_PATIENCE), LONGEST_PATIENCE)
        return broker.publishing_connection(self.app, patience)

    def check_broker(self) -> None:
        """Raise an error if the broker, which has failed, is still not available."""
        _ = self.producer

    def _ensure_connected(self) -> Any:
        """Connect to the broker, or fail within seconds so that the tick can do other work."""
        connection = self.connection
        try:
            # No pause before the retry: the beat backs off after a failed tick.
            return connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        except OperationalError:
            raise
        except Exception as error:
            # Kombu does not wrap every error in an OperationalError, for example not a refused
            # login. But each of them concerns the broker, and not a single message.
            raise OperationalError(described(error)) from None

    def broker_failed(self, error: BaseException) -> bool:
        """Whether ``error`` means that the broker is unavailable.

        If so, or if the producer's channel is closed, this closes the connection.
        """
        unavailable = broker.means_no_broker(error, self.__dict__.get("connection"))
        if unavailable or self._channel_is_closed:
            self._drop_connection()
        return unavailable

    @property
    def _channel_is_closed(self) -> bool:
        """Whether kombu closed the producer's channel, so that it cannot send messages.

        If a queue cannot be declared, kombu closes the channel and repeats the declaration on a new
        connection, but the producer still uses the closed channel.
        """
        producer = self.__dict__.get("producer")
        if producer is None:
            return False
        try:
            return producer.channel.connection.client is None
        except Exception:  # kombu has no channel, or cannot open a channel
            return True

    def _drop_connection(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                message = "beat: Could not close the broken broker connection: %s"
                logger.debug(message, described(error))

    def close(self) -> None:
        """Record sent runs and release the lock. A second call does nothing.

        Celery also calls this from its signal handler. During a tick, that call does nothing: the
        tick first records its runs, and Celery calls this method again after it.

        Raises ``SystemExit`` if an invalid setting ended the beat.
        """
        beat = self.__dict__.get("_beat")
        if beat is not None and beat.running and not STOP.over:
            return
        try:
            if not STOP.over:
                STOP.begin()
                with HeldSignals():
                    self.__close(beat)
        finally:
            if STOP.over:
                self._log_unfinished(beat)
        if STOP.over:
            return
        STOP.end()
        if "_wakeup" in self.__dict__:
            self._wakeup.close()
        if self.__dict__.get("_metrics_server") is not None:
            self._metrics_server.close()
        super().close()
        if self._exit_code:
            raise SystemExit(self._exit_code)

    def _log_unfinished(self, beat: Beat | PartedBeat | None) -> None:
        if self._logged_unfinished:
            return
        self._logged_unfinished = True
        names = sorted(beat.unfinished()) if beat is not None else []
        logger.error(
            "beat: Ends, because Redis or the broker does not answer: %s not recorded: %s",
            *(plural(len(names), "run"), ", ".join(names) or "none"),
        )

    def __close(self, beat: Beat | PartedBeat | None) -> None:
        try:
            if beat is not None:
                beat.close()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", described(error))
        try:
            if beat is not None:
                if self._parted is None:
                    beat.use_lock(self.lock, self.lock_timeout)
                beat.release_lock()
            elif self.lock is not None and getattr(self.lock, "leading", True):
                self.lock.release()
        except (RedisError, OSError) as error:
            logger.error(
                "beat: Could not release the lock, it expires by itself: %s", described(error)
            )

    @property
    def info(self) -> str:
        """The lines in the beat's banner. No round trip."""
        conf = conf_of(self.app)
        lines = [f"       . redis -> {safe_url(conf.redis_url)}"]
        if self.lock_key:
            human = humanize_seconds(self.lock_timeout)
            lines.append(f"       . lock -> `{self.lock_key}` {human} ({self.lock_timeout}s)")
            lines.append(f"       . takeover -> {SILENCE:g} seconds after a leader fell silent")
        lines.append(f"       . longest wait -> {min(self.max_interval, LONGEST_WAIT):g} seconds")
        if conf.shards > 1:
            lines.append(f"       . shards -> {conf.shards}")
        return "\n".join(lines)


class DueEntries(dict[str, Any]):
    """The due entries, for a subclass's ``setup_schedule``; new ones are not stored in Redis."""

    def __setitem__(self, name: str, entry: Any) -> None:
        logger.warning(UNUSED, f"schedule[{name!r:.60}]")
        super().__setitem__(name, entry)

    def update(self, *args: Any, **kwargs: Any) -> None:
        logger.warning(UNUSED, "schedule.update()")
        super().update(*args, **kwargs)


def _due_rows(stores: Iterable[Store]) -> tuple[list[Row], float]:
    found = [due_rows(store) for store in stores]
    return [row for rows, _ in found for row in rows], max(now for _, now in found)


def _exit(error: Exception) -> NoReturn:
    """End the process with one log line; Celery would log a traceback."""
    logger.critical("beat: %s", error)
    raise SystemExit(getattr(error, "exit_code", 1)) from None


@beat_init.connect
def _service_starts(sender: Any = None, **_kwargs: Any) -> None:
    """Connect a starting beat service to its scheduler, if that is RedBeat's."""
    scheduler = getattr(sender, "__dict__", {}).get("scheduler")
    if isinstance(scheduler, RedBeatScheduler):
        scheduler.service = sender
        broker.warn_about_confirms(scheduler.app)
        gc.freeze()  # imports are never garbage, but Python searched them during a burst


@beat_init.connect
def acquire_distributed_beat_lock(sender: Any = None, **kwargs: Any) -> None:
    """Acquire the beat lock of ``sender``, a beat service or a scheduler.

    As a receiver of ``beat_init``, this acquires the lock only if it is free; later, each tick of a
    standby tries again. If your program calls this function, it waits until it has acquired the
    lock. It does nothing if the beat has no lock or its scheduler is not a
    :class:`RedBeatScheduler`.

    Importing this module connects this function to ``beat_init``, so it runs before receivers that
    your program connects later. If your program has its own lock, disconnect it.
    """
    if "signal" not in kwargs:
        scheduler = getattr(sender, "scheduler", sender)
        if isinstance(scheduler, RedBeatScheduler):
            scheduler._make_lock()
            if scheduler.lock is not None:
                scheduler.lock.acquire()
        return
    scheduler = getattr(sender, "__dict__", {}).get("scheduler")
    if isinstance(scheduler, RedBeatScheduler) and isinstance(scheduler.lock, BeatLock):
        scheduler._beat.take_lock()


def _set_redbeat_connect(
    app: Celery, connect_name: str, connection: Any, retry_period: float
) -> None:
    """Programs for RedBeat 2 may call this."""
    setattr(app, connect_name, RetryingConnection(retry_period, connection))


def _log_skipped_broker_options(skipped_options: Iterable[str]) -> None:
    logger.debug("beat: Unused broker options: %s", ", ".join(skipped_options))
