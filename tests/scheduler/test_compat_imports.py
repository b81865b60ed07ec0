"""Names, banner and log lines are compatible with RedBeat 2."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from celery import Celery
from celery.utils.imports import symbol_by_name
from fakeredis import FakeRedis

import redbeat
from redbeat import schedulers
from redbeat.connection.urls import safe_url
from tests.deployments import PREFIX

from .conftest import World

MODULES = ("redbeat", "redbeat.schedulers", "redbeat.decoder", "redbeat.schedules")


@pytest.mark.parametrize("module", MODULES)
def test_everything_exported_exists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_a_program_that_sets_the_client_of_an_app_itself() -> None:
    """Programs for RedBeat 2 call this function with their own client."""
    app = Celery("own client", set_as_current=False)
    client = FakeRedis()
    set_client = symbol_by_name("redbeat.schedulers:_set_redbeat_connect")
    set_client(app, "redbeat_redis", client, 5)
    assert app.redbeat_redis.wrapped_connection is client


def test_the_names_of_the_package_are_listed() -> None:
    assert {*redbeat.__all__} <= {*dir(redbeat)}


def test_scheduler_by_entry_point() -> None:
    (found,) = entry_points(group="celery.beat_schedulers", name="redbeat")
    assert found.load() is redbeat.RedBeatScheduler


def test_constants_have_the_values_of_redbeat_2() -> None:
    assert schedulers.REDBEAT_REDIS_KEY == "redbeat_redis"
    assert "PEXPIRE" in schedulers.LUA_EXTEND_TO_SCRIPT
    assert schedulers.logger.name == "celery.beat"


def test_class_attributes() -> None:
    cls = redbeat.RedBeatScheduler
    assert cls.Entry is redbeat.RedBeatSchedulerEntry
    assert cls.lock is None
    assert cls.lock_timeout == 1500
    assert cls.max_interval


class TestBanner:
    def test_shows_redis_and_lock(self, world: World) -> None:
        lines = world.scheduler().info.splitlines()
        assert lines == [
            f"       . redis -> {safe_url(world.app.conf.redbeat_redis_url)}",
            f"       . lock -> `{PREFIX}:lock` 25.00 minutes (1500s)",
            "       . takeover -> 20 seconds after a leader fell silent",
            "       . longest wait -> 5 seconds",
        ]

    @pytest.mark.standalone
    def test_hides_the_password(self) -> None:
        app = Celery("secret", broker="memory://", set_as_current=False)
        app.conf.redbeat_redis_url = "redis://user:s3cr3t@localhost:1/0"
        scheduler = redbeat.RedBeatScheduler(app, lazy=True)
        assert "s3cr3t" not in scheduler.info
        assert "redis://user:**@localhost:1/0" in scheduler.info
        assert f"`{PREFIX}:lock`" in scheduler.info


class TestLockTimeout:
    def test_argument_before_setting_before_interval(self, world: World) -> None:
        assert world.scheduler().lock_timeout == 1500
        assert world.scheduler(max_interval=10).lock_timeout == 50
        world.app.conf.redbeat_lock_timeout = 70
        del world.app.redbeat_conf
        assert world.scheduler(max_interval=10).lock_timeout == 70
        assert world.scheduler(lock_timeout=90).lock_timeout == 90

    def test_lock_key_argument(self, world: World) -> None:
        scheduler = world.scheduler(lock_key=f"{PREFIX}:mine")
        scheduler.tick()
        assert world.client.exists(f"{PREFIX}:mine")


IMPORT_BESIDE_ANOTHER = """
import redbeat
from celery import Celery
from celery.beat import Service
from tests.deployments import PREFIX
from celery.signals import beat_init
assert not beat_init.receivers, beat_init.receivers
app = Celery(broker="memory://")
service = Service(app, scheduler_cls="celery.beat:Scheduler")
service.scheduler
beat_init.send(sender=service)
assert not beat_init.receivers, beat_init.receivers
"""


def test_importing_has_no_effect_on_another_scheduler() -> None:
    """#87, #276, #280: importing RedBeat connects no receiver to ``beat_init``."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_BESIDE_ANOTHER], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
