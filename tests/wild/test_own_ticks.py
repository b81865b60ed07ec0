"""Tests of schedulers that override `tick()` or `schedule`."""

from __future__ import annotations

import pytest

from tests.wild.programs import Run, Wild

#: A complete tick, like the tick of 2.4.2.
WHOLE = """
class Scheduler(RedBeatScheduler):
    def tick(self, min=min, **kwargs):
        if self.lock:
            self.lock.extend(int(self.lock_timeout))
        waits = []
        for entry in self.schedule.values():
            wait = self.maybe_due(entry, **self._maybe_due_kwargs)
            if wait:
                waits.append(wait)
        return min(waits + [self.max_interval])
"""

#: A tick that calls `apply_async` for due entries.
SENDS = """
class Scheduler(RedBeatScheduler):
    def tick(self, **kwargs):
        if self.lock_key:
            self.lock.extend(self.lock_timeout)
        for entry in self.schedule.values():
            due, _wait = self.is_due(entry)
            if due:
                self.apply_async(entry, producer=self.producer)
        return 0.2
"""

#: A tick that reserves an entry before it sends the entry's message.
RESERVES = """
class Scheduler(RedBeatScheduler):
    def tick(self, **kwargs):
        if self.lock_key:
            self.lock.extend(int(self.lock_timeout))
        for entry in list(self.schedule.values()):
            if entry.is_due()[0]:
                self.reserve(entry)
                self.apply_async(entry, producer=self.producer, advance=False)
        return 0.2
"""

#: A tick that catches every error.
WRAPS = """
class Scheduler(RedBeatScheduler):
    failed = False

    def tick(self, *args, **kwargs):
        try:
            if not self.failed:
                self.failed = True
                raise OSError("a network that comes back")
            return super().tick(*args, **kwargs)
        except Exception:
            return 0.1
"""

TICKS = {"whole": WHOLE, "sends": SENDS, "reserves": RESERVES, "wraps": WRAPS}

STATIC = """
app.conf.beat_schedule = {"static": {"task": "jobs.static", "schedule": 0.5, "args": [1]}}
"""


@pytest.mark.parametrize("tick", TICKS)
def test_stored_and_static_entries_run(wild: Wild, run: Run, tick: str) -> None:
    wild.overdue("hourly")
    program = wild.program(TICKS[tick] + STATIC)
    program.module.save("job", args=["job"])

    def sent(args: list[str]) -> int:
        return [message.args for message in wild.messages()].count(args)

    with run(program) as running:
        running.until(lambda: wild.runs("hourly") == 8)
        ran = wild.runs("job")
        running.until(lambda: wild.runs("job") >= ran + 2)
        # These ticks record a run before they send the message, and a signal may come in between.
        running.until(lambda: sent(["job"]) >= 2)
        running.until(lambda: wild.messages("jobs.static"))
    assert sent([]) == 1, "what is due goes out once"
    assert (wild.score("hourly") or 0) - (wild.score("job") or 0) > 3000


def test_without_a_lock(wild: Wild, run: Run) -> None:
    program = wild.program(WHOLE, redbeat_lock_key=None)
    program.module.save("job")
    with run(program) as running:
        running.until(wild.messages)


def test_a_tick_returns_the_shortest_wait(wild: Wild) -> None:
    program = wild.program(WHOLE, beat_max_loop_interval=30)
    program.module.save("slow", 3600)
    program.module.save("job", 20)
    with wild.object(program) as running:
        running.until(lambda: wild.runs("job"))
        assert 15 < running.scheduler.tick() <= 20


def test_reading_the_schedule_changes_nothing(wild: Wild) -> None:
    wild.overdue("job")
    program = wild.program(WHOLE)
    with wild.object(program) as running:
        for _ in range(3):
            assert list(running.scheduler.schedule) == ["job"]
        running.until(lambda: wild.runs("job") == 8)
    assert len(wild.messages()) == 1


#: A `schedule` property that leaves out a stored entry.
PROVIDES = """
class Scheduler(RedBeatScheduler):
    @property
    def schedule(self):
        entries = super().schedule
        entries.pop("barred", None)
        return entries
"""


def test_an_entry_that_schedule_leaves_out_does_not_run(wild: Wild, run: Run) -> None:
    program = wild.program(PROVIDES)
    program.module.save("barred", args=["barred"])
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.runs("job") >= 2)
    assert all(message.args == [] for message in wild.messages())
    assert wild.runs("barred") == 0


ADDS = """
class Scheduler(RedBeatScheduler):
    @property
    def schedule(self):
        entries = super().schedule
        name = "added"
        try:
            entries[name] = self.Entry.from_key(f"elsewhere:{name}", app=self.app)
        except KeyError:
            made = self.Entry(name, "jobs.added", 1, app=self.app)
            made.last_run_at = None
            if not hasattr(self, "sent"):
                entries[name] = made
        return entries

    def maybe_due(self, entry, **kwargs):
        if entry.name == "added":
            self.sent = True
        return super().maybe_due(entry, **kwargs)
"""


def test_an_entry_that_schedule_adds_runs(wild: Wild, run: Run) -> None:
    program = wild.program(ADDS)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: wild.messages("jobs.added"))
        running.until(wild.messages)


#: A `schedule` property with entries of Celery's class, as Celery's guide to schedulers shows it.
CELERYS = """
from datetime import timedelta

from celery.beat import ScheduleEntry


class Row(ScheduleEntry):
    def is_due(self):
        return self.name != "never", 0.2


class Scheduler(RedBeatScheduler):
    @property
    def schedule(self):
        rows = {}
        for cls, name in [(ScheduleEntry, "celery"), (Row, "row"), (Row, "never")]:
            at = self.app.now() - timedelta(hours=2)
            fields = {"schedule": timedelta(hours=1), "args": [name], "app": self.app}
            rows[name] = cls(name, "jobs.run", last_run_at=at, **fields)
        return {**super().schedule, **rows}
"""


def test_entries_of_celery_run_beside_stored_ones(wild: Wild, run: Run) -> None:
    program = wild.program(CELERYS)
    program.module.save("job", args=["job"])
    with run(program) as running:
        running.until(lambda: {one.args[0] for one in wild.messages()} >= {"celery", "row", "job"})
        running.until(lambda: wild.runs("job") >= 2)
    assert ["never"] not in [one.args for one in wild.messages()]


def test_apply_async_with_an_entry_of_celery(wild: Wild) -> None:
    program = wild.program(CELERYS)
    with wild.object(program) as running:
        entry = running.scheduler.schedule["celery"]
        running.scheduler.apply_async(entry, producer=running.scheduler.producer)
        running.scheduler.apply_async(entry, advance=False, producer=running.scheduler.producer)
        assert running.scheduler.reserve(entry).total_run_count == entry.total_run_count + 1
    assert [one.args for one in wild.messages()] == [["celery"], ["celery"]]


#: A scheduler that survives errors, with helpers named as anybody would name them.
HELPERS = """
class Scheduler(RedBeatScheduler):
    def __init__(self, *args, **kwargs):
        self._server = "the program's"
        super().__init__(*args, **kwargs)

    def tick(self, *args, **kwargs):
        try:
            return self._tick(*args, **kwargs)
        except redis.RedisError:
            return self._wait()

    def _tick(self, *args, **kwargs):
        return super().tick(*args, **kwargs)

    def close(self):
        self._close()

    def _close(self):
        super().close()

    def apply_async(self, entry, *args, **kwargs):
        return self._apply(entry, *args, **kwargs)

    def _apply(self, entry, *args, **kwargs):
        return super().apply_async(entry, *args, **kwargs)

    def _start(self):
        raise AssertionError("not a method of RedBeat")

    _prepare = _wait = _start


save("job")
"""


def test_helpers_of_the_program(wild: Wild, run: Run) -> None:
    with run(wild.program(HELPERS)) as running:
        running.until(lambda: len(wild.messages()) >= 2)
