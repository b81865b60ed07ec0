"""Tests of `celery redbeat shard`."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from redis.client import Pipeline

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat.lock import new_token
from redbeat.cli.command import Exit
from redbeat.errors import ConfigurationError
from redbeat.management.find import page_of
from redbeat.metrics.counts import total_stats
from redbeat.storage.keys import Layout
from redbeat.storage.store import store_of
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.deployments import PREFIX
from tests.scheduler.conftest import RecordingScheduler
from tests.stored import put_history

RAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
SHARDS = 4


def use(app: Celery, shards: int) -> Schedule:
    """Set the number of shards of an app, and return its schedule."""
    app.conf.redbeat_shards = shards
    app.redbeat_conf = None
    return Schedule(app)


def a_beat_refuses(app: Celery, reason: str) -> None:
    """Assert that a beat ends, at the latest with its first tick, and frees its lock."""
    with ExitStack() as stack:

        def begin() -> None:
            scheduler = RecordingScheduler(app)
            stack.callback(scheduler.close)
            scheduler.tick()

        with pytest.raises(ConfigurationError, match=reason):
            begin()


def named(row: Any, name: str) -> Any:
    """Return a row with the name of its entry in place of the key."""
    return row._replace(key=name)


def content(schedule: Schedule) -> Any:
    """Return all data of all entries, without their keys."""
    store = store_of(schedule.app)
    rows, after = [], None
    while True:
        page = page_of(store, after, history=True)
        rows += [named(row, store.keys.name_of(row.key)) for row in page.rows]
        after = page.after
        if after is None:
            return rows, store.calendars(), store.static_names(), len(store.quarantined())


def ids(schedule: Schedule) -> list[str | None]:
    return [run.task_id for run in schedule["ran-0"].history]


@pytest.fixture
def filled(app: Celery, make: Make, redis_client: Any) -> Any:
    """Store data of every kind, and return all of it."""
    for number in range(20):
        make(f"ran-{number}", last_run_at=RAN, total_run_count=7)
    make("é:b c", enabled=False)
    key = make("static").key
    put_history(redis_client, f"{PREFIX}ran-0", ["1795289048.5 +0.25"])
    redis_client.sadd(f"{PREFIX}:statics", "static")
    redis_client.hset(f".{PREFIX}:quarantine", key, "{}")
    redis_client.zadd(f".{PREFIX}:failed", {f"{PREFIX}ran-0": 3})
    redis_client.hset(f".{PREFIX}:stats", mapping={"dispatched": "7", "members": "22"})
    schedule = Schedule(app)
    schedule.save_calendar(Calendar("holidays", days=["2030-12-25"]))
    return content(schedule)


def test_entries_move_to_shards_and_back(run: Run, app: Celery, filled: Any) -> None:
    """Everything about an entry is the same, whatever the number of shards."""
    before = ids(Schedule(app))
    assert before[0]
    for shards in (SHARDS, 7, 1):
        ran = run("shard", str(shards), "--delete", "--json")
        assert ran.code == 0, ran.err
        (found,) = ran.json
        assert found["shards"] == shards
        assert sum(place["entries"] for place in found["places"]) == 22
        assert (found["copied"], found["deleted"], found["earlier"]) == (22, 22, [])
        schedule = use(app, shards)
        assert content(schedule) == filled
        assert ids(schedule) == before
        stats = total_stats(store_of(app).parts)
        assert stats["dispatched"] == "7"
        assert "members" not in stats  # a note of all entries would make each shard look lost


def test_nothing_is_left_under_the_earlier_prefixes(
    run: Run, redis_client: Any, filled: Any
) -> None:
    del filled
    run("shard", str(SHARDS), "--delete")
    assert redis_client.keys(f"{PREFIX}*") == []
    assert redis_client.keys(f".{PREFIX}*") == [f".{PREFIX}:stats"]
    assert list(redis_client.hgetall(f".{PREFIX}:stats")) == ["layout"]
    run("shard", "1", "--delete")
    tag = Layout(PREFIX, SHARDS).prefixes[0].partition("/")[0]
    assert redis_client.keys(f"*{tag[1:]}/*") == []


def test_a_dry_run_writes_nothing(run: Run, redis_client: Any, filled: Any) -> None:
    del filled
    before = sorted(redis_client.keys())
    (found,) = run("shard", str(SHARDS), "--dry-run", "--json").json
    assert sum(place["entries"] for place in found["places"]) == 22
    assert found["dry_run"]
    assert sorted(redis_client.keys()) == before
    text = run("shard", str(SHARDS), "--dry-run")
    assert "nothing was written" in text.err
    planned = [place["entries"] for place in found["places"]]
    (done,) = run("shard", str(SHARDS), "--json").json
    assert [place["entries"] for place in done["places"]] == planned


def interrupt(run: Run) -> None:
    """Run the command, which ends with an error when it has copied some entries."""
    execute, calls = Pipeline.execute, itertools.count(1)

    def failing(*args: Any, **options: Any) -> Any:
        return 1 / 0 if next(calls) == 12 else execute(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redbeat.management.prefixes.PAGE", 5)
        patch.setattr(Pipeline, "execute", failing)
        with pytest.raises(ZeroDivisionError):
            run("shard", str(SHARDS))


def test_an_interrupted_copy_is_completed(run: Run, app: Celery, filled: Any) -> None:
    """Beats refuse to run until the copy is complete or undone."""
    interrupt(run)
    a_beat_refuses(app, "interrupted")
    refused = run("shard", "7")
    assert refused.code == Exit.CONFLICT
    assert "interrupted" in refused.err
    ran = run("shard", str(SHARDS), "--json")
    assert ran.json[0]["same"] + ran.json[0]["copied"] == 22
    assert ran.json[0]["same"] > 0
    assert ran.json[0]["copied"] > 0
    assert content(use(app, SHARDS)) == filled


def test_an_interrupted_copy_is_undone(run: Run, app: Celery, filled: Any) -> None:
    interrupt(run)
    (found,) = run("shard", "1", "--delete", "--json").json
    assert 0 < found["deleted"] < 22
    assert found["earlier"] == []
    assert content(Schedule(app)) == filled
    RecordingScheduler(app).close()
    assert len(use(app, SHARDS)) == 0


def test_entries_of_an_earlier_layout_never_come_back(run: Run, app: Celery, filled: Any) -> None:
    """A stale copy would undo deletions, and repeat runs."""
    del filled
    assert run("shard", str(SHARDS)).code == 0
    use(app, SHARDS)["ran-0"].delete()
    refused = run("shard", "1")
    assert refused.code == Exit.CONFLICT
    assert f"shard {SHARDS} --delete" in refused.err
    (found,) = run("shard", str(SHARDS), "--delete", "--json").json
    assert found["deleted"] == 22
    assert run("shard", "1").code == 0
    schedule = use(app, 1)
    assert len(schedule) == 21
    assert "ran-0" not in schedule


def test_the_command_refuses_while_a_beat_runs(run: Run, app: Celery, redis_client: Any) -> None:
    redis_client.set(f"{PREFIX}:lock", new_token())
    refused = run("shard", str(SHARDS))
    assert refused.code == Exit.CONFLICT
    assert "A beat runs" in refused.err
    assert run("shard", str(SHARDS), "--force").code == 0
    use(app, SHARDS)
    redis_client.set(f"{Layout(PREFIX, SHARDS).prefixes[2]}:lock", new_token())
    assert run("shard", "1").code == Exit.CONFLICT


def test_an_unreadable_entry_stops_the_change(run: Run, app: Celery, redis_client: Any) -> None:
    redis_client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}ghost": 5})
    refused = run("shard", str(SHARDS))
    assert refused.code == Exit.CONFLICT
    assert "1 unreadable" in refused.err
    assert run("shard", str(SHARDS), "--force").code == 0
    RedBeatSchedulerEntry("a", "t", 5, app=use(app, SHARDS).app).save()


@pytest.mark.parametrize(("stored", "used"), [(SHARDS, 1), (SHARDS, 2), (1, SHARDS)])
def test_a_beat_with_another_number_refuses(
    run: Run, app: Celery, make: Make, stored: int, used: int
) -> None:
    make("a")
    if stored > 1:
        assert run("shard", str(stored), "--delete").code == 0
    use(app, used)
    a_beat_refuses(app, f"redbeat_shards is {used}")
    findings = [finding["kind"] for finding in run("doctor", "--json").json]
    assert "shards" in findings


def test_a_new_schedule_can_begin_with_shards(run: Run, app: Celery) -> None:
    """No command is needed; the number is stored by the first beat."""
    RecordingScheduler(use(app, SHARDS).app).close()
    use(app, 1)
    a_beat_refuses(app, "redbeat_shards is 1")
    (found,) = run("shard", str(SHARDS), "--json").json
    assert (found["shards"], found["earlier"]) == (SHARDS, [])


def test_the_prefix_of_shards_is_not_migrated(run: Run, make: Make) -> None:
    make("a")
    run("shard", str(SHARDS))
    refused = run("migrate-prefix", PREFIX, "{new}:")
    assert refused.code == Exit.CONFLICT
    assert "shard 1" in refused.err


def test_the_status_has_a_line_per_shard(run: Run, app: Celery, make: Make) -> None:
    make("a")
    run("shard", str(SHARDS), "--delete")
    use(app, SHARDS)
    out = run("status").out
    for prefix in Layout(PREFIX, SHARDS).prefixes:
        assert prefix in out
    assert out.count("no beat") >= SHARDS
