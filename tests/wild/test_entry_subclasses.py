"""Tests of programs with custom entry classes, set as `Entry` of their scheduler."""

from __future__ import annotations

import time

import pytest

from tests.wild.programs import Run, Wild

#: The entry class adds an argument and writes the definition itself. The scheduler writes the task
#: id of each sent message into the entry's hash.
LIMITED = """
from redbeat.schedulers import RedBeatJSONEncoder, get_redis


class Entry(RedBeatSchedulerEntry):
    def __init__(self, name=None, task=None, schedule=None, args=None, kwargs=None,
                 enabled=True, options=None, max_runs=-1, **clsargs):
        super().__init__(
            name=name, task=task, schedule=schedule, args=args, kwargs=kwargs,
            enabled=enabled, options=options, **clsargs
        )
        self.max_runs = max_runs

    def is_due(self):
        if 0 <= self.max_runs <= self.total_run_count:
            self.delete()
            return False, None
        return super().is_due()

    def save(self):
        fields = ("name", "task", "args", "kwargs", "options", "schedule", "enabled", "max_runs")
        definition = {field: getattr(self, field) for field in fields}
        with get_redis(self.app).pipeline() as pipe:
            pipe.hset(self.key, "definition", json.dumps(definition, cls=RedBeatJSONEncoder))
            history = {"last_run_at": self.last_run_at}
            pipe.hsetnx(self.key, "meta", json.dumps(history, cls=RedBeatJSONEncoder))
            pipe.zadd(self.app.redbeat_conf.schedule_key, {self.key: self.score})
            pipe.execute()
        return self


class Scheduler(RedBeatScheduler):
    Entry = Entry

    def maybe_due(self, entry, **kwargs):
        is_due, wait = entry.is_due()
        if is_due:
            result = self.apply_async(entry, **kwargs)
            noted = {"last_task_id": json.dumps(result.id), "state": json.dumps("sent")}
            get_redis(self.app).hset(entry.key, mapping=noted)
        return wait


def start(**more):
    return save("job", entry=Entry, **more)
"""


def test_an_attribute_max_runs_of_the_program(wild: Wild, run: Run) -> None:
    program = wild.program(LIMITED)
    program.module.start()
    assert wild.definition("job")["max_runs"] == -1
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.runs("job") >= 2)
    ids = [message.id for message in wild.messages()]
    assert wild.client.hget("redbeat:job", "state") == '"sent"'
    assert wild.client.hget("redbeat:job", "last_task_id").strip('"') in ids
    assert wild.definition("job")["max_runs"] == -1


def test_an_entry_that_deletes_itself_when_it_ran_often_enough(wild: Wild, run: Run) -> None:
    program = wild.program(LIMITED)
    program.module.start(max_runs=1)
    with run(program) as running:
        running.until(lambda: not wild.client.exists("redbeat:job"))
    assert len(wild.messages()) == 1
    assert wild.score("job") is None


def test_an_additional_argument_is_loaded_again(wild: Wild) -> None:
    module = wild.program(LIMITED).module
    module.start(max_runs=5)
    assert module.Entry.from_key("redbeat:job", app=module.app).max_runs == 5


def test_a_max_runs_of_the_program_below_zero_is_not_a_limit(wild: Wild, run: Run) -> None:
    program = wild.program(LIMITED)
    program.module.start(max_runs=-3)
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)


#: The entry class itself loads entries and records runs.
BY_ITSELF = """
from datetime import datetime

from celery.beat import ScheduleEntry
from redbeat.schedulers import RedBeatJSONDecoder, RedBeatJSONEncoder, get_redis


class Entry(RedBeatSchedulerEntry):
    @classmethod
    def from_key(cls, key, app=None):
        with get_redis(app).pipeline() as pipe:
            pipe.hget(key, "definition")
            pipe.hget(key, "meta")
            definition, history = pipe.execute()
        if not definition:
            raise KeyError(key)
        definition = json.loads(definition, cls=RedBeatJSONDecoder)
        history = json.loads(history or "{}", cls=RedBeatJSONDecoder)
        entry = cls(app=app, **definition)
        entry.last_run_at = history.get("last_run_at")
        entry.total_run_count = history.get("total_run_count", 0)
        return entry

    def _next_instance(self, last_run_at=None, only_update_last_run_at=False):
        entry = ScheduleEntry._next_instance(self, last_run_at=last_run_at)
        history = {
            "last_run_at": entry.last_run_at,
            "total_run_count": entry.total_run_count,
        }
        with get_redis(self.app).pipeline() as pipe:
            pipe.hset(self.key, "meta", json.dumps(history, cls=RedBeatJSONEncoder))
            pipe.hset(self.key, "written_by", json.dumps("the program"))
            pipe.zadd(self.app.redbeat_conf.schedule_key, {entry.key: entry.score})
            pipe.execute()
        return entry

    __next__ = next = _next_instance


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""


def test_an_entry_with_its_own_loading_and_recording(wild: Wild, run: Run) -> None:
    program = wild.program(BY_ITSELF)
    program.module.save("job", entry=program.module.Entry)
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)
        running.until(lambda: wild.runs("job") >= 2)
    assert wild.client.hget("redbeat:job", "written_by") == '"the program"'
    assert wild.score("job")


ADDS_ARGUMENT = """
class Entry(RedBeatSchedulerEntry):
    @classmethod
    def from_key(cls, key, app=None):
        entry = super().from_key(key, app=app)
        entry.kwargs = {**(entry.kwargs or {}), "tenant": "north"}
        return entry


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""

DECODES_DEFINITION = """
class Entry(RedBeatSchedulerEntry):
    @staticmethod
    def decode_definition(text):
        definition = RedBeatSchedulerEntry.decode_definition(text)
        definition["kwargs"] = {**(definition.get("kwargs") or {}), "tenant": "north"}
        definition.pop("comment", None)
        return definition


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""


@pytest.mark.parametrize("text", [ADDS_ARGUMENT, DECODES_DEFINITION], ids=["load", "decode"])
def test_an_argument_that_loading_adds_is_sent(wild: Wild, run: Run, text: str) -> None:
    program = wild.program(text)
    program.module.save("job", kwargs={"a": 1})
    with run(program) as running:
        running.until(wild.messages)
    assert wild.messages()[0].kwargs == {"a": 1, "tenant": "north"}


def test_a_definition_with_a_field_that_only_the_program_reads(wild: Wild, run: Run) -> None:
    program = wild.program(DECODES_DEFINITION)
    program.module.save("job")
    text = wild.client.hget("redbeat:job", "definition")
    wild.client.hset("redbeat:job", "definition", text.replace("{", '{"comment": "mine", ', 1))
    with run(program) as running:
        running.until(wild.messages)


DEFINES = """
class Entry(RedBeatSchedulerEntry):
    def definition(self):
        definition = super().definition()
        return {**definition, "kwargs": {**definition["kwargs"], "tenant": "north"}}


class Scheduler(RedBeatScheduler):
    Entry = Entry


app.conf.beat_schedule = {"job": {"task": "jobs.run", "schedule": 0.5}}
"""


@pytest.mark.ours
def test_an_argument_that_the_definition_adds_is_stored_and_sent(wild: Wild, run: Run) -> None:
    with run(wild.program(DEFINES)) as running:
        running.until(wild.messages)
    assert wild.definition("job")["kwargs"] == {"tenant": "north"}
    assert wild.messages()[0].kwargs == {"tenant": "north"}


#: The entry class replaces the stored time of the last run.
DECODES_META = """
from datetime import datetime, timedelta, timezone


class Entry(RedBeatSchedulerEntry):
    @staticmethod
    def decode_meta(text, app=None):
        history = RedBeatSchedulerEntry.decode_meta(text, app)
        history["last_run_at"] = datetime.now(timezone.utc) - timedelta(hours=2)
        return history


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""


def test_a_history_that_the_program_decodes_is_used(wild: Wild, run: Run) -> None:
    program = wild.program(DECODES_META)
    # According to the stored history, the entry ran just now.
    module = program.module
    module.RedBeatSchedulerEntry("job", "jobs.run", 3600, app=module.app).save()
    wild.client.zadd("redbeat::schedule", {"redbeat:job": time.time() - 1})
    with run(program) as running:
        running.until(wild.messages)


#: An entry that is due only while a flag is set, as for a maintenance window.
GATED = """
from redbeat.schedulers import get_redis


class Entry(RedBeatSchedulerEntry):
    def is_due(self):
        get_redis(self.app).incr("asked")
        if not get_redis(self.app).exists("open"):
            return False, 0.2
        return super().is_due()


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""


def test_is_due_of_an_entry_class_decides(wild: Wild, run: Run) -> None:
    program = wild.program(GATED)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: int(wild.client.get("asked") or 0) >= 2)
        assert wild.messages() == []
        wild.client.set("open", 1)
        running.until(wild.messages)


#: The entry class postpones later runs by a day.
LATER = """
from datetime import timedelta

from redbeat.schedulers import to_timestamp


class Entry(RedBeatSchedulerEntry):
    {override}


class Scheduler(RedBeatScheduler):
    Entry = Entry
"""

DUE_AT = """@property
    def due_at(self):
        due = super().due_at
        return due if self.last_run_at is None else due + timedelta(days=1)"""

SCORE = """@property
    def score(self):
        score = super().score
        return score if self.last_run_at is None else score + 86400"""


@pytest.mark.parametrize("override", [DUE_AT, SCORE], ids=["due_at", "score"])
def test_the_score_is_that_of_the_entry_class(wild: Wild, run: Run, override: str) -> None:
    program = wild.program(LATER.replace("{override}", override))
    entry = program.module.Entry
    program.module.save("job", entry=entry)
    entry("other", "jobs.other", 60, app=program.app).save()
    put_off = 86400 - 60
    assert (wild.score("job") or 0) - time.time() < 60
    assert (wild.score("other") or 0) - time.time() > put_off
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
        running.until(lambda: (wild.score("job") or 0) - time.time() > put_off)
    assert len(wild.messages()) == 1


#: An entry class that adds options to its entries, also to entries of `beat_schedule`.
STATIC = """
class Entry(RedBeatSchedulerEntry):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.options = {**(self.options or {}), "headers": {"x-origin": self.name}}


class Scheduler(RedBeatScheduler):
    Entry = Entry


app.conf.beat_schedule = {"job": {"task": "jobs.run", "schedule": 0.5}}
"""


def test_static_entries_are_of_the_entry_class(wild: Wild, run: Run) -> None:
    with run(wild.program(STATIC)) as running:
        running.until(wild.messages)
    assert wild.messages()[0].headers["x-origin"] == "job"
    assert wild.definition("job")["options"]["headers"] == {"x-origin": "job"}


#: The scheduler changes the arguments and options of each message.
SENT_OTHERWISE = """
class Scheduler(RedBeatScheduler):
    def apply_async(self, entry, producer=None, advance=True, **kwargs):
        entry.kwargs = {**(entry.kwargs or {}), "sent_by": "me"}
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

    def send_task(self, *args, **kwargs):
        kwargs["expires"] = 60
        return super().send_task(*args, **kwargs)
"""


def test_a_scheduler_that_changes_what_is_sent(wild: Wild, run: Run) -> None:
    program = wild.program(SENT_OTHERWISE)
    program.module.save("job")
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.runs("job"))
    (message,) = wild.messages()[:1]
    assert message.kwargs == {"sent_by": "me"}
    assert message.headers["expires"]


#: RedBeat 2 has no attributes of these names.
NAMES = """
from datetime import datetime


class Entry(RedBeatSchedulerEntry):
    def __init__(
        self, *args, status="mine", history=(), policy="mine", definition="mine", runs_left=9,
        scheduled_at=datetime(2040, 1, 1), **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.status, self.history, self.policy = status, history, policy
        self.definition, self.runs_left, self.scheduled_at = definition, runs_left, scheduled_at


class Scheduler(RedBeatScheduler):
    Entry = Entry


save("job", 3600, entry=Entry)
"""


def test_attributes_with_names_that_redbeat_uses(wild: Wild, run: Run) -> None:
    program = wild.program(NAMES)
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: (wild.score("job") or 0) > time.time() + 1800)
    loaded = program.module.Entry.from_key("redbeat:job", app=program.app)
    assert (loaded.status, loaded.policy, loaded.definition) == ("mine",) * 3
    assert (loaded.history, loaded.runs_left, loaded.scheduled_at.year) == ((), 9, 2040)
