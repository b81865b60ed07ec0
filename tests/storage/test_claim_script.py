"""`claim.lua`: no entry has two claims, completions count once, and both need the lock."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import redis

from redbeat.storage.reading import BATCH
from redbeat.storage.records import (
    BEFORE_RECORD,
    CHANGED,
    DELETE,
    DISABLE,
    ELSEWHERE,
    EXPIRED,
    FIRST,
    LEADER,
    NEW_LEADER,
    NOT_SENT,
    OVERTAKEN,
    RAN,
    RECORDED,
    REFUSED,
    RETRY,
    SAVED,
    SKIP,
    STANDBY,
    UNSURE,
    WAITS,
    WITH_RECORD,
    Broker,
    Completion,
    RunReport,
)
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.storage.conftest import KEYS, LOCK, ClaimOne, Put

NEXT = 4_000_000_000.5

#: Size in bytes of a string that is long enough for a claim to store only its digest.
LONG = 513


def score_of(client: redis.Redis, key: str) -> Any:
    return client.zscore(KEYS.schedule, key)


def complete(store: Store, *completions: Completion) -> list[int]:
    return [result.code for result in store.claim("other", 0, 30, completions).results]


# -- claims ------------------------------------------------------------------------------------


def test_an_empty_schedule_has_nothing_to_claim(store: Store) -> None:
    turn = store.claim("c1", 500, 30)
    assert (turn.standing, turn.claims, turn.results, turn.next_due) == (LEADER, [], [], None)
    assert (turn.members, turn.statics, turn.quarantined) == (0, 0, 0)


def test_a_claim_brings_the_texts_and_sets_the_score_to_the_end_of_the_lease(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = put("a", 12.5, meta="m", policy="p", runtime="r")
    turn = store.claim("c1", 500, 30)
    (claim,) = turn.claims
    assert (claim.key, claim.due) == (key, 12.5)
    assert (claim.definition, claim.meta, claim.policy, claim.runtime) == (
        "definition of a",
        "m",
        "p",
        "r",
    )
    assert score_of(redis_client, key) == pytest.approx(turn.now + 30, abs=1e-5)
    assert turn.next_due == score_of(redis_client, key)


def test_the_claim_contains_its_owner_and_the_claimed_texts(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = put("a", 12.5, meta="m", policy="p")
    now = store.claim("c1", 500, 30).now
    claim, marks = str(redis_client.hget(key, "claim")).split(",", 1)
    claim_id, due, expires, since, way = json.loads(claim[1:]).split(" ")
    assert (claim_id, float(due), way) == ("c1", 12.5, "l2")
    assert float(since) == pytest.approx(now, abs=1e-5)
    assert float(expires) == pytest.approx(now + 30, abs=1e-5)
    assert marks == "definition of a,p,m]"


def test_the_claim_contains_the_digest_of_a_long_text(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    policy, meta = "p" * LONG, "m" * LONG
    key = put("a", policy=policy, meta=meta)
    store.claim("c1", 500, 30)
    _, of_definition, of_meta = json.loads(str(redis_client.hget(key, "claim")))
    assert of_definition == hashlib.sha1(f"definition of a,{policy}".encode()).hexdigest()
    assert of_meta == hashlib.sha1(meta.encode()).hexdigest()


def test_a_claimed_entry_is_not_claimed_again(store: Store, put: Put) -> None:
    put("a")
    assert len(store.claim("c1", 500, 30).claims) == 1
    assert store.claim("c2", 500, 30).claims == []


def test_entries_that_are_not_due_or_parked_are_left_alone(store: Store, put: Put) -> None:
    put("later", NEXT)
    put("parked", -1)
    turn = store.claim("c1", 500, 30)
    assert (turn.claims, turn.next_due, turn.members) == ([], NEXT, 2)


def test_the_limit_is_kept_and_the_earliest_come_first(store: Store, put: Put) -> None:
    keys = [put(f"e{n}", n) for n in range(1, 6)]
    assert [claim.key for claim in store.claim("c1", 2, 30).claims] == keys[:2]
    assert [claim.key for claim in store.claim("c2", 500, 30).claims] == keys[2:]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("claim", f'["- {"1" * 60_000}x 0 - l2"]'),
        ("claim", f'["c1 1.0 {"1" * 60_000}x - l2"]'),
        ("claim", f'["c1 1.0 1.0 {"1" * 60_000}x l2"]'),
        ("claim", '["c1' + " 1" * 60_000 + '"]'),
        ("claim", '["c1 1.0 1.0 - l2",' + "]" * 60_000 + "x"),
        ("claim", '["c1 1.0 1.0 - l2",' + "] " * 60_000 + "x"),
        ("failing", '["1 1 1","' + '","' * 20_000),
        ("failing", '["1 1 1","' + "a" * 60_000),
        ("running", '"' + "a " * 60_000 + '"'),
        ("ended", '"' + "a " * 60_000 + '"'),
        ("trigger", '"' + "a:" * 60_000 + '"'),
        ("trigger", '"' + "a/b:" * 60_000 + 'x"'),
        ("identity", '"' + "a" * 60_000 + '"'),
        ("history", '"' + "a failed:b:1" * 10_000 + '"'),
        ("history", '"' + "1.0" + " " * 60_000 + '"'),
        ("unread", '["' + "1" * 60_000 + ' 1","x"]'),
        ("results", '"' + "1 " * 60_000 + '"'),
        ("results", '"- 0 - -' + "\\n" * 30_000 + '"'),
        ("runtime", "[" * 60_000),
        ("policy", '{"delivery":' + "[" * 60_000),
        ("policy", '"pause"' + " " * 60_000),
        ("definition", '{"enabled"' + " " * 60_000 + '"delivery"'),
    ],
)
def test_no_text_that_another_program_wrote_blocks_redis(
    store: Store, redis_client: redis.Redis, put: Put, field: str, text: str
) -> None:
    """Each script that reads an entry takes time in proportion to the length of the text."""
    if field in {"failing", "unread"}:
        put("a", claim='["x-1 1.0 1.0 - l2"]' if field == "failing" else "what is this")
    key = put("a", **{field: text})
    redis_client.config_set("slowlog-log-slower-than", 500_000)
    redis_client.slowlog_reset()
    claim_id = 0

    def claim_and(*operations: str) -> None:
        nonlocal claim_id
        for operation in operations:
            claim_id += 1
            store.claim(f"c{claim_id}", 500, 30)
            done = Completion(key, f"c{claim_id}", operation, 1, failure="f", history="1.0 s")
            complete(store, done)

    claim_and(RETRY, UNSURE, RETRY)
    store.save(key, '{"enabled":false}', "", "", "", None, None)
    store.save(key, '{"enabled":true}', '{"expect_within":60}', "", "", None, None)
    store.trigger(key, "run", 100)
    store.end_run(key, "task")
    store.end_run(key, "task", RunReport("FAILURE", "1.0", 0.0, "FAILURE -", 10))
    store.claim("expired", 500, -1)
    claim_and(RETRY, SKIP)
    store.page()
    store.read([key])
    store.counts(None, -2, 10)
    store.tidy_stats(100)
    slow = [(call["duration"], call["command"][:40]) for call in redis_client.slowlog_get(100)]
    assert slow == []


def test_a_script_measures_how_long_it_runs(
    store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers differ: in scripts of some, TIME stands still; others have no os.clock."""
    for number in range(400):
        put(f"e{number}")
    monkeypatch.setattr(Store, "max_claim_seconds", 0.0001)
    claimed = len(store.claim("c1", 500, 30).claims)
    monkeypatch.setattr(Store, "max_claim_seconds", 60.0)
    assert (claimed < 60, len(store.claim("c2", 500, 30).claims)) == (True, 400 - claimed)


def test_a_script_that_runs_too_long_leaves_the_rest_for_the_next(
    store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "max_claim_seconds", 0.0)
    keys = [put(f"e{number:03}", number + 1) for number in range(120)]
    claimed = [store.claim(f"c{n}", 500, 30).claims for n in range(3)]
    assert [claim.key for claims in claimed for claim in claims] == keys
    assert 50 <= len(claimed[0]) < 60


def test_few_large_entries_are_claimed_at_a_time(
    store: Store, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "max_claim_seconds", 0.0)
    for number in range(40):
        put(f"e{number}", definition=definition_of(60, args=["x" * 60_000]))
    assert 4 < len(store.claim("c1", 500, 30).claims) <= 12


def test_several_beats_share_a_full_batch_disjointly(
    store: Store, redis_client: redis.Redis
) -> None:
    keys = [KEYS.entry(f"e{n}") for n in range(2 * BATCH + 1)]
    with redis_client.pipeline() as pipeline:
        for key in keys:
            pipeline.hset(key, "definition", "d")
        pipeline.zadd(KEYS.schedule, dict.fromkeys(keys, 1))
        pipeline.execute()
    shares = [[claim.key for claim in store.claim(f"c{n}", BATCH, 30).claims] for n in range(4)]
    assert [len(share) for share in shares] == [BATCH, BATCH, 1, 0]
    assert sorted(key for share in shares for key in share) == sorted(keys)


def test_a_score_of_zero_is_due_now(store: Store, put: Put) -> None:
    put("a", 0)
    turn = store.claim("c1", 500, 30)
    assert turn.claims[0].due == pytest.approx(turn.now, abs=1e-5)


def test_a_lease_that_ran_out_is_claimed_again_for_the_same_occurrence(
    put: Put, claim_one: ClaimOne
) -> None:
    put("a", 12.5, meta="m")
    first = claim_one("dead", lease=-1)
    second = claim_one("alive")
    assert (second.due, second.meta) == (first.due, first.meta)


def test_a_live_claim_is_respected_even_when_the_score_was_overwritten(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    until = score_of(redis_client, key)
    redis_client.zadd(KEYS.schedule, {key: 0})
    assert store.claim("c2", 500, 30).claims == []
    assert score_of(redis_client, key) == pytest.approx(until, abs=1e-5)


UNREAD = [
    "what is this",
    '{"version": 3, "until": 9999999999}',
    '["- 12.500000 0 5.000000 l3","m",""]',
    '["- 12.500000 0 5.000000 l3 more","m",""]',
    '["- 12.500000 0 5.000000 later2","m",""]',
    f'["- 12.500000 0 5.000000 l2{" " * 600}","m",""]',
    f'["newer 12.500000 {"9" * 11}.000000 - l3","m",""]',
]


@pytest.mark.parametrize("text", UNREAD)
def test_a_claim_in_another_format_is_left_alone_for_a_while(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, text: str
) -> None:
    """The claim probably belongs to a beat of a later version, which knows what may have left."""
    key = put("a", 12.5, claim=text)
    now = store.claim("c1", 500, 30).now
    assert redis_client.hget(key, "claim") == text
    assert score_of(redis_client, key) == pytest.approx(now + 60, abs=0.1)
    first, score = json.loads(str(redis_client.hget(key, "unread")))[0].split(" ")
    assert float(first) == pytest.approx(now, abs=1e-5)
    assert float(score) == 12.5

    assert store.save(key, "definition of a", "", "", "", None, NEXT).code == SAVED
    assert store.claim("c2", 500, 30).claims == []
    assert redis_client.hget(key, "claim") == text
    assert score_of(redis_client, key) == pytest.approx(now + 60, abs=0.1)

    past = str(redis_client.hget(key, "unread")).replace(first, f"{now - 61:.6f}")
    redis_client.hset(key, "unread", past)
    redis_client.zadd(KEYS.schedule, {key: now - 1})
    assert claim_one("c3").due == 12.5
    assert not redis_client.hexists(key, "unread")


def test_each_claim_in_another_format_is_left_alone(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = put("a", claim="first")
    now = store.claim("c1", 500, 30).now
    old = str(redis_client.hget(key, "unread")).replace(f"{now:.6f}", f"{now - 61:.6f}")
    redis_client.hset(key, mapping={"unread": old, "claim": "second"})
    redis_client.zadd(KEYS.schedule, {key: 1})
    assert store.claim("c2", 500, 30).claims == []


@pytest.mark.parametrize("text", ["", '["c0 12.5 5.0","m",""]', '["- 12.5 0","m",""]'])
def test_an_older_claim_that_has_ended_does_not_block(
    put: Put, claim_one: ClaimOne, text: str
) -> None:
    put("a", claim=text)
    assert claim_one().key == KEYS.entry("a")


def test_a_bare_name_is_taken_as_that_entry(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("new-task-name")
    redis_client.delete(KEYS.schedule)
    redis_client.zadd(KEYS.schedule, {"new-task-name": 0})
    assert claim_one().key == key
    assert redis_client.zrange(KEYS.schedule, 0, -1) == [key]
    assert complete(store, Completion(key, "c1", RAN, NEXT, "ran", "r")) == [RECORDED]


def test_a_member_without_a_definition_is_reported_and_postponed(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    good = put("good", 2)
    gone = KEYS.entry("gone")
    redis_client.zadd(KEYS.schedule, {gone: 1})
    turn = store.claim("c1", 500, 30)
    assert [(claim.key, claim.definition) for claim in turn.claims] == [
        (gone, None),
        (good, "definition of good"),
    ]
    assert score_of(redis_client, gone) == pytest.approx(turn.now + 5, abs=1e-5)
    assert not redis_client.exists(gone)


def test_a_key_of_another_type_does_not_stop_other_claims(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    good, bad = put("good", 2), KEYS.entry("bad")
    redis_client.set(bad, "x")
    redis_client.zadd(KEYS.schedule, {bad: 1})
    first, second = store.claim("c1", 500, 30).claims
    assert (first.key, first.definition) == (bad, None)
    assert "not a hash" in first.problem
    assert second.key == good


def test_a_definition_that_is_not_text_does_not_stop_other_claims(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("bad", 1)
    put("good", 2)
    redis_client.hset(KEYS.entry("bad"), "definition", b"\xff")
    first, second = store.claim("c1", 500, 30).claims
    assert "not UTF-8" in first.problem
    assert second.problem == ""


def test_a_key_that_is_not_text_is_claimed_and_completed(
    store: Store, redis_client: redis.Redis, claim_one: ClaimOne
) -> None:
    raw: Any = PREFIX.encode() + b"\xff"
    redis_client.hset(raw, "definition", "d")
    redis_client.zadd(KEYS.schedule, {raw: 1})
    claim = claim_one()
    assert complete(store, Completion(claim.key, "c1", SKIP, NEXT)) == [RECORDED]
    assert redis_client.zscore(KEYS.schedule, raw) == NEXT


def test_an_entry_without_an_identity_gets_one_and_keeps_it(
    redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    first = claim_one("dead", lease=-1).identity
    assert first
    assert json.loads(str(redis_client.hget(key, "identity"))) == first
    assert claim_one("alive").identity == first


def test_an_identity_is_the_same_after_a_loss_of_data(
    redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    """If Redis loses the claim of a sent run, the run keeps its task id."""
    key = put("a")
    first = claim_one().identity
    redis_client.delete(key)
    put("a")
    assert claim_one("c2").identity == first
    redis_client.delete(key)
    put("a", meta="another history")
    assert claim_one("c3").identity not in ("", first)


def test_a_run_that_was_claimed_without_an_identity_keeps_its_id(
    redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", claim='["dead 1.000000 2.000000","m",""]')
    assert claim_one("alive").identity == ""
    assert redis_client.hget(key, "identity") == '""'


@pytest.mark.parametrize(
    ("stored", "read"), [('"x y"', "x y"), ('""', ""), ("no JSON", "no JSON"), ("", "")]
)
def test_an_identity_is_left_as_it_is(
    redis_client: redis.Redis, put: Put, claim_one: ClaimOne, stored: str, read: str
) -> None:
    key = put("a", identity=stored)
    assert claim_one().identity == read
    assert redis_client.hget(key, "identity") == stored


# -- completions -------------------------------------------------------------------------------


def test_a_completion_records_the_run(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m", note="mine", identity='""')
    claim_one()
    assert complete(store, Completion(key, "c1", RAN, NEXT, "ran", "r")) == [RECORDED]
    assert redis_client.hgetall(key) == {
        "definition": "definition of a",
        "meta": "ran",
        "runtime": "r",
        "note": "mine",
        "identity": '""',
    }
    assert score_of(redis_client, key) == NEXT


def test_a_completion_counts_once(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    done = Completion(key, "c1", RAN, NEXT, "ran", "r")
    assert complete(store, done) == [RECORDED]
    redis_client.hset(key, "meta", "written since")
    assert complete(store, done) == [REFUSED]
    assert redis_client.hget(key, "meta") == "written since"


def test_without_a_run_the_history_stays(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m", identity='""')
    before = redis_client.hgetall(key)
    claim_one()
    assert complete(store, Completion(key, "c1", SKIP, NEXT)) == [RECORDED]
    assert redis_client.hgetall(key) == before
    assert score_of(redis_client, key) == NEXT


def test_a_finished_entry_is_parked(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    complete(store, Completion(key, "c1", RAN, -1, "ran", "r"))
    assert score_of(redis_client, key) == -1


def test_a_completion_of_another_claim_is_refused(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m")
    claim_one("stalled", lease=-1)
    claim_one("alive")
    held = score_of(redis_client, key)
    assert complete(store, Completion(key, "stalled", RAN, NEXT, "late", "r")) == [REFUSED]
    assert (redis_client.hget(key, "meta"), score_of(redis_client, key)) == ("m", held)
    assert complete(store, Completion(key, "alive", RAN, NEXT, "ran", "r")) == [RECORDED]


def test_a_completion_past_its_lease_counts_until_another_claim(
    store: Store, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one(lease=-1)
    assert complete(store, Completion(key, "c1", RAN, NEXT, "ran", "r")) == [RECORDED]


@pytest.mark.parametrize(("lease", "code"), [(30, RECORDED), (-1, EXPIRED)])
def test_a_run_that_is_sent_after_its_record_needs_a_claim_that_has_not_ended(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, lease: float, code: int
) -> None:
    key = put("a", meta="m")
    claim_one(lease=lease)
    assert complete(store, Completion(key, "c1", FIRST, NEXT, "ran")) == [code]
    assert redis_client.hget(key, "meta") == ("ran" if code == RECORDED else "m")
    assert (score_of(redis_client, key) == NEXT) is (code == RECORDED)


def test_a_removed_member_stays_removed_and_the_run_is_recorded(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    """The run is recorded in the hash, so an entry that a sweep adds again does not run again."""
    key = put("a", meta="m")
    claim_one()
    redis_client.zrem(KEYS.schedule, key)
    assert complete(store, Completion(key, "c1", RAN, NEXT, "ran", "r")) == [RECORDED]
    assert redis_client.hget(key, "meta") == "ran"
    assert redis_client.zcard(KEYS.schedule) == 0


@pytest.mark.parametrize("instead", [None, "x"])
def test_an_entry_that_was_deleted_by_hand_or_became_something_else_is_refused(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    instead: str | None,
) -> None:
    key = put("a", meta="m")
    claim_one()
    redis_client.delete(key)
    if instead is not None:
        redis_client.set(key, instead)
    assert complete(store, Completion(key, "c1", RAN, NEXT, "ran", "r")) == [REFUSED]
    assert redis_client.get(key) == instead


@pytest.mark.parametrize("field", ["definition", "policy"])
@pytest.mark.parametrize(
    ("before", "edited"),
    [
        ("some text", "edited"),
        ("some text", "text"),
        ("text", "some text"),
        ("text", "text m"),
        ("a" * LONG, "a" * (LONG + 1)),
        ("a" * LONG, "b" * LONG),
        ("a" * LONG, "short"),
        ("short", "a" * LONG),
    ],
)
def test_an_entry_edited_during_its_claim_is_made_due_again(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    field: str,
    before: str,
    edited: str,
) -> None:
    key = put("a", meta="m", **{field: before})
    claim_one()
    redis_client.hset(key, field, edited)
    done = Completion(key, "c1", RAN, NEXT, "ran", "r")
    (result,) = store.claim("c2", 0, 30, [done]).results
    found: Any = redis_client.hmget(key, "definition", "policy", "meta")
    texts = tuple(text or "" for text in found)
    assert (result.code, result.texts) == (CHANGED, texts)
    assert texts[2] == "m"
    turn = store.claim("c2", 0, 30, [done._replace(seen=texts)])
    assert turn.results[0].code == RECORDED
    assert redis_client.hget(key, "meta") == "ran"
    assert score_of(redis_client, key) == pytest.approx(turn.now, abs=1e-5)


@pytest.mark.parametrize("before", ["", "m", "m" * LONG])
@pytest.mark.parametrize("theirs", ["theirs", "mm", "t" * LONG])
def test_a_concurrently_written_history_is_returned_and_kept(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    before: str,
    theirs: str,
) -> None:
    key = put("a", meta=before)
    claim_one()
    redis_client.hset(key, "meta", theirs)
    (result,) = store.claim("c2", 0, 30, [Completion(key, "c1", RAN, NEXT, "ran", "r")]).results
    assert (result.code, result.texts) == (CHANGED, ("definition of a", "", theirs))
    assert redis_client.hget(key, "meta") == theirs
    merged = Completion(key, "c1", RAN, NEXT, "merged", "r", seen=("definition of a", "", theirs))
    assert complete(store, merged) == [RECORDED]
    assert redis_client.hget(key, "meta") == "merged"


def test_a_concurrently_written_history_without_a_run_makes_the_entry_due_again(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m")
    claim_one()
    redis_client.hset(key, "meta", "theirs")
    turn = store.claim("c2", 0, 30, [Completion(key, "c1", SKIP, NEXT)])
    assert turn.results[0].code == OVERTAKEN
    assert score_of(redis_client, key) == pytest.approx(turn.now, abs=1e-5)
    assert redis_client.hget(key, "meta") == "theirs"


def test_completions_and_claims_share_a_request(
    store: Store, put: Put, claim_one: ClaimOne
) -> None:
    done = put("done")
    claim_one()
    following = put("following")
    turn = store.claim("c2", 500, 30, [Completion(done, "c1", RAN, 1, "ran", "r")])
    assert [result.code for result in turn.results] == [RECORDED]
    assert sorted(claim.key for claim in turn.claims) == [done, following]


def test_five_hundred_completions_fit_in_one_request(store: Store, put: Put) -> None:
    for n in range(BATCH):
        put(f"e{n}")
    claims = store.claim("c1", BATCH, 30).claims
    done = [Completion(claim.key, "c1", RAN, NEXT, "ran", "r") for claim in claims]
    assert complete(store, *done) == [RECORDED] * BATCH


def test_a_flushed_script_cache_is_invisible(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a")
    redis_client.script_flush()
    assert len(store.claim("c1", 500, 30).claims) == 1


@pytest.mark.parametrize("lock", [None, (LOCK, "me", 60.0, "")])
def test_a_full_redis_claims_nothing(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    lock: tuple[str, str, float, str] | None,
) -> None:
    """The script claims no entry, although renewing the lock needs no memory."""
    key = put("a", 1)
    redis_client.set(LOCK, "me", px=5_000)
    redis_client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            store.claim("c1", 500, 30, (), lock)
    finally:
        redis_client.config_set("maxmemory", "0")
    assert redis_client.hgetall(key) == {"definition": "definition of a"}
    assert score_of(redis_client, key) == 1


# -- the lock ----------------------------------------------------------------------------------


def test_a_free_lock_is_taken_and_nothing_is_claimed_yet(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a")
    turn = store.claim("c1", 500, 30, (), (LOCK, "me", 60, ""))
    assert (turn.standing, turn.holder, turn.claims) == (NEW_LEADER, "me", [])
    assert redis_client.get(LOCK) == "me"
    assert 59_000 < redis_client.pttl(LOCK) <= 60_000


def test_a_leader_renews_and_claims(store: Store, redis_client: redis.Redis, put: Put) -> None:
    put("a")
    redis_client.set(LOCK, "me", px=5_000)
    turn = store.claim("c1", 500, 30, (), (LOCK, "me", 60, ""))
    assert (turn.standing, len(turn.claims)) == (LEADER, 1)
    assert redis_client.pttl(LOCK) > 59_000


def test_a_standby_writes_nothing(store: Store, redis_client: redis.Redis, put: Put) -> None:
    key = put("a", 1)
    redis_client.set(LOCK, "other", px=5_000)
    turn = store.claim("c1", 500, 30, (), (LOCK, "me", 60, ""))
    assert (turn.standing, turn.holder, turn.claims) == (STANDBY, "other", [])
    assert 0 < turn.holder_ttl <= 5
    assert redis_client.hgetall(key) == {"definition": "definition of a"}
    assert score_of(redis_client, key) == 1
    assert redis_client.pttl(LOCK) <= 5_000


def test_a_beat_that_lost_the_lock_still_records_what_it_sent(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    redis_client.set(LOCK, "other", px=5_000)
    done = [Completion(key, "c1", RAN, NEXT, "ran", "r")]
    turn = store.claim("c2", 500, 30, done, (LOCK, "me", 60, ""))
    assert (turn.standing, turn.results[0].code) == (STANDBY, RECORDED)


def test_a_takeover_replaces_only_the_named_leader(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(LOCK, "dead", px=5_000)
    assert store.claim("c1", 0, 30, (), (LOCK, "me", 60, "dead")).standing == NEW_LEADER
    redis_client.set(LOCK, "third", px=5_000)
    assert store.claim("c2", 0, 30, (), (LOCK, "me", 60, "dead")).standing == STANDBY


def test_a_repeated_request_keeps_the_lock(store: Store) -> None:
    lock = (LOCK, "me", 60.0, "")
    assert store.claim("c1", 0, 30, (), lock).standing == NEW_LEADER
    assert store.claim("c1", 0, 30, (), lock).standing == LEADER


# -- an occurrence that may have been sent -----------------------------------------------------


def definition_of(every: int, **more: Any) -> str:
    schedule = {"__type__": "interval", "every": every}
    return json.dumps({"name": "a", "schedule": schedule, **more})


def policy_of(**fields: Any) -> str:
    return json.dumps(fields)


def first_claimed(client: redis.Redis, key: str) -> str:
    """Return the time at which the occurrence was first claimed, as stored in the claim."""
    head = str(client.hget(key, "claim")).split('"')[1]
    return head.split(" ")[3]


def test_a_claim_after_an_expired_one_returns_the_time_of_the_first_claim(
    redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", 12.5)
    assert claim_one("dead", lease=-1).since == ""
    first = first_claimed(redis_client, key)
    assert claim_one("heir", lease=-1).since == first
    again = claim_one("alive")
    assert (again.since, again.due) == (first, 12.5)


@pytest.mark.parametrize(
    ("definition", "policy", "way", "may_be_sent"),
    [
        ({}, {}, BEFORE_RECORD, True),
        ({}, {}, WITH_RECORD, False),
        ({}, {"delivery": "at_least_once"}, WITH_RECORD, True),
        ({}, {"delivery": "at_most_once"}, BEFORE_RECORD, False),
        ({"delivery": "at_least_once"}, {}, WITH_RECORD, True),
        ({"delivery": "at_most_once"}, {}, BEFORE_RECORD, False),
        ({"delivery": "at_most_once"}, {"delivery": "at_least_once"}, WITH_RECORD, True),
        ({"delivery": "at_most_once"}, {"delivery": None}, BEFORE_RECORD, True),
        ({"kwargs": {"delivery": "at_most_once"}}, {}, BEFORE_RECORD, True),
        ({}, {"description": '"delivery": "at_most_once"'}, BEFORE_RECORD, True),
        ({}, {"description": "at_most_once"}, BEFORE_RECORD, True),
        ({}, {"delivery": "at_least_once", "description": "\ud800"}, WITH_RECORD, True),
        ({"args": ["\udfff \\ud800"], "delivery": "at_least_once"}, {}, WITH_RECORD, True),
    ],
)
def test_only_runs_sent_before_their_record_may_have_been_sent(
    store: Store,
    put: Put,
    definition: dict[str, Any],
    policy: dict[str, Any],
    way: str,
    may_be_sent: bool,
) -> None:
    put("a", definition=definition_of(60, **definition), policy=policy_of(**policy))
    store.claim("dead", 500, -1, way=way)
    (claim,) = store.claim("alive", 500, 30, way=way).claims
    assert bool(claim.since) is may_be_sent


LONG_ARGS = ["a" * LONG]


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ({}, {"definition": definition_of(60, args=[1])}, True),
        ({}, {"definition": definition_of(60, enabled=False)}, True),
        ({}, {"definition": definition_of(61)}, False),
        ({}, {"definition": "no JSON"}, False),
        ({}, {"definition": definition_of(60, args=LONG_ARGS)}, True),
        ({"definition": definition_of(60, args=LONG_ARGS)}, {}, False),
        ({}, {"policy": policy_of(max_runs=3)}, False),
        ({"policy": policy_of(max_runs=2)}, {"policy": policy_of(max_runs=3)}, False),
        ({"policy": policy_of(max_runs=2)}, {"policy": policy_of(max_runs=2, pause={})}, True),
        ({}, {"policy": policy_of(pause={"by": "ann"})}, True),
        ({"policy": policy_of(pause={"by": "ann"})}, {"policy": policy_of()}, True),
        ({}, {"meta": '{"total_run_count": 1}'}, False),
        ({"definition": definition_of(60, max_runs=2)}, {}, False),
        (
            {"definition": definition_of(60, max_runs=2)},
            {"definition": definition_of(60, max_runs=3)},
            False,
        ),
        (
            {"definition": definition_of(60, max_runs=2)},
            {"policy": policy_of(max_runs=2)},
            True,
        ),
        ({}, {"policy": policy_of(description="what for", overlap="skip")}, True),
        ({}, {"definition": definition_of(60, timezone=None)}, True),
    ],
)
def test_the_decision_on_a_run_stays_until_its_schedule_changes(
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    before: dict[str, str],
    after: dict[str, str],
    stays: bool,
) -> None:
    key = put("a", **{"definition": definition_of(60), **before})
    claim_one("dead", lease=-1)
    first = first_claimed(redis_client, key)
    for field, text in {"definition": definition_of(60), **after}.items():
        redis_client.hset(key, field, text)
    assert claim_one("alive").since == (first if stays else "")


@pytest.mark.parametrize("way", [BEFORE_RECORD, WITH_RECORD])
@pytest.mark.parametrize("operation", [RETRY, UNSURE])
def test_a_run_that_is_put_back_keeps_whether_it_may_have_been_sent(
    store: Store, redis_client: redis.Redis, put: Put, operation: str, way: str
) -> None:
    key = put("a", 12.5, meta="m")
    store.claim("c1", 500, 30, way=way)
    first = first_claimed(redis_client, key)
    assert complete(store, Completion(key, "c1", operation, 2)) == [RECORDED]
    assert (redis_client.hget(key, "meta"), score_of(redis_client, key)) == ("m", 2)
    (claim,) = store.claim("c2", 500, 30, way=way).claims
    assert (claim.due, claim.since) == (12.5, first if operation == UNSURE else "")


@pytest.mark.parametrize(
    ("version", "ended", "held"), [(2, 1, False), (3, 1, True), (3, 31, False), (3, -1, True)]
)
def test_a_claim_of_a_later_version_is_held_for_a_while_after_its_end(
    store: Store, redis_client: redis.Redis, put: Put, version: int, ended: int, held: bool
) -> None:
    expires = int(redis_client.time()[0]) - ended
    put("a", claim=f'["newer 12.500000 {expires}.000000 - l{version}","m",""]')
    assert (store.claim("c1", 500, 30).claims == []) is held


# -- the last run, triggers, runs that must not overlap ----------------------------------------


@pytest.mark.parametrize("trigger", ["", '"t1:1.000000"'])
def test_an_entry_with_a_trigger_that_waits_is_not_deleted_yet(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, trigger: str
) -> None:
    key = put("a")
    claim_one()
    if trigger:
        redis_client.hset(key, "trigger", trigger)
    done = Completion(key, "c1", RAN, -1, "ran", "r", end=DELETE)
    turn = store.claim("other", 0, 30, [done])
    assert turn.results[0].code == RECORDED
    if trigger:
        assert redis_client.hget(key, "trigger") == trigger
        assert redis_client.hget(key, "meta") == "ran"
        assert score_of(redis_client, key) == pytest.approx(turn.now, abs=1e-5)
    else:
        assert not redis_client.exists(key)
        assert score_of(redis_client, key) is None


def test_an_edited_entry_is_not_finished_by_an_earlier_decision(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    redis_client.hset(key, "definition", "edited")
    turn = store.claim("other", 0, 30, [Completion(key, "c1", SKIP, -1, end=DELETE)])
    assert turn.results[0].code == OVERTAKEN
    assert redis_client.hget(key, "definition") == "edited"
    assert score_of(redis_client, key) == pytest.approx(turn.now, abs=1e-5)


def test_an_entry_disabled_at_its_end_is_disabled_in_its_definition(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one()
    done = Completion(key, "c1", RAN, -2, "ran", "r", end=DISABLE, definition="disabled")
    assert complete(store, done) == [RECORDED]
    assert redis_client.hmget(key, "definition", "meta") == ["disabled", "ran"]
    assert score_of(redis_client, key) == -2


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_occurrence_waits_as_long_as_the_earlier_run_lasts(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne, goes_on: bool
) -> None:
    key = put("a", running=f'"t1 {NEXT:.6f}"')
    claim_one()
    if not goes_on:
        assert store.end_run(key, "t1")
    turn = store.claim("other", 0, 30, [Completion(key, "c1", RETRY, NEXT, running=WAITS)])
    expected = NEXT if goes_on else turn.now
    assert score_of(redis_client, key) == pytest.approx(expected, abs=1e-5)


# -- lost replies ------------------------------------------------------------------------------


def test_a_call_that_is_repeated_records_nothing_twice(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one("b-1")
    done = [Completion(key, "b-1", RAN, NEXT, "ran", "r")]
    assert store.claim("b-2", 0, 30, done).results[0].code == RECORDED
    redis_client.hset(key, "meta", "written since")
    again = store.claim("b-2", 0, 30, done, reply_lost=True)
    assert again.results[0].code == RECORDED
    assert redis_client.hget(key, "meta") == "written since"


def test_a_call_that_never_arrived_is_not_taken_for_the_one_before(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    first, second = put("a", 1), put("b", 2)
    store.claim("b-1", 500, 30)
    store.claim("b-2", 0, 30, [Completion(first, "b-1", RAN, NEXT, "ran", "r")])
    done = [Completion(second, "b-1", RAN, NEXT, "ran", "r")]
    assert store.claim("b-3", 0, 30, done, reply_lost=True).results[0].code == RECORDED
    assert redis_client.hget(second, "meta") == "ran"


def test_a_repeated_call_reports_a_later_run(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a")
    claim_one("b-1")
    done = [Completion(key, "b-1", RAN, 1, "ran", "r1")]
    store.claim("b-2", 0, 30, done)
    claim_one("other")
    assert complete(store, Completion(key, "other", RAN, NEXT, "ran since", "r2")) == [RECORDED]
    assert store.claim("b-2", 0, 30, done, reply_lost=True).results[0].code == OVERTAKEN
    assert redis_client.hget(key, "meta") == "ran since"


def test_claims_that_are_handed_out_again_are_the_same(store: Store, put: Put) -> None:
    put("new", 1)
    put("expired", 1)
    store.claim("dead", 1, -1)
    first = store.claim("b-1", 500, 30)
    again = store.claim("b-1", 500, 30, reply_lost=True)
    assert {claim.key: claim.since for claim in again.claims} == {
        claim.key: claim.since for claim in first.claims
    }
    assert sorted(bool(claim.since) for claim in again.claims) == [False, True]
    assert again.expires == first.expires


@pytest.mark.parametrize("repeated", ["claims", "nothing"])
@pytest.mark.parametrize("later_turn", [False, True])
@pytest.mark.parametrize("lost_again", [False, True])
def test_a_copy_that_arrives_after_its_repetition_claims_nothing(
    store: Store, put: Put, repeated: str, later_turn: bool, lost_again: bool
) -> None:
    if repeated == "claims":
        put("a")
    store.claim("beat-9", 1, 30, reply_lost=True)
    if later_turn:
        put("b")
        assert len(store.claim("beat-10", 1, 30).claims) == 1
    key = put("c")
    late = store.claim("beat-9", 1, 30, reply_lost=lost_again)
    if later_turn or not lost_again:
        assert late.claims == []
        (claim,) = store.claim("beat-11", 1, 30).claims
        assert claim.key == key


# -- messages that are sent with their records -------------------------------------------------


def commands(*each: list[str]) -> str:
    """Return broker commands in the format that a completion contains."""
    heads = [f"{name} {' '.join(str(len(arg)) for arg in args)};" for name, *args in each]
    return "".join(heads) + "\n" + "".join(arg for _, *args in each for arg in args)


PUSH = commands(["LPUSH", "queue", "message"])


@pytest.mark.standalone
class TestMessages:
    """If broker and schedule are on one server, the script sends a message with its record."""

    @pytest.fixture
    def broker(self, redis_client: redis.Redis) -> Broker:
        info: Any = redis_client.info("server")
        return Broker(info["run_id"], 0, 0)

    @pytest.fixture
    def key(self, put: Put, claim_one: ClaimOne) -> str:
        """The key of a claimed entry."""
        key = put("a", meta="m")
        claim_one()
        return key

    def test_a_message_is_sent_with_its_record(
        self, store: Store, redis_client: redis.Redis, broker: Broker, key: str
    ) -> None:
        done = Completion(key, "c1", RAN, NEXT, "ran", "r", messages=PUSH)
        assert codes(store, broker, done) == [RECORDED]
        assert redis_client.lrange("queue", 0, -1) == ["message"]
        assert redis_client.hget(key, "meta") == "ran"
        assert not redis_client.hexists(key, "claim")
        assert score_of(redis_client, key) == NEXT

    @pytest.mark.parametrize("operation", [RAN, UNSURE])
    def test_a_message_is_not_sent_when_the_claim_has_ended(
        self,
        store: Store,
        redis_client: redis.Redis,
        broker: Broker,
        put: Put,
        claim_one: ClaimOne,
        operation: str,
    ) -> None:
        """The run may be too late by now, so the next claim decides again."""
        key = put("a", 12.5, meta="m")
        claim_one(lease=-1)
        done = Completion(key, "c1", operation, NEXT, "ran", "r", messages=PUSH)
        assert codes(store, broker, done) == [EXPIRED]
        assert not redis_client.exists("queue")
        assert redis_client.hget(key, "meta") == "m"
        assert claim_one("c2").due == 12.5

    def test_a_message_goes_to_all_of_its_queues(
        self, store: Store, redis_client: redis.Redis, broker: Broker, key: str
    ) -> None:
        texts = ["with a line feed\n, and; 3 4;", "other"]
        sent = commands(["LPUSH", "q1", texts[0]], ["LPUSH", "q2", texts[1]])
        done = Completion(key, "c1", RAN, NEXT, "ran", "r", messages=sent)
        assert codes(store, broker, done) == [RECORDED]
        assert [redis_client.lindex(queue, 0) for queue in ("q1", "q2")] == texts

    def test_broker_and_schedule_may_have_different_databases(
        self, store: Store, redis_url: str, redis_client: redis.Redis, broker: Broker, put: Put
    ) -> None:
        keys = [put("a"), put("b")]
        store.claim("c1", 500, 30)
        done = [Completion(key, "c1", RAN, NEXT, "ran", "r", messages=PUSH) for key in keys]
        assert codes(store, broker._replace(database=5), *done) == [RECORDED] * 2
        assert not redis_client.exists("queue")
        assert [redis_client.hget(key, "meta") for key in keys] == ["ran"] * 2
        assert [score_of(redis_client, key) for key in keys] == [NEXT] * 2
        url = redis_url.rpartition("/")[0] + "/5"
        with redis.Redis.from_url(url, decode_responses=True) as queues:
            assert queues.keys() == ["queue"]
            assert queues.lrange("queue", 0, -1) == ["message"] * 2

    @pytest.mark.parametrize("run_id", [None, "0" * 40])
    def test_nothing_is_sent_on_another_server(
        self,
        store: Store,
        redis_client: redis.Redis,
        broker: Broker,
        key: str,
        run_id: str | None,
    ) -> None:
        other = run_id and broker._replace(run_id=run_id)
        before = redis_client.hgetall(key)
        done = Completion(key, "c1", RAN, NEXT, "ran", "r", messages=PUSH)
        assert codes(store, other or None, done) == [ELSEWHERE]
        assert not redis_client.exists("queue")
        assert redis_client.hgetall(key) == before

    @pytest.mark.parametrize(
        ("sent", "why"),
        [
            (PUSH, "WRONGTYPE the queue queue must be a list, but is a string"),
            (commands(["LPUSH", "good", "m"], ["LPUSH", "queue", "m"]), "WRONGTYPE"),
            (commands(["EXPIRE", "queue", "soon"]), "not an integer"),
        ],
    )
    def test_a_run_whose_message_is_refused_is_not_recorded(
        self,
        store: Store,
        redis_client: redis.Redis,
        broker: Broker,
        key: str,
        sent: str,
        why: str,
    ) -> None:
        redis_client.set("queue", "no list")
        before = redis_client.hgetall(key)
        done = Completion(key, "c1", RAN, NEXT, "ran", "r", messages=sent)
        (result,) = store.claim("other", 0, 30, [done], broker=broker).results
        assert result.code == NOT_SENT
        assert why in result.texts[0]
        assert redis_client.hgetall(key) == before
        assert not redis_client.exists("good")

    @pytest.mark.parametrize("operation", [RAN, RETRY])
    @pytest.mark.parametrize("field", ["definition", "policy", "meta"])
    def test_the_message_of_an_edited_entry_is_not_sent(
        self,
        store: Store,
        redis_client: redis.Redis,
        broker: Broker,
        key: str,
        field: str,
        operation: str,
    ) -> None:
        redis_client.hset(key, field, "edited")
        done = Completion(key, "c1", operation, NEXT, messages=PUSH)
        (result,) = store.claim("other", 0, 30, [done], broker=broker).results
        assert result.code == CHANGED
        assert not redis_client.exists("queue")
        assert codes(store, broker, done._replace(seen=result.texts)) == [RECORDED]
        assert redis_client.lrange("queue", 0, -1) == ["message"]

    def test_the_message_of_a_claim_of_another_beat_is_not_sent(
        self, store: Store, redis_client: redis.Redis, broker: Broker, put: Put, claim_one: ClaimOne
    ) -> None:
        key = put("a")
        claim_one("stalled", lease=-1)
        claim_one("alive")
        done = Completion(key, "stalled", RAN, NEXT, "ran", "r", messages=PUSH)
        assert codes(store, broker, done) == [REFUSED]
        assert not redis_client.exists("queue")

    def test_a_repeated_call_sends_the_message_once(
        self, store: Store, redis_client: redis.Redis, broker: Broker, key: str
    ) -> None:
        done = [Completion(key, "c1", RAN, NEXT, "ran", "r", messages=PUSH)]
        for lost in (False, True, True):
            turn = store.claim("b-1", 0, 30, done, reply_lost=lost, broker=broker)
            assert turn.results[0].code == RECORDED
        assert redis_client.llen("queue") == 1


def codes(store: Store, broker: Broker | None, *done: Completion) -> list[int]:
    return [result.code for result in store.claim("other", 0, 30, done, broker=broker).results]
