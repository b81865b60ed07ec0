"""Names of time zones that mean another zone on another host are refused, but still read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule, from_ical, rrule, rruleset
from redbeat.calendar.zones import zone_named
from redbeat.config import RedBeatConfig
from redbeat.errors import ConfigurationError, InvalidEntryError
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.cli.commands import run_command

NAMES = ["localtime", "LocalTime", "posixrules", "Factory", "right/Europe/Paris", "posix/UTC"]
#: Files in the directory of a time zone database, and paths out of it.
NO_ZONES = ["tzdata.zi", "zone.tab", "leapseconds", "/etc/localtime", "../localtime", "Europe", ""]
PROBLEM = "is another time zone on another host"


@pytest.mark.parametrize("name", NAMES)
def test_settings_and_policies_refuse_such_a_name(app: Celery, name: str) -> None:
    app.conf.timezone = name
    with pytest.raises(ConfigurationError, match=f"^timezone is {name!r}, which {PROBLEM}"):
        RedBeatConfig(app)
    app.conf.timezone = "UTC"
    with pytest.raises(InvalidEntryError, match=PROBLEM) as caught:
        RedBeatSchedulerEntry("e", "t", crontab(), timezone=name, app=app).save()
    assert caught.value.field == "timezone"
    with pytest.raises(InvalidEntryError, match=PROBLEM) as caught:
        Calendar("c", zone=name)
    assert caught.value.field == "zone"
    with pytest.raises(ValueError, match=PROBLEM):
        from_ical(f"DTSTART;TZID={name}:20270101T090000\nRRULE:FREQ=DAILY")


@pytest.mark.parametrize("name", NAMES)
def test_each_entrance_refuses_such_a_name(app: Celery, tmp_path: Path, name: str) -> None:
    (tmp_path / "crontab").write_text(f"CRON_TZ={name}\n0 9 * * * t\n")
    entry = f'[entries.e]\ntask = "t"\nevery = 60\ntimezone = "{name}"'
    (tmp_path / "e.toml").write_text(f'managed_by = "me"\n{entry}')
    for words in (
        ["add", "e", "t", "--every", "60", "--timezone", name],
        ["import", "--format", "crontab", str(tmp_path / "crontab")],
        ["plan", str(tmp_path / "e.toml")],
    ):
        ran = run_command(app, *words)
        assert ran.code != 0
        assert PROBLEM in ran.err
    site = create_app(Schedule(app), Access()).test_client()
    body = {"task": "t", "every": 60, "timezone": name}
    answer = site.put("/api/entry?name=e", json=body)
    assert (answer.status_code, answer.get_json()["error"]["field"]) == (422, "timezone")
    assert len(Schedule(app)) == 0


@pytest.mark.parametrize("name", NO_ZONES)
def test_a_file_that_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        zone_named(name)


@pytest.fixture(params=["Europe/Paris", "UTC"])
def here(request: pytest.FixtureRequest) -> ZoneInfo:
    """The zone ``localtime`` of a host in Paris, and of one in UTC."""
    place = files("tzdata") / "zoneinfo" / request.param
    with place.open("rb") as file:
        return ZoneInfo.from_file(file, key="localtime")


def test_a_zone_object_of_the_host_is_refused_too(app: Celery, here: ZoneInfo) -> None:
    moment = datetime(2027, 1, 1, 9, tzinfo=here)
    for field, values in (
        ("timezone", {"schedule": 60, "timezone": here}),
        ("schedule.dtstart", {"schedule": rrule("DAILY", dtstart=moment)}),
        ("schedule", {"schedule": rruleset([rrule("DAILY", dtstart=moment)])}),
    ):
        with pytest.raises(InvalidEntryError) as caught:
            RedBeatSchedulerEntry("e", "t", **values, app=app).save()
        assert caught.value.field.startswith(field)
    app.conf.timezone = here
    with pytest.raises(ConfigurationError, match=PROBLEM):
        RedBeatConfig(app)


def test_a_time_in_the_zone_of_the_host_is_stored_with_its_offset(
    app: Celery, here: ZoneInfo
) -> None:
    moment = datetime(2027, 1, 1, 9, tzinfo=here)
    entry = RedBeatSchedulerEntry("e", "t", 60, kwargs={"when": moment}, app=app)
    entry.last_run_at = moment
    entry.save()
    texts = app.redbeat_redis.hgetall("redbeat:e")
    offset = (moment.utcoffset() or timedelta()).total_seconds()
    assert json.loads(texts["definition"])["kwargs"]["when"]["timezone"] == offset
    assert json.loads(texts["meta"])["last_run_at"]["timezone"] == offset
    assert RedBeatSchedulerEntry.from_key("redbeat:e", app=app).last_run_at == moment


def test_what_redbeat_2_stored_is_read_with_one_warning(
    app: Celery, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The package tzdata has the zone ``Factory``, which is UTC."""
    time = {"__type__": "datetime", "year": 2027, "month": 1, "day": 1, "timezone": "Factory"}
    rule = {"__type__": "interval", "every": 60}
    text = {"name": "e", "task": "t", "schedule": rule, "kwargs": {"when": time}}
    redis_client.hset("redbeat:e", "definition", json.dumps(text))
    redis_client.hset("redbeat:e", "meta", json.dumps({"last_run_at": time}))
    for _ in range(2):
        entry = RedBeatSchedulerEntry.from_key("redbeat:e", app=app)
        assert (
            entry.last_run_at == entry.kwargs["when"] == datetime(2027, 1, 1, tzinfo=timezone.utc)
        )
    (line,) = [line for line in caplog.messages if "Factory" in line]
    assert PROBLEM in line
