"""The Redis of the schedule loses data, or refuses writes."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise

import pytest
import redis

from redbeat.entries.state import Marks, State, digest_of_meta
from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, SCHEDULE, Schedule, meta_json, names
from tests.faults.ledger import Ledger, Message
from tests.faults.links import RESET
from tests.faults.oracle import Report
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer, closed_port
from tests.waiting import wait_until

HOUR = 3600.0
#: Dynamic entries that run every second and every hour; there are static entries of both kinds.
ENTRIES, HOURLY = names(20), names(5, "h")
OFTEN, SELDOM = "often", "seldom"
AHEAD = 1.0
#: The run count of each hourly entry before the test; its last run was a minute ago.
RUNS = 7
#: Seconds within which the beat repairs an entry that lost its sorted set member or its hash.
FOUND_WITHIN = 12.0
EMPTY = "beat: The schedule in Redis is empty"
AWAY, BACK = "beat: Redis is not available", "beat: Redis is back"


@pytest.fixture(autouse=True)
def statics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the beats two static entries: one runs every second, the other every hour."""
    periods = {OFTEN: 1.0, SELDOM: HOUR}
    entries = {
        name: {"task": f"faults.{name}", "schedule": every} for name, every in periods.items()
    }
    monkeypatch.setenv("PROJECT_SCHEDULE", json.dumps(entries))


@pytest.fixture
def one(beats: Beats, schedule: Schedule, ledger: Ledger) -> Grid:
    """Return a beat's entries that run every second; the hourly entries are not due.

    The hourly entries have the state of entries that RedBeat has saved or run. Without it, a beat
    does not put them back after the sorted set was lost.
    """
    ran = schedule.now() - 60.0
    meta = meta_json(ran, RUNS)
    schedule.put(HOURLY, HOUR, ran + HOUR, dict.fromkeys(HOURLY, meta))
    state = State(Marks("saved-by-us-"), "1", digest_of_meta(meta)).text()
    for name in HOURLY:
        schedule.client.hset(PREFIX + name, "beat_state", state)
    beats.start()
    beats[0].wait_for("beat: Static entries: ")
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: {OFTEN, *ENTRIES} <= {message.entry for message in ledger.messages}, 60.0)
    return one


def of(ledger: Ledger, name: str, since: int = 0) -> list[Message]:
    """Return the messages of an entry, ignoring the first ``since`` messages of the ledger."""
    return [message for message in ledger.since(since) if message.entry == name]


def pause(seconds: float) -> None:
    """Sleep while a fault lasts, or until the next fault."""
    time.sleep(seconds)


def between_runs(schedule: Schedule, one: Grid) -> None:
    """Wait until the beat has recorded all sent runs and no run is due soon."""

    def quiet() -> bool:
        phase = (schedule.now() - one.first) % one.every
        return 0.3 < phase < 0.5 and not schedule.held(ENTRIES)

    wait_until(quiet, 30.0, "a moment without held runs")


def run_on(schedule: Schedule, seconds: float) -> float:
    """Let the beat work for some seconds, and return the time of Redis afterwards."""
    until = schedule.now() + seconds
    wait_until(lambda: schedule.now() >= until, 60.0)
    return until


def seconds_to_run(ledger: Ledger, name: str) -> float:
    """Return the seconds until the next message of the entry arrives."""
    started, before = time.monotonic(), len(ledger)
    wait_until(lambda: of(ledger, name, before), 60.0, f"a run of {name} after the fault")
    return time.monotonic() - started


def decision(ledger: Ledger, one: Grid, until: float) -> Report:
    """Return the report on the entries that run every second; assert that no hourly entry ran."""
    report = settle(ledger, [one], until)
    assert {message.entry for message in report.unknown} <= {OFTEN}
    report.unknown = []
    return report


def check(report: Report) -> None:
    """Assert that each occurrence ran or was coalesced, and none ran early or twice."""
    assert not report.lost
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0


def check_static(ledger: Ledger) -> None:
    """Assert that the static entry never ran twice for an instant or in a burst."""
    ran = of(ledger, OFTEN)
    assert len({message.task_id for message in ran}) == len(ran)
    instants = sorted(message.scheduled_at or 0.0 for message in ran)
    gaps = [after - before for before, after in pairwise(instants)]
    # A rewritten entry starts a new series of runs, the first of them a second later.
    assert min(gaps) >= 0.99
    assert not of(ledger, SELDOM)


def check_log(beats: Beats, *logged_once: str) -> None:
    """Assert that the beat is alive and logged each of these strings once."""
    assert beats[0].is_alive
    assert {text: beats[0].output().count(text) for text in logged_once} == dict.fromkeys(
        logged_once, 1
    )


@pytest.mark.long
def test_redis_comes_back_with_its_data(
    beats: Beats, schedule: Schedule, ledger: Ledger, schedule_redis: RedisServer, one: Grid
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: Redis shuts down, saves all data, and restarts a second later.

    Invariant: each occurrence is sent exactly once, no hourly entry runs, and histories continue.
    The log reports that Redis was unreachable, and reports no loss of data.
    """
    before = schedule.run_counts([OFTEN])[OFTEN]
    schedule.client.shutdown(save=True)
    pause(1.0)
    schedule_redis.restart()
    seconds_to_run(ledger, OFTEN)
    check(decision(ledger, one, run_on(schedule, 1.0)))
    check_static(ledger)
    assert schedule.run_counts(HOURLY) == dict.fromkeys(HOURLY, RUNS)
    assert schedule.run_counts([OFTEN])[OFTEN] > before
    check_log(beats, AWAY, BACK)
    assert EMPTY not in beats[0].output()


def flush(schedule: Schedule, _server: RedisServer) -> None:
    """Delete all data."""
    schedule.client.flushall()


def restart_empty(_schedule: Schedule, server: RedisServer) -> None:
    """Restart a server that has no persistence."""
    server.kill()
    server.restart()


def fail_over_to_nothing(schedule: Schedule, _server: RedisServer) -> None:
    """Make the server a replica of an empty server, then a master again."""
    with RedisServer() as empty:
        schedule.client.replicaof("127.0.0.1", empty.port)
        wait_until(lambda: schedule.client.info("replication")["master_link_status"] == "up", 30.0)
        schedule.client.replicaof("NO", "ONE")


Loss = Callable[[Schedule, RedisServer], None]


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    "lose",
    [
        flush,
        pytest.param(restart_empty, marks=pytest.mark.long),
        pytest.param(fail_over_to_nothing, marks=pytest.mark.long),
    ],
)
def test_all_data_is_gone(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    profile: Profile,
    note: Note,
    lose: Loss,
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: FLUSHALL; or Redis restarts empty; or Redis becomes a replica of an empty server and then
    a master again.

    Invariant: the log reports the loss once. The static entry of one second counts as new: it runs
    within 3 s (short profile: 5 s), without a burst. The hourly static entry is stored and does not
    run. Dynamic entries do not return.
    """
    members = len(ENTRIES) + len(HOURLY) + 2
    lose(schedule, schedule_redis)
    waited = seconds_to_run(ledger, OFTEN)
    seen = len(ledger)
    run_on(schedule, profile.pick(1.2, 2.5))
    note(f"back after {waited:.2f} s")
    assert waited <= profile.pick(5.0, 3.0)
    check_static(ledger)
    assert {message.entry for message in ledger.since(seen)} == {OFTEN}
    assert schedule.client.zscore(SCHEDULE, PREFIX + SELDOM) > schedule.now() + HOUR / 2
    assert schedule.client.zscore(SCHEDULE, PREFIX + ENTRIES[0]) is None
    check_log(beats, EMPTY)
    output = beats[0].output()
    gone = int(output.partition(f"{EMPTY}: all ")[2].partition(" ")[0])
    assert gone == members


@pytest.mark.long
def test_redis_comes_back_with_older_data(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    one: Grid,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: one beat, entries that run every second and every hour; 20 more hourly entries that
    are due soon.

    Fault: some seconds after these 20 entries ran, Redis dies and restarts with the data of an
    earlier save.

    Invariant: no occurrence is lost. A run after that save is repeated only if no later run
    replaces it, and only under its previous id. No other run is repeated.
    """
    due = Grid.begin(schedule, names(20, "due"), HOUR, 4.0)
    between_runs(schedule, one)
    schedule.client.save()
    assert schedule.now() < due.first
    wait_until(lambda: set(schedule.run_counts(due.entries).values()) == {1}, 60.0)
    run_on(schedule, profile.pick(2.0, 20.0))
    schedule_redis.kill()
    seen = len(ledger)
    schedule_redis.restart()
    assert set(schedule.run_counts(due.entries).values()) == {0}
    wait_until(lambda: set(schedule.run_counts(due.entries).values()) == {1}, 60.0, "run again")
    report = settle(ledger, [one, due], max(due.first, run_on(schedule, 2.0)))
    again = {name: len(of(ledger, name, seen)) for name in due.entries}
    note(report)
    assert not report.lost
    assert report.other_id == 0
    assert again == dict.fromkeys(due.entries, 1)
    assert {message.entry for message in report.unknown} <= {OFTEN}
    assert len(due.entries) <= report.same_id <= len(due.entries) + len(ENTRIES)
    assert schedule.run_counts(HOURLY) == dict.fromkeys(HOURLY, RUNS)
    assert beats[0].is_alive


@pytest.mark.long
def test_the_sorted_set_is_lost(
    beats: Beats, schedule: Schedule, ledger: Ledger, one: Grid, note: Note
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: the sorted set is deleted, the hashes remain.

    Invariant: within 12 s all entries are back with their histories, and the log names them. No
    hourly entry runs. Each occurrence of the other entries is sent exactly once.
    """
    between_runs(schedule, one)
    counts = schedule.run_counts([*ENTRIES, OFTEN])
    started = time.monotonic()
    schedule.client.delete(SCHEDULE)
    expected = [*ENTRIES, *HOURLY, OFTEN, SELDOM]

    def all_back() -> bool:
        scores = schedule.client.zmscore(SCHEDULE, [PREFIX + name for name in expected])
        return None not in scores

    wait_until(all_back, 60.0, "all entries are members again")
    waited = time.monotonic() - started
    report = decision(ledger, one, run_on(schedule, 2.0))
    note(f"{report}; back after {waited:.2f} s")
    assert waited <= FOUND_WITHIN
    check(report)
    check_static(ledger)
    assert schedule.run_counts(HOURLY) == dict.fromkeys(HOURLY, RUNS)
    assert all(schedule.run_counts([name])[name] > count for name, count in counts.items())
    scores = schedule.client.zmscore(SCHEDULE, [PREFIX + name for name in (*HOURLY, SELDOM)])
    assert min(scores) > schedule.now() + HOUR / 2
    missing = "was missing in the sorted set"
    lost = [f"beat: Entry {PREFIX}{name} {missing}" for name in (*ENTRIES, *HOURLY)]
    check_log(beats, EMPTY, *lost)


@pytest.mark.long
def test_hashes_are_evicted(
    beats: Beats, schedule: Schedule, ledger: Ledger, one: Grid, note: Note
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour, and one
    more dynamic entry.

    Fault: two hashes are deleted: the hash of the additional entry, and the hash of the static
    entry that runs every second.

    Invariant: within 12 s the static entry runs again and the additional entry is removed from the
    schedule. The log names each of the two once. The other entries are not affected.
    """
    key = PREFIX + "evicted"
    schedule.put(["evicted"], 1.0)
    wait_until(lambda: of(ledger, "evicted"), 60.0)
    between_runs(schedule, one)
    schedule.client.delete(key, PREFIX + OFTEN)
    seen = len(ledger)
    started = time.monotonic()
    wait_until(lambda: of(ledger, OFTEN, seen), 60.0, "the static entry runs again")
    wait_until(lambda: schedule.client.zscore(SCHEDULE, key) is None, 60.0, "removed")
    waited = time.monotonic() - started
    report = settle(ledger, [one], run_on(schedule, 1.5))
    note(f"{report}; seen to after {waited:.2f} s")
    assert waited <= FOUND_WITHIN
    assert {message.entry for message in report.unknown} == {OFTEN, "evicted"}
    check(report)
    assert not report.coalesced
    check_static(ledger)
    assert not schedule.client.exists(key)
    check_log(
        beats, f"Entry {key} is removed from the schedule", f"Static entry {PREFIX}{OFTEN} vanished"
    )


@pytest.mark.long
def test_scripts_are_flushed(
    beats: Beats, schedule: Schedule, ledger: Ledger, one: Grid, profile: Profile, note: Note
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: SCRIPT FLUSH every 50 ms, for 5 s (full profile: 60 s).

    Invariant: each occurrence is sent exactly once, and the log has no error.
    """
    until = schedule.now() + profile.pick(5.0, 60.0)
    while schedule.now() < until:
        schedule.client.script_flush()
        pause(0.05)
    report = decision(ledger, one, until)
    note(report)
    check(report)
    assert not report.coalesced
    check_static(ledger)
    assert "ERROR" not in beats[0].output()
    assert "WARNING" not in beats[0].output()


@contextmanager
def a_copy(schedule: Schedule, server: RedisServer) -> Iterator[int]:
    """Start another server with the same data, and return its port."""
    with RedisServer() as other:
        with redis.Redis.from_url(other.url, decode_responses=True) as client:
            client.replicaof("127.0.0.1", server.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 30.0)
            offset = schedule.client.info("replication")["master_repl_offset"]
            wait_until(lambda: client.info("replication")["slave_repl_offset"] >= offset, 30.0)
            client.replicaof("NO", "ONE")
        yield other.port


@contextmanager
def nobody(_schedule: Schedule, _server: RedisServer) -> Iterator[int]:
    """Return a port that refuses connections."""
    with closed_port() as port:
        yield port


@pytest.mark.long
@pytest.mark.parametrize("master", [nobody, a_copy])
def test_redis_is_a_replica_for_a_while(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    one: Grid,
    profile: Profile,
    note: Note,
    master: Callable[[Schedule, RedisServer], AbstractContextManager[int]],
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: for 3 s (full profile: 30 s) the server is a replica and refuses writes. Its master is
    either unreachable or a copy of the server.

    Invariant: the beat logs the fault once, and sends again within 2 s after it (short profile: 5
    s). Each occurrence is sent exactly once or coalesced.
    """
    between_runs(schedule, one)
    with master(schedule, schedule_redis) as port:
        between_runs(schedule, one)
        schedule.client.replicaof("127.0.0.1", port)
        seen = len(ledger)
        pause(profile.pick(3.0, 30.0))
        while_replica = len(ledger) - seen
        schedule.client.replicaof("NO", "ONE")
    waited = seconds_to_run(ledger, OFTEN)
    report = decision(ledger, one, run_on(schedule, 2.0))
    note(f"{report}; {while_replica} sent meanwhile, back after {waited:.2f} s")
    assert while_replica == 0
    check(report)
    check_static(ledger)
    assert waited <= profile.pick(5.0, 2.0)
    check_log(beats, "beat: Redis takes no writes", BACK)


class Loading(socketserver.StreamRequestHandler):
    """Answers each command like a Redis that is loading its data file."""

    def handle(self) -> None:
        """Read commands and refuse them until the client disconnects."""
        self.server.clients.append(self.request)  # type: ignore[attr-defined]
        while line := self.rfile.readline():
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                self.rfile.read(size + 2)
            self.wfile.write(b"-LOADING Redis is loading the dataset in memory\r\n")


class LoadingServer(socketserver.ThreadingTCPServer):
    """Refuses every command, on the port of a stopped server; a context manager."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        self.clients: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), Loading)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors from clients that disconnected."""

    def server_close(self) -> None:
        """Close the server and its open connections."""
        self.shutdown()
        super().server_close()
        for client in self.clients:
            with suppress(OSError):  # The socket is already closed.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.shutdown(socket.SHUT_RDWR)


@pytest.mark.long
def test_redis_is_loading(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    one: Grid,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: one beat, static and dynamic entries that run every second and every hour.

    Fault: Redis restarts, and answers LOADING to every command for 4 s (full profile: 40 s).

    Invariant: the beat logs the fault once, and sends again within 2 s after it (short profile:
    5 s). Each occurrence is sent exactly once or coalesced.
    """
    schedule.client.shutdown(save=True)
    with LoadingServer(schedule_redis.port) as loading:
        pause(profile.pick(4.0, 40.0))
        assert beats[0].is_alive
        refused = len(loading.clients)
    schedule_redis.restart()
    waited = seconds_to_run(ledger, OFTEN)
    report = decision(ledger, one, run_on(schedule, 2.0))
    note(f"{report}; {refused} connections refused, back after {waited:.2f} s")
    assert refused
    check(report)
    check_static(ledger)
    assert waited <= profile.pick(5.0, 2.0)
    # While one server replaces the other, connections may be refused. The beat logs such refusals
    # separately.
    check_log(beats, "BusyLoadingError", BACK)
