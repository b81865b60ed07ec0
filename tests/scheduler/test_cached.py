"""A beat treats cached entries in the same way as entries that it has just loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX
from tests.fuzz.mutator import TAGGED_VALUES, Mutator
from tests.fuzz.vocabulary import DEFINITION, HASH_FIELDS
from tests.samples import one_in

from .conftest import (
    QUARANTINE,
    SCHEDULE,
    RecordingScheduler,
    Sent,
    World,
    datetime_json,
    interval_json,
)

#: What beats keep about an entry that has an identity, and nothing else.
STATE = '{"m":["","",""],"of":"","id":"i"}'

EVERY = interval_json(3600)
CRON = {"__type__": "crontab", "minute": "5", "hour": 4}
RULE = {"__type__": "rrule", "freq": "DAILY", "dtstart": 1_700_000_000}
MOMENT = {"__type__": "datetime", "year": 2020, "month": 1, "day": 2, "hour": 3, "minute": 4}
AT = {"__type__": "clocked", "clocked_time": MOMENT}


def definition(**fields: Any) -> dict[str, Any]:
    """Return the definition of an entry, by default an hourly one."""
    return {"name": "n", "task": "t", "schedule": EVERY, **fields}


GOOD = [
    definition(),
    definition(schedule=3000),
    definition(schedule=CRON, args=[1, "a", None, 1.5, {"x": [2]}]),
    definition(schedule=RULE, kwargs={"b": 1, "a": 2}, enabled=False),
    definition(schedule=AT, options={"queue": "q", "expires": 60}),
    definition(args=None, kwargs=None, options=None),
    definition(task="ü ☃", args=[]),
    definition(args=[1, "flat"], kwargs={"b": 1}),
    definition(args=[[1]], kwargs={"a": [1]}),
    definition(enabled=1),
    definition(enabled=None),
    definition(enabled="yes"),
    definition(enabled=[]),
    definition(jitter=3),
    definition(kwargs={"when": MOMENT}),
    definition(kwargs={"__type__": "mine"}),
    definition(kwargs={"__type__": "interval"}),
    definition(args=["__type__"]),
    definition(args=[[[[]]]] * 80),
]
BAD: list[Any] = [
    definition(schedule=None),
    definition(schedule={"__type__": "crontab", "minute": "99"}),
    definition(schedule={}),
    definition(name=""),
    definition(name=17),
    definition(task=3),
    definition(args={}),
    definition(args=""),
    definition(kwargs=[]),
    definition(kwargs=0),
    definition(options=""),
    definition(options={"eta": 5}),
    definition(unknown=1),
    definition(args=[float("inf")]),
    definition(options={"expires": "never"}),
    [],
    None,
]
PLAIN = json.dumps(definition(enabled=True))
#: Definitions as JSON, the same definitions in other notations, and strings that only look like
#: definitions.
TEXTS = [
    *map(json.dumps, (*GOOD, *BAD)),
    json.dumps(definition(kwargs={"when": MOMENT})).replace("__type__", r"\u005f_type__"),
    json.dumps(definition(args=[float("nan")])).replace("NaN", "1e999"),
    PLAIN + " ",
    json.dumps(definition(args=["x" * (1 << 21)])),
    json.dumps(definition(), separators=(",", ":")),
    json.dumps(definition(), indent=2),
    json.dumps({"schedule": EVERY, "name": "n", "task": "t"}),
    json.dumps(definition(kwargs={"schedule": 1})),
    json.dumps({"name": "n", "task": "t", "kwargs": {"schedule": EVERY}, "schedule": 3000}),
    json.dumps({"name": "n", "task": "t", "kwargs": {"schedule": EVERY}}),
    json.dumps({"name": "n", "task": "t", "enabled": False, "schedule": EVERY}),
    json.dumps({"name": "n", "task": "t", "jitter": 1, "schedule": EVERY}),
    PLAIN.replace('"task"', '"enabled": false, "task"'),
    PLAIN.replace('"enabled"', '"kwargs": {"a": 1}, "enabled"'),
    PLAIN.replace('"task"', '"schedule": 7, "task"'),
    PLAIN.replace("}}", "}, }"),
    PLAIN.replace("}}", "}}}"),
    PLAIN.replace('", "', '" "'),
    '"schedule":',
    ',"schedule":{"__type__": 1}}',
    '[],"schedule":{"__type__": 1}}',
]
NAMES = [f"e{number}" for number in range(len(TEXTS))]
POLICIES = ["", '{"max_runs": 9, "timezone": "Europe/Paris"}', "[]", "{"]


class Changing(RecordingScheduler):
    """A scheduler that changes the arguments and options of each entry after it was sent."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        for changed in (entry.kwargs, entry.options):
            changed["more"] = 1
        for value in (*(entry.args or ()), *entry.kwargs.values()):
            if isinstance(value, list):
                value.append(2)
        if entry.args is not None:
            entry.args.append(3)
        return result


def put(world: World, texts: Iterable[tuple[str, str]], policy: str) -> None:
    """Store entries from pairs of a name and a definition."""
    pipeline = world.client.pipeline(transaction=False)
    for name, text in texts:
        fields = {"definition": text, **({"policy": policy} if policy else {})}
        written = {field: text.encode("utf-8", "surrogatepass") for field, text in fields.items()}
        pipeline.delete(f"{PREFIX}{name}")
        pipeline.hset(f"{PREFIX}{name}", mapping=written)
    pipeline.execute()


def outcome(
    world: World, beat: RecordingScheduler, names: list[str], ran: datetime
) -> tuple[list[Sent], dict[str, Any]]:
    """Make all entries due with ``ran`` as their last run, tick, and return the results."""
    meta = json.dumps({"last_run_at": datetime_json(ran), "total_run_count": 3})
    pipeline = world.client.pipeline(transaction=False)
    pipeline.delete(QUARANTINE)
    for name in names:
        pipeline.hdel(f"{PREFIX}{name}", "history", "inbox")
        pipeline.hset(f"{PREFIX}{name}", mapping={"meta": meta, "beat_state": STATE})
        pipeline.zadd(SCHEDULE, {f"{PREFIX}{name}": 1})
    pipeline.execute()
    beat.sent.clear()
    beat.tick()
    reasons = {key: note["reason"] for key, note in world.quarantine().items()}
    counts = {name: world.run_count(name) for name in names}
    # The score of an entry that was put back depends on the time of the tick, so leave it out.
    scores = {name: "again" if world.is_held(name) else world.score(name) for name in names}
    sent = sorted(beat.sent, key=lambda message: message.name)
    return sent, {"reasons": reasons, "counts": counts, "scores": scores}


@pytest.mark.parametrize("policy", one_in(2, POLICIES))
def test_a_cached_entry_equals_a_newly_loaded_one(world: World, policy: str) -> None:
    world.app.conf.redbeat_lock_key = None
    put(
        world,
        ((name, text.replace('"n"', f'"{name}"')) for name, text in zip(NAMES, TEXTS, strict=True)),
        policy,
    )
    ran, warm = world.ago(3700), world.scheduler_of(Changing)
    for _ in range(2):
        outcome(world, warm, NAMES, ran)
    found = outcome(world, warm, NAMES, ran)
    assert found == outcome(world, world.scheduler_of(Changing), NAMES, ran)
    if policy not in ("[]", "{"):
        assert len(found[0]) > 20
        assert len(found[1]["reasons"]) > 15


@pytest.mark.parametrize("seed", one_in(5, range(20)))
def test_any_text_has_the_same_result_with_a_cache(world: World, seed: int) -> None:
    world.app.conf.redbeat_lock_key = None
    mutator = Mutator(f"cached {seed}")
    names = [f"bad{number}" for number in range(20)]
    warm, ran = world.scheduler(), world.ago(3700)
    policy = mutator.json(HASH_FIELDS["policy"]).decode("utf-8", "replace")
    texts = []
    for name in names:
        fields = {**DEFINITION, "name": name, "schedule": mutator.choice(TAGGED_VALUES)}
        texts.append((name, mutator.json(fields).decode("utf-8", "replace")))
    put(world, texts, mutator.choice(("", policy)))
    outcome(world, warm, names, ran)
    found = outcome(world, warm, names, ran)
    assert found == outcome(world, world.scheduler(), names, ran)


def test_the_cached_history_equals_the_stored_history(world: World) -> None:
    world.app.conf.redbeat_lock_key = None
    names = NAMES[: len(GOOD)]
    texts = (json.dumps({**fields, "name": name}) for name, fields in zip(names, GOOD, strict=True))
    put(world, zip(names, texts, strict=True), "")
    warm = world.scheduler()
    outcome(world, warm, names, world.ago(3700))
    assert warm.sent
    seen = []
    for beat in (warm, world.scheduler()):
        world.client.zadd(SCHEDULE, {f"{PREFIX}{name}": 1 for name in names})
        beat.sent.clear()
        beat.tick()
        assert beat.sent == []
        seen.append({name: world.score(name) for name in names})
    assert seen[0] == seen[1]


def test_a_changed_entry_is_loaded_again(world: World) -> None:
    ran, beat = world.ago(3700), world.scheduler()
    for text in (json.dumps(definition(args=[number])) for number in range(3)):
        put(world, [("n", text)], "")
        (sent,), _ = outcome(world, beat, ["n"], ran)
        assert sent.args == json.loads(text)["args"]


def test_another_class_of_entries_is_used_at_once(world: World) -> None:
    class Own(RedBeatSchedulerEntry):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.args = ["own"]

    ran, beat = world.ago(3700), world.scheduler()
    put(world, [("n", json.dumps(definition(args=["stored"])))], "")
    seen = []
    for cls in (RedBeatSchedulerEntry, Own, RedBeatSchedulerEntry):
        beat.Entry = cls
        (sent,), _ = outcome(world, beat, ["n"], ran)
        seen.append(sent.args)
    assert seen == [["stored"], ["own"], ["stored"]]
