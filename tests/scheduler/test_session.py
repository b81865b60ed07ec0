"""The requests of a beat to Redis: what is repeated, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat.beat.retries import Pace
from redbeat.beat.session import LONGEST_LEASE, Session
from redbeat.metrics.counters import Counters
from redbeat.storage.client import client_of, unretried
from redbeat.storage.records import BEFORE_RECORD, RAN, WITH_RECORD, Completion
from redbeat.storage.store import store_of

from .clients import Wire
from .conftest import Clock, World


@pytest.fixture
def session(app: Celery, wire: Wire) -> Session:
    """The session of a beat without a lock, whose client can lose replies."""
    assert app.redbeat_redis is wire
    store = store_of(app, unretried(client_of(app)))
    return Session(store, None, Clock(), LONGEST_LEASE, 10, Counters(0), Pace(None))


def lose_claims(world: World, wire: Wire, session: Session) -> None:
    """Claim the entry ``a``, and lose the reply."""
    world.put("a")
    wire.lose(lambda: world.is_claimed("a"))
    with pytest.raises(RedisConnectionError):
        session.request(1)


def test_claims_of_a_lost_request_are_kept_by_a_request_without_claims(
    world: World, wire: Wire, session: Session
) -> None:
    """For example, the lock is renewed, or a run is recorded that is sent afterwards."""
    lose_claims(world, wire, session)
    claimed = session.request(0).reply.claims
    ready = session.finish()
    assert len(claimed) == 1
    assert ready is not None
    assert ready.reply.claims == claimed
    assert session.finish() is None


def test_a_repeated_request_keeps_the_order_of_message_and_record(
    world: World, wire: Wire, session: Session
) -> None:
    """The claims in the reply were made for the order in the first request."""
    session.way = WITH_RECORD
    lose_claims(world, wire, session)
    session.way = BEFORE_RECORD
    response = session.next_response(1)
    assert len(response.reply.claims) == 1
    assert response.request.way == WITH_RECORD


@pytest.mark.parametrize(
    "large",
    [{"messages": "\xe9" * 600_000}, {"definition": "d" * (1 << 20)}, {"definition": "\xe9"}],
)
def test_pending_completions_are_sent_before_they_have_too_many_bytes(
    app: Celery, session: Session, large: dict[str, Any]
) -> None:
    assert app
    session.record(Completion("redbeat:a", "c1", RAN, 1, **large))
    session.send_if_full(1000.0)
    assert bool(session.pending) is (len(next(iter(large.values()))) == 1)
