"""An edit keeps the history of an entry, and takes effect at once."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.history import encode_meta
from tests.deployments import PREFIX
from tests.entry.conftest import SCHEDULE, ScoreOf, Stored

UTC = timezone.utc
KEY = f"{PREFIX}a"


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def entry(app: Celery, every: Any = 3600, **fields: Any) -> Entry:
    return Entry("a", "t.a", every, app=app, **fields)


def load(app: Celery) -> Entry:
    return Entry.from_key(KEY, app=app)


def ran(client: redis.Redis, last_run_at: datetime, count: int = 1) -> None:
    """Record a run, like another process, without the entry object."""
    client.hset(KEY, "meta", encode_meta(last_run_at, count))


def now_of(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6


# -- upserts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [4_000_000_000, -1, 0, None])
def test_saving_an_equal_entry_keeps_the_history_and_corrects_the_score(
    app: Celery, redis_client: redis.Redis, score_of: ScoreOf, wrong: float | None
) -> None:
    last = ago(minutes=45)
    entry(app, last_run_at=last, total_run_count=7).save()
    if wrong is None:
        redis_client.zrem(SCHEDULE, KEY)
    else:
        redis_client.zadd(SCHEDULE, {KEY: wrong})
    saved = entry(app).save()
    assert (saved.last_run_at, saved.total_run_count) == (last, 7)
    assert score_of("a") == pytest.approx(last.timestamp() + 3600, abs=1e-5)
    ran(redis_client, ago(minutes=1), 8)
    saved.args = [1]
    assert (saved.save().total_run_count, load(app).args) == (8, [1])


def test_from_daily_to_every_10_seconds_is_due_at_once(
    app: Celery, redis_client: redis.Redis, score_of: ScoreOf
) -> None:
    entry(app, 86400, last_run_at=ago(hours=1)).save()
    before = now_of(redis_client)
    entry(app, 10).save()
    assert before <= score_of("a") <= now_of(redis_client)


def test_from_every_10_seconds_to_daily_waits(app: Celery, score_of: ScoreOf) -> None:
    last = ago(hours=1)
    entry(app, 10, last_run_at=last).save()
    found = load(app)
    found.schedule = schedule(86400)
    found.save()
    assert score_of("a") == pytest.approx(last.timestamp() + 86400, abs=1e-5)


def test_a_history_that_is_set_replaces_the_stored_one(app: Celery, stored: Stored) -> None:
    entry(app, last_run_at=ago(days=1), total_run_count=3).save()
    last = ago(minutes=5)
    saved = entry(app, last_run_at=last).save()
    assert (saved.last_run_at, saved.total_run_count) == (last, 3)
    entry(app, total_run_count=9).save()
    assert (load(app).last_run_at, load(app).total_run_count) == (last, 9)
    assert json.loads(stored("a")["meta"])["total_run_count"] == 9


def test_saving_an_entry_that_never_ran_adds_no_history(
    app: Celery, redis_client: redis.Redis
) -> None:
    entry(app).save()
    redis_client.hset(KEY, "meta", '{"last_run_at": null}')
    assert entry(app, 60).save().last_run_at is None


def test_saving_again_changes_nothing(app: Celery, stored: Stored, score_of: ScoreOf) -> None:
    saved = entry(app, last_run_at=ago(minutes=5)).save()
    before = stored("a"), score_of("a")
    saved.save()
    load(app).save()
    assert (stored("a"), score_of("a")) == before


# -- running at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [3600, crontab(minute=0, hour=0, day_of_month=1)])
def test_no_last_run_means_run_it_now(
    app: Celery, redis_client: redis.Redis, stored: Stored, score_of: ScoreOf, every: Any
) -> None:
    entry(app, every, last_run_at=ago(seconds=1), total_run_count=4).save()
    found = load(app)
    before = now_of(redis_client)
    found.last_run_at = None
    found.save()
    assert json.loads(stored("a")["meta"]) == {"last_run_at": None, "total_run_count": 4}
    assert before <= score_of("a") <= now_of(redis_client)
    assert found.is_due().is_due is True
    assert load(app).total_run_count == 4


def test_a_new_object_may_reset_the_last_run_too(app: Celery, stored: Stored) -> None:
    entry(app).save()
    again = entry(app)
    again.last_run_at = None
    again.save()
    assert json.loads(stored("a")["meta"]) == {"last_run_at": None}


# -- concurrent changes ----------------------------------------------------------------------------


def test_a_run_between_load_and_save_is_not_rolled_back(
    app: Celery, redis_client: redis.Redis, score_of: ScoreOf
) -> None:
    entry(app, last_run_at=ago(hours=2)).save()
    found = load(app)
    last = ago(seconds=1)
    ran(redis_client, last, 8)
    found.args = [1]
    found.save()
    assert (found.last_run_at, found.total_run_count) == (last, 8)
    stored = load(app)
    assert (stored.last_run_at, stored.total_run_count, stored.args) == (last, 8, [1])
    assert score_of("a") == pytest.approx(last.timestamp() + 3600, abs=1e-5)


# -- runs outside of a beat --------------------------------------------------------------------


def test_next_records_a_run(app: Celery, stored: Stored, score_of: ScoreOf) -> None:
    last = ago(seconds=90)
    saved = entry(app, 60, last_run_at=last).save()
    after = saved.next()
    assert after.last_run_at is not None
    assert abs(after.last_run_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert (saved.total_run_count, after.total_run_count, load(app).total_run_count) == (0, 1, 1)
    assert load(app).last_run_at == after.last_run_at
    # The next run counts from the time at which this run was due, not from the actual run.
    assert score_of("a") == pytest.approx(last.timestamp() + 120, abs=1e-5)
    assert set(stored("a")) == {"definition", "meta"}
    assert load(app).due_at == after.due_at


def test_next_instance_accepts_the_time_of_the_run(app: Celery, score_of: ScoreOf) -> None:
    when = ago(seconds=10)
    after = entry(app).save()._next_instance(when)  # noqa: SLF001 - as in RedBeat 2
    assert (after.last_run_at, after.total_run_count) == (when, 1)
    assert score_of("a") == pytest.approx(when.timestamp() + 3600, abs=1e-5)


def test_next_instance_can_leave_the_count_unchanged(app: Celery) -> None:
    after = entry(app).save()._next_instance(only_update_last_run_at=True)  # noqa: SLF001
    assert (after.total_run_count, load(app).total_run_count) == (0, 0)


def test_the_iterator_protocol_gives_the_next_instance(app: Celery) -> None:
    assert next(entry(app).save()).total_run_count == 1


def test_reschedule_counts_from_now(app: Celery, score_of: ScoreOf) -> None:
    saved = entry(app, last_run_at=ago(days=1), total_run_count=4).save()
    saved.reschedule()
    assert saved.due_at is not None
    assert score_of("a") == pytest.approx(saved.due_at.timestamp(), abs=1e-5)
    assert saved.last_run_at is not None
    assert abs(saved.last_run_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert load(app).total_run_count == 4


@pytest.mark.parametrize("verb", ["next", "reschedule"])
def test_a_deleted_entry_does_not_come_back(
    app: Celery, redis_client: redis.Redis, verb: str
) -> None:
    saved = entry(app).save()
    entry(app).delete()
    getattr(saved, verb)()
    assert redis_client.dbsize() == 0


def test_the_second_of_two_repeated_hours_is_another_time(app: Celery) -> None:
    zone = ZoneInfo("America/New_York")
    first = datetime(2026, 11, 1, 1, 30, tzinfo=zone)
    Entry("a", "t", 60, app=app, last_run_at=first).save()
    entry = Entry.from_key(f"{PREFIX}a", app=app)
    entry.last_run_at = first
    entry.save()
    entry.last_run_at = first.replace(fold=1)
    entry.save()
    stored = Entry.from_key(f"{PREFIX}a", app=app).last_run_at
    assert stored is not None
    assert stored.timestamp() == first.timestamp() + 3600
