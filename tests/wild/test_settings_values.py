"""Tests of setting values that 2.4.2 accepts, including unreasonable ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wild.programs import Run, Wild

STATIC = """
app.conf.beat_schedule = {"static": {"task": "jobs.run", "schedule": 3600.0}}
"""

ACCEPTED: dict[str, dict[str, Any]] = {
    "no lock": {"redbeat_lock_key": None},
    "no lock either": {"redbeat_lock_key": ""},
    "half a second": {"redbeat_lock_timeout": 0.5},
    "two and a half": {"redbeat_lock_timeout": 2.5},
    "no time": {"redbeat_lock_timeout": 0},
    "a lock outside the prefix": {"redbeat_lock_key": "mine"},
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_beat_starts_and_sends(wild: Wild, run: Run, what: str) -> None:
    wild.overdue("static")
    with run(wild.program(STATIC, **ACCEPTED[what])) as running:
        running.until(wild.messages)


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_lock_key_there_is_no_lock(wild: Wild, run: Run, key: str | None) -> None:
    program = wild.program(redbeat_lock_key=key)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        assert wild.client.keys("redbeat:*lock*") == []


def test_a_lock_key_gets_the_prefix(wild: Wild, run: Run) -> None:
    with run(wild.program(redbeat_lock_key="mine")) as running:
        running.until(lambda: wild.client.exists("redbeat:mine"))


def test_of_several_urls_the_first_is_used(wild: Wild, run: Run) -> None:
    urls = f"{wild.url};redis://127.0.0.1:1/0"
    program = wild.program(redbeat_redis_url=urls)
    program.module.save("job")
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))


def test_an_empty_prefix(wild: Wild, run: Run) -> None:
    program = wild.program(STATIC, redbeat_key_prefix="")
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.runs("job", prefix="") >= 2)
        assert set(wild.client.keys("*")) >= {"job", "static", ":schedule", ":statics", ":lock"}


@pytest.mark.parametrize("prefix", ["app:", "app", "{app}:", "a b/"])
def test_a_prefix_is_used_as_it_is(wild: Wild, prefix: str) -> None:
    program = wild.program(STATIC, redbeat_key_prefix=prefix)
    assert program.module.save("job").key == f"{prefix}job"
    with wild.object(program) as running:
        running.until(lambda: wild.runs("job", prefix))
        assert wild.client.exists(f"{prefix}:schedule", f"{prefix}:statics", f"{prefix}:lock") == 3


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"redbeat_lock_timeout": 0, "beat_max_loop_interval": 0}, 1500),
        ({"redbeat_lock_timeout": None, "beat_max_loop_interval": 0}, 1500),
        ({"redbeat_lock_timeout": 0, "beat_max_loop_interval": 60}, 300),
        ({"redbeat_lock_timeout": None, "beat_max_loop_interval": 60}, 300),
        ({"redbeat_lock_timeout": 0.5}, 0.5),
        ({"redbeat_lock_timeout": 90}, 90),
    ],
)
def test_the_time_to_live_of_the_lock(wild: Wild, settings: dict[str, Any], seconds: float) -> None:
    module = wild.program(**settings).module
    assert module.RedBeatScheduler(app=module.app).lock_timeout == seconds


def test_arguments_of_the_scheduler_beat_the_settings(wild: Wild) -> None:
    module = wild.program().module
    scheduler = module.RedBeatScheduler(app=module.app, lock_key="redbeat:other", lock_timeout=7)
    assert (scheduler.lock_key, scheduler.lock_timeout) == ("redbeat:other", 7)


DJANGO = """
class Settings:
    CELERY_REDBEAT_REDIS_URL = URL
    CELERY_REDBEAT_KEY_PREFIX = "site:"
    CELERY_BROKER_URL = app.conf.broker_url
    CELERY_BEAT_MAX_LOOP_INTERVAL = 0.25
    CELERY_RESULT_EXPIRES = None


app = Celery(app.main, broker=app.conf.broker_url)
app.config_from_object(Settings, namespace="CELERY")
"""


def test_settings_with_a_namespace(wild: Wild, run: Run) -> None:
    program = wild.program(DJANGO)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: wild.runs("job", prefix="site:"))
