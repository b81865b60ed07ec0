"""What workers tell beats: that a run ended. One line in the inbox of the entry.

A beat takes it in with its next change of the entry (``plan.py``): it stores the result, ends what
another run waits for, and pauses an entry that failed too often.
"""

from __future__ import annotations

from redbeat.entries.runs import RunResult
from tests.edition.state import end_line
from tests.edition.storage.store import Store
from tests.edition.words import END


def report_end(store: Store, key: str, task_id: str, result: RunResult, age: float) -> None:
    """Report the end of a run, ``age`` seconds ago. One round trip; nothing if the entry is gone.

    The time is that of Redis, because the clocks of workers may be wrong. A repeated report is
    another line with the same task id, which counts once.
    """
    line = end_line(task_id, result.state, result.seconds, result.retries, result.error or "")
    store.say(key, line, kind=END, age=age)
