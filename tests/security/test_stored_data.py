"""Hostile data in every field of every key of RedBeat: the beat and all readers survive."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import pytest

from redbeat import Schedule
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.cli.commands import run_command
from tests.deployments import PREFIX
from tests.samples import one_in
from tests.scheduler.conftest import (
    BEATS,
    QUARANTINE,
    STATICS,
    STATS,
    Clock,
    RecordingScheduler,
    World,
)
from tests.stored import put_history, put_state

#: Seconds after which a beat has reviewed its quarantine.
REVIEW_SECONDS = 60.0

DEEP = 100_000
SURROGATE = json.dumps("\ud800").encode()

#: Values that another program may write into any field.
HOSTILE: dict[str, bytes] = {
    "nested lists": b"[" * DEEP,
    "nested lists, closed": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"a":' * DEEP,
    "not UTF-8": b"\xff\xfe",
    "not UTF-8 in a string": b'"a\xff"',
    "lone surrogate": SURROGATE,
    "lone surrogate in an object": b'{"note": "\\ud800", "reason": "\\ud800", "since": 1}',
    "long number": b"9" * 5_000,
    "infinite": b"1e999",
    "not a number": b"NaN",
    "far number": b"4e11",
    "instants": b'{"scheduled_at": NaN, "last_run_at": 1e999, "reason": 5, "since": 1e300}',
    "null": b"null",
    "empty": b"",
    "blank": b'" \\n "',
    "long": b'"' + b"x" * 2_000_000 + b'"',
}

#: What a number in a state may be, if another program wrote it.
ODD: list[Any] = [
    *(float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 4e11, -5, 10**400),
    *("x", "1", True, None, [], {}),
]

#: For each part of a state, its forms with an odd number.
PARTS: dict[str, Callable[[Any], Any]] = {
    "m": lambda odd: [odd, odd, odd],
    "at": lambda odd: odd,
    "due": lambda odd: odd,
    "hold": lambda odd: ["scheduled", odd, "id", odd, "", odd],
    "running": lambda odd: ["id", odd],
    "failing": lambda odd: [odd, odd, "reason", odd, odd, ""],
    "waiting": lambda odd: [["id", odd]],
    "pause": lambda odd: [odd, "why", "me"],
    "quarantine": lambda odd: [odd, "reason"],
    "results": lambda odd: [odd, odd, odd, [odd]],
}

#: Lines of the other fields that have the right form, but not a time that the program can use.
LINES: dict[str, list[Any]] = {
    "history": ["nan +1", "1e300 +1", "1 +1e300", "1 +nan", "-1e300 +1", "1 inf x y", ""],
    "inbox": [
        *(["trigger", "id", odd] for odd in ODD),
        *(["end", "id", "succeeded", odd, odd, "", odd] for odd in ODD),
        *(["backfill", "id", "1 1 1", odd] for odd in ODD),
    ],
    "results": [["id", "failed", odd, odd, "E", odd] for odd in ODD],
}

FIELDS = (*("definition", "meta", "policy", "beat_state", "inbox", "history", "results", "waits"),)


#: Commands and pages of one entry; each of the entries takes one of them in turn.
COMMANDS = (
    *("show --json", "history", "upcoming", "backfill", "backfill --cancel"),
    "backfill --from 2026-01-01 --to 2026-01-02 --dry-run",
    "backfill --from 2026-01-01 --to 2026-01-02 --rate 1/h",
    "simulate --from 2026-01-01 --to 2026-01-02",
)
PATHS = ("/api/entry", "/api/entry/history", "/entry/edit", "/entry/simulate", "/entry/delete")


def put_hostile(world: World, value: bytes) -> list[str]:
    """Store ``value`` in each field of each key; return the names of the entries."""
    names = []
    for field in FIELDS:
        name = f"bad-{field}"
        world.put(name, last_run_at=world.ago(90))
        world.client.hset(f"{PREFIX}{name}", field, value)
        names.append(name)
    world.client.hset(QUARANTINE, mapping={f"{PREFIX}bad-meta": value, f"{PREFIX}none": value})
    world.client.zadd(BEATS, {value[:1000]: world.now()})
    world.client.sadd(STATICS, value[:1000])
    fields = ("last_tick", "timezone", "problem", "statics", "leader", "batch", "sent", value[:99])
    world.client.hset(STATS, mapping=dict.fromkeys(fields, value))
    return names


def tick_three_times(world: World, clock: Clock) -> RecordingScheduler:
    """Run a beat on the schedule, and let it review its quarantine."""
    world.put("good")
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    for _ in range(3):
        scheduler.tick()
        clock.advance(REVIEW_SECONDS + 1)
    return scheduler


def readers(world: World, names: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each way to read the schedule, with a function that does so."""
    app, schedule = world.app, Schedule(world.app)
    yield "records", schedule.records
    for entry in schedule.values():
        for attribute in ("history", "status"):
            yield f"{attribute} of {entry.name}", partial(getattr, entry, attribute)
        yield f"upcoming of {entry.name}", entry.upcoming
    pages = ["/", "/timeline", "/beats", "/api/entries", "/api/status"]
    commands = [["list"], ["status"], ["upcoming"], ["doctor"]]
    commands += [[*command, "--json"] for command in commands] + [["export"]]
    for name, words, page in zip(names, cycle(COMMANDS), cycle(PATHS), strict=False):
        commands += [["show", name], ["history", name, "--json"], [*words.split(), name]]
        pages += [f"{path}?name={name}" for path in ("/entry", page)]
    for command in commands:
        yield " ".join(command), partial(run_command, app, *command)
    browser = create_app(schedule, Access()).test_client()
    for path in pages:
        yield path, partial(get_page, browser, path)


def get_page(browser: Any, path: str) -> None:
    """Read a page; raise an error for the status 500."""
    answer = browser.get(path)
    if answer.status_code >= 500:
        raise AssertionError(answer.text)


def problems_of(world: World, names: list[str]) -> list[str]:
    """Return the errors of all readers of the schedule."""
    problems = []
    for what, read in readers(world, names):
        try:
            read()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            problems.append(f"{what}: {error!r:.200} {place.filename}:{place.lineno}")
    return problems


@pytest.mark.parametrize("value", one_in(6, HOSTILE.values()), ids=[*HOSTILE])
def test_a_value_in_each_field(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, value: bytes
) -> None:
    names = put_hostile(world, value)
    scheduler = tick_three_times(world, clock)
    assert scheduler.names.count("good") == 1
    assert "The tick failed" not in log.text
    assert "Redis is not available" not in log.text
    assert problems_of(world, names) == []


@pytest.mark.parametrize("part", one_in(3, PARTS))
def test_odd_numbers_in_what_beats_keep(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, part: str
) -> None:
    names = []
    for number, odd in enumerate(ODD):
        names.append(f"{part}-{number}")
        world.put(names[-1], last_run_at=world.ago(90), overlap="skip")
        put_state(world.client, f"{PREFIX}{names[-1]}", **{part: PARTS[part](odd)})
    scheduler = tick_three_times(world, clock)
    assert scheduler.names.count("good") == 1
    assert "The tick failed" not in log.text
    assert "Redis is not available" not in log.text
    assert problems_of(world, names) == []


@pytest.mark.parametrize("field", LINES)
def test_odd_times_in_lines(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, field: str
) -> None:
    names = []
    for number, line in enumerate(LINES[field]):
        names.append(f"{field}-{number}")
        world.put(names[-1], last_run_at=world.ago(90), expect_within=60)
        put_history(world.client, f"{PREFIX}{names[-1]}", ["1795462250 +5"])
        world.client.hset(f"{PREFIX}{names[-1]}", field, f"[{json.dumps(line)}]")
    scheduler = tick_three_times(world, clock)
    assert scheduler.names.count("good") == 1
    assert "The tick failed" not in log.text
    assert "Redis is not available" not in log.text
    assert problems_of(world, names) == []


@pytest.mark.parametrize("value", one_in(2, ["inf", "nan", "1e300", "-1e300", "9" * 400, "x"]))
def test_when_workers_began_to_report(world: World, value: str) -> None:
    world.app.redbeat_tracks_runs = True
    world.put("a", last_run_at=world.ago(90))
    put_history(world.client, f"{PREFIX}a", ["1795462250 +5"])
    world.client.hset(STATS, "reports_since", value)
    assert problems_of(world, ["a"]) == []


@pytest.mark.parametrize("score", ["inf", "1e300", "4e11"])
def test_a_score_that_is_no_instant(world: World, score: str) -> None:
    world.put("a")
    world.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": score})
    copied = run_command(world.app, "migrate-prefix", PREFIX, "{other}:", "--dry-run")
    assert copied.code == 0
    assert "a" in copied.out
    assert problems_of(world, ["a"]) == []
