"""`park.lua` and `review.lua`: an unreadable entry is quarantined until it is edited."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from redbeat.storage.quarantine import digest_of
from redbeat.storage.records import RAN, REFUSED, Claim, Completion
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.storage.conftest import KEYS, ClaimOne, Put


def score_of(client: redis.Redis, key: str) -> Any:
    return client.zscore(KEYS.schedule, key)


def note_on(claim: Claim) -> str:
    return json.dumps({"reason": "bad", "since": 1, "digest": digest_of(claim)})


def park(store: Store, claim: Claim, claim_id: str = "c1") -> list[str]:
    return store.park([(claim.key, claim_id, note_on(claim))])


def test_a_parked_entry_is_kept_and_reported_and_never_due(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m", note="mine", identity='""')
    before = redis_client.hgetall(key)
    claim = claim_one()
    assert park(store, claim) == [key]
    assert redis_client.hgetall(key) == before
    assert score_of(redis_client, key) == -1
    assert store.quarantined() == {key: note_on(claim)}
    turn = store.claim("c2", 500, 30)
    assert (turn.claims, turn.quarantined) == ([], 1)


def test_parking_again_changes_nothing(store: Store, put: Put, claim_one: ClaimOne) -> None:
    put("a")
    claim = claim_one()
    park(store, claim)
    assert park(store, claim) == []
    assert len(store.quarantined()) == 1


def test_only_the_holder_of_the_claim_parks(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    stalled = claim_one("stalled", lease=-1)
    claim_one("alive")
    held = score_of(redis_client, key)
    assert park(store, stalled, "stalled") == []
    assert score_of(redis_client, key) == held
    assert store.quarantined() == {}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("definition", "repaired"),
        ("definition", "of a"),  # the claim has the definition from before the change
        ("meta", "repaired"),
        ("policy", "repaired"),
    ],
)
def test_an_entry_repaired_before_it_is_parked_is_made_due_again(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, field: str, text: str
) -> None:
    put("a", meta="m")
    claim = claim_one()
    redis_client.hset(claim.key, field, text)
    assert park(store, claim) == []
    assert store.quarantined() == {}
    assert claim_one("c2").key == claim.key


def test_an_entry_deleted_before_it_is_parked_leaves_no_note(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    put("a")
    claim = claim_one()
    store.delete(claim.key)
    assert park(store, claim) == []
    assert list(redis_client.scan_iter(f"{PREFIX}*")) == []


def test_a_parked_claim_cannot_be_completed(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    park(store, claim_one())
    (result,) = store.claim("c2", 0, 30, [Completion(key, "c1", RAN, 5, "ran", "r")]).results
    assert result.code == REFUSED
    assert score_of(redis_client, key) == -1


def test_a_key_of_another_type_is_parked_until_it_is_a_hash(
    store: Store, redis_client: redis.Redis
) -> None:
    key = KEYS.entry("a")
    redis_client.set(key, "x")
    redis_client.zadd(KEYS.schedule, {key: 1})
    (claim,) = store.claim("c1", 500, 30).claims
    assert park(store, claim, "") == [key]
    assert redis_client.get(key) == "x"
    assert store.review([(key, digest_of(claim))]) == []
    redis_client.delete(key)
    redis_client.hset(key, "definition", "d")
    assert store.review([(key, digest_of(claim))]) == [key]
    assert score_of(redis_client, key) > 1


def test_a_key_that_became_a_hash_before_it_is_parked_is_made_due_again(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = KEYS.entry("a")
    redis_client.set(key, "x")
    redis_client.zadd(KEYS.schedule, {key: 1})
    (claim,) = store.claim("c1", 500, 30).claims
    redis_client.delete(key)
    put("a")
    assert park(store, claim, "") == []
    assert store.quarantined() == {}


def test_review_keeps_unchanged_entries(store: Store, put: Put, claim_one: ClaimOne) -> None:
    put("a", meta="m", policy="p")
    claim = claim_one()
    park(store, claim)
    assert store.review([(claim.key, digest_of(claim))]) == []
    assert len(store.quarantined()) == 1


@pytest.mark.parametrize("field", ["definition", "meta", "policy"])
def test_review_releases_changed_entries(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, field: str
) -> None:
    put("a", meta="m")
    claim = claim_one()
    park(store, claim)
    redis_client.hset(claim.key, field, "repaired")
    assert store.review([(claim.key, digest_of(claim))]) == [claim.key]
    assert store.quarantined() == {}
    assert claim_one("c2").key == claim.key


def test_review_of_a_text_that_is_not_utf_8_agrees_on_its_digest(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    put("a")
    redis_client.hset(KEYS.entry("a"), "definition", b"\xff\xfe")
    claim = claim_one()
    park(store, claim)
    assert store.review([(claim.key, digest_of(claim))]) == []


def test_review_removes_notes_of_deleted_entries(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    put("a")
    claim = claim_one()
    park(store, claim)
    redis_client.delete(claim.key)
    redis_client.zrem(KEYS.schedule, claim.key)
    store.review([(claim.key, digest_of(claim))])
    assert list(redis_client.scan_iter(f"{PREFIX}*")) == []


def test_many_notes_are_written_in_batches(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    for n in range(501):
        put(f"e{n}")
    claims = store.claim("c1", 501, 30).claims
    parked = store.park([(claim.key, "c1", note_on(claim)) for claim in claims])
    assert len(parked) == redis_client.hlen(KEYS.quarantine) == 501
    assert store.review([(claim.key, digest_of(claim)) for claim in claims]) == []
