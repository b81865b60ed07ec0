"""The project for the recordings, run by a beat of any RedBeat version.

``celery -A project beat`` runs the project. ``python project.py save`` and ``python project.py
change`` act as its web application, before and while the beat runs. Except in `save_new`, the
project uses only names that ``celery-redbeat`` 2.0 also has.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, MO, TH, TU, WE

import redbeat
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

#: An entry that only the first beat has in its ``beat_schedule``.
RETIRED = "static retired"
STATIC: dict[str, dict[str, Any]] = {
    "static second": {"task": "proj.tick", "schedule": 1.0},
    "static timedelta": {"task": "proj.tick", "schedule": timedelta(seconds=2.5), "args": (1, "b")},
    "static minute": {"task": "proj.tick", "schedule": crontab()},
    "static noon": {
        "task": "proj.noon",
        "schedule": crontab(minute=0, hour=12, day_of_month="*/2", month_of_year="1-12"),
        "kwargs": {"to": ["a@example.com"], "deep": {"list": [1, 2.5, None, True]}},
        "options": {"queue": "slow", "priority": 3, "expires": 3600},
    },
    RETIRED: {"task": "proj.tick", "schedule": 2.0},
}
#: Seconds after which the rule with an end has no more runs.
RULE_SECONDS = 6

# Tests import only STATIC and create their apps themselves.
URL = os.environ.get("HISTORIES_REDIS")
app = Celery("histories", broker=os.environ.get("HISTORIES_BROKER"), set_as_current=bool(URL))
app.conf.update(
    redbeat_redis_url=URL,
    redbeat_lock_timeout=60,
    timezone=os.environ.get("HISTORIES_TIMEZONE", "UTC"),
    beat_schedule={
        name: entry
        for name, entry in STATIC.items()
        if name != RETIRED or "HISTORIES_SECOND_BEAT" not in os.environ
    },
    # RedBeat 2 finds a change only after this many seconds.
    beat_max_loop_interval=0.25,
    # Otherwise Celery adds an entry.
    result_expires=None,
)
#: RedBeat 2.0 can store only pytz zones, which Celery used at that time.
UTC: Any = app.timezone if hasattr(app.timezone, "zone") else timezone.utc


def make(name: str, when: Any, **more: Any) -> RedBeatSchedulerEntry:
    """Save an entry that counts its interval from now."""
    return RedBeatSchedulerEntry(name, "proj.tick", when, app=app, **more).save()


def make_due(name: str, when: Any, **more: Any) -> None:
    """Save an entry that is due now."""
    entry = RedBeatSchedulerEntry(name, "proj.tick", when, app=app, **more)
    entry.last_run_at = None
    entry.save()


def save() -> None:
    """Save an entry of each kind."""
    now = datetime.now(UTC).replace(microsecond=0)
    end = now + timedelta(seconds=RULE_SECONDS)
    india = timezone(timedelta(hours=5, minutes=30))
    new_year = datetime(2026, 1, 1, 9, 30, tzinfo=india)
    make("interval", 2)
    make("interval of 90 s", timedelta(seconds=90))
    make_due("interval, run at once", 3600)
    make("interval, relative", schedule(timedelta(minutes=2), relative=True))
    make("interval, disabled", 1, enabled=False)
    make("interval, disabled later", 1)
    make("interval, edited", 3600)
    make("interval, rescheduled", 3600)
    make("interval, deleted", 1)
    make("interval, moved by its task", 3600)
    make("na\u00efve \u2602 \u65e5\u672c: a/b c", 2, args=["\u00fc"], kwargs={"\u00e4": "\u65e5"})
    make_due("arguments", 7200, args=[now, {"at": now}], kwargs={"n": 1}, options={"queue": "q"})
    make_due("arguments, none", 7200, args=None)
    make("crontab", crontab(minute="*/15", hour="8-18/2", day_of_week="mon-fri"))
    make_due("crontab, lists", crontab(minute=[5, 35], hour=6, day_of_month=[1, 15]))
    make("crontab, nudged", crontab(minute="30", hour="*/6"))
    make("rule, count", rrule("SECONDLY", dtstart=now, count=4))
    make("rule, until", rrule("SECONDLY", dtstart=now, interval=2, until=end))
    make("rule, secondly", rrule(6, dtstart=now, interval=3))
    make("rule, offset", rrule("DAILY", dtstart=new_year, byhour=[9, 18], byminute=30, bysecond=0))
    make_due("rule, weekdays", rrule("WEEKLY", dtstart=new_year, byweekday=[MO, FR], wkst=0))
    make(
        "rule, last workday",
        rrule(
            "MONTHLY",
            dtstart=new_year,
            until=datetime(2100, 1, 1, tzinfo=timezone.utc),
            byweekday=(MO, TU, WE, TH, FR),
            bysetpos=-1,
        ),
    )
    # RedBeat 2 stores the zone's UTC offset at the start.
    berlin = datetime(2026, 7, 1, 20, 15, tzinfo=ZoneInfo("Europe/Berlin"))
    make("rule, zone", rrule("DAILY", dtstart=berlin, interval=2))
    make("rule, easter", rrule("YEARLY", dtstart=new_year, byeaster=1))
    if int(getattr(redbeat, "__version__", "2").partition(".")[0]) > 2:
        save_new()


def save_new() -> None:
    """Save entries with fields that RedBeat 2 does not know and schedules that it knows."""
    make("new, at most once", 2, delivery="at_most_once")
    make("new, runs", 1, max_runs=3)
    make("new, crontab in a zone", crontab(minute="10", hour="7"), timezone="Asia/Tokyo")
    make("new, paused", 1).pause("for the recording")
    make_due("new, type in arguments", 7200, kwargs={"value": {"__type__": "mine", "x": 1}})
    make("new, triggered", 3600).trigger()


def change() -> None:
    """Edit, move, disable and delete entries while the beat runs."""

    def load(name: str) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)

    load("interval, deleted").delete()
    load("interval, rescheduled").reschedule(datetime.now(UTC) - timedelta(minutes=30))
    disabled = load("interval, disabled later")
    disabled.enabled = False
    disabled.save()
    make("interval, edited", 2, args=["edited"])


if __name__ == "__main__":
    {"save": save, "change": change}[sys.argv[1]]()
