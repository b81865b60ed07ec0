"""A beat dies after it published a run and before its record arrived; then the entry changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.schedules import schedule as interval

from redbeat import Calendar, RedBeatSchedulerEntry
from redbeat import Schedule as Manager
from tests.faults.beats import HELD, LOCK_TIMEOUT, Beats
from tests.faults.conftest import Note
from tests.faults.entries import SCHEDULE, Schedule
from tests.faults.ledger import Ledger
from tests.faults.proxy import Proxy
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "held"
KEY = f"redbeat:{NAME}"
HOLIDAYS = "holidays"
LONG_AGO = date(2000, 1, 1)
DEADLINE = 2 * HELD + LOCK_TIMEOUT + 60.0


@pytest.fixture
def app(schedule_redis: RedisServer, broker_redis: RedisServer) -> Iterator[Celery]:
    """Return the app of the program that saves the entry."""
    app = Celery("client", broker=broker_redis.url, set_as_current=False)
    app.conf.update(redbeat_redis_url=schedule_redis.url, timezone="UTC", enable_utc=True)
    yield app
    app.close()


@pytest.fixture
def kill_before_the_record(
    beats: Beats,
    schedule_redis: RedisServer,
    broker_redis: RedisServer,
    ledger: Ledger,
    schedule: Schedule,
    app: Celery,
) -> Iterator[Callable[..., None]]:
    """Return a function that saves an entry, and kills the beat that has published its run.

    From the publish on, nothing from this beat reaches the Redis of the schedule.
    """
    with Proxy(schedule_redis.port) as to_schedule, Proxy(broker_redis.port) as to_broker:

        def kill(every: float, exclude: list[str] | None = None) -> None:
            to_broker.before_request(to_schedule.black_hole, b"faults.held")
            beats.start(schedule_url=to_schedule.url, broker_url=to_broker.url)
            beats[0].wait_for("beat: Acquired lock")
            ran = datetime.fromtimestamp(schedule.now() - 1.5 * every, timezone.utc)
            RedBeatSchedulerEntry(
                *(NAME, "faults.held", every), app=app, max_runs=1, last_run_at=ran, exclude=exclude
            ).save()
            wait_until(lambda: len(ledger) == 1, DEADLINE, "the message")
            beats.kill(0)
            assert schedule.run_counts([NAME]) == {NAME: 0}

        yield kill


def check_ids(beats: Beats, schedule: Schedule, ledger: Ledger, note: Note) -> None:
    """Wait until the run is recorded, and assert that there is one id."""
    wait_until(lambda: schedule.run_counts([NAME])[NAME], DEADLINE, "the record")
    assert beats.terminate(1) == 0
    ids = [message.task_id for message in ledger.messages]
    note(f"{len(ids)} messages, {len({*ids})} ids")
    assert len({*ids}) == 1
    assert schedule.run_counts([NAME]) == {NAME: 1}


def test_the_interval_is_edited(
    kill_before_the_record: Callable[..., None],
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    app: Celery,
    note: Note,
) -> None:
    """Setup: one beat, broker and schedule on two servers; an entry with one run, which is due.

    Fault: SIGKILL after the publish and before the record. The interval of the entry is edited, and
    another beat starts.

    Invariant: the run keeps its id, so that the entry has one run.
    """
    kill_before_the_record(60)
    entry = RedBeatSchedulerEntry.from_key(KEY, app)
    entry.schedule = interval(50, app=app)
    entry.save()
    beats.start()
    check_ids(beats, schedule, ledger, note)


def test_a_calendar_excludes_the_day_and_then_not(
    kill_before_the_record: Callable[..., None],
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    app: Celery,
    note: Note,
) -> None:
    """Setup: one beat, broker and schedule on two servers; an entry with an interval of 3 s, one
    run, which is due, and a calendar.

    Fault: SIGKILL after the publish and before the record. The calendar excludes the day, another
    beat starts and looks at the entry, and then the calendar does not exclude the day.

    Invariant: the run keeps its id, so that the entry has one run.
    """
    manager = Manager(app)
    manager.save_calendar(Calendar(HOLIDAYS, [LONG_AGO]))
    kill_before_the_record(3, exclude=[HOLIDAYS])
    today = datetime.fromtimestamp(schedule.now(), timezone.utc).date()
    days = [today + timedelta(days=number) for number in (-1, 0, 1)]
    manager.save_calendar(Calendar(HOLIDAYS, days))
    held_until = float(schedule.client.zscore(SCHEDULE, KEY))
    beats.start()
    beats[1].wait_for("beat: Acquired lock")
    looked = max(held_until, schedule.now()) + 2
    wait_until(lambda: schedule.now() > looked, DEADLINE, "a look after the end of the hold")
    manager.save_calendar(Calendar(HOLIDAYS, [LONG_AGO]))
    check_ids(beats, schedule, ledger, note)
