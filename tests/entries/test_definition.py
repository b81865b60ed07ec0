"""Tests of the JSON of definitions, and of what cannot be stored."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from redbeat.decoder import encode
from redbeat.entries.definition import encode_definition

NOON = datetime(2026, 5, 5, 12, tzinfo=timezone.utc)


class Colour(str, Enum):
    RED = "red"


def definition(**fields: Any) -> dict[str, Any]:
    named = {"name": "n", "task": "t", "args": [], "kwargs": {}, "options": {}}
    return {**named, "schedule": schedule(5), "enabled": True, **fields}


STORABLE: tuple[dict[str, Any], ...] = (
    {},
    {"enabled": False, "args": None, "kwargs": None, "options": None},
    {"args": ()},
    {"args": (1, True, False, None, "two", -(2**70))},
    {"args": [1.0, 1e300, -0.0]},
    {"args": [[1], {"a": 1}, ()]},
    {"args": [NOON, crontab()]},
    {"args": [Colour.RED], "kwargs": {Colour.RED: 1}},
    {"name": 'sn"ow \u2603\n\U0001f600', "task": "\\", "kwargs": {"\u00e9": "\x00"}},
    {"name": "percent %s %d", "args": ["%s"], "kwargs": {"{": "}"}},
    {"kwargs": {"a": 1, "b": None, "c": [True]}, "options": {"queue": "q", "expires": NOON}},
    {"kwargs": OrderedDict(b=1, a=2)},
    {"kwargs": {"__type__": "datetime"}},
    {"kwargs": {"__type__": 1}},
    {"options": {"headers": {"__type__": "interval", "every": 1}}},
    {"schedule": schedule(5, relative=True)},
    {"schedule": schedule(timedelta(days=1, microseconds=1))},
    {"schedule": crontab(minute="*/5", hour=[1, 2])},
    {"schedule": crontab("*/5", "1-3", "mon,tue", "1", "*/2")},
    {"schedule": crontab(minute=5)},
    {"more": 1},
)


@pytest.mark.parametrize("fields", STORABLE, ids=repr)
def test_a_definition_is_written_as_the_encoder_writes_it(fields: dict[str, Any]) -> None:
    assert encode_definition(definition(**fields)) == encode(definition(**fields))


def test_equal_values_of_different_types_are_distinguished() -> None:
    texts = [encode_definition(definition(args=[one])) for one in (1, True, 1.0)]
    assert [json.loads(text)["args"] for text in texts] == [[1], [True], [1.0]]
    assert len(set(texts)) == len(texts)
