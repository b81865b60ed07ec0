"""Mutants of saves, edits, triggers, backfills, and ends of runs."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "identity-anew",
        (
            "A new object that replaces a stored entry gets another identity, so that "
            "its task ids change."
        ),
        "saving.py",
        "    state = state_of(row)\n    state.due, state.failing",
        (
            "    state = state_of(row)\n"
            "    state.identity = new_identity()\n"
            "    state.due, state.failing"
        ),
        (
            "tests/edition/test_saving.py",
            "tests/schedule/test_identity.py",
        ),
    ),
    Mutant(
        "save-forgets-decision",
        "A save drops the decision on a run that may have been sent.",
        "saving.py",
        (
            "    state.due, state.failing, state.quarantine = None, None, None\n"
            "    if entry.enabled:"
        ),
        (
            "    state.due, state.failing, state.quarantine, state.hold = None, None, "
            "None, None\n"
            "    if entry.enabled:"
        ),
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-drops-claim",
        "A save makes an entry due whose run is being sent.",
        "saving.py",
        "if state.hold is not None:\n        return state.hold.until",
        "if False:\n        return state.hold.until",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-keeps-old-policy",
        "A save of an entry without a policy leaves the stored policy.",
        "saving.py",
        "unset=() if policy else (POLICY,))\n    change.index",
        "unset=())\n    change.index",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-inherits",
        "A new entry takes over the remains of a deleted entry of the same name.",
        "saving.py",
        "change.unset += (INBOX, HISTORY, RESULTS, WAITS)",
        "pass",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-leaves-finished",
        "A finished entry that is saved with another schedule does not run.",
        "saving.py",
        "    restart_if_finished(entry, save.texts, now)\n",
        "    pass\n",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-arms-again",
        "Two processes that save the same change restart a finished entry twice.",
        "saving.py",
        "undecoded._replace(refused_texts=_texts_in(row), before_restart=None)",
        "undecoded._replace(before_restart=None)",
        (
            "tests/edition/test_saving.py",
            "tests/schedule/test_saved_again.py",
        ),
    ),
    Mutant(
        "save-begins-ahead",
        "An entry that starts again counts from the clock of a host that is ahead.",
        "saving.py",
        "return not _clock_was_ahead(save, now)",
        "return True",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-ignores-conflict",
        "A save overwrites a history that was written since the entry was loaded.",
        "saving.py",
        "change.expect = digest_of(row, covers, version)",
        "change.expect = None",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "save-writes-no-score",
        "An edited schedule keeps its old score.",
        "saving.py",
        "change.add = score_of(entry, state, now)\n    if",
        "change.add = None\n    if",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "saved-trigger-waits",
        "A save of an entry with a waiting trigger sets the score of the schedule.",
        "saving.py",
        ("if any(isinstance(one, Trigger) for one in state.waiting):\n        return NOW"),
        "if False:\n        return NOW",
        (
            "tests/edition/test_saving.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "zone-edit-ignored",
        "A save does not note that it changes the time zone of an entry.",
        "saving.py",
        "if change is not None:\n        entry.timing_change",
        "if False:\n        entry.timing_change",
        (
            "tests/edition/test_saving.py",
            "tests/scheduler/test_time_zone_change.py",
        ),
    ),
    Mutant(
        "pause-during-a-hold",
        "A pause takes the run of another beat out of its time.",
        "edits.py",
        "score = state.hold.until if state.hold else NOW",
        "score = NOW",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "rescore-schedules",
        "A change of a calendar schedules an entry that a program took out.",
        "edits.py",
        "return Change(row.key, score=NOW)\n        state.failing",
        "return Change(row.key, add=NOW)\n        state.failing",
        (
            "tests/edition/test_saving.py",
            "tests/scheduler/test_calendars.py",
        ),
    ),
    Mutant(
        "forget-ignores-return",
        "A member is removed although its hash came back.",
        "edits.py",
        "return Change(row.key, expect=digest_of(row), delete=True)",
        "return Change(row.key, delete=True)",
        ("tests/edition/test_saving.py",),
    ),
    Mutant(
        "backfill-without-check",
        "A backfill is stored although a run was recorded since it was planned.",
        "run_requests.py",
        ("return Change(row.key, mark, digest_of(row), set={STATE: state.text()}, score=score)"),
        "return Change(row.key, mark, None, set={STATE: state.text()}, score=score)",
        ("tests/schedule/test_backfill.py",),
    ),
    Mutant(
        "trigger-not-due",
        "A trigger is stored, and is not taken in at once.",
        "lua/inbox.lua",
        "local taken_at = at_once and now or now + 1",
        "local taken_at = now + 60",
        (
            "tests/edition/test_storage_inbox.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "end-not-awaited",
        "The end that another run waits for is taken in like any other.",
        "lua/inbox.lua",
        "or (found[3] and string.find(line, found[3], 1, true))",
        "",
        ("tests/edition/test_storage_inbox.py",),
    ),
    Mutant(
        "trigger-drops-for-room",
        "A full inbox drops a trigger.",
        "lua/inbox.lua",
        "return is_end and 'done' or 'full'",
        "return 'done'",
        ("tests/edition/test_storage_inbox.py",),
    ),
    Mutant(
        "trigger-of-a-quarantined",
        "A run of an entry in quarantine is accepted, and nobody sends it.",
        "lua/inbox.lua",
        "if redis.pcall('HEXISTS', aside .. 'quarantine', entry) == 1 then",
        "if false then",
        (
            "tests/edition/test_storage_inbox.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "ended-on-arrival",
        "A result that waited for Redis gets the time of its arrival.",
        "lua/inbox.lua",
        "now - age)",
        "now)",
        (
            "tests/edition/test_storage_inbox.py",
            "tests/scheduler/test_results.py",
        ),
    ),
)

VOID: Final[dict[str, str]] = {
    "save-overwrites-history": "as save-ignores-conflict: one digest",
    "lost-backfill": "a backfill is a change, known by its mark: recorded-twice",
    "overtaken-unnoticed": "as promise-overtaken",
}
