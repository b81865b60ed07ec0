"""Servers, beats and a ledger of their own for each test, and the profile of the run."""

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

#: Trials of each test with an argument ``seed`` in the full profile.
TRIALS = 10
#: Seconds that one test may take.
TIMEOUT_SHORT, TIMEOUT_FULL = 180, 3600

Note = Callable[[object], None]
#: For tests of both kinds of brokers: on one server with the schedule, nothing is sent twice.
BOTH_BROKERS = pytest.mark.parametrize(
    "one_server", [False, True], ids=["separate broker", "one server"]
)

#: What a property of a report is called when it is a note.
NOTE = "note"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--faults``; it is known only when this directory is named on the command line."""
    parser.addoption("--faults", choices=("short", "full"), help="the size of the fault suite")


def profile_of(config: pytest.Config) -> Profile:
    """Return the profile of a run."""
    return chosen(config.getoption("faults", default=None))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument ``seed`` once per trial."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(profile_of(metafunc.config).trials(TRIALS)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests of this directory the time that the profile needs."""
    timeout = profile_of(config).pick(TIMEOUT_SHORT, TIMEOUT_FULL)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(timeout))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests noted."""
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
    """Takes a line for the end of the run: what was counted, whether or not it is bounded."""
    return lambda text: request.node.user_properties.append((NOTE, str(text)))


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Profile:
    """The profile of this run."""
    return profile_of(request.config)


@pytest.fixture
def durable() -> bool:
    """Whether what the servers confirmed survives their crash; that is slow. For overriding."""
    return False


@pytest.fixture
def schedule_redis(durable: bool) -> Iterator[RedisServer]:
    """The Redis of the schedule."""
    with RedisServer(*(DURABLE if durable else ())) as server:
        yield server


@pytest.fixture
def one_server() -> bool:
    """Whether broker and schedule are on one server. For overriding."""
    return False


@pytest.fixture
def broker_redis(
    durable: bool, one_server: bool, schedule_redis: RedisServer
) -> Iterator[RedisServer]:
    """The Redis of the broker."""
    if one_server:
        yield schedule_redis
        return
    with RedisServer(*(DURABLE if durable else ())) as server:
        yield server


@pytest.fixture
def schedule(schedule_redis: RedisServer) -> Iterator[Schedule]:
    """The schedule, read and written past all proxies."""
    with redis.Redis.from_url(schedule_redis.url, decode_responses=True) as client:
        yield Schedule(client)


@pytest.fixture
def ledger(broker_redis: RedisServer) -> Iterator[Ledger]:
    """Everything that reaches the broker."""
    with Ledger(broker_redis.url) as ledger:
        yield ledger


@pytest.fixture
def beats(
    tmp_path: Path, schedule_redis: RedisServer, broker_redis: RedisServer, schedule: Schedule
) -> Iterator[Beats]:
    """Beats on the two servers; none runs yet. All end with the test, and say why it failed."""
    beats = Beats(tmp_path, schedule_redis.url, broker_redis.url, schedule)
    yield beats
    beats.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the logs of the beats beside a failure."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    beats = getattr(item, "funcargs", {}).get("beats")
    if call.when == "call" and report.failed and isinstance(beats, Beats):
        report.sections.append(("beats", beats.said()))
    return report  # type: ignore[return-value]
