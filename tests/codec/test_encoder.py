"""Tests of values that cannot be stored, and of custom encoders and decoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import schedule
from dateutil import tz
from dateutil.rrule import MO

from redbeat import decoder
from redbeat.decoder import (
    MAX_DEPTH,
    MAX_TEXT,
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    decode,
    encode,
)
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.schedules import rrule

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)


# -- values that cannot be stored


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

REFUSED: tuple[tuple[Any, str], ...] = (
    (b"x", "text for bytes"),
    ({1}, "a list for a set"),
    (frozenset(), "a list for a set"),
    (timedelta(1), "seconds for a timedelta"),
    (Decimal("1.5"), "decimals"),
    (UUID(int=5), "UUID cannot be stored"),
    (date(2020, 1, 1), "text for bytes, dates"),
    (NEW_YORK, "ZoneInfo cannot be stored"),
    (object(), "object"),
    (len, "builtin_function"),
    (float("nan"), "null"),
    (float("-inf"), "null"),
    ({1: 2}, "the key 1"),
    ({None: 2}, "the key None"),
    (CIRCLE, "itself"),
    (10**5000, "digits"),
)


@pytest.mark.parametrize(("value", "hint"), REFUSED, ids=lambda value: type(value).__name__)
def test_the_error_names_the_value_that_cannot_be_stored(value: Any, hint: str) -> None:
    with pytest.raises(InvalidEntryError, match=hint) as caught:
        encode({"kwargs": {"when": value}})
    if hint not in ("itself", "digits"):
        assert caught.value.field == "kwargs.when"
    with pytest.raises((TypeError, ValueError), match=hint):
        json.dumps({"when": value}, cls=RedBeatJSONEncoder)


def test_the_path_of_an_error_contains_list_indexes_and_keys() -> None:
    with pytest.raises(InvalidEntryError) as caught:
        encode({"args": [1, {"deep": [{"__type__": "weekday", "x": b""}]}]}, "definition")
    assert caught.value.field == "definition.args[1].deep[0].x"
    with pytest.raises(InvalidEntryError, match=r"^value: "):
        encode(b"x")


SCHEDULES: tuple[tuple[Any, str, str], ...] = (
    (schedule(None), "schedule.every", "None"),
    (schedule(timedelta(days=400_000)), "schedule.every", "1000 years"),
    (rrule(3, datetime(2020, 1, 1, tzinfo=tz.tzstr("EST5EDT"))), "schedule.dtstart", "ZoneInfo"),
    (
        rrule(3, NOON, until=datetime(2020, 1, 1, tzinfo=tz.tzstr("EST5EDT"))),
        "schedule.until",
        "ZoneInfo",
    ),
)


@pytest.mark.parametrize(("value", "field", "hint"), SCHEDULES)
def test_the_error_names_the_part_of_a_schedule_that_cannot_be_stored(
    value: Any, field: str, hint: str
) -> None:
    with pytest.raises(InvalidEntryError, match=hint) as caught:
        encode({"schedule": value})
    assert caught.value.field == field


# -- limits


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_depth_is_limited_both_ways() -> None:
    assert decode(nested(MAX_DEPTH), "x") is not None
    assert encode(json.loads(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5000, 200_000):
        with pytest.raises(DecodeError, match=r"^definition: is nested"):
            decode(nested(depth), "definition")
    with pytest.raises(InvalidEntryError, match="nested"):
        encode(json.loads(nested(MAX_DEPTH + 1)))
    escaped: Any = None
    for _ in range(MAX_DEPTH // 2):
        escaped = {"__type__": "weekday", "x": escaped}
    with pytest.raises(InvalidEntryError, match="nested"):
        encode(escaped)


def test_many_flat_containers_do_not_count_as_depth() -> None:
    wide = [[index] for index in range(2 * MAX_DEPTH)]
    assert decode(encode(wide), "x") == wide
    assert decode(encode(wide).encode(), "x") == wide


def test_size_is_limited_both_ways() -> None:
    with pytest.raises(DecodeError, match=f"^meta: .*{MAX_TEXT}"):
        decode(" " * (MAX_TEXT + 1), "meta")
    with pytest.raises(InvalidEntryError, match=f"^kwargs: .*{MAX_TEXT}"):
        encode(" " * MAX_TEXT, "kwargs")


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", b"\xff", "1" * 5000, "[1,]"])
def test_text_that_is_not_json_is_an_error(text: str | bytes) -> None:
    with pytest.raises(DecodeError, match=r"^definition: cannot be read as JSON"):
        decode(text, "definition")


# -- custom encoders and decoders


class Money:
    """A type that RedBeat cannot store without a custom encoder."""


class MyEncoder(RedBeatJSONEncoder):
    """A custom encoder for `Money` that also changes the format of datetimes."""

    def default(self, obj: Any) -> Any:
        """Encode money and datetimes; leave all other types to RedBeat."""
        if isinstance(obj, Money):
            return {"__type__": "money", "paid": NOON}
        if isinstance(obj, datetime):
            return obj.isoformat()
        return super().default(obj)


class MyDecoder(RedBeatJSONDecoder):
    """A custom decoder for `Money`."""

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Decode money; leave all other objects to RedBeat."""
        if d.get("__type__") == "broken":
            raise KeyError("broken")
        return Money() if d.get("__type__") == "money" else super().dict_to_object(d)


class Foreign(json.JSONEncoder):
    """A custom encoder that is not a subclass of RedBeat's encoder."""


Replace = Callable[..., None]


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Return a function that replaces names in ``redbeat.schedulers``, as some programs do."""

    def replace(**names: Any) -> None:
        for name, value in names.items():
            monkeypatch.setattr(f"redbeat.schedulers.{name}", value)

    return replace


def test_without_a_replacement_the_codec_is_that_of_redbeat() -> None:
    assert decoder.names.RedBeatJSONEncoder is RedBeatJSONEncoder
    assert decoder.names.RedBeatJSONDecoder is RedBeatJSONDecoder


def test_a_replaced_codec_is_used(replace: Replace) -> None:
    replace(RedBeatJSONEncoder=MyEncoder, RedBeatJSONDecoder=MyDecoder)
    text = encode({"kwargs": {"m": Money()}, "schedule": schedule(5)})
    assert json.loads(text)["kwargs"]["m"] == {"__type__": "money", "paid": NOON.isoformat()}
    found = decode(text, "x")
    assert isinstance(found["kwargs"]["m"], Money)
    assert found["schedule"] == schedule(5)
    with pytest.raises(InvalidEntryError) as caught:
        encode({"kwargs": {"b": b""}})
    assert caught.value.field == "kwargs.b"
    with pytest.raises(DecodeError, match=r"^meta: .*broken"):
        decode('{"__type__": "broken"}', "meta")


def test_a_foreign_codec_is_used_unchanged(replace: Replace) -> None:
    replace(RedBeatJSONEncoder=Foreign, RedBeatJSONDecoder=json.JSONDecoder)
    assert decode(encode({"__type__": "weekday", "wkday": 1}), "x") == {
        "__type__": "weekday",
        "wkday": 1,
    }
    with pytest.raises(InvalidEntryError, match=r"^definition: .*datetime"):
        encode({"when": NOON}, "definition")


def test_an_encoder_that_returns_its_argument_is_an_error(replace: Replace) -> None:
    class Same(RedBeatJSONEncoder):
        def default(self, obj: Any) -> Any:
            return obj

    replace(RedBeatJSONEncoder=Same)
    with pytest.raises(InvalidEntryError, match="nested"):
        encode({"x": object()})


def test_the_error_about_an_encoder_that_skips_redbeat_explains_it(replace: Replace) -> None:
    class Plain(RedBeatJSONEncoder):
        def default(self, obj: Any) -> Any:
            return json.JSONEncoder.default(self, obj)

    replace(RedBeatJSONEncoder=Plain)
    with pytest.raises(InvalidEntryError, match=r"^when: .*datetime"):
        encode({"when": NOON})


def test_the_encoder_streams_too() -> None:
    chunks = RedBeatJSONEncoder(indent=1).iterencode({"at": MO})
    assert json.loads("".join(chunks)) == {"at": {"__type__": "weekday", "wkday": 0}}
