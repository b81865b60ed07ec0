"""Rendered messages with the libraries and the workers that programs have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import pools

from tests.acceptance.processes import ROOT, Process
from tests.beat.message_bench import Bench, rule_of
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    # With redis-py 5, Celery's remote control leaves a socket open.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# -- libraries for monitoring ----------------------------------------------------------------------

PROGRAM = """
import sys
from celery import Celery
{first}
from tests.beat.message_bench import Bench
from tests.beat.message_bench import rule_of
{later}
app = Celery("program", broker=sys.argv[1], set_as_current=False)

@app.task(name="tasks.a")
def task(*args, **kwargs): ...

bench = Bench(app)
rule = rule_of()
bench.learn(rule)
rendered = bench.renders(rule)
print(rendered, bench.why_not(rule), sep="; ")
"""

SENTRY = """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
sentry_sdk.init(None, integrations=[CeleryIntegration(monitor_beat_tasks={monitor})])
"""
OPEN_TELEMETRY = """
from opentelemetry.instrumentation.celery import CeleryInstrumentor
CeleryInstrumentor().instrument()
"""
WRAPT = """
import wrapt
from celery.app.task import Task
wrapt.wrap_function_wrapper("celery.app.task", "Task.apply_async", lambda f, _, a, k: f(*a, **k))
"""


@pytest.mark.parametrize("order", ["first", "later"])
@pytest.mark.parametrize(
    ("module", "code", "why"),
    [
        ("", "", "True; "),
        ("sentry_sdk", SENTRY.format(monitor=False), "False; send_task() of celery.app.base."),
        ("sentry_sdk", SENTRY.format(monitor=True), "False; "),
        (
            "opentelemetry.instrumentation.celery",
            OPEN_TELEMETRY,
            "False; a function is connected to before_task_publish",
        ),
        ("wrapt", WRAPT, "False; apply_async() of "),
    ],
    ids=["none", "Sentry", "Sentry with monitors", "OpenTelemetry", "wrapt"],
)
def test_libraries_for_monitoring(
    redis_url: str, order: str, module: str, code: str, why: str
) -> None:
    """Imported first or later, they see every message."""
    if module:
        pytest.importorskip(module)
    program = PROGRAM.format(**{"first": "", "later": "", order: code})
    command = [sys.executable, "-W", "ignore", "-c", program, redis_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(why), done.stderr


def close(bench: Bench) -> None:
    """Close the connections to broker and result backend."""
    bench.connection.close()
    bench.app.backend.result_consumer.stop()
    bench.app.backend.client.connection_pool.disconnect()
    pools.reset()  # type: ignore[no-untyped-call]


# -- a worker --------------------------------------------------------------------------------------

PROJECT = """
import sys
from celery import Celery

app = Celery("project", broker="{url}", backend="{url}", set_as_current={current})
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_transport_options = {{"queue_order_strategy": "priority"}}

@app.task(bind=True, name="tasks.a", max_retries=2, shared=False)
def first(self, *args, **kwargs):
    request = self.request
    if kwargs.get("retry") and request.retries < 2:
        raise self.retry(countdown=0.05)
    name = request.get("periodic_task_name") or (request.headers or {{}}).get("periodic_task_name")
    at = request.get("scheduled_at") or (request.headers or {{}}).get("scheduled_at")
    info = request.delivery_info
    shown = [name, at, request.id, request.root_id, request.retries, info["priority"]]
    self.app.backend.client.rpush("ran", repr([shown, args, kwargs]))
    return [name, list(map(str, args))]

@app.task(name="tasks.b", shared=False)
def linked(result):
    app.backend.client.rpush("linked", repr(result))
"""


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Any]:
    """A function that starts a worker of the project."""
    text = PROJECT.format(url=redis_url, current=True)
    (tmp_path / "project_of_message.py").write_text(text)
    processes = []

    def start() -> Process:
        options = ["-A", "project_of_message", "worker", "-P", "solo", "-l", "info"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        process = Process(tmp_path, "worker", options, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.end()


def test_a_worker_runs_rendered_messages(project: Any, redis_url: str) -> None:
    scope: dict[str, Any] = {"__name__": "project_of_message"}
    exec(PROJECT.format(url=redis_url, current=False), scope)
    app: Celery = scope["app"]
    bench = Bench(app)
    link: dict[str, Any] = {
        "task": "tasks.b",
        "args": [],
        "kwargs": {},
        "options": {},
        "subtask_type": None,
    }
    link |= {"immutable": False, "chord_size": None}
    arguments: dict[str, Any] = {"args": ["ö", 1.5, [None]], "kwargs": {"three": {"x": "y"}}}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "link": {"link": link},
        "late": {"priority": 9},
        "early": {"priority": 3},
        "shadow": {"shadow": "another", "headers": {"x": 1}},
        "limit": {"time_limit": 20, "soft_time_limit": 10},
        "no result": {"ignore_result": True},
    }
    rules = [rule_of(name, options=each, **arguments) for name, each in options.items()]
    rules.append(rule_of("retry", args=[], kwargs={"retry": True}))
    rules.append(rule_of("unknown", "tasks.unknown"))
    rules.append(rule_of("revoked"))
    bench.learn(*rules)
    client: Any = redis.Redis.from_url(redis_url, decode_responses=True)
    for rule in rules:
        commands = bench.push(rule, f"id of {rule.name}", f"time of {rule.name}")
        for command in commands:
            client.execute_command(*command)
    assert bench.made == 0, "all are rendered"
    worker = project()
    worker.wait_for("ready")
    app.control.revoke("id of revoked")
    names = [rule.name for rule in rules if rule.name not in ("unknown", "revoked")]

    def ran() -> dict[str, list[Any]]:
        return {line[0][0]: line for line in map(eval, client.lrange("ran", 0, -1))}

    wait_until(lambda: ran().keys() >= set(names), 30, "all runs")
    wait_until(lambda: client.llen("linked"), 10, "the callback")
    for name in names:
        shown, args, kwargs = ran()[name]
        retries = 2 if name == "retry" else 0
        priority = options.get(name, {}).get("priority", 0)
        assert shown == [
            name,
            f"time of {name}",
            f"id of {name}",
            f"id of {name}",
            retries,
            priority,
        ]
        if name != "retry":
            assert (list(args), kwargs) == (arguments["args"], arguments["kwargs"])
    for name in names:
        result = app.AsyncResult(f"id of {name}")
        if name != "no result":
            assert result.get(timeout=10)[0] == name
        else:
            assert result.state == "PENDING"
    assert client.lrange("linked", 0, -1) == ["['link', ['ö', '1.5', '[None]']]"]
    assert "Received unregistered task of type 'tasks.unknown'" in worker.output()
    order = [line[0][0] for line in map(eval, client.lrange("ran", 0, -1))]
    assert order.index("plain") < order.index("early") < order.index("late")
    client.close()
    close(bench)
    app.close()


def test_a_redis_backend_gets_no_subscription(redis_url: str, app: Celery) -> None:
    """Celery subscribes to the result of each task; a beat never reads one."""
    app.conf.update(broker_url=redis_url, result_backend=redis_url)
    bench = Bench(app)
    rule = rule_of()
    bench.learn(rule)
    rendered, celerys = bench.both(rule)
    assert rendered == celerys
    with redis.Redis.from_url(redis_url) as client:
        before = len(client.pubsub_channels())
        for index in range(20):
            bench.push(rule, f"id-{index}")
        assert len(client.pubsub_channels()) == before
    close(bench)
