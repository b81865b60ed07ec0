"""Scripts about many entries stop after a time limit, and the store asks for the rest."""

from __future__ import annotations

import pytest

from redbeat.storage.reading import Reading
from tests.storage.places import Place

CHECKED = 8
MANY = 5 * CHECKED + 7


@pytest.fixture
def out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script is out of time at its first look at the clock."""
    monkeypatch.setattr(Reading, "max_seconds", -1.0)


def filled(place: Place, parked: int = 0) -> list[str]:
    """Store many entries, the first of which are parked, and return their keys."""
    return [
        place.put(f"e{number:03}", -1 if number < parked else 9, meta="{}")
        for number in range(MANY)
    ]


@pytest.mark.usefixtures("out_of_time")
def test_a_read_returns_a_row_per_key(place: Place) -> None:
    keys = filled(place)
    page = place.store.read(keys)
    assert [row.key for row in page.rows] == keys
    assert place.store.page(limit=MANY).after is not None  # one script does not read that many


@pytest.mark.usefixtures("out_of_time")
def test_pages_have_every_entry_once(place: Place) -> None:
    """Parked entries come last; a page may end among them, or between the two kinds."""
    keys = filled(place, parked=2 * CHECKED + 3)
    page = place.store.page()
    found = [row.key for row in page.rows]
    assert 0 < len(found) <= CHECKED
    while page.after is not None:
        page = place.store.page(page.after)
        assert page.rows
        found += [row.key for row in page.rows]
    assert found == keys[2 * CHECKED + 3 :] + keys[: 2 * CHECKED + 3]


def test_a_page_of_large_entries_ends_early(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply has at most 4 MiB and one entry."""
    monkeypatch.setattr(Reading, "max_seconds", 60.0)
    text = '{"a": "' + "x" * 1_500_000 + '"}'
    keys = [place.put(f"e{number}", 9, definition=text) for number in range(7)]
    assert len(place.store.page().rows) == 3
    assert [row.key for row in place.store.read(keys).rows] == keys
