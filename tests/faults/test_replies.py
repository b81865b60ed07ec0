"""What was asked for was done, but the answer is lost: of Redis, or of the broker."""

from __future__ import annotations

from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.proxy import Proxy
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

ENTRIES = names(50)
HOUR = 3600.0
AHEAD = 2.0
LOST_REPLIES = 3
#: Seconds in which a beat has tried again as often as replies are lost; far less than a lease.
SOON = 3.0


def test_replies_to_claims_are_lost(
    beats: Beats, schedule: Schedule, ledger: Ledger, schedule_redis: RedisServer, note: Note
) -> None:
    """Setup: one beat behind a proxy, 50 entries of an hour, due at the same instant.

    Fault: Redis carries out the next three scripts from just before that instant on, but the beat
    gets a reset instead of the reply: it never learns what it has claimed.

    Invariant: each entry runs once, within 3 s and not when the lease of the lost claim is over.
    """
    with Proxy(schedule_redis.port) as proxy:
        beats.start(schedule_url=proxy.url)
        beats[0].wait_for("beat: Acquired lock")
        one = Grid.begin(schedule, ENTRIES, HOUR, AHEAD)
        wait_until(lambda: schedule.now() >= one.first - 0.2, 30.0)
        proxy.swallow_replies(LOST_REPLIES, b"EVALSHA")
        report = settle(ledger, [one], one.first)
        wait_until(lambda: not schedule.due_before(one.first + HOUR / 2), 90.0, "all recorded")
        note(f"{report}; {proxy.struck} replies lost")
        assert proxy.struck == LOST_REPLIES
    assert not report.lost
    assert not report.unknown
    assert report.other_id == 0
    assert report.same_id == 0
    assert not report.late(SOON)
    assert set(schedule.run_counts(ENTRIES).values()) == {1}


def test_replies_to_publishing_are_lost(
    beats: Beats, schedule: Schedule, ledger: Ledger, broker_redis: RedisServer, note: Note
) -> None:
    """Setup: one beat whose broker is behind a proxy, 50 entries of an hour, due at one instant.

    Fault: three times the broker takes a message, but the beat gets a reset instead of the reply.

    Invariant: no run is lost. A message that was taken may come again, under the same id; the run
    is recorded once.
    """
    with Proxy(broker_redis.port) as proxy:
        beats.start(broker_url=proxy.url)
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
    assert report.same_id <= LOST_REPLIES
    assert set(schedule.run_counts(ENTRIES).values()) == {1}
