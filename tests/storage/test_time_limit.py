"""Scripts about many entries stop after a time limit, and the store asks for the rest."""

from __future__ import annotations

import pytest

from redbeat.storage.reading import Reading
from redbeat.storage.records import SAVED, Keys, StaticRow, Writing
from redbeat.storage.store import Store

from .conftest import KEYS

CHECKED = 20
MANY = 5 * CHECKED + 7


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script is out of time at its first look at the clock."""
    monkeypatch.setattr(Reading, "max_seconds", -1.0)


def writings(keys: Keys, parked: int = 0) -> list[Writing]:
    """Return new entries, the first of which are parked."""
    return [
        Writing(keys.entry(f"e{number:03}"), "{}", "", "{}", score=-1 if number < parked else 9)
        for number in range(MANY)
    ]


def test_a_save_writes_all_entries_in_parts(store: Store) -> None:
    saved = store.save_all(writings(KEYS))
    assert [one.code for one in saved] == [SAVED] * MANY
    assert store.members() == MANY
    assert store.round_trips == 1 + 6


def test_a_save_that_overlaps_other_commands_writes_all_entries(store: Store) -> None:
    read = store.begin_save_all(writings(KEYS))
    assert [one.code for one in read()] == [SAVED] * MANY
    assert store.members() == MANY


def test_a_read_returns_a_row_per_key(store: Store) -> None:
    store.save_all(writings(KEYS))
    keys = [KEYS.entry(f"e{number:03}") for number in range(MANY)]
    assert [row.key for row in store.read(keys).rows] == keys


def test_pages_have_every_entry_once(store: Store) -> None:
    """Parked entries come last; a page may end among them, or between the two kinds."""
    expected = writings(KEYS, parked=2 * CHECKED + 3)
    store.save_all(expected)
    page = store.page()
    found = [row.key for row in page.rows]
    assert 0 < len(found) <= CHECKED
    while page.after is not None:
        page = store.page(page.after)
        assert page.rows
        found += [row.key for row in page.rows]
    keys = [writing.key for writing in expected]
    assert found == keys[2 * CHECKED + 3 :] + keys[: 2 * CHECKED + 3]


def test_a_page_of_large_entries_ends_early(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply has at most 4 MiB and one entry."""
    monkeypatch.setattr(Reading, "max_seconds", 60.0)
    text = '{"a": "' + "x" * 1_500_000 + '"}'
    keys = [KEYS.entry(f"e{number}") for number in range(7)]
    for key in keys:
        store.save(key, text, "", "{}", score=9)
    assert len(store.page().rows) == 3
    assert [row.key for row in store.read(keys).rows] == keys


def test_static_entries_are_written_in_parts(store: Store) -> None:
    rows = [
        StaticRow(f"e{number:03}", KEYS.entry(f"e{number:03}"), "{}", "", '{"m": 1}', 9)
        for number in range(MANY)
    ]
    assert store.sync_statics(rows, None, "") == [1] * MANY
    assert store.static_names() == {row.name for row in rows}
    assert {row.meta for row in store.read([row.key for row in rows]).rows} == {'{"m": 1}'}
