"""Redis or the broker executes a request, but its reply is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from celery import Celery
from redis.exceptions import RedisError

from redbeat import RedBeatScheduler
from redbeat.storage.scripts import load_script
from tests.faults.beats import LOCK_TIMEOUT, Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile
from tests.faults.proxy import Proxy
from tests.faults.trial import Grid, settle
from tests.samples import long
from tests.servers import RedisServer
from tests.waiting import wait_until

ENTRIES = names(50)
HOUR = 3600.0
AHEAD = 2.0
LOST_REPLIES = 3
#: Maximum seconds in which a beat retries after each lost reply; far less than a hold.
SOON = 3.0
#: Seconds within which a beat dispatches again after the last lost reply.
AGAIN = 2.0
#: All requests of a beat run the same script; only requests that record runs contain ``RECORD``.
TURN, RECORD = b"EVALSHA", b"total_run_count"

#: A script for a beat that waits for the lock when it starts, as in RedBeat 2.
WAITS_FOR_THE_LOCK = """
import sys
from celery.__main__ import main
from celery.signals import beat_init
from redbeat.schedulers import acquire_distributed_beat_lock
beat_init.connect(acquire_distributed_beat_lock)
sys.exit(main())
"""


@pytest.fixture
def proxy(schedule_redis: RedisServer, schedule: Schedule) -> Iterator[Proxy]:
    """Run a proxy to a Redis that has the scripts; otherwise the first reply would be NOSCRIPT."""
    for name in ("turn", "extend", "release"):
        schedule.client.script_load(load_script(name).text)
    with Proxy(schedule_redis.port) as proxy:
        yield proxy


def dispatches_soon(schedule: Schedule, ledger: Ledger) -> Grid:
    """Store entries that are due now, and assert that the beat soon dispatches them."""
    grid = Grid.begin(schedule, names(5, "now"), HOUR, 0.0)
    unsent = set(grid.entries)
    wait_until(lambda: unsent <= {message.entry for message in ledger.messages}, 30.0, "runs")
    report = settle(ledger, [grid], grid.first)
    assert not report.late(AGAIN), str(report)
    return grid


def check_once(schedule: Schedule, ledger: Ledger, *grids: Grid) -> None:
    """Assert that each hourly entry ran once and that one run is recorded."""
    entries = [entry for one in grids for entry in one.entries]
    wait_until(lambda: not schedule.held(entries), 60.0, "all recorded")
    report = settle(ledger, grids, schedule.now())
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.same_id == report.other_id == 0
    assert set(schedule.run_counts(entries).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("count", [1, LOST_REPLIES])
def test_replies_to_looks_are_lost(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    note: Note,
    count: int,
) -> None:
    """Setup: one beat behind a proxy, 50 hourly entries, due at the same instant.

    Fault: starting just before this instant, Redis executes one to three scripts, but the beat gets
    a reset instead of the reply. The beat does not learn what is due, or what it has recorded.

    Invariant: each entry runs once, within 3 s.
    """
    with Proxy(schedule_redis.port) as proxy:
        beats.start(schedule_url=proxy.url)
        beats[0].wait_for("beat: Acquired lock")
        one = Grid.begin(schedule, ENTRIES, HOUR, AHEAD)
        wait_until(lambda: schedule.now() >= one.first - 0.2, 30.0)
        proxy.swallow_replies(count, b"EVALSHA")
        report = settle(ledger, [one], one.first)
        wait_until(lambda: not schedule.due_before(one.first + HOUR / 2), 90.0, "all recorded")
        note(f"{report}; {proxy.struck} replies lost")
        assert proxy.struck == count
    assert not report.lost
    assert not report.unknown
    assert report.other_id == 0
    assert report.same_id == 0
    assert not report.late(SOON)
    assert set(schedule.run_counts(ENTRIES).values()) == {1}


@pytest.mark.parametrize("window", [1, pytest.param(100, marks=pytest.mark.long)])
def test_replies_to_publishing_are_lost(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    broker_redis: RedisServer,
    note: Note,
    window: int,
) -> None:
    """Setup: one beat with its broker behind a proxy, 50 hourly entries, due at the same instant.

    Fault: three times the broker accepts one or several messages, but the beat gets a reset instead
    of the reply.

    Invariant: no run is lost. A message that the broker accepted may be sent again with the same
    id. If messages are written one by one, this happens at most once for each lost reply. Each run
    is recorded once.
    """
    with Proxy(broker_redis.port) as proxy:
        beats.start(broker_url=proxy.url, settings={"redbeat_publish_window": window})
        beats[0].wait_for("beat: Acquired lock")
        proxy.swallow_replies(LOST_REPLIES, b"LPUSH")
        one = Grid.begin(schedule, ENTRIES, HOUR, AHEAD)
        report = settle(ledger, [one], one.first)
        wait_until(lambda: not schedule.due_before(one.first + HOUR / 2), 90.0, "all recorded")
        report = settle(ledger, [one], one.first)
        note(f"{report}; {proxy.struck} replies lost")
        assert proxy.struck == LOST_REPLIES
    assert not report.lost
    assert not report.unknown
    assert report.other_id == 0
    assert report.same_id <= LOST_REPLIES * min(window, len(ENTRIES))
    assert set(schedule.run_counts(ENTRIES).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("waits", [False, True], ids=["in a tick", "at its start"])
def test_replies_to_acquiring_are_lost(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    proxy: Proxy,
    tmp_path: Path,
    waits: bool,
) -> None:
    """Setup: Redis has due entries and the scripts, and no beat has the lock. A beat starts; it
    acquires the lock during its ticks, or waits for the lock when it starts.

    Fault: Redis executes the first three scripts, but the beat gets a reset instead of the reply.
    The beat owns the lock and does not know it.

    Invariant: the beat does not lock itself out, and the token in the lock does not change. Within
    2 s after the fault, the beat dispatches each entry once.
    """
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(WAITS_FOR_THE_LOCK)
    one = Grid.begin(schedule, ENTRIES, HOUR, 0.0)
    proxy.swallow_replies(LOST_REPLIES, TURN)
    beats.start(schedule_url=proxy.url, wrapper=wrapper if waits else None)
    wait_until(lambda: proxy.struck > 0, 60.0, "the first reply to be lost")
    token = wait_until(schedule.lock_token, 1.0, "the lock that was taken")
    assert beats.leader() == 0
    assert "beat: Acquired lock" not in beats[0].output()
    wait_until(lambda: proxy.struck == LOST_REPLIES, 30.0, "the last reply to be lost")
    wait_until(lambda: len(ledger) > 0, AGAIN, "a run")
    check_once(schedule, ledger, one, dispatches_soon(schedule, ledger))
    assert schedule.lock_token() == token
    assert beats.terminate(0) == 0
    assert schedule.lock_token() is None


@pytest.mark.parametrize("count", [1, long(2)])
def test_a_lock_that_was_taken_with_a_lost_reply_is_held(
    schedule: Schedule, proxy: Proxy, beats: Beats, count: int
) -> None:
    """Setup: a scheduler in another program, on a Redis with a free lock.

    Fault: Redis executes ``BeatLock.acquire`` and ``release``, and the replies are lost.

    Invariant: the second ``acquire`` succeeds with the same token, and a beat waits as a standby.
    After the ``release``, the beat acquires the lock.
    """
    app = Celery("other", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=proxy.url, redbeat_lock_timeout=60.0)
    lock = RedBeatScheduler(app).lock
    assert lock is not None
    proxy.swallow_replies(count, b"SET")
    with suppress(RedisError):  # Whether the call fails depends on redis-py's retries.
        lock.acquire(blocking=False)
    assert proxy.struck > 0
    proxy.swallow_replies(0)
    assert schedule.lock_token() == lock.token
    assert lock.acquire(blocking=False)
    assert schedule.lock_token() == lock.token
    beats.start()
    beats[0].wait_for("standing by")
    proxy.swallow_replies(count, TURN)
    with suppress(RedisError):
        lock.release()
    proxy.swallow_replies(0)
    wait_until(lambda: beats.leader() == 0, 10.0, "the beat that takes over")
    assert not lock.release()
    assert not lock.acquire(blocking=False)
    app.close()


@pytest.mark.long
def test_replies_to_renewing_are_lost(
    beats: Beats, schedule: Schedule, ledger: Ledger, proxy: Proxy, profile: Profile
) -> None:
    """Setup: an idle leader and a standby, with a lock timeout of 5 s.

    Fault: every reply to the leader is lost, for longer than the lock exists without a renewal.

    Invariant: Redis executes the renewals, so the standby does not acquire the lock. Within 2 s
    after the fault, the leader dispatches each due entry once.
    """
    beats.start_leader_and_standby(schedule_url=proxy.url)
    dispatches_soon(schedule, ledger)
    token = schedule.lock_token()
    for _ in range(profile.pick(1, 5)):
        proxy.swallow_replies(1000, TURN)
        before, until = proxy.struck, schedule.now() + 1.2 * LOCK_TIMEOUT
        wait_until(lambda until=until: schedule.now() >= until, 60.0)  # type: ignore[misc]
        proxy.swallow_replies(0)
        assert proxy.struck >= before + LOST_REPLIES
        assert schedule.lock_token() == token
    one = Grid.begin(schedule, ENTRIES, HOUR, 0.0)
    wait_until(lambda: len(ledger) >= len(ENTRIES), 2 * AGAIN, "runs")
    check_once(
        schedule, ledger, one, Grid(names(5, "now"), HOUR, ledger.messages[0].scheduled_at or 0)
    )
    assert schedule.lock_token() == token
    assert {message.sender for message in ledger.messages} == {beats[0].popen.pid}


@pytest.mark.long
def test_replies_to_completing_are_lost(
    beats: Beats, schedule: Schedule, ledger: Ledger, proxy: Proxy, note: Note
) -> None:
    """Setup: a leader behind a proxy, and a standby; 50 hourly entries, due at the same instant.

    Fault: three times Redis records runs of the leader and the reply is lost.

    Invariant: each entry is sent once and counted once, and nothing is held. The leader keeps the
    lock.
    """
    beats.start_leader_and_standby(schedule_url=proxy.url)
    token = schedule.lock_token()
    proxy.swallow_replies(LOST_REPLIES, RECORD)
    one = Grid.begin(schedule, ENTRIES, HOUR, AHEAD)
    wait_until(lambda: proxy.struck == LOST_REPLIES, 60.0, "lost replies")
    again = dispatches_soon(schedule, ledger)
    check_once(schedule, ledger, one, again)
    note(str(settle(ledger, [one], one.first)))
    assert schedule.lock_token() == token
    assert {message.sender for message in ledger.messages} == {beats[0].popen.pid}


@pytest.mark.long
@BOTH_BROKERS
def test_replies_are_lost_at_random(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    proxy: Proxy,
    profile: Profile,
    note: Note,
    seed: int,
) -> None:
    """Setup: a leader behind a proxy, and a standby; 30 entries every second.

    Fault: repeatedly, the replies to one or two random requests are lost. These requests look,
    record, or renew the lock.

    Invariant: each occurrence has one message and one record, less than 2 s late. The leader keeps
    the lock.
    """
    chance = random.Random(f"replies {seed}")
    beats.start_leader_and_standby(schedule_url=proxy.url)
    token, entries = schedule.lock_token(), names(30)
    one = Grid.begin(schedule, entries, 1.0, AHEAD)
    wait_until(lambda: len(ledger) > 0, 30.0, "the first runs")
    for _ in range(profile.pick(6, 40)):
        count = proxy.struck + chance.choice((1, 1, 2))
        proxy.swallow_replies(count - proxy.struck, TURN)
        wait_until(lambda count=count: proxy.struck >= count, 30.0, "lost replies")  # type: ignore[misc]
        until = schedule.now() + chance.uniform(0.1, 1.2)
        wait_until(lambda until=until: schedule.now() >= until, 30.0)  # type: ignore[misc]
    until = schedule.now()
    settle(ledger, [one], until)
    assert schedule.lock_token() == token
    for number in (1, 0):
        assert beats.terminate(number) == 0
    report = settle(ledger, [one], until)
    note(f"{report}; {proxy.struck} replies lost")
    assert not report.lost
    assert not report.coalesced
    assert not report.unknown
    assert not report.early
    assert report.same_id == report.other_id == 0
    assert not report.late(AGAIN)
    senders = {message.sender for message in ledger.messages}
    assert senders == {beats[0].popen.pid}
    sent = {entry: sum(message.entry == entry for message in ledger.messages) for entry in entries}
    assert schedule.run_counts(entries) == sent
