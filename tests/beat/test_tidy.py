"""Side keys are tidied up: what belongs to deleted entries goes, what others wrote too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery

from redbeat.beat.upkeep import TIDY_INTERVAL, Upkeep
from redbeat.config import ensure_conf
from redbeat.entries.state import Failing, State
from redbeat.storage.keys import Keys
from redbeat.storage.rows import Change, Look, Reply, Request
from redbeat.storage.store import Store
from tests.beat.sending import Clock

PREFIX = "redbeat:"
SCHEDULE = f"{PREFIX}:schedule"
ASIDE = f".{PREFIX}:"


def tidied(client: Any, most: int = 10) -> None:
    """Tidy a whole schedule up, at the 1000th second."""
    app = Celery(set_as_current=False)
    app.conf.update(broker_url="redis://", redbeat_metrics_entries=most)
    store, clock = Store(client, Keys(PREFIX)), Clock()

    def exchange(changes: Sequence[Change]) -> Reply:
        return store.turn(Request("t", None, changes))

    upkeep = Upkeep(store, exchange, clock, ensure_conf(app))
    reply = store.turn(Request("t", None, (), Look(limit=0)))._replace(now=1000.0)
    for _ in range(4):  # the counts, and the indexes
        clock.now += TIDY_INTERVAL
        while upkeep.run(reply):
            pass


#: The sorted sets of entries aside of the schedule.
INDEXES = ("failing", "failed", "expected")


def put(client: Any, name: str, **state: Any) -> None:
    """Store an entry."""
    client.hset(
        f"{PREFIX}{name}", mapping={"definition": "{}", "beat_state": State(**state).text()}
    )
    client.zadd(SCHEDULE, {f"{PREFIX}{name}": 5})


def test_counts_of_deleted_entries_go(redis_client: Any) -> None:
    put(redis_client, "a b")
    stats = {"dispatched": 5, "dispatched a b": 2, "missed a b": 1, "failed gone": 1, "odd x": 1}
    redis_client.hset(f"{ASIDE}stats", mapping=stats)
    tidied(redis_client)
    assert redis_client.hgetall(f"{ASIDE}stats").keys() == stats.keys() - {"failed gone"}
    tidied(redis_client, most=0)
    assert redis_client.hgetall(f"{ASIDE}stats") == {"dispatched": "5", "odd x": "1"}


def test_what_is_gone_leaves_the_indexes(redis_client: Any) -> None:
    put(redis_client, "stays", failing=Failing(1.0, 1, "away"))
    for index in INDEXES:
        redis_client.zadd(f"{ASIDE}{index}", {f"{PREFIX}stays": 1, f"{PREFIX}gone": 1})
    tidied(redis_client)
    for index in INDEXES:
        assert redis_client.zrange(f"{ASIDE}{index}", 0, -1) == [f"{PREFIX}stays"]


def test_keys_of_a_wrong_type_stop_nothing(redis_client: Any) -> None:
    for name in ("stats", "failing", "expected", "beats"):
        redis_client.set(f"{ASIDE}{name}", "x")
    tidied(redis_client)
