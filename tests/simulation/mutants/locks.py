"""Mutants of the lock of beats, and of wake-ups."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "acquire-takes-all",
        "Acquiring the lock succeeds although another beat holds it.",
        "storage/store.py",
        '"SET", key, token, "NX", "PX"',
        '"SET", key, token, "PX"',
        ("tests/storage/test_lock_scripts.py",),
    ),
    Mutant(
        "extend-any",
        "Extending the lock extends the lock of another beat.",
        "lua/extend.lua",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then",
        "if redis.call('EXISTS', KEYS[1]) == 1 then",
        ("tests/storage/test_lock_scripts.py",),
    ),
    Mutant(
        "release-any",
        "A beat that stops deletes the lock of the leader.",
        "lua/release.lua",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then",
        "if redis.call('EXISTS', KEYS[1]) == 1 then",
        ("tests/storage/test_lock_scripts.py",),
    ),
    Mutant(
        "release-not-announced",
        "A released lock is not announced: a standby takes over a second later.",
        "lua/release.lua",
        "  redis.pcall('PUBLISH', ARGV[2], 'lock')\n",
        "",
        (
            "tests/scheduler/test_wakeup.py",
            "tests/storage/test_lock_scripts.py",
        ),
    ),
    Mutant(
        "release-keeps-lock",
        "A beat that stops does not give up its lock.",
        "lua/release.lua",
        "  redis.call('DEL', KEYS[1])\n",
        "",
        ("tests/storage/test_lock_scripts.py",),
    ),
    Mutant(
        "silence-not-measured",
        "A standby takes the lock from a leader that renews it.",
        "beat/lock.py",
        "        if reply.holder != self._holder or ttl_drop < passed / 2:\n",
        "        if reply.holder != self._holder:\n",
        (
            "calm",
            "tests/scheduler/test_lock.py",
        ),
    ),
    Mutant(
        "silence-too-long",
        "A standby waits until the lock of a dead leader expires, however long that takes.",
        "beat/lock.py",
        "        return self._holder\n\n\nclass CustomLock:",
        '        return ""\n\n\nclass CustomLock:',
        ("tests/scheduler/test_lock.py",),
    ),
    Mutant(
        "blind-standby-counts-silence",
        "Time in which a standby could not read the lock counts as silence of the leader.",
        "beat/lock.py",
        "self._silent_seconds += min(passed, LONGEST_LOOK)",
        "self._silent_seconds += passed",
        ("tests/scheduler/test_lock.py",),
    ),
    Mutant(
        "wakeup-not-heard",
        "A waiting beat is not woken up when an entry is saved.",
        "beat/wakeup.py",
        "            if self._receives(expected, min(left, SLICE)):\n",
        "            if self._receives(expected, min(left, SLICE)) and False:\n",
        (
            "calm",
            "tests/scheduler/test_wakeup.py",
        ),
    ),
)
