"""Tests of the task options ``expires``, ``eta`` and ``countdown``: stored, loaded, and sent."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta, timezone
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.message import sendable_options
from redbeat.entries.definition import stored_options
from redbeat.errors import InvalidEntryError

BERLIN = datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
TIMES = ["countdown", "eta", "expires"]
INSTANTS = ["eta", "expires"]

#: Values that are invalid for each of the three options.
BAD: list[Any] = [
    *(-1, -0.5, timedelta(-1), True, math.nan, math.inf, 1e9),
    *("soon", "", [], date.max),
]


@pytest.fixture
def offline() -> Celery:
    """Return an app that does not connect to Redis; its time zone is not UTC."""
    app = Celery("offline", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url="redis://127.0.0.1:1/0", timezone="Asia/Tokyo")
    return app


def entry_with(app: Celery, options: dict[str, Any]) -> RedBeatSchedulerEntry:
    """Return an entry with these options."""
    return RedBeatSchedulerEntry("a", "tasks.a", 60, options=options, app=app)


def read_back(app: Celery, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an entry after a save and a load."""
    definition, policy = entry_with(app, options).texts()
    loaded = RedBeatSchedulerEntry.from_definition(app, definition, policy)
    return dict(loaded.options)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [0, 30, 1.25, None])
def test_numbers_are_stored_unchanged(offline: Celery, name: str, value: Any) -> None:
    definition, _ = entry_with(offline, {name: value, "queue": "q"}).texts()
    assert json.loads(definition)["options"] == {name: value, "queue": "q"}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    "value", [timedelta(minutes=2), timedelta(days=3, microseconds=1), timedelta(0)]
)
def test_a_timedelta_is_stored_as_seconds(offline: Celery, name: str, value: timedelta) -> None:
    """The number of seconds is exact to the microsecond, and RedBeat 2 can read it too."""
    assert timedelta(seconds=read_back(offline, {name: value})[name]) == value


def test_an_entry_keeps_the_options_it_was_given(offline: Celery) -> None:
    options = {"expires": timedelta(minutes=2)}
    entry = entry_with(offline, options)
    entry.texts()
    assert entry.options == options == {"expires": timedelta(minutes=2)}


@pytest.mark.parametrize("name", INSTANTS)
def test_an_instant_keeps_its_zone(offline: Celery, name: str) -> None:
    found = read_back(offline, {name: BERLIN})[name]
    assert found == BERLIN
    assert found.tzinfo.key == "Europe/Berlin"


@pytest.mark.parametrize("name", INSTANTS)
def test_an_instant_is_stored_as_redbeat_2_reads_it(offline: Celery, name: str) -> None:
    definition, policy = entry_with(offline, {name: BERLIN}).texts()
    stored = json.loads(definition)["options"][name]
    parts = {"year": 2030, "month": 7, "day": 1, "hour": 12, "minute": 0, "second": 0}
    assert stored == {
        "__type__": "datetime",
        "microsecond": 0,
        "timezone": "Europe/Berlin",
        **parts,
    }
    assert policy == ""


@pytest.mark.parametrize("name", INSTANTS)
def test_a_naive_instant_is_utc_as_in_celery(offline: Celery, name: str) -> None:
    found = read_back(offline, {name: datetime(2030, 7, 1, 12)})[name]
    assert found == datetime(2030, 7, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", INSTANTS)
def test_iso_8601_stays_text(offline: Celery, name: str) -> None:
    text = "2030-07-01T12:00:00+02:00"
    assert read_back(offline, {name: text})[name] == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *product(TIMES, BAD),
        ("countdown", BERLIN),
        ("countdown", "2030-07-01T12:00:00"),
        ("expires", 1_900_000_000),
        ("eta", {"__type__": "datetime", "year": 2030}),
    ],
)
def test_the_error_names_the_option_with_a_bad_value(
    offline: Celery, name: str, value: Any
) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        entry_with(offline, {name: value}).save()
    assert caught.value.field == f"options.{name}"


def test_options_without_times_are_passed_on_unchanged() -> None:
    options = {"queue": "q"}
    assert stored_options(options) is options
    assert stored_options(None) is None
    assert sendable_options(options) == options


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"countdown": timedelta(minutes=1)}, {"countdown": 60}),
        ({"expires": timedelta(minutes=1)}, {"expires": 60}),
        ({"expires": 30, "countdown": 5}, {"expires": 30, "countdown": 5}),
        ({"eta": 5}, {"countdown": 5}),
        ({"eta": timedelta(minutes=1), "expires": BERLIN}, {"countdown": 60, "expires": BERLIN}),
        ({"eta": 5, "countdown": 9}, {"countdown": 9}),
        ({"eta": 5, "countdown": 0}, {"countdown": 5}),
        ({"eta": BERLIN}, {"eta": BERLIN}),
        ({"eta": BERLIN, "countdown": 9}, {"eta": BERLIN, "countdown": 9}),
        ({"eta": None, "expires": None}, {"eta": None, "expires": None}),
    ],
)
def test_the_arguments_of_apply_async(given: dict[str, Any], sent: dict[str, Any]) -> None:
    before = dict(given)
    assert sendable_options(given) == sent
    assert given == before
