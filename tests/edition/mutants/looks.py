"""Mutants of what a look finds: due order, shares, holds, hands, and the lock."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "standby-claims",
        "A beat looks although another beat holds the lock.",
        "lua/turn.lua",
        "elseif lock and holder ~= token then",
        "elseif false then",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "takeover-without-compare",
        ("A takeover also takes the lock from a beat that acquired it in the last moment."),
        "lua/turn.lua",
        "(not holder or holder == head.dead or",
        "(not holder or head.dead or",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "lock-always-ours",
        "A beat takes the lock although another beat holds it.",
        "lua/turn.lua",
        "if lock and (not holder or",
        "if lock and (true or",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "lock-not-renewed",
        "A leader's requests do not renew its lock.",
        "lua/turn.lua",
        "redis.call('PEXPIRE', lock, head.ttl)  -- after",
        "redis.call('PTTL', lock)  -- after",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "lock-not-renewed-when-idle",
        "The quick requests of an idle leader do not renew its lock.",
        "lua/turn.lua",
        "      redis.call('PEXPIRE', lock, head.ttl)\n",
        "      redis.call('PTTL', lock)\n",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "lock-not-checked-when-idle",
        "An idle leader does not see that its lock has expired.",
        "lua/turn.lua",
        "(holder == token and head.leads)) then\n    local members",
        "head.leads) then\n    local members",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "late-runs-without-pace",
        "All late runs are sent at once, although redbeat_max_rate limits them.",
        "lua/parts/look.lua",
        "wanted.late or math.huge",
        "math.huge",
        (
            "tests/edition/test_storage_look.py",
            "tests/scheduler/test_max_rate.py",
        ),
    ),
    Mutant(
        "late-without-limit",
        "With a limit of no late entries a look finds all of them.",
        "lua/parts/look.lua",
        "local late_count = math.min(#late / 2, late_limit - borrowed)",
        "local late_count = #late / 2",
        ("tests/edition/test_storage_look.py",),
    ),
    Mutant(
        "pace-not-spent",
        "A beat forgets how many late runs it has sent this second.",
        "beat/beat.py",
        "self._pace.spend(len(late))",
        "self._pace.spend(0)",
        ("tests/scheduler/test_max_rate.py",),
    ),
    Mutant(
        "late-runs-first",
        "On-time runs wait for late runs.",
        "beat/beat.py",
        "return [*on_time, *late]",
        "return [*late, *on_time]",
        ("tests/scheduler/test_max_rate.py",),
    ),
    Mutant(
        "member-without-hash-at-once",
        "A member without a hash goes at once.",
        "beat/beat.py",
        "if now - first < MISSING_FOR:",
        "if False:",
        (
            "tests/edition/test_beat.py",
            "tests/scheduler/test_sweep.py",
        ),
    ),
    Mutant(
        "time-stands-still",
        "A script measures its time with TIME, which stands still on most servers.",
        "lua/parts/run_time.lua",
        "run_time = type(run_time) == 'function' and run_time or function()",
        "run_time = function()",
        ("tests/edition/test_storage_look.py",),
    ),
    Mutant(
        "script-without-end",
        "A look reads a full batch, however long it takes.",
        "lua/parts/look.lua",
        "(#rows % 8 == 0 and run_time() - started > most_seconds)",
        "false",
        ("tests/edition/test_storage_look.py",),
    ),
    Mutant(
        "oldest-before-newest",
        "Thousands of late entries stand before one that has just become due.",
        "lua/parts/look.lua",
        "take(fresh, 1, #fresh / 2)\n  take(late, first + 1, late_count)",
        "take(late, first + 1, late_count)\n  take(fresh, 1, #fresh / 2)",
        ("tests/edition/test_storage_look.py",),
    ),
    Mutant(
        "looked-at-again",
        "A look gives out the rows again that the same turn has answered.",
        "lua/parts/change.lua",
        "left_out[key] = true\n  return row",
        "return row",
        (
            "tests/edition/test_storage_look.py",
            "tests/edition/test_storage.py",
        ),
    ),
    Mutant(
        "share-of-nobody",
        ("What a vanished beat had as its share is left to it while it counts as there."),
        "lua/parts/look.lua",
        "local most = #late + #fresh == 0 and limit or math.ceil(limit / 10)",
        "local most = 0",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "hands-not-noted",
        "A look does not note the keys that it gives out.",
        "lua/parts/note.lua",
        "side('HSET', 'hands', token, cjson.encode(look.only and keys[1] or keys))",
        "side('HLEN', 'hands')",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "loss-not-seen",
        "A sorted set that is absent is not lost.",
        "lua/parts/note.lua",
        "(before == 0 and noted > 1) or",
        "",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "loss-of-the-last",
        "A program that takes out its last entry loses the schedule.",
        "lua/parts/note.lua",
        "(before == 0 and noted > 1)",
        "(before == 0 and noted > 0)",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "loss-of-most-not-seen",
        "A sorted set that lost nine tenths of its members is not lost.",
        "lua/parts/note.lua",
        " or (noted >= 10 and before * 10 <= noted)",
        "",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "loss-of-few",
        "A program that takes out most of a few entries loses the schedule.",
        "lua/parts/note.lua",
        "(noted >= 10 and before * 10 <= noted)",
        "(noted >= 1 and before * 10 <= noted + 9)",
        ("tests/edition/test_storage_beats.py",),
    ),
    Mutant(
        "leader-thinks-on",
        "A beat that lost the lock goes on as the leader.",
        "beat/beat.py",
        "return reply if reply.standing >= LEADS else None",
        "return reply",
        (
            "tests/edition/test_storage_beats.py",
            "tests/scheduler/test_lock_lost.py",
            "tests/scheduler/test_tick.py",
        ),
    ),
    Mutant(
        "waits-too-long",
        "A beat waits for the maximum interval although an entry is due earlier.",
        "lua/parts/look.lua",
        "local next_due = math.min(next_score(mine) or math.huge, next_said(mine))",
        "local next_due = next_said(mine)",
        ("tests/edition/test_storage_look.py",),
    ),
)

VOID: Final[dict[str, str]] = {
    "lease-ignored": (
        "a look gives out no lease; a live hold of another is `hold-ignored` in plans.py"
    ),
    "claim-not-hidden": (
        "a look gives out no lease: each row is answered by a change that moves its score"
    ),
    "claim-of-the-future": "a hold that ends later than any hold can is capped: plans.py",
    "park-ignores-claim": "a quarantine is a change with an expectation: fence-off",
    "deadline-from-reply": "a hold is published by the time before its request: outcomes.py",
}
