"""Mutants of which occurrences run: schedules, zones, policies, ids."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "id-without-name",
        "Entries that are due at the same instant send the same task id.",
        "entries/decide.py",
        """text = f"{instant} {name}\"""",
        """text = instant""",
        (
            "losses",
            "tests/scheduler/test_messages.py",
            "tests/entries/test_planning.py",
        ),
    ),
    Mutant(
        "missed-not-counted",
        "Missed runs are not counted.",
        "entries/decide.py",
        "    missed = plan.count(first, latest, MISSED_LIMIT)\n    chosen",
        "    missed = 0\n    chosen",
        (
            "policies",
            "tests/entries/test_planning.py",
        ),
    ),
    Mutant(
        "coalesces-to-earliest",
        "A run that stands for missed runs is the earliest and not the latest of them.",
        "entries/decide.py",
        '    chosen = oldest if policy.coalesce == "earliest" else latest\n',
        "    chosen = oldest\n",
        (
            "policies",
            "tests/entries/test_planning.py",
        ),
    ),
    Mutant(
        "limit-plus-one",
        "An entry with a limit runs once more.",
        "entries/decide.py",
        "    if runs >= policy.max_runs:\n        return FINISHED\n"
        "    last = decision.due and runs + 1 >= policy.max_runs\n",
        "    if runs > policy.max_runs:\n        return FINISHED\n"
        "    last = decision.due and runs >= policy.max_runs\n",
        (
            "limits",
            "tests/entries/test_policy.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "limit-never-parks",
        "The last run of an entry with a limit is not recognised as the last.",
        "entries/decide.py",
        "    last = decision.due and runs + 1 >= policy.max_runs\n",
        "    last = decision.due and runs >= policy.max_runs\n",
        (
            "tests/entries/test_policy.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "window-has-no-end",
        "An entry runs after its window.",
        "entries/decide.py",
        "return None if following is None or (end is not None and following > end) else following",
        "return following",
        ("tests/entries/test_planning.py",),
    ),
    Mutant(
        "window-has-no-begin",
        "An entry runs before its window.",
        "entries/decide.py",
        "        if has_start(self.schedule) or (start is not None and start > at):\n",
        "        if has_start(self.schedule):\n",
        ("tests/entries/test_planning.py",),
    ),
    Mutant(
        "jitter-is-early",
        "Jitter makes runs early.",
        "entries/decide.py",
        "return nominal + offset + jitter *",
        "return nominal - jitter *",
        ("tests/entries/test_planning.py",),
    ),
    Mutant(
        "jitter-by-chance",
        "The jitter of a run differs at each look.",
        "entries/decide.py",
        """hash_fraction(f"{nominal.isoformat()} {self.identity}")""",
        """__import__("random").random()""",
        ("tests/entries/test_planning.py",),
    ),
    Mutant(
        "spread-by-occurrence",
        "The spread of an entry differs between its occurrences.",
        "entries/decide.py",
        "spread_fraction(self.identity)",
        "spread_fraction(str(nominal))",
        ("tests/entries/test_planning.py",),
    ),
    Mutant(
        "misfire-ignored",
        "A run that exceeds its misfire_grace_time is sent.",
        "entries/decide.py",
        "    if grace is not None:\n",
        "    if False:\n",
        (
            "tests/entries/test_planning.py",
            "tests/entries/test_policy.py",
        ),
    ),
    Mutant(
        "catch-up-unlimited",
        "All missed runs are sent, beyond catch_up_limit.",
        "entries/decide.py",
        "plan.first_of_last(oldest, latest, limit) if limit is not None else oldest",
        "oldest",
        (
            "policies",
            "tests/entries/test_planning.py",
            "tests/entries/test_policy.py",
        ),
    ),
    Mutant(
        "latest-is-next",
        "The latest instant of a grid is one interval too late.",
        "schedules/next_run.py",
        "return after + slots * _step(schedule) if slots > 0 else None\n",
        "return after + (slots + 1) * _step(schedule) if slots > 0 else None\n",
        (
            "policies",
            "tests/schedules/test_next_run.py",
        ),
    ),
    Mutant(
        "crontab-in-utc",
        "A crontab is read in UTC and not in its time zone.",
        "schedules/next_run.py",
        "    return next_instant(cron_rule(schedule), after, timezone or schedule.tz)\n",
        "    return next_instant(cron_rule(schedule), after, UTC)\n",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/schedules/test_next_run_in_zones.py",
        ),
    ),
    Mutant(
        "dst-gap-skipped",
        "A crontab at a wall-clock time that does not exist skips that day.",
        "calendar/walltime.py",
        "        if wall is not None and (run := _first_instant(wall, zone, start)) > after:\n",
        "        if wall is not None and offsets_of(wall, zone)[0] < offsets_of(wall, zone)[1]:\n"
        "            continue\n"
        "        if wall is not None and (run := _first_instant(wall, zone, start)) > after:\n",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/schedules/test_next_run_in_zones.py",
        ),
    ),
    Mutant(
        "dst-runs-twice",
        "A crontab at a wall-clock time that exists twice runs the second time too.",
        "calendar/walltime.py",
        "        run = at_offset(wall, first)\n        return run if",
        "        run = at_offset(wall, second)\n        return run if",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/schedules/test_next_run_in_zones.py",
        ),
    ),
    Mutant(
        "zone-change-runs-again",
        "After a change of the time zone, occurrences of the new zone before it count.",
        "beat/upkeep.py",
        "            state.at = at\n",
        "            pass\n",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
    Mutant(
        "owed-run-lost",
        "A run that was due before a change of the time zone is not caught up.",
        "entries/decide.py",
        "return decision.due or decision.missed > 0",
        "return False",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
    Mutant(
        "start-is-no-grid",
        "The runs of an interval are not counted from a start_time in the past.",
        "entries/decide.py",
        "        if start is None or instant <= start or",
        "        if True or",
        ("tests/scheduler/test_new_entries.py",),
    ),
    Mutant(
        "slow-is-due-shortens-its-wait",
        "The wait that is_due returns counts from its call, not from its return.",
        "entries/decide.py",
        "called_at = now + (clock_offset(schedule, now) - ahead)",
        "called_at = now",
        ("tests/entry/test_own_schedules.py",),
    ),
)
