"""Searches of large schedules: what they read, and what they skip."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat import Schedule
from redbeat.errors import InvalidEntryError
from redbeat.management import find
from redbeat.management.find import (
    MAX_MATCHES,
    ORDERS,
    Filter,
    Search,
    glob_of,
    in_order,
    like,
    literal_in,
)
from redbeat.storage.reading import BATCH, SCAN_COUNT
from tests.scheduler.conftest import SCHEDULE, World

from .conftest import Make, RoundTrips

#: More entries than a page, fewer than a part of a scan.
COUNT = 2_600

WORDS = st.text("aAkKsS\u017fß\ufb01\u212a-:0.*?[]!\\é\n", max_size=8)


def names(found: Any) -> list[str]:
    return [record.name for record in found]


def listed(schedule: Schedule, **filters: Any) -> list[str]:
    given_filters = Filter(**{**filters, "states": filters.get("states")})
    return names(record for page in Search(schedule, given_filters).pages() for record in page)


# -- text in patterns -----------------------------------------------------------------------------


@given(WORDS, WORDS)
@example("a[b]c", "abc")
@example("a[!b", "a[!b")
@example("ss", "ß")
@example("fi", "\ufb01")
def test_each_match_has_the_literal_text_of_the_pattern(pattern: str, text: str) -> None:
    if fnmatchcase(text, pattern):
        assert literal_in(pattern) in text
    if like(text, pattern):
        assert literal_in(pattern, fold=True).lower() in text.lower()


@pytest.mark.parametrize(
    ("pattern", "fold", "glob"),
    [
        ("tenant-0042:*", False, "*tenant-0042:*"),
        ("*", False, "*"),
        ("é*", False, "*"),
        ("a?bc*d", False, "*bc*"),
        (r"a\b*", False, r"*a\\b*"),
        ("due-99", True, "*[Dd][Uu][Ee]-99*"),
        ("tenant-0042:", True, "*-0042:*"),
    ],
)
def test_the_pattern_that_redis_compares(pattern: str, fold: bool, glob: str) -> None:
    assert glob_of(pattern, fold) == glob


# -- what is read ---------------------------------------------------------------------------------


@pytest.fixture
def filled(world: World) -> World:
    """2600 entries, of which ``e7`` and ``e8`` have a negative score."""
    world.put_many(COUNT)
    scores = {f"redbeat:e{number}": 1_000_000 + number for number in range(COUNT)}
    world.client.zadd(SCHEDULE, {**scores, "redbeat:e7": -2, "redbeat:e8": -1})
    return world


@pytest.mark.usefixtures("filled")
def test_a_pattern_reads_only_what_matches(schedule: Schedule, trips: RoundTrips) -> None:
    assert listed(schedule, pattern="e10?") == [f"e{100 + number}" for number in range(10)]
    # The server looks at 2000 entries or a few more in each part of the scan.
    assert trips.take() <= COUNT // SCAN_COUNT + 1 + 1
    assert listed(schedule, pattern="e[78]") == ["e7", "e8"]


def test_a_broad_pattern_reads_pages(world: World, schedule: Schedule, trips: RoundTrips) -> None:
    """The names of so many matches are not kept to sort them; the order is the same."""
    count = MAX_MATCHES + 1
    world.put_many(count, score=1_000_000)
    world.client.zadd(SCHEDULE, {"redbeat:e7": 2, f"redbeat:e{count - 1}": 1, "redbeat:e0": -1})
    trips.take()
    found = names(schedule.records(pattern="e*", limit=4))
    assert found == [f"e{count - 1}", "e7", "e1", "e10"]
    assert trips.take() <= count // SCAN_COUNT + 1 + 1


def test_paused_entries_are_read_first(
    filled: World, schedule: Schedule, trips: RoundTrips
) -> None:
    for name in ("e7", "e2599"):  # RedBeat 2 keeps the score of an entry that it disables
        text = json.loads(filled.client.hget(f"redbeat:{name}", "definition"))
        filled.client.hset(f"redbeat:{name}", "definition", json.dumps({**text, "enabled": False}))
    assert names(schedule.records(states=["paused"], limit=1)) == ["e7"]
    assert trips.take() == 1
    assert names(schedule.records(states=["paused"])) == ["e7", "e2599"]


@pytest.mark.usefixtures("filled")
def test_finished_entries_are_read_alone(schedule: Schedule, trips: RoundTrips) -> None:
    assert names(schedule.records(states=["finished"])) == ["e7", "e8"]
    assert trips.take() == 1


def test_an_entry_that_moves_during_a_search_by_state_is_found(
    filled: World, schedule: Schedule
) -> None:
    found = schedule.records(states=["scheduled"])
    first = next(found)
    filled.client.zadd(SCHEDULE, {"redbeat:e2000": 5})
    rest = names(found)
    assert rest[-1] == "e2000"
    assert sorted([first.name, *rest]) == sorted(
        f"e{number}" for number in range(COUNT) if number not in (7, 8)
    )


@pytest.mark.parametrize(
    "definition",
    [
        '{"name": "e9", "task": "rare\\u002ex", "schedule": SCHEDULE, "enabled": false}',
        '{"enabled": true, "name": "e9", "task": "rare.x", "schedule": SCHEDULE, "enabled": false}',
        '{"name":"e9","task":"rare.x","args":[{"enabled":true}],"enabled":0,"schedule":SCHEDULE}',
    ],
)
def test_unusual_json_is_found(filled: World, schedule: Schedule, definition: str) -> None:
    when = '{"__type__": "interval", "every": 5.0, "relative": false}'
    filled.client.hset("redbeat:e9", "definition", definition.replace("SCHEDULE", when))
    assert listed(schedule, task="rare.*", states=frozenset({"paused"})) == ["e9"]
    assert listed(schedule, task="rare.x", enabled=False) == ["e9"]


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_orders(schedule: Schedule, make: Make, world: World, order: str) -> None:
    for name, task in (("b", "t1"), ("a", "t2"), ("é", "t1"), ("Z", "t3"), ("c", "t2")):
        make(name, task=task, enabled=name != "a").save()
    world.put_many(BATCH + 1)
    everything = list(schedule.records())
    value = ORDERS[order]
    expected = names(sorted(everything, key=lambda record: (value(record), record.name)))
    assert names(in_order(schedule.records(), order)) == expected
    assert names(in_order(schedule.records(), f"-{order}")) == expected[::-1]


def test_too_many_entries_are_not_sorted(
    schedule: Schedule, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "SORTED", 10)
    world.put_many(10)
    assert len(in_order(schedule.records(), "task")) == 10
    world.put_many(11)
    with pytest.raises(InvalidEntryError, match="more match; narrow the search"):
        in_order(schedule.records(), "task")
