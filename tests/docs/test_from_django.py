"""Moves a Django project with django-celery-beat by the steps of the page, and back."""

from __future__ import annotations

import re

import pytest
import redis

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "from-django-celery-beat.rst"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OLD = "django_celery_beat.schedulers:DatabaseScheduler"

SETTINGS = f"""
import os

INSTALLED_APPS += ["django_celery_beat"]
TIME_ZONE = "Europe/Paris"
CELERY_BROKER_URL = "redis://localhost:6379/0"
CELERY_BEAT_SCHEDULER = "{OLD}"
CELERY_BEAT_SCHEDULE = {{"static": {{"task": "proj.hello", "schedule": 3600}}}}
"""

CELERY = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""

FILL = """
import os
import django

os.environ["DJANGO_SETTINGS_MODULE"] = "proj.settings"
django.setup()

from datetime import datetime, timedelta, timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule
from django_celery_beat.models import PeriodicTask

later = datetime.now(timezone.utc) + timedelta(days=30)
second = IntervalSchedule.objects.create(every=1, period="seconds")
day = IntervalSchedule.objects.create(every=1, period="days")
cron = CrontabSchedule.objects.create(minute="30", hour="7", timezone="America/New_York")
clocked = ClockedSchedule.objects.create(clocked_time=later)
common = {"task": "proj.hello"}
PeriodicTask.objects.create(name="poll", interval=second, args='["a"]', kwargs='{"b": 1}',
    queue="slow", priority=4, expire_seconds=60, description="Polls", headers='{"h": 1}', **common)
PeriodicTask.objects.create(name="cron", crontab=cron, expires=later, **common)
PeriodicTask.objects.create(name="once", clocked=clocked, one_off=True, **common)
PeriodicTask.objects.create(name="off", interval=day, enabled=False, **common)
"""

CHECK = """
from datetime import timedelta
from redbeat import Schedule
from proj.celery import app

schedule = Schedule(app)
poll, cron, once, off = (schedule[name] for name in ("poll", "cron", "once", "off"))
assert poll.schedule.run_every == timedelta(seconds=1)
assert (poll.task, poll.args, poll.kwargs) == ("proj.hello", ["a"], {"b": 1})
assert poll.options == {"queue": "slow", "priority": 4, "headers": {"h": 1}, "expires": 60}
assert poll.description == "Polls"
assert poll.total_run_count >= 2 and poll.last_run_at, "the old beat has sent it"
assert (cron.timezone, cron.on_finish) == ("America/New_York", "disable")
assert cron.end_time and "expires" in cron.options
assert (once.max_runs, once.on_finish) == (1, "disable")
assert [entry.enabled for entry in (poll, cron, once, off)] == [True, True, True, False]
print("done")
"""


def test_a_project_moves_and_returns(reader: Reader, redis_client: redis.Redis) -> None:
    reader.shell("django-admin startproject proj .")
    settings = reader.directory / "proj" / "settings.py"
    reader.save("proj/settings.py", settings.read_text() + SETTINGS)
    reader.save("proj/celery.py", CELERY)
    reader.save("proj/__init__.py", "from .celery import app as celery_app\n")
    reader.shell("python manage.py migrate --verbosity 0")
    reader.python(FILL)

    def runs(scheduler: str, logged: str) -> None:
        """Set the scheduler, and run a beat until it has sent the entry twice."""
        setting = f'BEAT_SCHEDULER = "{scheduler}"'
        settings.write_text(re.sub(r"BEAT_SCHEDULER = .*", setting, settings.read_text()))
        beat = reader.start("celery -A proj beat --loglevel info")
        beat.wait_for(logged)
        sent = "Sending due task poll (proj.hello)"
        wait_until(lambda: beat.output().count(sent) >= 2, 60, "two runs")
        # The other scheduler needs longer than that now and then.
        assert beat.stop(deadline=90 if scheduler == OLD else 20) == 0

    runs(OLD, "DatabaseScheduler: Schedule changed.")
    for block in blocks_of(PAGE):
        if block.language == "sh":
            reader.shell(block.text)
    assert reader.python(CHECK).endswith("done\n")
    runs("redbeat.RedBeatScheduler", "beat: Acquired lock")
    assert redis_client.smembers("redbeat::statics") >= {"static"}

    runs(OLD, "DatabaseScheduler: Schedule changed.")
    command = "celery -A proj redbeat import --format django-celery-beat --skip-invalid"
    reader.environment["DJANGO_SETTINGS_MODULE"] = "proj.settings"
    assert "'static' is an entry of beat_schedule" in reader.shell(f"{command} --dry-run || true")
    again = reader.shell(f"{command} --on-conflict replace || true")
    assert "0 created" in again
    runs("redbeat.RedBeatScheduler", "beat: Acquired lock")

    (drop,) = re.findall(r"``(python manage.py migrate .*?)``", PAGE.read_text())
    reader.shell(drop)
    settings.write_text(settings.read_text().replace('["django_celery_beat"]', "[]"))
    assert "poll" in reader.shell("celery -A proj redbeat list")
