"""Exactly-once delivery: one Lua script sends the message and records the run.

The broker and the schedule must be on the same Redis server. The beat captures the Redis commands
of a publish on kombu's channel, and sends the commands to Redis together with the completion of the
run. A Lua script executes the captured commands and records the run in one atomic step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redbeat.codec.stored import bytes_of as key_of
from redbeat.codec.stored import text_of
from redbeat.config import RedBeatConfig
from redbeat.connection.borrowing import connection_like, is_idle
from redbeat.connection.cluster import is_cluster
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, described
from redbeat.printing import get_logger
from redbeat.settings import EXACTLY_ONCE
from redbeat.storage.records import Broker
from redbeat.storage.store import CHANGED_KEYS, Store

from .broker import broker_connection
from .redis_pipe import ClientStandIn, receive, send
from .retries import RecentEntries

logger = get_logger("celery.beat")

#: The Redis commands that :class:`Capture` collects.
#: The commands add messages to a queue, publish messages, or set the expiry of a queue.
CAPTURED: Final = frozenset({"LPUSH", "PUBLISH", "EXPIRE", "PEXPIRE"})

#: Seconds between two checks whether broker and schedule are on the same server.
CHECK_INTERVAL: Final = 30.0

#: Seconds between two checks whether the connection to the broker is open.
#: A check before each message would take too much time.
OPEN_CHECK_INTERVAL: Final = 0.01

#: After Redis refused the message of a script, runs are published before their records for this
#: number of seconds, unless exactly-once delivery is set.
REFUSED_FOR: Final = 300.0

#: The reasons why a message is sent before its record.
BYPASSED: Final = "user code sends the messages on another channel, or the messages go to no queue"
CHANGES_ENTRY: Final = "user code in this beat changes the entry while its message is published"

#: Maximum number of stored task names.
#: A beat stores the tasks that it has warned about, so that it warns only once per task.
MAX_BYPASSING_TASKS: Final = 1000


def check_possible(app: Celery, conf: RedBeatConfig) -> None:
    """Raise :exc:`ConfigurationError` if exactly-once delivery is set, but is not possible.

    Checks only the settings. No network traffic.
    """
    if conf.delivery != EXACTLY_ONCE:
        return
    if broker_connection(app).transport.driver_type != "redis":
        raise impossible("messages do not go to Redis")
    if app.conf.task_always_eager:
        raise impossible("task_always_eager is set, so that no message is sent")
    if conf.cluster:
        raise impossible("the schedule is in a Redis Cluster")


def impossible(reason: str) -> ConfigurationError:
    """Return the error for the case that exactly-once delivery is set, but is not possible."""
    return ConfigurationError(
        f"redbeat_delivery is {EXACTLY_ONCE!r}, which is not possible: {reason}"
    )


class CapturedPipeline:
    """Wraps a kombu pipeline, and captures its commands if every command only sends a message."""

    def __init__(self, capture: Capture, pipeline: Any) -> None:
        self._capture = capture
        self._pipeline = pipeline

    def __enter__(self) -> CapturedPipeline:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pipeline.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Capture the commands if all are in :data:`CAPTURED`; otherwise execute all commands."""
        commands = [list(command) for command, _ in self._pipeline.command_stack]
        if any(command[0] not in CAPTURED for command in commands):
            return self._pipeline.execute(*args, **kwargs)
        self._capture.commands += commands
        self._pipeline.reset()
        return [1] * len(commands)


class Capture(ClientStandIn):
    """A context that captures the Redis commands of one publish instead of sending them."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        #: The captured commands, each with its arguments.
        self.commands: list[list[Any]] = []
        #: The keys of the entries that user code saved or deleted during the publish.
        self.changed_keys: list[str] = []
        self._noting: Any = None

    def __enter__(self) -> None:
        self.commands, self.changed_keys = [], []
        self._noting = CHANGED_KEYS.set(self.changed_keys)
        super().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        CHANGED_KEYS.reset(self._noting)

    def send(self) -> Exception | None:
        """Send the captured commands without a script; return the error, or None for success.

        Takes two round trips, or none if no command was captured.
        """
        if not self.commands:
            return None
        connection = connection_like(self._commands.connection_pool)
        answers: list[Exception | None] = []
        try:
            send(connection, self.commands)
            receive(connection, len(self.commands), answers)
        except (RedisError, OSError) as error:
            return OperationalError(str(error))  # as kombu does
        finally:
            connection.disconnect()
        return next(filter(None, answers), None)

    def pipeline(self, *args: Any, **kwargs: Any) -> CapturedPipeline:
        return CapturedPipeline(self, self._client.pipeline(*args, **kwargs))

    def lpush(self, key: Any, *messages: Any) -> int:
        self._commands.lpush(key, *messages)
        return self._collect()

    def publish(self, topic: Any, message: Any) -> int:
        self._commands.publish(topic, message)
        return self._collect()

    def _collect(self) -> int:
        self.commands += [list(command) for command, _ in self._commands.command_stack]
        self._commands.command_stack.clear()
        return 1

    @property
    def messages(self) -> str:
        """The captured commands in the format that ``claim.lua`` reads."""
        heads, texts = [], []
        for name, *args in self.commands:
            arguments = [text_of(arg) if isinstance(arg, bytes) else str(arg) for arg in args]
            heads.append(f"{name} {' '.join(str(len(key_of(text))) for text in arguments)};")
            texts += arguments
        return f"{''.join(heads)}\n{''.join(texts)}" if heads else ""


class NotSameServerError(Exception):
    """Raised if broker and schedule do not share a usable Redis server; contains the reason."""


class CommonServer:
    """Detects whether broker and schedule are on the same Redis server, and logs changes.

    Arguments:
        store: the schedule.
        delivery: the setting ``redbeat_delivery``, None if it is not set.
        clock: returns monotonic seconds.
    """

    def __init__(self, store: Store, delivery: str | None, clock: Callable[[], float]) -> None:
        self._store = store
        #: Whether ``redbeat_delivery`` requires exactly-once delivery.
        self.demanded = delivery == EXACTLY_ONCE
        self._allowed = delivery in (None, EXACTLY_ONCE)
        self._clock = clock
        self._channel: Any = None
        #: A connection to the broker that stays open.
        #: A closed connection means that the broker may have moved to another server.
        self._watched_connection: Any = None
        self._checked_at = 0.0
        self._logged_reason = ""
        self._was_common = False
        #: The last server where no script could send messages, the reason, and the time in
        #: monotonic seconds.
        self._failed_server: tuple[Broker | None, str, float] = (None, "", 0.0)
        #: The last server on which a script has sent a message, None if there is none.
        self._sends_on: Broker | None = None
        #: The common server of broker and schedule, None if there is none or if it is unknown.
        self.broker: Broker | None = None
        #: The names of tasks of which a message was sent before its record.
        self._bypassing_tasks: set[str] = set()
        #: Maps the key of an entry to the monotonic time until which scripts skip its queue.
        self._refused_until: RecentEntries[float] = RecentEntries()
        self._last_refused_until = 0.0
        #: Why exactly-once delivery has become impossible and no message is sent; else "".
        self.problem = ""

    def broker_of(self, producer: Any) -> Broker | None:
        """Return the broker's server if the schedule is on the same server, else None.

        Takes two round trips for a new channel, after a lost connection, and every
        :data:`CHECK_INTERVAL` seconds while the servers differ; else none. Raises
        :exc:`ConfigurationError` if exactly-once delivery is set, but has never been possible since
        this beat started.
        """
        channel = producer.channel
        if channel is self._channel and not self._may_have_changed():
            return self.broker
        self._channel = self.broker = None
        if self._allowed:
            self.broker = self._check(channel)
        self._channel, self._checked_at = channel, self._clock()
        return self.broker

    def _may_have_changed(self) -> bool:
        now = self._clock()
        if self.broker is None:
            return self._allowed and now - self._checked_at > CHECK_INTERVAL
        if now - self._checked_at <= OPEN_CHECK_INTERVAL:
            return False
        self._checked_at = now
        return not is_idle(self._watched_connection)

    def script_ran_elsewhere(self, broker: Broker | None) -> None:
        """Stop the use of ``broker``, because a script found that it runs on another server."""
        if broker == self.broker:
            self.refuse("scripts cannot use INFO to read the run_id of their server")

    def refuse(self, reason: str) -> None:
        """Store why a script cannot send messages; the next :meth:`broker_of` checks the server."""
        if self.broker is not None:  # an earlier refusal may have reset ``broker``
            self._failed_server = self.broker, reason, self._clock()
            self._channel = self.broker = self._sends_on = None

    def _check(self, channel: Any) -> Broker | None:
        try:
            broker = self._find_common_server(channel)
            failed_server, failure, since = self._failed_server
            # If exactly-once delivery is set, only scripts may send messages, so the beat tries
            # again sooner.
            pause = CHECK_INTERVAL if self.demanded else REFUSED_FOR
            if broker == failed_server and self._clock() - since <= pause:
                raise NotSameServerError(failure)
        except NotSameServerError as reason:
            self._report_apart(str(reason))
            return None
        if broker != failed_server:
            self._report_together()
        self.problem = ""
        self._was_common = True
        return broker

    def _report_together(self) -> None:
        if self._logged_reason:
            logger.warning("beat: Broker and schedule are on one Redis server again")
        self._logged_reason = ""

    def note_sent(self, key: str) -> None:
        """Store that a script has sent a message of the entry ``key``."""
        self._refused_until.forget(key)
        if self.broker is not None and self._sends_on != self.broker:
            self._sends_on, self._failed_server = self.broker, (None, "", 0.0)
            self._report_together()

    def _report_apart(self, reason: str) -> None:
        if self.demanded and not self._was_common:
            raise impossible(reason)
        if self.demanded:
            self.problem = (
                f"nothing is sent, because exactly once is not possible any more: {reason}"
            )
        if reason != self._logged_reason:
            self._logged_reason = reason
            if self.demanded:
                logger.error("beat: PROBLEM: %s", self.problem)
            elif self._was_common:
                logger.warning("beat: Runs are sent at least once from now on: %s", reason)
            else:
                logger.info("beat: Runs are sent at least once: %s", reason)

    def note_bypass(self, entry: RedBeatSchedulerEntry, why: str = BYPASSED) -> None:
        """Store the task of a message that was sent before its record; log one warning per task."""
        if (
            entry.task not in self._bypassing_tasks
            and len(self._bypassing_tasks) < MAX_BYPASSING_TASKS
        ):
            self._bypassing_tasks.add(entry.task)
            logger.warning(
                "beat: Runs of %s (%s) are sent at least once: %s", entry.name, entry.task, why
            )

    @property
    def sends_in_one_step(self) -> bool:
        """Whether a script can send the messages of all entries, as far as this beat knows."""
        return not self._bypassing_tasks and self._clock() >= self._last_refused_until

    def note_refused_queue(self, key: str, why: str) -> bool:
        """Store that scripts have no right to the queue of the entry ``key``.

        Returns True if the key is stored. Returns False if too many keys are stored. Before any
        script has sent a message on this server, the result is False, because the Redis user may
        lack access to all queues. The warning is logged once per entry, and is only repeated after
        a script has sent a message of the entry.
        """
        now = self._clock()
        known, until = self._refused_until.get(key) is not None, now + REFUSED_FOR
        if self._sends_on is None or not self._refused_until.keep(key, until, now):
            return False
        self._last_refused_until = until
        if not known:
            logger.warning("beat: Runs of %s are sent at least once: %s", key, why)
        return True

    def may_send(self, key: str) -> bool:
        """Return whether to let a script send the messages of the entry ``key``."""
        until = self._refused_until.get(key)
        return until is None or self._clock() >= until

    def _find_common_server(self, channel: Any) -> Broker:
        """Return the server that broker and schedule share, or raise :exc:`NotSameServerError`."""
        if not hasattr(channel, "conn_or_acquire"):
            raise NotSameServerError("messages do not go to Redis")
        client = self._store.client
        if is_cluster(client):
            raise NotSameServerError("the schedule is in a Redis Cluster")
        run_id, database = self._broker_identity(channel)
        schedule_run_id, schedule_database = _identity_of(client)
        if schedule_run_id != run_id:
            raise NotSameServerError("broker and schedule are on two Redis servers")
        return Broker(run_id, database, schedule_database)

    def _broker_identity(self, channel: Any) -> tuple[str, int]:
        """Return the ``run_id`` of the broker's Redis server, and the broker's database number.

        The connection to the broker stays open, so that :meth:`_may_have_changed` can check the
        connection.
        """
        self.close()
        with channel.conn_or_acquire() as client:
            pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise NotSameServerError("the broker is a Redis Cluster")
        self._watched_connection = connection = connection_like(pool)
        try:
            with _translating_errors("broker"):
                connection.connect()
                connection.send_command("INFO", "server")
                info = text_of(connection.read_response())
        except RedisError as error:  # as kombu does
            raise OperationalError(str(error)) from error
        run_id = re.search(r"^run_id:(\w+)", info, re.MULTILINE)
        return _checked_run_id("broker", run_id and run_id[1]), _database(pool)

    def close(self) -> None:
        """Close the watched connection to the broker."""
        if self._watched_connection is not None:
            self._watched_connection.disconnect()


def _identity_of(client: Any) -> tuple[str, int]:
    """Return the ``run_id`` of a client's server, and the database number. One round trip."""
    with _translating_errors("schedule"):
        run_id = client.info("server").get("run_id")
    pool = getattr(client, "connection_pool", None)
    return _checked_run_id("schedule", pool and run_id), _database(pool)


@contextmanager
def _translating_errors(role: str) -> Iterator[None]:
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError):
        raise
    except (RedisError, AttributeError) as error:
        problem = f"the Redis of the {role} does not report its run_id in INFO: {described(error)}"
        raise NotSameServerError(problem) from error


def _checked_run_id(role: str, run_id: Any) -> str:
    if not run_id:
        raise NotSameServerError(f"the Redis of the {role} does not report its run_id in INFO")
    return str(run_id)


def _database(pool: Any) -> int:
    return int(pool.connection_kwargs.get("db") or 0)
