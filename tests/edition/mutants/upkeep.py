"""Mutants of static entries, the sweep, the quarantine, and the clock."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "sweep-finds-nothing",
        "An entry that was lost with the sorted set is never put back.",
        "beat/upkeep.py",
        "back = [row for row in entries if was_whole and _was_scored(row)]",
        "back = list[Row]()",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-undoes-a-decision",
        "A scan without a loss puts back what a program took out.",
        "beat/upkeep.py",
        "was_whole = seconds_in(self._mark) is not None",
        "was_whole = True",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-schedules-old-entries",
        "A scan puts back entries that only RedBeat 2 wrote.",
        "beat/upkeep.py",
        "if was_whole and _was_scored(row)]",
        "if was_whole]",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-releases-quarantined",
        "A quarantined entry that was lost comes back as due.",
        "beat/upkeep.py",
        "add=PARKED if state.quarantine is not None else score",
        "add=score",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-takes-foreign",
        "The sweep adds hashes of a longer prefix to the schedule.",
        "beat/upkeep.py",
        "return name is not None and self._keys.entry(str(name)) == row.key",
        "return name is not None",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-ends-after-a-page",
        "The mark of a loss is gone before all keys are scanned.",
        "beat/upkeep.py",
        "if cursor == START:\n            walk.end",
        "if True:\n            walk.end",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-goes-on-after-a-loss",
        "A scan goes on in the middle although the sorted set was lost again.",
        "beat/upkeep.py",
        (
            "self._walks = [walk for walk in self._walks if walk.portion != "
            "self._scan]\n"
            "            self._walks.insert(0, Walk(self._scan, self._end_scan))"
        ),
        (
            "if all(walk.portion != self._scan for walk in self._walks):\n"
            "                self._walks.insert(0, Walk(self._scan, self._end_scan))"
        ),
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "sweep-floods",
        "A scan puts back all lost entries at once, so that due runs wait for them.",
        "beat/upkeep.py",
        "SCANNED: Final = 100",
        "SCANNED: Final = 100_000",
        (
            "tests/edition/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
        ),
    ),
    Mutant(
        "sweep-never-looks",
        "The sweep never looks.",
        "beat/upkeep.py",
        "if now - self._looked_at < INTERVAL:\n            return False",
        "return False",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "enabled-hide-others",
        "Entries that raw writers enabled make the sweep skip as many others.",
        "beat/upkeep.py",
        ("self._offset = self._offset + PAGE - len(enabled) if len(keys) == PAGE else 0"),
        "self._offset = self._offset + PAGE if len(keys) == PAGE else 0",
        (
            "tests/edition/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
        ),
    ),
    Mutant(
        "null-enables",
        "The sweep makes entries due whose stored enabled is null.",
        "beat/upkeep.py",
        'return not _definition(row).get("enabled", True)',
        'return _definition(row).get("enabled", True) is False',
        (
            "tests/edition/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
            "tests/scheduler/test_old_values.py",
        ),
    ),
    Mutant(
        "review-releases-nobody",
        "A repaired entry stays in quarantine.",
        "beat/upkeep.py",
        'if note.get("digest") != seen_texts(row) or not same_calendars:',
        "if False:",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "clock-back-unnoticed",
        "Entries are not checked again after the clock of Redis went back.",
        "beat/upkeep.py",
        ("self._walks += [Walk(self._from_future, _log_future, at) for at in (now, now + HELD)]"),
        "pass",
        (
            "tests/edition/test_upkeep.py",
            "tests/scheduler/test_clocks.py",
        ),
    ),
    Mutant(
        "one-correction",
        ("After the clock of Redis went back, runs that are recorded later stay in the future."),
        "beat/upkeep.py",
        "for at in (now, now + HELD)]",
        "for at in (now,)]",
        (
            "tests/edition/test_upkeep.py",
            "tests/scheduler/test_clocks.py",
        ),
    ),
    Mutant(
        "claim-of-the-future",
        "A hold made while the clock was ahead blocks an entry for hours.",
        "beat/upkeep.py",
        "if state.hold is not None and state.hold.until > now + HELD + CLOCK_STEP:",
        "if False:",
        ("tests/edition/test_upkeep.py",),
    ),
    Mutant(
        "park-ignores-edit",
        "An entry that was repaired while it was read is put into quarantine.",
        "beat/outcome.py",
        (
            "expect = digest_of(row)\n"
            "        return Change(row.key, mark, expect, set={STATE: state.text()}, "
            "score=PARKED, index=index)"
        ),
        (
            "expect = None\n"
            "        return Change(row.key, mark, expect, set={STATE: state.text()}, "
            "score=PARKED, index=index)"
        ),
        (
            "tests/edition/test_outcome.py",
            "tests/scheduler/test_bad_entries.py",
        ),
    ),
    Mutant(
        "sync-leaves-finished",
        "A finished static entry does not run by its new schedule.",
        "beat/statics.py",
        "return None if then is history else encode_meta(",
        "return None if True else encode_meta(",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "sync-ignores-lock",
        "A beat that lost the lead writes its static entries.",
        "beat/statics.py",
        "if reply.standing == STANDBY:\n                    return False",
        "if False:\n                    return False",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "standby-overwrites-statics",
        "A beat that starts changes the static entries of the leader.",
        "beat/statics.py",
        "if here.only_missing:\n            return None",
        "if False:\n            return None",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "sync-forgets-member",
        "A static entry without its member in the schedule is not made due again.",
        "beat/statics.py",
        'add = now.timestamp() if row.score == "" else None',
        "add = None",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "sync-moves-claimed",
        ("A change of a static entry makes it due although a beat is sending its run."),
        "beat/statics.py",
        "held = state.hold is not None and",
        "held = False and",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "prune-ignores-lock",
        "A beat that lost the lead removes static entries of the new leader.",
        "lua/turn.lua",
        "head.leads_only and reply.standing == 0 and 'stale' or apply(ARGV[i])",
        "apply(ARGV[i])",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "prune-removes-all",
        "Entries of applications are removed together with removed static entries.",
        "beat/statics.py",
        "return names - self._entries.keys() - self._refused if exclusive",
        "return set(names) if exclusive",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "statics-never-change",
        "A changed static entry is not written.",
        "beat/statics.py",
        "if same or is_paused(row, texts):",
        "if True:",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "statics-never-leave",
        "Static entries that left the configuration keep running.",
        "beat/statics.py",
        ("if self.complete and not self._remove(here, self._stale(here.known, exclusive)):"),
        "if False:",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "paused-static-runs",
        "A static entry that an operator paused runs after a restart of the beat.",
        "beat/statics.py",
        "if same or is_paused(row, texts):",
        "if same:",
        ("tests/edition/test_statics.py",),
    ),
    Mutant(
        "static-zone-edit-ignored",
        "The sync does not note that the time zone of a static entry changed.",
        "beat/statics.py",
        "if timing is not None:",
        "if False:",
        (
            "tests/edition/test_statics.py",
            "tests/scheduler/test_time_zone_change.py",
        ),
    ),
    Mutant(
        "statics-offered-blindly",
        (
            "The statics that a beat wrote at its start count as written, although "
            "others wrote since."
        ),
        "beat/statics.py",
        "return stored is not None and text_of(stored) == self._noted",
        "return True",
        (
            "tests/edition/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "emptied-not-noticed",
        "Static entries are not written again after Redis lost all data.",
        "beat/sync.py",
        "if not self._vanished(reply) and not self.statics.unwritten:",
        "if not self.statics.unwritten:",
        (
            "tests/edition/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "emptied-waits",
        ("After Redis lost all data, only the next leader writes the static entries again."),
        "beat/sync.py",
        "if before == 1 and not lock_is_new:",
        "if not lock_is_new:",
        (
            "tests/edition/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "prune-at-once",
        "A beat removes the static entries of beats that share the work with it.",
        "beat/statics.py",
        "if stale and others():",
        "if False:",
        (
            "tests/edition/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "zone-change-ignored",
        "Entries keep their scores when the app gets another time zone.",
        "beat/sync.py",
        "if before == zone:",
        "if True:",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
    Mutant(
        "first-change-forgotten",
        "A second change of the time zone replaces the note of the first one.",
        "beat/sync.py",
        "first = state.change or timing._replace",
        "first = timing._replace",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
)

VOID: Final[dict[str, str]] = {
    "deadline-ignored": "as sent-after-the-claim",
}
