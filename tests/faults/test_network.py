"""The network between a beat and Redis fails."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.faults.beats import LOCK_TIMEOUT, Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile
from tests.faults.proxy import Proxy
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

OFTEN = names(40)
#: Entries with intervals longer than the fault: after a gap, their runs are late, not coalesced.
SELDOM = names(20, "seldom")
SELDOM_SECONDS = 7.0
AHEAD = 1.0


def sent_by_several(ledger: Ledger) -> int:
    """Return how many occurrences were sent by more than one process."""
    senders: dict[tuple[str, float | None], set[int]] = defaultdict(set)
    for message in ledger.messages:
        senders[message.entry, message.scheduled_at].add(message.sender)
    return sum(len(pids) > 1 for pids in senders.values())


@BOTH_BROKERS
@pytest.mark.parametrize("cut", ["schedule", "schedule and broker"])
def test_the_leader_is_cut_off_without_a_reset(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    broker_redis: RedisServer,
    note: Note,
    one_server: bool,
    cut: str,
) -> None:
    """Setup: a leader behind a proxy, and a standby with a direct connection; entries every 1 s and
    every 7 s.

    Fault: no bytes pass between the leader and Redis for three lock timeouts. The leader can or
    cannot reach the broker. No connection is closed.

    Invariant: the standby takes over. No occurrence is lost or sent under two ids. If broker and
    schedule share a server, no occurrence is sent twice. When the network works again, the old
    leader is alive and is a standby.
    """
    with Proxy(schedule_redis.port) as to_schedule, Proxy(broker_redis.port) as to_broker:
        beats.start_leader_and_standby(schedule_url=to_schedule.url, broker_url=to_broker.url)
        grids = [
            Grid.begin(schedule, OFTEN, 1.0, AHEAD),
            Grid.begin(schedule, SELDOM, SELDOM_SECONDS, AHEAD),
        ]
        wait_until(lambda: len(ledger) >= 3 * len(OFTEN), 60.0, "the first runs")
        proxies = [to_schedule, to_broker] if "broker" in cut else [to_schedule]
        for proxy in proxies:
            proxy.black_hole()
        until = schedule.now() + 3 * LOCK_TIMEOUT
        wait_until(lambda: schedule.now() >= until, 60.0)
        assert beats.leader() == 1
        for proxy in proxies:
            proxy.heal()
        beats[0].wait_for("Lost the lock", 60.0)
        until = schedule.now()
        report = settle(ledger, grids, until)
        note(f"{report}; sent by both: {sent_by_several(ledger)}")
        assert beats.leader() == 1
        assert beats[0].is_alive
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0 or not one_server


@BOTH_BROKERS
def test_a_slow_network_that_resets_connections(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    profile: Profile,
    note: Note,
    one_server: bool,
) -> None:
    """Setup: a leader and a standby, both behind a proxy; entries every 1 s and every 7 s.

    Fault: for two minutes (short profile: 12 s), a round trip takes 100 to 300 ms. 1 % of the
    requests (short profile: 5 %) end in a reset, half of them after Redis executed the request.

    Invariant: the leader does not change: the lock has the same token all the time. No occurrence
    is lost or sent under two ids. If broker and schedule share a server, no occurrence is sent
    twice.
    """
    with Proxy(schedule_redis.port, seed=5) as proxy:
        beats.start_leader_and_standby(schedule_url=proxy.url)
        token = schedule.lock_token()
        proxy.delay(0.1, jitter=0.05)
        proxy.reset_rate(profile.pick(0.05, 0.01))
        grids = [
            Grid.begin(schedule, OFTEN, 1.0, AHEAD),
            Grid.begin(schedule, SELDOM, SELDOM_SECONDS, AHEAD),
        ]
        until, tokens = schedule.now() + profile.pick(12.0, 120.0), {token}

        def passed() -> bool:
            tokens.add(schedule.lock_token())
            return schedule.now() >= until and proxy.struck > 0

        wait_until(passed, profile.pick(60.0, 300.0))
        report = settle(ledger, grids, until)
        note(f"{report}; {proxy.struck} resets")
    assert tokens == {token}
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0 or not one_server
