"""Tests as projects write them: schedulers without a constructor, and mocks as app or settings."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import MagicMock, Mock, PropertyMock

import pytest
from celery.schedules import schedule

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.schedulers import (
    RedBeatConfig,
    acquire_distributed_beat_lock,
    ensure_conf,
    get_redis,
)
from tests.wild.programs import Wild

JOB = {"task": "jobs.run", "schedule": 60}

pytestmark = pytest.mark.parametrize("kind", [Mock, MagicMock])


def mocked_app(wild: Wild, kind: type[Mock], **settings: Any) -> Any:
    """Return a mock as app, with what such tests set: the keys and a client."""
    app = kind()
    app.now.return_value = datetime.now(timezone.utc)
    app.timezone, app.conf.result_expires = timezone.utc, None
    app.redbeat_redis = wild.client
    configure(app.redbeat_conf, **settings)
    return app


def configure(conf: Any, **settings: Any) -> Any:
    keys = {"key_prefix": "redbeat:", "lock_key": "redbeat::lock"}
    keys |= {"schedule_key": "redbeat::schedule", "statics_key": "redbeat::statics"}
    others: dict[str, Any] = {"schedule": {}, "lock_timeout": None, "redbeat_redis_options": {}}
    for name, value in {**keys, **others, **settings}.items():
        setattr(conf, name, value)
    return conf


def bare(app: Any, cls: type[RedBeatScheduler] = RedBeatScheduler, **more: Any) -> Any:
    scheduler = object.__new__(cls)
    scheduler.app = app
    scheduler.__dict__.update(more)
    return scheduler


def bare_entry(app: Any, **more: Any) -> Any:
    entry = object.__new__(RedBeatSchedulerEntry)
    given = {"name": "job", "task": "jobs.run", "schedule": schedule(60), "enabled": True}
    entry.__dict__.update(app=app, **{**given, **more})
    return entry


def test_update_from_dict(wild: Wild, kind: type[Mock]) -> None:
    bare(mocked_app(wild, kind)).update_from_dict({"job": JOB})
    assert wild.definition("job")["schedule"]["every"] == 60


def test_setup_schedule(wild: Wild, kind: type[Mock]) -> None:
    bare(mocked_app(wild, kind, schedule={"job": JOB})).setup_schedule()
    assert wild.client.smembers("redbeat::statics") == {"job"}
    assert wild.definition("job")["task"] == "jobs.run"


def test_the_constructor(wild: Wild, kind: type[Mock]) -> None:
    app = mocked_app(wild, kind, schedule={"job": JOB})
    app.conf.beat_max_loop_interval = 5
    scheduler = RedBeatScheduler(app=app)
    assert (scheduler.lock_key, scheduler.lock_timeout) == ("redbeat::lock", 25)
    assert list(scheduler.schedule) in (["job"], [])
    app.redbeat_conf.lock_timeout = 77
    scheduler = RedBeatScheduler(app=app, lock_key="mine", lazy=True)
    assert (scheduler.lock_key, scheduler.lock_timeout) == ("mine", 77)


def test_a_tick_with_patched_entries(kind: type[Mock]) -> None:
    entry = kind()
    patched = mock.patch.multiple(
        RedBeatScheduler, schedule={"job": entry}, maybe_due=mock.Mock(return_value=3)
    )
    given: dict[str, Any] = {
        "lock": kind(),
        "lock_key": "lock",
        "lock_timeout": 5,
        "max_interval": 5,
    }
    with patched:
        assert bare(kind(), Producer=kind(), **given).tick() == 3
        assert RedBeatScheduler.maybe_due.call_args.args == (entry,)  # type: ignore[attr-defined]


def test_a_real_app_with_mocked_settings(wild: Wild, kind: type[Mock]) -> None:
    program = wild.program()
    conf = configure(kind(), schedule={"job": JOB}, redis_url=wild.url)
    with mock.patch.object(program.app, "redbeat_conf", conf, create=True):
        program.app.redbeat_redis = wild.client
        scheduler = RedBeatScheduler(program.app, max_interval=30)
        scheduler.lock = Mock()
        scheduler.tick()
        assert scheduler.lock.extend.called
        assert "redbeat::lock" in scheduler.info
    assert wild.client.zrange("redbeat::schedule", 0, -1) == ["redbeat:job"]


def test_the_schedule_and_a_tick(wild: Wild, kind: type[Mock]) -> None:
    wild.program().module.save("job")
    scheduler = bare(mocked_app(wild, kind), lock_key=None, max_interval=300)
    scheduler.apply_async = Mock(side_effect=lambda entry, **_: next(entry))
    assert list(scheduler.schedule) == ["job"]
    scheduler.producer = None
    assert scheduler.tick() <= 60
    assert scheduler.apply_async.called
    scheduler.close()


@pytest.mark.parametrize(("due", "calls"), [(True, 1), (False, 0)])
def test_maybe_due(wild: Wild, kind: type[Mock], due: bool, calls: int) -> None:
    scheduler = bare(mocked_app(wild, kind))
    for entry in (kind(), Mock(spec=RedBeatSchedulerEntry)):
        entry.name, entry.task, entry.is_due.return_value = "job", "jobs.run", (due, 7)
        scheduler.apply_async = Mock(side_effect=OSError)  # only logged
        assert scheduler.maybe_due(entry, producer=None) == 7
        assert scheduler.apply_async.mock_calls == [mock.call(entry, producer=None)] * calls


@pytest.mark.parametrize("lock", [None, Mock()])
def test_a_tick_with_nothing_but_mocks(kind: type[Mock], lock: Any) -> None:
    entry = Mock(spec=RedBeatSchedulerEntry)
    entry.name, entry.task, entry.is_due.return_value = "job", "jobs.run", (True, 7)
    entries = PropertyMock(return_value={"job": entry})
    scheduler = bare(kind(), lock_key=lock and "key", lock=lock, lock_timeout=10, max_interval=300)
    scheduler.producer = None
    with (
        mock.patch.object(RedBeatScheduler, "schedule", new_callable=lambda: entries),
        mock.patch.object(RedBeatScheduler, "apply_async") as apply_async,
    ):
        assert scheduler.tick() == 7
    apply_async.assert_called_once_with(entry, producer=None)
    if lock:
        lock.extend.assert_called_with(10)


def test_a_patched_get_redis(wild: Wild, kind: type[Mock]) -> None:
    with mock.patch("redbeat.schedulers.get_redis") as patched:
        pipe = patched.return_value.pipeline.return_value.__enter__.return_value
        pipe.execute.return_value = ([], [])
        scheduler = bare(mocked_app(wild, kind), lock_key=None, max_interval=300)
        scheduler.producer = None
        assert scheduler.schedule == {}
        assert scheduler.tick() == 300
        pipe.execute.return_value = (None, None)
        scheduler.update_from_dict({"job": JOB})
    assert patched.called


def test_a_patched_ensure_conf(wild: Wild, kind: type[Mock]) -> None:
    app = mocked_app(wild, kind, schedule={"job": JOB})
    app.conf.beat_max_loop_interval = 5
    with (
        mock.patch("redbeat.schedulers.ensure_conf") as patched,
        mock.patch("redbeat.schedulers.get_redis", return_value=wild.client),
    ):
        scheduler: Any = RedBeatScheduler(app=app, lock_key="mine")
        scheduler.lock, scheduler.producer = Mock(), None
        assert scheduler.tick() == 5
        assert "mine" in scheduler.info
        scheduler.close()
    assert mock.call(app) in patched.mock_calls


def test_sending(wild: Wild, kind: type[Mock]) -> None:
    app = mocked_app(wild, kind)
    app.tasks = {}
    scheduler = bare(app)
    entry = Mock(spec=RedBeatSchedulerEntry)
    entry.task, entry.args, entry.kwargs, entry.options = "jobs.run", [1], {}, {"queue": "fast"}
    scheduler.apply_async(entry, producer=None, advance=False)
    (name, args, kwargs), options = app.send_task.call_args
    assert (name, args, kwargs, options["queue"]) == ("jobs.run", [1], {}, "fast")
    stored = RedBeatSchedulerEntry("job", "jobs.run", schedule(60), app=app).save()
    scheduler.apply_async(stored, producer=None)
    assert app.send_task.call_count == 2
    assert wild.runs("job") == 1


def test_the_lock(wild: Wild, kind: type[Mock]) -> None:
    more: dict[str, Any] = {"lock_key": "redbeat::lock", "lock_timeout": 10, "max_interval": 5}
    scheduler = bare(mocked_app(wild, kind), **more)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    assert 0 < wild.client.ttl("redbeat::lock") <= 10
    scheduler.close()
    assert not wild.client.exists("redbeat::lock")
    mocked = scheduler.lock = Mock()
    scheduler.close()
    mocked.release.assert_called_once_with()


def test_settings_that_are_not_set(wild: Wild, kind: type[Mock]) -> None:
    assert str(RedBeatConfig(MagicMock()).key_prefix)
    app = kind()
    app.redbeat_conf.key_prefix = "mine:"
    assert RedBeatSchedulerEntry.generate_key(app, "job") == "mine:job"
    assert ensure_conf(app).key_prefix == "mine:"
    assert "redis ->" in bare(app, lock_key=None).info
    app.redbeat_redis = wild.client
    app.redbeat_conf.redbeat_redis_options = {}
    assert get_redis(app) is wild.client


@pytest.mark.parametrize("method", ["constructor", "bare"])
def test_an_entry(wild: Wild, kind: type[Mock], method: str) -> None:
    app = mocked_app(wild, kind)
    entry: Any = bare_entry(app)
    if method == "constructor":
        entry = RedBeatSchedulerEntry("job", "jobs.run", schedule(60), app=app)
    assert entry.save() is entry
    assert (entry.key, entry.rank, entry.enabled) == ("redbeat:job", 0, True)
    assert RedBeatSchedulerEntry.from_key("redbeat:job", app=app).task == "jobs.run"
    assert RedBeatSchedulerEntry.load_definition("redbeat:job", app=app)["name"] == "job"
    assert next(entry).total_run_count == 1
    entry.reschedule()
    assert 50 < entry.is_due()[1] <= 60
    entry.delete()
    assert not wild.client.exists("redbeat:job")


def test_an_entry_without_an_app_decides(kind: type[Mock]) -> None:
    made = kind()
    made.is_due.return_value = (True, 3)
    made.now.return_value = datetime.now(timezone.utc)
    entry = bare_entry(kind(), schedule=made, last_run_at=datetime.now(timezone.utc))
    is_due, wait = entry.is_due()
    assert is_due
    assert 0 < wait <= 3
    entry = bare_entry(None)
    del entry.app
    entry.last_run_at = None
    assert entry.is_due()[0]
