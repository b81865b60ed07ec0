"""Tests that an idle `celery beat` reacts at once to relevant changes and costs almost nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.beat import LONGEST_WAIT
from tests.acceptance.processes import Process, Project
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"
CHANNEL = "redbeat::wakeup"
QUEUE = "celery"
LOCK = "redbeat::lock"

#: Number of delays of which a test takes the median, because a busy machine delays some.
MEASUREMENTS = 5
#: Maximum delay in seconds after a wakeup. Without a wakeup, a beat checks every `LONGEST_WAIT`
#: seconds, so a change would wait half of `LONGEST_WAIT` on average.
AT_ONCE = 0.1 * LONGEST_WAIT


@pytest.fixture
def web(redis_url: str) -> Iterator[Celery]:
    """Return the app of another process that edits the schedule."""
    app = Celery("web", broker=redis_url, set_as_current=False)
    app.conf.update(timezone="UTC", enable_utc=True)
    yield app
    client = getattr(app, "redbeat_redis", None)
    if client is not None:
        client.close()


@pytest.fixture
def idle(project: Project) -> Process:
    """Start a beat with default settings; it has no due entry and listens for wakeups."""
    beat = project.beat()
    beat.wait_for("Acquired lock")
    wait_for_listeners(project, 1)
    return beat


def wait_for_listeners(project: Project, count: int) -> None:
    """Wait until ``count`` beats listen for wakeup messages."""

    def listening() -> bool:
        found: Any = project.client.pubsub_numsub(CHANNEL)
        return int(dict(found)[CHANNEL]) == count

    wait_until(listening, 30, f"{count} beats that listen")


def next_message(project: Project, seconds: float = 30) -> str:
    """Wait for the next message in the broker, and return the name of its entry."""

    def popped() -> Any:
        return project.client.blpop([QUEUE], timeout=1)

    _, text = wait_until(popped, seconds, "a message on the broker")
    return str(json.loads(text)["headers"]["periodic_task_name"])


def is_held_by_another(project: Project, token: Any) -> bool:
    """Return whether the lock has a token other than ``token``."""
    return project.client.get(LOCK) not in (None, token)


def entry_due_in(app: Celery, name: str, seconds: float) -> RedBeatSchedulerEntry:
    """Return an hourly entry that is due in ``seconds`` and not saved yet."""
    ran = datetime.now(timezone.utc) - timedelta(seconds=3600 - seconds)
    return RedBeatSchedulerEntry(name, TASK, 3600, app=app, last_run_at=ran)


def delay_of(project: Project, name: str, action: Callable[[], Any]) -> float:
    """Return the seconds from the call of ``action`` to the message of the entry ``name``."""
    started = time.monotonic()
    action()
    assert next_message(project) == name
    return time.monotonic() - started


@pytest.mark.usefixtures("idle")
class TestAtOnce:
    def test_a_new_entry_is_sent_at_once(self, project: Project, web: Celery) -> None:
        entries = [entry_due_in(web, f"new-{number}", -1) for number in range(MEASUREMENTS)]
        delays = [delay_of(project, str(entry.name), entry.save) for entry in entries]
        assert median(delays) < AT_ONCE, delays

    @pytest.mark.long
    def test_an_edit_makes_a_far_entry_due(self, project: Project, web: Celery) -> None:
        delays = []
        for number in range(MEASUREMENTS):
            name = f"far-{number}"
            ran = datetime.now(timezone.utc) - timedelta(hours=2)
            RedBeatSchedulerEntry(name, TASK, 86400, app=web, last_run_at=ran).save()
            entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=web)
            entry.schedule = RedBeatSchedulerEntry("x", TASK, 3600, app=web).schedule
            delays.append(delay_of(project, name, entry.save))
        assert median(delays) < AT_ONCE, delays

    @pytest.mark.long
    def test_an_entry_due_soon_is_on_time(self, project: Project, web: Celery) -> None:
        lateness = []
        for number in range(MEASUREMENTS):
            entry = entry_due_in(web, f"soon-{number}", 0.5).save()
            assert next_message(project) == entry.name
            assert entry.last_run_at is not None
            lateness.append(time.time() - 3600 - entry.last_run_at.timestamp())
        assert min(lateness) >= 0, "sent before it was due"
        assert median(lateness) < AT_ONCE, lateness

    @pytest.mark.long
    def test_a_raw_write_is_found_at_the_next_look(self, project: Project) -> None:
        definition = {"task": TASK, "schedule": {"__type__": "interval", "every": 3600}}
        text = json.dumps({"name": "raw", **definition})
        project.client.hset("redbeat:raw", "definition", text)

        def write() -> None:
            project.client.zadd("redbeat::schedule", {"redbeat:raw": 0})

        assert delay_of(project, "raw", write) < LONGEST_WAIT + 1


class TestStopping:
    @pytest.mark.long
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_the_wait(
        self, project: Project, idle: Process, number: signal.Signals
    ) -> None:
        assert idle.stop(number, deadline=LONGEST_WAIT - 1) == 0
        assert project.client.exists(LOCK) == 0
        assert "Traceback" not in idle.output()

    @pytest.mark.long
    def test_a_standby_takes_over_at_once(self, project: Project, idle: Process) -> None:
        leader, delays = idle, []
        for _ in range(MEASUREMENTS):
            standby = project.beat()
            standby.wait_for("standing by")
            wait_for_listeners(project, 2)
            token = project.client.get(LOCK)
            started = time.monotonic()
            leader.popen.terminate()
            wait_until(partial(is_held_by_another, project, token))
            delays.append(time.monotonic() - started)
            assert leader.popen.wait(20) == 0
            leader = standby
        # Without a wakeup, a takeover takes half a second on average: a standby checks every
        # second.
        assert median(delays) < 0.25, delays


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time that a process has used, or None on systems without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return None
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def commands(project: Project) -> int:
    """Return how many commands the server has run, including commands in scripts."""
    found: Any = project.client.info("commandstats")
    return sum(stats["calls"] for stats in found.values())


@pytest.mark.long
def test_an_idle_beat_costs_next_to_nothing(project: Project, idle: Process) -> None:
    seconds = 10.0
    calls, cpu = commands(project), cpu_seconds(idle.popen.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        idle.popen.wait(seconds)
    calls = commands(project) - calls - 1  # The first INFO is not counted in its own reply.
    assert 0 < calls < 5 * seconds
    if cpu is not None:
        used = cpu_seconds(idle.popen.pid)
        assert used is not None
        assert used - cpu < 0.02 * seconds
