"""Fixtures for every test: a real Redis server, and a Celery app that uses it."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import settings
from kombu.transport import memory

from redbeat import RedBeatSchedulerEntry
from redbeat.storage.reading import Reading
from tests.acceptance.processes import Project
from tests.deployments import KINDS, STANDALONE, Deployment, chosen_kind, single
from tests.servers import RedisServer, closed_port, free_port

# Allow .pyc files: many tests start Python programs, which would compile all imports each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# redis-py reads its own version from the disk for each new connection, which takes 1 ms.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

# The number of round trips must not depend on how busy the machine is.
Reading.max_seconds = 60.0

# No deadline: the duration of an example depends on how busy the machine is.
settings.register_profile("long", deadline=None, max_examples=100)
settings.register_profile("short", deadline=None, max_examples=33)
settings.load_profile("short")

#: The loggers that Celery changes in a process that runs one of its commands.
SET_UP_BY_CELERY = ("celery.beat", "celery.task", "celery.redirected", "celery.worker", "kombu")

#: The seconds of CPU that a test of the short run may need.
MOST_CPU = 20

#: Tests of the short run that take more elapsed seconds are reported.
SLOW = 10

#: The type of the fixture ``make``, which saves an entry.
Make = Callable[..., RedBeatSchedulerEntry]

TESTS = Path(__file__).parent
ROOT = TESTS.parent

#: Directories of tests that need a program which few machines have: RabbitMQ, a Redis server built
#: with TLS, Node.js, Ruby or Chromium.
NAMED = [TESTS / name for name in ("rabbitmq", "tls", "languages", "browser")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the directories in :data:`NAMED` unless the command line names them."""
    if collection_path not in NAMED:
        return None
    start = config.invocation_params.dir
    paths = [(start / arg.partition("::")[0]).resolve() for arg in config.args]
    return None if any(path.is_relative_to(collection_path) for path in paths) else True


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``standalone`` for tests that need a single Redis server."""
    config.addinivalue_line(
        "markers", "standalone: about a client, URL or prefix that only a single server takes"
    )


def _longest(item: pytest.Item) -> float:
    """Return the timeout of a test in seconds, or 0 if the test has the default timeout."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by timeout, longest first, to share them evenly among worker processes.

    Deselect the tests that need a single server if the run uses another kind of Redis.
    """
    items.sort(key=_longest, reverse=True)
    if chosen_kind() == STANDALONE:
        return
    others = [item for item in items if item.get_closest_marker("standalone")]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def pytest_collection(session: pytest.Session) -> None:
    """Collect the tests without garbage collection, which would take a third of the time.

    All workers collect all tests. In a new clone, each first compiles its share of the modules.
    """
    gc.disable()
    if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        for path in modules_of_this_worker():
            with suppress(Exception, pytest.skip.Exception):  # The collection reports errors.
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def modules_of_this_worker() -> list[Path]:
    """Return the modules that this worker process of pytest-xdist imports before all others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    paths = [path for path in TESTS.rglob("test_*.py") if not set(path.parents) & {*NAMED}]
    return sorted(paths)[worker::count]


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection: they all exist until the end."""
    gc.freeze()
    gc.enable()


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the short run that needs more than :data:`MOST_CPU` seconds of CPU.

    The elapsed time depends on how busy the machine is, so it is only reported.
    """
    before = cpu_seconds()
    yield
    if item.config.getoption("hypothesis_profile", None) == "long":
        return
    spent = cpu_seconds() - before
    # Measuring the coverage doubles the CPU time.
    most = MOST_CPU * (2 if item.config.getoption("cov_source", None) else 1)
    if spent > most and item.get_closest_marker("long") is None:
        pytest.fail(f"needs {spent:.0f} s of CPU, more than {most}: make it faster, or `long`")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the tests that took more than :data:`SLOW` seconds and are not marked ``long``."""
    slow = [
        report
        for report in terminalreporter.stats.get("passed", ())
        if report.when == "call" and report.duration > SLOW and "long" not in report.keywords
    ]
    if slow:
        terminalreporter.section(f"not marked long, but above {SLOW} s")
        for report in slow:
            terminalreporter.write_line(f"{report.duration:.0f} s {report.nodeid}")


@pytest.fixture(autouse=True)
def empty_broker_in_memory() -> None:
    """Remove the messages of other tests: all tests of a process share kombu's broker in memory."""
    memory.Channel.queues.clear()


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """Undo what commands and apps do to loggers: other tests of the process look at the log."""
    loggers = [logging.getLogger(name) for name in ("", "celery", "redbeat", *SET_UP_BY_CELERY)]
    before = [(one, one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for one, level, propagate, handlers in before:
        one.setLevel(level)
        one.propagate = propagate
        one.handlers[:] = handlers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests. A test that kills or freezes a server starts its own server."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """The Redis that stores the schedules of all tests, by default a single server."""
    kind = chosen_kind()
    if kind == STANDALONE:
        yield single(request.getfixturevalue("redis_server"))
        return
    with KINDS[kind]() as deployment:
        yield deployment


@pytest.fixture
def redis_url(deployment: Deployment) -> str:
    """The URL of the empty server that stores the schedule. Its user has all rights."""
    deployment.empty()
    return deployment.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client that decodes replies to strings. Tests use it to inspect the stored data."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def app(redis_url: str, deployment: Deployment) -> Iterator[Celery]:
    """A Celery app with its broker in memory and its schedule in the empty Redis."""
    assert redis_url == deployment.url, "the server is emptied first"
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(deployment.settings, timezone="UTC", enable_utc=True)
    # Otherwise Celery adds the entry celery.backend_cleanup, which is due every day at 4:00.
    app.conf.result_expires = None
    yield app
    app.close()
    # Otherwise the garbage collector may warn of the client's open sockets.
    client = getattr(app, "redbeat_redis", None)
    if client is not None:
        client.close()


@pytest.fixture
def unused_port() -> int:
    """A loopback port on which a test can start a server."""
    return free_port()


@pytest.fixture(name="closed_port")
def reserved_port() -> Iterator[int]:
    """A loopback port that refuses connections."""
    with closed_port() as port:
        yield port


@pytest.fixture
def make(app: Celery) -> Make:
    """A function that saves an entry. By default, the entry is due in an hour."""

    def make(name: str, schedule: Any = 3600, **more: Any) -> RedBeatSchedulerEntry:
        task = more.pop("task", "proj.note")
        return RedBeatSchedulerEntry(name, task, schedule, app=app, **more).save()

    return make


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[type, Any]:
    """The registered schedule classes: none at first. What a test registers is forgotten."""
    types: dict[type, Any] = {}
    monkeypatch.setattr("redbeat.codec.types.CUSTOM", types)
    return types


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    """A project that runs real processes on an empty Redis. They end when the test ends."""
    project = Project(tmp_path, redis_url)
    yield project
    project.end()
