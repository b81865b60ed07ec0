"""Whatever is in a file, an import ends with entries or with one error for each of its entries."""

from __future__ import annotations

import dbm
import io
import json
import pickle
import re
import tempfile
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule, solar
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redbeat import Schedule
from redbeat.transfer.crontab_file import read_crontab
from redbeat.transfer.django import OPTIONS, TASK, read_fixture
from redbeat.transfer.importing import Importer
from redbeat.transfer.incoming import Incoming, UnreadableSourceError
from redbeat.transfer.jsonlines import FIELDS, read_lines
from redbeat.transfer.shelve_file import read_shelve
from tests.fuzz.hostile import texts, values
from tests.samples import examples
from tests.servers import RedisServer

#: The most characters of one problem.
MAX_PROBLEM = 1000

DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 5000

#: Instants at the edges of the calendar, and texts that are almost instants.
EDGES = (
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-12:00", "0001-01-01", "9999-12-31"),
    *("2026-03-29T02:30:00", "2026-01-01T00:00:00+24:00", "20260101", "2026-W01", "1e9", 1e9),
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00", "9999-12-31T23:59:59"),
)
odd = st.one_of(st.sampled_from(EDGES), values)


def cases(number: int) -> settings:
    """Return the settings of a test that tries a fixed selection of this number of cases."""
    return settings(
        examples(number),
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def importing_app(redis_server: RedisServer) -> Iterator[Celery]:
    """An app in a time zone with DST, with an empty schedule."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    app = Celery("imports", broker=redis_server.url, set_as_current=False)
    app.conf.update(timezone="Europe/Paris", enable_utc=True)
    yield app
    app.close()


def outcome(app: Celery, source: Iterator[Incoming], where: str) -> None:
    """Import a source; assert that each problem has a place, a field and a short, safe text."""
    unreadable = ""
    importer = Importer(Schedule(app), "replace")
    try:
        importer.check(source)
        importer.write()
    except UnreadableSourceError as error:
        unreadable = str(error)
    assert len(unreadable) < MAX_PROBLEM
    for problem in importer.problems:
        assert re.match(where, problem.where), problem
        assert re.match(r".{1,200}?: \S", problem.text), problem.text
        assert len(problem.where) + len(problem.text) < MAX_PROBLEM
        for bug in ("'NoneType'", "object has no attribute", "unexpected keyword", "Traceback"):
            assert bug not in problem.text, problem.text


def changed(draw: st.DrawFn, fields: dict[str, Any], names: Any = ()) -> dict[str, Any]:
    """Return the fields with some of them replaced, added or missing."""
    changes = st.dictionaries(st.one_of(st.sampled_from([*fields, *names]), texts), odd, max_size=2)
    result = {**fields, **draw(changes)}
    for name in draw(st.lists(st.sampled_from([*fields]), max_size=1)):
        result.pop(name, None)
    return result


def as_bytes(value: Any) -> bytes:
    """Return JSON as other programs may write it, with a lone surrogate as it is."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# -- JSON lines ------------------------------------------------------------------------------------

DEFINITION = {"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}}
META = {"last_run_at": {"__type__": "datetime", "year": 2026}, "total_run_count": 3}


@st.composite
def lines(draw: st.DrawFn) -> Any:
    """Return a line with any JSON value in any field."""
    line = {
        "name": "a",
        "definition": changed(draw, DEFINITION, ("args", "kwargs", "options", "enabled")),
        "policy": changed(draw, {"max_runs": 3}, ("timezone", "jitter", "start_time", "on_finish")),
        "meta": changed(draw, META),
        "runtime": changed(draw, {"scheduled_at": 1.5, "last_run_at": 2.5}),
        "history": ["1795289048.5 +0.25"],
        "identity": "i",
        "static": True,
    }
    return draw(st.one_of(st.just(changed(draw, line, FIELDS)), odd))


@cases(150)
@given(lines(), st.booleans())
def test_any_value_in_any_field_of_a_line(importing_app: Celery, line: Any, escaped: bool) -> None:
    text = json.dumps(line).encode() if escaped else as_bytes(line)
    source = read_lines(Schedule(importing_app), io.BytesIO(text))
    outcome(importing_app, source, "line 1$")


@cases(50)
@given(st.binary(max_size=100))
@example(DEEP.encode())
@example(f'{{"name": "a", "definition": {DEEP}}}'.encode())
@example(f'{{"name": {HUGE}, "definition": {{"name": {HUGE}}}}}'.encode())
@example(b'{"name": "a", "definition": {}, "policy": {"max_runs": %s}}' % HUGE.encode())
def test_any_bytes_in_a_line(importing_app: Celery, text: bytes) -> None:
    text = text.replace(b"\n", b"")
    source = read_lines(Schedule(importing_app), io.BytesIO(text))
    outcome(importing_app, source, "line 1$")


# -- crontab ---------------------------------------------------------------------------------------

words = st.one_of(
    st.sampled_from(["*", "*/5", "0", "1-5", "60", "x", "L", "7-0", "@daily", "@x", "{}", "{"]),
    st.text(max_size=8),
    st.sampled_from([DEEP, HUGE, f"*/{HUGE}", "1," * 5000, f'{{"a": {DEEP}}}', "CRON_TZ=" + HUGE]),
)


@cases(150)
@given(st.lists(words, max_size=8))
@example(["*", "*", "*", "*", "*", "t", f'{{"a": {DEEP}}}'])
@example(["*", "*", "*", "*", "*", "t", f'{{"a": {HUGE}}}'])
@example(["0", "0", "*", "*", "*", "\x85t"])
def test_any_words_in_a_crontab(importing_app: Celery, fields: list[str]) -> None:
    text = " ".join(fields).replace("\n", "").encode("utf-8", "surrogatepass")
    source = read_crontab(Schedule(importing_app), io.BytesIO(text))
    outcome(importing_app, source, "line 1$")


@cases(50)
@given(st.binary(max_size=60))
def test_any_bytes_in_a_crontab(importing_app: Celery, text: bytes) -> None:
    text = b"* * * * * " + text.replace(b"\n", b"")
    source = read_crontab(Schedule(importing_app), io.BytesIO(text))
    outcome(importing_app, source, "line 1$")


# -- django-celery-beat ----------------------------------------------------------------------------

ROWS: dict[str, dict[str, Any]] = {
    "interval": {"every": 5, "period": "minutes"},
    "crontab": {"minute": "0", "hour": "4", "timezone": "Europe/Paris"},
    "solar": {"event": "sunset", "latitude": "48.85", "longitude": "2.35"},
    "clocked": {"clocked_time": "2030-01-01T00:00:00Z"},
}


TASK_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("kwargs", "headers"), "{}"),
    **dict.fromkeys(("start_time", "expires")),
    "name": "a",
    "task": "t",
    "args": "[]",
    "enabled": True,
    "one_off": False,
    "total_run_count": 3,
    "priority": 5,
    "last_run_at": "2026-01-02T03:04:05Z",
}


@st.composite
def fixtures(draw: st.DrawFn) -> list[Any]:
    """Return a ``dumpdata`` file with any JSON value in any field."""
    kind = draw(st.sampled_from(sorted(ROWS)))
    task = {
        **TASK_FIELDS,
        kind: 1,
    }
    label = f"django_celery_beat.{kind}schedule"
    row = {"model": label, "pk": 1, "fields": changed(draw, ROWS[kind])}
    names = (*OPTIONS, "expire_seconds", "date_changed", *ROWS)
    fields = changed(draw, task, names)
    whole = {"model": TASK, "pk": 1, "fields": draw(st.one_of(st.just(fields), odd))}
    if draw(st.booleans()):
        row = changed(draw, row)
    return [row, changed(draw, whole) if draw(st.booleans()) else whole]


@cases(200)
@given(fixtures())
def test_any_value_in_any_field_of_a_fixture(importing_app: Celery, rows: list[Any]) -> None:
    source = read_fixture(Schedule(importing_app), io.BytesIO(as_bytes(rows)))
    outcome(importing_app, source, "periodictask ")


@cases(50)
@given(st.binary(max_size=60))
@example(DEEP.encode())
@example(f'[{{"model": {HUGE}}}]'.encode())
@example(b'[{"model": "django_celery_beat.periodictask", "pk": [[1]]}]')
@example(b"[17, null]")
@example(b"[" + b'{"a":' * 990 + b"1" + b"}" * 990 + b"]")
def test_any_bytes_in_a_fixture(importing_app: Celery, text: bytes) -> None:
    source = read_fixture(Schedule(importing_app), io.BytesIO(text))
    outcome(importing_app, source, "periodictask ")


# -- Celery's own file -----------------------------------------------------------------------------

objects = st.one_of(
    odd,
    st.sampled_from(
        [
            *(schedule(60), crontab("5"), timedelta(days=1), timedelta.max, timezone.utc),
            *(datetime.min, datetime.max, date.max, datetime(2026, 3, 29, 2, 30), b"\xff", {1, 2}),
            *(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), object, len),
            *(datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), ScheduleEntry),
            solar("sunset", 1, 2),
        ]
    ),
)
STATE = ("name", "task", "schedule", "args", "kwargs", "options", "last_run_at", "total_run_count")


class Reduced:
    """An object whose pickle calls a class with any arguments, then sets any state."""

    def __init__(self, function: Any, args: tuple[Any, ...], state: Any) -> None:
        self.parts = (function, args, state)

    def __reduce__(self) -> Any:
        function, args, state = self.parts
        return (function, args) if state is None else (function, args, state)


@st.composite
def pickles(draw: st.DrawFn) -> bytes:
    """Return the pickled entries of a file, with any object in any field."""
    entry = ScheduleEntry("a", "t", None, schedule=schedule(60), app=None)
    entry.last_run_at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for field in draw(st.lists(st.sampled_from(STATE), max_size=2)):
        setattr(entry, field, draw(objects))
    known = st.sampled_from([ScheduleEntry, schedule, crontab, solar, datetime, timedelta, set])
    state = st.one_of(st.none(), st.dictionaries(st.sampled_from(STATE), objects, max_size=2))
    forged = st.builds(Reduced, known, st.lists(objects, max_size=3).map(tuple), state)
    if draw(st.booleans()):
        entry.schedule = draw(forged)
    entries = {draw(st.one_of(st.just("a"), texts)): draw(st.one_of(st.just(entry), forged, odd))}
    return pickle.dumps(draw(st.one_of(st.just(entries), odd)))


@cases(150)
@given(pickles())
def test_any_object_in_a_celery_file(importing_app: Celery, pickled: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "celerybeat-schedule")
        with dbm.open(path, "n") as file:
            file[b"entries"] = pickled
        source = read_shelve(Schedule(importing_app), path)
        outcome(importing_app, source, "entry ")
