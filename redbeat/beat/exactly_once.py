"""Runs that leave in one step with their record: broker and schedule are one Redis server.

What a publish would ask of the broker is collected on kombu's channel, and goes along with the
record of the run: the script that records it sends the message, or neither happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery.utils.log import get_logger
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redbeat.connection.cluster import is_cluster
from redbeat.delivery import EXACTLY_ONCE
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, described
from redbeat.storage.records import Broker
from redbeat.storage.store import Store

__all__ = ("Capture", "CommonServer")

logger = get_logger("celery.beat")

#: What a publish asks of Redis: a message for a queue, one for who listens, how long a queue lives.
CAPTURED: Final = frozenset({"LPUSH", "PUBLISH", "EXPIRE", "PEXPIRE"})

#: Seconds after which it is looked again whether a broker elsewhere is on the schedule's server
#: now.
LOOK_AGAIN: Final = 30.0


#: Tasks of which it is remembered that they send themselves.
MOST_PASSED: Final = 1000


class Together:
    """A pipeline of kombu's own; what it holds is collected if that are messages."""

    def __init__(self, capture: Capture, pipeline: Any) -> None:
        self._capture = capture
        self._pipeline = pipeline

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pipeline.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Take what is to be sent, and leave the rest to the pipeline."""
        commands = [list(command) for command, _ in self._pipeline.command_stack]
        if any(command[0] not in CAPTURED for command in commands):
            return self._pipeline.execute(*args, **kwargs)
        self._capture.commands += commands
        self._pipeline.reset()
        return [1] * len(commands)


class Capture:
    """What one publish on a channel of kombu would ask of Redis; in its context nothing is sent.

    What is no message, such as a look at the bindings of an exchange, is done at once.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        #: The commands, each with its arguments.
        self.commands: list[list[Any]] = []
        with channel.conn_or_acquire() as client:
            self._client = client
        # Of kombu's own kind, which puts its prefix before the keys.
        self._pipeline = client.pipeline(transaction=False)

    def __enter__(self) -> Capture:
        self.commands = []
        self.channel.conn_or_acquire = self._acquire
        return self

    def __exit__(self, *exc_info: object) -> None:
        del self.channel.conn_or_acquire

    @contextmanager
    def _acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def pipeline(self, *args: Any, **kwargs: Any) -> Together:
        return Together(self, self._client.pipeline(*args, **kwargs))

    def lpush(self, key: Any, *messages: Any) -> int:
        self._pipeline.lpush(key, *messages)
        return self._collected()

    def publish(self, topic: Any, message: Any) -> int:
        self._pipeline.publish(topic, message)
        return self._collected()

    def _collected(self) -> int:
        self.commands += [list(command) for command, _ in self._pipeline.command_stack]
        self._pipeline.command_stack.clear()
        return 1

    @property
    def messages(self) -> str:
        """The commands as ``claim.lua`` takes them."""
        heads, texts = [], []
        for name, *args in self.commands:
            own = [text_of(arg) for arg in args]
            sizes = [len(text) if text.isascii() else len(encoded(text)) for text in own]
            heads.append(f"{name} {' '.join(map(str, sizes))};")
            texts += own
        return f"{''.join(heads)}\n{''.join(texts)}" if heads else ""


def encoded(text: str) -> bytes:
    """Return what :func:`text_of` made a text of."""
    return text.encode("utf-8", "surrogateescape")


def text_of(value: Any) -> str:
    """Return an argument of a command as text; bytes that are not UTF-8 become surrogates."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else str(value)


class NotCommonError(Exception):
    """Why broker and schedule are not on one server."""


class CommonServer:
    """Finds out whether broker and schedule are on one Redis server, and tells when that changes.

    Arguments:
        store: the schedule.
        asked_for: how runs are delivered by the settings, None where they do not say.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, asked_for: str | None, clock: Callable[[], float]) -> None:
        self._store = store
        self._demanded = asked_for == EXACTLY_ONCE
        self._wanted = asked_for in (None, EXACTLY_ONCE)
        self._clock = clock
        self._channel: Any = None
        self._looked_at = 0.0
        self._reason = ""
        self._found_once = False
        self._doubted: Broker | None = None
        #: The server, None where there is no common one or that is not known.
        self.broker: Broker | None = None
        #: The tasks that sent a message past what is collected.
        self.passed: set[str] = set()
        #: Why nothing is sent: exactly once was asked for, and is not possible any more; else "".
        self.problem = ""

    def of(self, producer: Any) -> Broker | None:
        """Return the server that a producer publishes to if the schedule is on it, else None.

        Two round trips for each new channel of kombu, and every :data:`LOOK_AGAIN` seconds while it
        is another server. Raises :exc:`ConfigurationError` where it must be the same and was not
        from the beginning.
        """
        channel = producer.channel
        again = not self.broker and self._clock() - self._looked_at > LOOK_AGAIN
        if channel is self._channel and not again:
            return self.broker
        self._channel, self._looked_at = channel, self._clock()
        self.broker = self._look(channel) if self._wanted else None
        return self.broker

    def elsewhere(self) -> None:
        """A script found that it does not run on the broker's server: look again."""
        self._doubted, self.broker, self._channel = self.broker, None, None

    def _look(self, channel: Any) -> Broker | None:
        try:
            broker = self._common(channel)
            if broker == self._doubted:
                raise NotCommonError("scripts cannot tell on which server they are, by INFO")
        except NotCommonError as reason:
            self._parted(str(reason))
            return None
        if self._reason:
            logger.warning("beat: Broker and schedule are on one Redis server again")
        self._reason = self.problem = ""
        self._found_once = True
        return broker

    def _parted(self, reason: str) -> None:
        if self._demanded and not self._found_once:
            raise ConfigurationError(
                f"redbeat_delivery is {EXACTLY_ONCE!r}, which is not possible: {reason}"
            )
        if self._demanded:
            self.problem = f"nothing is sent, exactly once is not possible any more: {reason}"
        if reason != self._reason:
            self._reason = reason
            if self._demanded:
                logger.error("beat: PROBLEM: %s", self.problem)
            elif self._found_once:
                logger.warning("beat: Runs are sent at least once from now on: %s", reason)
            else:
                logger.info("beat: Runs are sent at least once: %s", reason)

    def passed_by(self, entry: RedBeatSchedulerEntry) -> None:
        """Take note of a message that was sent, but not on our channel; said once for each task."""
        if entry.task not in self.passed and len(self.passed) < MOST_PASSED:
            self.passed.add(entry.task)
            logger.warning(
                "beat: Runs of %s (%s) are sent at least once: code of its own sends them",
                *(entry.name, entry.task),
            )

    def refuse(self, reason: str) -> None:
        """Take note that the schedule's user may not write to the broker's queues."""
        self.broker = None
        self._parted(reason)

    def _common(self, channel: Any) -> Broker:
        """Return the server of both; raises :exc:`NotCommonError` that says why there is none."""
        if not hasattr(channel, "conn_or_acquire"):
            raise NotCommonError("messages do not go to Redis")
        client = self._store.client
        if is_cluster(client):
            raise NotCommonError("the schedule is in a Redis Cluster")
        with channel.conn_or_acquire() as theirs:
            run_id, database = _place(theirs, "broker")
        own_run_id, own_database = _place(client, "schedule")
        if own_run_id != run_id:
            raise NotCommonError("broker and schedule are on two Redis servers")
        return Broker(run_id, database, own_database)


def _place(client: Any, whose: str) -> tuple[str, int]:
    """Return the run id of the server of a client, and its database. One round trip."""
    try:
        run_id = client.info("server").get("run_id")
    except (RedisConnectionError, RedisTimeoutError):
        raise
    except (RedisError, AttributeError) as error:
        problem = f"the Redis of the {whose} does not tell who it is, by INFO: {described(error)}"
        raise NotCommonError(problem) from error
    pool = getattr(client, "connection_pool", None)
    if not run_id or pool is None:
        raise NotCommonError(f"the Redis of the {whose} does not tell who it is, by INFO")
    return str(run_id), int(pool.connection_kwargs.get("db") or 0)
