"""Finds what entries name and nobody has: tasks, options of tasks, and queues without a reader."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Final

from celery import Celery, Task
from celery.app.amqp import AMQP
from kombu.exceptions import ChannelError
from kombu.messaging import Producer

from redbeat import Finding, RedBeatSchedulerEntry
from redbeat.connection.urls import BROKER_TIMEOUTS, safe_url
from redbeat.entries.definition import RESERVED
from redbeat.errors import described, reason_of
from redbeat.metrics.problems import finding
from redbeat.printing import encodable, plural

#: How the names of Celery's own tasks begin, which every app has.
BUILT_IN: Final = "celery."

#: What the functions in :func:`known_options` accept and an entry cannot set.
NOT_OPTIONS: Final = RESERVED | {*("self", "options", "properties", "message", "event_dispatcher")}

#: The AMQP properties of a message that ``Producer.publish`` passes on.
PROPERTIES: Final = frozenset(
    {
        *("app_id", "cluster_id", "correlation_id", "message_id", "reply_to", "timestamp"),
        *("type", "user_id"),
    }
)


def registered_tasks(app: Celery) -> set[str]:
    """Import the app's task modules, and return the names of its tasks.

    Celery's own tasks are left out. Raises whatever an import raises.
    """
    app.loader.import_default_modules()
    return {name for name in app.tasks if not name.startswith(BUILT_IN)}


def known_options(app: Celery, task: str) -> frozenset[str]:
    """Return the names of the options of ``apply_async``, as the task's class may extend it."""
    functions = [
        *(Task.apply_async, Celery.send_task, AMQP.as_task_v2, Producer.publish),
        app.amqp.send_task_message,
    ]
    if task in app.tasks:
        functions.append(app.tasks[task].apply_async)
    names = {name for function in functions for name in inspect.signature(function).parameters}
    return frozenset((names | PROPERTIES) - NOT_OPTIONS)


class NameChecker:
    """Finds tasks that are not registered, and unknown options.

    An app without tasks only sends tasks of other programs, so any task name is fine. The
    constructor imports the app's task modules, and raises whatever an import raises.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._tasks = frozenset(registered_tasks(app))
        self._options = lru_cache(256)(partial(known_options, app))

    def warnings(self, entry: RedBeatSchedulerEntry) -> Iterator[str]:
        task, options = str(entry.task), entry.options or {}
        if self._tasks and task not in self._app.tasks:
            similar = _closest(task, self._tasks)
            yield f"the task {task!r} is not registered in this app{similar}"
        known = self._options(task)
        for name in map(str, options):
            if name not in known and name not in (options.get("stamped_headers") or ()):
                yield f"{name!r} is not an option of apply_async{_closest(name, known)}"


class UsedNames:
    """Finds the unknown names of many entries."""

    def __init__(self, app: Celery) -> None:
        self._error = ""
        self._found = dict[str, list[str]]()
        try:
            self._checker = NameChecker(app)
        except Exception as error:  # the import of an app's modules can raise any error
            self._error = f"because the tasks cannot be loaded: {described(error)}"

    def note(self, entry: RedBeatSchedulerEntry) -> None:
        for warning in () if self._error else self._checker.warnings(entry):
            self._found.setdefault(warning, []).append(str(entry.name))

    def warnings(self) -> list[str]:
        """Return a warning for each unknown name, with the entries that use it."""
        if self._error:
            return [f"task names are not checked, {self._error}"]
        return [f"{who(names)}: {warning}" for warning, names in self._found.items()]


def who(names: Sequence[str]) -> str:
    first, *others = names
    more = plural(len(others), "other entry", "other entries")
    return f"{first} and {more}" if others else first


@lru_cache(256)
def _closest(name: str, known: frozenset[str]) -> str:
    similar = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


# -- queues ---------------------------------------------------------------------------------------

#: Seconds to wait for the answers of workers, and for the broker.
ANSWERS: Final = 1.0
PATIENCE: Final = 3.0

#: The attributes of a task that route its messages.
ROUTING: Final = ("queue", "exchange", "routing_key")


class UsedQueues:
    """Asks the broker and the workers whether somebody reads the queues of many entries."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._queues: dict[str, list[str]] = defaultdict(list)

    def note(self, entry: RedBeatSchedulerEntry) -> None:
        with suppress(Exception):  # routers are user code
            self._queues[_queue_of(self._app, entry)].append(str(entry.name))

    def problems(self) -> Iterator[Finding]:
        """Yield the queues that nobody reads. Takes some seconds."""
        try:
            yield from self._unread()
        except Exception as error:
            conf = self._app.conf
            where = f"the broker at {safe_url(conf.broker_write_url or conf.broker_url)}"
            yield finding("broker", f"{where} cannot be asked from here: {reason_of(error)}")

    def _unread(self) -> Iterator[Finding]:
        connect = self._app.connection_for_write
        # Other brokers cannot be asked.
        timeouts = BROKER_TIMEOUTS.get(connect().transport.driver_type, ())
        if not (self._queues and timeouts):
            return
        limits = dict.fromkeys(timeouts, PATIENCE)
        with connect(transport_options=limits, connect_timeout=PATIENCE) as connection:
            connection.connect()
            workers = self._app.control.inspect(timeout=ANSWERS, connection=connection)
            answers = workers.active_queues() or {}
            read = {queue["name"] for queues in answers.values() for queue in queues}
            for queue, names in self._queues.items():
                waiting, readers = _look(connection, queue)
                if readers or queue in read or not (read or waiting):
                    continue
                nobody = "no worker that answers" if read else "no worker answers that"
                many = f"; {plural(waiting, 'message waits', 'messages wait')} in it"
                problem = f"{who(names)}: {nobody} reads the queue {queue!r}"
                yield finding("queue", encodable(problem + many * bool(waiting)))


def _queue_of(app: Celery, entry: RedBeatSchedulerEntry) -> str:
    """Raise an error if the entry goes to an exchange instead of a queue."""
    task = app.tasks.get(str(entry.task))
    own = {name: value for name in ROUTING if (value := getattr(task, name, None))}
    options = {**own, **(entry.options or {})}
    words = (options, str(entry.task), entry.args or (), entry.kwargs or {})
    name: str = app.amqp.router.route(*words)["queue"].name
    return name


def _look(connection: Any, queue: str) -> tuple[int, int]:
    """Return how many messages wait in a queue, and how many readers RabbitMQ knows."""
    with suppress(ChannelError), connection.channel() as channel:
        _, messages, readers = channel.queue_declare(queue, passive=True)
        return messages, readers
    return 0, 0
