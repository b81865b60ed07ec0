"""``Schedule`` is a mapping of names to entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.schedules import crontab

import redbeat
from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.errors import DecodeError, InvalidEntryError
from tests.deployments import PREFIX
from tests.scheduler.conftest import SCHEDULE, World

from .conftest import Make, RoundTrips


def test_an_entry_can_be_stored_read_and_removed(schedule: Schedule, make: Make) -> None:
    schedule["a"] = make("a", schedule=crontab(minute=5), args=[1])
    assert (len(schedule), "a" in schedule, "b" in schedule) == (
        1,
        True,
        False,
    )
    assert (schedule["a"].args, schedule["a"].schedule) == ([1], crontab(minute=5))
    assert schedule.get("b") is None
    del schedule["a"]
    assert (len(schedule), "a" in schedule, list(schedule)) == (0, False, [])


def test_pop_returns_what_it_removed(schedule: Schedule, make: Make) -> None:
    make("a", args=[1]).save()
    assert schedule.pop("a").args == [1]
    assert schedule.pop("a", None) is None
    with pytest.raises(KeyError, match="a"):
        schedule.pop("a")


class Rival(RedBeatSchedulerEntry):
    """An entry that another process changes or deletes right after it is loaded."""

    act: ClassVar[Callable[[], object]]

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> Rival:
        """Load the entry, then call ``act``, which simulates the other process."""
        entry = super().from_key(key, app)
        cls.act()
        return entry


def test_pop_of_a_concurrently_deleted_entry(app: Celery, schedule: Schedule, make: Make) -> None:
    rival = Schedule(app, Rival)
    Rival.act = lambda: schedule.pop("a")
    make("a").save()
    assert rival.pop("a", None) is None
    make("a").save()
    with pytest.raises(KeyError, match="a"):
        rival.pop("a")


def test_pop_of_a_concurrently_changed_entry(app: Celery, schedule: Schedule, make: Make) -> None:
    Rival.act = make("a", args=["new"]).save
    make("a", args=["old"]).save()
    assert Schedule(app, Rival).pop("a").args == ["old"]
    assert "a" not in schedule


def test_popitem_removes_an_entry(schedule: Schedule, make: Make) -> None:
    make("b").save()
    name, entry = schedule.popitem()
    assert (name, entry.name) == ("b", "b")
    with pytest.raises(KeyError):
        schedule.popitem()


def test_pop_keeps_an_unreadable_entry(world: World, schedule: Schedule) -> None:
    world.client.hset(f"{PREFIX}bad", "definition", "{")
    with pytest.raises(DecodeError):
        schedule.pop("bad", None)
    assert world.client.exists(f"{PREFIX}bad")


def test_each_read_is_one_round_trip(schedule: Schedule, make: Make, trips: RoundTrips) -> None:
    make("a").save()
    trips.take()
    looks = (
        lambda: len(schedule),
        lambda: "a" in schedule,
        lambda: schedule["a"],
        lambda: [*iter(schedule)],
        lambda: [*iter(schedule.items())],
        schedule.quarantine,
        lambda: make("a").status,
        lambda: make("a").history,
    )
    for look in looks:
        look()
        assert trips.take() == 1


def test_an_unknown_name_is_a_key_error(schedule: Schedule) -> None:
    with pytest.raises(KeyError, match="nobody"):
        schedule["nobody"]
    with pytest.raises(KeyError, match="nobody"):
        del schedule["nobody"]
    assert "\ud800" not in schedule
    with pytest.raises(KeyError):
        schedule["\ud800"]


def test_internal_keys_are_not_removed(schedule: Schedule, world: World) -> None:
    world.scheduler().tick()
    with pytest.raises(InvalidEntryError, match="RedBeat uses itself"):
        del schedule[":lock"]
    with pytest.raises(InvalidEntryError, match="RedBeat uses itself"):
        schedule.delete_all([":schedule"])
    assert world.client.exists("redbeat::lock")


def test_an_entry_must_be_stored_under_its_own_name(schedule: Schedule, make: Make) -> None:
    with pytest.raises(InvalidEntryError, match="name: is 'a', but must be the key 'b'"):
        schedule["b"] = make("a")
    with pytest.raises(InvalidEntryError, match="must be a RedBeatSchedulerEntry"):
        schedule["b"] = {}  # type: ignore[assignment]
    assert len(schedule) == 0


def test_entries_are_in_due_order_with_parked_entries_last(schedule: Schedule, make: Make) -> None:
    for name, every in (("c", 300), ("a", 100), ("b", 200)):
        make(name, schedule=every).save()
    make("off", schedule=1, enabled=False).save()
    assert list(schedule) == ["a", "b", "c", "off"]
    assert list(schedule.keys()) == ["a", "b", "c", "off"]
    assert [name for name, _ in schedule.items()] == ["a", "b", "c", "off"]
    assert [entry.name for entry in schedule.values()] == ["a", "b", "c", "off"]


def test_unreadable_entries_are_listed_and_not_loaded(
    schedule: Schedule, make: Make, world: World
) -> None:
    make("good").save()
    world.client.zadd(SCHEDULE, {world.put("bad"): 1})
    world.client.hset("redbeat:bad", "definition", "{")
    world.client.zadd(SCHEDULE, {"redbeat:gone": 2, "redbeat:text": 3})
    world.client.set("redbeat:text", "no hash")
    assert set(schedule) == {"good", "bad", "gone", "text"}
    assert [entry.name for entry in schedule.values()] == ["good"]
    assert "text" not in schedule
    assert "gone" not in schedule
    with pytest.raises(DecodeError):
        schedule["bad"]
    problems = {found.name: found.problem for found in schedule.records() if not found.entry}
    assert problems["gone"] == "the definition is missing"
    assert "not a hash" in str(problems["text"])
    assert "definition" in str(problems["bad"])


def test_an_entry_class_of_the_user(world: World) -> None:
    class Mine(redbeat.RedBeatSchedulerEntry):
        def __init__(self, *args: object, owner: str = "", **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.owner = owner

        def definition(self) -> dict[str, object]:
            return {**super().definition(), "owner": self.owner}

    Mine("a", "t", 60, app=world.app, owner="me").save()
    assert list(Schedule(world.app).values()) == []
    (found,) = Schedule(world.app, entry_class=Mine).values()
    assert isinstance(found, Mine)
    assert found.owner == "me"


def test_clear_removes_all(schedule: Schedule, make: Make, world: World) -> None:
    schedule.save_all(make(f"e{number}") for number in range(600))
    schedule.clear()
    assert world.dump() == {}
    world.client.hset(b"redbeat:\xff", "definition", "{}")
    world.client.zadd(SCHEDULE, {b"redbeat:\xff": 1})
    schedule.clear()
    assert len(schedule) == 0
