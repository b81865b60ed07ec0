"""Tests of the stored forms of a nominal time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from redbeat.entries.runs import nominal

UTC = timezone.utc
INSTANT = datetime(2026, 10, 25, 0, 30, 0, 120_000, tzinfo=UTC)


def test_each_precision_has_its_form() -> None:
    found = nominal(INSTANT)
    assert found.iso == "2026-10-25T00:30:00.120000+00:00"
    assert (found.text, found.short) == ("1792888200.120000", "1792888200.12")
    assert found.seconds == INSTANT.timestamp()


def test_a_whole_second() -> None:
    found = nominal(INSTANT.replace(microsecond=0))
    assert found.iso == "2026-10-25T00:30:00+00:00"
    assert (found.text, found.short) == ("1792888200.000000", "1792888200")


@pytest.mark.parametrize(
    "same",
    [
        INSTANT.replace(tzinfo=None),
        INSTANT.astimezone(timezone(timedelta(hours=-3))),
        INSTANT.astimezone(ZoneInfo("Europe/Berlin")),
    ],
    ids=["naive", "offset", "zone"],
)
def test_equal_instants_have_equal_texts(same: datetime) -> None:
    nominal(INSTANT + timedelta(days=1))
    assert nominal(same) == nominal(INSTANT)


def test_cached_instants_are_not_mixed_up() -> None:
    others = [INSTANT + timedelta(microseconds=number) for number in range(3)]
    for instant in others * 2:
        assert nominal(instant).iso == instant.isoformat()


def test_both_hours_that_a_clock_repeats_differ() -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=zone)
    assert nominal(first).iso == "2026-10-25T00:30:00+00:00"
    assert nominal(first.replace(fold=1)).iso == "2026-10-25T01:30:00+00:00"
