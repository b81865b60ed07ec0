"""Tests of programs that read, change or write `beat_schedule` entries in `setup_schedule()`."""

from __future__ import annotations

import pytest

from tests.wild.programs import Run, Wild

STATIC = """
app.conf.beat_schedule = {
    "job": {"task": "jobs.run", "schedule": 0.5, "args": ["static"]},
    "gone": {"task": "jobs.gone", "schedule": 0.5},
}
"""

#: The scheduler reads an entry that `super().setup_schedule()` wrote, and saves a copy.
READS = (
    STATIC
    + """
class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        super().setup_schedule()
        self.found = RedBeatSchedulerEntry.from_key("redbeat:job", app=self.app)
        self.seen = dict(self.schedule)
        copied = RedBeatSchedulerEntry(
            "copy", self.found.task, self.found.schedule, args=["copied"], app=self.app
        )
        copied.save()
"""
)


def test_setup_schedule_reads_what_super_wrote(wild: Wild, run: Run) -> None:
    with run(wild.program(READS)) as running:
        running.until(lambda: {str(one.args[0]) for one in wild.messages()} > {"copied"})
    assert wild.client.smembers("redbeat::statics") == {"job", "gone"}


def test_the_schedule_has_static_entries_at_once(wild: Wild) -> None:
    wild.overdue("job")
    with wild.object(wild.program(READS)) as running:
        assert running.scheduler.found.args == ["static"]
        assert "job" in running.scheduler.seen


#: The scheduler calls `setup_schedule()` again after `beat_schedule` changes.
AGAIN = (
    STATIC
    + """
from redbeat.schedulers import get_redis


class Scheduler(RedBeatScheduler):
    def tick(self, *args, **kwargs):
        wait = super().tick(*args, **kwargs)
        if "gone" in self.app.conf.beat_schedule and get_redis(self.app).exists("change"):
            self.app.conf.beat_schedule = {
                "job": {"task": "jobs.run", "schedule": 0.5, "args": ["changed"]},
                "new": {"task": "jobs.new", "schedule": 0.5},
            }
            self.setup_schedule()
        return wait
"""
)


def test_setup_schedule_is_called_again_after_a_change(wild: Wild, run: Run) -> None:
    with run(wild.program(AGAIN)) as running:
        running.until(lambda: wild.messages("jobs.gone"))
        wild.client.set("change", 1)
        running.until(lambda: not wild.client.exists("redbeat:gone"), "the entry that went away")
        running.until(lambda: wild.messages("jobs.new"))
        running.until(lambda: wild.messages()[-1].args == ["changed"])
    assert wild.client.smembers("redbeat::statics") == {"job", "new"}
    assert wild.score("gone") is None


WEB = """
def handle():
    scheduler = RedBeatScheduler(app=app)
    scheduler.update_from_dict({
        "job": {"task": "jobs.run", "schedule": 0.5, "args": ["from the web"]},
    })
"""


def test_update_from_dict_in_a_process_that_is_no_beat(wild: Wild, run: Run) -> None:
    program = wild.program(WEB)
    program.module.handle()
    assert wild.definition("job")["args"] == ["from the web"]
    assert wild.client.smembers("redbeat::statics") == set()
    with run(program) as running:
        running.until(wild.messages)
    assert wild.definition("job")["args"] == ["from the web"]


def test_update_from_dict_keeps_the_history(wild: Wild) -> None:
    wild.overdue("job")
    wild.program(WEB).module.handle()
    assert wild.definition("job")["args"] == ["from the web"]
    assert wild.runs("job") == 7


def test_update_from_dict_of_a_beat_at_work(wild: Wild, run: Run) -> None:
    program = wild.program(WEB)
    with run(program) as running:
        running.until(lambda: wild.client.exists("redbeat::lock"))
        program.module.handle()
        running.until(wild.messages)


def test_a_scheduler_writes_static_entries_when_it_is_made(wild: Wild) -> None:
    module = wild.program(STATIC).module
    module.RedBeatScheduler(app=module.app)
    assert wild.definition("job")["args"] == ["static"]
    assert wild.client.smembers("redbeat::statics") == {"job", "gone"}
    assert (wild.score("job") or 0) > 0


def test_a_lazy_scheduler_writes_nothing(wild: Wild) -> None:
    module = wild.program(STATIC).module
    module.RedBeatScheduler(app=module.app, lazy=True)
    assert wild.client.keys("*") == []


#: The scheduler saves entries from the program's table instead of `beat_schedule`.
FROM_A_TABLE = """
ROWS = [("job", 1, ["first"]), ("second", 3600, [])]


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        for name, every, args in ROWS:
            self.Entry(name, "jobs.run", every, args=args, app=self.app).save()
"""


def test_entries_that_setup_schedule_saves(wild: Wild, run: Run) -> None:
    with run(wild.program(FROM_A_TABLE)) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["first"]
    assert sorted(wild.client.zrange("redbeat::schedule", 0, -1)) == [
        "redbeat:job",
        "redbeat:second",
    ]


#: The scheduler leaves out one static entry and adds options to the others.
FILTERS = (
    STATIC
    + """
class Scheduler(RedBeatScheduler):
    def update_from_dict(self, dict_):
        kept = {name: fields for name, fields in dict_.items() if name != "gone"}
        for fields in kept.values():
            fields["options"] = {"headers": {"x-by": "update"}}
        super().update_from_dict(kept)
"""
)


def test_update_from_dict_is_overridden(wild: Wild, run: Run) -> None:
    with run(wild.program(FILTERS)) as running:
        running.until(wild.messages)
    assert wild.messages()[0].headers["x-by"] == "update"
    assert not wild.client.exists("redbeat:gone")


#: Celery's `add_periodic_task()` adds static entries.
CONFIGURED = """
@app.on_after_configure.connect
def periodic(sender, **kwargs):
    sender.add_periodic_task(0.5, sender.signature("jobs.run", args=("added",)), name="job")
"""

FINALIZED = """
@app.on_after_finalize.connect
def periodic(sender, **kwargs):
    sender.add_periodic_task(0.5, sender.signature("jobs.run", args=("added",)), name="job")
"""


@pytest.mark.parametrize("text", [CONFIGURED, FINALIZED], ids=["configure", "finalize"])
def test_a_periodic_task_that_a_signal_adds(wild: Wild, run: Run, text: str) -> None:
    program = wild.program(text)
    program.app.finalize()
    with run(program, service=True) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["added"]


def test_the_history_of_a_static_entry_survives_a_restart(wild: Wild, run: Run) -> None:
    wild.overdue("job")
    program = wild.program(STATIC)
    with run(program) as running:
        running.until(lambda: wild.runs("job") >= 8)
        running.until(wild.messages)
    assert wild.messages()[0].args == ["static"]


@pytest.mark.ours
def test_a_process_with_older_code_removes_nothing(wild: Wild, run: Run) -> None:
    older = wild.program('app.conf.beat_schedule = {"old": {"task": "jobs.old", "schedule": 60}}')
    with run(wild.program(STATIC)) as running:
        running.until(lambda: wild.messages("jobs.gone"))
        older.module.RedBeatScheduler(app=older.app).close()
        assert wild.client.exists("redbeat:job", "redbeat:gone", "redbeat:old") == 3


#: ``str()`` of the member is the name of the entry, as in RedBeat 2.
MEMBER = """
from enum import Enum


class Job(str, Enum):
    CLEAN = "clean"


app.conf.beat_schedule = {Job.CLEAN: {"task": "jobs.run", "schedule": 0.5}}
save(Job.CLEAN)
"""


def test_a_member_of_an_enum_names_an_entry(wild: Wild, run: Run) -> None:
    with run(wild.program(MEMBER)) as running:
        running.until(wild.messages)
    assert "redbeat:Job.CLEAN" in wild.client.zrange("redbeat::schedule", 0, -1)
    assert not wild.client.exists("redbeat:clean")
