"""Asks the broker and the workers whether somebody reads the queues that entries use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from celery import Celery
from kombu.exceptions import ChannelError

from redbeat.connection.urls import safe_url
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import reason_of
from redbeat.metrics.problems import Finding, finding
from redbeat.printing import encodable, plural

from .task_names import who

#: Seconds to wait for the answers of workers, and for the broker.
ANSWERS: Final = 1.0
PATIENCE: Final = 3.0

#: The brokers that can be asked, each with the options that limit how long.
LIMITS: Final = {
    "redis": {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE},
    "amqp": {"read_timeout": PATIENCE, "write_timeout": PATIENCE},
}

#: The attributes of a task that route its messages.
ROUTING: Final = ("queue", "exchange", "routing_key")


class UsedQueues:
    """Asks the broker and the workers whether the queues of many entries are read."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._queues: dict[str, list[str]] = defaultdict(list)

    def note(self, entry: RedBeatSchedulerEntry) -> None:
        """Note the queue of an entry. No round trip."""
        with suppress(Exception):  # routers are user code
            self._queues[_queue_of(self._app, entry)].append(str(entry.name))

    def problems(self) -> Iterator[Finding]:
        """Yield the queues that nobody reads, after some seconds."""
        try:
            yield from self._unread()
        except Exception as error:
            conf = self._app.conf
            where = f"the broker at {safe_url(conf.broker_write_url or conf.broker_url)}"
            yield finding("broker", f"{where} cannot be asked from here: {reason_of(error)}")

    def _unread(self) -> Iterator[Finding]:
        connect = self._app.connection_for_write
        limits = LIMITS.get(connect().transport.driver_type)
        if not self._queues or limits is None:
            return
        with connect(transport_options=limits, connect_timeout=PATIENCE) as connection:
            connection.connect()
            read = _read_queues(self._app, connection)
            for queue, names in self._queues.items():
                waiting, readers = _look(connection, queue)
                if readers or queue in read or not (read or waiting):
                    continue
                nobody = "no worker that answers" if read else "no worker answers that"
                many = f"; {plural(waiting, 'message waits', 'messages wait')} in it"
                problem = f"{who(names)}: {nobody} reads the queue {queue!r}"
                yield finding("queue", encodable(problem + many * bool(waiting)))


def _queue_of(app: Celery, entry: RedBeatSchedulerEntry) -> str:
    """Return the name of the queue of an entry; raise an error if it goes to an exchange."""
    task = app.tasks.get(str(entry.task))
    own = {name: value for name in ROUTING if (value := getattr(task, name, None))}
    options = {**own, **(entry.options or {})}
    words = (options, str(entry.task), entry.args or (), entry.kwargs or {})
    name: str = app.amqp.router.route(*words)["queue"].name
    return name


def _read_queues(app: Celery, connection: Any) -> set[str]:
    """Return the queues that workers read who answer in time."""
    found = app.control.inspect(timeout=ANSWERS, connection=connection).active_queues()
    return {queue["name"] for queues in (found or {}).values() for queue in queues}


def _look(connection: Any, queue: str) -> tuple[int, int]:
    """Return how many messages wait in a queue, and how many readers RabbitMQ knows."""
    with suppress(ChannelError), connection.channel() as channel:
        _, messages, readers = channel.queue_declare(queue, passive=True)
        return messages, readers
    return 0, 0
