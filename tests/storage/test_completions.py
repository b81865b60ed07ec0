"""What a completion does, for each operation, edit during the run, and waiting trigger.

The table is that of the page about the design.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import pytest
import redis

from redbeat.storage.records import (
    CHANGED,
    DELETE,
    DISABLE,
    FIRST,
    OVERTAKEN,
    PARK,
    RAN,
    RECORDED,
    REFUSED,
    RETRY,
    SKIP,
    UNSURE,
    Completion,
)
from redbeat.storage.store import Store
from tests.storage.conftest import KEYS, ClaimOne, Put

KEY: Final = KEYS.entry("a")
NEXT: Final = 4_000_000_000.5
LEASE: Final = 30.0

ENABLED: Final = '{"schedule":{"every":60},"enabled":true}'
DISABLED: Final = '{"schedule":{"every":60},"enabled":false}'
SENT: Final = {"operation": RAN, "score": NEXT, "meta": '"new"', "runtime": '"r"'}

#: The fields of each completion.
COMPLETIONS: Final[dict[str, dict[str, Any]]] = {
    "ran": SENT,
    "first": {**SENT, "operation": FIRST},
    "ran, finish": {**SENT, "score": -1, "end": PARK},
    "ran, disable": {**SENT, "score": -2, "end": DISABLE, "definition": DISABLED},
    "ran, delete": {**SENT, "score": -1, "end": DELETE},
    "skip": {"operation": SKIP, "score": NEXT, "runtime": '"r"'},
    "skip, finish": {"operation": SKIP, "score": -1, "runtime": '"r"', "end": PARK},
    "retry": {"operation": RETRY, "score": NEXT},
    "unsure": {"operation": UNSURE, "score": NEXT},
}

#: The fields that another program writes between the claim and the completion.
EDITS: Final[dict[str, dict[Any, Any]]] = {
    "nothing": {},
    "definition": {"definition": '{"schedule":{"every":61}}'},
    "arguments": {"definition": '{"schedule":{"every":60},"enabled":true,"args":[1]}'},
    "policy": {"policy": '{"max_runs":3}'},
    "meta": {"meta": '"other"'},
}


class Outcome(NamedTuple):
    """The code of a completion, and the entry afterwards.

    ``meta`` is "new" if the run is in the history. ``claim`` is "held", "-" without a claim, "put
    back", or "put back, decided" if the next claim repeats the decision. ``due`` is when the entry
    is due: "next" is the score of the completion.
    """

    code: int
    meta: str
    claim: str
    due: str
    state: str = "enabled"


GONE: Final = Outcome(RECORDED, "-", "-", "-", "gone")
#: The caller keeps the claim: it merges what it wants to record with what was saved.
KEPT: Final = Outcome(CHANGED, "old", "held", "lease")

#: Completion -> outcome; if a trigger waits; if the entry was edited.
TABLE: Final[dict[str, tuple[Outcome, Outcome, Outcome]]] = {
    "ran": (
        Outcome(RECORDED, "new", "-", "next"),
        Outcome(RECORDED, "new", "-", "now"),
        KEPT,
    ),
    "first": (
        Outcome(RECORDED, "new", "-", "next"),
        Outcome(RECORDED, "new", "-", "now"),
        KEPT,
    ),
    "ran, finish": (
        Outcome(RECORDED, "new", "-", "never"),
        Outcome(RECORDED, "new", "-", "now"),
        KEPT,
    ),
    "ran, disable": (
        Outcome(RECORDED, "new", "-", "never", "disabled"),
        Outcome(RECORDED, "new", "-", "now", "disabled"),
        KEPT,
    ),
    "ran, delete": (GONE, Outcome(RECORDED, "new", "-", "now"), KEPT),
    "skip": (
        Outcome(RECORDED, "old", "-", "next"),
        Outcome(RECORDED, "old", "-", "now"),
        Outcome(OVERTAKEN, "old", "-", "now"),
    ),
    "skip, finish": (
        Outcome(RECORDED, "old", "-", "never"),
        Outcome(RECORDED, "old", "-", "now"),
        Outcome(OVERTAKEN, "old", "-", "now"),
    ),
    # The back-off also holds for a waiting trigger: its run would fail in the same way.
    "retry": (
        Outcome(RECORDED, "old", "put back", "next"),
        Outcome(RECORDED, "old", "put back", "next"),
        Outcome(RECORDED, "old", "put back", "now"),
    ),
    "unsure": (
        Outcome(RECORDED, "old", "put back, decided", "next"),
        Outcome(RECORDED, "old", "put back, decided", "next"),
        Outcome(RECORDED, "old", "put back, decided", "now"),
    ),
}


def outcome(client: redis.Redis, code: int, due: float, expires: float) -> Outcome:
    """Return what became of the entry; ``due`` is the score that the completion asked for."""
    entry: Any = client.hgetall(KEY)
    score: Any = client.zscore(KEYS.schedule, KEY)
    if not entry:
        assert score is None
        return Outcome(code, "-", "-", "-", "gone")
    head = entry["claim"].split('"')[1].split(" ") if "claim" in entry else []
    claim = "held" if head else "-"
    if head[:1] == ["-"]:
        claim = "put back" if head[3] == "-" else "put back, decided"
    seconds, micros = client.time()
    now = float(seconds) + float(micros) / 1e6
    when = {round(expires, 5): "lease", due: "never" if due < 0 else "next"}.get(round(score, 5))
    if when is None and now - 10 < score <= now:
        when = "now"
    enabled = json.loads(entry["definition"]).get("enabled", True)
    meta = "new" if entry["meta"] == SENT["meta"] else "old"
    return Outcome(code, meta, claim, when or str(score), "enabled" if enabled else "disabled")


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("trigger", [False, True])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", TABLE)
def test_a_completion(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    name: str,
    edit: str,
    trigger: bool,
    repeated: bool,
) -> None:
    put("a", definition=ENABLED, meta='"old"')
    expires = store.claim("c1", 1, LEASE).expires
    if EDITS[edit]:
        redis_client.hset(KEY, mapping=EDITS[edit])
    if trigger:
        assert store.trigger(KEY, "run", 100) == 1
    done = Completion(KEY, "c1", **COMPLETIONS[name])

    (result,) = store.claim("c2", 0, LEASE, [done]).results
    if repeated:
        (again,) = store.claim("c2", 0, LEASE, [done], reply_lost=True).results
        assert again == result

    usual, triggered, edited = TABLE[name]
    expected = edited if EDITS[edit] else triggered if trigger else usual
    assert outcome(redis_client, result.code, done.score, expires) == expected
    waits = trigger and expected.state != "gone"
    assert redis_client.hexists(KEY, "trigger") is waits


@pytest.mark.parametrize("trigger", [False, True])
@pytest.mark.parametrize("name", TABLE)
def test_a_completion_of_a_deleted_entry(
    store: Store, redis_client: redis.Redis, put: Put, name: str, trigger: bool
) -> None:
    put("a", definition=ENABLED, meta='"old"')
    store.claim("c1", 1, LEASE)
    if trigger:
        store.trigger(KEY, "run", 100)
    store.delete(KEY)
    done = Completion(KEY, "c1", **COMPLETIONS[name])
    assert [result.code for result in store.claim("c2", 0, LEASE, [done]).results] == [REFUSED]
    assert not redis_client.exists(KEY, KEYS.schedule)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("sent_before", [False, True])
def test_an_edit_keeps_the_decision_on_a_run_that_is_skipped_since_it_may_have_been_sent(
    store: Store,
    redis_client: redis.Redis,
    put: Put,
    claim_one: ClaimOne,
    edited: bool,
    sent_before: bool,
) -> None:
    """An earlier beat may have sent the run, and this one records it as missed."""
    put("a", 12.5, definition=ENABLED, meta='"old"')
    if sent_before:
        claim_one("dead", lease=-1)
    first = claim_one("c1").since
    if edited:
        redis_client.hset(KEY, mapping=EDITS["arguments"])
    done = Completion(KEY, "c1", SKIP, NEXT, '"new"', '"r"')
    (result,) = store.claim("c2", 0, LEASE, [done]).results
    assert result.code == (OVERTAKEN if edited else RECORDED)
    assert redis_client.hget(KEY, "meta") == ('"old"' if edited else '"new"')
    if edited and sent_before:
        assert claim_one("c3").since == first != ""
    elif edited:
        assert claim_one("c3").since == ""
    else:
        assert not redis_client.hexists(KEY, "claim")
