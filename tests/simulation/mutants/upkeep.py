"""Mutants of static entries, the sweep, the quarantine, and the clock."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "sweep-finds-nothing",
        "An entry that was lost with the sorted set is never put back.",
        "beat/upkeep.py",
        "row for row in entries if was_whole and",
        "row for row in entries if False and",
        ("tests/beat/test_upkeep.py",),
    ),
    Mutant(
        "sweep-undoes-a-decision",
        "A scan without a loss puts back what a program took out.",
        "beat/upkeep.py",
        "was_whole = seconds_in(mark) is not None",
        "was_whole = True",
        ("tests/beat/test_upkeep.py",),
    ),
    Mutant(
        "sweep-schedules-old-entries",
        "A scan puts back entries that only RedBeat 2 wrote.",
        "beat/upkeep.py",
        "if was_whole and State.read(row.state, row.meta).marks.last\n",
        "if was_whole\n",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "sweep-releases-quarantined",
        "A quarantined entry that was lost comes back as due.",
        "beat/upkeep.py",
        "add=PARKED if state.quarantine else score",
        "add=score",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "sweep-takes-foreign",
        "The sweep adds hashes of a longer prefix to the schedule.",
        "storage/reading.py",
        "return name is not None and store.keys.entry(str(name)) == row.key",
        "return name is not None",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "sweep-ends-after-a-page",
        "The mark of a loss is gone before all keys are scanned.",
        "beat/upkeep.py",
        "            yield [_put_back(row, self._reply.now) for row in back]\n",
        (
            "            yield [\n"
            "                *[_put_back(row, self._reply.now) for row in back],\n"
            '                Change("", index=[["FORGET", words.STATS, words.LOST, mark]]),\n'
            "            ]\n"
        ),
        ("tests/beat/test_upkeep.py",),
    ),
    Mutant(
        "sweep-goes-on-after-a-loss",
        "A scan goes on in the middle although the sorted set was lost again.",
        "beat/upkeep.py",
        (
            "self._walks = [walk for walk in self._walks if walk.begin != "
            "self._scan]\n"
            "            self._walks.insert(0, Walk(self._scan, self._clock()))"
        ),
        (
            "if all(walk.begin != self._scan for walk in self._walks):\n"
            "                self._walks.insert(0, Walk(self._scan, self._clock()))"
        ),
        ("tests/beat/test_upkeep.py",),
    ),
    Mutant(
        "sweep-floods",
        "A scan puts back all lost entries at once, so that due runs wait for them.",
        "beat/upkeep.py",
        "SCANNED: Final = 100",
        "SCANNED: Final = 100_000",
        (
            "tests/beat/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
        ),
    ),
    Mutant(
        "sweep-never-looks",
        "The sweep never looks.",
        "beat/upkeep.py",
        "pauses = {self._enable: INTERVAL, self._review",
        "pauses = {self._review",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "enabled-hide-others",
        "Entries that raw writers enabled make the sweep skip as many others.",
        "beat/upkeep.py",
        "offset = offset + PAGE - len(enabled) if len(rows) == PAGE else 0",
        "offset = offset + PAGE if len(rows) == PAGE else 0",
        (
            "tests/beat/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
        ),
    ),
    Mutant(
        "null-enables",
        "The sweep makes entries due whose stored enabled is null.",
        "beat/upkeep.py",
        'if reading.definition_of(row).get("enabled", True)]',
        'if reading.definition_of(row).get("enabled", True) is not False]',
        (
            "tests/beat/test_upkeep.py",
            "tests/scheduler/test_sweep.py",
            "tests/scheduler/test_old_values.py",
        ),
    ),
    Mutant(
        "review-releases-nobody",
        "A repaired entry stays in quarantine.",
        "beat/upkeep.py",
        'return note.get("digest") != seen_texts(row) or not same_calendars',
        "return False",
        ("tests/scheduler/test_bad_entries.py",),
    ),
    Mutant(
        "clock-back-unnoticed",
        "Entries are not checked again after the clock of Redis went back.",
        "beat/upkeep.py",
        "self._walks += [Walk(self._from_future, at) for at in (now, now + HELD)]",
        "pass",
        (
            "tests/beat/test_upkeep.py",
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
            "tests/beat/test_upkeep.py",
            "tests/scheduler/test_clocks.py",
        ),
    ),
    Mutant(
        "claim-of-the-future",
        "A hold made while the clock was ahead blocks an entry for hours.",
        "beat/upkeep.py",
        "if state.hold is not None and state.hold.until > now + HELD + CLOCK_STEP:",
        "if False:",
        ("tests/beat/test_upkeep.py",),
    ),
    Mutant(
        "park-ignores-edit",
        "An entry that was repaired while it was read is put into quarantine.",
        "beat/outcome.py",
        'change.take = inbox[-1].line if inbox else ""',
        'change.take, change.expect = inbox[-1].line if inbox else "", None',
        ("tests/scheduler/test_bad_entries.py",),
    ),
    Mutant(
        "standby-overwrites-statics",
        "A beat that starts changes the static entries of the leader.",
        "beat/statics.py",
        "if here.only_missing:\n                return None",
        "if False:\n                return None",
        ("tests/scheduler/test_statics.py",),
    ),
    Mutant(
        "sync-forgets-member",
        "A static entry without its member in the schedule is not made due again.",
        "beat/statics.py",
        'add = now.timestamp() if row.score == "" else None',
        "add = None",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "prune-ignores-lock",
        "A beat that lost the lead removes static entries of the new leader.",
        "lua/turn.lua",
        "head.leads_only and reply.standing == 0 and 'stale' or apply(ARGV[i])",
        "apply(ARGV[i])",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "prune-removes-all",
        "Entries of applications are removed together with removed static entries.",
        "beat/statics.py",
        "return names - self.names - self._refused if exclusive",
        "return set(names) if exclusive",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "statics-never-change",
        "A changed static entry is not written.",
        "beat/statics.py",
        "if texts_in(row) == texts or _is_paused(row, texts):",
        "if True:",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "statics-of-one-schedule",
        "New entries of beat_schedule all get the times of the first one.",
        "beat/statics.py",
        "repr(entry.rule.__reduce__())",
        '"alike"',
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "statics-never-leave",
        "Static entries that left the configuration keep running.",
        "beat/statics.py",
        "not self._remove(here, self._stale(here.known, exclusive))",
        "False",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "paused-static-runs",
        "A static entry that an operator paused runs after a restart of the beat.",
        "beat/statics.py",
        "if texts_in(row) == texts or _is_paused(row, texts):",
        "if texts_in(row) == texts:",
        ("tests/beat/test_statics.py",),
    ),
    Mutant(
        "emptied-not-noticed",
        "Static entries are not written again after Redis lost all data.",
        "beat/upkeep.py",
        "if not self._vanished(reply) and not self.statics.unwritten:",
        "if not self.statics.unwritten:",
        (
            "tests/beat/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "emptied-waits",
        ("After Redis lost all data, only the next leader writes the static entries again."),
        "beat/upkeep.py",
        "if before == 1 and not lock_is_new:",
        "if not lock_is_new:",
        (
            "tests/beat/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "prune-at-once",
        "A beat removes the static entries of beats that share the work with it.",
        "beat/upkeep.py",
        "if beats == {self.turn.token}:",
        "if True:",
        (
            "tests/beat/test_statics.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "zone-change-ignored",
        "Entries keep their scores when the app gets another time zone.",
        "beat/upkeep.py",
        "if before == zone:",
        "if True:",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
    Mutant(
        "static-own-clock-decides",
        "A static schedule decides by a clock that only shows its start.",
        "beat/statics.py",
        "    return only_clock and decide.is_own_time(schedule.now())\n",
        "    return False\n",
        ("tests/scheduler/test_new_entries.py",),
    ),
    Mutant(
        "tidy-removes-all",
        "The counts of existing entries are removed.",
        "beat/upkeep.py",
        "return [field for field, key in keys.items() if key not in kept]",
        "return list(keys)",
        ("tests/beat/test_upkeep.py", "tests/metrics/test_stats.py"),
    ),
)
