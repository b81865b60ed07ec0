"""Mutants of saves, edits, triggers, backfills, and ends of runs."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "identity-anew",
        (
            "A new object that replaces a stored entry gets another identity, so that "
            "its task ids change."
        ),
        "entries/saving.py",
        "    state.due = None\n    if entry.enabled:",
        "    state.due, state.identity = None, history.new_identity()\n    if entry.enabled:",
        (
            "tests/entries/test_saves.py",
            "tests/schedule/test_identity.py",
        ),
    ),
    Mutant(
        "save-forgets-decision",
        "A save drops the decision on a run that may have been sent.",
        "entries/saving.py",
        "    state.due = None\n    if entry.enabled:",
        "    state.due, state.hold = None, None\n    if entry.enabled:",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-drops-claim",
        "A save makes an entry due whose run is being sent.",
        "entries/saving.py",
        "if state.hold is not None:\n        return state.hold.until",
        "if False:\n        return state.hold.until",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-keeps-old-policy",
        "A save of an entry without a policy leaves the stored policy.",
        "entries/changes.py",
        "change.unset += (words.POLICY,)",
        "pass",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-inherits",
        "A new entry takes over the remains of a deleted entry of the same name.",
        "entries/changes.py",
        "change.unset = (words.INBOX, words.HISTORY, words.RESULTS, words.WAITS)",
        "pass",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-leaves-finished",
        "A finished entry that is saved with another schedule does not run.",
        "entries/saving.py",
        "    restart_if_finished(entry, texts, now, save.old)\n",
        "    pass\n",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-arms-again",
        "Two processes that save the same change restart a finished entry twice.",
        "entries/saving.py",
        "restart_if_finished(entry, texts, now, save.old)",
        "restart_if_finished(entry, texts, now)",
        (
            "tests/entries/test_saves.py",
            "tests/schedule/test_saved_again.py",
        ),
    ),
    Mutant(
        "save-begins-ahead",
        "An entry that starts again counts from the clock of a host that is ahead.",
        "entries/saving.py",
        "entry.last_run_at = from_timestamp(now)\n        return False",
        "return True",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-ignores-conflict",
        "A save overwrites a history that was written since the entry was loaded.",
        "entries/saving.py",
        "change = editing(row, state, save.texts, save.meta)\n",
        "change = editing(row, state, save.texts, save.meta)\n    change.expect = None\n",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "save-writes-no-score",
        "An edited schedule keeps its old score.",
        "entries/saving.py",
        "change.add = score_of(entry, state, now)\n    if",
        "change.add = None\n    if",
        ("tests/entries/test_saves.py",),
    ),
    Mutant(
        "saved-trigger-waits",
        "A save of an entry with a waiting trigger sets the score of the schedule.",
        "entries/saving.py",
        ("if state.triggers:\n        return NOW"),
        "if False:\n        return NOW",
        (
            "tests/entries/test_saves.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "zone-edit-ignored",
        "A save does not note that it changes the time zone of an entry.",
        "entries/saving.py",
        "if change is not None:\n        entry.timing_change",
        "if False:\n        entry.timing_change",
        (
            "tests/entries/test_saves.py",
            "tests/scheduler/test_time_zone_change.py",
        ),
    ),
    Mutant(
        "pause-during-a-hold",
        "A pause takes the run of another beat out of its time.",
        "entries/edits.py",
        "change.add = state.hold.until if state.hold else changes.NOW",
        "change.add = changes.NOW",
        ("tests/entries/test_edits.py",),
    ),
    Mutant(
        "rescore-schedules",
        "A change of a calendar schedules an entry that a program took out.",
        "entries/edits.py",
        "change.score = changes.NOW\n        return change",
        "change.add = changes.NOW\n        return change",
        (
            "tests/entries/test_edits.py",
            "tests/scheduler/test_calendars.py",
        ),
    ),
    Mutant(
        "forget-ignores-return",
        "A member is removed although its hash came back.",
        "entries/edits.py",
        "change.expect = digest_of(row)",
        "pass",
        ("tests/entries/test_edits.py",),
    ),
    Mutant(
        "backfill-without-check",
        "A backfill is stored although a run was recorded since it was planned.",
        "entries/run_requests.py",
        "reply = apply(store, [change_of(row, state, score=score)])",
        (
            "change = change_of(row, state, score=score)\n"
            "        change.expect = None\n"
            "        reply = apply(store, [change])"
        ),
        ("tests/entries/test_together.py", "tests/entries/test_run_requests.py"),
    ),
    Mutant(
        "trigger-not-due",
        "A trigger is stored, and is not taken in at once.",
        "lua/inbox.lua",
        "local taken_at = at_once and now or now + 1",
        "local taken_at = now + 60",
        (
            "tests/storage/test_inbox.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "end-not-awaited",
        "The end that another run waits for is taken in like any other.",
        "lua/inbox.lua",
        "or (found[3] and string.find(line, found[3], 1, true))",
        "",
        ("tests/storage/test_inbox.py",),
    ),
    Mutant(
        "trigger-drops-for-room",
        "A full inbox drops a trigger.",
        "lua/inbox.lua",
        "return is_end and 'done' or 'full'",
        "return 'done'",
        ("tests/storage/test_inbox.py",),
    ),
    Mutant(
        "trigger-of-a-quarantined",
        "A run of an entry in quarantine is accepted, and nobody sends it.",
        "lua/inbox.lua",
        "if redis.pcall('HEXISTS', aside .. 'quarantine', entry) == 1 then",
        "if false then",
        (
            "tests/storage/test_inbox.py",
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
            "tests/storage/test_inbox.py",
            "tests/scheduler/test_results.py",
        ),
    ),
    Mutant(
        "backfill-of-runs-to-catch-up",
        "A backfill also sends the missed runs that an entry which never ran catches up.",
        "entries/backfill.py",
        "    if due is not None:\n        return min(due, present)\n    plan",
        "    plan",
        ("--first-backfills 0",),
    ),
    Mutant(
        "backfill-forgotten",
        "A backfill that has finished is forgotten, so that another request sends it again.",
        "entries/backfill.py",
        "finished = [] if again else",
        "finished = [] if True else",
        ("tests/schedule/test_backfill.py",),
    ),
    Mutant(
        "own-clock-is-ahead",
        "The clock of a schedule counts as the clock of a host that is ahead.",
        "entries/saving.py",
        "None if entry.has_own_clock and is_own_time(entry.default_now()) else aware(last)",
        "aware(last)",
        ("tests/scheduler/test_new_entries.py",),
    ),
    Mutant(
        "only-true-enables",
        "Only the stored value true enables an entry.",
        "entries/definition.py",
        'bool(definition["enabled"])\n',
        'definition["enabled"] is True\n',
        ("tests/scheduler/test_old_values.py",),
    ),
    Mutant(
        "host-clock-parks",
        "An entry that is finished by the clock of a host is parked, whatever the time of Redis.",
        "entry.py",
        "        if decision.due or decision.missed or decision.next_at is None:\n",
        "        if decision.due:\n",
        ("tests/scheduler/test_clocks.py",),
    ),
)
