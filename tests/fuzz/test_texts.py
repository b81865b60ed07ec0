"""Tests that reading any entry ends quickly, with an entry or a DecodeError."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest
from celery import Celery
from hypothesis import example, given

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.history import History
from redbeat.errors import DecodeError, InvalidEntryError
from tests.fuzz.hostile import definitions, metas, policies, runtimes
from tests.fuzz.profile import cases

#: Modules that the test tools import on first use.
LAZY = ("_strptime", "difflib", "hypothesis", "pytz")

#: CPU seconds for one entry: far more than normal, far less than would delay a beat.
PATIENCE = 2.0

NOW = datetime(2026, 3, 29, 0, 59, 59, 500_000, tzinfo=timezone.utc)

APP = Celery("fuzz", broker="memory://", set_as_current=False)
APP.conf.update(timezone="UTC", enable_utc=True, redbeat_redis_url="redis://127.0.0.1:1/0")


@contextmanager
def soon() -> Iterator[None]:
    """Assert that the code in the block ends quickly."""
    gc.disable()  # Garbage of earlier cases must not slow this case.
    try:
        started = time.thread_time()
        yield
        assert time.thread_time() - started < PATIENCE
    finally:
        gc.enable()


def check(error: DecodeError | InvalidEntryError) -> None:
    """Assert that an error names the field and is short enough for the log."""
    assert error.field
    assert len(str(error)) < 10_000


@pytest.fixture(autouse=True, scope="module")
def _no_import_by_name() -> Iterator[None]:
    """Assert that no entry triggers an import, except the import of zone data."""
    before = set(sys.modules)
    yield
    packages = {name.partition(".")[0] for name in set(sys.modules) - before}
    known = {name.partition(".")[0] for name in before}
    assert packages - known <= {"tzdata", *LAZY}


@cases(250, 34_000)
@given(definitions, metas, policies, runtimes)
@example('{"name": "a", "task": "t", "schedule": 1e309}', "", "", "")
def test_an_entry_or_a_decode_error(definition: str, meta: str, policy: str, runtime: str) -> None:
    with soon():
        try:
            entry = RedBeatSchedulerEntry.from_texts(APP, definition, meta, policy, runtime)
        except DecodeError as error:
            check(error)
            return
        try:
            due, seconds = entry.claimed(NOW, NOW).is_due()
        except Exception:  # A beat quarantines such an entry. The error must also occur quickly.
            return
        assert isinstance(due, bool)
        assert seconds is None or seconds >= 0


@cases(100, 6_000)
@given(metas, runtimes)
def test_a_history_or_a_decode_error(meta: str, runtime: str) -> None:
    with soon():
        try:
            history = History.read(meta, runtime)
        except DecodeError:
            return
    assert history.last_run_at is None or isinstance(history.last_run_at, datetime)
    assert isinstance(history.total_run_count, int)


@cases(100, 5_000)
@given(definitions, policies)
def test_a_decoded_entry_is_encoded_unchanged(definition: str, policy: str) -> None:
    try:
        entry = RedBeatSchedulerEntry.from_definition(APP, definition, policy)
    except DecodeError:
        return
    try:
        texts = entry.texts()
    except InvalidEntryError as error:
        check(error)
        return
    again = RedBeatSchedulerEntry.from_definition(APP, *texts)
    assert again.texts() == texts
