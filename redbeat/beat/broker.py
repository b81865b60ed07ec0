"""Opens the broker connection of a beat, classifies broker errors, and checks task messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from traceback import walk_tb
from typing import Any, Final

from celery import Celery
from kombu.exceptions import ChannelError, OperationalError
from redis.exceptions import DataError, NoPermissionError, RedisError, ResponseError

from redbeat.calendar.zones import time_from
from redbeat.config import RedBeatConfig, TaskAllowlist, tasks_in
from redbeat.connection.urls import BROKER_TIMEOUTS, safe_url, url_scheme
from redbeat.errors import ConfigurationError, NoQueueError, NotAllowedError, cause_of
from redbeat.printing import get_logger
from redbeat.settings import EXACTLY_ONCE
from redbeat.storage.keys import OwnKeys

logger = get_logger("celery.beat")

#: How long one of at most two attempts to publish may take, as a fraction of the patience.
ATTEMPT_PART = 1 / 6

#: The shortest timeout of an attempt to publish, in seconds.
SHORTEST_PUBLISH = 1.0

#: Celery's default of ``broker_connection_timeout``, in seconds. While it connects, the AMQP
#: transport uses no other timeout.
CELERYS_CONNECT_TIMEOUT = 4


NO_QUEUE: Final = (
    "no queue is bound to the exchange %r with the routing key %r: start a worker that reads the "
    "queue, add the queue to task_queues, or correct the route"
)


#: Scheme of ``redbeat_redis_url`` -> how Celery writes such a broker.
CELERYS_NOTATION = {
    "unix": "use redis+socket:// as broker_url",
    "redis-sentinel": "write sentinel://:PASSWORD@HOST:26379/DATABASE for each Sentinel, separated "
    "by ';', and the name of the master as 'master_name' in broker_transport_options",
}


def broker_connection(app: Celery, **options: Any) -> Any:
    """A lazy connection to an app's broker. No network traffic.

    Raises :exc:`ConfigurationError` if Celery doesn't know the scheme of ``broker_url``.
    """
    try:
        return app.connection_for_write(**options)
    except KeyError:
        url = str(app.conf.broker_write_url)
        fix = CELERYS_NOTATION.get(url_scheme(url), "correct its scheme, and set redbeat_redis_url")
        raise ConfigurationError(
            f"broker_url is {safe_url(url)!r}, which Celery does not know: {fix}"
        ) from None


def publishing_connection(app: Celery, patience: float) -> Any:
    """A lazy broker connection on which each call has a short timeout. No network traffic.

    ``patience`` is the number of seconds for a publish with all its attempts. A user's timeouts in
    ``broker_transport_options`` win, and so does a ``broker_connection_timeout`` other than
    Celery's default.
    """
    seconds = max(patience * ATTEMPT_PART, SHORTEST_PUBLISH)
    user_options = app.conf.broker_transport_options or {}
    connection = broker_connection(app)
    names = BROKER_TIMEOUTS.get(connection.transport.driver_type, ())
    bounds = {name: seconds for name in names if user_options.get(name) is None}
    connect: float = app.conf.broker_connection_timeout
    if connect == CELERYS_CONNECT_TIMEOUT:
        connect = min(connect, seconds)
    return broker_connection(app, transport_options=bounds, connect_timeout=connect)


@cache
def checked_producer(producer: Any, allowlist: TaskAllowlist | None = None) -> Any:
    """A subclass of ``producer`` that is a :class:`CheckedProducer`.

    A ``producer`` that isn't a class comes back unchanged.
    """
    if not isinstance(producer, type):
        return producer
    return type(CheckedProducer.__name__, (CheckedProducer, producer), {"allowlist": allowlist})


class CheckedProducer:
    """The part of a kombu producer that checks each message before it is sent.

    It sees the final message, after all options were merged and all user code was called. For a
    task that is not in ``redbeat_task_allowlist`` it raises :exc:`NotAllowedError`, and for a queue
    or exchange with the name of a key of the schedule :exc:`InvalidEntryError`.

    If no queue is bound to a task's exchange and routing key, it declares queues again, and raises
    :exc:`NoQueueError` if that doesn't help. Kombu keeps bindings in Redis, believes that they are
    still there, and would drop the message.

    If this host's clock differs from Redis's, it moves the times that Celery computed by it.
    """

    #: How many seconds this host's clock is ahead of Redis's.
    host_ahead = 0.0
    #: The times in the next message that are computed by this host's clock.
    times_by_host: Collection[str] = ()
    #: The tasks that may be sent, None for all.
    allowlist: TaskAllowlist | None = None
    #: The keys that no queue may be named after, None for no check.
    own_keys: OwnKeys | None = None
    #: The app whose queues are declared again, None for only those of the message.
    app: Celery | None = None
    channel: Any

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        if self.allowlist is not None:
            _check_message(self.allowlist, body, args, options)
        if self.own_keys is not None:
            self.own_keys.check_message(args, options)
        fields = body if isinstance(body, dict) else options.get("headers") or {}
        if self.times_by_host:
            fields.update(_moved(fields, self.times_by_host, -self.host_ahead))
        publish = super().publish  # type: ignore[misc]
        needs_queue = options.get("exchange") and "task" in fields  # events may have no listener
        if not needs_queue or not hasattr(self.channel, "_lookup"):
            return publish(body, *args, **options)
        self._declare_exchange(self.channel, options["exchange"])
        with self._finding_queues(self.channel, options.get("declare") or ()):
            return publish(body, *args, **options)

    def _declare_exchange(self, channel: Any, exchange: Any) -> None:
        """Kombu takes an exchange for a direct one until this process has declared it.

        Celery doesn't declare that of a Broadcast, or of a message without a queue.
        """
        name = getattr(exchange, "name", exchange)
        if name not in channel.state.exchanges:
            for _queue, one in self._bound_to(name):
                self.maybe_declare(one)

    @contextmanager
    def _finding_queues(self, channel: Any, entities: Iterable[Any]) -> Iterator[None]:
        """Let kombu's virtual channel find a queue for each message, or raise an error."""
        lookup = channel._lookup

        def found(exchange: str, routing_key: str, default: str | None = None) -> Any:
            queues = lookup(exchange, routing_key, default)
            if not queues and exchange:
                self._declare_again(channel, exchange, entities)
                queues = lookup(exchange, routing_key, default)
                if not queues:
                    raise NoQueueError(NO_QUEUE % (exchange, routing_key))
            return queues

        channel._lookup = found
        try:
            yield
        finally:
            del channel._lookup

    def _declare_again(self, channel: Any, exchange: str, entities: Iterable[Any]) -> None:
        for binding in [one for one in channel.state.bindings if one.exchange == exchange]:
            channel.state.binding_delete(*binding)
        channel.connection.client.declared_entities.clear()
        queues = (queue for queue, _exchange in self._bound_to(exchange))
        for entity in (*entities, *queues):
            self.maybe_declare(entity)

    def _bound_to(self, exchange: str) -> list[tuple[Any, Any]]:
        """(queue, exchange) for the app's queues that are bound to an exchange.

        A queue has one exchange, or one for each of several bindings.
        """
        queues = self.app.amqp.queues.values() if self.app is not None else ()
        found = [(queue, queue.exchange) for queue in queues]
        found += [(queue, one.exchange) for queue in queues for one in queue.bindings or ()]
        return [pair for pair in found if getattr(pair[1], "name", "") == exchange]

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare an exchange or a queue, unless this connection has done so.

        Kombu copies each queue and prepares a retry before it looks whether it is declared.
        """
        connection = self.channel.connection
        known = connection and entity and entity.can_cache_declaration
        if known and hash(entity) in connection.client.declared_entities:
            return False
        return super().maybe_declare(entity, retry, **retry_policy)  # type: ignore[misc]


def _moved(fields: Mapping[str, Any], names: Iterable[str], seconds: float) -> dict[str, str]:
    times = {name: time_from(fields[name]) for name in names if fields.get(name)}
    return {name: (at + timedelta(seconds=seconds)).isoformat() for name, at in times.items()}


def _check_message(
    allowlist: TaskAllowlist, body: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Raise :exc:`NotAllowedError` if a message makes a worker run a task that isn't allowed.

    A message's body has arguments, keyword arguments and callbacks. In version 1 of Celery's
    protocol it is a dict that also has the task name.
    """
    first_version = isinstance(body, dict)
    callbacks = body[2:] if isinstance(body, tuple) else ()
    embedded = {**body, "args": None, "kwargs": None} if first_version else callbacks
    headers = options.get("headers") or {}
    names = [*tasks_in(embedded), *tasks_in(headers), *tasks_in(args)]
    refused = next((name for name in names if not allowlist.allows(name)), None)
    if refused is not None:
        raise NotAllowedError("message", allowlist.problem(refused))


#: How the names of the modules begin that talk to a Redis broker.
BROKER_MODULES: Final = ("kombu.", "redbeat.beat.pipes")


def means_no_broker(error: BaseException, connection: Any = None) -> bool:
    """Whether an error from sending a run means that the broker is unavailable.

    True for a broker error, unless it's about one message only (:func:`is_about_one_message`), and
    false for an error of user code. The builtin ``ConnectionError`` and ``TimeoutError`` count as
    broker errors, because user code that publishes messages itself may raise them. ``connection``
    knows the error classes of its transport.
    """
    cause = cause_of(error)
    if is_about_one_message(cause):
        return False
    if isinstance(cause, RedisError):
        return _comes_from_broker_client(cause)
    known = () if connection is None else connection.connection_errors
    # Not builtin classes such as OSError and KeyError: user code raises them, too.
    own = tuple(kind for kind in known if kind.__module__ != "builtins")
    return isinstance(cause, (OperationalError, ConnectionError, TimeoutError, *own))


def is_about_one_message(error: BaseException) -> bool:
    """Whether ``error`` is only about one entry's message or queue; others can be sent.

    For example: a queue's key is not a list, the Redis ACL forbids access to a queue, redis-py
    can't encode an argument, kombu doesn't know a compression, RabbitMQ closed a channel.
    """
    cause = error.__cause__ or error
    if isinstance(cause, NoPermissionError):
        # "No permissions to access a key" is about one queue, "no permissions to run the command"
        # about all messages.
        return "access" in str(cause)
    wrong_type = isinstance(cause, ResponseError) and "WRONGTYPE" in str(cause)
    # Kombu wraps a KeyError in an OperationalError, for example for an unknown compression.
    return wrong_type or isinstance(cause, (ChannelError, DataError, KeyError))


def is_refusal(error: BaseException) -> bool:
    """Whether the broker refused a message for a queue; another queue may have accepted it."""
    return isinstance(error.__cause__ or error, (ResponseError, ChannelError))


def _comes_from_broker_client(error: BaseException) -> bool:
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return not names or any(name.startswith(BROKER_MODULES) for name in names)


def broker_address(app: Celery) -> str:
    """The broker's URL without the password."""
    return safe_url(app.conf.broker_write_url or app.conf.broker_url)


def warn_about_confirms(app: Celery) -> None:
    """Warn if RabbitMQ doesn't confirm messages: they may get lost. No network traffic."""
    if broker_connection(app).transport.driver_type != "amqp":
        return
    if not (app.conf.broker_transport_options or {}).get("confirm_publish"):
        logger.warning(
            "beat: RabbitMQ does not confirm messages, so a run may be lost when the connection "
            "breaks. Set broker_transport_options = {'confirm_publish': True}"
        )


def check_possible(app: Celery, conf: RedBeatConfig) -> None:
    """Raise :exc:`ConfigurationError` if exactly once is set, but not possible.

    Only looks at the settings. No network traffic.
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
    return ConfigurationError(
        f"redbeat_delivery is {EXACTLY_ONCE!r}, which is not possible: {reason}"
    )
