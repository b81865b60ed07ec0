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
    assert [entry.name for entry in restored] == ["a", "b"]


@pytest.mark.parametrize("name", ["", "\udc80"])
def test_a_name_that_is_no_text_is_no_twins(rules: Rules, name: str) -> None:
    rules.rule_of(row_of("a"))
    with pytest.raises(DecodeError, match="lone surrogates"):
        rules.rule_of(row_of(name))


def test_a_definition_that_is_too_long_is_no_twins(rules: Rules) -> None:
    rules.rule_of(row_of("a"))
    with pytest.raises(DecodeError, match="characters of JSON"):
        rules.rule_of(row_of("a" * 1_100_000))
