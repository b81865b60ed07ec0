"""Tests of web programs that pass the proxy `celery.current_app` as the app."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.wild.programs import Run, Wild

#: A Flask-style factory that creates a site and makes its Celery app the default app.
FLASK = """
from celery import current_app


class Site:
    def __init__(self):
        self.routes = {}

    def route(self, path):
        return lambda view: self.routes.setdefault(path, view)

    def __call__(self, environ, start_response):
        body = self.routes[environ["PATH_INFO"]]()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body.encode()]


def create_site():
    site = Site()
    app.set_default()

    @site.route("/remind")
    def remind():
        entry = RedBeatSchedulerEntry("reminder", "jobs.run", 0.5, args=["tea"], app=current_app)
        entry.save()
        return entry.key

    return site


def handle():
    return b"".join(create_site()({"PATH_INFO": "/remind"}, lambda *_: None)).decode()
"""

#: A FastAPI-style route: a coroutine with a parsed request body.
FASTAPI = """
import asyncio

from celery import current_app

app.set_default()


async def put_reminder(body):
    entry = RedBeatSchedulerEntry(
        name="reminder", task="jobs.run", schedule=body["every"], args=["tea"], app=current_app
    )
    await asyncio.to_thread(entry.save)
    return {"key": entry.key}


def handle():
    return asyncio.run(put_reminder({"every": 0.5}))["key"]
"""

#: A Django-style model that saves an entry whenever the model is saved.
DJANGO = """
from celery import current_app
from celery.schedules import schedule


class Reminder:
    def __init__(self, title, text):
        self.title, self.text = title, text

    def save(self):
        try:
            entry = RedBeatSchedulerEntry.from_key(f"redbeat:{self.title}", app=current_app)
        except KeyError:
            entry = RedBeatSchedulerEntry(
                self.title, "jobs.run", schedule(run_every=0.5), app=current_app
            )
        entry.args = [self.text]
        entry.save()
        return entry


def handle():
    Reminder("reminder", "coffee").save()
    return Reminder("reminder", "tea").save().key
"""

WEB = {"flask": FLASK, "fastapi": FASTAPI, "django": DJANGO}


@pytest.mark.parametrize("web", WEB)
def test_an_entry_that_a_request_saves_runs(wild: Wild, run: Run, web: str) -> None:
    program = wild.program(WEB[web])
    assert program.module.handle() == "redbeat:reminder"
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].args == ["tea"]


def test_a_request_in_another_thread(wild: Wild) -> None:
    program = wild.program(FLASK)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(program.module.handle).result() == "redbeat:reminder"
    assert wild.definition("reminder")["args"] == ["tea"]


def test_a_route_in_a_running_event_loop(wild: Wild) -> None:
    put: Any = wild.program(FASTAPI).module.put_reminder
    assert asyncio.run(put({"every": 60})) == {"key": "redbeat:reminder"}


PROXY = """
from celery import current_app
from redbeat.schedulers import RedBeatConfig, ensure_conf, get_redis
"""


def test_everything_that_takes_an_app_takes_the_proxy(wild: Wild) -> None:
    module = wild.program(PROXY).module
    proxy, kind = module.current_app, module.RedBeatSchedulerEntry
    assert module.ensure_conf(proxy).key_prefix == "redbeat:"
    assert module.RedBeatConfig(proxy).schedule_key == "redbeat::schedule"
    assert module.get_redis(proxy).ping()
    key = kind("job", "jobs.run", 60, app=proxy).save().key
    assert kind.generate_key(proxy, "job") == key
    assert kind.load_definition(key, app=proxy)["task"] == "jobs.run"
    assert set(kind.load_meta(key, app=proxy)) == {"last_run_at"}
    entry = kind.from_key(key, app=proxy)
    assert (entry.rank, entry.score) == (0, wild.score("job"))
    entry.reschedule()
    kind(name="job", app=proxy).delete()
    assert wild.client.keys("redbeat:*") == []


def test_an_entry_is_read_without_an_app(wild: Wild) -> None:
    module = wild.program(PROXY).module
    module.save("job", args=[3])
    assert module.RedBeatSchedulerEntry.from_key("redbeat:job").args == [3]


def test_a_scheduler_takes_the_proxy(wild: Wild) -> None:
    module = wild.program(PROXY).module
    scheduler = module.RedBeatScheduler(app=module.current_app, lock_key=None)
    scheduler.update_from_dict({"job": {"task": "jobs.run", "schedule": 60.0}})
    scheduler.close()
    assert wild.definition("job")["task"] == "jobs.run"


IN_A_BEAT = """
from celery import current_app


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        super().setup_schedule()
        RedBeatSchedulerEntry("job", "jobs.run", 0.5, app=current_app).save()
"""


def test_a_beat_that_saves_with_the_proxy(wild: Wild, run: Run) -> None:
    with run(wild.program(IN_A_BEAT)) as running:
        running.until(wild.messages)
