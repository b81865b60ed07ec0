"""Entries can be pickled, copied and displayed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.decide import Run
from redbeat.schedules import rrule
from tests.entry.conftest import OwnedEntry, Stored

UTC = timezone.utc
RAN = datetime(2026, 11, 21, 1, 19, 37, 970134, tzinfo=ZoneInfo("UTC"))
SCHEDULES = [schedule(60), crontab(hour=[1, 2]), rrule("DAILY", dtstart=datetime(2030, 1, 1))]
COPIES: list[Callable[[Entry], Entry]] = [
    copy.copy,
    copy.deepcopy,
    lambda entry: type(entry)(**dict(entry)),
]


def entry(app: Celery, cls: type[Entry] = Entry, **fields: Any) -> Entry:
    arguments = {"schedule": 60, "args": [[1]], "kwargs": {"k": [2]}, "options": {"queue": "q"}}
    arguments["delivery"] = "at_most_once"
    return cls("a", "t.a", app=app, last_run_at=RAN, total_run_count=3, **{**arguments, **fields})


def fields_of(made: Entry) -> dict[str, Any]:
    return {name: value for name, value in dict(made).items() if name != "app"}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("when", SCHEDULES)
def test_a_pickled_entry_is_the_same(app: Celery, when: Any, protocol: int) -> None:
    made = entry(app, schedule=when, enabled=False)
    found = pickle.loads(pickle.dumps(made, protocol))
    assert fields_of(found) == fields_of(made)


def test_a_pickled_entry_belongs_to_the_current_app(app: Celery) -> None:
    made = entry(app)
    app.set_current()
    assert pickle.loads(pickle.dumps(made)).app is app


def test_a_pickled_subclass_keeps_its_argument(app: Celery) -> None:
    found = pickle.loads(pickle.dumps(entry(app, OwnedEntry, owner="me")))
    assert (type(found), found.owner) == (OwnedEntry, "me")


def test_a_pickled_entry_knows_what_is_stored_of_it(app: Celery, stored: Stored) -> None:
    made = entry(app).save()
    app.set_current()
    found = pickle.loads(pickle.dumps(made))
    made.next(last_run_at=RAN)
    found.save()
    assert '"total_run_count": 4' in stored("a")["meta"]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_is_equal_and_of_the_same_app(app: Celery, copied: Callable[[Entry], Entry]) -> None:
    made = entry(app, OwnedEntry, owner="me")
    found = copied(made)
    assert dict(found) == dict(made)
    assert (type(found), found.app) == (OwnedEntry, app)
    assert found is not made


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_can_be_changed_and_saved_under_another_name(
    app: Celery, stored: Stored, copied: Callable[[Entry], Entry]
) -> None:
    found = copied(entry(app).save())
    found.name = "b"
    found.save()
    assert stored("b")["definition"] == stored("a")["definition"].replace('"a"', '"b"')


def test_a_deep_copy_shares_nothing_that_can_be_changed(app: Celery) -> None:
    made = entry(app)
    found = copy.deepcopy(made)
    found.args[0].append(0)
    found.kwargs["k"].append(0)
    found.options["queue"] = "other"
    assert (made.args, made.kwargs, made.options) == ([[1]], {"k": [2]}, {"queue": "q"})


def test_a_copy_takes_no_part_in_a_run(app: Celery) -> None:
    made, now = entry(app), datetime.now(UTC)
    made.run = Run(now, now)
    for found in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert found.run is None


def test_repr_and_str_of_an_entry(app: Celery) -> None:
    made = entry(app, args=["x", 2], kwargs={})
    assert repr(made) == "<RedBeatSchedulerEntry: a t.a('x', 2) <freq: 1.00 minute>>"
    assert repr(entry(app, OwnedEntry, args=None)) == (
        "<OwnedEntry: a t.a(k=[2]) <freq: 1.00 minute>>"
    )
    assert repr(Entry(name="a", app=app)) == "<RedBeatSchedulerEntry: a None() None>"
