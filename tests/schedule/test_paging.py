"""A listing is correct while entries run, change their score, are added or are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from redbeat import Schedule
from redbeat.storage.store import Store
from tests.scheduler.conftest import SCHEDULE, World
from tests.storage.places import KEYS

COUNT = 1300


@pytest.fixture
def listing(world: World, schedule: Schedule) -> Iterator[str]:
    """An iterator over 1300 entries that has read the first page, up to e499."""
    world.put_many(COUNT)
    scores = {f"redbeat:e{number}": 1_000_000 + number for number in range(COUNT)}
    world.client.zadd(SCHEDULE, scores)
    names = iter(schedule)
    assert list(islice(names, 500)) == [f"e{number}" for number in range(500)]
    return names


ALL = {f"e{number}" for number in range(COUNT)}


def test_an_entry_that_runs_is_listed_once(listing: Iterator[str], world: World) -> None:
    world.client.zadd(SCHEDULE, {f"redbeat:e{number}": 1_000_700.5 for number in range(100)})
    rest = list(listing)
    assert len(rest) == COUNT - 500
    assert set(rest) == ALL - {f"e{number}" for number in range(500)}


def test_an_entry_that_moves_to_an_earlier_place_is_listed_last(
    listing: Iterator[str], world: World
) -> None:
    world.client.zadd(SCHEDULE, {"redbeat:e900": 5})
    rest = list(listing)
    assert rest[-1] == "e900"
    assert (len(rest), len(set(rest))) == (COUNT - 500, COUNT - 500)


def test_deletions_before_the_place_shift_nothing(
    listing: Iterator[str], schedule: Schedule
) -> None:
    schedule.delete_all(f"e{number}" for number in range(300, 500))
    assert list(listing) == [f"e{number}" for number in range(500, COUNT)]


def test_additions_before_the_place_shift_nothing(listing: Iterator[str], world: World) -> None:
    world.put("new", score=1)
    assert list(listing) == [*(f"e{number}" for number in range(500, COUNT)), "new"]


def test_the_last_entry_of_a_page_may_be_gone_or_moved(
    listing: Iterator[str], world: World, schedule: Schedule
) -> None:
    del schedule["e499"]
    world.client.zadd(SCHEDULE, {"redbeat:e498": 2_000_000})
    assert list(listing) == [f"e{number}" for number in range(500, COUNT)]


def test_an_entry_that_is_paused_and_resumed_is_listed(
    listing: Iterator[str], world: World
) -> None:
    world.client.zadd(SCHEDULE, {"redbeat:e600": -2, "redbeat:e1": -2, "redbeat:e700": -1})
    rest = list(listing)
    assert rest[-2:] == ["e600", "e700"]
    assert len(rest) == COUNT - 500


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("score", [1000.0, -2.0])
def test_pages_within_one_score(store: Store, world: World, gone: bool, score: float) -> None:
    """Entries with equal scores are listed in byte order, independent of the locale."""
    names = sorted(("a", "B", "é", "a-", "a1", "Z", "_", "b", "aa"), key=str.encode)
    for name in names:
        world.put(name, score=score)
    found: list[str] = []
    after = None
    for _ in range(len(names)):
        page = store.page(after, limit=2)
        found += (row.key for row in page.rows)
        after = page.after
        if after is None:
            break
        if gone:
            world.client.zrem(SCHEDULE, after[1])
    assert found == [KEYS.entry(name) for name in names]


def test_an_empty_schedule_has_one_empty_page(store: Store) -> None:
    assert store.page()[1:] == ([], None)
    assert list(store.scan()) == [[]]
