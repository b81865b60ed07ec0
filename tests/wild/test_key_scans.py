"""Tests of programs that read the Redis keys: admin pages, clean-up scripts, other services."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.wild.programs import Run, Running, Wild

STATIC = """
app.conf.beat_schedule = {"static": {"task": "jobs.run", "schedule": 0.5}}


def start():
    save("job")
    save("other", 3600)
    # A run at an instant that has passed, and no other one.
    from datetime import datetime, timezone
    from redbeat.schedules import rrule
    save("once", rrule("DAILY", dtstart=datetime(2024, 1, 1, tzinfo=timezone.utc), count=1))
"""
ENTRIES = {"redbeat:job", "redbeat:other", "redbeat:once", "redbeat:static"}
OTHERS = {"redbeat::schedule", "redbeat::statics", "redbeat::lock"}


def run_all_entries(wild: Wild, running: Running) -> None:
    """Wait until all entries of the program ran, and the frequent ones twice."""
    running.until(lambda: wild.runs("job") >= 2 and wild.runs("static") >= 2)
    running.until(lambda: wild.runs("other") and wild.runs("once"))


def test_a_scan_finds_the_same_keys_as_with_redbeat_2(wild: Wild, run: Run) -> None:
    program = wild.program(STATIC)
    program.module.start()
    with run(program) as running:
        run_all_entries(wild, running)
        assert set(wild.client.scan_iter("redbeat:*")) == ENTRIES | OTHERS
    assert set(wild.client.scan_iter("redbeat:*")) == ENTRIES | OTHERS - {"redbeat::lock"}


ADMIN = (
    STATIC
    + """
from redbeat.schedulers import RedBeatJSONDecoder, get_redis


def definitions():
    client, found = get_redis(app), {}
    for key in client.scan_iter("redbeat:*"):
        try:
            found[key] = json.loads(client.hget(key, "definition"))
        except redis.exceptions.ResponseError:
            pass  # the schedule, the set of static entries, the lock
    return found


def entries():
    client = get_redis(app)
    skipped = {"redbeat::lock", "redbeat::schedule", "redbeat::statics"}
    return [
        RedBeatSchedulerEntry.from_key(key, app=app)
        for key in client.scan_iter("redbeat:*")
        if key not in skipped
    ]


def fields():
    client, found = get_redis(app), []
    for key in client.scan_iter("redbeat:*"):
        if client.type(key) == "hash":
            found += [json.loads(value) for value in client.hgetall(key).values()]
    return found


def listed():
    client = get_redis(app)
    keys = client.zrange(app.redbeat_conf.schedule_key, 0, -1)
    return [RedBeatSchedulerEntry.from_key(key, app=app) for key in keys]


def decoded():
    client = get_redis(app)
    text = client.hget(app.redbeat_conf.key_prefix + "job", "definition")
    return json.loads(text, cls=RedBeatJSONDecoder)
"""
)


def test_an_admin_page_reads_while_a_beat_works(wild: Wild, run: Run) -> None:
    program = wild.program(ADMIN)
    module = program.module
    module.start()
    with run(program) as running:
        run_all_entries(wild, running)
        assert set(module.definitions()) == ENTRIES
        assert {entry.key for entry in module.entries()} == ENTRIES
        assert len(module.fields()) >= 2 * len(ENTRIES)
        assert {entry.name for entry in module.listed()} >= {"job", "other", "static"}
        assert module.decoded()["schedule"].run_every.total_seconds() == 0.5


def test_only_a_response_error_is_expected_of_other_keys(wild: Wild, run: Run) -> None:
    program = wild.program(ADMIN)
    program.module.start()
    with run(program) as running:
        run_all_entries(wild, running)
        for key in OTHERS:
            with pytest.raises(ResponseError):
                wild.client.hget(key, "definition")


#: A monitor that reads the next run of each entry.
MONITOR = """
from redbeat.decoder import from_timestamp
from redbeat.schedulers import get_redis


def upcoming():
    rows = get_redis(app).zrange(app.redbeat_conf.schedule_key, 0, -1, withscores=True)
    return {key: from_timestamp(score) for key, score in rows}
"""


def test_a_monitor_reads_the_scores(wild: Wild, run: Run) -> None:
    program = wild.program(MONITOR)
    module = program.module
    module.save("job", 3600)
    with run(program) as running:
        running.until(lambda: wild.runs("job"))
    entry = module.RedBeatSchedulerEntry.from_key("redbeat:job", app=program.app)
    shown = module.upcoming()["redbeat:job"]
    assert abs((shown - entry.due_at).total_seconds()) <= 1


#: The test deletes only the entry's hash, like a clean-up script that deletes keys by name.
def test_an_entry_that_another_program_deletes_stays_deleted(wild: Wild, run: Run) -> None:
    program = wild.program()
    program.module.save("job")
    program.module.save("pacer", args=["pacer"])
    with run(program) as running:
        running.until(lambda: wild.runs("job"))
        wild.client.delete("redbeat:job")
        running.until(lambda: wild.score("job") is None)
        seen = len(wild.messages())
        running.until(lambda: len(wild.messages()) >= seen + 2)
        assert not wild.client.exists("redbeat:job")
        assert all(one.args == ["pacer"] for one in wild.messages()[seen + 1 :])


def test_fields_and_keys_of_another_program_stay(wild: Wild, run: Run) -> None:
    program = wild.program()
    program.module.save("job")
    wild.client.hset("redbeat:job", "owner", '"billing"')
    wild.client.set("redbeat:cache", "of another program")
    with run(program) as running:
        running.until(lambda: wild.runs("job") >= 2)
        program.module.save("job", args=["changed"])
        running.until(lambda: wild.messages()[-1].args == ["changed"])
    assert wild.client.hget("redbeat:job", "owner") == '"billing"'
    assert wild.client.get("redbeat:cache") == "of another program"


def raw(**more: Any) -> str:
    """Return a definition as another program writes it, without optional fields."""
    interval = {"__type__": "interval", "every": 0.5, "relative": False}
    return json.dumps({"name": "job", "task": "jobs.run", "schedule": interval, **more})


def test_an_entry_that_another_program_writes_runs(wild: Wild, run: Run) -> None:
    with run(wild.program()) as running:
        running.until(lambda: wild.client.exists("redbeat::lock"))
        wild.client.hset("redbeat:job", "definition", raw(args=["raw"]))
        wild.client.zadd("redbeat::schedule", {"redbeat:job": 0})
        running.until(lambda: len(wild.messages()) >= 2)
    assert wild.messages()[0].args == ["raw"]


#: The ACL of this Redis user allows only keys with the prefix.
def test_a_redis_user_who_knows_only_the_prefix(wild: Wild, run: Run) -> None:
    rules = ("on", ">secret", "~redbeat:*", "&*", "+@all", "-@dangerous", "+info", "+client")
    wild.client.execute_command("ACL", "SETUSER", "scheduler", "reset", *rules)
    url = wild.url.replace("redis://", "redis://scheduler:secret@")
    program = wild.program(STATIC, redbeat_redis_url=url)
    program.module.start()
    with run(program) as running:
        run_all_entries(wild, running)
