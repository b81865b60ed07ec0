"""What readers see: pages, counts and states of what is stored."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import texts_in
from redbeat.config import ensure_conf
from redbeat.entries import status
from redbeat.entries.saving import entry_of
from redbeat.entries.state import (
    SCHEDULED,
    Failing,
    Hold,
    Quarantine,
    Results,
    Running,
    State,
    end_line,
    trigger_line,
)
from redbeat.metrics.counts import counts_of
from redbeat.metrics.snapshot import count_entries
from redbeat.storage.keys import Keys
from redbeat.storage.reading import Reading

PREFIX = "redbeat:"
SCHEDULE = f"{PREFIX}:schedule"
ASIDE = f".{PREFIX}:"
NOW = 1_800_000_000.0
DEFINITION = {"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}}


def reader(client: Any) -> Reading:
    """Return a reader of the schedule."""
    return Reading(client, Keys(PREFIX))


def put(client: Any, name: str, score: float | None = NOW, **fields: str) -> None:
    """Store an entry with some texts."""
    client.hset(f"{PREFIX}{name}", mapping={"definition": json.dumps(DEFINITION), **fields})
    if score is not None:
        client.zadd(SCHEDULE, {f"{PREFIX}{name}": score})


def pages(client: Any, limit: int) -> list[str]:
    """Return the names of all entries, read in pages."""
    page = reader(client).page(limit=limit)
    names = [row.key.removeprefix(PREFIX) for row in page.rows]
    while page.after is not None:
        page = reader(client).page(page.after, limit)
        names += [row.key.removeprefix(PREFIX) for row in page.rows]
    return names


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_are_in_due_order_and_parked_entries_come_last(redis_client: Any, limit: int) -> None:
    scores = {"b": 5, "a": 5, "soon": 1, "now": 0, "last": 1e10, "off": -2, "off2": -2, "done": -1}
    for name, score in scores.items():
        put(redis_client, name, score)
    expected = ["now", "soon", "a", "b", "last", "off", "off2", "done"]
    assert pages(redis_client, limit) == expected


def test_a_row_has_what_the_tools_show(redis_client: Any) -> None:
    put(redis_client, "a", history='["1 +1",\n"2 +1"]', policy='{"jitter": 2}')
    redis_client.sadd(f"{PREFIX}:statics", "a")
    redis_client.hset(f"{ASIDE}quarantine", f"{PREFIX}a", "why")
    put(redis_client, "b", None)
    redis_client.set(f"{PREFIX}c", "x")
    a, b, c, d = reader(redis_client).read([f"{PREFIX}{name}" for name in "abcd"]).rows
    assert (a.due, a.static, a.note, a.policy) == (NOW, True, "why", '{"jitter": 2}')
    assert (b.due, b.static, b.note, b.unreadable) == (None, False, "", "")
    assert (bool(c.problem), d.unreadable) == (True, "the definition is missing")
    (first,) = reader(redis_client).page(limit=1, history=True).rows
    assert texts_in(first.history) == ["1 +1", "2 +1"]


def test_a_name_in_place_of_a_key_is_its_entry(redis_client: Any) -> None:
    put(redis_client, "a", None)
    redis_client.zadd(SCHEDULE, {"a": 7})
    (row,) = reader(redis_client).page().rows
    assert (row.key, row.due) == (f"{PREFIX}a", 7.0)
    assert reader(redis_client).read([f"{PREFIX}a"]).rows[0].due == 7.0


def test_entries_that_fail_are_counted_by_their_states(app: Celery, redis_client: Any) -> None:
    failing = State(failing=Failing(5.0, 2, "away", due=3.0, last=6.0)).text()
    put(redis_client, "fails", 9e9, beat_state=failing)
    put(redis_client, "works", 9e9, beat_state=State().text())
    put(redis_client, "off", -2, beat_state=failing)
    names = ("fails", "works", "off", "gone")
    redis_client.zadd(f"{ASIDE}failing", {f"{PREFIX}{name}": 3 for name in names})
    counts = count_entries(reader(redis_client), ensure_conf(app), 60)
    assert (counts.members, counts.failing, counts.disabled, counts.parked) == (3, 1, 1, 1)
    assert (counts.due, counts.first_due, counts.first_key) == (1, 3.0, f"{PREFIX}fails")
    assert counts.problem == ""


@pytest.mark.parametrize("name", ["quarantine", "stats", "beats", "failing", "expected"])
def test_a_side_key_of_a_wrong_type_is_named_and_stops_nothing(
    redis_client: Any, name: str
) -> None:
    put(redis_client, "a")
    redis_client.set(f"{ASIDE}{name}", "x")
    assert len(reader(redis_client).page().rows) == 1
    counts = counts_of(reader(redis_client), None, -2, 60)
    assert counts.members == 1
    assert f"redis-cli DEL {ASIDE}{name}" in counts.problem


# -- states ----------------------------------------------------------------------------------------


def shown(app: Celery, client: Any, score: float, inbox: str = "", **parts: Any) -> Any:
    """Store an entry with a state, and return its record and status."""
    RedBeatSchedulerEntry.generate_key(app, "a")  # prepares the settings of the app
    put(client, "a", score, beat_state=State(**parts).text(), **({"inbox": inbox} if inbox else {}))
    row: Any = reader(client).read([f"{PREFIX}a"]).rows[0]
    record = status.record_of(
        row, "a", NOW, partial(entry_of, app=app, entry_class=RedBeatSchedulerEntry)
    )
    return record, status.status_of(record, row)


HELD = Hold(SCHEDULED, NOW - 7, "id", NOW + 20)


@pytest.mark.parametrize(
    ("score", "parts", "state", "due"),
    [
        (NOW + 5, {}, "scheduled", 5),
        (0, {}, "scheduled", 0),
        (NOW + 20, {"hold": HELD}, "running", -7),
        (NOW + 20, {"hold": HELD._replace(until=NOW - 1)}, "scheduled", 20),
        (NOW + 5, {"running": Running("id", NOW + 1)}, "running", 5),
        (NOW + 5, {"running": Running("id", NOW - 1)}, "scheduled", 5),
        (NOW + 5, {"failing": Failing(NOW - 9, 2, "no", NOW - 8, NOW - 1)}, "failing", -8),
        (-1, {"quarantine": Quarantine(NOW, "broken")}, "quarantined", None),
        (-1, {}, "finished", None),
    ],
)
def test_the_state_of_an_entry(
    app: Celery, redis_client: Any, score: float, parts: Any, state: str, due: float | None
) -> None:
    record, shown_status = shown(app, redis_client, score, **parts)
    assert (record.state, shown_status.state) == (state, state)
    found = None if record.due_at is None else record.due_at.timestamp() - NOW
    assert found == due
    if state == "quarantined":
        assert shown_status.reason == "broken"
        assert shown_status.quarantined_since == record.quarantined_since == from_timestamp(NOW)


def test_a_failing_entry_has_its_first_and_last_error(app: Celery, redis_client: Any) -> None:
    failing = Failing(NOW - 9, 3, "last", NOW - 10, NOW - 1, "first")
    record, _ = shown(app, redis_client, NOW + 5, failing=failing)
    found = record.failing
    assert (found.attempts, found.first_error, found.last_error) == (3, "first", "last")
    times = (found.first_at, found.last_at, found.next_attempt_at)
    assert [at.timestamp() - NOW for at in times] == [-9, -1, 5]


def test_before_its_start_no_entry_is_overdue(app: Celery, redis_client: Any) -> None:
    start = from_timestamp(NOW - 30).isoformat()
    results = Results(success=NOW - 200, since=NOW - 300)
    for within, seconds in ((60, None), (20, 30)):
        policy = json.dumps({"expect_within": within, "start_time": start})
        put(redis_client, "a", NOW + 5, policy=policy)
        _, found = shown(app, redis_client, NOW + 5, results=results)
        assert (found.overdue and found.overdue.seconds) == seconds


def test_what_waits_in_the_inbox_is_shown(app: Celery, redis_client: Any) -> None:
    end = json.loads(end_line("id", "failed", error="E"))
    inbox = f"[{json.dumps([*end, NOW - 3])},\n{trigger_line('t1', NOW)}]"
    running = Running("id", NOW + 100)
    record, found = shown(app, redis_client, NOW + 5, inbox, running=running)
    assert (record.state, found.consecutive_failures) == ("scheduled", 1)
    put(redis_client, "a", NOW + 5, policy='{"expect_within": 10}')
    results = Results(success=NOW - 100, since=NOW - 200)
    record, found = shown(app, redis_client, NOW + 5, results=results)
    assert found.overdue.seconds == 100
    assert found.last_success.timestamp() == NOW - 100
