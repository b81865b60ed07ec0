"""What is stored has limits: refused when it is saved, quarantined when it is stored already."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry, Schedule, rrule, rruleset
from redbeat.codec.stored import MAX_WHOLE
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.metrics.beats import active_beats
from tests.samples import rows_in
from tests.scheduler.conftest import (
    BEATS,
    QUARANTINE,
    SCHEDULE,
    RecordingScheduler,
    World,
    datetime_json,
    interval_json,
)
from tests.stored import put_history, put_state

#: Characters of a hostile rule.
SIZE = 900_000


def entry(world: World, **fields: Any) -> RedBeatSchedulerEntry:
    """Return an entry that is not saved."""
    rule = fields.pop("schedule", 60)
    return RedBeatSchedulerEntry(fields.pop("name", "a"), "t", rule, app=world.app, **fields)


def tagged(kind: str, **fields: Any) -> dict[str, Any]:
    """Return a schedule in its stored form."""
    return {"__type__": kind, **fields}


#: Rules that no person would write, each with the invalid field.
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "minutes": (tagged("crontab", minute="0," * (SIZE // 2) + "0"), "minute"),
    "ranges": (tagged("crontab", minute="0-59," * (SIZE // 5) + "0"), "minute"),
    "names of days": (
        tagged("crontab", day_of_week="mon-sun," * (SIZE // 8) + "mon"),
        "day_of_week",
    ),
    "a list": (tagged("crontab", hour=[0] * (SIZE // 3)), "hour"),
    "rule parts": (tagged("rrule", freq=0, dtstart=0, byminute=[0] * (SIZE // 3)), "byminute"),
    "rules": (tagged("rruleset", rrules=[{"freq": 3, "dtstart": 0}] * (SIZE // 26)), "rrules"),
    "dates": (tagged("rruleset", rdates=["2026-01-01T00:00:00"] * (SIZE // 24)), "rdates"),
    "iCalendar": (tagged("rruleset", ical="RDATE:" + "20260101T000000Z," * (SIZE // 18)), "ical"),
    "one line": (tagged("rruleset", ical="RDATE:" + "20260101T000000Z," * 5000), "ical"),
    "a zone": (tagged("rrule", freq=0, dtstart=0, dtstart_zone="A/" * (SIZE // 2)), "dtstart_zone"),
    "an event": (tagged("solar", event="x" * SIZE, lat=0, lon=0), "event"),
}


@pytest.mark.parametrize(("rule", "field"), rows_in(4, RULES.values()), ids=[*RULES])
def test_large_rules_do_not_stall_a_tick(
    world: World, log: pytest.LogCaptureFixture, rule: dict[str, Any], field: str
) -> None:
    """Forty crontabs of 0.9 MB once stalled each tick for 19 s: half a second each."""
    for number in range(5):
        world.put(f"big{number}", schedule=rule)
    world.put("good")
    scheduler, started = world.scheduler(), time.process_time()
    while scheduler.names != ["good"] or len(world.quarantine()) < 5:
        scheduler.tick()
        assert time.process_time() - started < 1.5
    reason = world.quarantine()["redbeat:big0"]["reason"]
    assert reason.startswith(f"definition.schedule.{field}: ")
    assert "maximum is" in reason or "more than" in reason
    assert max(map(len, log.messages)) < 1000


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (crontab(minute="0," * 1000 + "0"), "schedule.minute"),
        (crontab(hour=[1] * 2000), "schedule.hour"),
        (rrule("DAILY", byhour=[1] * 2000), "schedule.byhour"),
        (rruleset([rrule("DAILY", byhour=[1] * 2000)]), "schedule.rrules[0].byhour"),
    ],
)
def test_a_save_refuses_a_rule_and_names_the_limit(world: World, rule: Any, field: str) -> None:
    message = r"maximum is 1000|shortest interval is 0\.01 s"
    with pytest.raises(InvalidEntryError, match=message) as caught:
        entry(world, schedule=rule).save()
    assert caught.value.field == field
    assert not world.client.exists("redbeat:a")


def test_a_rule_at_the_limits_is_saved(world: World) -> None:
    every_minute = crontab(minute=",".join(map(str, range(60))))
    for number, rule in enumerate((every_minute, schedule(0.01), crontab(hour=[1] * 1000))):
        saved = entry(world, name=f"e{number}", schedule=rule).save()
        assert RedBeatSchedulerEntry.from_key(saved.key, app=world.app).schedule == rule


def test_schedules_in_arguments_are_limited_too(world: World) -> None:
    few, many = [crontab()] * 99, [crontab()] * 100
    entry(world, name="few", args=few).save()
    with pytest.raises(InvalidEntryError, match="more than 100 schedules"):
        entry(world, args=many).save()
    world.put("many", args=[tagged("crontab")] * 100)
    world.scheduler().tick()
    assert "more than 100 schedules" in world.quarantine()["redbeat:many"]["reason"]


class TestShortIntervals:
    """RedBeat 2 accepts any interval. An interval of 1 microsecond once sent 33,000 messages."""

    @pytest.mark.parametrize("relative", [False, True])
    def test_a_stored_one_runs_at_the_shortest(self, world: World, relative: bool) -> None:
        rule = {**interval_json(0.000_001), "relative": relative}
        world.put("fast", rule, world.ago(1))
        scheduler, started = world.scheduler(), time.monotonic()
        while len(scheduler.sent) < 5:
            scheduler.tick()
        elapsed = time.monotonic() - started
        assert len(scheduler.sent) <= elapsed / 0.01 + 2
        assert world.quarantine() == {}
        assert world.run_count("fast") >= len(scheduler.sent) - 1

    def test_a_stored_one_can_be_paused(self, world: World) -> None:
        world.put("fast", interval_json(0.000_001), world.ago(1))
        loaded = RedBeatSchedulerEntry.from_key("redbeat:fast", app=world.app)
        loaded.pause()
        assert not RedBeatSchedulerEntry.from_key("redbeat:fast", app=world.app).enabled


#: Options with which no beat can send a message.
OPTIONS: dict[str, Any] = {
    "headers": [5, "text", [1], [["task"]], True, [{"task": "a", "evil": 1}]],
    "queue": [5, ["a"], {"a": 1}, True],
    "serializer": [5, ["json"]],
    "compression": [5, ["zlib"]],
    "delivery_mode": ["x", 1.5, [1], {}],
    "stamped_headers": [5, [1], "x"],
    "countdown": ["x", [1], {}, 1e300],
    "expires": [[1], {}, 10**30],
    "eta": [[1], {}, 10**30],
    **{name: ["x"] for name in ("name", "args", "kwargs", "producer", "router", "content_type")},
}


@pytest.mark.parametrize(
    ("name", "value"), rows_in(3, ((name, value) for name in OPTIONS for value in OPTIONS[name]))
)
def test_an_option_of_a_wrong_type(world: World, name: str, value: Any) -> None:
    """These entries were once retried for ever; a bad compression even delayed all others."""
    world.put("bad", options={name: value})
    world.put("good")
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["good"]
    assert world.quarantine()["redbeat:bad"]["reason"].startswith(f"definition.options.{name}: ")
    with pytest.raises(InvalidEntryError) as caught:
        entry(world, options={name: value}).save()
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize(
    "options",
    [
        {"headers": None, "queue": None, "serializer": None, "compression": None, "eta": None},
        {"headers": [["a", 1]], "queue": "", "delivery_mode": 2, "expires": -1, "countdown": -5},
        {"headers": {"a": [1]}, "delivery_mode": "transient", "expires": "2026-01-01T00:00:00"},
    ],
)
def test_options_that_redbeat_2_sends(world: World, options: dict[str, Any]) -> None:
    world.put("a", options=options)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.quarantine() == {}


@pytest.mark.parametrize("value", [MAX_WHOLE + 1, 10**20, 10**4000])
def test_counts_have_a_maximum(world: World, value: int) -> None:
    with pytest.raises(InvalidEntryError, match=str(MAX_WHOLE)) as caught:
        entry(world, max_runs=value).save()
    assert caught.value.field == "max_runs"
    world.put("limit")
    world.client.hset("redbeat:limit", "policy", json.dumps({"max_runs": value}))
    world.put("count")
    meta = {"last_run_at": datetime_json(world.ago(90)), "total_run_count": value}
    world.client.hset("redbeat:count", "meta", json.dumps(meta))
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == []
    reasons = {key: note["reason"] for key, note in world.quarantine().items()}
    assert reasons["redbeat:limit"].startswith("policy.max_runs: must be at most")
    assert reasons["redbeat:count"].startswith("meta.total_run_count: must be at most")


@pytest.mark.parametrize("since", [-62135596801, 253402300800, "x", 10**400, None, 1767225600])
def test_a_pause_of_any_date(world: World, since: Any) -> None:
    saved = entry(world, schedule=60).save()
    saved.pause("a note")
    put_state(world.client, "redbeat:a", pause=[since, "x" * 5000 + "\ud800", "me"])
    loaded = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    readable = "paused since 2026-01-01T00:00:00+00:00 by me"
    assert (loaded.status.note or "").encode()[:1] in (b"x", b"")
    assert loaded.status.reason == (readable if since == 1767225600 else None)
    assert loaded.status.state == "paused"
    loaded.resume()
    assert RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app).enabled


@pytest.mark.parametrize("score", [float("inf"), 4e11, -4e11])
def test_a_beat_that_was_seen_in_the_future_is_not_listed(world: World, score: float) -> None:
    """Such a member of the sorted set once took a share of the work."""
    world.app.conf.redbeat_lock_key = None
    world.client.zadd(BEATS, {"ghost": score, "ghost lock": score})
    world.put_many(40)
    scheduler = world.scheduler()
    scheduler.tick()
    assert len(scheduler.sent) == 40
    (beat,) = Schedule(world.app).status().beats
    assert beat.token == active_beats(world.app)[0].token != "ghost"


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
class TestLoneSurrogates:
    """JSON can have half of a character, such as ``\\ud800``, which UTF-8 cannot."""

    @pytest.mark.parametrize("field", ["name", "task"])
    def test_a_name_or_task(self, world: World, text: str, field: str) -> None:
        unsaved = entry(world)
        setattr(unsaved, field, text)
        with pytest.raises(InvalidEntryError, match=f"^{field}: "):
            unsaved.save()
        world.put("bad")
        definition = {"name": "bad", "task": "t", "schedule": interval_json(60), field: text}
        world.client.hset("redbeat:bad", "definition", json.dumps(definition))
        with pytest.raises(DecodeError, match=f"^definition.{field}: "):
            RedBeatSchedulerEntry.from_key("redbeat:bad", app=world.app)
        world.scheduler().tick()
        reason = world.quarantine()["redbeat:bad"]["reason"]
        assert reason.startswith(f"definition.{field}: ")
        assert reason.encode()

    def test_arguments_go_to_the_task_as_they_are(self, world: World, text: str) -> None:
        """RedBeat 2 sends such arguments, for example names of files."""
        world.put("a", args=[text], kwargs={"k": text})
        scheduler = world.scheduler()
        scheduler.tick()
        assert [(sent.args, sent.kwargs) for sent in scheduler.sent] == [([text], {"k": text})]

    def test_records_are_read_as_valid_text(self, world: World, text: str) -> None:
        world.put("a", interval_json(3600), world.ago(1), score=world.now() + 3600)
        put_history(world.client, "redbeat:a", [f"1790000000 +1 sent {text}"])
        put_state(world.client, "redbeat:a", id=text)
        world.client.hset(QUARANTINE, "redbeat:b", json.dumps({"reason": text, "since": 1}))
        world.put("b", score=-1)
        world.client.hset("redbeat:b", "definition", "{")
        (run,) = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app).history
        assert (run.task_id or "").encode()
        world.client.zadd(SCHEDULE, {"redbeat:a": 0})
        scheduler = world.scheduler_of(RecordingScheduler)
        world.put_meta("a", world.ago(7200))
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert scheduler.sent[0].id.encode()
