"""Rendered messages are the same as those that Celery makes, byte for byte."""

# ruff: noqa: SLF001 - the tests look at private attributes of Celery, kombu and Messages

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import entity
from kombu.utils import json as kombu_json

from redbeat.beat import message as module
from tests.beat.message_bench import AT, SENDS_TEXT, Bench, rule_of

Exchange: Any = entity.Exchange
Queue: Any = entity.Queue


@pytest.fixture
def bench(app: Celery, redis_url: str) -> Iterator[Bench]:
    app.conf.broker_url = redis_url
    bench = Bench(app)
    yield bench
    bench.connection.close()


SIGNATURE: dict[str, Any] = {
    "task": "tasks.b",
    "args": [1],
    "kwargs": {},
    "options": {"queue": "q"},
}
SIGNATURE |= {"subtask_type": None, "immutable": False}

#: Options of entries. Each one alone, and with the others, is rendered.
OPTIONS: dict[str, dict[str, Any] | None] = {
    "none": {},
    "None": None,
    "queue": {"queue": "other"},
    "queue with a prefix": {"queue": "{tenant}:ö"},
    "routing key": {"routing_key": "rk"},
    "priority": {"priority": 7},
    "priority as text": {"priority": "3"},
    "delivery mode": {"delivery_mode": "transient"},
    "header": {"headers": {"x": 1, "ü": ["ö", None, {"y": 0.5}]}},
    "headers of the beat": {"headers": {"scheduled_at": "never", "celery_beat_task": 0}},
    "pairs as headers": {"headers": [["x", 1], ["y", 2]]},
    "task id": {"task_id": "fixed"},
    "link": {"link": SIGNATURE, "link_error": [SIGNATURE, SIGNATURE]},
    "chord": {"chord": {**SIGNATURE, "options": {"task_id": "c"}}, "group_id": "g"},
    "shadow": {"shadow": "as another"},
    "no result": {"ignore_result": True},
    "limits": {"time_limit": 30, "soft_time_limit": 20.5},
    "no limit": {"expires": None, "countdown": None, "eta": None},
    "retry": {"retry": False, "retry_policy": {"max_retries": 0}, "timeout": 3},
    "reply to": {"reply_to": "me"},
    "json": {"serializer": "json", "compression": None},
    "stamps": {"stamped_headers": ["s"], "s": 1},
    "parent": {"parent_id": "p", "retries": 2, "group_index": 3},
}


def nothing(app: Celery) -> None:
    """The app does not know the task."""


def a_task(app: Celery) -> None:
    @app.task(name="tasks.a", shared=False)
    def task(*args: Any, **kwargs: Any) -> None: ...


def a_bound_task(app: Celery) -> None:
    options = {"time_limit": 9, "ignore_result": True, "serializer": "json", "rate_limit": "1/m"}

    @app.task(name="tasks.a", bind=True, shared=False, **options)
    def task(self: Any, *args: Any, **kwargs: Any) -> None: ...


def a_class(app: Celery) -> None:
    class Own(app.Task):
        name = "tasks.a"
        soft_time_limit = 2

        def run(self, *args: Any, **kwargs: Any) -> None: ...

        def on_failure(self, *args: Any, **kwargs: Any) -> None: ...

    app.register_task(Own())


TASKS = [nothing, a_task, a_bound_task, a_class]

EXCHANGE = Exchange("direct", type="direct", delivery_mode=1)

#: Settings of Celery. With each one, messages are rendered.
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "prefix": {"broker_transport_options": {"global_keyprefix": "app:"}},
    "priorities": {
        "broker_transport_options": {
            "priority_steps": list(range(10)),
            "sep": "|",
            "queue_order_strategy": "priority",
        }
    },
    "bodies as text": {"broker_transport_options": {"body_encoding": "utf-8"}},
    "queues": {"task_queues": [Queue("celery", EXCHANGE, "rk"), Queue("other", EXCHANGE)]},
    "alias": {"task_queues": [Queue("celery"), Queue("long", alias="other")]},
    "highest priority": {"task_queue_max_priority": 10},
    "default": {"task_default_queue": "main", "task_default_delivery_mode": "transient"},
    "route": {"task_routes": {"tasks.*": {"queue": "routed", "priority": 2}}},
    "route without a queue": {"task_routes": {"tasks.a": {"priority": 4}}},
    "route that expires": {"task_routes": {"tasks.*": {"queue": "routed", "expiration": 5}}},
    "routes": {"task_routes": [{"tasks.b": "no"}, {"tasks.a": "routed"}]},
    "no UTC": {"enable_utc": False, "timezone": "Europe/Paris"},
    "results": {"result_backend": "cache+memory://"},
    "levels": {"task_repr_maxlevels": 1},
}


#: The full comparison takes 10 s.
QUICK = {("none", nothing), ("route", a_bound_task)}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
    for case in product(SETTINGS, TASKS)
    if SENDS_TEXT or case[0] != "bodies as text"
]


@pytest.mark.parametrize(("setting", "declare"), CASES)
def test_every_option_with_every_setting_and_task(
    bench: Bench, setting: str, declare: Callable[[Celery], None]
) -> None:
    bench.app.conf.update(SETTINGS[setting])
    declare(bench.app)
    other = Bench(bench.app)  # with a channel that has the settings
    rules = {name: rule_of(name, options=options) for name, options in OPTIONS.items()}
    other.begin()
    assert [*filter(None, map(other.why_not, rules.values()))] == []
    other.learn(*rules.values())
    for index, rule in enumerate(rules.values()):
        rendered, celerys = other.both(rule, f"id-{index}", f"at-{index}", coalesced=index)
        assert rendered == celerys
    assert not other.differs
    other.connection.close()


@pytest.mark.parametrize("extra", ["coalesced", "triggered", "backfilled", "redbeat_overlap"])
def test_headers_of_one_run_do_not_stay(bench: Bench, extra: str) -> None:
    """A template is learned from a message with a header, and used for one without, and back."""
    rule = rule_of()
    bench.begin()
    bench.push(rule, "id-2", **{extra: True})
    bench.push(rule, "id-3")
    rendered, celerys = bench.both(rule)
    assert rendered == celerys
    assert extra not in json.loads(rendered[0][2])["headers"]
    rendered, celerys = bench.both(rule, "id-5", **{extra: 2})
    assert rendered == celerys
    assert json.loads(rendered[0][2])["headers"][extra] == 2


def test_rules_share_a_template(bench: Bench) -> None:
    """The names, headers, ids and arguments of entries do not matter."""
    bench.learn(rule_of("first", options={"priority": 3}))
    rules = [
        rule_of(f"{index}", args=[index], options={"priority": 3, "headers": {f"h{index}": index}})
        for index in range(3)
    ]
    for rule in rules:
        rendered, celerys = bench.both(rule, f"id {rule.name}")
        assert rendered == celerys
    assert bench.made == 0
    for other in (rule_of("b", "tasks.b"), rule_of("c", options={"priority": 4})):
        assert not bench.renders(other)


# -- arguments -------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
#: Values that JSON or kombu cannot encode: Celery refuses them.
REFUSED = st.sets(st.integers(), min_size=1) | st.timedeltas() | st.just(object())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    args=st.none() | st.lists(VALUES, max_size=4),
    kwargs=st.none() | st.dictionaries(st.text(), VALUES, max_size=4),
    name=st.text(),
    task_id=st.text(min_size=1),
    header=VALUES,
)
def test_any_arguments(
    bench: Bench, args: Any, kwargs: Any, name: str, task_id: str, header: Any
) -> None:
    bench.learn(rule_of("first"))
    rule = rule_of(name, args=args, kwargs=kwargs, options={"headers": {"x": header}})
    for _ in range(2):  # the second one from what was kept
        rendered, celerys = bench.both(rule, task_id)
        assert rendered == celerys


@pytest.mark.parametrize(
    "value",
    [
        *("it's", 'a "quote"', "both ' and \"", "back\\slash", "two\nlines", "\x00", "\u200b", "é"),
        *(-0.0, 1e22, 0.1, True, None, [1], {"inner": 1}, [], {}, [[[["deep"]]]]),
        *("x" * length for length in range(1015, 1026)),
    ],
    ids=lambda value: f"{value!r:.9}{len(str(value))}",
)
def test_arguments_are_shown_as_celery_shows_them(bench: Bench, value: Any) -> None:
    bench.learn(rule_of("first"))
    for arguments in ({"args": [value]}, {"args": (value, 2)}, {"kwargs": {str(value): value}}):
        rendered, celerys = bench.both(rule_of("other", **arguments), "id")
        assert rendered == celerys


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(value=REFUSED, depth=st.integers(0, 2))
def test_celery_refuses_what_it_cannot_encode(bench: Bench, value: Any, depth: int) -> None:
    bench.learn(rule_of("first"))
    for _ in range(depth):
        value = {"inner": [value]}
    rule = rule_of("other", args=[value])
    assert bench.why_not(rule).startswith("it contains a value of the type")
    with pytest.raises(Exception, match=r"not JSON serializable|not encodable|Object of type"):
        bench.push(rule)
    assert bench.made == 1


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {None: "x"},
        type("Text", (str,), {})("x"),
        type("List", (list,), {})(["x"]),
        type("Number", (int,), {})(5),
        datetime(2026, 1, 1),
        UUID(int=1),
        Decimal("0.1"),
        b"bytes",
    ],
    ids=[
        *("a key that is no text", "None as a key", "own text", "own list", "own number"),
        *("a time", "a UUID", "a decimal number", "bytes"),
    ],
)
def test_values_of_other_types_are_celerys(bench: Bench, value: Any) -> None:
    bench.learn(rule_of("first"))
    for rule in (rule_of("a", args=[value]), rule_of("b", options={"headers": {"x": value}})):
        assert bench.why_not(rule).startswith("it contains a value of the type")
        assert not bench.renders(rule)


def test_a_value_with_very_many_levels_is_celerys(bench: Bench) -> None:
    value: Any = 1
    for _ in range(150):
        value = [value]
    bench.begin()
    assert "nested too deeply" in bench.why_not(rule_of(args=value))


def test_a_long_body_is_not_kept(bench: Bench) -> None:
    bench.learn(rule_of("first"))
    long, short = rule_of("long", args=["x" * 20_000]), rule_of("short", args=["x" * 5000])
    for rule in (long, short):
        rendered, celerys = bench.both(rule)
        assert rendered == celerys
    bodies = {one.rule.key: one.body for one in bench.messages._arguments.values()}
    assert bodies[long.key] == ""
    assert len(bodies[short.key]) > 5000


@pytest.mark.parametrize("same", ["args", "kwargs"])
def test_rules_that_share_one_kind_of_arguments_differ_in_the_other(
    bench: Bench, same: str
) -> None:
    """As entries without arguments do, because there is only one None."""
    bench.learn(rule_of())
    options: dict[str, Any] = {}
    values: list[Any] = [{"n": 1}, {"n": 2}] if same == "args" else [[1], [2]]
    other = "kwargs" if same == "args" else "args"
    rules = [rule_of(options=options, **{same: None, other: value}) for value in values]
    for rule in rules:
        rendered, celerys = bench.both(rule)
        assert rendered == celerys


def test_what_is_kept_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    for index in range(5):
        bench.learn(rule_of(f"{index}", f"tasks.{index}"))
        assert len(bench.messages._arguments) <= 3
        assert len(bench.messages._templates) <= 3
    kept = [one.rule.key for one in bench.messages._arguments.values()]
    assert kept == ["redbeat:2", "redbeat:3", "redbeat:4"]


def test_twins_share_their_arguments(bench: Bench) -> None:
    first = rule_of("first", args=[1, "two"])
    bench.learn(first)
    for number in range(20):
        rendered, celerys = bench.both(replace(first, key=f"redbeat:{number}", name=f"{number}"))
        assert rendered == celerys
    assert len(bench.messages._arguments) == 1


# -- proof -----------------------------------------------------------------------------------------


def test_the_first_two_messages_are_celerys(bench: Bench) -> None:
    assert [bench.renders(rule_of()) for _ in range(4)] == [False, False, True, True]


def test_one_message_in_a_hundred_is_compared(bench: Bench) -> None:
    bench.learn(rule_of())
    chances = iter([0.5, 0.0099, 0.0101, 0.0, 0.9999])
    bench.messages._random = lambda: next(chances)
    assert [not bench.renders(rule_of()) for _ in range(5)] == [False, True, False, True, False]


def test_the_first_message_after_a_minute_is_compared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("redbeat.beat.message.monotonic", lambda: now[0])
    bench.learn(rule_of())
    rendered = []
    for seconds in (59.0, 2.0, 0.0, 59.0):
        now[0] += seconds
        rendered.append(bench.renders(rule_of()))
    assert rendered == [True, False, True, True]


def set_field(commands: list[Any], *path: str) -> list[Any]:
    message = json.loads(commands[0][2])
    field = message
    for name in path[:-1]:
        field = field[name]
    field[path[-1]] = "changed"
    return [[*commands[0][:2], json.dumps(message)]]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("headers", "origin"), "headers.origin"),
        (("headers", "new"), "headers.new"),
        (("properties", "delivery_info", "routing_key"), "properties.delivery_info.routing_key"),
        (("body",), "body"),
        (("content-encoding",), "content-encoding"),
    ],
)
def test_a_difference_ends_rendering(
    bench: Bench, caplog: pytest.LogCaptureFixture, path: tuple[str, ...], named: str
) -> None:
    """Celery's message leaves, one warning names the field, and Celery makes the task's rest."""
    rule, same_task = rule_of(), rule_of("b", options={"priority": 1})
    other_task = rule_of("c", "tasks.c")
    bench.learn(rule, same_task, other_task)
    bench.chance = 0.0  # the next message is compared
    bench.begin()
    bench.change = lambda commands: set_field(commands, *path)
    with caplog.at_level(logging.WARNING, "celery.beat"):
        left = bench.push(rule, "id-9")
        assert "changed" in left[0][2]
        assert not bench.renders(rule)
        assert not bench.renders(same_task)
    (line,) = caplog.messages
    assert line.endswith(f"of tasks.a from now on: a rendered one differs in {named}")
    assert bench.differs
    assert "not the same as Celery's" in bench.why_not(rule)
    bench.change = lambda commands: commands
    bench.chance = 0.5
    bench.learn(other_task)
    assert bench.renders(other_task)
    assert not bench.renders(rule)


def test_another_order_of_fields_is_a_difference(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def turned(commands: list[Any]) -> list[Any]:
        message = json.loads(commands[0][2])
        message["headers"] = dict(reversed(message["headers"].items()))
        return [[*commands[0][:2], json.dumps(message)]]

    bench.begin()
    bench.push(rule_of())
    bench.change = turned
    bench.push(rule_of())
    assert caplog.messages[0].endswith("differs in (the order of fields)")
    assert bench.differs


def test_another_queue_is_a_difference(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.learn(rule_of())
    bench.chance = 0.0  # the next message is compared
    bench.change = lambda commands: [["LPUSH", "elsewhere", commands[0][2]]]
    bench.begin()
    assert bench.push(rule_of())[0][1] == "elsewhere"
    assert bench.differs
    assert caplog.messages[0].endswith("differs in its queue")


@pytest.mark.parametrize(
    "change",
    [
        lambda commands: [*commands, ["PEXPIRE", "celery", "1000"]],
        lambda commands: [["PUBLISH", *commands[0][1:]]],
        lambda commands: [[*commands[0][:2], b"\x80"]],
        lambda commands: [[*commands[0][:2], "[]"]],
        lambda commands: [[*commands[0][:2], '{"properties": {"delivery_tag": "t"}}']],
        lambda commands: set_field(commands, "headers", "id"),
        lambda commands: set_field(commands, "headers", "root_id"),
        lambda commands: set_field(commands, "properties", "correlation_id"),
        lambda commands: set_field(commands, "properties", "body_encoding"),
    ],
)
def test_messages_of_an_unusual_form_are_celerys(
    bench: Bench, caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    bench.change = change
    rule = rule_of()
    bench.learn(rule)
    assert not bench.renders(rule)
    assert bench.why_not(rule) == "its messages do not have the usual form"
    assert caplog.messages == []
    assert not bench.differs


def test_nothing_is_learned_from_a_message_that_was_not_captured(bench: Bench) -> None:
    bench.change = lambda _commands: []
    bench.begin()
    assert bench.push(rule_of()) == []
    bench.change = lambda commands: commands
    assert [bench.renders(rule_of()) for _ in range(3)] == [False, False, True]


def test_an_error_of_the_publish_is_raised(bench: Bench) -> None:
    bench.begin()

    def fail(_commands: list[Any]) -> list[Any]:
        raise OSError("broker away")

    bench.change = fail
    for _ in range(3):
        with pytest.raises(OSError, match="broker away"):
            bench.push(rule_of())
    assert bench.why_not(rule_of()) == ""


def test_few_runs_are_celerys(bench: Bench) -> None:
    rule = rule_of()
    bench.learn(rule)
    bench.begin(few=True)
    bench.push(rule)
    assert bench.made == 1
    bench.begin()
    bench.push(rule)
    assert bench.made == 1
    other = rule_of("b", "tasks.b")
    bench.begin(few=True)
    for _ in range(3):
        bench.push(other)
    assert [bench.renders(other) for _ in range(3)] == [False, False, True]


def test_the_body_is_the_tasks_arguments(bench: Bench) -> None:
    """What a worker gets, without a comparison with Celery."""
    bench.learn(rule_of())
    rule = rule_of("b", args=[UUID(int=1), Decimal("1.5"), date(2026, 1, 2)], kwargs={"k": b"x"})
    command, key, text = bench.push(rule, "id-7", coalesced=3)[0]
    message = json.loads(text)
    assert (command, key) == ("LPUSH", "celery")
    assert message["headers"]["id"] == message["headers"]["root_id"] == "id-7"
    assert message["properties"]["correlation_id"] == "id-7"
    assert message["headers"]["periodic_task_name"] == "b"
    assert message["headers"]["scheduled_at"] == AT
    assert message["headers"]["coalesced"] == 3
    assert message["headers"]["argsrepr"].startswith("[UUID('0000")
    loads: Any = kombu_json.loads
    args, kwargs, _ = loads(b64decode(message["body"]))
    assert (args, kwargs) == (rule.args, rule.kwargs)


def test_tags_differ(bench: Bench) -> None:
    bench.learn(rule_of())
    texts = [bench.push(rule_of())[0][2] for _ in range(20)]
    assert len({json.loads(text)["properties"]["delivery_tag"] for text in texts}) == 20
