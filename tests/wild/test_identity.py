"""Tests of programs that delete an entry and save another entry with the same name."""

from __future__ import annotations

from tests.wild.programs import Run, Wild

ONE_OFF = """
from datetime import datetime, timezone

from redbeat.schedules import rrule

AT = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)


def start(*args):
    save("job", rrule("DAILY", dtstart=AT, count=1), args=list(args))


def stop():
    RedBeatSchedulerEntry(name="job", app=app).delete()
"""


def test_a_one_off_that_is_saved_again_has_another_task_id(wild: Wild, run: Run) -> None:
    program = wild.program(ONE_OFF)
    program.module.start("first")
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
        program.module.stop()
        program.module.start("second")
        running.until(lambda: len(wild.messages()) == 2)
    first, second = wild.messages()
    assert (first.args, second.args) == (["first"], ["second"])
    assert first.id != second.id


def test_a_one_off_whose_keys_are_deleted_has_another_task_id(wild: Wild, run: Run) -> None:
    program = wild.program(ONE_OFF)
    program.module.start("first")
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
        wild.client.delete("redbeat:job")
        wild.client.zrem("redbeat::schedule", "redbeat:job")
        program.module.start("second")
        running.until(lambda: len(wild.messages()) == 2)
    first, second = wild.messages()
    assert first.id != second.id
