"""Imported rows of django-celery-beat run when django-celery-beat would run them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import time_machine
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.history import History
from tests.acceptance.processes import ROOT
from tests.cli.conftest import Run

#: The number of runs to compare.
RUNS = 20

#: Makes rows of every kind, dumps them, and writes the next runs of each by the models and the
#: entries of django-celery-beat, under a clock that jumps from check to check.
SOURCE = f"""
import json, sys
from datetime import datetime, timedelta as t, timezone

import time_machine
from django.conf import settings

NOW = datetime.fromtimestamp(int(sys.argv[1]), timezone.utc)
settings.configure(
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, TIME_ZONE="Europe/Paris",
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    MIGRATION_MODULES={{"django_celery_beat": None}})
import django
django.setup()
from celery import Celery
from django.core.management import call_command
from django_celery_beat.models import *
from django_celery_beat.schedulers import ModelEntry

call_command("migrate", run_syncdb=True, verbosity=0)
app = Celery("source")
app.conf.timezone = "Europe/Paris"
app.set_default()


def clocked(at):
    return {{"clocked": ClockedSchedule.objects.create(clocked_time=at), "one_off": True}}


def cron(**fields):
    return {{"crontab": CrontabSchedule.objects.create(**fields)}}


def every(**fields):
    return {{"interval": IntervalSchedule.objects.create(**fields)}}


hour = NOW.replace(minute=0, second=0) + t(hours=4)
sun = SolarSchedule.objects.create(event="sunset", latitude="48.86", longitude="2.35")
kinds = {{
    "seconds": every(every=90, period="seconds"),
    "hours": every(every=3, period="hours"),
    "minutes": cron(minute="*/5"),
    "weekdays": cron(minute="30", hour="9", day_of_week="mon-fri", timezone="America/New_York"),
    "monthly": cron(minute="0", hour="7", day_of_month="1", timezone="Asia/Tokyo"),
    "sunset": {{"solar": sun}},
    "gone": clocked(NOW - t(hours=5)),
    "ahead": clocked(hour),
}}
ran = {{"never": None, "just": NOW - t(seconds=50), "long ago": NOW - t(days=40, minutes=17)}}
windows = {{
    "no window": (None, None),
    "started": (NOW - t(minutes=30), None),
    "starts in hours": (NOW + t(hours=2, minutes=13), None),
    "starts in days": (NOW + t(days=3, seconds=7), NOW + t(days=9)),
    "expired": (None, NOW - t(minutes=10)),
    "started, expires soon": (NOW - t(days=3), NOW + t(seconds=490)),
    "expires at a run": (None, hour),
}}
rows = []
for kind, schedule in kinds.items():
    for when, last in ran.items():
        for window, (start, end) in windows.items():
            for state in ("", "one_off", "finished", "disabled"):
                if state and window != "no window":
                    continue
                one_off = "one_off" in schedule or state in ("one_off", "finished")
                count = 1 if state == "finished" else 0 if one_off or not last else 3
                rows.append(PeriodicTask(
                    name=", ".join((kind, when, window, state)), task="shop.t",
                    enabled=state != "disabled", start_time=start, expires=end,
                    last_run_at=last, total_run_count=count,
                    **{{**schedule, "one_off": one_off}}))
PeriodicTask.objects.bulk_create(rows)
PeriodicTask.objects.update(date_changed=NOW - t(minutes=95))
call_command("dumpdata", "django_celery_beat", output=sys.argv[2], verbosity=0)


def runs_of(row, clock):
    entry, runs = ModelEntry(row, app=app), []
    while len(runs) < {RUNS}:
        due, delay = entry.is_due()
        if due:
            runs.append(datetime.now(timezone.utc).timestamp())
            entry = next(entry)
        if delay >= 100_000_000 or not row.enabled:
            break
        clock.shift(max(delay, 1e-6))
    return runs


found = {{}}
for row in PeriodicTask.objects.all():
    with time_machine.travel(NOW, tick=False) as clock:
        found[row.name] = runs_of(row, clock)
print(json.dumps(found))
"""


def runs_of(entry: RedBeatSchedulerEntry, score: float, now: datetime) -> list[float]:
    """Return when a beat sends the next runs of a stored entry, in UNIX seconds."""
    runs: list[float] = []
    moment: datetime | None = None
    if score >= 0:
        moment = max(now, datetime.fromtimestamp(score, timezone.utc))
    while moment is not None and len(runs) < RUNS:
        decision = entry.decision_at(moment)
        if decision.scheduled_at is not None:
            runs.append(moment.timestamp())
            anchor = decision.anchor or decision.scheduled_at
            entry.adopt(History(moment, entry.total_run_count + 1, anchor))
        moment = decision.next_at
    return runs


def test_the_next_runs_of_each_row_equal_those_of_django_celery_beat(
    run: Run, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """Rows of each kind, with and without a last run, start and expiry, finished or disabled.

    The entry's ``upcoming()`` agrees if no run is due yet. Redis's clock is earlier than the
    simulated time, so what is due at once has a score in the past.
    """
    app.conf.timezone = "Europe/Paris"
    seconds, file = int(time.time()) + 600, str(tmp_path / "beat.json")
    now = datetime.fromtimestamp(seconds, timezone.utc)
    source = subprocess.run(
        [sys.executable, "-c", SOURCE, str(seconds), file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert source.returncode == 0, source.stderr
    expected: dict[str, list[float]] = json.loads(source.stdout)
    with time_machine.travel(now, tick=False):
        ran = run("import", "--format", "django-celery-beat", file)
    assert (ran.code, f"{len(expected)} created" in ran.err) == (0, True), ran.err

    for name, runs in expected.items():
        entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)
        upcoming = [at.timestamp() for at in entry.upcoming(RUNS - 1, after=now)]
        score = redis_client.zscore("redbeat::schedule", f"redbeat:{name}")
        assert runs_of(entry, score, now) == pytest.approx(runs, rel=0, abs=2), name
        later = [at for at in runs if at > seconds][: RUNS - 1]
        if entry.enabled and len(later) == len(runs[: RUNS - 1]):
            assert upcoming == pytest.approx(later, rel=0, abs=2), name
