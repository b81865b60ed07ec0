"""Redis did what it was told, and its answer never arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat.storage.records import Terms
from tests.scheduler.conftest import (
    LOCK,
    Clock,
    RecordingScheduler,
    World,
    datetime_json,
    interval_json,
    once,
)

LOST = RedisConnectionError("the answer got lost")


def swallow(
    scheduler: RecordingScheduler, which: Callable[[Terms], bool], times: int = 1
) -> list[Terms]:
    """Lose the answers to the next ``times`` turns for which ``which`` holds; return these."""
    store = scheduler._ticker._store
    claim, begin_claim = store.claim, store.begin_claim
    lost: list[Terms] = []

    def loses(terms: Terms) -> bool:
        if len(lost) == times or not which(terms):
            return False
        lost.append(terms)
        return True

    def claim_unheard(*terms: Any) -> Any:
        answer = claim(*terms)
        if loses(Terms(*terms)):
            raise LOST
        return answer

    def begin_unheard(terms: Terms) -> Any:
        answer = begin_claim(terms)

        def read() -> Any:
            turn = answer()
            if loses(terms):
                raise LOST
            return turn

        return read

    store.claim, store.begin_claim = claim_unheard, begin_unheard
    return lost


def claiming(terms: Terms) -> bool:
    """Whether a turn asks for claims."""
    return bool(terms.limit)


def completing(terms: Terms) -> bool:
    """Whether a turn records something."""
    return bool(terms.completions)


@pytest.fixture
def scheduler(world: World, clock: Clock) -> RecordingScheduler:
    """A leading beat."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    return scheduler


def test_claims_are_handed_out_again_at_the_next_tick(
    world: World, scheduler: RecordingScheduler
) -> None:
    world.put_many(40)
    lost = swallow(scheduler, claiming)
    scheduler.tick()
    assert len(lost) == 1
    assert scheduler.sent == []
    scheduler.tick()
    assert sorted(scheduler.names) == sorted(f"e{n}" for n in range(40))
    assert all(world.run_count(f"e{n}") == 1 for n in range(40))


def test_nothing_else_is_handed_out_with_them(world: World, scheduler: RecordingScheduler) -> None:
    """What became due meanwhile is claimed by a turn of its own, under an id of its own."""
    world.put("a")
    swallow(scheduler, claiming)
    scheduler.tick()
    world.put("b")
    scheduler.tick()
    assert scheduler.names == ["a", "b"]


def test_lost_twice(world: World, scheduler: RecordingScheduler) -> None:
    world.put("a")
    swallow(scheduler, claiming, times=2)
    scheduler.tick()
    scheduler.tick()
    assert scheduler.sent == []
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_a_question_that_never_arrived_claims_what_is_due(
    world: World, scheduler: RecordingScheduler
) -> None:
    world.put("a")
    store = scheduler._ticker._store
    claim = store.claim

    def cut(*_terms: Any) -> Any:
        store.claim = claim
        raise LOST

    store.claim = cut
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_claims_that_expired_meanwhile_are_anybodys(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    (terms,) = [swallow(scheduler, claiming)]
    scheduler.tick()
    assert terms
    world.expire_claim("a")
    world.client.delete(LOCK)
    heir = world.scheduler()
    heir.tick()
    clock.advance(60)
    scheduler.tick()
    assert (heir.names, scheduler.names) == (["a"], [])


def test_what_was_recorded_is_not_recorded_twice(
    world: World, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    swallow(scheduler, completing)
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.run_count("a") == 1
    assert not world.is_claimed("a")
    assert "deleted or replaced" not in log.text


def test_answers_to_a_batch_that_overlaps(world: World, scheduler: RecordingScheduler) -> None:
    """Both batches are under way: one is recorded and the next claimed by the turn that is lost."""
    world.put_many(1200)
    lost = swallow(scheduler, lambda terms: claiming(terms) and completing(terms))
    for _ in range(4):
        scheduler.tick()
    assert len(lost) == 1
    assert sorted(scheduler.names) == sorted(f"e{n}" for n in range(1200))
    assert all(world.run_count(f"e{n}") == 1 for n in range(0, 1200, 50))


def test_a_history_written_by_an_application_survives_a_lost_refusal(
    world: World, scheduler: RecordingScheduler
) -> None:
    """The answer that told of the application's history is lost; asking again tells it again."""
    world.put("a", interval_json(600), world.ago(900))
    theirs = world.ago(5)
    scheduler.before_send = once(lambda: world.put_meta("a", theirs))
    swallow(scheduler, completing)
    for _ in range(3):
        scheduler.tick()
    assert world.field("a", "meta")["last_run_at"] == datetime_json(theirs)
    assert world.run_count("a") == 1
    assert scheduler.names == ["a"]


def test_becoming_the_leader_unheard(world: World) -> None:
    """No self-lockout: the lock that was taken by a lost answer is ours."""
    world.put("a")
    scheduler = world.scheduler()
    lost = swallow(scheduler, lambda _terms: True)
    scheduler.tick()
    assert len(lost) == 1
    assert world.client.get(LOCK) == scheduler.lock.token  # type: ignore[union-attr]
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_stopping_gives_back_what_was_claimed_unheard(
    world: World, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    swallow(scheduler, claiming)
    scheduler.tick()
    assert world.is_claimed("a")
    scheduler.close()
    heir = world.scheduler()
    heir.tick()
    assert heir.names == ["a"]
