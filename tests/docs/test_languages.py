"""Tests that a beat reads and writes the JSON on the page about other languages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.beat import LONGEST_WAIT
from redbeat.entries.decide import DISABLED, PARKED
from redbeat.schedulers import RedBeatJSONDecoder
from tests.docs.blocks import ROOT, Block, blocks
from tests.scheduler.conftest import World

PAGE = "docs/languages.rst"
JSON = [block for block in blocks("json") if block.page == PAGE]
TYPED = [block for block in JSON if "__type__" in json.loads(block.text)]


@pytest.mark.parametrize("block", TYPED, ids=str)
def test_an_object_is_decoded(block: Block) -> None:
    found = json.loads(block.text, cls=RedBeatJSONDecoder)
    assert not isinstance(found, dict)


def test_the_documented_note_equals_that_of_a_beat(world: World) -> None:
    (note,) = (json.loads(block.text) for block in JSON if '"reason"' in block.text)
    client: Any = world.client
    bad = {"name": "poll-4711", "task": "t", "schedule": {"__type__": "interval", "every": "5 s"}}
    client.hset("redbeat:poll-4711", "definition", json.dumps(bad))
    client.zadd("redbeat::schedule", {"redbeat:poll-4711": 0})
    world.scheduler().tick()
    written = json.loads(client.hget(".redbeat::quarantine", "redbeat:poll-4711"))
    assert written.keys() == note.keys()
    assert written["reason"] == note["reason"]


def test_an_example_that_changes_an_entry_at_once_wakes_the_beat() -> None:
    """Without ``PUBLISH``, a beat sees the change only at its next look."""
    seconds = {5.0: "five"}[LONGEST_WAIT]
    for block in blocks("sh"):
        writes, wakes = "ZADD redbeat::schedule 0", "PUBLISH redbeat::wakeup due"
        if writes in block.text and wakes not in block.text:
            text = (ROOT / block.page).read_text(encoding="utf-8")
            assert f"{seconds} seconds" in text.partition(block.text.splitlines()[-1])[2], block
    page = " ".join((ROOT / PAGE).read_text(encoding="utf-8").split())
    assert f"up to {seconds} seconds later" in page


def test_the_documented_scores_are_those_of_a_beat(world: World) -> None:
    page = " ".join((ROOT / PAGE).read_text(encoding="utf-8").split())
    says = f"{DISABLED:g} stands for a disabled entry, {PARKED:g} for a finished or quarantined one"
    assert says in page
    client: Any = world.client
    every: dict[str, Any] = {"task": "t", "schedule": {"__type__": "interval", "every": 60}}
    written = {
        "disabled": {**every, "enabled": False},
        "finished": {**every, "end_time": "2020-01-01T00:00:00Z"},
        "quarantined": {**every, "schedule": {"__type__": "interval", "every": "5 s"}},
    }
    for name, fields in written.items():
        client.hset(f"redbeat:{name}", "definition", json.dumps({"name": name, **fields}))
        client.zadd("redbeat::schedule", {f"redbeat:{name}": 0})
    world.scheduler().tick()
    scores = {name: client.zscore("redbeat::schedule", f"redbeat:{name}") for name in written}
    assert scores == {"disabled": DISABLED, "finished": PARKED, "quarantined": PARKED}


def test_an_entry_that_is_due_while_no_beat_runs_is_scheduled_with_an_empty_history(
    world: World,
) -> None:
    """So an empty history doesn't mean that the entry isn't due yet."""
    fields = {"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}}
    world.client.hset("redbeat:a", "definition", json.dumps(fields))
    world.client.zadd("redbeat::schedule", {"redbeat:a": 1})
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    assert (entry.status.state, entry.history, entry.is_due().is_due) == ("scheduled", [], True)


def test_the_documented_history_is_read(world: World) -> None:
    (meta,) = (block.text for block in JSON if "total_run_count" in block.text)
    RedBeatSchedulerEntry("a", "t", 60, app=world.app).save()
    world.client.hset("redbeat:a", "meta", meta)
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    assert entry.total_run_count == 23
    assert entry.last_run_at is not None
    assert entry.last_run_at.isoformat() == "2030-01-31T09:30:00.000231+00:00"
