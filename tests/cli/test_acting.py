"""Tests of `celery redbeat pause`, `resume`, `trigger` and `delete`."""

from __future__ import annotations

import json

import pytest
import redis
from celery import Celery

from redbeat.cli import operate
from redbeat.cli.command import Exit
from redbeat.management.schedule import Schedule
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.scheduler.conftest import interval_json
from tests.stored import is_triggered, put_triggers

VERBS = ("pause", "resume", "trigger", "delete")


@pytest.fixture
def three(make: Make) -> None:
    """Store three entries."""
    for name in ("billing-day", "billing-month", "other"):
        make(name)


def states(app: Celery) -> dict[str, str]:
    """Return the state of each entry by name."""
    return {record.name: record.state for record in Schedule(app).records()}


@pytest.mark.usefixtures("three")
def test_pause_and_resume_by_names(run: Run, app: Celery) -> None:
    ran = run("pause", "billing-day", "other", "--note", "broken export")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "Paused billing-day\nPaused other\n"
    paused = {"billing-month": "scheduled", "billing-day": "paused", "other": "paused"}
    assert states(app) == paused
    assert Schedule(app)["other"].status.note == "broken export"
    assert "broken export" in run("show", "other").out
    ran = run("resume", "other", "--json")
    assert ran.json == [{"name": "other", "action": "resumed"}]
    assert states(app) == {**paused, "other": "scheduled"}


@pytest.mark.usefixtures("three")
def test_a_pattern_needs_a_confirmation(run: Run, app: Celery) -> None:
    ran = run("pause", "--match", "billing-*", answer="n\n")
    assert ran.code == 1
    assert "  billing-day\n  billing-month\nPause 2 entries? [y/N]:" in ran.err
    assert set(states(app).values()) == {"scheduled"}
    assert run("pause", "--match", "billing-*", answer="y\n").code == 0
    assert [name for name, state in states(app).items() if state == "paused"] == [
        "billing-day",
        "billing-month",
    ]


@pytest.mark.usefixtures("three")
def test_a_pattern_matches_only_entries_that_can_be_paused_or_resumed(run: Run) -> None:
    run("pause", "other", "--note", "first")
    ran = run("pause", "--match", "*", "--yes", "--note", "second", "--json")
    assert [line["name"] for line in ran.json] == ["billing-day", "billing-month"]
    assert len(run("resume", "--match", "*", "--yes", "--json").json) == 3
    assert run("resume", "--match", "*", "--yes").code == Exit.NOT_FOUND


@pytest.mark.usefixtures("three")
def test_a_pattern_pauses_all_and_reports_an_unreadable_entry(
    run: Run, app: Celery, redis_client: redis.Redis
) -> None:
    redis_client.hset("redbeat:other", "definition", "{")
    ran = run("pause", "--match", "*", "--yes")
    assert ran.code == Exit.UNREADABLE
    assert "'other' was not paused: definition: " in ran.err
    assert {name for name, state in states(app).items() if state == "paused"} == {
        "billing-day",
        "billing-month",
    }
    assert run("resume", "--match", "*", "--yes").code == 0


@pytest.mark.usefixtures("three")
def test_delete_needs_a_confirmation_or_the_option_yes(run: Run, app: Celery) -> None:
    assert run("delete", "other").code == 1  # the prompt gets no input
    assert len(Schedule(app)) == 3
    ran = run("delete", "other", "--yes")
    assert (ran.code, ran.err) == (0, "Deleted other\n")
    ran = run("delete", "--match", "billing-*", "-y", "--json")
    assert [line["action"] for line in ran.json] == ["deleted"] * 2
    assert len(Schedule(app)) == 0


@pytest.mark.usefixtures("three")
def test_a_pattern_also_deletes_unreadable_entries(
    run: Run, app: Celery, redis_client: redis.Redis
) -> None:
    redis_client.hset("redbeat:other", "definition", "{")
    assert run("delete", "--match", "oth*", "--yes").code == 0
    assert "other" not in states(app)
    assert not redis_client.exists("redbeat:other")


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_unreadable_entry_is_neither_paused_nor_resumed(
    run: Run, app: Celery, redis_client: redis.Redis, verb: str
) -> None:
    """The command acts on the readable entries, and reports the unreadable one."""
    redis_client.hset("redbeat:other", "definition", "not json")
    ran = run(verb, "other", "billing-day", "--json")
    assert (ran.code, [line["name"] for line in ran.json]) == (Exit.UNREADABLE, ["billing-day"])
    assert f"'other' was not {verb}d: definition: cannot be read as JSON" in ran.err
    assert redis_client.hget("redbeat:other", "definition") == "not json"
    assert Schedule(app)["billing-day"].enabled is (verb == "resume")


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("words", [("--match", "*", "--yes"), ("billing-day", "other")])
def test_a_trigger_goes_on_after_an_unreadable_entry(
    run: Run, redis_client: redis.Redis, words: tuple[str, ...]
) -> None:
    redis_client.hset("redbeat:billing-day", "definition", "{")
    ran = run("trigger", *words, "--json")
    assert ran.code == Exit.UNREADABLE
    assert "'billing-day' was not triggered: definition: " in ran.err
    assert "other" in [line["name"] for line in ran.json]
    assert is_triggered(redis_client, "redbeat:other")
    assert not is_triggered(redis_client, "redbeat:billing-day")


def test_a_pattern_acts_on_names_that_are_not_utf_8(run: Run, app: Celery, redis_url: str) -> None:
    """An escaped name is not the name of the entry, and may be the name of another entry."""
    definition = json.dumps({"name": "x", "task": "t", "schedule": interval_json(60)})
    with redis.Redis.from_url(redis_url) as raw:
        for key in (b"redbeat:\xff1", b"redbeat:\\xff1"):
            raw.hset(key, b"definition", definition.encode())
            raw.zadd("redbeat::schedule", {key: 3})
        ran = run("delete", "--match", "*1", "-y", "--json")
        assert (ran.code, [line["name"] for line in ran.json]) == (0, ["\\xff1"] * 2)
        assert raw.keys("redbeat:*1") == []
    assert len(Schedule(app)) == 0


@pytest.mark.usefixtures("three")
def test_an_entry_that_was_deleted_before_the_answer(
    run: Run, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup: two entries to delete. Fault: another program deletes one before the user confirms."""

    def confirm(*_: object) -> None:
        redis_client.delete("redbeat:billing-day")
        redis_client.zrem("redbeat::schedule", "redbeat:billing-day")

    monkeypatch.setattr(operate, "confirm", confirm)
    ran = run("delete", "--match", "billing-*")
    assert ran.code == Exit.CONFLICT
    assert "Deleted 1 of 2 entries" in ran.err
    assert not redis_client.exists("redbeat:billing-month")


@pytest.mark.usefixtures("three")
def test_deleting_a_static_entry_warns_that_it_comes_back(
    run: Run, redis_client: redis.Redis
) -> None:
    redis_client.sadd("redbeat::statics", "other")
    assert "Warning: other is in beat_schedule" in run("delete", "other", "--yes").err


@pytest.mark.usefixtures("three")
def test_trigger_prints_the_id_of_the_run(run: Run, redis_client: redis.Redis) -> None:
    ran = run("trigger", "other", "billing-day", "--json")
    assert [line["name"] for line in ran.json] == ["other", "billing-day"]
    assert {line["action"] for line in ran.json} == {"triggered"}
    assert len({line["task_id"] for line in ran.json}) == 2
    assert is_triggered(redis_client, "redbeat:other")
    assert not is_triggered(redis_client, "redbeat:billing-month")
    ran = run("trigger", "billing-month")
    assert ran.err.startswith("Triggered billing-month (")


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("verb", VERBS)
def test_one_unknown_name_stops_the_whole_command(
    run: Run, redis_client: redis.Redis, verb: str
) -> None:
    before = {key: redis_client.hgetall(key) for key in redis_client.keys("redbeat:[a-z]*")}
    ran = run(verb, "other", "biling-day", "--yes")
    assert ran.code == Exit.NOT_FOUND
    assert "There is no entry 'biling-day'; did you mean 'billing-day'" in ran.err
    assert {key: redis_client.hgetall(key) for key in redis_client.keys("redbeat:[a-z]*")} == before
    assert run(verb, "--match", "zzz*", "--yes").code == Exit.NOT_FOUND


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("words", [[], ["other", "--match", "*"]])
def test_names_and_a_pattern_exclude_each_other(run: Run, verb: str, words: list[str]) -> None:
    ran = run(verb, *words, "--yes")
    assert ran.code == 2
    assert "for example: --match 'billing-*'" in ran.err


def test_a_long_list_is_shortened_in_the_question(run: Run, make: Make) -> None:
    for number in range(12):
        make(f"entry-{number:02}")
    ran = run("trigger", "--match", "*", answer="n\n")
    assert "  entry-09\n  and 2 more\nTrigger 12 entries?" in ran.err


@pytest.mark.usefixtures("three")
def test_a_trigger_without_a_beat_is_reported(run: Run, redis_client: redis.Redis) -> None:
    put_triggers(redis_client, "redbeat:other", 2000)
    ran = run("trigger", "billing-day", "other", "--json")
    assert ran.code == Exit.CONFLICT
    assert [line["name"] for line in ran.json] == ["billing-day"]
    assert "'other' was not triggered: too many runs of 'other' are waiting" in ran.err
