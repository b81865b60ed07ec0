"""Tests of the settings redbeat_delivery, redbeat_on_lock_lost and redbeat_max_rate."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.errors import ConfigurationError

VALID = [
    ("delivery", "exactly_once"),
    ("delivery", "at_least_once"),
    ("delivery", "at_most_once"),
    ("on_lock_lost", "standby"),
    ("on_lock_lost", "exit"),
]
CHOICES = {"delivery": "exactly_once, at_least_once, at_most_once", "on_lock_lost": "standby, exit"}
#: The default of each setting. A delivery of None means the strongest guarantee that is possible.
DEFAULTS = {"delivery": None, "on_lock_lost": "standby"}
WRONG = ["", "AT_MOST_ONCE", "at-most-once", "die", 1, True, ["exit"], b"exit"]


def config_of(namespace: str | None = None, **settings: Any) -> RedBeatConfig:
    """Return the configuration of an app with these settings."""
    app = Celery("conf", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.config_from_object(settings, namespace=namespace)
    return RedBeatConfig(app)


def test_defaults() -> None:
    config = config_of()
    assert (config.delivery, config.on_lock_lost) == (None, "standby")


@pytest.mark.parametrize("name", CHOICES)
def test_none_is_the_default(name: str) -> None:
    config = config_of(**{f"redbeat_{name}": None})
    assert getattr(config, name) == DEFAULTS[name]


@pytest.mark.parametrize(("name", "value"), VALID)
@pytest.mark.parametrize(
    ("namespace", "spelling"),
    [
        (None, "redbeat_{}"),
        (None, "REDBEAT_{}"),
        ("CELERY", "CELERY_REDBEAT_{}"),
        ("CELERY", "REDBEAT_{}"),
    ],
)
def test_valid_values_in_all_spellings(
    caplog: pytest.LogCaptureFixture, namespace: str | None, spelling: str, name: str, value: str
) -> None:
    setting = spelling.format(name.upper() if spelling[0].isupper() else name)
    assert getattr(config_of(namespace, **{setting: value}), name) == value
    assert caplog.records == []


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_wrong_value_is_an_error_that_names_the_valid_ones(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        config_of(**{f"redbeat_{name}": value})
    assert str(raised.value) == (f"redbeat_{name} is {value!r}, it must be one of {CHOICES[name]}")


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [
        ("redbeat_delivry", "redbeat_delivery"),
        ("REDBEAT_DELIVERYS", "redbeat_delivery"),
        ("redbeat_on_lock_loss", "redbeat_on_lock_lost"),
    ],
)
def test_a_misspelt_name_is_reported(
    caplog: pytest.LogCaptureFixture, spelling: str, meant: str
) -> None:
    config_of(**{spelling: "exit"}).report()
    (record,) = caplog.records
    assert record.getMessage() == f"Unknown setting {spelling}: did you mean {meant}?"


@pytest.mark.parametrize(("value", "rate"), [(None, None), (5, 5.0), (0.25, 0.25)])
def test_the_rate_of_late_runs(value: Any, rate: float | None) -> None:
    assert config_of(redbeat_max_rate=value).max_rate == rate


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf"), [5]])
def test_an_impossible_rate(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"redbeat_max_rate is .*above 0"):
        config_of(redbeat_max_rate=value)
