"""The histories that a beat wrote itself."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.prototypes import Histories
from redbeat.errors import DecodeError

#: What is not JSON, so that only a history that is kept can tell what it says.
UNREADABLE = "as this beat wrote it"


@pytest.fixture
def entry(app: Celery) -> RedBeatSchedulerEntry:
    """An entry that ran five times."""
    entry = RedBeatSchedulerEntry("a", "t", 60, app=app, total_run_count=5)
    entry.last_run_at = datetime(2026, 11, 22, 8, 30, tzinfo=timezone.utc)
    return entry


def is_kept(histories: Histories, key: str, entry: RedBeatSchedulerEntry) -> bool:
    other = RedBeatSchedulerEntry("b", "t", 60, app=entry.app)
    try:
        histories.give(other, key, UNREADABLE, "")
    except DecodeError:
        return False
    return (other.last_run_at, other.total_run_count) == (entry.last_run_at, 5)


def test_when_it_is_full_one_of_some_takes_the_place_of_the_oldest(
    entry: RedBeatSchedulerEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each one did, then of more than can be kept none would be there in its turn."""
    monkeypatch.setattr("redbeat.entries.prototypes.CAPACITY", 2)
    monkeypatch.setattr("redbeat.entries.prototypes.TURNOVER", 3)
    histories, keys = Histories(), "abcdefgh"
    for key in keys:
        histories.note(key, UNREADABLE, "", entry)
    assert "".join(key for key in keys if is_kept(histories, key, entry)) == "eh"


def test_what_is_kept_is_kept_up_to_date(
    entry: RedBeatSchedulerEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.entries.prototypes.CAPACITY", 2)
    histories = Histories()
    for key in ("a", "b", "c"):
        histories.note(key, "an earlier text", "", entry)
    histories.note("a", UNREADABLE, "", entry)
    assert is_kept(histories, "a", entry)


def test_another_text_is_read(entry: RedBeatSchedulerEntry) -> None:
    histories = Histories()
    histories.note("a", UNREADABLE, "", entry)
    histories.give(entry, "a", '{"last_run_at": null, "total_run_count": 7}', "")
    assert (entry.last_run_at, entry.total_run_count) == (None, 7)
