"""Settings in the style of Django projects: upper case, with a namespace."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from tests.deployments import PREFIX

from .conftest import World


def app_with(world: World, namespace: str, **settings: Any) -> Celery:
    """Return an app that reads ``settings`` with a namespace."""
    app = Celery("django", broker="memory://", set_as_current=False)
    url = {"REDBEAT_REDIS_URL": world.app.conf.redbeat_redis_url}
    named = {f"{namespace}_{name}": value for name, value in {**url, **settings}.items()}
    app.config_from_object(named, namespace=namespace)
    return app


@pytest.mark.parametrize("namespace", ["CELERY", "MYPROJECT"])
@pytest.mark.standalone
def test_every_setting_is_heard(world: World, namespace: str) -> None:
    app = app_with(
        world,
        namespace,
        REDBEAT_KEY_PREFIX="dj:",
        REDBEAT_LOCK_KEY="mine",
        REDBEAT_LOCK_TIMEOUT=77,
        REDBEAT_KEY_EXPIRY_CHECK="ignore",
        BEAT_SCHEDULE={"a": {"task": "t", "schedule": 3600}},
    )
    scheduler = world.scheduler(app=app)
    scheduler.tick()
    assert world.client.smembers("dj::statics") >= {"a"}
    assert 70_000 < world.client.pttl("dj:mine") <= 77_000
    assert scheduler.lock_timeout == 77


@pytest.mark.standalone
def test_no_lock(world: World) -> None:
    scheduler = world.scheduler(app=app_with(world, "CELERY", REDBEAT_LOCK_KEY=None))
    scheduler.tick()
    assert scheduler.lock is None
    assert scheduler.lock_key is None
    assert not world.client.exists(f"{PREFIX}:lock")


@pytest.mark.standalone
def test_options_count_as_set(world: World) -> None:
    options = {"retry_period": 5}
    app = app_with(world, "CELERY", REDBEAT_REDIS_OPTIONS=options)
    scheduler = world.scheduler(app=app)
    scheduler.tick()
    assert app.redbeat_conf.is_key_in_conf("redbeat_redis_options")
    assert app.redbeat_redis.retry_period == 5
