"""Programs pause, resume, release, delete and pop entries on a real server."""

from __future__ import annotations

import json

import pytest

from redbeat import ConflictError, InvalidEntryError, RedBeatSchedulerEntry
from redbeat.calendar.zones import from_timestamp
from redbeat.entries import edits, saving
from redbeat.entries.decide import Trigger
from redbeat.entries.state import Pause, Quarantine, Results
from redbeat.management.apply import delete_unchanged
from redbeat.management.doctor import forget
from tests.deployments import PREFIX
from tests.entries.worlds import HOUR, KEYS, World, hold_at, near, nothing

pytestmark = pytest.mark.standalone


def test_a_pause_and_its_end(world: World) -> None:
    entry = world.saved(max_runs=3)
    world.run()
    at = world.state().at
    edits.pause_entry(world.store, entry, "too loud", "me")
    assert world.store.turns == 3
    assert world.definition()["enabled"] is False
    assert world.score() == -2
    pause = world.state().pause
    assert pause is not None
    assert pause == Pause(pause.since, "too loud", "me")
    assert pause.since <= world.now
    assert (entry.enabled, entry.saved_state.pause.note) == (False, "too loud")
    assert world.load().saved_state.pause.by == "me"

    world.put_state(results=Results(None, 4, 1.0))
    edits.resume_entry(world.store, entry)
    assert world.definition()["enabled"] is True
    assert world.state().pause is None
    assert world.state().results.failures == 0
    assert entry.enabled
    assert entry.saved_state.pause is None
    assert at is not None
    assert world.score() == near(at + HOUR)
    world.save(entry, if_unchanged=True)


def test_a_pause_and_a_release_keep_the_policy(world: World) -> None:
    begins = from_timestamp(world.now + 5 * HOUR)
    entry = world.saved(start_time=begins)
    policy, score = world.stored()["policy"], world.score()
    edits.pause_entry(world.store, entry)
    assert world.stored()["policy"] == policy
    entry.args = [1]
    world.save(entry, if_unchanged=True)
    edits.resume_entry(world.store, entry)
    assert world.stored()["policy"] == policy
    assert score is not None
    assert world.score() == near(score)
    edits.make_due(world.store, [entry.key])
    assert world.stored()["policy"] == policy


def test_a_pause_does_not_save_what_the_program_changed(world: World) -> None:
    entry, other = world.saved(), world.load()
    other.args = [2]
    world.save(other)
    entry.args = [1]
    edits.pause_entry(world.store, entry)
    assert world.definition()["args"] == [2]
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=True)


def test_missing_and_unreadable_entries_are_not_paused(world: World) -> None:
    entry = world.entry()
    with pytest.raises(KeyError):
        edits.pause_entry(world.store, entry)
    with pytest.raises(KeyError):
        edits.resume_entry(world.store, entry)
    world.client.set(world.key("text"), "text")
    world.client.hset(world.key("list"), "definition", "[]")
    world.saved("good")
    keys = [world.key(name) for name in ("text", "list", "gone", "good")]
    assert list(edits.pause(world.store, keys, None, None)) == [world.key("good")]
    world.client.hset(world.key("good"), "definition", '{"enabled": false, "name": "good"}')
    assert list(edits.resume(world.store, keys, world.app, RedBeatSchedulerEntry)) == [keys[-1]]
    assert world.is_due("good"), "a beat reports what is wrong"


def test_an_edit_during_a_pause_is_kept(world: World) -> None:
    entry = world.saved()

    def edit() -> None:
        other = world.load()
        other.args = [8]
        saving.save(world.other, [other])

    world.store.before = [None, edit, world.run]
    edits.pause_entry(world.store, entry)
    assert world.definition()["args"] == [8]
    assert world.definition()["enabled"] is False
    assert world.load().total_run_count == 1


def test_a_pause_gives_up_after_some_tries(world: World) -> None:
    entry = world.saved()
    world.store.before = [world.run] * 21
    with pytest.raises(ConflictError):
        edits.pause_entry(world.store, entry)
    assert world.definition()["enabled"] is True


@pytest.mark.parametrize("resumes", [False, True])
def test_a_lost_reply_of_a_pause(world: World, resumes: bool) -> None:
    entry = world.saved(enabled=not resumes)
    world.store.lost = [nothing, nothing]
    if resumes:
        edits.resume_entry(world.store, entry)
    else:
        edits.pause_entry(world.store, entry)
    assert world.definition()["enabled"] is resumes


def test_a_first_run_keeps_its_time_through_a_pause(world: World) -> None:
    definition = json.dumps({"name": "a", "task": "t", "schedule": {"__type__": "interval",
                             "every": 60, "relative": False}, "args": [], "kwargs": {},
                             "options": {}, "enabled": True})  # fmt: skip
    due = world.now + 500
    world.client.hset(world.key(), "definition", definition)
    world.client.zadd(KEYS.schedule, {world.key(): due})
    edits.pause(world.store, [world.key()], None, None)
    assert world.state().due == near(due)
    edits.resume(world.store, [world.key()], world.app, RedBeatSchedulerEntry)
    assert world.score() == near(due)


def test_entries_are_made_due(world: World) -> None:
    entry, due = world.saved(last_run_at=from_timestamp(world.now), exclude=()), world.now + 500
    never = world.saved("b")
    world.client.hdel(never.key, "meta")
    world.client.zadd(KEYS.schedule, {never.key: due})
    made = edits.make_due(world.store, [entry.key, never.key, world.key("gone")])
    assert made[entry.key].definition == entry.seen_texts[0]
    assert list(made) == [entry.key, never.key]
    assert world.is_due("a")
    assert world.is_due("b")
    assert world.state("b").due == near(due)


def test_what_a_program_took_out_of_the_schedule_is_not_made_due(world: World) -> None:
    entry = world.saved()
    world.client.zrem(KEYS.schedule, entry.key)
    edits.make_due(world.store, [entry.key])
    assert world.score() is None


def test_a_resumed_entry_is_put_into_the_schedule(world: World) -> None:
    entry = world.saved()
    world.client.zrem(KEYS.schedule, entry.key)
    edits.resume_entry(world.store, entry)
    assert world.score() is not None
    turns = world.store.turns
    edits.resume_entry(world.store, entry)
    assert world.store.turns == turns + 1, "there is nothing to do"


def test_an_entry_out_of_the_schedule_is_paused(world: World) -> None:
    entry = world.saved()
    world.client.zrem(KEYS.schedule, entry.key)
    edits.pause_entry(world.store, entry)
    assert world.score() == -2


def test_a_pause_leaves_a_hold_and_a_trigger(world: World) -> None:
    entry = world.saved()
    until = world.now + 30
    world.put_state(hold=hold_at(until), score=until)
    edits.pause_entry(world.store, entry)
    assert world.score() == near(until)
    world.put_state(hold=None, waiting=(Trigger("t", from_timestamp(1.0)),))
    edits.pause_entry(world.store, entry)
    assert world.is_due(), "triggered runs are sent while the entry is paused"


def test_a_quarantined_entry_is_released(world: World) -> None:
    entry = world.saved()
    world.put_state(quarantine=Quarantine(1.0, "x"), score=-1)
    world.client.hset(f".{PREFIX}:quarantine", entry.key, "{}")
    assert list(edits.make_due(world.store, [entry.key, world.key("gone")])) == [entry.key]
    assert world.state().quarantine is None
    assert not world.aside("quarantine")
    assert world.is_due()
    assert world.stored()["definition"] == world.load().seen_texts[0]


def test_a_deletion_drops_everything(world: World) -> None:
    entry = world.saved()
    world.trigger()
    for name in ("failing", "expected"):
        world.client.zadd(f".{PREFIX}:{name}", {entry.key: 1})
    world.client.hset(f".{PREFIX}:quarantine", entry.key, "{}")
    world.client.set(world.key("text"), "text")
    keys = [entry.key, world.key("gone"), world.key("text")]
    assert edits.delete(world.store, keys) == 2
    assert world.store.turns == 2
    assert not world.client.exists(*keys, KEYS.schedule)
    for name in ("failing", "expected", "inbox", "quarantine"):
        assert not world.aside(name)
    with pytest.raises(InvalidEntryError):
        edits.delete(world.store, [KEYS.schedule])


def test_an_unchanged_entry_is_deleted(world: World) -> None:
    entry = world.saved()
    world.trigger()
    texts = entry.seen_texts
    assert not delete_unchanged(world.store, entry.key, ("{}", ""))
    world.store.before, world.store.lost = [None, world.run], [None, None, nothing]
    assert delete_unchanged(world.store, entry.key, texts)
    assert delete_unchanged(world.store, entry.key, texts)
    assert not world.stored()


def test_an_entry_made_again_after_a_lost_reply_is_not_deleted(world: World) -> None:
    entry = world.saved()
    world.store.lost = [None, lambda: saving.save(world.other, [world.entry(args=[2])])]
    assert not delete_unchanged(world.store, entry.key, entry.seen_texts)
    assert world.definition()["args"] == [2]


def test_what_cannot_be_read_is_not_deleted(world: World) -> None:
    world.client.set(world.key(), "text")
    assert not delete_unchanged(world.store, world.key(), ("", ""))
    assert world.client.get(world.key()) == "text"


def test_members_without_an_entry_are_forgotten(world: World) -> None:
    world.saved("there")
    world.client.set(world.key("text"), "text")
    world.client.hset(world.key("left"), "meta", "{}")
    names = ["gone", "left", "there", "text"]
    members = list(map(world.key, names))
    world.client.zadd(KEYS.schedule, dict.fromkeys(members, 5))
    forget(world.store, members)
    assert sorted(world.client.zrange(KEYS.schedule, 0, -1)) == sorted(members[2:])
    assert world.is_due("there")
    assert not world.stored("left")
    assert world.client.get(world.key("text")) == "text"
