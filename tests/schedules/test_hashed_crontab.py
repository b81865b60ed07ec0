"""Tests of crontabs with H."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from celery.schedules import crontab

from redbeat import hashed_crontab
from redbeat.errors import InvalidEntryError

NAMES = [f"entry-{number}" for number in range(10_000)]


def test_the_name_determines_the_minute() -> None:
    assert hashed_crontab("a") == hashed_crontab("a") != hashed_crontab("b")
    assert type(hashed_crontab("a")) is crontab
    minutes = Counter(next(iter(hashed_crontab(name).minute)) for name in NAMES)
    assert set(minutes) == set(range(60))
    assert max(minutes.values()) / (len(NAMES) / 60) <= 1.2


def test_the_fields_do_not_follow_from_each_other() -> None:
    rules = (hashed_crontab(name, "H", "H") for name in NAMES)
    times = Counter((*rule.hour, *rule.minute) for rule in rules)
    assert len(times) == 24 * 60


@pytest.mark.parametrize(
    ("field", "text", "lowest", "highest"),
    [
        ("minute", "H(10-19)", 10, 19),
        ("hour", "H", 0, 23),
        ("day_of_week", "H(1-5)", 1, 5),
        ("day_of_month", "H", 1, 28),
        ("month_of_year", "H", 1, 12),
    ],
)
def test_the_values_fill_their_range(field: str, text: str, lowest: int, highest: int) -> None:
    fields: dict[str, Any] = {"minute": 0, field: text}
    rules = (hashed_crontab(name, **fields) for name in NAMES[:1000])
    found = {value for rule in rules for value in getattr(rule, field)}
    assert found == set(range(lowest, highest + 1))


def test_steps_begin_at_the_value() -> None:
    for name in NAMES[:50]:
        minutes = sorted(hashed_crontab(name, "H/15").minute)
        assert minutes == list(range(minutes[0], 60, 15))
        assert minutes[0] < 15
        assert set(hashed_crontab(name, "H(30-59)/10,5").minute) > {5}


@pytest.mark.parametrize("text", ["H(", "H(5-1)", "H(0-60)", "H/0", "H/61", "H-5", "H(0-5)/9"])
def test_an_invalid_field_is_named(text: str) -> None:
    with pytest.raises(InvalidEntryError) as info:
        hashed_crontab("a", text)
    assert info.value.field == "minute"
