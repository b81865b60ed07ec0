"""Delivery: at least once, or recorded first and sent at most once; also if replies are lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from redbeat import Schedule
from redbeat.beat.trouble import BROKER_WAIT
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE
from redbeat.storage.scripts import Script
from tests.deployments import PREFIX

from .clients import Wire
from .conftest import (
    LOCK,
    SCHEDULE,
    Clock,
    RecordingScheduler,
    World,
    datetime_json,
    interval_json,
    lines,
    once,
)


class Breakable(RecordingScheduler):
    """A scheduler for which a test can make the broker unavailable."""

    away = False

    def _ensure_connected(self) -> Any:
        if self.away:
            raise ConnectionRefusedError(111, "the broker is away")
        return super()._ensure_connected()

    def lose_broker(self) -> None:
        """Make the broker unavailable, and close the connection to the broker."""
        self.away = True
        self._drop_connection()


def put_due(world: World, *names: str, **definition: Any) -> str:
    """Store hourly entries that are due, and return the instant for which they are due."""
    ran = world.ago(3700)
    for name in names:
        world.put(name, interval_json(3600), ran, **definition)
    return str(ran + timedelta(hours=1))


def around_the_record(
    world: World,
    wire: Wire,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Run actions before and after the run of ``a`` is recorded. Its message is sent later."""
    wire.before_command(before, lambda: world.is_in_hand("a"))
    wire.after_reply(after, lambda: world.run_count("a") == 1)


def counts_when_sent(world: World, scheduler: RecordingScheduler, names: str) -> dict[str, int]:
    """Tick, and return each entry's recorded run count at the time its message was sent."""
    seen: dict[str, int] = {}

    def look(task: str) -> None:
        name = task.removeprefix("tasks.")
        seen[name] = world.run_count(name)

    scheduler.before_send = look
    scheduler.tick()
    scheduler.tick()
    assert sorted(scheduler.names) == sorted(names)
    assert [world.run_count(name) for name in names] == [1] * len(names)
    assert not any(world.is_held(name) for name in names)
    return seen


class TestOrder:
    def test_at_least_once_is_the_default_and_recorded_afterwards(self, world: World) -> None:
        put_due(world, "a")
        assert counts_when_sent(world, world.scheduler(), "a") == {"a": 0}

    def test_at_most_once_by_setting_is_recorded_before(self, world: World) -> None:
        world.app.conf.redbeat_delivery = AT_MOST_ONCE
        put_due(world, "a", "b")
        assert counts_when_sent(world, world.scheduler(), "ab") == {"a": 1, "b": 1}

    def test_at_most_once_by_entry(self, world: World) -> None:
        put_due(world, "a", delivery=AT_MOST_ONCE)
        put_due(world, "b")
        assert counts_when_sent(world, world.scheduler(), "ab") == {"a": 1, "b": 0}

    def test_at_least_once_by_entry_under_a_setting(self, world: World) -> None:
        world.app.conf.redbeat_delivery = AT_MOST_ONCE
        put_due(world, "a", delivery=AT_LEAST_ONCE)
        put_due(world, "b")
        assert counts_when_sent(world, world.scheduler(), "ab") == {"a": 0, "b": 1}

    def test_the_last_run_is_sent_if_the_reply_to_its_record_is_lost(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        """The record deletes the entry, so the repeated request finds nothing."""
        key = world.put("a", interval_json(60), world.ago(90))
        policy = {"delivery": AT_MOST_ONCE, "max_runs": 1, "on_finish": "delete"}
        world.client.hset(key, "policy", json.dumps(policy))
        scheduler = world.scheduler()
        wire.lose(lambda: not world.client.exists(key))
        for _ in range(3):
            scheduler.tick()
        assert wire.lost == 1
        assert scheduler.names == ["a"]
        assert not lines(log, "is lost")


class TestRetryOptions:
    def test_at_least_once_is_retried_once_without_a_pause(self, world: World) -> None:
        put_due(world, "a")
        scheduler = world.scheduler()
        scheduler.tick()
        options = scheduler.sent[0].options
        assert "retry" not in options
        assert options["retry_policy"]["max_retries"] == 1
        assert options["retry_policy"]["interval_start"] == 0


class TestGroups:
    @pytest.mark.long
    def test_groups_are_recorded_when_full_and_at_the_end(self, world: World, clock: Clock) -> None:
        """120 runs take four requests to look, and three to record them, 50 each."""
        world.app.conf.redbeat_delivery = AT_MOST_ONCE
        scheduler = world.scheduler(clock=clock)
        scheduler.tick()
        names = [f"e{number}" for number in range(120)]
        world.put_many(120)
        recorded: list[int] = []
        scheduler.before_send = lambda _task: recorded.append(
            sum(world.client.hexists(f"{PREFIX}{name}", "meta") for name in names)
        )
        before = world.calls()
        scheduler.tick()
        assert world.calls() - before <= 4 + 3
        assert recorded == [50] * 50 + [100] * 50 + [120] * 20
        assert sorted(scheduler.names) == sorted(names)
        assert len({message.id for message in scheduler.sent}) == 120

    def test_a_batch_may_contain_both_deliveries(self, world: World) -> None:
        world.put_many(120)
        for number in range(0, 120, 2):
            world.client.hset(f"{PREFIX}e{number}", "policy", '{"delivery": "at_most_once"}')
        scheduler = world.scheduler()
        scheduler.tick()
        scheduler.tick()
        names = [f"e{number}" for number in range(120)]
        assert sorted(scheduler.names) == sorted(names)
        assert {world.run_count(name) for name in names} == {1}


class TestFailingSend:
    @pytest.mark.parametrize("error", [ValueError("boom"), OperationalError("away")], ids=repr)
    def test_a_failed_at_most_once_run_is_lost_logged_once_and_never_repeated(
        self, world: World, log: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        instant = put_due(world, "a", "b", "c", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler()
        asked: list[str] = []

        def fail(task: str) -> None:
            asked.append(task)
            if task == "tasks.b":
                raise error

        scheduler.before_send = fail
        for _ in range(4):
            scheduler.tick()
        assert scheduler.names == ["a", "c"]
        assert asked.count("tasks.b") == 1
        assert world.run_count("b") == 1
        assert len(lines(log, "is lost", " b ", instant)) == 1
        assert len(lines(log, "lost")) == 1
        histories = [Schedule(world.app)[name].history for name in "abc"]
        cause = type(error).__name__
        assert [[one.outcome for one in runs] for runs in histories] == [
            ["sent"],
            [f"failed:{cause}"],
            ["sent"],
        ]

    def test_a_broker_that_refuses_the_first_of_several_runs_loses_no_other(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        put_due(world, "a", "b", "c", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler()
        asked: list[str] = []

        def refuse(task: str) -> None:
            asked.append(task)
            raise OperationalError("away")

        scheduler.before_send = refuse
        scheduler.tick()
        assert len(asked) == 1
        scheduler.before_send = lambda _task: None
        world.make_due("a", "b", "c")
        for _ in range(3):
            scheduler.tick()
        assert len(scheduler.names) == 2
        assert len(lines(log, "is lost")) == 1

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_a_stop_after_the_message_does_not_repeat_it(
        self, world: World, error: type[BaseException]
    ) -> None:
        """A second signal ends the beat. It cannot know whether the message was sent."""

        class Stopped(RecordingScheduler):
            def send_task(self, *args: Any, **kwargs: Any) -> None:
                super().send_task(*args, **kwargs)
                if len(self.sent) == 1:
                    raise error

        put_due(world, "a", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler_of(Stopped)
        with pytest.raises(error):
            scheduler.tick()
        scheduler.close()
        assert scheduler.names == ["a"]


class TestBrokerAway:
    def test_a_broker_outage_before_the_record_puts_the_run_back(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        put_due(world, "a", "b", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler_of(Breakable)
        scheduler.away = True
        for _ in range(3):
            assert 0 < scheduler.tick() <= BROKER_WAIT.longest
        assert scheduler.sent == []
        assert (world.run_count("a"), world.run_count("b")) == (0, 0)
        scheduler.away = False
        world.make_due("a", "b")
        scheduler.tick()
        scheduler.tick()
        assert sorted(scheduler.names) == ["a", "b"]
        assert not lines(log, "lost")
        assert len(lines(log, "The broker is not available")) == 1
        assert len(lines(log, "The broker is back")) == 1

    def test_a_run_recorded_before_a_broker_outage_is_sent_later(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        put_due(world, "a", "b", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler_of(Breakable)
        around_the_record(world, wire, after=scheduler.lose_broker)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.sent == []
        scheduler.away = False
        for _ in range(3):
            scheduler.tick()
        assert sorted(scheduler.names) == ["a", "b"]
        assert not lines(log, "lost")
        assert len(lines(log, "The broker is not available")) == 1

    def test_a_last_run_that_is_put_back_disables_nothing(self, world: World, wire: Wire) -> None:
        policy = {"delivery": AT_MOST_ONCE, "max_runs": 1, "on_finish": "disable"}
        put_due(world, "a", **policy)
        scheduler = world.scheduler_of(Breakable)
        around_the_record(world, wire, after=scheduler.lose_broker)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.sent == []
        assert world.field("a", "definition").get("enabled", True)
        scheduler.away = False
        for _ in range(3):
            scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.field("a", "definition")["enabled"] is False


class TestLostReplies:
    def test_a_lost_reply_of_a_record_that_another_run_followed(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        """The beat does not send a run if a later run is already recorded."""
        scheduler = world.scheduler()
        for _ in range(2):
            scheduler.tick()
        instant = put_due(world, "a", delivery=AT_MOST_ONCE)
        wire.lose(lambda: world.run_count("a") == 1)
        scheduler.tick()
        world.client.hset(f"{PREFIX}a", "beat_state", '{"m":["of","another","run"]}')
        scheduler.tick()
        assert scheduler.sent == []
        assert len(lines(log, "is lost", " a ", instant)) == 1


class TestConcurrentWrites:
    def test_a_concurrent_history_after_which_the_entry_is_not_due(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        put_due(world, "a", delivery=AT_MOST_ONCE)
        written = world.ago(5)
        scheduler = world.scheduler()
        around_the_record(world, wire, before=lambda: world.put_meta("a", written))
        scheduler.tick()
        scheduler.tick()
        assert scheduler.sent == []
        assert world.field("a", "meta") == {"last_run_at": datetime_json(written)}
        assert world.score("a") == pytest.approx(written.timestamp() + 3600, abs=1e-5)
        assert not lines(log, "lost")

    def test_a_run_sent_by_another_beat_is_not_sent(self, world: World, wire: Wire) -> None:
        """A beat that stalled after its look does not send the run."""
        put_due(world, "a", delivery=AT_MOST_ONCE)
        world.app.conf.redbeat_lock_key = None
        stalled, other = world.scheduler(), world.scheduler()
        other.tick()
        stalled.tick()
        assert len(stalled.sent) + len(other.sent) == 1
        world.put_meta("a", world.ago(3700))
        world.make_due("a")
        stalled.sent.clear()
        other.sent.clear()

        def overtake() -> None:
            other.tick()

        around_the_record(world, wire, before=overtake)
        stalled.tick()
        assert (stalled.names, other.names) == ([], ["a"])


class TestIsDue:
    def test_an_is_due_with_changing_results_loses_nothing_silently(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        """A recorded run is either sent, or logged as lost."""
        asked: list[str] = []

        class Fickle(RecordingScheduler):
            def is_due(self, entry: Any) -> Any:
                asked.append(entry.name)
                return super().is_due(entry) if len(asked) == 1 else (False, 17.0)

        put_due(world, "a", delivery=AT_MOST_ONCE)
        scheduler = world.scheduler_of(Fickle)
        scheduler.tick()
        assert world.run_count("a") == 1
        assert len(scheduler.names) + len(lines(log, "lost", " a ")) == 1


# -- lost replies ----------------------------------------------------------------------------------


DELIVERIES = (AT_LEAST_ONCE, AT_MOST_ONCE)


def lose_holds(world: World, wire: Wire, name: str = "a", times: int = 1) -> None:
    """Lose the next replies that arrive while the run of an entry is held."""
    wire.lose(lambda: world.is_held(name), times)


@pytest.fixture
def scheduler(world: World, clock: Clock, wire: Wire) -> RecordingScheduler:  # noqa: ARG001
    """A leading beat whose client can lose replies."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    return scheduler


def test_a_request_that_never_arrived_is_repeated(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    world.put("a")
    wire.cut()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_lost_holds_that_expired_are_taken_over_by_any_beat(
    world: World, wire: Wire, clock: Clock, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    lose_holds(world, wire)
    scheduler.tick()
    assert wire.lost == 1
    world.end_hold("a")
    world.client.delete(LOCK)
    heir = world.scheduler()
    heir.tick()
    clock.advance(60)
    scheduler.tick()
    assert (heir.names, scheduler.names) == (["a"], [])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_request_for_later_runs_that_never_arrived_is_repeated(
    world: World, wire: Wire, delivery: str
) -> None:
    """Setup: more entries are due than one look returns.

    Fault: a later request never arrives. Invariant: each run is sent once.
    """
    world.app.conf.redbeat_delivery = delivery
    scheduler = world.scheduler(clock=Clock())
    scheduler.tick()
    world.put_many(700)
    wire.cut(lambda: world.client.zcount(SCHEDULE, world.now(), "+inf") >= 500)
    for _ in range(4):
        scheduler.tick()
    assert sorted(scheduler.names) == sorted(f"e{n}" for n in range(700))


def test_a_history_written_by_an_application_survives_a_lost_refusal(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    """The lost reply contains the application's history. Repeating the request returns it again."""
    world.put("a", interval_json(600), world.ago(900))
    written = world.ago(5)
    scheduler.before_send = once(lambda: world.put_meta("a", written))
    wire.lose(lambda: scheduler.sent)
    for _ in range(3):
        scheduler.tick()
    assert world.field("a", "meta")["last_run_at"] == datetime_json(written)
    assert world.run_count("a") == 1
    assert scheduler.names == ["a"]


def test_a_beat_whose_lock_reply_was_lost_leads(world: World, wire: Wire) -> None:
    """A beat that acquired the lock leads, even if the reply was lost."""
    world.put("a")
    scheduler = world.scheduler()
    wire.lose(lambda: world.client.exists(LOCK))
    scheduler.tick()
    assert wire.lost == 1
    assert world.client.get(LOCK) == scheduler.lock.token
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_a_stopping_beat_gives_back_holds_whose_reply_was_lost(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    lose_holds(world, wire)
    scheduler.tick()
    assert world.is_held("a")
    scheduler.close()
    heir = world.scheduler()
    heir.tick()
    assert heir.names == ["a"]


def test_a_script_that_redis_forgot_is_sent_again(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        script = Script("one", "return ARGV[1]", "0" * 40)
        assert script.begin(client, [], ["hello"])() == b"hello"
        assert client.ping()


def test_nothing_runs_in_another_thread(world: World) -> None:
    world.put_many(60)
    before = threading.active_count()
    world.scheduler().tick()
    assert threading.active_count() == before
