"""Fixtures of the fault tests: each test has its own servers, beats and ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.faults.beats import Beats
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile, chosen
from tests.servers import RedisServer

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")

#: How often the full profile runs each test that has a ``seed`` argument.
TRIALS = 10
#: Timeout of one test, in seconds.
TIMEOUT_SHORT, TIMEOUT_FULL = 180, 3600

Note = Callable[[object], None]
#: Runs a test with separate servers and with one server for broker and schedule. On one server,
#: no run is sent twice.
BOTH_BROKERS = pytest.mark.parametrize(
    "one_server", [False, True], ids=["separate broker", "one server"]
)

#: The name of the property of a test report that contains a note.
NOTE = "note"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--faults``, available only when pytest is started with this directory."""
    parser.addoption("--faults", choices=("short", "full"), help="the size of the fault suite")


def profile_of(config: pytest.Config) -> Profile:
    """Return the profile of this test run."""
    return chosen(config.getoption("faults", default=None))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that has a ``seed`` argument once for each trial."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(profile_of(metafunc.config).trials(TRIALS)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the timeout of the tests in this directory according to the profile."""
    timeout = profile_of(config).pick(TIMEOUT_SHORT, TIMEOUT_FULL)
    for item in items:
        if item.nodeid.startswith("tests/faults/"):
            item.add_marker(pytest.mark.timeout(timeout))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes of the tests at the end of the test run."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    notes = [
        f"{report.nodeid.partition('::')[2]}: {text}"
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == NOTE
    ]
    if notes:
        terminalreporter.section("faults")
        for note in sorted(notes):
            terminalreporter.write_line(note)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Return a function that adds a line, such as a measurement, to the summary of the test run."""
    return lambda text: request.node.user_properties.append((NOTE, str(text)))


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Profile:
    """Return the profile of this test run."""
    return profile_of(request.config)


@pytest.fixture
def durable() -> bool:
    """Return whether confirmed writes survive a crash (slower); tests may override it."""
    return False


@pytest.fixture
def schedule_redis(durable: bool) -> Iterator[RedisServer]:
    """Run the Redis server of the schedule."""
    with RedisServer(*(DURABLE if durable else ())) as server:
        yield server


@pytest.fixture
def one_server() -> bool:
    """Return whether broker and schedule share a server; tests may override it."""
    return False


@pytest.fixture
def broker_redis(
    durable: bool, one_server: bool, schedule_redis: RedisServer
) -> Iterator[RedisServer]:
    """Run the Redis server of the broker."""
    if one_server:
        yield schedule_redis
        return
    with RedisServer(*(DURABLE if durable else ())) as server:
        yield server


@pytest.fixture
def schedule(schedule_redis: RedisServer) -> Iterator[Schedule]:
    """Return the schedule, accessed directly and not through a proxy."""
    with redis.Redis.from_url(schedule_redis.url, decode_responses=True) as client:
        yield Schedule(client)


@pytest.fixture
def ledger(broker_redis: RedisServer) -> Iterator[Ledger]:
    """Collect all messages that reach the broker in a ledger."""
    with Ledger(broker_redis.url) as ledger:
        yield ledger


@pytest.fixture
def beats(
    tmp_path: Path, schedule_redis: RedisServer, broker_redis: RedisServer, schedule: Schedule
) -> Iterator[Beats]:
    """Return the beats, none of them started; failure reports include their logs."""
    beats = Beats(tmp_path, schedule_redis.url, broker_redis.url, schedule)
    yield beats
    beats.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the logs of the beats to the report of a failure."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    beats = getattr(item, "funcargs", {}).get("beats")
    if call.when == "call" and report.failed and isinstance(beats, Beats):
        report.sections.append(("beats", beats.log_tails()))
    return report  # type: ignore[return-value]
