"""Workers: the end of a run is a line in the inbox of its entry."""

from __future__ import annotations

import time
from typing import Any

from redbeat.worker import End, Reports
from tests.edition.saving import store_of
from tests.edition.workers import report_end

from . import replace


def send(self: Any, end: End) -> None:
    store = store_of(self._app, self._store.client)
    key = end.key or store.keys.entry(end.name)
    report_end(store, key, end.task_id, end.result, time.monotonic() - end.at)
    self._announce(end)


def install() -> None:
    """Let workers of the second edition report to beats of the third."""
    replace(Reports, {"_send": send})
