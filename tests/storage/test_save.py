"""`save.lua` writes all fields of an entry or none."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redbeat.errors import InvalidEntryError
from redbeat.storage.records import (
    CLOCK_AHEAD,
    CONFLICT,
    GONE,
    HISTORY_DIFFERS,
    RAN,
    SAME,
    SAVED,
    Completion,
    Saved,
    StaticRow,
    Writing,
)
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.storage.conftest import KEYS, ClaimOne, Put

KEY = KEYS.entry("a")
FUTURE = 4_000_000_000.25


def hash_of(client: redis.Redis, key: str = KEY) -> dict[str, str]:
    found: Any = client.hgetall(key)
    return dict(found)


def score_of(client: redis.Redis, key: str = KEY) -> Any:
    return client.zscore(KEYS.schedule, key)


def redis_now(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6


def test_a_new_entry_is_a_hash_and_a_member(store: Store, redis_client: redis.Redis) -> None:
    assert store.save(KEY, "d", "", "m", "", "", FUTURE) == Saved(SAVED)
    assert hash_of(redis_client) == {"definition": "d", "meta": "m"}
    assert score_of(redis_client) == FUTURE


def test_without_a_score_the_time_of_redis_is_stored(
    store: Store, redis_client: redis.Redis
) -> None:
    before = redis_now(redis_client)
    store.save(KEY, "d", "", "m", "", "", None)
    assert before <= score_of(redis_client) <= redis_now(redis_client)


def test_a_negative_score_parks(store: Store, redis_client: redis.Redis) -> None:
    store.save(KEY, "d", "", "m", score=-1)
    assert score_of(redis_client) == -1
    assert store.claim("c1", 500, 30).claims == []


def test_fields_of_other_programs_survive(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="m", note="mine")
    store.save(KEY, "d2", "p", "", "", "m", FUTURE)
    assert hash_of(redis_client) == {
        "definition": "d2",
        "policy": "p",
        "meta": "m",
        "note": "mine",
    }


def test_an_empty_policy_removes_the_stored_one(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="m", policy="p")
    store.save(KEY, "d2", "", "", "", "m", FUTURE)
    assert "policy" not in hash_of(redis_client)


def test_a_changed_history_refuses_the_write(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="theirs", runtime="r")
    before = hash_of(redis_client)
    assert store.save(KEY, "d2", "p", "mine", "", "seen", FUTURE) == Saved(
        HISTORY_DIFFERS, "theirs", "r", definition="definition of a"
    )
    assert hash_of(redis_client) == before
    assert score_of(redis_client) == 1


def test_a_forced_save_overwrites_any_history(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="theirs")
    assert store.save(KEY, "d2", "", "mine", "", None, FUTURE).code == SAVED
    assert hash_of(redis_client)["meta"] == "mine"


def test_a_repeated_save_writes_once_and_succeeds(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="old")
    call = (KEY, "d2", "p", "new", "", "old", FUTURE)
    assert store.save(*call) == Saved(SAVED)
    written = hash_of(redis_client)
    assert store.save(*call) == Saved(SAVED)
    assert hash_of(redis_client) == written


def test_an_equal_entry_is_left_unchanged(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", 7.25, definition="d", meta="theirs", policy="p", runtime="r")
    redis_client.hset(KEYS.quarantine, KEY, "note")
    before = hash_of(redis_client)
    new = Writing(KEY, "d", "p", "mine", score=FUTURE, made_up=datetime.now(timezone.utc))
    assert store.save_all([new]) == [Saved(SAME, "theirs", "r", "7.25", "")]
    assert hash_of(redis_client) == before
    assert score_of(redis_client) == 7.25
    assert redis_client.hlen(KEYS.quarantine) == 0


@pytest.mark.parametrize("other", [{"definition": "d2"}, {"policy": ""}, {"made_up": None}])
def test_a_change_of_what_is_stored_needs_its_history(
    store: Store, put: Put, other: dict[str, Any]
) -> None:
    put("a", definition="d", meta="theirs", policy="p", runtime="r")
    new = Writing(KEY, "d", "p", "mine", score=FUTURE, made_up=datetime.now(timezone.utc))
    assert store.save_all([new._replace(**other)]) == [
        Saved(HISTORY_DIFFERS, "theirs", "r", definition="d", policy="p")
    ]


@pytest.mark.parametrize(("ahead", "code"), [(60, CLOCK_AHEAD), (-60, SAVED), (None, SAVED)])
def test_a_restarted_entry_counts_at_latest_from_the_time_of_redis(
    store: Store, redis_client: redis.Redis, put: Put, ahead: float | None, code: int
) -> None:
    put("a", meta="old")
    made_up = None if ahead is None else datetime.now(timezone.utc) + timedelta(seconds=ahead)
    saved = store.save(KEY, "d", "", "new", "", "old", FUTURE, made_up)
    assert saved.code == code
    assert hash_of(redis_client)["meta"] == ("old" if code == CLOCK_AHEAD else "new")
    if code == CLOCK_AHEAD:
        assert abs(float(saved.score) - store.time()) < 5


def test_a_new_entry_gets_the_identity_that_is_given(
    store: Store, redis_client: redis.Redis
) -> None:
    new = Writing(KEY, "d", "", "m", score=FUTURE, identity="mine")
    assert store.save_all([new]) == [Saved(SAVED)]
    assert hash_of(redis_client)["identity"] == '"mine"'
    changed = new._replace(definition="d2", seen=None, identity="another")
    assert store.save_all([changed]) == [Saved(SAVED, identity="mine")]
    assert hash_of(redis_client)["identity"] == '"mine"'


def test_an_entry_without_an_identity_gets_one_when_it_is_saved(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", definition="d")
    changed = Writing(KEY, "d2", "", "", seen=None, identity="mine")
    assert store.save_all([changed]) == [Saved(SAVED)]
    assert hash_of(redis_client)["identity"] == '"mine"'


def test_the_identity_of_a_deleted_entry_is_removed(
    store: Store, redis_client: redis.Redis
) -> None:
    redis_client.hset(KEY, "identity", '"old"')
    store.save_all([Writing(KEY, "d", "", "m", identity="new")])
    assert hash_of(redis_client)["identity"] == '"new"'


def test_a_repeated_write_is_not_a_conflict(store: Store) -> None:
    """A client repeats a write if the reply to the first attempt was lost."""
    new = Writing(KEY, "d", "p", "m", believed=("", ""), identity="mine")
    changed = new._replace(definition="d2", seen="m", believed=("d", "p"))
    for writing in (new, changed):
        assert [store.save_all([writing])[0].code for _ in range(2)] == [SAVED, SAVED]


def test_only_one_of_two_equal_new_entries_wins(store: Store) -> None:
    new = Writing(KEY, "d", "p", "m", believed=("", ""), identity="mine")
    assert store.save_all([new]) == [Saved(SAVED)]
    assert store.save_all([new._replace(identity="another")]) == [Saved(CONFLICT)]
    assert store.save_all([new._replace(identity="")]) == [Saved(CONFLICT)]
    assert store.save_all([new._replace(definition="d2")]) == [Saved(CONFLICT)]


def test_each_entry_of_a_batch_gets_its_own_result(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    now = datetime.now(timezone.utc)
    put("a", definition="d", meta="ma", runtime="ra")
    put("b", definition="d", meta="mb")
    redis_client.hset(KEYS.entry("c"), mapping={"definition": "d", "meta": "mc"})
    entries = [
        Writing(KEYS.entry("new"), "d", "", "m", score=FUTURE),
        Writing(KEY, "d2", "", "mine", score=FUTURE),
        Writing(KEYS.entry("gone"), meta="m", seen=None),
        Writing(KEYS.entry("b"), "d2", believed=("d3", "")),
        Writing(KEYS.entry("c"), "d", "", "mine", score=FUTURE, made_up=now),
        Writing(KEYS.entry("naïve"), "d", "", "m", score=FUTURE),
        Writing(KEYS.entry("naïve"), "d2", "", "", "", "m", FUTURE),
    ]
    assert store.save_all(entries) == [
        Saved(SAVED),
        Saved(HISTORY_DIFFERS, "ma", "ra", definition="d"),
        Saved(GONE),
        Saved(CONFLICT),
        Saved(SAME, "mc", "", "", ""),
        Saved(SAVED),
        Saved(SAVED),
    ]
    assert hash_of(redis_client, KEYS.entry("naïve")) == {"definition": "d2", "meta": "m"}


def test_history_alone_is_not_written_for_a_deleted_entry(
    store: Store, redis_client: redis.Redis
) -> None:
    assert store.save(KEY, meta="m", seen=None) == Saved(GONE)
    assert not redis_client.exists(KEY)
    assert score_of(redis_client) is None


def test_a_definition_alone_makes_no_entry(store: Store, redis_client: redis.Redis) -> None:
    assert store.save(KEY, "d", seen="seen") == Saved(GONE)
    assert not redis_client.exists(KEY)


def test_the_history_of_a_deleted_entry_is_not_inherited(
    store: Store, redis_client: redis.Redis
) -> None:
    redis_client.hset(KEY, mapping={"meta": "old", "runtime": "r", "claim": "c", "policy": "p"})
    store.save(KEY, "d", "", "new", "", "", FUTURE)
    assert hash_of(redis_client) == {"definition": "d", "meta": "new"}


def test_a_claim_that_is_held_keeps_the_score(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    put("a", meta="m")
    claim_one()
    held = score_of(redis_client)
    assert store.save(KEY, "d2", "", "", "", "m", FUTURE).code == SAVED
    assert score_of(redis_client) == held
    assert hash_of(redis_client)["claim"].startswith('["c1 ')


def test_a_claim_that_ran_out_ends_with_the_save(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    put("a", meta="m")
    claim_one(lease=-1)
    store.save(KEY, "d2", "", "", "", "m", FUTURE)
    assert score_of(redis_client) == FUTURE
    assert "claim" not in hash_of(redis_client)
    (result,) = store.claim("c2", 0, 30, [Completion(KEY, "c1", RAN, 5, "late")]).results
    assert result.code == 0
    assert hash_of(redis_client)["meta"] == "m"


SCHEDULE = '"schedule":{"every":60}'


@pytest.mark.parametrize(
    ("definition", "policy", "meta", "kept"),
    [
        ("", "", "", True),
        (f'{{{SCHEDULE},"args":[1]}}', '{"max_runs":1}', "", True),
        (f'{{{SCHEDULE},"args":["{"a" * 600}"]}}', '{"max_runs":1}', "", True),
        (f'{{{SCHEDULE},"max_runs":1}}', "", "", True),
        ('{"schedule":{"every":60,"relative":false}}', '{"max_runs":1}', "", True),
        (f"{{{SCHEDULE}}}", '{"max_runs":1,"description":"what for"}', "", True),
        (f"{{{SCHEDULE}}}", "", "", False),
        ('{"schedule":{"every":61}}', '{"max_runs":1}', "", False),
        ("no JSON", '{"max_runs":1}', "", False),
        ("", "", "m2", False),
    ],
)
@pytest.mark.parametrize("long", [False, True])
def test_a_run_that_may_have_been_sent_keeps_its_decision(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    definition: str,
    policy: str,
    meta: str,
    kept: bool,
    long: bool,
) -> None:
    args = ["a" * 600] if long else []
    old = json.dumps({"schedule": {"every": 60}, "args": args})
    put("a", 12.5, definition=old, policy='{"max_runs":1}', meta='"m"')
    claim_one(lease=-1)
    first = hash_of(redis_client)["claim"].split(" ")[3]
    meta = meta and f'"{meta}"'
    assert store.save(KEY, definition, policy, meta, "", None, FUTURE).code == SAVED
    if kept:
        assert score_of(redis_client) <= redis_now(redis_client)
        json.loads(hash_of(redis_client)["claim"])
        claim = claim_one("c2")
        assert (claim.since, claim.due) == (first, 12.5)
    else:
        assert score_of(redis_client) == FUTURE
        assert "claim" not in hash_of(redis_client)


def let_claim_end(client: redis.Redis) -> None:
    """Let the claim of the entry end now, as if its lease had passed."""
    words = hash_of(client)["claim"].split(" ")
    client.hset(KEY, "claim", " ".join([*words[:2], "1.0", *words[3:]]))
    client.zadd(KEYS.schedule, {KEY: 1})


@pytest.mark.parametrize(
    ("edits", "kept"),
    [
        ([{"every": 60}], True),
        ([{"every": 60}, {"every": 60}], True),
        ([{"every": 61}], False),
        ([{"every": 61}, {"every": 60}], False),
        ([{"every": 60}, {"every": 61}], False),
    ],
)
@pytest.mark.parametrize("by", ["save", "sync"])
def test_edits_during_the_claim_of_a_long_entry_keep_its_decision(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    edits: list[dict[str, Any]],
    kept: bool,
    by: str,
) -> None:
    """Setup: a beat dies after it sent a run; the claim has only a digest of the long definition.

    Invariant: an edit of arguments keeps the decision on the run, so the next beat sends the same
    task id. An edit of the schedule drops the decision.
    """

    def definition(number: int, schedule: dict[str, Any]) -> str:
        return json.dumps({"schedule": schedule, "args": [number, "a" * 600]})

    put("a", 12.5, definition=definition(0, {"every": 60}), meta='"m"')
    claim_one()
    first = hash_of(redis_client)["claim"].split(" ")[3]
    for number, schedule in enumerate(edits, 1):
        text = definition(number, schedule)
        if by == "save":
            assert store.save(KEY, text, "", "", "", None, FUTURE).code == SAVED
        else:
            assert store.sync_statics([StaticRow("a", KEY, text, "", "", FUTURE)], None, "") == [2]
    let_claim_end(redis_client)
    assert claim_one("c2").since == (first if kept else "")


def test_an_edit_by_raw_commands_after_a_save_drops_the_decision(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    texts = [json.dumps({"schedule": {"every": 60}, "args": [n, "a" * 600]}) for n in range(3)]
    put("a", 12.5, definition=texts[0], meta='"m"')
    claim_one()
    store.save(KEY, texts[1], "", "", "", None, FUTURE)
    redis_client.hset(KEY, "definition", texts[2].replace("60", "61"))
    let_claim_end(redis_client)
    assert claim_one("c2").since == ""


@pytest.mark.parametrize("names", [["a", "z"], ["z", "a"]])
def test_entries_that_are_due_at_the_same_instant_wake_a_beat(
    store: Store, redis_client: redis.Redis, names: list[str]
) -> None:
    soon = redis_now(redis_client) + 2
    client: Any = redis_client
    with client.pubsub() as listener:
        listener.subscribe(KEYS.wakeup)
        assert listener.get_message(timeout=5)
        store.save_all([Writing(KEYS.entry(name), "d", "", "m", "", "", soon) for name in names])
        assert listener.get_message(timeout=5)


def test_a_save_leaves_the_quarantine(store: Store, redis_client: redis.Redis, put: Put) -> None:
    put("a", -1, meta="m")
    redis_client.hset(KEYS.quarantine, KEY, "note")
    store.save(KEY, "d2", "", "", "", "m", None)
    assert redis_client.hlen(KEYS.quarantine) == 0
    assert score_of(redis_client) > 1


def test_a_key_of_another_type_is_refused_by_name(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(KEY, "somebody else's")
    with pytest.raises(InvalidEntryError, match=f"'{PREFIX}a' is not an entry") as caught:
        store.save(KEY, "d", "", "m")
    assert caught.value.field == "name"
    assert redis_client.get(KEY) == "somebody else's"
    assert score_of(redis_client) is None


@pytest.mark.parametrize("broken", [KEYS.schedule, KEYS.quarantine])
def test_a_schedule_of_another_type_is_found_before_the_first_write(
    store: Store, redis_client: redis.Redis, broken: str
) -> None:
    redis_client.set(broken, "not ours")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.save(KEY, "d", "", "m")
    assert not redis_client.exists(KEY)


def test_a_full_redis_refuses_all_of_a_save(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", meta="m")
    before = hash_of(redis_client)
    redis_client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            store.save(KEY, "d2", "p", "m2", "", "m", FUTURE)
    finally:
        redis_client.config_set("maxmemory", "0")
    assert hash_of(redis_client) == before
    assert score_of(redis_client) == 1


def test_a_meta_that_is_not_utf_8_can_be_seen_and_replaced(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a")
    redis_client.hset(KEY, "meta", b'{"note": "\xff"}')
    _, meta, *_ = store.load(KEY)
    assert store.save(KEY, "d2", "", "m2", "", meta, FUTURE).code == SAVED
    assert hash_of(redis_client)["meta"] == "m2"


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "a/b", "naïve ☂", "{x}", "*", "\n", '"'])
def test_a_name_may_contain_anything(store: Store, redis_client: redis.Redis, name: str) -> None:
    key = KEYS.entry(name)
    store.save(key, "d", "", "m", "", "", FUTURE)
    assert score_of(redis_client, key) == FUTURE
    assert store.load(key) == ("d", "m", "", "", "")
    assert store.rank(key) == 0


def test_scores_keep_microseconds(store: Store, redis_client: redis.Redis) -> None:
    store.save(KEY, "d", "", "m", score=1_795_224_037.123456)
    assert score_of(redis_client) == 1_795_224_037.123456
