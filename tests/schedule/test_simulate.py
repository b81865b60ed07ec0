"""Tests of ``Schedule.simulate``; ``tests/simulation/lookback.py`` compares it with beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.entries.decide import Expected
from redbeat.errors import InvalidEntryError
from redbeat.management.forecast import MAX_RUNS, MAX_SIMULATED, Pair, simulate
from tests.samples import long
from tests.scheduler.conftest import World

from .conftest import Make, RoundTrips

UTC = timezone.utc
DAY = timedelta(days=1)
START = datetime(2027, 1, 1, tzinfo=UTC)


def hours(runs: Sequence[Expected] | None) -> list[float]:
    """Return the hours after the start at which runs are scheduled."""
    return [(run.scheduled_at - START) / timedelta(hours=1) for run in runs or ()]


def test_an_interval_keeps_its_grid_in_the_past(make: Make, schedule: Schedule) -> None:
    make("a", last_run_at=START + timedelta(minutes=20)).save()
    found = schedule.simulate(START - timedelta(hours=2), START + timedelta(hours=2))
    assert [round(hour * 60) for hour in hours(found.entries["a"].before)] == [-100, -40, 20, 80]


def test_changes_keep_the_history(make: Make, schedule: Schedule) -> None:
    make("a", last_run_at=START, max_runs=5).save()
    until = START + timedelta(hours=9)
    changes: dict[str, dict[str, Any]] = {
        "a": {"schedule": 7200},
        "new": {"task": "t", "schedule": 3600 * 4},
    }
    found = schedule.simulate(START, until, changes=changes)
    assert hours(found.entries["a"].before) == [0, 1, 2, 3, 4]
    # Two hours after the last run under the stored rules, which is an hour before the start.
    assert hours(found.entries["a"].after) == [1, 3, 5, 7]
    assert found.entries["a"].count() == {"same": 2, "removed": 3, "added": 2}
    assert hours(found.entries["new"].before) == []
    assert hours(found.entries["new"].after) == [4, 8]
    assert schedule["a"].schedule.run_every == timedelta(hours=1)
    assert "new" not in schedule


def test_max_runs_counts_from_the_present(make: Make, schedule: Schedule, world: World) -> None:
    now = world.ago(0)
    make("a", schedule=crontab(minute=0), last_run_at=world.ago(1800), max_runs=30).save()
    tomorrow = schedule.simulate(now + DAY, now + 3 * DAY).entries["a"].before
    assert len(tomorrow) in (5, 6, 7)
    whole = RedBeatSchedulerEntry("b", "t", crontab(minute=0), app=world.app, max_runs=30)
    assert len(schedule.simulate(now, now + 3 * DAY, changes={"b": whole}).entries["b"].after or ())


def test_calendars_and_windows_apply(make: Make, schedule: Schedule) -> None:
    schedule.save_calendar(Calendar("holidays", days=["2027-01-02"], zone="UTC"))
    make("a", schedule=crontab(minute=0, hour=12), exclude="holidays").save()
    make("b", schedule=crontab(minute=0, hour=12), end_time=START + DAY).save()
    found = schedule.simulate(START, START + 3 * DAY)
    assert hours(found.entries["a"].before) == [12, 60]
    assert hours(found.entries["b"].before) == [12]
    changed = schedule.simulate(START, START + 3 * DAY, changes={"a": {"exclude": None}})
    assert hours(changed.entries["a"].after) == [12, 36, 60]


def test_wrong_arguments(make: Make, schedule: Schedule) -> None:
    make("a").save()
    with pytest.raises(KeyError):
        schedule.simulate(START, START + DAY, ["nobody"])
    with pytest.raises(InvalidEntryError, match=r"^a: .*'cron'"):
        schedule.simulate(START, START + DAY, changes={"a": {"cron": "* * * * *"}})
    with pytest.raises(InvalidEntryError, match="jitter"):
        schedule.simulate(START, START + DAY, changes={"a": {"jitter": -1}})


@pytest.mark.parametrize("since", ["2026-12-01", 1795713600.0, datetime(2026, 12, 1).date()])
def test_an_argument_that_is_no_datetime_is_named(schedule: Schedule, since: Any) -> None:
    with pytest.raises(InvalidEntryError, match="since: must be a datetime, not"):
        schedule.simulate(since, datetime.now(timezone.utc))


def test_one_round_trip_a_name(make: Make, schedule: Schedule, trips: RoundTrips) -> None:
    for name in ("a", "b", "c"):
        make(name).save()
    trips.take()
    schedule.simulate(START, START + DAY, ["a", "b"], {"a": {"schedule": 60}})
    assert trips.take() == 2


class TestLimits:
    """A simulation of many entries stops at its limits."""

    def entries(self, world: World, number: int, every: float) -> Iterator[Pair]:
        """Yield stored entries, and count them in ``self.read``."""
        self.read = 0
        entry = RedBeatSchedulerEntry("e", "t", every, app=world.app)
        entry.last_run_at = START
        for at in range(number):
            self.read += 1
            found = copy(entry)
            found.name = f"e{at}"
            yield found, None

    @pytest.mark.parametrize("number", [3, long(1), long(40)])
    def test_too_many_runs_end_the_simulation_earlier(self, world: World, number: int) -> None:
        """At most the limit of runs, and all runs of an instant or none."""
        found = simulate(self.entries(world, number, 60), START, START + 70 * DAY, START)
        assert not found.complete
        assert found.all_entries
        each = MAX_RUNS // number
        assert [len(entry.before) for entry in found.entries.values()] == [each] * number
        assert found.until == START + timedelta(minutes=each)

    @pytest.mark.long
    def test_no_entry_is_read_after_the_limit(self, world: World) -> None:
        """A simulation of ten million entries keeps no more than the limit."""
        until = START + timedelta(hours=1)
        found = simulate(self.entries(world, MAX_SIMULATED + 10, 3600), START, until, START)
        assert len(found.entries) == MAX_SIMULATED
        assert (found.complete, found.all_entries, found.until) == (False, False, until)
        assert self.read == MAX_SIMULATED + 1
        found = simulate(self.entries(world, MAX_SIMULATED, 3600), START, until, START)
        assert (found.complete, found.all_entries) == (True, True)
