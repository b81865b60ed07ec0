"""Every beat stores its presence in Redis, whether it leads, stands by or has no lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat.management.schedule import Schedule
from redbeat.management.status import status_of
from redbeat.storage.keys import Keys
from redbeat.storage.reading import PROBLEM
from redbeat.storage.rows import Change, Look, Reply, Request
from redbeat.storage.store import Store
from redbeat.storage.words import LEADS, STANDBY
from tests.deployments import PREFIX
from tests.servers import RedisServer

from .conftest import BEATS, LOCK, SCHEDULE, STATS, Clock, RecordingScheduler, World

KEYS = Keys(PREFIX)


class Place:
    """The store of one beat."""

    def __init__(self, client: redis.Redis, token: str = "me") -> None:
        self.client, self.token, self.store = client, token, Store(client, KEYS)

    def turn(self, milliseconds: int = 0, *changes: Change) -> Reply:
        """Make a turn that notes this beat; with a lock if that expires after some time."""
        lock = (LOCK, milliseconds, "") if milliseconds else None
        look = Look(limit=500, shares=lock is None)
        return self.store.turn(Request(self.token, lock, changes, look, counts_id="c"))


def token_of(scheduler: RecordingScheduler) -> str:
    assert scheduler.lock is not None
    return scheduler.lock.token


def present(world: World, count: int) -> list[RecordingScheduler]:
    """Return ``count`` schedulers after their first tick. The first one leads."""
    beats = [world.scheduler() for _ in range(count)]
    for beat in beats:
        beat.tick()
    return beats


def test_the_status_lists_the_leader_and_the_standbys(world: World) -> None:
    leader, *standbys = present(world, 3)
    found = Schedule(world.app).status()
    assert found.leader is not None
    assert found.leader.token == token_of(leader)
    assert found.beats == [found.leader]
    assert {beat.token for beat in found.standbys} == set(map(token_of, standbys))
    for beat in (found.leader, *found.standbys):
        assert beat.last_seen is not None
        assert 0 <= (found.now - beat.last_seen).total_seconds() < 30


def test_the_status_tells_since_when_the_leader_leads(world: World) -> None:
    leader, standby = present(world, 2)
    begin = world.now()
    first = Schedule(world.app).status().leader
    assert first is not None
    assert first.leads_since is not None
    assert first.leads_since.timestamp() < begin
    leader.close()
    assert Schedule(world.app).status().leader is None
    standby.tick()
    now = Schedule(world.app).status().leader
    assert now is not None
    assert now.token == token_of(standby)
    assert now.leads_since is not None
    assert now.leads_since.timestamp() > begin, "not when its process began"


def test_a_problem_of_the_leader_before_is_gone_after_a_takeover(world: World) -> None:
    leader, standby = present(world, 2)
    world.client.hset(STATS, "problem", "the broker is not available: redis://dead")
    leader.close()
    standby.tick()
    assert Schedule(world.app).status().problems == []


def test_a_standby_notes_nothing_but_its_presence(world: World) -> None:
    leader = present(world, 1)[0]
    world.put("a", score=world.now() + 1000)
    before = world.dump()
    standby = present(world, 1)[0]
    assert world.dump() == before
    tokens = {f"{token_of(beat)} lock" for beat in (leader, standby)}
    assert set(world.client.zrange(BEATS, 0, -1)) == tokens


def test_a_beat_of_redbeat_2_that_leads_is_not_among_the_beats_seen(world: World) -> None:
    world.client.set(LOCK, "c0ffee", ex=100)
    standby = present(world, 1)[0]
    found = Schedule(world.app).status()
    assert found.leader is not None
    assert (found.leader.token, found.leader.last_seen) == ("c0ffee", None)
    assert [beat.token for beat in found.standbys] == [token_of(standby)]


def test_beats_with_a_lock_take_no_share_from_a_beat_without_one(world: World) -> None:
    """Both kinds of beats run for some time if ``redbeat_lock_key`` changes in a deployment."""
    present(world, 3)
    beat = Place(world.client)
    assert beat.turn().rows == []
    world.put_many(40)
    assert len(beat.turn().rows) == 40


def test_the_status_lists_the_leader_and_a_beat_without_a_lock(world: World) -> None:
    leader, _ = present(world, 2)
    Place(world.client).turn()
    found = Schedule(world.app).status()
    assert [beat.token for beat in found.beats] == [token_of(leader), "me"]


@pytest.fixture
def full() -> Iterator[Place]:
    """The leader of a server without free memory."""
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        client.hset(f"{PREFIX}a", "definition", "d")
        client.zadd(KEYS.schedule, {f"{PREFIX}a": 1})
        leader = Place(client, "leader")
        leader.turn(100_000)
        client.delete(BEATS)
        client.config_set("maxmemory", 1)
        yield leader
        client.close()


def test_a_standby_finds_out_that_memory_is_full(full: Place) -> None:
    """It could not take over either, so it is not ready."""
    store, lock = Store(full.client, KEYS), (LOCK, 60_000, "")
    requests = [Request("me", lock, look=Look(), counts_id=counts_id) for counts_id in ("c", "")]
    for request in requests:
        with pytest.raises(redis.OutOfMemoryError):
            store.turn(request)
    full.client.config_set("maxmemory", 0)
    assert [store.turn(request).standing for request in requests] == [STANDBY, STANDBY]


def test_a_leader_renews_its_lock_when_memory_is_full(full: Place) -> None:
    assert full.turn(900_000).standing == LEADS
    assert full.client.pttl(LOCK) > 800_000


def test_a_leader_changes_nothing_when_memory_is_full(full: Place) -> None:
    """A script may exceed the memory limit after its first write, so presence is written last."""
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full.turn(900_000, Change(f"{PREFIX}a", set={"meta": "{}"}, score=2))
    assert full.client.zscore(KEYS.schedule, f"{PREFIX}a") == 1
    assert full.client.hgetall(f"{PREFIX}a") == {"definition": "d"}


def test_a_key_of_another_kind_does_not_matter_to_beats_with_a_lock(world: World) -> None:
    world.client.set(BEATS, "x")
    world.put("a")
    leader = world.scheduler()
    leader.tick()
    leader.tick()
    assert leader.names == ["a"]
    world.client.delete(BEATS)


# -- beats without a lock --------------------------------------------------------------------------


def test_a_single_beat_sends_all_in_one_tick(world: World) -> None:
    """A beat also takes the share of another beat if that beat does not look first."""
    world.app.conf.redbeat_lock_key = None
    beats = [world.scheduler(clock=Clock()) for _ in range(2)]
    for beat in beats:
        beat.tick()
    world.put_many(400)
    beats[0].tick()
    assert len(beats[0].sent) == 400


def test_a_beat_that_starts_removes_the_problem_of_one_that_died(app: Celery, world: World) -> None:
    app.conf.redbeat_lock_key = None
    world.scheduler().tick()
    world.client.hset(f".{PREFIX}:stats", PROBLEM, "the broker is not available")
    assert status_of(app).problem
    world.scheduler().tick()
    assert status_of(app).problem == ""


def test_a_beat_stores_a_problem_again_that_another_beat_removed(
    app: Celery, world: World, clock: Clock
) -> None:
    """The beat does so every 30 seconds."""
    app.conf.redbeat_lock_key = None
    world.put("a")
    # A beat tries its next run, not the connection, if that run is due within ten seconds.
    world.put("soon", last_run_at=world.ago(55), score=world.now() + 5)
    scheduler = world.scheduler(clock=clock)

    def refuse(_task: str) -> None:
        raise OperationalError("gone")

    scheduler.before_send = refuse
    scheduler.tick()
    world.client.hdel(f".{PREFIX}:stats", PROBLEM)
    clock.advance(31)
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": world.now()})
    scheduler.tick()
    assert "gone" in status_of(app).problem
