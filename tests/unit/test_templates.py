"""What is copied from a template is what `from_definition()` would have made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.templates import Templates
from redbeat.errors import DecodeError, InvalidEntryError

EVERY = {"__type__": "interval", "every": 60, "relative": False}
CRON = {"__type__": "crontab", "minute": "5", "hour": 4}
RULE = {"__type__": "rrule", "freq": "DAILY", "dtstart": 1_700_000_000}
MOMENT = {"__type__": "datetime", "year": 2020, "month": 1, "day": 2, "hour": 3, "minute": 4}
AT = {"__type__": "clocked", "clocked_time": MOMENT}


@pytest.fixture
def app() -> Celery:
    app = Celery("tests", set_as_current=False)
    app.conf.redbeat_redis_url = "redis://127.0.0.1:1"
    return app


def definition(**fields: Any) -> dict[str, Any]:
    return {"name": "n", "task": "t", "schedule": EVERY, **fields}


SAME = [
    definition(),
    definition(schedule=30),
    definition(schedule=CRON, args=[1, "a", None, 1.5, {"x": [2]}]),
    definition(schedule=RULE, kwargs={"b": 1, "a": 2}, enabled=False),
    definition(schedule={**AT}, options={"queue": "q", "expires": 60}),
    definition(args=None, kwargs=None, options=None),
    definition(name="ü ☃", task="x.y", args=[]),
    definition(name=17),
    definition(enabled=1),
    definition(jitter=3),
    definition(kwargs={"when": MOMENT}),
    definition(kwargs={"__type__": "mine"}),
    definition(kwargs={"__type__": "interval"}),
    definition(args=["__type__"]),
    definition(options={"eta": 5}),
    definition(args=[[[[]]]] * 80),
]
BAD: list[Any] = [
    definition(schedule=None),
    definition(schedule={"__type__": "crontab", "minute": "99"}),
    definition(schedule={}),
    definition(name=""),
    definition(task=3),
    definition(args={}),
    definition(args=""),
    definition(kwargs=[]),
    definition(kwargs=0),
    definition(options=""),
    definition(enabled=None),
    definition(enabled="yes"),
    definition(unknown=1),
    definition(args=[float("inf")]),
    definition(options={"expires": "never"}),
    [],
    None,
]


def about(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return what the entry says, but for what tells when it was made."""
    last = entry.last_run_at
    made_now = last is not None and last.year > 2020
    return {**dict(entry), "last_run_at": None if made_now else last, "policy": entry.policy}


def outcome(make: Any) -> Any:
    try:
        entry = make()
        return about(entry), entry.texts()
    except (DecodeError, InvalidEntryError) as error:
        return str(error)


@pytest.mark.parametrize("policy", ["", '{"max_runs": 3, "timezone": "Europe/Paris"}', "[]", "{"])
@pytest.mark.parametrize("given", [*SAME, *BAD], ids=repr)
def test_it_is_what_the_text_says(app: Celery, given: Any, policy: str) -> None:
    text, templates = json.dumps(given), Templates(app, RedBeatSchedulerEntry)
    wanted = outcome(lambda: RedBeatSchedulerEntry.from_definition(app, text, policy))
    for _ in range(2):  # the template is there the second time
        assert outcome(lambda: templates.from_json(given, policy).entry) == wanted
        assert outcome(lambda: templates.loaded(text, policy)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(definition(kwargs={"when": MOMENT})).replace("__type__", r"\u005f_type__"),
        json.dumps(definition(name="ü")),
        json.dumps(definition(args=[float("nan")])).replace("NaN", "1e999"),
        json.dumps(definition(args=[[[[]]]] * 80)),
        json.dumps(definition()) + " ",
        json.dumps(definition(args=["x" * (1 << 21)])),
        json.dumps(definition(), separators=(",", ":")),
        json.dumps(definition(), indent=2),
        json.dumps({"name": "n", "schedule": EVERY, "task": "t"}),
        json.dumps({"schedule": EVERY, "name": "n", "task": "t"}),
        json.dumps(definition(kwargs={"schedule": 1})),
        json.dumps({"name": "n", "task": "t", "kwargs": {"schedule": EVERY}, "schedule": 60}),
        json.dumps({"name": "n", "task": "t", "kwargs": {"schedule": EVERY}}),
        json.dumps({"name": "n", "task": "t", "enabled": 1, "schedule": EVERY}),
        json.dumps({"name": "n", "task": "t", "enabled": False, "schedule": EVERY}),
        json.dumps({"name": "n", "task": "t", "jitter": 1, "schedule": EVERY}),
        json.dumps(definition(enabled=True)).replace('"task"', '"enabled": false, "task"'),
        json.dumps(definition(enabled=True)).replace('"enabled"', '"kwargs": {"a": 1}, "enabled"'),
        json.dumps(definition(enabled=True)).replace('"task"', '"schedule": 7, "task"'),
        json.dumps(definition()).replace("}}", "}, }"),
        json.dumps(definition()).replace("}}", "}}}"),
        json.dumps(definition()).replace('", "', '" "'),
        '"schedule":',
        ',"schedule":{"__type__": 1}}',
        '[],"schedule":{"__type__": 1}}',
    ],
    ids=lambda text: text[:80],
)
def test_what_a_beat_loads_is_what_the_text_says(app: Celery, text: str) -> None:
    templates = Templates(app, RedBeatSchedulerEntry)
    templates.loaded(json.dumps(definition()), "")  # the template is there
    wanted = outcome(lambda: RedBeatSchedulerEntry.from_definition(app, text, ""))
    assert outcome(lambda: templates.loaded(text, "")) == wanted


def test_what_a_beat_loads_knows_its_texts(app: Celery) -> None:
    text = json.dumps(definition())
    assert Templates(app, RedBeatSchedulerEntry).loaded(text, "")._seen_texts == (text, "")


@pytest.mark.parametrize("given", SAME, ids=repr)
def test_the_texts_are_those_that_would_be_written(app: Celery, given: Any) -> None:
    made = Templates(app, RedBeatSchedulerEntry).from_json(given, "")
    assert made.texts is None or made.texts == made.entry.texts()


def test_most_are_copied(app: Celery) -> None:
    templates = Templates(app, RedBeatSchedulerEntry)
    assert all(templates.from_json(given, "").texts for given in SAME[:7])


def test_copies_share_nothing_that_differs(app: Celery) -> None:
    templates = Templates(app, RedBeatSchedulerEntry)
    one, other = (
        templates.from_json(definition(name=name, kwargs={"of": name}), "").entry for name in "ab"
    )
    one.kwargs["more"] = 1
    assert (one.name, one.key, one.kwargs) == ("a", "redbeat:a", {"of": "a", "more": 1})
    assert (other.name, other.key, other.kwargs) == ("b", "redbeat:b", {"of": "b"})


def test_kwargs_that_were_left_out_are_not_shared(app: Celery) -> None:
    templates = Templates(app, RedBeatSchedulerEntry)
    one, other = (templates.from_json(definition(name=name), "").entry for name in "ab")
    one.kwargs["more"] = one.options["queue"] = 1
    assert (other.kwargs, other.options) == ({}, {})


def test_a_class_of_the_users_own_is_asked_each_time(app: Celery) -> None:
    class Own(RedBeatSchedulerEntry):
        made = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            type(self).made += 1
            super().__init__(*args, **kwargs)

    templates = Templates(app, Own)
    for _ in range(3):
        assert templates.from_json(definition(), "").texts is None
    assert Own.made == 3


def test_a_task_that_is_not_allowed(app: Celery) -> None:
    app.conf.redbeat_task_allowlist = ["good.*"]
    templates = Templates(app, RedBeatSchedulerEntry)
    assert templates.from_json(definition(task="good.t"), "").texts
    entry, texts = templates.from_json(definition(task="bad.t"), "")
    assert texts is None
    with pytest.raises(InvalidEntryError, match="task"):
        entry.texts()


def test_no_more_than_so_many_are_kept(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat.entries.templates.CAPACITY", 10)
    templates = Templates(app, RedBeatSchedulerEntry)
    for every in range(1, 31):
        assert templates.from_json(definition(schedule=every), "").texts
    assert len(templates._templates) == 10
