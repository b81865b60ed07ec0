"""One beat at work on a real server: what it sends, records, repeats and leaves."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from kombu.transport.redis import Channel

from redbeat.beat import message, turn
from redbeat.beat.beat import AHEAD_LIMIT
from redbeat.entries.state import end_line, trigger_line
from redbeat.metrics.prometheus import counters_of
from redbeat.storage.rows import Change, Look, Request
from tests.servers import RedisServer

from .worlds import SCHEDULE, HookedScheduler, World, empty_broker, run_until_idle

pytestmark = pytest.mark.standalone

ONE, TWO, MOST = "exactly once", "at least once", "at most once"


@pytest.fixture
def other_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=[ONE, TWO, MOST])
def world(
    request: pytest.FixtureRequest, app: Celery, redis_client: Any, redis_server: RedisServer
) -> Iterator[World]:
    """A schedule with each of the deliveries."""
    url = redis_server.url
    if request.param == TWO:
        url = request.getfixturevalue("other_server").url
    if request.param == MOST:
        app.conf.redbeat_delivery = "at_most_once"
    with empty_broker(app, url) as broker:
        world = World(app, redis_client, broker)
        yield world
        world.close()


only = pytest.mark.parametrize


def kill_at(beat: Any, is_last: Callable[[Change], bool]) -> None:
    """Let a beat work until it would send a change for which ``is_last`` is true, and end there."""

    def die(request: Request) -> None:
        if any(map(is_last, request.changes)):
            raise SystemExit("killed")

    beat.store.before.append(die)
    with pytest.raises(SystemExit):
        run_until_idle(beat)


@pytest.mark.parametrize("longest", [1000.0, -1.0], ids=["in time", "too late"])
def test_redis_looks_ahead_while_a_beat_decides(
    world: World, monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    monkeypatch.setattr(turn, "LONGEST_AHEAD", longest)
    monkeypatch.setattr(turn, "FAR", math.inf)  # a look has 100 rows on a slow machine too
    beat = world.beat()
    beat.tick()
    ahead: list[Look] = []
    beat.store.before.append(
        lambda request: (
            ahead.append(request.look)
            if request.look is not None and request.look.in_hand
            else None
        )
    )
    keys = [world.put(f"e{number}", every=3600.0) for number in range(330)]

    run_until_idle(beat)

    assert len({message.id for message in world.messages}) == len(world.messages) == 330
    assert [world.runs(key) for key in keys] == [1] * 330
    assert ahead
    assert all(set(look.in_hand) <= set(keys) for look in ahead)
    assert not world.client.exists(".redbeat::hands")


@only("world", [ONE], indirect=True)
def test_redis_looks_ahead_once_for_the_rows_of_a_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "MOST_BYTES", 1)  # a turn goes out after each message
    monkeypatch.setattr(turn, "LONGEST_AHEAD", 1000.0)
    monkeypatch.setattr(turn, "FAR", math.inf)
    beat = world.beat()
    beat.tick()
    looks: list[Look] = []
    beat.store.before.append(lambda request: looks.append(request.look) if request.look else None)
    for number in range(330):
        world.put(f"e{number}", every=3600.0)

    run_until_idle(beat)

    assert len({message.id for message in world.messages}) == len(world.messages) == 330
    assert 1 <= len([look for look in looks if look.in_hand]) <= 330 / AHEAD_LIMIT


def test_celery_makes_few_of_many_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = world.beat()
    monkeypatch.setattr(message, "ONE_IN", math.inf)  # no message is compared by chance
    made: list[object] = []
    make = message.publish

    def noted(*args: Any) -> Any:
        made.append(args)
        return make(*args)

    monkeypatch.setattr(message, "publish", noted)
    for number in range(130):
        world.put(f"e{number}", args=[number])

    run_until_idle(beat)

    assert sorted(one.args for one in world.messages) == [[n] for n in range(130)]
    at_most_once = world.app.conf.get("redbeat_delivery") == "at_most_once"
    # Two to learn from, and the last ones, if there are too few of them.
    assert len(made) == 130 if at_most_once else len(made) < 2 + message.FEWEST_RUNS


@only("world", [ONE, TWO], indirect=True)
def test_a_difference_between_messages_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that rendering does not know gives each message another queue."""
    number_of, beat = itertools.count(), world.beat()
    monkeypatch.setattr(Channel, "_q_for_pri", lambda _, queue, _pri: f"{queue}{next(number_of)}")
    for number in range(message.FEWEST_RUNS * 3):
        world.put(f"e{number}", args=[number])

    run_until_idle(beat)

    counters = {one.name: one for one in counters_of(beat.beat.totals())}
    (sample,) = counters["redbeat_render_mismatch"].samples
    assert (sample.name, sample.value) == ("redbeat_render_mismatch_total", 1)


def test_a_lost_reply_doubles_and_loses_nothing(world: World) -> None:
    beat = world.beat()
    keys = [world.put(f"e{number}", every=3600.0) for number in range(130)]
    turns = iter(range(1000))
    beat.store.lost.append(lambda request: bool(request.changes) and next(turns) % 2 == 0)

    for _ in range(500):
        beat.tick()
        if len(world.messages) == 130 and beat.tick() > 0 and not world.due:
            break

    sent = world.messages
    assert len({message.id for message in sent}) == len(sent) == 130
    assert [world.runs(key) for key in keys] == [1] * 130


@only("world", [ONE], indirect=True)
def test_an_entry_that_is_edited_before_each_record_is_held_first(world: World) -> None:
    beat = world.beat()
    key = world.put("e")

    def edit(request: Request) -> None:
        if any(change.push for change in request.changes):
            definition = json.loads(world.client.hget(key, "definition"))
            definition["args"] = [len(edits)]
            world.client.hset(key, "definition", json.dumps(definition))
            edits.append(1)

    edits: list[int] = []
    beat.store.before.append(edit)
    run_until_idle(beat)

    assert [message.name for message in world.messages] == ["e"]
    assert len(edits) == 2


def test_an_edit_between_look_and_change_decides_again(world: World) -> None:
    beat = world.beat()
    key = world.put("e", args=["old"])

    def edit(request: Request) -> None:
        if any(change.key == key for change in request.changes):
            beat.store.before.clear()
            definition = json.loads(world.client.hget(key, "definition"))
            world.client.hset(key, "definition", json.dumps({**definition, "args": ["new"]}))

    beat.store.before.append(edit)

    run_until_idle(beat)

    assert [message.args for message in world.messages] == [["new"]]
    assert world.runs(key) == 1


def test_an_entry_that_is_deleted_after_the_look_is_not_sent(world: World) -> None:
    beat = world.beat()
    key = world.put("e")

    def delete(request: Request) -> None:
        if any(change.key == key for change in request.changes):
            world.client.delete(key)
            world.client.zrem(SCHEDULE, key)

    beat.store.before.append(delete)

    run_until_idle(beat)

    assert world.messages == []
    assert world.client.exists(key) == 0


def test_a_bad_entry_with_an_inbox_is_set_aside_once(world: World) -> None:
    """What is left in an inbox makes an entry due, so that the beat would look at it for ever."""
    beat = world.beat()
    bad = world.put("bad")
    world.client.hset(bad, "definition", "{")
    world.client.hset(bad, "inbox", "[" + trigger_line("ours", 5.0) + "]")

    run_until_idle(beat)
    beat.store.say(bad, end_line("gone", "failed"), kind="end", age=0.0)
    world.client.zadd(".redbeat::inbox", {bad: 1})  # else it's taken in a second later
    run_until_idle(beat)

    assert world.client.zscore(SCHEDULE, bad) == -1
    assert world.client.hget(bad, "inbox") is None
    assert [one.id for one in world.state(bad).triggers] == ["ours"]


@only("world", [TWO], indirect=True)
class TestHolds:
    def test_a_held_run_is_repeated_with_its_id_although_the_interval_was_edited(
        self, world: World
    ) -> None:
        """A beat dies after the publish and before the record; then the schedule changes."""
        beat = world.beat()
        key = world.put("e", every=60.0, max_runs=1)

        kill_at(beat, lambda change: change.key == key and "meta" in change.set)
        (first,) = world.messages
        hold = world.state(key).hold
        assert hold is not None
        assert hold.id == first.id
        definition = json.loads(world.client.hget(key, "definition"))
        definition["schedule"]["every"] = 7.0
        world.client.hset(key, "definition", json.dumps(definition))
        world.client.delete("redbeat::lock")
        self.end_hold(world, key)

        run_until_idle(world.beat())

        again = world.messages
        assert [message.id for message in again] == [first.id] * 2
        assert [message.scheduled_at for message in again] == [first.scheduled_at] * 2
        assert world.runs(key) == 1

    def test_nobody_takes_over_a_live_hold(self, world: World) -> None:
        beat = world.beat()
        key = world.put("e")

        kill_at(beat, lambda change: change.key == key and "meta" in change.set)
        world.client.delete("redbeat::lock")
        world.client.zadd(SCHEDULE, {key: world.now - 1})

        run_until_idle(world.beat())

        assert len(world.messages) == 1
        hold = world.state(key).hold
        assert hold is not None
        assert world.client.zscore(SCHEDULE, key) == pytest.approx(hold.until, abs=0.001)

    def test_a_beat_that_waits_for_a_hold_leaves_the_next_time_alone(self, world: World) -> None:
        """The owner records its run between the other beat's look and its change."""
        world.app.conf.redbeat_lock_key = None
        owner, other = world.beat(), world.beat()
        key = world.put("e")
        kill_at(owner, lambda change: change.key == key and "meta" in change.set)
        world.client.zadd(SCHEDULE, {key: world.now - 1})

        def record_before(request: Request) -> None:
            if any(change.key == key for change in request.changes):
                other.store.before.clear()
                owner.store.before.clear()
                owner.tick()

        other.store.before.append(record_before)
        run_until_idle(other)

        assert world.runs(key) == len(world.messages) == 1
        assert world.client.zscore(SCHEDULE, key) == pytest.approx(world.now + 3600, abs=60)

    @staticmethod
    def end_hold(world: World, key: str) -> None:
        """Let the hold of an entry end now: write the state with an earlier time."""
        state = world.state(key)
        assert state.hold is not None
        state.hold = state.hold._replace(until=world.now - 1)
        world.client.hset(key, "beat_state", state.text())
        world.client.zadd(SCHEDULE, {key: world.now - 1})


class Disables(HookedScheduler):
    """A program that counts its runs: it disables its entry before the send returns."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        client = self.app.redbeat_redis
        definition = json.loads(client.hget(entry.key, "definition"))
        client.hset(entry.key, "definition", json.dumps({**definition, "enabled": False}))
        return result


@only("world", [ONE, TWO], indirect=True)
def test_a_run_leaves_although_its_program_disables_the_entry_during_it(world: World) -> None:
    beat = world.beat(Disables)
    key = world.put("e")

    run_until_idle(beat)

    assert [message.name for message in world.messages] == ["e"]
    assert world.runs(key) == 1
    run_until_idle(beat)
    assert len(world.messages) == 1


def test_a_trigger_leaves_and_changes_no_run_of_the_schedule(world: World) -> None:
    beat = world.beat()
    key = world.put("e", late=-50)
    beat.store.say(key, trigger_line("t1", world.now), kind="trigger")

    run_until_idle(beat)

    (message,) = world.messages
    assert message.name == "e"
    assert world.client.hget(key, "inbox") is None
    assert world.state(key).waiting == ()
    run_until_idle(beat)
    assert len(world.messages) == 1
    assert world.client.zscore(SCHEDULE, key) > world.now + 10


def test_a_trigger_between_look_and_change_is_not_lost(world: World) -> None:
    beat = world.beat()
    key = world.put("e")

    def trigger(request: Request) -> None:
        if any(change.key == key for change in request.changes):
            beat.store.before.clear()
            said = beat.store.say(key, trigger_line("t1", world.now), kind="trigger")
            assert said == "done"

    beat.store.before.append(trigger)

    for _ in range(4):
        run_until_idle(beat)

    ids = [message.id for message in world.messages]
    assert len(ids) == len(set(ids)) == 2
    assert world.runs(key) == 1


@pytest.mark.parametrize("left", [{}, {"meta": "{}"}])
def test_a_member_without_a_hash_goes_after_some_seconds(
    world: World, left: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.client.zadd(SCHEDULE, {"redbeat:gone": 0})
    if left:
        world.client.hset("redbeat:gone", mapping=left)
    beat = world.beat()
    beat.tick()
    assert world.client.zscore(SCHEDULE, "redbeat:gone") == pytest.approx(world.now + 5, abs=2)
    monkeypatch.setattr("redbeat.beat.beat.MISSING_FOR", 0.0)
    world.client.zadd(SCHEDULE, {"redbeat:gone": 0})
    beat.tick()
    beat.tick()
    assert world.client.zscore(SCHEDULE, "redbeat:gone") is None


@pytest.mark.parametrize("before", ["missing", "of another type"])
def test_an_entry_whose_hash_comes_between_look_and_change_is_sent_at_once(
    world: World, before: str
) -> None:
    world.client.zadd(SCHEDULE, {"redbeat:e": 0})
    if before != "missing":
        world.client.set("redbeat:e", "text")
    beat = world.beat()

    def write_before(request: Request) -> None:
        if any(change.key == "redbeat:e" for change in request.changes):
            beat.store.before.clear()
            world.client.delete("redbeat:e")
            world.put("e")

    beat.store.before.append(write_before)
    run_until_idle(beat)

    assert [message.name for message in world.messages] == ["e"]


def test_a_tick_that_is_over_publishes_what_it_holds(world: World) -> None:
    world.put("a")
    beat = world.beat()
    beat.beat.max_tick = 0.0
    for _ in range(3):
        beat.tick()
    assert [message.name for message in world.messages] == ["a"]


def test_two_beats_without_a_lock_send_each_run_once(world: World) -> None:
    world.app.conf.redbeat_lock_key = None
    first, second = world.beat(), world.beat()
    keys = [world.put(f"e{number}") for number in range(120)]

    for _ in range(60):
        first.tick()
        second.tick()
        if not world.due:
            break

    ids = [message.id for message in world.messages]
    assert len(ids) == len(set(ids)) == 120
    assert [world.runs(key) for key in keys] == [1] * 120


class Bomb:
    """Stands for code that ends the process when it loads one entry."""

    def __init__(self, beat: Any, name: str) -> None:
        rule_of = beat.beat.rules.rule_of

        def load(row: Any) -> Any:
            if row.key.endswith(name):
                raise SystemExit("the process ends")
            return rule_of(row)

        beat.beat.rules.rule_of = load


def survivor(world: World, *, takes_lock: bool = False) -> Any:
    """Start beats that end when they load the entry ``bad``, until one becomes idle; return it."""
    for _ in range(4):
        beat = world.beat()
        if takes_lock:
            beat.beat.take_lock()
        Bomb(beat, "bad")
        with suppress(SystemExit):
            run_until_idle(beat)
            break
        world.client.delete("redbeat::lock")
    return beat


@only("world", [ONE], indirect=True)
def test_an_entry_whose_loading_ends_the_process_is_set_aside_and_no_other(world: World) -> None:
    world.put("bad")
    for number in range(20):
        world.put(f"e{number}")

    survivor(world)

    assert len(world.messages) == 20
    failing = world.state("redbeat:bad").failing
    assert failing is not None
    assert "only this entry in hand" in failing.reason
    assert world.client.zscore(SCHEDULE, "redbeat:bad") > world.now
    assert world.client.zrange(".redbeat::failing", 0, -1) == ["redbeat:bad"]


@only("world", [ONE], indirect=True)
def test_a_beat_that_took_the_lock_before_its_first_tick_knows_suspects_too(world: World) -> None:
    """As an embedded beat does, and one whose program takes the lock when it begins."""
    world.put("bad")
    world.put("good")

    survivor(world, takes_lock=True)

    assert [message.name for message in world.messages] == ["good"]
    assert world.client.zrange(".redbeat::failing", 0, -1) == ["redbeat:bad"]


@only("world", [ONE], indirect=True)
def test_an_entry_that_was_set_aside_is_tried_again(world: World) -> None:
    key = world.put("bad")
    beat = survivor(world)
    assert world.client.zscore(SCHEDULE, key) > world.now

    del beat.beat.rules.rule_of  # its code is mended
    world.client.zadd(SCHEDULE, {key: world.now - 1})
    run_until_idle(beat)

    assert world.runs(key) == 1


@only("world", [ONE], indirect=True)
def test_an_innocent_entry_of_a_killed_beat_is_not_blamed(world: World) -> None:
    beat = world.beat()
    world.put("e")

    kill_at(beat, lambda _change: True)
    world.client.delete("redbeat::lock")

    run_until_idle(world.beat())

    assert [message.name for message in world.messages] == ["e"]
    assert world.client.hgetall(".redbeat::hands") == {}


class Declines(HookedScheduler):
    """A program that sends nothing on its first ask."""

    asked = 0

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.asked == 1:
            return 30.0
        return super().maybe_due(entry, **kwargs)


@only("world", [ONE, TWO], indirect=True)
def test_an_occurrence_that_user_code_declines_is_not_used_up(world: World) -> None:
    beat = world.beat(Declines)
    key = world.put("e")
    due_at = world.client.zscore(SCHEDULE, key)

    run_until_idle(beat)
    assert world.messages == []
    assert world.client.hget(key, "meta") is None
    world.client.zadd(SCHEDULE, {key: world.now - 1})
    run_until_idle(beat)

    (message,) = world.messages
    assert datetime.fromisoformat(message.scheduled_at).timestamp() == pytest.approx(due_at)
    assert world.runs(key) == 1
