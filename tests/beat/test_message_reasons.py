"""Celery makes a message if anything else has a say in it: each reason alone, and changes of it."""

# ruff: noqa: SLF001 - the tests look at private attributes of Celery, kombu and Messages

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.app.routes import Router
from celery.app.task import Task
from celery.backends.base import DisabledBackend
from celery.beat import BeatLazyFunc
from kombu import common, entity, serialization
from kombu.messaging import Producer
from kombu.transport import redis as transport
from kombu.utils import json as kombu_json

from redbeat.beat.message import Messages
from redbeat.beat.surroundings import foreign_code
from redbeat.config import TaskAllowlist
from tests.beat.message_bench import CONF, SENDS_TEXT, Bench, rule_of

RULE = rule_of()

Broadcast: Any = common.Broadcast
Exchange: Any = entity.Exchange
Queue: Any = entity.Queue


@pytest.fixture
def bench(app: Celery, redis_url: str) -> Iterator[Bench]:
    app.conf.broker_url = redis_url

    @app.task(name="tasks.a", shared=False)
    def task(*args: Any, **kwargs: Any) -> None: ...

    bench = Bench(app, SimpleNamespace(**vars(CONF)))
    bench.learn(RULE)
    assert bench.renders(RULE)
    yield bench
    bench.connection.close()


def refuses(bench: Bench, rule: Any = RULE) -> str:
    """Check that Celery makes the messages of a rule from now on; return why."""
    for _ in range(4):
        assert not bench.renders(rule)
    assert not bench.differs
    why = bench.why_not(rule)
    assert why
    return why


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as libraries for monitoring do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


# -- code ------------------------------------------------------------------------------------------

CODE: list[tuple[Any, str]] = [
    (Celery, "send_task"),
    (Celery, "producer_or_acquire"),
    (Task, "apply_async"),
    (Task, "shadow_name"),
    (Task, "_get_exec_options"),
    (AMQP, "as_task_v2"),
    (Router, "route"),
    (Producer, "publish"),
    (Producer, "_publish"),
    (Producer, "_prepare"),
    (Producer, "_delivery_details"),
    (DisabledBackend, "on_task_call"),
    (transport.Channel, "_put"),
    (transport.Channel, "basic_publish"),
    (transport.Channel, "prepare_message"),
]


def test_a_wrapped_function(bench: Bench) -> None:
    for owner, name in CODE:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
            assert refuses(bench).startswith(f"{name}() of ")
        bench.learn(RULE)
        assert bench.renders(RULE), name


def test_what_changes_messages_in_another_way_is_found_by_comparing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = itertools.cycle("ab")
    monkeypatch.setattr(transport.Channel, "_q_for_pri", lambda *_: next(queues))
    rule = rule_of("b", "tasks.b")
    bench.learn(rule)
    assert bench.differs
    assert not bench.renders(rule)


@pytest.mark.parametrize("name", ["send_task", "producer_or_acquire"])
def test_a_function_on_the_object(bench: Bench, name: str) -> None:
    setattr(bench.app, name, wrapped(getattr(bench.app, name)))
    assert f"{name}() of celery.app.base.Celery is code of celery.app.base" in refuses(bench)


def test_a_method_of_the_task(bench: Bench) -> None:
    class Own(bench.app.Task):  # type: ignore[name-defined]
        name = "tasks.own"

        def run(self, *args: Any, **kwargs: Any) -> None: ...

        def shadow_name(self, *args: Any) -> str:
            return f"shadow {args[0]}"

    bench.app.register_task(Own())
    assert "shadow_name() of" in refuses(bench, rule_of("own", "tasks.own"))
    assert bench.renders(RULE)


def test_a_subclass_of_the_producer(bench: Bench) -> None:
    class Own(bench.app.amqp.Producer):  # type: ignore[name-defined]
        def publish(self, *args: Any, **kwargs: Any) -> Any:
            return super().publish(*args, **kwargs)

    bench.producer = Own(bench.connection, auto_declare=False)
    assert "publish() of" in refuses(bench)


def test_a_subclass_of_the_channel(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = type("Own", (transport.Channel,), {})
    monkeypatch.setattr(bench.producer.channel, "__class__", channel)
    assert "channel is" in refuses(bench)
    monkeypatch.setattr(bench.producer.channel, "__class__", transport.SentinelChannel)
    bench.learn(RULE)
    assert bench.renders(RULE)


#: What a library of C code puts in the place of a function looks like the function.
PROXY = SimpleNamespace(__code__=Celery.send_task.__code__, __wrapped__=Celery.send_task)


@pytest.mark.parametrize(
    ("function", "foreign"),
    [
        (PROXY, True),
        (Celery.send_task, False),
        (wrapped(Celery.send_task), True),
        (functools.partial(Celery.send_task), True),
        (lambda: None, True),
        (len, True),
        (None, False),
    ],
)
def test_whose_code(function: Any, foreign: bool) -> None:
    assert bool(foreign_code(Celery, "send_task", function)) is foreign


# -- the rest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["before_task_publish", "after_task_publish", "task_sent"])
def test_a_signal_is_connected(bench: Bench, name: str) -> None:
    calls = []
    signal = getattr(signals, name)

    def receiver(**_: Any) -> None:
        calls.append(1)

    signal.connect(receiver)
    try:
        assert refuses(bench) == f"a function is connected to {signal.name}"
        assert len(calls) == 4
    finally:
        signal.disconnect(receiver)
    bench.learn(RULE)
    assert bench.renders(RULE)


def route(name: str, *_: Any, **__: Any) -> dict[str, Any]:
    return {"queue": f"q-{name}"}


class Route:
    def route_for_task(self, *_: Any) -> dict[str, Any]:
        return {"queue": "q"}


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a function as router": ({"task_routes": route}, "task_routes has the router <function"),
    "a class as router": ({"task_routes": [Route()]}, "task_routes has the router <"),
    "a router by name": (
        {"task_routes": [{"x": "y"}, f"{__name__}.route"]},
        "task_routes has the router <",
    ),
    "events": ({"task_send_sent_event": True}, "task_send_sent_event is set"),
    "topic": (
        {"task_queues": [Queue("celery", Exchange("t", type="topic"), "t.#")]},
        "it goes through an exchange with a name",
    ),
    "fanout": ({"task_default_exchange_type": "fanout"}, "it goes through an exchange"),
    "broadcast": ({"task_queues": [Broadcast("celery")]}, "its queue is a kombu.common.Broadcast"),
    "a queue that expires": ({"task_queues": [Queue("celery", expires=60)]}, "its queue expires"),
    "a queue that is deleted": (
        {"task_queues": [Queue("celery", auto_delete=True)]},
        "its queue expires or is deleted",
    ),
    "a route with a header": (
        {"task_routes": {"tasks.*": {"queue": "q", "headers": {}}}},
        "its option headers is not a plain value",
    ),
    "a route with a nested value": (
        {"task_routes": {"*": {"queue": "q", "retry_policy": {"max_retries": 1}}}},
        "its option retry_policy is not a plain value",
    ),
    "a route to an exchange": (
        {"task_routes": {"*": {"exchange": "e", "routing_key": "r"}}},
        "what Celery would do is not known",
    ),
    "off": ({"redbeat_render_messages": False}, "redbeat_render_messages is False"),
    "rpc": ({"result_backend": "rpc://"}, "the result backend declares a queue"),
}


@pytest.mark.filterwarnings("ignore:You are running the worker with superuser")
@pytest.mark.parametrize("name", SETTINGS)
def test_settings(app: Celery, redis_url: str, name: str) -> None:
    changes, why = SETTINGS[name]
    app.conf.broker_url = redis_url
    app.conf.update(changes)
    bench = Bench(app)
    bench.begin()
    assert bench.why_not(rule_of("b", "tasks.b")).startswith(why)
    bench.connection.close()


OTHER_FORM = "its messages do not have the usual form"


@pytest.mark.parametrize(
    "settings", [{"task_protocol": 1}, {"task_serializer": "pickle"}, {"task_compression": "gzip"}]
)
def test_settings_that_give_messages_another_form(
    app: Celery, redis_url: str, settings: dict[str, Any]
) -> None:
    app.conf.update(broker_url=redis_url, **settings)
    bench = Bench(app)
    assert refuses(bench) == OTHER_FORM
    bench.connection.close()


def test_a_broker_in_memory(app: Celery) -> None:
    connection = app.connection_for_write()
    messages = Messages(app, CONF)
    assert messages.why_not(RULE) == "no turn has begun"
    messages.begin(app.amqp.Producer(connection, auto_declare=False))
    assert messages.why_not(RULE).startswith("the broker's channel is kombu.transport.memory")
    connection.close()


def test_a_broker_that_is_away(app: Celery, closed_port: int) -> None:
    app.conf.broker_url = f"redis://127.0.0.1:{closed_port}"
    app.conf.broker_transport_options = {"socket_connect_timeout": 1, "max_retries": 0}
    connection = app.connection_for_write()
    messages = Messages(app, CONF)
    messages.begin(app.amqp.Producer(connection, auto_declare=False))
    assert messages.why_not(RULE).startswith("what Celery would do is not known")
    assert messages.render(RULE, {}, "id") is None
    messages.learn(RULE, {}, "id", [["sent"]])
    connection.close()


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "countdown": ({"countdown": 5}, "its option countdown is a time"),
    "expires": ({"expires": 60}, "its option expires is a time"),
    "an expiry date": (
        {"expires": datetime(2050, 1, 1, tzinfo=timezone.utc)},
        "its option expires is a time",
    ),
    "eta": ({"eta": datetime(2050, 1, 1, tzinfo=timezone.utc)}, "its option eta is a time"),
    "exchange": ({"exchange": "e", "routing_key": "r"}, "it goes through an exchange with a name"),
    "exchange type": ({"exchange_type": "topic"}, "it goes through an exchange with a name"),
    "header of Celery": ({"headers": {"lang": "x"}}, "its options replace the header lang"),
    "header of ids": ({"headers": [["root_id", "x"]]}, "its options replace the header root_id"),
    "no headers": ({"headers": 5}, "Celery refuses its arguments"),
    "object": ({"priority": object()}, "it contains a value of the type object"),
}


def test_options(bench: Bench) -> None:
    for options, why in OPTIONS.values():
        for task in ("tasks.a", "tasks.unknown"):
            rule = rule_of("other", task, options=options)
            assert bench.why_not(rule).startswith(why)
    assert bench.renders(RULE)


@pytest.mark.parametrize(
    "options",
    [
        *({"correlation_id": "mine"}, {"root_id": "mine"}, {"argsrepr": "(...)"}),
        *({"serializer": "yaml"}, {"serializer": "pickle"}, {"compression": "bzip2"}),
    ],
)
def test_options_that_give_messages_another_form(bench: Bench, options: Any) -> None:
    rule = rule_of("other", options=options)
    bench.learn(rule)
    assert refuses(bench, rule) == OTHER_FORM


TASK_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "expires": ({"expires": 60}, "its option expires is a time"),
    "serializer": ({"serializer": "pickle"}, OTHER_FORM),
    "compression": ({"compression": "gzip"}, OTHER_FORM),
}


@pytest.mark.parametrize("name", TASK_OPTIONS)
def test_options_of_the_task(bench: Bench, name: str) -> None:
    options, why = TASK_OPTIONS[name]

    @bench.app.task(name="tasks.own", shared=False, **options)
    def task(*args: Any, **kwargs: Any) -> None: ...

    assert refuses(bench, rule_of("own", "tasks.own")).startswith(why)


def test_inside_a_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery makes the task that runs the parent of the message."""
    request = SimpleNamespace(id="p", root_id="r", delivery_info={"priority": 1})
    parent = SimpleNamespace(request=request, add_trail=lambda _: None)
    monkeypatch.setattr(Celery, "current_worker_task", parent)
    assert refuses(bench) == OTHER_FORM


def test_lazy_arguments(bench: Bench) -> None:
    count = iter(range(10))
    for rule in (
        rule_of("b", args=[BeatLazyFunc(lambda: next(count))]),
        rule_of("c", kwargs={"x": {"y": BeatLazyFunc(lambda: next(count))}}),
    ):
        assert refuses(bench, rule) == "it contains a value of the type celery.beat.BeatLazyFunc"
    assert next(count) == 8


def test_wrong_arguments_are_refused_as_celery_does(bench: Bench) -> None:
    @bench.app.task(name="tasks.own", shared=False, bind=True)
    def task(self: Any, x: int, y: int = 0) -> None: ...

    right, wrong = (
        rule_of(name, "tasks.own", args=args, kwargs={})
        for name, args in {"right": [1], "wrong": [1, 2, 3]}.items()
    )
    bench.learn(right)
    assert bench.renders(right)
    assert bench.why_not(wrong).startswith("Celery refuses its arguments: task() takes")
    with pytest.raises(TypeError, match="takes from 2 to 3 positional"):
        bench.push(wrong)
    assert bench.renders(right)


def test_arguments_are_not_checked_for_a_task_without_typing(bench: Bench) -> None:
    @bench.app.task(name="tasks.own", shared=False, typing=False)
    def task(x: int) -> None: ...

    rule = rule_of("wrong", "tasks.own", args=[1, 2, 3])
    bench.learn(rule)
    rendered, celerys = bench.both(rule)
    assert rendered == celerys


def test_an_own_dump_of_arguments_is_found_by_comparing(bench: Bench) -> None:
    @bench.app.task(name="tasks.own", shared=False)
    def task(*args: Any, **kwargs: Any) -> None: ...

    task._dump_pydantic_arguments = lambda _args, _kwargs: (["dumped"], {})
    rule = rule_of("own", "tasks.own")
    bench.learn(rule)
    assert refuses(bench, rule) == OTHER_FORM


def test_pydantic(bench: Bench) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):  # type: ignore[name-defined]
        x: int = 5

    def task(model: Model, y: int = 2) -> None: ...

    task.__annotations__ = {"model": Model, "y": int}
    bench.app.task(name="tasks.own", shared=False, pydantic=True)(task)
    rule = rule_of("own", "tasks.own", args=[{"x": 1}], kwargs={"y": 3})
    bench.learn(rule)
    rendered, celerys = bench.both(rule)
    assert rendered == celerys
    model = rule_of("model", "tasks.own", args=[Model()], kwargs={"y": 3})
    assert "a value of the type" in bench.why_not(model)


def test_the_allowlist(bench: Bench) -> None:
    bench.conf.task_allowlist = TaskAllowlist(("tasks.a",))
    bench.learn(RULE)
    assert bench.renders(RULE)
    link = rule_of("b", options={"link": {"task": "tasks.b", "args": []}})
    assert "'tasks.b' matches no pattern" in bench.why_not(link)
    header = rule_of("c", options={"headers": {"x": {"task": "tasks.c"}}})
    assert "'tasks.c' matches no pattern" in bench.why_not(header)


def test_a_queue_that_expires_since_another_declared_it(bench: Bench) -> None:
    bench.producer.channel._expires = {"celery": 1000}
    bench.begin()
    assert bench.why_not(RULE) == "its queue expires or is deleted when unused"


def test_a_json_encoder_of_the_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    codecs = dict(serialization.registry._encoders)
    codecs["json"] = codecs["json"]._replace(encoder=wrapped(kombu_json.dumps))
    monkeypatch.setattr(serialization.registry, "_encoders", codecs)
    assert "encoder() of kombu.serialization.codec" in refuses(bench)


# -- changes while a beat runs ---------------------------------------------------------------------


@contextmanager
def changed(bench: Bench, rule: Any = RULE) -> Iterator[None]:
    """Check that what is done in the context brings new templates, which are proved again."""
    bench.learn(rule)
    assert bench.renders(rule)
    yield
    assert [bench.renders(rule) for _ in range(3)] == [False, False, True]
    rendered, celerys = bench.both(rule)
    assert rendered == celerys
    assert not bench.differs


def set_task(bench: Bench, **options: Any) -> None:
    """Set options of the task."""
    vars(bench.app.tasks["tasks.a"]).update(options)


def open_another_connection(bench: Bench) -> None:
    """Replace the connection: the first message on a channel declares its queue."""
    bench.producer.channel.close()
    bench.connection.close()
    bench.producer.revive(bench.connection)


def replace_producer(bench: Bench) -> None:
    bench.producer = type(bench.producer)(bench.connection, auto_declare=False)


def replace_queue(bench: Bench) -> None:
    exchange = Exchange("", type="direct", delivery_mode=1)
    bench.app.amqp.queues.add(Queue("celery", exchange, "celery"))


CHANGES: dict[str, Callable[[Bench], object]] = {
    "a route": lambda bench: bench.app.conf.update(task_routes={"tasks.a": {"queue": "routed"}}),
    "the queue": lambda bench: setattr(bench.app.conf, "task_default_queue", "other"),
    "a setting": lambda bench: setattr(bench.app.conf, "task_repr_maxlevels", 1),
    "behind the scenes": lambda bench: bench.app.conf.maps[-1].update(task_repr_maxlevels=1),
    "ignore_result": lambda bench: set_task(bench, ignore_result=True),
    "typing": lambda bench: set_task(bench, typing=False),
    "time_limit": lambda bench: set_task(bench, time_limit=5),
    "soft_time_limit": lambda bench: set_task(bench, soft_time_limit=5),
    "execution options": lambda bench: set_task(bench, queue="own", _exec_options=None),
    "a queue": replace_queue,
    "a queue in place": lambda bench: vars(bench.app.amqp.queues["celery"].exchange).update(
        delivery_mode=1
    ),
    "the connection": open_another_connection,
    "the producer": replace_producer,
    "the steps of priorities": lambda bench: setattr(
        bench.producer.channel, "priority_steps", [0, 5]
    ),
    "the separator": lambda bench: setattr(bench.producer.channel, "sep", "|"),
    "the length of args": lambda bench: setattr(bench.app.amqp, "argsrepr_maxsize", 10),
    "the length of kwargs": lambda bench: setattr(bench.app.amqp, "kwargsrepr_maxsize", 10),
    "the thread": lambda bench: setattr(bench.app._local, "oid", "another"),
}
if SENDS_TEXT:
    CHANGES["the encoding"] = lambda bench: setattr(
        bench.producer.channel, "body_encoding", "utf-8"
    )


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_while_a_beat_runs_counts(bench: Bench, what: str) -> None:
    rule = rule_of("b", args=["x" * 50], kwargs={"y": "x" * 50}, options={"priority": 7})
    with changed(bench, rule):
        CHANGES[what](bench)


def test_a_route_is_changed_in_place(bench: Bench) -> None:
    bench.app.conf.update(task_routes={"tasks.*": {"queue": "routed"}})
    with changed(bench):
        bench.app.conf.task_routes["tasks.*"]["priority"] = 3
    assert bench.push(RULE)[0][1] == "routed\x06\x163"


@pytest.mark.parametrize("kind", ["a module", "a class", "a dict", "twice"])
def test_a_setting_is_set_over_a_configuration(redis_url: str, kind: str) -> None:
    """Celery keeps the settings in other places then; most apps have a module."""
    values = {"broker_url": redis_url, "task_default_queue": "first"}
    sources = {
        "a module": SimpleNamespace(**values),
        "a class": type("Settings", (), values),
        "a dict": values,
        "twice": {},
    }
    app = Celery("configured", set_as_current=False)
    app.config_from_object(sources[kind])
    if kind == "twice":
        app.conf.update(values)
        app.add_defaults({"task_default_queue": "other"})
    bench = Bench(app)
    with changed(bench):
        app.conf.task_default_queue = "second"
    app.close()


def test_a_task_is_registered(bench: Bench) -> None:
    rule = rule_of("b", "tasks.b")
    with changed(bench, rule):

        @bench.app.task(name="tasks.b", shared=False, time_limit=5)
        def task(*args: Any, **kwargs: Any) -> None: ...


def test_a_queue_that_is_refused_from_now_on(bench: Bench) -> None:
    """The beat may find out later that the broker is the server of the schedule."""

    class Keys:
        shared = False

        def check_message(self, *_: Any) -> None:
            if self.shared:
                raise ValueError("celery is a key of the schedule")

    keys = bench.producer.own_keys = Keys()
    bench.learn(RULE)
    assert bench.renders(RULE)
    keys.shared = True
    bench.begin()
    with pytest.raises(ValueError, match="is a key of the schedule"):
        bench.push(RULE)


def test_a_router_is_added_in_place(bench: Bench) -> None:
    bench.app.conf.update(task_routes=[{"tasks.x": "x"}])
    bench.learn(RULE)
    assert bench.renders(RULE)
    bench.app.amqp.router.routes.append(route)
    assert refuses(bench).startswith("task_routes has the router <function route")


def test_a_process_that_was_forked_has_its_own_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed(bench):
        monkeypatch.setattr("celery.utils.nodenames.os.getpid", lambda: 77)
    assert '"origin": "gen77@' in bench.push(RULE)[0][2]


def test_a_setting_is_changed_behind_the_scenes_during_a_turn(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin()
    bench.push(RULE)
    bench.app.conf.maps[-1]["task_default_queue"] = "other"
    bench.chance = 0.0
    assert bench.push(RULE)[0][1] == "other"
    assert not bench.differs
    assert caplog.messages == []


def test_a_change_during_a_turn_is_no_mismatch(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin()
    bench.push(RULE)
    bench.app.conf.task_default_queue = "other"
    bench.chance = 0.0
    assert bench.push(RULE)[0][1] == "other"
    bench.chance = 0.5
    assert [bench.renders(RULE) for _ in range(3)] == [False, False, True]
    assert not bench.differs
    assert caplog.messages == []
