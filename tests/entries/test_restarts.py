"""Tests of which saves restart the history of a finished entry."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from redbeat import clocked, rrule
from redbeat.entries.definition import encode_definition, encode_policy
from redbeat.entries.history import History, history_after_save
from redbeat.entries.policy import Policy

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
#: The entry ran half a minute after its nominal time.
RAN = NOON + timedelta(seconds=30)
NOW = NOON + timedelta(hours=3)
EARLIER, LATER = NOON - timedelta(hours=1), NOON + timedelta(hours=1)
INSTANT = timedelta(microseconds=1)


def texts(when: Any = 60, args: Any = None, **policy: Any) -> tuple[str, str]:
    when = schedule(when) if isinstance(when, int) else when
    definition = {"name": "a", "task": "t", "args": args, "kwargs": {}, "options": {}}
    text = encode_definition({**definition, "schedule": when, "enabled": True})
    return text, encode_policy(when, Policy.of(policy))


def once(at: datetime) -> tuple[str, str]:
    return texts(clocked(at), max_runs=1)


ONCE = History(RAN, 1, NOON)
LIMITED = History(RAN, 5, NOON)

# -- changes that restart a finished entry ---------------------------------------------------------

DAILY = partial(rrule, "DAILY", NOON)


def restarts(old: tuple[str, str], new: tuple[str, str], foreign: Collection[str] = ()) -> bool:
    """Return whether a save restarts an entry that has used up a ``max_runs`` of 1."""
    before, after = (
        (definition, json.dumps({**json.loads(policy or "{}"), "max_runs": 1}))
        for definition, policy in (old, new)
    )
    return history_after_save(ONCE, before, after, NOW, foreign=foreign) is not ONCE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (texts(60), texts(61)),
        (texts(60), texts(schedule(60, relative=True))),
        (texts(crontab(minute="1")), texts(crontab(minute="2"))),
        (texts(clocked(NOON)), texts(clocked(NOW))),
        (texts(DAILY()), texts(DAILY(count=2))),
        (texts(60), texts(60, timezone="Asia/Tokyo")),
        (texts(60), texts(60, start_time=NOON)),
        (texts(60, end_time=NOON), texts(60, end_time=NOW)),
    ],
)
def test_another_schedule_zone_or_window_restarts(
    old: tuple[str, str], new: tuple[str, str]
) -> None:
    assert restarts(old, new)


BARE = json.dumps({"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}})
NUMBER = json.dumps({"name": "a", "task": "t", "schedule": 60, "max_runs": 0})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (texts(60), texts(60)),
        (texts(60), texts(60, args=[1])),
        (texts(60), texts(60, on_finish="disable", jitter=2, overlap="skip")),
        (texts(60, end_time=NOON), texts(60, end_time="2026-03-02T13:00:00+01:00")),
        (texts(60), (texts(60)[0].replace('"enabled": true', '"enabled": false'), "")),
        ((BARE, ""), texts(60)),
        ((NUMBER, ""), texts(60)),
        (('{"schedule": 1, "task": "t"}', ""), ('{"schedule": 1, "task": "s"}', "")),
    ],
)
def test_other_changes_and_other_spellings_do_not_restart(
    old: tuple[str, str], new: tuple[str, str]
) -> None:
    assert not restarts(old, new)


def test_a_field_that_a_class_defines_itself_does_not_restart() -> None:
    old, new = (json.dumps({**json.loads(BARE), "max_runs": most}) for most in (1, "many"))
    later = old.replace("60", "5")
    assert history_after_save(ONCE, (old, ""), (new, ""), NOW, foreign=["max_runs"]) == ONCE
    assert restarts((old, ""), (later, ""), ["max_runs"])
    assert history_after_save(ONCE, (old, ""), (later, ""), NOW) == History(NOW, 0)
    assert history_after_save(ONCE, (old, ""), (later, ""), NOW, foreign=["max_runs"]) == ONCE


# -- the history of a restarted entry --------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "old", "new", "expected"),
    [
        (ONCE, texts(60, max_runs=1), texts(5, max_runs=1), History(NOW, 0)),
        (ONCE, texts(60, max_runs=1), texts(60, max_runs=1, args=[1]), ONCE),
        (ONCE, texts(60, max_runs=1), texts(60, max_runs=2), ONCE),
        (ONCE, texts(60, max_runs=1), texts(5, max_runs=3), History(NOW, 0)),
        (ONCE, texts(60, max_runs=1), texts(5), ONCE),
        (ONCE, texts(60), texts(5, max_runs=1), History(NOW, 0)),
        (ONCE, texts(60), texts(60, max_runs=1), ONCE),
        (ONCE, texts(60, max_runs=1), texts(60, max_runs=1, start_time=NOON), History(NOW, 0)),
        (LIMITED, texts(60, max_runs=5), texts(60, max_runs=2), LIMITED),
        (LIMITED, texts(60, max_runs=6), texts(5, max_runs=6), LIMITED),
        (ONCE, texts(crontab("1"), max_runs=1), texts(crontab("2"), max_runs=1), History(NOW, 0)),
        (ONCE, once(NOON), once(LATER), History(LATER - INSTANT, 0)),
        (ONCE, once(NOON), once(EARLIER), History(NOON, 0)),
        (History(RAN, 1), once(NOON), once(EARLIER), History(RAN, 0)),
        (History(None, 1), once(NOON), once(EARLIER), History(EARLIER - INSTANT, 0)),
        (ONCE, ("no JSON", ""), texts(5, max_runs=1), History(NOW, 0)),
        (ONCE, texts(5, max_runs=1), ("no JSON", ""), ONCE),
    ],
)
def test_a_used_up_limit_counts_from_0_for_another_schedule(
    history: History, old: tuple[str, str], new: tuple[str, str], expected: History
) -> None:
    assert history_after_save(history, old, new, NOW) == expected


@pytest.mark.parametrize(
    ("history", "new", "expected"),
    [
        (ONCE, texts(60, max_runs=1), History(RAN, 0, NOON)),
        (ONCE, texts(5, max_runs=1), History(RAN, 0, NOON)),
        (History(RAN, 0), texts(60, max_runs=1), History(RAN, 0)),
        (LIMITED, texts(60), LIMITED),
    ],
)
def test_a_last_run_that_an_application_wrote_restarts_and_wins(
    history: History, new: tuple[str, str], expected: History
) -> None:
    assert history_after_save(history, texts(60, max_runs=1), new, NOW, rewritten=True) == expected
