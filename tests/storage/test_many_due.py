"""Thousands of due entries go out, a look at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat.storage.rows import Change, Look, Row, digest_of, new_mark
from tests.storage.places import KEYS, LOCK, Place, key_of

pytestmark = pytest.mark.long

DUE = 5000
DEFINITION = json.dumps(
    {
        "name": "entry", "task": "proj.tasks.refresh", "args": [1, 2], "kwargs": {"account": 17},
        "options": {"queue": "celery"}, "enabled": True,
        "schedule": {"__type__": "interval", "every": 60.0, "relative": False},
    }
)  # fmt: skip
META = json.dumps({"last_run_at": None, "total_run_count": 0})
MESSAGE = json.dumps({"body": "W1sxLCAyXSwge319XQ==" * 10, "headers": {"id": "x" * 36}, "p": 1})


def fill(place: Place, count: int, **fields: str) -> None:
    pipe = place.client.pipeline(transaction=False)
    for number in range(count):
        key = key_of(f"entry-{number:05}")
        pipe.hset(key, mapping={"definition": DEFINITION, "meta": META, **fields})
        pipe.zadd(KEYS.schedule, {key: 1.5 + number})
    pipe.execute()


def record(row: Row, score: float) -> Change:
    """Return a change like that of an exactly-once run."""
    mark = new_mark()
    state = json.dumps({"m": [mark, "", mark], "i": "abcdefgh", "a": 1795662649.5, "t": "0" * 40})
    return Change(
        row.key, mark, expect=digest_of(row), score=score, not_after=score,
        set={"beat_state": state, "meta": '{"last_run_at": {"__type__": "datetime"}, "n": 1}'},
        push=[["LPUSH", "celery", MESSAGE]], line=f'["{mark}",{score},"sent"]',
    )  # fmt: skip


def test_5000_due_runs_go_out(place: Place) -> None:
    fill(place, DUE)
    runs, server = 0, place.server
    place.turn(look=Look(), lock=LOCK)
    reply = place.turn(look=Look(), lock=LOCK)
    while reply.rows:
        later = reply.now + 1000
        changes = [record(row, later) for row in reply.rows]
        first, second = changes[:50], changes[50:]
        place.turn(*first, lock=LOCK, server=server)
        more: dict[str, Any] = {"in_hand": True, "server": server, "counts": {"runs": 1}}
        reply = place.turn(*second, look=Look(), lock=LOCK, counts_id=str(runs), **more)
        runs += len(changes)
    assert runs == place.client.llen("celery") == DUE
    assert place.client.zcount(KEYS.schedule, 0, reply.now) == 0
