"""Mutants of what is decided before its time."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

BY: Final = ("tests/beat/test_early.py",)

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "early-score-not-covered",
        "A run that was decided early leaves although its score was moved in between.",
        "beat/early.py",
        "change.expect, change.covers = digest_of(row, SCORE), SCORE",
        "pass",
        BY,
    ),
    Mutant(
        "moved-decided-again",
        "A run is decided at once although its score was moved to later since the look.",
        "beat/beat.py",
        "if row is not None and (not is_sending or is_due(row, self._turn.time())):",
        "if row is not None:",
        BY,
    ),
    Mutant(
        "moved-held-run-decided-again",
        "A run that was to be held is decided at once although its score was moved to later.",
        "beat/beat.py",
        "is_sending = run.stage in (INSIDE, HOLD)",
        "is_sending = run.stage == INSIDE",
        BY,
    ),
    Mutant(
        "early-message-outdated",
        "A message leaves as it was rendered early, although Celery makes another one by now.",
        "beat/early.py",
        "is_current = run.stage == HOLD or source is self._messages.source_of(run.rule)",
        "is_current = True",
        BY,
    ),
    Mutant(
        "early-but-late",
        "A beat that comes late sends what it decided early as if it were in time.",
        "beat/early.py",
        "and now - due < TOO_LATE:",
        "and now - due < 9e9:",
        BY,
    ),
    Mutant(
        "early-without-lock",
        "Each of several beats without a lock decides early about all entries.",
        "beat/beat.py",
        "one_of_many = self._turn.is_shared or self._is_part or self._conf.max_rate is not None",
        "one_of_many = self._is_part or self._conf.max_rate is not None",
        BY,
    ),
    Mutant(
        "early-in-a-part",
        "A shard's full minute delays what is due in another shard.",
        "beat/beat.py",
        "one_of_many = self._turn.is_shared or self._is_part or self._conf.max_rate is not None",
        "one_of_many = self._turn.is_shared or self._conf.max_rate is not None",
        BY,
    ),
    Mutant(
        "early-before-its-time",
        "A beat asks for runs before they are due.",
        "beat/early.py",
        'bisect_right(self._decided, now, key=attrgetter("due"))',
        'bisect_right(self._decided, now + 1.0, key=attrgetter("due"))',
        BY,
    ),
    Mutant(
        "early-with-calendar",
        "A run leaves although a calendar changed after it was decided early.",
        "beat/early.py",
        "if row.inbox or rule.policy.exclude or not order:",
        "if row.inbox or not order:",
        BY,
    ),
    Mutant(
        "sent-before-its-look",
        "A run is sent after Redis's clock went back to before the look that decided it.",
        "lua/parts/change.lua",
        "if is_late or (change.not_before and tonumber(change.not_before) > now) then",
        "if is_late then",
        ("tests/storage/test_changes.py",),
    ),
    Mutant(
        "look-time-not-told",
        "A change that sends does not say when its run was decided.",
        "beat/outcome.py",
        "change.not_before, change.not_after = run.now, run.now + VALID",
        "change.not_after = run.now + VALID",
        ("tests/beat/test_outcome.py",),
    ),
)
