"""Warnings about entries that are valid but probably misspelt: unknown tasks and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Final

from celery import Celery, Task
from celery.app.amqp import AMQP
from kombu.messaging import Producer

from redbeat.entries.definition import RESERVED
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import described
from redbeat.printing import plural

#: Prefix of the names of Celery's own tasks, which every app has.
BUILT_IN: Final = "celery."

#: Parameters of the functions in :func:`known_options` that an entry cannot set.
NOT_OPTIONS: Final = RESERVED | {*("self", "options", "properties", "message", "event_dispatcher")}

#: The AMQP properties of a message that ``Producer.publish`` passes on.
PROPERTIES: Final = frozenset(
    {
        *("app_id", "cluster_id", "correlation_id", "message_id", "reply_to", "timestamp"),
        *("type", "user_id"),
    }
)


def registered_tasks(app: Celery) -> set[str]:
    """Import the task modules of the app, and return the names of the registered tasks.

    Raises any error that an import raises. The result does not contain the tasks of Celery itself.
    """
    app.loader.import_default_modules()
    return {name for name in app.tasks if not name.startswith(BUILT_IN)}


def known_options(app: Celery, task: str) -> frozenset[str]:
    """Return the names of the options of ``apply_async``.

    If the class of the task overrides ``apply_async``, the result includes the parameters of the
    overriding method.
    """
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

    If an app registers no tasks, it only sends tasks of other programs, so all task names are
    accepted. The constructor imports the task modules of the app, and raises any error that an
    import raises.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._tasks = frozenset(registered_tasks(app))
        self._options = lru_cache(256)(partial(known_options, app))

    def warnings(self, entry: RedBeatSchedulerEntry) -> Iterator[str]:
        """Yield a warning if the task is unknown, and one for each unknown option."""
        task, options = str(entry.task), entry.options or {}
        if self._tasks and task not in self._app.tasks:
            similar = _closest(task, self._tasks)
            yield f"the task {task!r} is not registered in this app{similar}"
        known = self._options(task)
        for name in map(str, options):
            if name not in known and name not in (options.get("stamped_headers") or ()):
                yield f"{name!r} is not an option of apply_async{_closest(name, known)}"


class UsedNames:
    """Finds the unknown names of many entries; ``error`` is why it cannot, "" if it can."""

    def __init__(self, app: Celery) -> None:
        self.error = ""
        self._found = dict[str, list[str]]()
        try:
            self._checker = NameChecker(app)
        except Exception as error:  # the import of an app's modules can raise any error
            self.error = described(error)

    def note(self, entry: RedBeatSchedulerEntry) -> None:
        """Note the unknown names of an entry."""
        for warning in () if self.error else self._checker.warnings(entry):
            self._found.setdefault(warning, []).append(str(entry.name))

    def warnings(self) -> list[str]:
        """Return a warning for each unknown name, with the entries that have it."""
        return [f"{who(names)}: {warning}" for warning, names in self._found.items()]


def who(names: Sequence[str]) -> str:
    """Return the first of some entries, and how many others there are."""
    first, *others = names
    more = plural(len(others), "other entry", "other entries")
    return f"{first} and {more}" if others else first


@lru_cache(256)
def _closest(name: str, known: frozenset[str]) -> str:
    similar = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""
