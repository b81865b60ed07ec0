"""Runs that are decided before they are due, so that a full minute costs what its changes cost.

If many entries are due at one instant, an idle beat looks at them up to a second before. What it
decides then is one change each, with the message in it, and these changes go out at the instant.
A change expects the row and the score that were looked at, so an edit in between is seen, and the
run is decided again. If another server is the broker, the change only holds the run. Only plain
runs are decided early, whose messages are rendered. All others are decided when they are due, and
nothing is logged, counted or sent before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from redbeat.entries import verdicts
from redbeat.entries.run import HOLD, Rule, Run
from redbeat.storage.rows import Change, Reply, Row, digest_of
from redbeat.storage.words import SCORE

from . import message
from .load import Rules
from .outcome import Outcome

#: How many seconds before an instant to decide; the fewest runs for which that is worth two more
#: round trips, and the most.
SECONDS: Final = 1.0
FEWEST = message.FEWEST_RUNS
MOST: Final = 5_000

#: How many rows to look at together, and how many seconds before the instant to stop.
PAGE: Final = 200
BREAK: Final = 0.05

#: Seconds after which a run that was decided early is decided again.
TOO_LATE: Final = 0.5


class Decided(NamedTuple):
    """A run that was decided early, with its change.

    ``source`` is what its message was made from, None if it's made later.
    """

    due: float
    change: Change
    run: Run
    source: Any


class Early:
    """The runs of one beat that are decided and not yet due.

    ``order_of`` says whether the message of a run leaves with its record or after a hold.
    ``capture`` lets Celery make a message, and returns whether that's all in ``push``.
    """

    def __init__(
        self,
        rules: Rules,
        outcome: Outcome,
        messages: message.Messages,
        prefix: str,
        order_of: Callable[[Rule, Any], str],
        capture: Callable[[Run, Any], bool],
    ) -> None:
        self._rules, self._outcome, self._messages = rules, outcome, messages
        self._prefix, self._order_of, self._capture = prefix, order_of, capture
        #: Sorted by when they are due.
        self._decided: list[Decided] = []
        #: By the keys of their entries.
        self.runs: dict[str, Decided] = {}
        #: Until when everything has been looked at, Redis's time.
        self._until = 0.0

    def wants(self, reply: Reply) -> bool:
        """Whether nobody has decided about the next instant yet, which is still to come."""
        return reply.next is not None and reply.next > max(reply.now, self._until)

    def begin(self, reply: Reply) -> None:
        """What is due in the next second is decided now, or else when it's due."""
        self._until = reply.now + SECONDS

    def clear(self) -> None:
        self._decided.clear()
        self.runs.clear()

    def decide(self, rows: Iterable[Row], producer: Any) -> None:
        """Decide about rows that are not due. Nothing is sent, and no error is told here."""
        for row in rows:
            try:
                decided = self._decide(row, float(row.score), producer)
            except Exception:
                continue
            if decided is not None:
                self._decided.append(decided)
                self.runs[row.key] = decided

    def _decide(self, row: Row, due: float, producer: Any) -> Decided | None:
        run = self._rules.run_of(row, due)
        rule = run.rule
        order = self._order_of(rule, producer)
        if row.inbox or rule.policy.exclude or not order:
            return None
        known = verdicts.Known(rule, rule.plan, run.history, run.state, due, due)
        run.verdict = verdicts.judge(known, [])
        if run.verdict.send is None:
            return None
        message.name_run(run, run.verdict.send, self._prefix)
        source = None
        if order == HOLD:  # its message is made when it's published
            change = self._outcome.hold(run)
        elif self._is_rendered(run, producer):
            change, source = self._outcome.inside(run), self._messages.source_of(rule)
        else:
            return None
        change.expect, change.covers = digest_of(row, SCORE), SCORE
        return Decided(due, change, run, source)

    def _is_rendered(self, run: Run, producer: Any) -> bool:
        push = self._messages.render(run.rule, run.headers, run.task_id)
        if push is not None:
            run.push, run.left = push, True
            return True
        return self._messages.source_of(run.rule) is not None and self._capture(run, producer)

    def has(self, row: Row) -> bool:
        """Whether a row that is looked at now needs no decision.

        A trigger, the end of a run or another score does need one.
        """
        decided = self.runs.get(row.key)
        if decided is not None and (row.inbox or float(row.score or 0) != decided.due):
            del self.runs[row.key]
            return False
        return decided is not None

    def due(self, now: float, most: int, producer: Any) -> list[tuple[Change, Run]]:
        """Take up to ``most`` runs that are due now, the newest first.

        What Celery would send otherwise now, or what comes too late, is left to the next look.
        """
        count = bisect_right(self._decided, now, key=attrgetter("due"))
        if not count:
            return []
        first = max(count - most, 0)
        taken, self._decided[first:count] = self._decided[first:count], []
        self._messages.begin(producer)
        found: list[tuple[Change, Run]] = []
        for one in taken:
            due, change, run, source = one
            if self.runs.get(change.key) is not one:
                continue
            del self.runs[change.key]
            is_same = self._order_of(run.rule, producer) == run.stage
            is_current = run.stage == HOLD or source is self._messages.source_of(run.rule)
            if is_same and is_current and now - due < TOO_LATE:
                run.now = now
                found.append((change, run))
        return found
