"""Tests of JSON encoding and decoding.

The inputs are the JSON of RedBeat 2, hand-written JSON, and invalid JSON.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from enum import Enum
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytz
from celery.schedules import crontab, schedule
from dateutil import tz
from dateutil.relativedelta import MO as RELATIVE_MO
from dateutil.rrule import FR, MO, SA
from hypothesis import given
from hypothesis import strategies as st

from redbeat.decoder import (
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    decode,
    decode_schedule,
    encode,
    from_timestamp,
    get_utcoffset_minutes,
    to_timestamp,
)
from redbeat.errors import DecodeError
from redbeat.schedules import rrule

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
PYTZ = pytz.timezone("America/New_York")
KOLKATA = timezone(timedelta(hours=5, minutes=30))
NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)
DATE = '{"__type__": "datetime", "year": 2020, "month": 1, "day": 1, "hour": 0, "minute": 0, '
CRON_END = '"day_of_week": "*", "day_of_month": "*", "month_of_year": "*"}'
RULE_END = '"bymonthday": null, "byyearday": null, "byeaster": null, "byweekno": null, '

# The exact JSON that RedBeat 2.4 writes.
STORED: tuple[tuple[Any, str], ...] = (
    (schedule(60), '{"__type__": "interval", "every": 60.0, "relative": false}'),
    (schedule(5, relative=True), '{"__type__": "interval", "every": 5.0, "relative": true}'),
    (
        crontab(minute="5", hour=[1, 2]),
        '{"__type__": "crontab", "minute": "5", "hour": [1, 2], ' + CRON_END,
    ),
    (
        datetime(2020, 1, 1, tzinfo=UTC),
        DATE + '"second": 0, "microsecond": 0, "timezone": 0.0}',
    ),
    (
        datetime(2020, 1, 1, 0, 0, 3, 4, tzinfo=ZoneInfo("UTC")),
        DATE + '"second": 3, "microsecond": 4, "timezone": "UTC"}',
    ),
    (
        datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=-5))),
        DATE + '"second": 0, "microsecond": 0, "timezone": -18000.0}',
    ),
    (
        datetime(2020, 1, 1, tzinfo=NEW_YORK),
        DATE + '"second": 0, "microsecond": 0, "timezone": "America/New_York"}',
    ),
    (SA, '{"__type__": "weekday", "wkday": 5}'),
    (FR(1), '{"__type__": "weekday", "wkday": 4, "n": 1}'),
    (
        rrule(
            "YEARLY",
            dtstart=datetime(2030, 1, 1),
            until=datetime(2040, 1, 1),
            bymonth=[1, 2],
            byhour=3,
            byweekday=FR,
        ),
        '{"__type__": "rrule", "freq": 0, "interval": 1, "wkst": null, "count": null, '
        '"bysetpos": null, "bymonth": [1, 2], ' + RULE_END + '"byweekday": {"__type__": '
        '"weekday", "wkday": 4}, "byhour": 3, "byminute": null, "bysecond": null, '
        '"dtstart": 1893456000, "dtstart_tz": 0, "until": 2208988800, "until_tz": 0}',
    ),
    (
        rrule("YEARLY", dtstart=datetime(2000, 1, 1, tzinfo=KOLKATA), byweekday=[0, 1]),
        '{"__type__": "rrule", "freq": 0, "interval": 1, "wkst": null, "count": null, '
        '"bysetpos": null, "bymonth": null, ' + RULE_END + '"byweekday": [0, 1], '
        '"byhour": null, "byminute": null, "bysecond": null, "dtstart": 946665000, '
        '"dtstart_tz": 330.0}',
    ),
)


@pytest.mark.parametrize(("value", "text"), STORED, ids=lambda value: str(value)[:40])
def test_texts_are_those_of_redbeat_2_and_come_back_equal(value: Any, text: str) -> None:
    assert encode(value) == json.dumps(value, cls=RedBeatJSONEncoder) == text
    found = json.loads(text, cls=RedBeatJSONDecoder)
    assert found == decode(text, "x") == value
    assert type(found) is type(value)
    assert encode(found) == text


# -- JSON written by hand, as in the manual --------------------------------------------------------


def by_hand(**fields: Any) -> Any:
    return decode_schedule(decode(json.dumps(fields), "definition"))


def test_equal_crontabs_are_objects_of_their_own() -> None:
    one, other = (by_hand(__type__="crontab", minute="5", hour=1) for _ in range(2))
    one.nowfun = lambda: None
    one.minute = {7}
    assert other == crontab(minute="5", hour=1)
    assert (other.nowfun, other.minute) == (None, {5})
    assert '"hour": "1"' in encode(by_hand(__type__="crontab", minute="5", hour="1"))


# -- exact both ways


@given(
    st.datetimes(
        timezones=st.sampled_from(
            [
                None,
                UTC,
                KOLKATA,
                NEW_YORK,
                ZoneInfo("Australia/Lord_Howe"),
                tz.tzoffset(None, -3600),
            ]
        )
        | st.none(),
        allow_imaginary=True,
    )
)
def test_every_datetime_survives_a_round_trip(moment: datetime) -> None:
    found = decode(encode(moment), "x")
    expected = moment.replace(tzinfo=UTC, fold=0) if moment.tzinfo is None else moment
    assert found.replace(tzinfo=None) == expected.replace(tzinfo=None)
    assert found.utcoffset() == expected.utcoffset()
    assert found.fold == expected.fold


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.just("__type__"), inner, max_size=4)
        | st.fixed_dictionaries(
            {
                "__type__": st.sampled_from(
                    ["datetime", "interval", "crontab", "rrule", "weekday", "verbatim", "mine"]
                )
            },
            optional={"every": inner, "wkday": st.integers(0, 6), "items": inner},
        )
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_every_json_value_survives_a_round_trip(value: Any) -> None:
    assert decode(encode(value), "x") == value
    assert json.loads(json.dumps(value, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"__type__": "foo", "wkday": 5}',
        '{"__type__": "interval", "every": 5, "foo": 1}',
        '{"__type__": "interval", "every": "0"}',
        '{"__type__": "datetime", "year": 2020}',
        '{"__type__": "datetime", "year": 2020, "month": 13, "day": 1}',
        '{"__type__": "datetime", "year": 2020, "month": 1, "day": 1, "timezone": 1e9}',
        '{"__type__": "datetime", "year": 2020, "month": 1, "day": 1, "timezone": "Mars/Olympus"}',
        '{"__type__": "verbatim", "items": 5}',
        '{"__type__": "verbatim", "items": [[1, 2]]}',
        '{"__type__": "rrule", "freq": "often"}',
        '{"__type__": {"x": 1}}',
    ],
)
def test_an_object_that_does_not_fit_its_tag_is_left_unchanged(text: str) -> None:
    assert json.loads(text, cls=RedBeatJSONDecoder) == json.loads(text)


def test_an_iterator_is_stored_as_its_values() -> None:
    cron = crontab(minute=iter([5, 7]), hour=True)
    found = decode(encode(cron), "x")
    assert found == cron
    text = json.loads(encode(found))
    assert (text["minute"], text["hour"]) == ([5, 7], 1)


def test_rules_survive_a_round_trip_with_all_their_parts() -> None:
    rule = rrule(
        "MONTHLY",
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=KOLKATA),
        interval=2,
        wkst=MO,
        until=NOON,
        bysetpos=-1,
        bymonth={3, 1},
        byweekday=[FR(1), RELATIVE_MO(-1), 2],
        byhour=(9, 17),
    )
    found = decode(encode(rule), "x")
    assert found == rule
    assert found.byweekday == [FR(1), MO(-1), 2]


def test_a_repeated_hour_keeps_its_fold() -> None:
    moment = datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1)
    assert encode(moment).endswith('"timezone": "America/New_York", "fold": 1}')
    assert decode(encode(moment), "x").fold == 1


@pytest.mark.parametrize(
    ("moment", "fold", "zone"),
    [
        (PYTZ.localize(datetime(2026, 7, 1)), 0, "America/New_York"),
        (PYTZ.localize(datetime(2026, 11, 1, 1, 30), is_dst=True), 0, "America/New_York"),
        (PYTZ.localize(datetime(2026, 11, 1, 1, 30), is_dst=False), 1, "America/New_York"),
        (datetime(2026, 7, 1, tzinfo=PYTZ), 0, -17760.0),
    ],
)
def test_zones_of_pytz_keep_the_instant(moment: datetime, fold: int, zone: object) -> None:
    found = decode(encode(moment), "x")
    assert found.astimezone(UTC) == moment.astimezone(UTC)
    assert found.fold == fold
    assert json.loads(encode(moment))["timezone"] == zone


def test_subclasses_of_plain_types_are_stored_as_plain_values() -> None:
    class Colour(str, Enum):
        RED = "red"

    class Kind(int, Enum):
        ONE = 1

    class Moment(datetime):
        pass

    value = OrderedDict(colour=Colour.RED, kind=[Kind.ONE], items=(1.5, type("F", (float,), {})(2)))
    assert decode(encode(value), "x") == {"colour": "red", "kind": [1], "items": [1.5, 2.0]}
    assert decode(encode({"at": Moment(2020, 1, 1, tzinfo=UTC)}), "x") == {
        "at": datetime(2020, 1, 1, tzinfo=UTC)
    }


# -- strict checks of schedules

MALFORMED: tuple[tuple[Any, str, str], ...] = (
    (None, "", "not a schedule"),
    (True, "", "not a schedule"),
    ("5", "", "number of seconds"),
    ([1], "", "not a schedule"),
    ({}, "", "not a schedule"),
    ({"__type__": "lunar"}, "", "unknown '__type__' 'lunar'; use .*interval, crontab, rrule"),
    ({"__type__": ["x" * 99]}, "", "unknown"),
    ({"__type__": "weekday", "wkday": 1}, "", "use an object"),
    (1e300, ".every", "1000 years"),
    (float("nan"), ".every", "number of seconds"),
    ({"__type__": "interval"}, "", "missing key 'every'"),
    (
        {"__type__": "interval", "every": 5, "foo": 1},
        "",
        "unknown key 'foo' in interval; valid: every, relative",
    ),
    ({"__type__": "interval", "every": "5"}, ".every", "not a number"),
    ({"__type__": "interval", "every": True}, ".every", "not a number"),
    ({"__type__": "interval", "every": 5, "relative": "no"}, ".relative", "true nor false"),
    ({"__type__": "crontab", "hours": 5}, "", "unknown key 'hours' in crontab"),
    ({"__type__": "crontab", "minute": 60}, ".minute", "60"),
    ({"__type__": "crontab", "hour": "*/0"}, ".hour", "zero"),
    ({"__type__": "crontab", "day_of_week": "someday"}, ".day_of_week", "someday"),
    ({"__type__": "crontab", "hour": ["1"]}, ".hour", "integer"),
    ({"__type__": "crontab", "hour": True}, ".hour", "integer"),
    ({"__type__": "crontab", "hour": 1.5}, ".hour", "integer"),
    ({"__type__": "rrule"}, "", "missing key 'freq'"),
    ({"__type__": "rrule", "freq": "often"}, ".freq", "often.*YEARLY"),
    ({"__type__": "rrule", "freq": 3, "byhours": 3}, "", "unknown key 'byhours'"),
    ({"__type__": "rrule", "freq": 3, "interval": 0}, ".interval", "above 0"),
    ({"__type__": "rrule", "freq": 3, "byhour": 24}, ".byhour", "0 to 23"),
    ({"__type__": "rrule", "freq": 3, "count": 5}, ".dtstart", "count"),
    ({"__type__": "rrule", "freq": 3, "dtstart": "now"}, ".dtstart", "not a number"),
    ({"__type__": "rrule", "freq": 3, "dtstart": 1e300}, ".dtstart", "UNIX"),
    ({"__type__": "rrule", "freq": 3, "dtstart": 0, "dtstart_tz": 1e5}, ".dtstart", "UNIX"),
    ({"__type__": "rrule", "freq": 3, "until": 0, "until_tz": "x"}, ".until_tz", "number"),
    ({"__type__": "rrule", "freq": 3, "dtstart": 0, "dtstart_zone": "X/Y"}, ".dtstart_zone", "X/Y"),
    ({"__type__": "rrule", "freq": 3, "dtstart_zone": True}, ".dtstart_zone", "True"),
    ({"__type__": "rrule", "freq": 3, "byweekday": {"day": 1}}, ".byweekday", "weekday"),
    ({"__type__": "rrule", "freq": 3, "byweekday": 9}, ".byweekday", "weekday"),
    (
        {"__type__": "rrule", "freq": 3, "byweekday": [{"__type__": "weekday", "wkday": 9}]},
        ".wkday",
        "0 \\(Monday\\) to 6",
    ),
    (
        {
            "__type__": "rrule",
            "freq": 3,
            "byweekday": [{"__type__": "weekday", "wkday": 1, "n": 0}],
        },
        ".n",
        "leave n out",
    ),
)


@pytest.mark.parametrize(("value", "key", "problem"), MALFORMED, ids=str)
def test_the_error_about_a_bad_schedule_says_what_is_wrong(
    value: Any, key: str, problem: str
) -> None:
    read = decode(json.dumps({"schedule": value}), "definition")["schedule"]
    with pytest.raises(DecodeError, match=problem) as caught:
        decode_schedule(read)
    assert caught.value.field == f"definition.schedule{key}"


# -- times as numbers


def test_timestamps() -> None:
    whole = to_timestamp(datetime(2020, 1, 1))
    assert whole == 1577836800
    assert isinstance(whole, int)
    assert to_timestamp(datetime(2020, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)) == 1577836800.5
    assert to_timestamp(datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)) == -0.5
    assert to_timestamp(datetime(2020, 1, 1, tzinfo=NEW_YORK)) == 1577854800
    assert from_timestamp(1000.5) == datetime(1970, 1, 1, 0, 16, 40, 500_000, tzinfo=UTC)
    assert from_timestamp(1000, 60).isoformat() == "1970-01-01T01:16:40+01:00"
    assert get_utcoffset_minutes(NOON) == get_utcoffset_minutes(datetime(2020, 1, 1)) == 0
    assert get_utcoffset_minutes(datetime(2020, 1, 1, tzinfo=NEW_YORK)) == -300.0


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)))
def test_timestamps_are_exact(moment: datetime) -> None:
    assert from_timestamp(to_timestamp(moment)) == moment.replace(tzinfo=UTC)


def test_rules_that_are_costly_to_check_are_not_all_read() -> None:
    """Whether an excluded day is a whole occurrence takes a search of a century for each day."""
    days = ",".join(["20260101"] * 900)
    rules = f"RRULE:FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6\nEXDATE:{days}"
    began = process_time()
    values = decode(json.dumps([{"__type__": "rruleset", "ical": rules}] * 90), "kwargs")
    assert process_time() - began < 5
    assert isinstance(values[-1], dict)
