"""Tests of programs that import names from the modules of 2.4.2, even names of other packages."""

from __future__ import annotations

import importlib
import json
from typing import Any

import celery.app
import celery.beat
import celery.schedules
import celery.signals
import dateutil.rrule
import kombu.utils.url
import pytest
import redis

from redbeat import RedBeatScheduler
from tests.wild.names import NAMES
from tests.wild.programs import Run, Wild

LISTED: dict[str, list[str]] = json.loads(NAMES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", LISTED)
def test_every_name_of_a_module_can_be_imported(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in LISTED[module] if not hasattr(loaded, name)] == []


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("redbeat.schedulers", "ScheduleEntry", celery.beat.ScheduleEntry),
        ("redbeat.schedulers", "Scheduler", celery.beat.Scheduler),
        ("redbeat.schedulers", "DEFAULT_MAX_INTERVAL", celery.beat.DEFAULT_MAX_INTERVAL),
        ("redbeat.schedulers", "json", json),
        ("redbeat.schedulers", "redis", redis),
        ("redbeat.schedulers", "beat_init", celery.signals.beat_init),
        ("redbeat.schedulers", "app_or_default", celery.app.app_or_default),
        ("redbeat.schedulers", "maybe_sanitize_url", kombu.utils.url.maybe_sanitize_url),
        ("redbeat.schedules", "schedule", celery.schedules.BaseSchedule),
        ("redbeat.schedules", "schedstate", celery.schedules.schedstate),
        ("redbeat.schedules", "DAILY", dateutil.rrule.DAILY),
        ("redbeat.schedules", "SECONDLY", dateutil.rrule.SECONDLY),
        ("redbeat.decoder", "crontab", celery.schedules.crontab),
        ("redbeat.decoder", "schedule", celery.schedules.schedule),
        ("redbeat.decoder", "weekday", dateutil.rrule.weekday),
    ],
)
def test_a_name_refers_to_the_same_object(module: str, name: str, expected: object) -> None:
    assert getattr(importlib.import_module(module), name) == expected


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("redbeat", "redbeat.schedulers", ["RedBeatScheduler", "RedBeatSchedulerEntry"]),
        (
            "redbeat.schedulers",
            "redbeat.decoder",
            ["RedBeatJSONEncoder", "RedBeatJSONDecoder", "to_timestamp"],
        ),
        ("redbeat.schedules", "redbeat.decoder", ["rrule"]),
    ],
)
def test_a_name_in_two_modules_is_the_same(first: str, second: str, names: list[str]) -> None:
    modules: list[Any] = [importlib.import_module(first), importlib.import_module(second)]
    for name in names:
        assert getattr(modules[0], name) is getattr(modules[1], name)


#: This program imports even names of Celery and of Python's library from the package.
BORROWS = """
from redbeat.decoder import crontab, datetime, rrule, schedule, timedelta, timezone, weekday
from redbeat.schedulers import (
    MINYEAR,
    RedBeatConfig,
    ScheduleEntry,
    app_or_default,
    beat_init,
    get_logger,
    json,
    maybe_sanitize_url,
    to_timestamp,
)
from redbeat.schedulers import redis as borrowed
from redbeat.schedules import SECONDLY
from redbeat.schedules import schedule as base

logger = get_logger(__name__)


def start():
    assert issubclass(RedBeatSchedulerEntry, ScheduleEntry)
    assert issubclass(rrule, base)
    client = borrowed.Redis.from_url(maybe_sanitize_url(app_or_default(app).redbeat_conf.redis_url))
    client.ping()
    client.close()
    every = [weekday(day) for day in range(7)]
    begin = datetime.now(timezone.utc)
    save("job", rrule(SECONDLY, dtstart=begin), args=["rrule"])
    save("second", schedule(timedelta(seconds=0.5)), args=["interval"])
    save("third", crontab("*"), args=["crontab"])
    save("fourth", rrule(SECONDLY, dtstart=begin, byweekday=every), args=["weekday"])


RedBeatConfig(app)
app.redbeat_conf = RedBeatConfig(app)
"""


def test_a_program_that_borrows_its_imports(wild: Wild, run: Run) -> None:
    program = wild.program(BORROWS)
    program.module.start()
    kinds = {"rrule", "interval", "crontab", "weekday"}
    with run(program) as running:
        running.until(lambda: {one.args[0] for one in wild.messages()} == kinds)


BY_NAME = [
    "redbeat.RedBeatScheduler",
    "redbeat.schedulers.RedBeatScheduler",
    "redbeat.schedulers:RedBeatScheduler",
]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_service_finds_the_scheduler(wild: Wild, name: str) -> None:
    scheduler = celery.beat.Service(wild.program().app, scheduler_cls=name).scheduler
    assert type(scheduler) is RedBeatScheduler
    scheduler.close()


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_the_scheduler_is_named_in_the_settings(wild: Wild, name: str) -> None:
    program = wild.program(beat_scheduler=name)
    program.module.save("job")
    with wild.beat(program) as running:
        running.until(wild.messages)
