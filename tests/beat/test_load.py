"""Rules are copied from those of entries that differ only in their names."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.load import Rules
from redbeat.errors import DecodeError
from redbeat.storage.rows import Row

REST = '"task": "t", "args": [1], "schedule": {"__type__": "interval", "every": 60}'


@pytest.fixture
def rules(app: Celery) -> Rules:
    return Rules(app, RedBeatSchedulerEntry)


def row_of(name: str, rest: str = REST, policy: str | None = None) -> Row:
    text = f'{{"name": {json.dumps(name)}, {rest}}}'
    return Row(f"redbeat:{name}", "0", definition=text, policy=policy)


def test_twins_have_their_own_names(rules: Rules, app: Celery) -> None:
    one, other = (rules.rule_of(row_of(name, policy='{"jitter": 5}')) for name in "ab")
    assert (other.key, other.name, other.plan.identity) == ("redbeat:b", "b", "b")
    assert other.schedule is one.schedule, "it is copied"
    alone = Rules(app, RedBeatSchedulerEntry).rule_of(row_of("b", policy='{"jitter": 5}'))
    assert other == alone


def test_another_policy_is_another_rule(rules: Rules) -> None:
    rules.rule_of(row_of("a"))
    assert rules.rule_of(row_of("b", policy='{"overlap": "skip"}')).policy.overlap == "skip"


@pytest.mark.parametrize("again", ['"name": "a"', '"na\\u006de": "a"'])
def test_a_second_name_counts(rules: Rules, again: str) -> None:
    rest = f"{REST}, {again}"
    rules.rule_of(row_of("a", rest))
    with pytest.raises(DecodeError, match="does not match the key"):
        rules.rule_of(row_of("b", rest))


def test_static_entries_are_no_twins(rules: Rules) -> None:
    rules.statics = {"b"}
    restored: list[RedBeatSchedulerEntry] = []
    rules.restore = restored.append
    for name in "abc":
        rules.rule_of(row_of(name))
    assert [entry.name for entry in restored] == ["b"]


CRONTAB = (
    '"schedule": {"__type__": "crontab", "minute": "5", "hour": "*", "day_of_week": "*", '
    '"day_of_month": "*", "month_of_year": "*"}'
)
MONTHLY = '"schedule": {"__type__": "rrule", "freq": 1, "dtstart": 1769823000}'


class Own(RedBeatSchedulerEntry):
    """An entry class of a program, whose rules are read from entry objects."""


@pytest.mark.parametrize(
    "rest",
    [
        REST,
        f'"task": "t", {CRONTAB}',
        f'"task": "t", {MONTHLY}',
        '"task": "t", "schedule": 0.001',
        '"task": "t", "schedule": 60, "args": null, "kwargs": null, "options": null',
        '"task": "t", "schedule": 60, "args": {}, "kwargs": [], "options": []',
        '"task": "t", "schedule": 60, "enabled": 0',
        '"task": "t", "schedule": 60, "options": {"queue": "q", "expires": 5}',
        '"task": "t", "schedule": 60, "timezone": "Europe/Paris", "max_runs": 3',
    ],
)
def test_a_rule_is_the_same_without_an_entry_object(app: Celery, rest: str) -> None:
    app.conf.update(beat_cron_starting_deadline=300, timezone="Asia/Tokyo")
    plain, own = (
        Rules(app, entry_class).rule_of(row_of("a", rest))
        for entry_class in (RedBeatSchedulerEntry, Own)
    )
    assert plain == own
    assert plain.schedule.app is own.schedule.app is app
    assert plain.plan.policy.misfire_grace_time == (300 if "crontab" in rest else None)


def test_a_field_that_no_entry_has_is_refused(rules: Rules) -> None:
    with pytest.raises(DecodeError, match="evry"):
        rules.rule_of(row_of("a", f'{REST}, "evry": 5'))


@pytest.mark.parametrize("name", ["", "\udc80"])
def test_a_name_that_is_no_text_is_no_twins(rules: Rules, name: str) -> None:
    rules.rule_of(row_of("a"))
    with pytest.raises(DecodeError, match="lone surrogates"):
        rules.rule_of(row_of(name))


def test_a_definition_that_is_too_long_is_no_twins(rules: Rules) -> None:
    rules.rule_of(row_of("a"))
    with pytest.raises(DecodeError, match="characters of JSON"):
        rules.rule_of(row_of("a" * 1_100_000))
