"""Tests of monitoring and tracing as in Sentry's cron monitors and OpenTelemetry."""

from __future__ import annotations

import json

import pytest

from tests.wild.programs import Run, Wild

#: The monitor wraps a method of the scheduler class, reads the schedule, and adds headers.
MONITOR = """
from functools import wraps

from celery.schedules import crontab, schedule


def described(found, app):
    if isinstance(found, crontab):
        text = "{0._orig_minute} {0._orig_hour} {0._orig_day_of_month} "
        text += "{0._orig_month_of_year} {0._orig_day_of_week}"
        value = text.format(found)
    elif isinstance(found, schedule):
        value = found.seconds
    return {"schedule": value, "timezone": str(found.tz) if hasattr(found, "tz") else "UTC"}


def watched(original):
    @wraps(original)
    def wrapper(*args, **kwargs):
        scheduler, entry = args
        config = described(entry.schedule, scheduler.app)
        headers = entry.options.pop("headers", {})
        headers.update({"monitor-slug": entry.name, "monitor-config": json.dumps(config)})
        entry.options["headers"] = headers
        return original(*args, **kwargs)

    return wrapper


RedBeatScheduler.METHOD = watched(RedBeatScheduler.METHOD)
"""
METHODS = ("apply_async", "maybe_due")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ("crontab('*', '*')", {"schedule": "* * * * *", "timezone": "Europe/Berlin"}),
        ("3600", {"schedule": 3600, "timezone": "Europe/Berlin"}),
    ],
)
def test_a_monitor_sees_the_schedule(
    wild: Wild, run: Run, method: str, saved: str, expected: dict[str, object]
) -> None:
    text = MONITOR.replace("METHOD", method) + f"\n\ndef start():\n    save('job', {saved})\n"
    program = wild.program(text, timezone="Europe/Berlin")
    program.module.start()
    with run(program) as running:
        running.until(wild.messages)
    headers = wild.messages()[0].headers
    assert headers["monitor-slug"] == "job"
    assert json.loads(headers["monitor-config"]) == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_monitor_of_static_entries(wild: Wild, run: Run, method: str) -> None:
    static = 'app.conf.beat_schedule = {"job": {"task": "jobs.run", "schedule": 0.5}}\n'
    with run(wild.program(MONITOR.replace("METHOD", method) + static)) as running:
        running.until(lambda: len(wild.messages()) >= 2)
    assert all(one.headers["monitor-slug"] == "job" for one in wild.messages())


@pytest.mark.ours
def test_a_monitor_sees_the_zone_of_an_entry(wild: Wild, run: Run) -> None:
    text = MONITOR.replace("METHOD", "apply_async") + (
        "\n\ndef start():\n    save('job', crontab('*'), timezone='Asia/Tokyo')\n"
    )
    program = wild.program(text)
    program.module.start()
    with run(program) as running:
        running.until(wild.messages)
    config = json.loads(wild.messages()[0].headers["monitor-config"])
    assert config["timezone"] == "Asia/Tokyo"


#: The tracer adds a header to each message before the publish, and counts published messages.
TRACER = """
from celery.signals import after_task_publish, before_task_publish

published = redis.Redis.from_url(URL)


@before_task_publish.connect(weak=False)
def begin(sender=None, headers=None, body=None, routing_key=None, **kwargs):
    headers["traceparent"] = f"00-{headers['id']}-{sender}-{len(body)}"


@after_task_publish.connect(weak=False)
def end(sender=None, headers=None, **kwargs):
    published.rpush("traced", headers["id"])
"""


def test_a_tracer_sees_each_message(wild: Wild, run: Run) -> None:
    program = wild.program(TRACER)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.client.llen("traced") >= 2)
    for message in wild.messages()[:2]:
        assert message.headers["traceparent"] == f"00-{message.id}-jobs.run-3"
    ids = [message.id for message in wild.messages()]
    assert wild.client.lrange("traced", 0, 1) == ids[:2]
    program.module.published.close()
