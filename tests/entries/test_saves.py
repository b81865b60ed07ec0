"""Programs save entries on a real server, while beats and other programs change them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from celery.schedules import crontab

from redbeat import ConflictError, DecodeError, InvalidEntryError
from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries import edits, saving
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import Trigger
from redbeat.entries.history import encode_meta
from redbeat.entries.state import Failing, Quarantine, Results, Running, State, digest_of_meta
from redbeat.management.calendars import write
from redbeat.schedules.calendars import Calendar
from redbeat.storage.rows import Change, Request
from redbeat.storage.store import store_of
from tests.deployments import PREFIX
from tests.entries.worlds import HOUR, KEYS, World, hold_at, near, nothing
from tests.waiting import wait_until

pytestmark = pytest.mark.standalone


def test_a_new_entry_takes_one_round_trip(world: World) -> None:
    entry = world.entry(max_runs=5)
    assert world.save(entry) == 1
    assert world.definition()["task"] == "proj.note"
    assert set(world.stored()) == {"definition", "meta", "policy", "beat_state"}
    state = world.state()
    assert state.identity == entry.saved_state.identity != ""
    marks, meta = state.marks, digest_of_meta(world.stored()["meta"])
    assert state == State(marks, state.identity, meta)
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)


def test_a_static_entry_has_no_identity(world: World) -> None:
    entry = world.entry()
    entry.is_static = True
    world.save(entry)
    assert world.state().identity == ""
    assert world.save(entry) == 1


def test_an_entry_is_loaded_as_it_was_saved(world: World) -> None:
    world.saved(args=[1], max_runs=5)
    world.run(at=1000.0)
    entry = world.load()
    assert (entry.args, entry.max_runs, entry.total_run_count) == ([1], 5, 1)
    assert entry.scheduled_at == from_timestamp(1000.0)
    with pytest.raises(KeyError):
        world.load("unknown")
    world.client.set(world.key("text"), "text")
    with pytest.raises(DecodeError):
        world.load("text")


def test_a_loaded_and_a_saved_entry_take_one_round_trip(world: World) -> None:
    entry = world.saved()
    for number in range(4):
        entry = world.load() if number == 2 else entry
        entry.args = [number]
        assert world.save(entry) == 1
        assert world.definition()["args"] == [number]


def test_a_new_object_over_a_stored_entry_keeps_what_beats_know(world: World) -> None:
    entry = world.saved()
    world.run(at=world.now - 60)
    waiting = (Trigger("t1", from_timestamp(5.0)),)
    running, results = Running("r", world.now + 60), Results(5.0, 2, 4.0)
    world.put_state(running=running, waiting=waiting, ids=("x",), results=results)
    before = world.state()

    new = world.entry(args=[2])
    assert world.save(new) == 2
    state = world.state()
    assert new.total_run_count == 1
    assert new.saved_state.identity == entry.saved_state.identity
    assert world.definition()["args"] == [2]
    assert state.marks.run == before.marks.run
    state.marks = before.marks
    assert state == before


@pytest.mark.parametrize("ahead", [0, 5])
def test_a_new_object_over_an_entry_without_a_history_counts_from_now(
    world: World, ahead: int
) -> None:
    """RedBeat 2 writes such a history with HSETNX."""
    written = {"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 5}}
    world.client.hset(world.key(), "definition", json.dumps(written))
    world.client.zadd(KEYS.schedule, {world.key(): world.now - 60})

    new = world.entry()
    new.last_run_at = datetime.now(UTC) + timedelta(hours=ahead)
    new.saved_state = new.saved_state._replace(last_run_at=new.last_run_at)
    assert world.save(new) == (3 if ahead else 2)
    last = world.load().last_run_at
    assert last == new.last_run_at
    assert last.timestamp() == near(world.now, 5)
    assert world.score() == near(last.timestamp() + HOUR)


def test_an_entry_without_a_history_that_is_loaded_stays_due(world: World) -> None:
    world.saved()
    world.client.hdel(world.key(), "meta")
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    assert world.load().last_run_at is None
    assert "meta" not in world.stored()
    assert world.is_due()


def test_a_run_between_load_and_save_stays(world: World) -> None:
    entry = world.saved()
    entry.kwargs = {"x": 1}
    at = world.now - 10
    world.store.before = [lambda: world.run(at=at), lambda: world.run(at=at + 1)]
    assert world.save(entry) == 3
    assert entry.total_run_count == 2
    assert world.state().at == at + 1
    assert world.score() == near(at + 1 + HOUR)
    assert world.definition()["kwargs"] == {"x": 1}


def test_the_last_writer_wins(world: World) -> None:
    world.saved()
    one, two = world.load(), world.load()
    one.args, two.args, two.kwargs = [1], [2], {"two": 2}
    world.store.before = [lambda: saving.save(world.other, [two])]
    world.save(one)
    assert world.definition()["args"] == [1]
    assert world.definition()["kwargs"] == {}


def test_runs_are_no_conflict(world: World) -> None:
    entry = world.saved()
    entry.args = [1]
    world.store.before = [world.run, world.run]
    world.save(entry, if_unchanged=True)
    assert world.definition()["args"] == [1]
    assert entry.total_run_count == 2


def test_a_deleted_entry_conflicts_if_unchanged(world: World) -> None:
    entry = world.saved()
    edits.delete(world.other, [entry.key])
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=True)
    assert not world.stored()


def test_a_save_of_a_deleted_entry_stores_it_again(world: World) -> None:
    entry = world.saved()
    world.run()
    entry = world.load()
    edits.delete(world.other, [entry.key])
    assert world.save(entry) == 2
    assert world.load().total_run_count == 1
    assert world.load().saved_state.identity == entry.saved_state.identity


@pytest.mark.parametrize("if_unchanged", [False, True])
def test_a_save_is_tried_again_after_each_run(world: World, if_unchanged: bool) -> None:
    entry = world.saved()
    entry.args = [9]
    world.store.before = [world.run] * 19
    assert world.save(entry, if_unchanged=if_unchanged) == 20
    assert world.definition()["args"] == [9]
    assert world.load().total_run_count == 19
    entry.args = [10]
    assert world.save(entry) == 1


@pytest.mark.parametrize("if_unchanged", [False, True])
def test_a_save_gives_up_after_twenty_tries(world: World, if_unchanged: bool) -> None:
    entry = world.saved()
    entry.args = [9]
    world.store.before = [world.run] * 20
    with pytest.raises(ConflictError):
        world.save(entry, if_unchanged=if_unchanged)
    assert world.definition()["args"] is None


def test_the_store_of_a_program_repeats_what_a_broken_connection_lost(world: World) -> None:
    """The server does not answer, and the connection breaks."""
    store, entry = store_of(world.app), world.entry()
    saving.save(store, [entry])
    entry.args = [1]

    def kill_the_waiting() -> bool:
        clients = world.client.client_list()
        found = [one["id"] for one in clients if one["cmd"] == "evalsha" and "b" in one["flags"]]
        return any(world.client.client_kill_filter(_id=number) for number in found)

    with ThreadPoolExecutor(1) as pool:
        world.client.client_pause(60_000, all=False)
        try:
            saving_now = pool.submit(saving.save, store, [entry])
            wait_until(kill_the_waiting, 60)
        finally:
            world.client.client_unpause()
        saving_now.result()
    assert world.definition()["args"] == [1]


def test_a_repeated_save_finds_its_mark(world: World) -> None:
    entry = world.entry()
    world.store.lost = [nothing]
    assert world.save(entry) == 1
    text = world.stored()["beat_state"]
    world.store.lost = [nothing]
    entry.args = [3]
    assert world.save(entry, if_unchanged=True) == 1
    assert world.stored()["beat_state"] != text
    assert world.definition()["args"] == [3]


def test_a_run_between_a_lost_reply_and_the_repetition_is_no_conflict(world: World) -> None:
    entry = world.entry()
    world.store.lost = [world.run]
    world.save(entry, if_unchanged=True)
    assert entry.total_run_count == world.load().total_run_count == 1
    identity = world.state().identity
    entry.args, world.store.lost = [4], [world.run]
    world.save(entry, if_unchanged=True)
    assert world.definition()["args"] == [4]
    assert world.state().identity == identity
    assert entry.total_run_count == 2


def test_anothers_equal_entry_is_a_conflict_for_a_new_one(world: World) -> None:
    world.store.before = [lambda: saving.save(world.other, [world.entry()])]
    with pytest.raises(ConflictError):
        world.save(world.entry(), if_unchanged=True)


def test_a_last_run_of_the_program_begins_a_new_grid(world: World) -> None:
    world.saved()
    world.run(at=world.now - 100)
    world.put_state(hold=hold_at(world.now + 30), failing=Failing(1.0, 1, "x"), due=5.0)
    entry, held = world.load(), world.state().marks.hold
    entry.last_run_at = from_timestamp(world.now - 1000)
    world.save(entry)
    state = world.state()
    assert (state.at, state.due, state.hold, state.failing) == (None, None, None, None)
    assert state.marks.hold == held, "its owner still records the run"
    assert state.meta == digest_of_meta(world.stored()["meta"])
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)
    assert world.load().anchor == entry.last_run_at


def test_a_last_run_that_the_program_set_survives_a_run(world: World) -> None:
    entry = world.saved()
    entry.last_run_at = chosen = datetime(2026, 1, 1, tzinfo=UTC)
    world.store.before = [world.run]
    world.save(entry)
    assert world.load().last_run_at == chosen
    assert world.load().total_run_count == 1


def test_a_run_count_of_the_program_keeps_the_grid(world: World) -> None:
    world.saved()
    at = world.now - 100
    world.run(at=at)
    entry = world.load()
    entry.total_run_count = 40
    world.save(entry)
    assert world.load().total_run_count == 40
    assert world.state().at == at
    assert world.score() == near(at + HOUR)


def test_a_history_that_cannot_be_read_is_replaced(world: World) -> None:
    entry = world.saved()
    world.client.hset(entry.key, "meta", "{broken")
    world.save(entry)
    assert world.load().last_run_at == entry.last_run_at
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)


def test_a_finished_entry_starts_again_with_another_schedule(world: World) -> None:
    world.saved(max_runs=1)
    world.run()
    entry = world.load()
    entry.schedule = world.entry("b", 1800.0).schedule
    world.store.before = [lambda: world.put_state(running=Running("r", world.now + 9))]
    world.save(entry)
    assert entry.total_run_count == world.load().total_run_count == 0
    assert world.state().at is None
    assert world.state().running is not None
    score = world.score()
    assert score is not None
    assert world.now < score <= world.now + 1800


def test_an_entry_that_stays_finished_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.saved(max_runs=1)
    world.run()
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    assert "stays finished" in caplog.text
    assert world.is_due(), "a beat decides by the clock of Redis"


def test_a_default_last_run_of_a_clock_that_is_ahead_is_corrected(world: World) -> None:
    entry = world.entry()
    entry.last_run_at = ahead = datetime.now(UTC) + timedelta(hours=5)
    entry.saved_state = entry.saved_state._replace(last_run_at=ahead)
    assert world.save(entry) == 2
    assert world.load().last_run_at.timestamp() == near(world.now, 600)
    score = world.score()
    assert score is not None
    assert score <= world.now + HOUR


def test_a_last_run_ahead_that_the_program_set_is_kept(world: World) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=5)
    assert world.save(world.entry(last_run_at=ahead)) == 1
    assert world.load().last_run_at == ahead


def test_a_waiting_trigger_makes_the_entry_due(world: World) -> None:
    world.saved()
    world.put_state(waiting=(Trigger("t", from_timestamp(1.0)),), score=world.now + 99)
    world.save(world.load())
    assert world.is_due()


def test_a_due_entry_that_is_saved_unchanged_stays_as_late_as_it_is(world: World) -> None:
    entry = world.saved(last_run_at=from_timestamp(world.now - 2 * HOUR))
    due = world.now - HOUR
    world.put_state(score=due)
    world.save(world.entry())
    assert world.score() == near(due)
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    assert world.score() != near(due)


def test_a_program_that_reschedules_an_entry(world: World) -> None:
    entry = world.saved()
    entry.args = ["not saved"]
    entry.last_run_at = from_timestamp(world.now - 60)
    world.store.before = [world.run]
    saving.reschedule(world.store, entry)
    assert world.store.turns == 3
    loaded = world.load()
    assert (loaded.last_run_at, loaded.total_run_count) == (entry.last_run_at, 1)
    assert loaded.args is None
    assert world.score() == near(entry.last_run_at.timestamp() + HOUR)
    edits.delete(world.other, [entry.key])
    saving.reschedule(world.store, entry)
    saving.reschedule(world.store, world.entry())
    assert not world.stored()
    saved = world.saved("b")
    edits.pause(world.other, [saved.key], None, None)
    saving.reschedule(world.store, saved)
    assert world.state("b").pause is not None
    world.store.before = [lambda: world.run("b")] * 5
    saving.reschedule(world.store, saved)
    world.store.before = [lambda: world.run("b")] * 21
    with pytest.raises(ConflictError):
        saving.reschedule(world.store, saved)


def test_a_program_that_reschedules_an_entry_ends_what_was_decided(world: World) -> None:
    world.saved()
    world.run(at=world.now - 60)
    world.put_state(hold=hold_at(world.now + 30), due=5.0)
    world.put_state(quarantine=Quarantine(1.0, "x"), failing=Failing(1.0, 1, "x"))
    entry, marks = world.load(), world.state().marks
    entry.last_run_at = from_timestamp(world.now)
    saving.reschedule(world.store, entry)
    state = world.state()
    assert (state.at, state.hold, state.failing, state.due, state.quarantine) == (None,) * 5
    assert state.marks.hold == marks.hold
    assert world.load().anchor == entry.last_run_at


def test_a_run_that_no_beat_records(world: World) -> None:
    entry = world.saved(last_run_at=from_timestamp(world.now - HOUR - 60))
    entry.nominal_at = from_timestamp(world.now - 60)
    entry.last_run_at, entry.total_run_count = from_timestamp(world.now), 1
    known = entry.saved_state
    entry.saved_state = known._replace(last_run_at=entry.last_run_at, total_run_count=1)
    world.store.before = [world.run]
    saving.reschedule(world.store, entry, wins=True)
    loaded = world.load()
    assert (loaded.last_run_at, loaded.total_run_count) == (entry.last_run_at, 1)
    assert loaded.scheduled_at == entry.scheduled_at
    assert world.score() == near(entry.scheduled_at.timestamp() + HOUR)


def test_what_is_left_in_the_inbox_makes_the_entry_due(world: World) -> None:
    entry = world.saved()
    entry.args = [1]
    world.store.before = [world.trigger]
    assert world.save(entry) == 1
    assert world.is_due()
    assert "inbox" in world.stored()


def test_a_backfill_is_looked_at_when_it_is_ready(world: World) -> None:
    entry, ready = world.saved(), world.now + 30
    span = (from_timestamp(0.0), from_timestamp(10.0))
    world.put_state(waiting=(Backfill("b", *span, 1.0, 0, 1, (span,), ready),))
    entry.args = [1]
    world.save(entry)
    assert world.score() == near(ready)
    entry.enabled = False
    world.save(entry)
    assert world.score() == -2, "backfills wait while the entry is disabled"


@pytest.mark.parametrize("left", [30.0, -30.0])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_hold_keeps_the_score_and_the_decided_run(
    world: World, left: float, enabled: bool
) -> None:
    world.saved()
    until = world.now + left
    held = world.put_state(hold=hold_at(until), score=until)
    entry = world.load()
    entry.args, entry.enabled = [5], enabled
    assert world.save(entry) == 1
    assert world.score() == near(until)
    state = world.state()
    assert state.hold == held.hold
    assert state.marks.hold == held.marks.hold


def test_quarantine_and_failures_go_with_a_save(world: World) -> None:
    entry = world.saved()
    world.put_state(quarantine=Quarantine(1.0, "x"), failing=Failing(1.0, 3, "y"), score=-1)
    index = [["HSET", "quarantine", entry.key, "{}"], ["ZADD", "failing", "1", entry.key]]
    world.other.turn(Request("beat", None, [Change("", index=index)]))
    world.save(world.load())
    state = world.state()
    assert (state.quarantine, state.failing) == (None, None)
    assert not world.aside("quarantine")
    assert not world.aside("failing")
    score = world.score()
    assert score is not None
    assert score > world.now


def test_a_disabled_entry_keeps_its_pause_and_an_enabled_one_ends_it(world: World) -> None:
    world.saved()
    world.put_state(results=Results(5.0, 3, 1.0))
    edits.pause(world.other, [world.key()], "why", "me")
    entry = world.load()
    entry.args = [1]
    world.save(entry)
    pause = world.state().pause
    assert pause is not None
    assert pause[1:] == ("why", "me")
    assert "pause" not in world.stored().get("policy", "")
    entry.max_runs = -1
    with pytest.raises(InvalidEntryError):
        world.save(entry)
    assert entry.saved_state.pause is not None
    entry.max_runs = None
    entry.enabled = True
    world.save(entry)
    state = world.state()
    assert state.pause is None
    assert state.results == Results(5.0, 0, state.results.since)
    assert state.results.since != 1.0, "a success is expected from now on"


def test_a_definition_that_cannot_be_read_was_not_paused(world: World) -> None:
    entry = world.saved()
    world.put_state(results=Results(5.0, 3, 1.0))
    world.client.hset(entry.key, "definition", "{broken")
    world.save(entry)
    assert world.state().results.failures == 3
    assert world.definition()["name"] == "a"


def test_five_hundred_entries_are_one_turn(world: World) -> None:
    entries = [world.entry(f"e{number}") for number in range(501)]
    assert world.save(*entries) == 2
    assert world.client.zcard(KEYS.schedule) == 501
    for entry in entries:
        entry.args = [1]
    assert world.save(*entries) == 2


def test_a_key_that_is_not_a_hash_is_an_error_and_the_others_are_saved(world: World) -> None:
    world.client.set(world.key("b"), "text")
    stored = world.saved("c")
    stored.args = [1]
    world.store.before = [lambda: world.run("c")]
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        world.save(world.entry("a"), world.entry("b"), stored)
    assert world.stored("a")
    assert world.definition("c")["args"] == [1]
    assert world.client.get(world.key("b")) == "text"
    edits.delete(world.other, [world.key("c")])
    world.client.set(world.key("c"), "text")
    with pytest.raises(InvalidEntryError, match="is not an entry"):
        world.save(stored)


def test_what_a_deleted_entry_has_left_is_not_the_new_ones(world: World) -> None:
    left = {
        "meta": encode_meta(from_timestamp(1000.0), 9),
        "beat_state": "x",
        "inbox": "[1]",
        "history": "[2]",
        "waits": "3",
        "policy": "4",
    }
    world.client.hset(world.key(), mapping=left)
    assert world.save(world.entry()) == 3
    assert set(world.stored()) == {"definition", "meta", "beat_state"}
    assert world.state().identity
    assert world.load().total_run_count == 0


def test_a_copy_with_another_name_is_another_entry(world: World) -> None:
    world.saved()
    world.run()
    entry = world.load()
    entry.name = "b"
    assert world.save(entry) == 1
    assert world.load("b").total_run_count == 1
    assert world.state("b").identity != world.state("a").identity


def test_a_change_of_the_zone_counts_from_the_save(world: World) -> None:
    """What just ran at noon in the east does not run again because it was noon in the west."""
    noon = f"{datetime.now(UTC):%H}"
    entry = world.saved(every=crontab(minute="0", hour=noon), timezone="Etc/GMT-3")
    entry.last_run_at = datetime.now(UTC) - timedelta(hours=2)
    world.save(entry)
    entry.timezone = "Etc/GMT-1"
    world.save(entry)
    assert world.state().at == near(world.now, 1)
    assert world.load().scheduled_at == entry.scheduled_at
    assert world.score() == near(world.now + 22.5 * HOUR, 0.6 * HOUR)


def test_an_expected_success_is_watched(world: World) -> None:
    world.app.redbeat_tracks_runs = True
    entry = world.saved(expect_within=60)
    assert world.state().results.since is not None
    assert world.aside("expected") == [entry.key]
    entry.expect_within = None
    world.save(entry)
    assert world.aside("expected") == []


def put_calendar(world: World, days: int = 0) -> None:
    """Store a calendar that excludes the next ``days``, as a program does."""
    today = datetime.now(UTC).date()
    calendar = Calendar("holidays", [today + timedelta(days=number) for number in range(days)])
    write(world.other, calendar)


def test_calendars_are_read_before_the_save(world: World) -> None:
    with pytest.raises(InvalidEntryError, match="there is no calendar"):
        world.save(world.entry(exclude=["holidays"]))
    assert not world.stored()
    put_calendar(world)
    entry = world.entry(exclude=["holidays"])
    assert world.save(entry) == 1
    assert world.aside("calendar-users") == [entry.key]


def test_a_calendar_that_changes_during_a_save_is_read_again(world: World) -> None:
    put_calendar(world)
    entry = world.entry(exclude=["holidays"])
    world.save(entry)

    def change() -> None:
        put_calendar(world, days=3)
        edits.make_due(world.other, [entry.key])

    entry.args = [1]
    world.store.before = [change]
    assert world.save(entry, if_unchanged=True) == 2
    score = world.score()
    assert score is not None
    assert score > world.now + 86400


def test_a_save_wakes_beats_up_for_what_is_due_soon(world: World) -> None:
    with closing(world.client.pubsub()) as heard:
        heard.subscribe(KEYS.wakeup)
        assert heard.get_message(timeout=10)["type"] == "subscribe"
        world.saved("later")
        world.saved("soon", 2.0)
        assert heard.get_message(timeout=10)["data"] == "due"
        assert heard.get_message(timeout=0) is None
        world.saved("after it", 3.0)
        assert heard.get_message(timeout=0) is None
        world.client.zadd(f".{PREFIX}:beats", {"one": world.now, "two": world.now})
        world.saved("of another share", 3.5)
        assert heard.get_message(timeout=10)["data"] == "due"


def test_a_save_of_many_names_the_entry_that_is_refused(world: World) -> None:
    entries = [world.entry("a"), world.entry("b")]
    entries[1].last_run_at = "never"
    with pytest.raises(InvalidEntryError, match="b: last_run_at"):
        saving.save_all(world.store, entries)
    assert not world.stored()
    assert saving.save_all(world.store, [world.entry(args=[1]), world.entry(args=[2])]) == 1
    assert world.definition()["args"] == [2]


def test_a_save_if_unchanged_of_an_object_that_only_knows_the_texts(world: World) -> None:
    entry = world.saved()
    planned = world.entry(args=[1])
    planned.saved_state = planned.saved_state._replace(texts=entry.seen_texts)
    world.save(planned, if_unchanged=True)
    assert world.definition()["args"] == [1]
    planned = world.entry(args=[2])
    planned.saved_state = planned.saved_state._replace(texts=entry.seen_texts)
    with pytest.raises(ConflictError):
        world.save(planned, if_unchanged=True)
    edits.delete(world.other, [entry.key])
    with pytest.raises(ConflictError):
        world.save(planned, if_unchanged=True)
    assert not world.stored()
