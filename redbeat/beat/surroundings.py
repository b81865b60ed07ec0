"""Sees what has a say in messages: settings, signals, routers, overridden functions, the broker.

Also whose code a function is: ours (Celery and kombu count as that), that of a library that wraps
it, or the user's.

Only a message in which Celery, kombu and RedBeat alone have a say can be rendered. Whatever else
may change a message, or wants to know of it, is a reason for Celery to make it. What gives all
messages of a task another form, such as a serializer, needs no reason: no template is learned then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import sep
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import celery
import kombu
from celery import signals
from celery.app.routes import MapRoute
from celery.backends.rpc import RPCBackend
from celery.utils.nodenames import anon_nodename
from kombu.entity import Exchange, Queue
from kombu.serialization import registry

import redbeat
from redbeat.config import ensure_conf
from redbeat.entries.definition import SCALARS
from redbeat.errors import described

OURS, LIBRARY, USER = "ours", "library", "user"

HOMES: Final = tuple(
    f"{Path(str(file)).parent}{sep}"
    for file in (celery.__file__, kombu.__file__, redbeat.__file__, __file__)
)

INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

#: Where properties, methods and partial functions hold their function.
HOLDS: Final = ("fget", "__func__", "func")

MOST_WRAPPERS: Final = 20

#: The channels whose messages are rendered. They are compared by name: only users of a Redis broker
#: have the packages that their module needs.
CHANNELS: Final = ("kombu.transport.redis.Channel", "kombu.transport.redis.SentinelChannel")

#: The functions that libraries and programs wrap or replace to see or change messages; more in
#: :meth:`Surroundings._functions`. Anything else that changes a message is found when a rendered
#: one is compared with Celery's.
OF_PRODUCER: Final = ("publish", "_publish", "_prepare", "_delivery_details", "maybe_declare")
OF_TASK: Final = ("apply_async", "shadow_name", "_get_exec_options")

CHANNEL_OPTIONS: Final = ("body_encoding", "global_keyprefix", "priority_steps", "sep")
TASK_OPTIONS: Final = (
    *("__header__", "_dump_pydantic_arguments", "typing"),
    *("ignore_result", "time_limit", "soft_time_limit"),
)
SETTINGS: Final = (
    *("task_compression", "task_protocol", "task_repr_maxlevels"),
    *("task_send_sent_event", "task_serializer"),
)

#: The options whose effect on a message differs each time.
TIMES: Final = ("eta", "countdown", "expires")


def whose(value: Any) -> str:
    """Whose code a function, method or property is.

    A library's, if all code that isn't ours lives in installed packages (Sentry, OpenTelemetry), or
    if code that looks like ours wraps a function.
    """
    files = [file for file in _files_of(value) if not file.startswith(HOMES)]
    if not files:
        function = getattr(value, "__func__", value)
        wraps = hasattr(function, "__wrapped__") or isinstance(function, functools.partial)
        return LIBRARY if wraps else OURS
    installed = all(INSTALLED.intersection(PurePath(file).parts) for file in files)
    return LIBRARY if installed else USER


def _files_of(value: Any) -> Iterator[str]:
    """The source files of a function, the outermost wrapper's first, "" if unknown.

    A ``functools.wraps`` wrapper has the name and module of what it wraps, so only its code object
    says where it comes from.
    """
    for _ in range(MOST_WRAPPERS):
        if value is None:
            return
        if hasattr(type(value), "_self_wrapper"):  # wrapt, and its copies in other packages
            yield from _files_of(getattr(value, "_self_wrapper", None))
            value = value.__wrapped__
            continue
        held = next((name for name in HOLDS if hasattr(value, name)), "")
        if held:
            value = getattr(value, held)
            continue
        code = getattr(value, "__code__", None)
        yield _file_of_class(type(value)) if code is None else code.co_filename
        value = getattr(value, "__dict__", {}).get("__wrapped__")
    yield ""


def _file_of_class(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def judge(owner: Any, name: str) -> str:
    """Whose code the method ``name`` of a class or an object is.

    What a subclass overrides is the user's, wherever it lives. What stands in a class of ours is
    ours, unless somebody replaced it.
    """
    if not isinstance(owner, type):
        if name in vars(owner):
            return whose(vars(owner)[name])
        owner = type(owner)
    base = next((one for one in owner.__mro__ if _is_ours(one)), None)
    for cls in owner.__mro__:
        if name in vars(cls):
            value = vars(cls)[name]
            if _is_ours(cls):
                return whose(value)
            return OURS if value is getattr(base, name, None) else USER
    return OURS


def _is_ours(cls: type) -> bool:
    return _file_of_class(cls).startswith(HOMES)


def overridden(owner: Any, names: Iterable[str]) -> str:
    """The first method that is the user's, as ``Class.method``, or ""."""
    cls = owner if isinstance(owner, type) else type(owner)
    for name in names:
        if judge(owner, name) == USER:
            holder = next((one for one in cls.__mro__ if name in vars(one)), cls)
            return f"{holder.__name__}.{name}"
    return ""


class Seen(NamedTuple):
    """What Celery reads when it publishes a task with some options, at one moment.

    ``options`` has the task's execution options, and its queue. ``on_call`` is what the result
    backend does when the task is sent, None if nothing.
    """

    task: Any
    of_task: tuple[Any, ...]
    options: dict[str, Any]
    of_queue: tuple[Any, ...]
    on_call: Any


class Surroundings:
    """What has a say in every message that one beat sends through a producer.

    ``why`` is the reason why no message is rendered, else "".
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.why = "no turn has begun"
        self.producer: Any = None
        self.channel: Any = None
        self.tasks: Any = {}
        self.settings: dict[str, Any] = {}
        self._seen: tuple[Any, ...] | None = None

    def look(self) -> bool:
        """Whether anything has changed since the last look."""
        before = self._seen
        try:
            self.channel, self.tasks = self.producer.channel, self._app.tasks
            self.settings = {name: self._app.conf.get(name) for name in SETTINGS}
            self._seen = tuple(self._see())
            if self._seen == before:
                return False
            self.why = next(filter(None, self._reasons()), "")
        except Exception as error:
            self._seen, self.why = None, f"what Celery would do is not known: {described(error)}"
        return True

    def _see(self) -> Iterator[Any]:
        app, amqp, channel = self._app, self._app.amqp, self.channel
        yield self.settings
        yield [bool(signal.receivers) for signal in _signals()]
        yield app.current_worker_task is None
        yield app.thread_oid
        yield anon_nodename()
        yield tuple(amqp.router.routes or ())
        yield amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize
        yield getattr(getattr(self.producer, "own_keys", None), "shared", None)
        yield type(channel)
        yield [str(getattr(channel, name, None)) for name in CHANNEL_OPTIONS]
        yield [function for _, _, function in self._functions()]  # also whose methods they are

    def _functions(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, function) for the functions that have a say in every message."""
        app, amqp = self._app, self._app.amqp
        for owner, names in (
            (app, ("send_task", "producer_or_acquire")),
            (amqp, ("create_task_message", "as_task_v2", "send_task_message")),
            (amqp.router, ("route",)),
            (self.producer, OF_PRODUCER),
            *((kind, OF_PRODUCER) for kind in type(self.producer).__mro__),  # each calls the next
            (self.channel, ("prepare_message", "basic_publish", "_put")),
            (registry._encoders.get("json"), ("encoder",)),
        ):
            for name in names:
                function = getattr(owner, name, None)
                if function is not None:
                    yield owner, name, function

    def _reasons(self) -> Iterator[str]:
        if not ensure_conf(self._app).render_messages:
            yield "redbeat_render_messages is False"
        kind = type(self.channel)
        if name_of(kind) not in CHANNELS:
            yield f"the broker's channel is {name_of(kind)}, not kombu's channel for Redis"
        if self.settings["task_send_sent_event"]:
            yield "task_send_sent_event is set"
        yield from (f"a function is connected to {it.name}" for it in _signals() if it.receivers)
        routers = [one for one in self._app.amqp.router.routes or () if type(one) is not MapRoute]
        yield from (f"task_routes has the router {router!r:.60}" for router in routers)
        yield from (foreign_code(*function) for function in self._functions())

    # -- one task with its options ---------------------------------------------------------------

    def see(self, name: str, options: dict[str, Any]) -> Seen:
        """What Celery reads for a task. Raises an error if the task has no queue."""
        task, amqp = self.tasks.get(name), self._app.amqp
        of_task: tuple[Any, ...] = ()
        merged, ignored = options, options.get("ignore_result")
        if task is not None:
            of_task = tuple([getattr(task, each, None) for each in (*OF_TASK, *TASK_OPTIONS)])
            merged = {**task._get_exec_options(), **options}
            ignored = options.get("ignore_result", task.ignore_result)
        routed = amqp.router.route(dict(merged), name, (), {}, task)
        if not routed.get("exchange"):
            routed.setdefault("queue", amqp.default_queue)
        queue = routed["queue"]
        expires = queue.expires or queue.name in (getattr(self.channel, "_expires", None) or ())
        of_queue = (
            *(id(queue), queue.name, queue.can_cache_declaration, bool(expires)),
            *(queue.exchange.name, queue.exchange.type, queue.exchange.delivery_mode),
        )
        on_call = None if ignored else self._app.backend.on_task_call
        return Seen(task, of_task, {**merged, **routed}, of_queue, on_call)

    def why_not(self, seen: Seen, options: Mapping[str, Any]) -> str:
        """Why the messages of a task with some options aren't rendered, else ""."""
        plain = (*map(id, options.values()), id(seen.options["queue"]))
        reasons = (
            *self._task_reasons(seen.task, seen.on_call),
            *self._queue_reasons(seen),
            *self._option_reasons(seen.options, plain),
        )
        return next(filter(None, reasons), "")

    def _task_reasons(self, task: Any, on_call: Any) -> Iterator[str]:
        yield from (foreign_code(task, name, getattr(task, name, None)) for name in OF_TASK)
        if on_call is not None:
            yield foreign_code(on_call.__self__, "on_task_call", on_call)
            if isinstance(on_call.__self__, RPCBackend):
                yield "the result backend declares a queue for the result"

    def _queue_reasons(self, seen: Seen) -> Iterator[str]:
        options, queue = seen.options, seen.options["queue"]
        if type(queue) is not Queue or type(queue.exchange) is not Exchange:
            yield f"its queue is a {name_of(type(queue))}"
        kind = options.get("exchange_type") or queue.exchange.type
        if kind != "direct" or (options.get("exchange") and options.get("routing_key")):
            yield "it goes through an exchange with a name"
        _, _, can_cache, expires, *_ = seen.of_queue
        if not can_cache or expires:
            yield "its queue expires or is deleted when unused"

    def _option_reasons(self, options: Mapping[str, Any], plain: Sequence[int]) -> Iterator[str]:
        for name, value in options.items():
            if name in TIMES:
                if value is not None:
                    yield f"its option {name} is a time"
            elif type(value) not in SCALARS and id(value) not in plain:
                yield f"its option {name} is not a plain value"


def _signals() -> tuple[Any, ...]:
    return signals.before_task_publish, signals.after_task_publish, signals.task_sent


def foreign_code(owner: Any, name: str, function: Any) -> str:
    """Whose code a function is, "" if it's Celery's, kombu's or RedBeat's."""
    if function is None or whose(function) == OURS:
        return ""
    kind = owner if hasattr(owner, "__name__") else type(owner)
    return f"{name}() of {name_of(kind)} is code of {getattr(function, '__module__', None)}"


def name_of(kind: Any) -> str:
    module = getattr(kind, "__module__", "builtins")
    return str(kind.__name__) if module == "builtins" else f"{module}.{kind.__name__}"
