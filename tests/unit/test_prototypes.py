"""What a beat need not decode again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.prototypes import Prototypes


class Counted(RedBeatSchedulerEntry):
    """An entry that counts how many were made."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        type(self).made += 1
        super().__init__(*args, **kwargs)


class Source:
    """What tells how entries are made."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.Entry = Counted


@pytest.fixture
def prototypes(monkeypatch: pytest.MonkeyPatch) -> Prototypes:
    """Room for ten entries."""
    app = Celery("tests", set_as_current=False)
    app.conf.redbeat_redis_url = "redis://127.0.0.1:1"
    monkeypatch.setattr("redbeat.entries.prototypes.CAPACITY", 10)
    monkeypatch.setattr(Counted, "made", 0)
    return Prototypes(Source(app))


def get(prototypes: Prototypes, name: str, task: str = "t", **fields: Any) -> Counted:
    schedule = {"__type__": "interval", "every": 60, "relative": False}
    definition = {"name": name, "task": task, "schedule": schedule, **fields}
    entry = prototypes.get(f"redbeat:{name}", json.dumps(definition), "")
    assert isinstance(entry, Counted)
    return entry


def test_an_entry_is_made_once(prototypes: Prototypes) -> None:
    assert [get(prototypes, "a").name for _ in range(3)] == ["a", "a", "a"]
    assert Counted.made == 1


def test_of_more_than_can_be_kept_most_are_there_when_they_are_asked_for_in_turn(
    prototypes: Prototypes,
) -> None:
    for _ in range(5):
        names = [get(prototypes, f"e{number}").name for number in range(12)]
    assert names == [f"e{number}" for number in range(12)]
    assert Counted.made < 12 + 4 * 12 / 2


def test_one_that_was_changed_is_made_anew_and_kept(prototypes: Prototypes) -> None:
    for number in range(12):
        get(prototypes, f"e{number}")
    assert [get(prototypes, "e0", "other").task for _ in range(3)] == ["other"] * 3
    assert Counted.made == 12 + 1


@pytest.mark.parametrize("name", ["kept", "not kept"])
@pytest.mark.parametrize("value", [1, [1]])
def test_who_gets_an_entry_may_change_it(prototypes: Prototypes, name: str, value: Any) -> None:
    if name != "kept":
        for number in range(10):
            get(prototypes, f"e{number}")
    entry = get(prototypes, name, args=[value], kwargs={"a": value})
    entry.args.append(2)
    entry.kwargs["b"] = 2
    if isinstance(value, list):
        entry.args[0].append(2)
    again = get(prototypes, name, args=[value], kwargs={"a": value})
    assert (again.args, again.kwargs) == ([value], {"a": value})
