"""Tests that a beat reads and writes the JSON on the page about other languages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatJSONDecoder
from tests.docs.blocks import Block, blocks
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


def test_the_documented_history_is_read(world: World) -> None:
    (meta,) = (block.text for block in JSON if "total_run_count" in block.text)
    RedBeatSchedulerEntry("a", "t", 60, app=world.app).save()
    world.client.hset("redbeat:a", "meta", meta)
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    assert entry.total_run_count == 23
    assert entry.last_run_at is not None
    assert entry.last_run_at.isoformat() == "2030-01-31T09:30:00.000231+00:00"
