"""Loading an entry ends the process, or a process is ended while it loads an entry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from celery import Celery

from tests.cli.commands import run_command
from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import SCHEDULE, Schedule, definition_json, names
from tests.faults.ledger import Ledger
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: A beat with a schedule type that ends the process, or that waits once and leaves a file.
WRAPPER = """
import os, sys, time
from pathlib import Path
from celery.__main__ import main
from celery.schedules import schedule
from redbeat import register_schedule_type

class Odd(schedule):
    pass

def load(fields):
    if fields["dies"]:
        os._exit(70)
    loading = Path("loading")
    if not loading.exists():
        loading.touch()
        time.sleep(600)
    return Odd(fields["every"])

register_schedule_type("odd", Odd, lambda schedule: {}, load)
sys.exit(main())
"""
LOADING = "loading"
SETTINGS = {"redbeat_lock_timeout": 2.0}
GOOD = names(20)
ODD = "odd"
#: Seconds after which a beat that has ended is started again.
RESTART_DELAY = 5.0
#: The most beats that may end, with a lock and without. One ends with the batch, and two with the
#: suspect alone. Without a lock, a beat counts as vanished after five seconds, and in these the two
#: beats end together.
MOST_DEATHS = {True: 3, False: 6}
#: Seconds for which the beats must stay alive.
STEADY = 10.0
DEADLINE = 120.0


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """Return the path of the program that runs the beats."""
    path = tmp_path / "wrapper.py"
    path.write_text(WRAPPER)
    return path


@pytest.fixture
def app(schedule_redis: RedisServer, broker_redis: RedisServer) -> Iterator[Celery]:
    """Return the app of an operator without the schedule type, so the entry is unreadable there."""
    app = Celery("operator", broker=broker_redis.url, set_as_current=False)
    app.conf.update(redbeat_redis_url=schedule_redis.url)
    yield app
    app.close()


def put_odd(schedule: Schedule, dies: bool) -> None:
    """Store the entry with the odd schedule, which is due now."""
    definition = json.loads(definition_json(ODD, 1))
    definition["schedule"] = {"__type__": "odd", "every": 1.0, "dies": dies}
    schedule.client.hset(f"redbeat:{ODD}", "definition", json.dumps(definition))
    schedule.client.zadd(SCHEDULE, {f"redbeat:{ODD}": schedule.now()})


def complaints(beats: Beats) -> list[str]:
    """Return the lines in the logs of all beats that complain about the odd entry."""
    lines = [line for line in beats.log_tails().splitlines() if ODD in line]
    return [line for line in lines if "WARNING" in line or "ERROR" in line]


def findings(app: Celery) -> set[str]:
    """Return the kinds of problems that ``doctor`` finds with the odd entry."""
    found = run_command(app, "doctor", "--json").json
    return {one["kind"] for one in found if one["key"] == f"redbeat:{ODD}"}


class Supervisor:
    """Starts each beat again some seconds after it has ended, as service managers do."""

    def __init__(self, beats: Beats, schedule: Schedule, most_deaths: int) -> None:
        self.beats, self.schedule, self.deaths, self.most_deaths = beats, schedule, 0, most_deaths
        #: When to start each beat that has ended, in monotonic seconds.
        self.start_at: dict[int, float] = {}
        #: The time of Redis when the last beat ended.
        self.ended_at = 0.0

    def holds(self, condition: Callable[[], bool]) -> bool:
        """Start the beats that have ended, and return whether the condition holds."""
        for number in range(len(self.beats)):
            if self.beats[number].is_alive:
                continue
            if number not in self.start_at:
                self.deaths, self.ended_at = self.deaths + 1, self.schedule.now()
                self.start_at[number] = time.monotonic() + RESTART_DELAY
            elif time.monotonic() >= self.start_at[number]:
                del self.start_at[number]
                self.beats.restart(number)
        assert self.deaths <= self.most_deaths, "an entry ends one beat after the other"
        return condition()


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_an_entry_that_ends_the_process_is_set_aside(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    app: Celery,
    wrapper: Path,
    note: Note,
    locked: bool,
) -> None:
    """Setup: two beats, with or without a lock; 20 good entries every second.

    Fault: loading another entry ends the process. Beats that end are started again.

    Invariant: some beats end, and the next ones set the entry aside and name it in their log. From
    then on, no beat ends, and the good entries run every second when no hold is left. ``doctor``
    names the entry.
    """
    beats.start_many(
        2, settings={**SETTINGS, **({} if locked else {"redbeat_lock_key": None})}, wrapper=wrapper
    )
    supervisor = Supervisor(beats, schedule, MOST_DEATHS[locked])
    schedule.put(GOOD, 1.0)
    put_odd(schedule, dies=True)
    named = partial(complaints, beats)
    wait_until(lambda: supervisor.holds(lambda: bool(named())), DEADLINE, "a line about the entry")

    def all_run() -> bool:  # also those that a dead beat held
        after = supervisor.ended_at
        return {*GOOD} <= {one.entry for one in ledger.messages if (one.scheduled_at or 0) > after}

    wait_until(lambda: supervisor.holds(all_run), DEADLINE, "messages of all good entries")
    deaths, until = supervisor.deaths, schedule.now() + STEADY
    wait_until(lambda: supervisor.holds(lambda: schedule.now() > until), DEADLINE, "the end")
    note(f"{deaths} beats ended before the entry was set aside")
    assert supervisor.deaths == deaths
    recent = [one.entry for one in ledger.messages if (one.scheduled_at or 0) > until - STEADY / 2]
    assert {*recent} == {*GOOD}
    assert findings(app) - {"unreadable"}


def test_an_entry_that_a_killed_beat_had_in_hand_is_not_blamed(
    beats: Beats, schedule: Schedule, ledger: Ledger, app: Celery, wrapper: Path, tmp_path: Path
) -> None:
    """Setup: two beats, and one good entry, which is loaded.

    Fault: SIGKILL of the beat that loads it.

    Invariant: the next beat sends the entry. It is neither failing nor in quarantine.
    """
    beats.start_many(2, settings=SETTINGS, wrapper=wrapper)
    put_odd(schedule, dies=False)
    wait_until((tmp_path / LOADING).exists, DEADLINE, "a beat that loads the entry")
    leader = beats.leader()
    assert leader is not None
    beats.kill(leader)
    beats.restart(leader)
    wait_until(lambda: len(ledger.messages) > 2, DEADLINE, "messages of the entry")
    assert not complaints(beats)
    assert findings(app) <= {"unreadable"}
