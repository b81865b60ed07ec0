"""Tests of schedules that Redis cannot store completely: subclasses, and custom clocks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wild.programs import Run, Wild

#: A crontab with the clock of a time zone, like the one of django-celery-beat.
ZONED = """
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from celery import schedules


class ZonedCrontab(schedules.crontab):
    def __init__(self, *args, tz=timezone.utc, app=None, **kwargs):
        self.tz = tz
        super().__init__(*args, nowfun=self.clock, app=app, **kwargs)

    def clock(self):
        return datetime.now(timezone.utc).astimezone(self.tz)

    def is_due(self, last_run_at):
        local = last_run_at.astimezone(self.tz)
        remaining = self.remaining_estimate(local).total_seconds()
        if remaining <= 0:
            after = self.remaining_estimate(self.clock()).total_seconds()
            return schedules.schedstate(True, after)
        return schedules.schedstate(False, remaining)

    def __reduce__(self):
        return (self.__class__, (self._orig_minute, self._orig_hour), None)


KARACHI = ZoneInfo("Asia/Karachi")  # five hours before UTC all year
"""

CLOCK = """
from datetime import datetime, timedelta, timezone

from celery.schedules import crontab, schedule


def clock():
    return datetime.now(timezone.utc)
"""

CRONTAB = {
    "__type__": "crontab",
    "minute": "*",
    "hour": "*",
    "day_of_week": "*",
    "day_of_month": "*",
    "month_of_year": "*",
}

#: For each case: a program, the schedule it saves, and the stored base form without a clock.
SAVED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a crontab of a subclass": (ZONED, "ZonedCrontab(tz=KARACHI)", CRONTAB),
    "a crontab with a clock": (CLOCK, "crontab(nowfun=clock)", CRONTAB),
    "an interval with a clock": (
        CLOCK,
        "schedule(timedelta(seconds=60), nowfun=clock)",
        {"__type__": "interval", "every": 60.0, "relative": False},
    ),
    "an interval of a subclass": (
        CLOCK + "\nclass Every(schedule):\n    pass\n",
        "Every(60)",
        {"__type__": "interval", "every": 60.0, "relative": False},
    ),
    "a recurrence of a subclass": (
        CLOCK + "\nfrom redbeat.schedules import rrule\n\n\nclass Rule(rrule):\n    pass\n",
        "Rule('HOURLY', dtstart=clock(), interval=2)",
        {"__type__": "rrule", "freq": 4, "interval": 2, "count": None},
    ),
}


@pytest.mark.parametrize("what", SAVED)
def test_a_saved_subclass_is_stored_in_its_base_form_and_runs(
    wild: Wild, run: Run, what: str
) -> None:
    text, schedule, stored = SAVED[what]
    program = wild.program(f"{text}\n\ndef start():\n    save('job', {schedule})\n")
    program.module.start()
    found = wild.definition("job")["schedule"]
    assert {field: found[field] for field in stored} == stored
    with run(program) as running:
        running.until(wild.messages)


def test_a_loaded_schedule_is_of_the_base_class(wild: Wild) -> None:
    module = wild.program(ZONED).module
    module.save("job", module.ZonedCrontab("30", "4", tz=module.KARACHI))
    loaded = module.RedBeatSchedulerEntry.from_key("redbeat:job", app=module.app).schedule
    assert type(loaded) is module.schedules.crontab
    assert (loaded.hour, loaded.minute) == ({4}, {30})


def test_a_zoned_crontab_in_beat_schedule_runs(wild: Wild, run: Run) -> None:
    wild.overdue("job", CRONTAB)
    program = wild.program(
        ZONED
        + """
app.conf.beat_schedule = {
    "job": {"task": "jobs.run", "schedule": ZonedCrontab(tz=KARACHI), "args": ["new"]},
}
"""
    )
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["new"]
    assert wild.definition("job")["schedule"] == CRONTAB


def test_a_crontab_with_a_clock_in_beat_schedule_runs(wild: Wild, run: Run) -> None:
    wild.overdue("job", CRONTAB)
    program = wild.program(
        CLOCK
        + """
app.conf.beat_schedule = {
    "job": {"task": "jobs.run", "schedule": crontab(nowfun=clock), "args": ["new"]},
}
"""
    )
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["new"]


#: An interval whose first run is delayed by some seconds.
OFFSET = """
from datetime import timedelta

from celery.schedules import schedstate, schedule


class OffsetInterval(schedule):
    def __init__(self, run_every, offset, **kwargs):
        super().__init__(run_every, **kwargs)
        self.offset = offset

    def is_due(self, last_run_at):
        if self.offset:
            offset, self.offset = self.offset, 0
            return schedstate(False, offset)
        return super().is_due(last_run_at)


app.conf.beat_schedule = {
    "job": {"task": "jobs.run", "schedule": OffsetInterval(timedelta(seconds=0.5), 0.2)},
}
"""


def test_an_interval_with_an_offset_in_beat_schedule_runs(wild: Wild, run: Run) -> None:
    with run(wild.program(OFFSET)) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.runs("job") >= 2)
    assert wild.definition("job")["schedule"]["every"] == 0.5


#: The current and the next hour in Karachi. A clock in UTC shows the same hours five hours later.
HOURS_OF_KARACHI = """
now = datetime.now(KARACHI)
HOURS = f"{now.hour},{(now.hour + 1) % 24}"
"""


@pytest.mark.ours
def test_a_beat_with_the_object_decides_with_the_object(wild: Wild, run: Run) -> None:
    wild.overdue("job", CRONTAB)
    program = wild.program(
        ZONED
        + HOURS_OF_KARACHI
        + """
app.conf.beat_schedule = {
    "job": {"task": "jobs.run", "schedule": ZonedCrontab(hour=HOURS, tz=KARACHI)},
}
"""
    )
    with run(program) as running:
        running.until(wild.messages)


#: A header contains the time zone of an entry. The constructor uses it for the schedule.
ENTRY_WITH_ZONE = (
    ZONED
    + HOURS_OF_KARACHI
    + """
class Entry(RedBeatSchedulerEntry):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        zone = (self.options or {}).get("headers", {}).get("x-zone")
        stored = self.schedule
        if zone and isinstance(stored, schedules.crontab):
            self.schedule = ZonedCrontab(
                stored._orig_minute, stored._orig_hour, tz=ZoneInfo(zone), app=self.app
            )


class Scheduler(RedBeatScheduler):
    Entry = Entry


def start():
    crontab = schedules.crontab("*", HOURS)
    options = {"headers": {"x-zone": "Asia/Karachi"}}
    entry = Entry("job", "jobs.run", crontab, options=options, app=app)
    entry.last_run_at = now - timedelta(hours=2)
    entry.save()
"""
)


def test_an_entry_that_makes_its_schedule_zoned(wild: Wild, run: Run) -> None:
    program = wild.program(ENTRY_WITH_ZONE)
    program.module.start()
    assert wild.definition("job")["schedule"]["__type__"] == "crontab"
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
    assert wild.messages()[0].headers["x-zone"] == "Asia/Karachi"


def test_an_entry_that_makes_its_schedule_zoned_is_zoned_when_loaded(wild: Wild) -> None:
    module = wild.program(ENTRY_WITH_ZONE).module
    module.start()
    loaded = module.Entry.from_key("redbeat:job", app=module.app)
    assert type(loaded.schedule) is module.ZonedCrontab
    loaded.args = ["changed"]
    loaded.save()
    assert wild.definition("job")["args"] == ["changed"]
