"""Why did it not run? The commands that the page about it names answer in each of these set-ups.

``tests/cli`` has the set-up with a queue that no worker reads, which needs a worker.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.cli.commands import run_command
from tests.docs.blocks import ROOT

PAGE = " ".join((ROOT / "docs/howto/troubleshooting.rst").read_text(encoding="utf-8").split())
INTERVAL = {"__type__": "interval", "every": 60.0, "relative": False}
SCHEDULE = "redbeat::schedule"


def written(client: Any, key: str = "redbeat:nightly", to: str = SCHEDULE, **fields: Any) -> None:
    """Write an entry as a program in another language does, with a score of 0."""
    definition = {"name": "nightly", "task": "proj.report", "schedule": INTERVAL, **fields}
    client.hset(key, "definition", json.dumps(definition))
    if to:
        client.zadd(to, {key: 0})


def paused(client: Any, app: Celery) -> None:
    written(client)
    RedBeatSchedulerEntry(name="nightly", app=app).pause("too expensive", by="ann")


def misspelt_task(client: Any, app: Celery) -> None:
    @app.task(name="proj.report", shared=False)
    def report() -> None: ...

    written(client, task="proj.reprot")


def not_json(client: Any, _: Celery) -> None:
    written(client)
    client.hset("redbeat:nightly", "definition", "{'name': 'nightly'}")


#: What is wrong, how to make it so, the command, what it says, and where the page has it.
SETUPS = (
    ("paused", paused, "show nightly", "by ann", "``paused``"),
    ("task", misspelt_task, "doctor", "did you mean 'proj.report'", "``is not registered"),
    (
        "zone",
        lambda client, _: written(client, timezone="Europe/Berlinn"),
        "show nightly",
        "unknown time zone 'Europe/Berlinn'",
        "an unknown time zone",
    ),
    (
        "type",
        lambda client, _: written(client, schedule={"__type__": "intervall", "every": 5}),
        "show nightly",
        "unknown '__type__' 'intervall'",
        "``The entry cannot be read``",
    ),
    (
        "field",
        lambda client, _: written(client, enabeld=True),
        "show nightly",
        "did you mean enabled?",
        "an unknown field",
    ),
    ("no JSON", not_json, "show nightly", "cannot be read as JSON", "no JSON"),
    (
        "no score",
        lambda client, _: written(client, to=""),
        "show nightly",
        "celery redbeat resume nightly",
        "forgot the score",
    ),
    (
        "one colon",
        lambda client, _: written(client, to="redbeat:schedule"),
        "show nightly",
        "celery redbeat resume nightly",
        "with one colon",
    ),
    ("no leader", lambda client, _: written(client), "status", "start a beat", "``no beat leads``"),
    (
        "prefix",
        lambda client, _: written(client, "rebdeat:nightly", "rebdeat::schedule"),
        "list",
        "No entries under the prefix redbeat: in redis://",
        "``No entries under the prefix``",
    ),
)


@pytest.mark.parametrize(
    ("make", "command", "answer", "on_the_page"),
    [pytest.param(*setup, id=name) for name, *setup in SETUPS],
)
def test_a_command_and_the_page_say_why_it_did_not_run(
    redis_client: redis.Redis,
    app: Celery,
    make: Any,
    command: str,
    answer: str,
    on_the_page: str,
) -> None:
    make(redis_client, app)
    ran = run_command(app, *command.split())
    assert answer in ran.out + ran.err
    assert on_the_page in PAGE
