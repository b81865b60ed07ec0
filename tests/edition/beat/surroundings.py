"""Sees what has a say in messages: settings, signals, routers, overridden functions, the broker.

Only a message in which Celery, kombu and RedBeat alone have a say can be rendered. Whatever else
may change a message, or wants to know of it, is a reason for Celery to make the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from os import sep
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import celery
import celery.app.amqp
import kombu
import kombu.messaging
from celery import signals
from celery.app.routes import MapRoute
from celery.backends.rpc import RPCBackend
from celery.utils.nodenames import anon_nodename
from kombu.entity import Exchange, Queue
from kombu.serialization import registry
from kombu.transport import redis as transport
from kombu.utils import json as kombu_json

import redbeat

#: Celery's settings are read again when one was set, and after this number of seconds.
SETTINGS_LAST: Final = 1.0

#: Where code lives that may have a say in a rendered message.
HOMES: Final = tuple(
    f"{Path(str(file)).parent}{sep}"
    for file in (celery.__file__, kombu.__file__, redbeat.__file__, __file__)
)

#: The functions that have a say in a message.
OF_SCHEDULER: Final = ("apply_async", "_apply", "_publish", "send_task", "send_if_due", "maybe_due")
OF_APP: Final = ("send_task", "producer_or_acquire")
OF_AMQP: Final = ("create_task_message", "as_task_v2", "send_task_message")
OF_ROUTER: Final = ("route", "expand_destination", "lookup_route", "query_router")
OF_PRODUCER: Final = ("publish", "_publish", "_prepare", "_delivery_details", "maybe_declare")
OF_CHANNEL: Final = (
    *("prepare_message", "basic_publish", "_inplace_augment_message", "encode_body", "_put"),
    *("_next_delivery_tag", "_get_message_priority", "_q_for_pri", "priority"),
)
OF_TASK: Final = ("apply_async", "shadow_name", "_get_exec_options")

#: What publishing reads besides functions.
CHANNEL_OPTIONS: Final = ("body_encoding", "global_keyprefix", "priority_steps", "sep")
TASK_OPTIONS: Final = (
    *("__header__", "_dump_pydantic_arguments", "typing"),
    *("ignore_result", "time_limit", "soft_time_limit"),
)
SETTINGS: Final = (
    *("task_always_eager", "task_protocol", "task_send_sent_event", "task_serializer"),
    *("task_compression", "task_default_queue", "task_default_exchange", "task_ignore_result"),
    *("task_default_exchange_type", "task_default_routing_key", "task_default_delivery_mode"),
    *("task_create_missing_queues", "task_queue_max_priority", "task_repr_maxlevels"),
    *("enable_utc", "timezone"),
)

#: The options whose effect on a message is the same each time. Options for stamps have any name.
OPTIONS: Final = frozenset(
    (
        *("queue", "routing_key", "exchange", "exchange_type", "priority", "delivery_mode"),
        *("serializer", "compression", "shadow", "ignore_result", "time_limit", "soft_time_limit"),
        *("retry", "retry_policy", "timeout", "confirm_timeout", "link", "link_error", "chain"),
        *("chord", "group_id", "group_index", "reply_to", "retries", "parent_id", "add_to_parent"),
        *("mandatory", "immediate"),
    )
)
TIMES: Final = ("eta", "countdown", "expires")

#: Values of these types are encoded in the same way each time.
SCALARS: Final = frozenset((str, int, float, bool, type(None)))

#: Values of these types too, unless the program has changed kombu's JSON.
RICH: Final = frozenset((datetime, date, time, Decimal, UUID, bytes))

#: Values with more levels are left to Celery.
DEEPEST: Final = 100


class Seen(NamedTuple):
    """What Celery reads when it publishes a task with some options, at one moment."""

    task: Any
    of_task: tuple[Any, ...]
    #: The options with the execution options of the task.
    merged: dict[str, Any]
    #: The first route with the name of the task.
    route: Any
    queues: tuple[Any, ...]
    of_queue: tuple[Any, ...]
    #: What the result backend does when the task is sent, None if nothing.
    on_call: Any


class Surroundings:
    """What has a say in every message that one beat sends through a producer.

    ``why`` is the reason why no message is rendered, else "". ``plain_json`` is whether kombu's
    JSON knows only kombu's own types.
    """

    def __init__(self, app: Any, conf: Any, scheduler: Any, clock: Callable[[], float]) -> None:
        self._app, self._conf, self._scheduler, self._clock = app, conf, scheduler, clock
        self.why = "no turn has begun"
        self.plain_json = True
        self.producer: Any = None
        self.channel: Any = None
        self.tasks: Any = {}
        self.settings: dict[str, Any] = {}
        self._default: dict[str, Any] = {}
        self._changes: dict[str, Any] | None = None
        self._settings_read_at = 0.0
        self._seen: tuple[Any, ...] | None = None

    def look(self, read_settings: bool = False) -> bool:
        """Look around; return whether anything has changed since the last time."""
        before = self._seen
        try:
            self.channel, self.tasks = self.producer.channel, self._app.tasks
            self._read_settings(read_settings)
            self._seen = tuple(self._see())
            if self._seen == before:
                return False
            self.plain_json = _is_plain_json()
            self.why = next(filter(None, self._reasons()), "")
        except Exception as error:
            self._seen, self.why = None, f"what Celery would do is not known: {error!r}"
        return True

    def _read_settings(self, now: bool) -> None:
        """Read the settings if one was set: reading all takes longer than the rest of a turn."""
        changes, time_now = _changes_of(self._app.conf), self._clock()
        stale = time_now - self._settings_read_at > SETTINGS_LAST
        if now or stale or changes is None or changes != self._changes:
            self._changes, self._settings_read_at = dict(changes or {}), time_now
            self.settings = {name: self._app.conf.get(name) for name in SETTINGS}
            self._default = {"queue": self.settings["task_default_queue"]}

    def _see(self) -> Iterator[Any]:
        app, amqp, channel = self._app, self._app.amqp, self.channel
        yield self.settings
        yield self._is_on
        yield [bool(signal.receivers) for signal in _signals()]
        yield app.current_worker_task is None
        yield app.thread_oid
        yield anon_nodename()
        yield tuple(amqp.router.routes or ())
        yield amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize
        yield getattr(getattr(self.producer, "own_keys", None), "shared", None)
        yield type(channel)
        yield [str(getattr(channel, name, None)) for name in CHANNEL_OPTIONS]
        yield tuple(kombu_json._encoders.items())  # noqa: SLF001
        yield [function for _, _, function in self._functions()]  # also whose methods they are

    @property
    def _is_on(self) -> bool:
        return bool(getattr(self._conf, "render_messages", True))

    def _functions(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (owner, name, function) for the functions that have a say in every message."""
        app, amqp = self._app, self._app.amqp
        for owner, names in (
            (self._scheduler, OF_SCHEDULER),
            (app, OF_APP),
            (amqp, OF_AMQP),
            (amqp.router, OF_ROUTER),
            (self.producer, OF_PRODUCER),
            *((kind, OF_PRODUCER) for kind in type(self.producer).__mro__),  # each calls the next
            (self.channel, OF_CHANNEL),
            (app.AsyncResult, ("__init__",)),
            (MapRoute, ("__init__", "__call__")),
            (celery.app.amqp, ("saferepr", "anon_nodename")),
            (kombu.messaging, ("dumps",)),
            (transport, ("dumps",)),
            (registry._encoders.get("json"), ("encoder",)),  # noqa: SLF001
            (kombu_json.JSONEncoder, ("default",)),
        ):
            for name in names:
                function = getattr(owner, name, None)
                if function is not None:
                    yield owner, name, function

    def _reasons(self) -> Iterator[str]:
        """Yield why no message is rendered."""
        kind = type(self.channel)
        if not self._is_on:
            yield "redbeat_render_messages is False"
        if kind not in (transport.Channel, transport.SentinelChannel):
            yield f"the broker's channel is {_name_of(kind)}, not kombu's channel for Redis"
        if self._app.current_worker_task is not None:
            yield "the beat runs inside a task"
        yield from self._setting_reasons()
        yield from (f"a function is connected to {it.name}" for it in _signals() if it.receivers)
        routers = [one for one in self._app.amqp.router.routes or () if type(one) is not MapRoute]
        yield from (f"task_routes has the router {router!r:.60}" for router in routers)
        yield from (foreign_code(*function) for function in self._functions())

    def _setting_reasons(self) -> Iterator[str]:
        for name in ("task_always_eager", "task_send_sent_event"):
            if self.settings[name]:
                yield f"{name} is set"
        if self.settings["task_protocol"] != 2:
            yield "task_protocol is not 2"

    # -- one task with its options ---------------------------------------------------------------

    def route(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a task with its queue; raises an error if it has none."""
        task = self.tasks.get(name)
        merged = options if task is None else {**task._get_exec_options(), **options}  # noqa: SLF001
        amqp = self._app.amqp
        routed: dict[str, Any] = amqp.router.route(dict(merged), name, (), {}, task)
        if not routed.get("exchange"):
            routed.setdefault("queue", amqp.default_queue)
        return routed

    def see(self, name: str, options: dict[str, Any], queue: Any) -> Seen:
        """Return what Celery reads for a task; ``queue`` is the one to which it goes.

        This is done in each turn: a full :meth:`route` takes longer.
        """
        task, amqp = self.tasks.get(name), self._app.amqp
        of_task: tuple[Any, ...] = ()
        merged, ignored = options, options.get("ignore_result")
        if task is not None:
            of_task = tuple([getattr(task, each, None) for each in (*OF_TASK, *TASK_OPTIONS)])
            merged = {**task._get_exec_options(), **options}  # noqa: SLF001
            ignored = options.get("ignore_result", task.ignore_result)
        routes = amqp.router.routes
        route = next(filter(None, (route(name) for route in routes)), None) if routes else None
        names = [it.get("queue") for it in (merged, route or {}, self._default)]
        queues = amqp.queues
        found = [queues.aliases.get(it) or queues.get(it) for it in names if isinstance(it, str)]
        exchange, expires = queue.exchange, getattr(self.channel, "_expires", None) or ()
        of_queue = (
            *(queue.name, queue.can_cache_declaration, queue.name in expires),
            *(exchange.name, exchange.type, exchange.delivery_mode),
        )
        on_call = None if ignored else self._app.backend.on_task_call
        return Seen(task, of_task, merged, route, tuple(map(id, found)), of_queue, on_call)

    def why_not(self, seen: Seen, options: Mapping[str, Any], routed: Mapping[str, Any]) -> str:
        """Return why the messages of a task with some options are not rendered, else ""."""
        plain = (*map(id, options.values()), id(routed["queue"]))
        reasons = (
            *self._task_reasons(seen.task, seen.on_call),
            *self._queue_reasons(seen, routed),
            *self._option_reasons({**seen.merged, **routed}, plain),
        )
        return next(filter(None, reasons), "")

    def _task_reasons(self, task: Any, on_call: Any) -> Iterator[str]:
        yield from (foreign_code(task, name, getattr(task, name, None)) for name in OF_TASK)
        dump = getattr(task, "_dump_pydantic_arguments", None)
        yield foreign_code(task, "_dump_pydantic_arguments", getattr(dump, "func", dump))
        header = getattr(task, "__header__", None)
        if header is not None and not hasattr(getattr(header, "func", header), "_source"):
            yield "the task checks its arguments in its own way"
        if on_call is not None:
            yield foreign_code(on_call.__self__, "on_task_call", on_call)
            if isinstance(on_call.__self__, RPCBackend):
                yield "the result backend declares a queue for the result"

    def _queue_reasons(self, seen: Seen, routed: Mapping[str, Any]) -> Iterator[str]:
        queue = routed["queue"]
        if type(queue) is not Queue or type(queue.exchange) is not Exchange:
            yield f"its queue is a {_name_of(type(queue))}"
        kind = routed.get("exchange_type") or queue.exchange.type
        if kind != "direct" or (routed.get("exchange") and routed.get("routing_key")):
            yield "it goes through an exchange with a name"
        _, can_cache, expires, *_ = seen.of_queue
        if not can_cache or expires or queue.expires:
            yield "its queue expires or is deleted when unused"

    def _option_reasons(self, options: Mapping[str, Any], plain: Sequence[int]) -> Iterator[str]:
        for name, value in options.items():
            if name in TIMES:
                if value is not None:
                    yield f"its option {name} is a time"
            elif name not in OPTIONS:
                yield f"its option {name} may change"
            elif type(value) not in SCALARS and id(value) not in plain:
                yield f"its option {name} is not a plain value"
        serializer = options.get("serializer") or self.settings["task_serializer"]
        if serializer != "json":
            yield f"its serializer is {serializer}"
        if options.get("compression") or self.settings["task_compression"]:
            yield "it is compressed"

    def other_type(self, value: Any) -> str:
        """Return the first type in a value that may be encoded in other ways, else ""."""
        known = SCALARS | RICH if self.plain_json else SCALARS
        level, depth = [value], 0
        while level:
            inner: list[Any] = []
            for one in level:
                kind = type(one)
                if kind in known:
                    continue
                if kind is dict and {*map(type, one)} <= {str}:
                    inner.extend(one.values())
                elif kind in (list, tuple):
                    inner.extend(one)
                else:
                    return _name_of(kind)
            if depth > DEEPEST:
                return "something that is nested too deeply"
            level, depth = inner, depth + 1
        return ""


def _changes_of(conf: Any) -> dict[str, Any] | None:
    """Return the dict to which assignments to Celery's settings go, None if it is not known.

    The settings of an app are a view of a dict, or of other settings.
    """
    for _ in range(4):
        if conf is None or type(conf) is dict:
            return conf
        inner = getattr(conf, "changes", None)
        conf = getattr(conf, "data", None) if inner is None else inner
    return None


def _signals() -> tuple[Any, ...]:
    return signals.before_task_publish, signals.after_task_publish, signals.task_sent


def foreign_code(owner: Any, name: str, function: Any) -> str:
    """Return "" if the code of a function is Celery's, kombu's or RedBeat's, else whose it is.

    A function that wraps another one is foreign, wherever it comes from.
    """
    if function is None:
        return ""
    code = getattr(function, "__code__", None)
    wraps = hasattr(function, "__wrapped__")
    if code is not None and not wraps and code.co_filename.startswith(HOMES):
        return ""
    kind = owner if hasattr(owner, "__name__") else type(owner)
    return f"{name}() of {_name_of(kind)} is code of {getattr(function, '__module__', None)}"


def _name_of(kind: Any) -> str:
    module = getattr(kind, "__module__", "builtins")
    return str(kind.__name__) if module == "builtins" else f"{module}.{kind.__name__}"


def _is_plain_json() -> bool:
    """Return whether kombu's JSON encodes only kombu's own types, in kombu's own way."""
    encoders = [(kind, encode) for kind, (_, encode) in kombu_json._encoders.items()]  # noqa: SLF001
    return all(
        kind in RICH
        and (encode in (datetime.isoformat, str) or not foreign_code(kind, "encoder", encode))
        for kind, encode in encoders
    )
