"""Compares simulations and backfills of spans with beats that really ran through these spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, Final

from redbeat import Calendar, RedBeatSchedulerEntry
from redbeat.management.forecast import simulate as simulated
from tests.simulation.engine import Engine
from tests.simulation.operations import PREFIX
from tests.simulation.record import Record
from tests.simulation.runner import Simulation
from tests.simulation.scenario import Scenario, Step

DAY: Final = 86400.0
HOUR: Final = 3600

#: A zone, and a day before a change of its clocks: by an hour in both directions, by half an hour,
#: and at midnight.
SPANS: Final = (
    ("Europe/Berlin", (2027, 3, 26)),
    ("Europe/Berlin", (2027, 10, 29)),
    ("Australia/Lord_Howe", (2027, 4, 2)),
    ("America/Santiago", (2027, 9, 3)),
)

#: A zone whose clocks change by half an hour.
HALF_HOUR: Final = "Australia/Lord_Howe"

#: Seconds at the beginning in which the entries are added.
BEGIN: Final = 60.0

#: The calendar of the entries that do not run on the third day.
HOLIDAYS: Final = "holidays"

#: Seconds between the first runs of the entries without a history and the time at which another
#: program adds them.
MISSED: Final = 5.5 * HOUR

#: Policies of these entries.
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"misfire_grace_time": 60},
    {"misfire_grace_time": 60, "coalesce": "all", "catch_up_limit": 3},
    {"misfire_grace_time": 60, "delivery": "at_most_once"},
    {"misfire_grace_time": 60, "exclude": HOLIDAYS},
    {"misfire_grace_time": 60, "jitter": 300},
    {"misfire_grace_time": 60, "spread": 300},
    {"coalesce": "earliest"},
    {"coalesce": "all", "catch_up_limit": 3},
    {"spread": 300},
)

#: Nominal instants of a schedule class of the user differ by this number of seconds: its
#: ``is_due`` returns the time that is left, which a beat adds to the present.
OWN_TOLERANCE: Final = 0.5


#: Entries of the long run only; the short run has others of the same kind.
LONG_ONLY: Final = frozenset(
    (
        *("every", "every odd", "every with jitter", "every with spread", "jitter"),
        *("relative day", "relative two days", "rrule count", "rrule excluded"),
        *("cron limit", "cron window"),
    )
)


def entries(zone: str, short: bool = False) -> dict[str, dict[str, Any]]:
    """Return an entry for each type of schedule, and for each policy that changes the runs."""
    cron = {"kind": "crontab", "timezone": zone}
    hours = ["2", "*/5"] if short else ["0", "1", "2", "*", "*/5", "2,3"]
    pace, often = (4, "*/4") if short else (1, "*")
    minutes = ["30"] if short else ["0", "30", "*/20"]
    found: dict[str, dict[str, Any]] = {
        "every": {"kind": "every", "seconds": 5400},
        "every odd": {"kind": "every", "seconds": 4321.123457},
        "relative day": {"kind": "relative", "seconds": DAY, "timezone": zone},
        "relative hours": {"kind": "relative", "seconds": 3 * 3600, "timezone": zone},
        "relative two days": {"kind": "relative", "seconds": 2 * DAY, "timezone": zone},
        **{
            f"cron {hour}:{minute}": {**cron, "hour": hour, "minute": minute}
            for hour in hours
            for minute in minutes
        },
        "rrule": {"kind": "rrule", "freq": "HOURLY", "interval": 5},
        "rrule wall": {"kind": "rrule", "freq": "DAILY", "interval": 1, "zone": zone},
        "rrule count": {"kind": "rrule", "freq": "HOURLY", "interval": 2, "count": 9},
        "rruleset": {"kind": "rruleset", "freq": "HOURLY", "interval": 6},
        "clocked": {"kind": "clocked", "after": 1.5 * DAY},
        "solar": {"kind": "solar"},
        "jitter": {**cron, "hour": "*", "minute": "10", "jitter": 600},
        "every with jitter": {"kind": "every", "seconds": 3000, "jitter": 900},
        "limit": {"kind": "every", "seconds": 7200, "max_runs": 11},
        "cron limit": {**cron, "minute": "15", "max_runs": 7},
        "window": {"kind": "every", "seconds": 3600, "start": DAY, "end": 2 * DAY},
        "cron window": {**cron, "minute": "25", "start": DAY, "end": 2 * DAY},
        "spread": {**cron, "hour": often, "minute": "20", "spread": 900},
        "every with spread": {"kind": "every", "seconds": 3300 * pace, "spread": 600},
        "excluded": {**cron, "hour": "*/3", "minute": "35", "exclude": HOLIDAYS},
        "rrule excluded": {"kind": "rrule", "freq": "HOURLY", "interval": 4, "exclude": HOLIDAYS},
        "misfire": {**cron, "hour": often, "minute": "45", "misfire_grace_time": 600},
        "own class": {"kind": "subclass", "seconds": 5000},
    }
    if short:
        found = {name: entry for name, entry in found.items() if name not in LONG_ONLY}
    if zone == HALF_HOUR:
        # After such a change, the past of this interval is unknown: its runs are at full hours.
        del found["relative hours"]
    return found


class LookBack(Simulation):
    """A simulation in which the only beat is killed and stays away for some time."""

    def __init__(
        self, scenario: Scenario, engines: dict[str, Engine], asleep: tuple[float, float] | None
    ) -> None:
        super().__init__(scenario, engines)
        self._asleep = asleep

    def _set_up(self) -> None:
        super()._set_up()
        if self._asleep is not None:
            since, until = self._asleep
            self.at(since, self._sleep, until - since)

    def _sleep(self, seconds: float) -> None:
        self.down_for["beat-1"] = seconds
        self.beats["beat-1"].kill()

    def entries(self) -> Iterator[RedBeatSchedulerEntry]:
        """Yield the entries that are stored at the end."""
        app = self.app_of("reader")
        app.redbeat_redis = self.services["redis"].engine.client
        for name in self.scenario.statics:
            entry = RedBeatSchedulerEntry.from_key(PREFIX + name, app)
            entry.use_calendars(
                {HOLIDAYS: Calendar(HOLIDAYS, self.scenario.steps[0].fields["days"])}
            )
            yield entry


def holidays(day: tuple[int, int, int]) -> Step:
    """Return the step that saves the calendar."""
    third = datetime(*day, tzinfo=timezone.utc) + timedelta(days=2)
    return Step(0.0, "calendar", "web-2", HOLIDAYS, fields={"days": [third.date().isoformat()]})


def entries_without_history(short: bool) -> dict[str, dict[str, Any]]:
    """Return entries that another program adds, whose first runs are missed by then.

    The short run has each policy with one of the two kinds of schedule.
    """
    rule = {"kind": "rrule", "freq": "HOURLY", "interval": 1, "past": int(MISSED), "anew": True}
    cron = {"kind": "crontab", "minute": "10", "anew": True}  # at 600 seconds of each hour
    return {
        f"{kind} {number}": {**schedule, **policy}
        for place, (kind, schedule) in enumerate((("rule", rule), ("cron", cron)))
        for number, policy in enumerate(POLICIES)
        if not short or number % 2 == place
    }


def scenario_of(
    statics: dict[str, dict[str, Any]],
    day: tuple[int, int, int],
    duration: float,
    steps: Sequence[Step] = (),
) -> Scenario:
    """Return ``duration`` seconds since the beginning of a day with one beat."""
    return Scenario(
        seed=1,
        beats=1,
        locked=False,
        duration=duration,
        calm=DAY,
        start=datetime(*day, tzinfo=timezone.utc).timestamp(),
        statics=statics,
        settings={"redbeat_history_size": 10},
        embedded=True,
        beats_from=1.0,  # after the calendar is stored
        steps=(holidays(day), *steps),
        profile="look back",
    )


def violations(
    engines: dict[str, Engine], zone: str, day: tuple[int, int, int], short: bool = False
) -> list[str]:
    """Return how simulations and backfills differ from what a beat sends; empty if they agree."""
    statics, duration = entries(zone, short), 3.25 * DAY if short else 4 * DAY
    ran = LookBack(scenario_of(statics, day, duration), engines, None)
    record = ran.run()
    wrong = [*defects(record), *wrong_simulations(ran, record)]
    since, until = 0.7 * DAY, 2.6 * DAY
    steps = [
        Step(until + 7200 + turn, "backfill", "web-1", name, fields={"since": since - 3600})
        for turn in (0, 900)  # the second request must add nothing
        for name in statics
        if name != "own class"
    ]
    slept = LookBack(scenario_of(statics, day, duration, steps), engines, (since, until))
    slept_record = slept.run()
    wrong += [*defects(slept_record), *wrong_backfills(record, slept_record)]
    return [f"{zone} {day}: {line}" for line in wrong]


def defects(record: Record) -> list[str]:
    """Return which entries a beat reads again and again, and which beats exited."""
    return [
        *(f"{name}: busy loop of {beat} at {at:.1f} s" for at, beat, name in record.loops),
        *(f"{beat} exited at {at:.1f} s: {error}" for at, beat, error in record.exits),
    ]


def wrong_simulations(ran: LookBack, record: Record) -> Iterator[str]:
    start = datetime.fromtimestamp(record.scenario.start, timezone.utc)
    stored, duration = list(ran.entries()), record.scenario.duration
    now = start + timedelta(seconds=duration)
    for begin, end in ((BEGIN, duration - 1200), (1.4 * DAY, 3.1 * DAY)):
        since, until = (start + timedelta(seconds=seconds) for seconds in (begin, end))
        found = simulated([(entry, None) for entry in stored], since, until, now)
        for name, entry in found.entries.items():
            expected = ledger(record, name, since, until)
            got = [run.scheduled_at.timestamp() for run in entry.before]
            agrees = same_grid(expected, got) if name == "own class" else got == expected
            if not agrees:
                yield f"simulate {name} from {since}: {differences(expected, got)}"
            late = [arrival for arrival in record.arrivals if arrival.entry == name]
            due = {run.scheduled_at.timestamp(): run.due_at.timestamp() for run in entry.before}
            for arrival in late:
                at = due.get(arrival.nominal, arrival.clock)
                if not -0.001 <= arrival.clock - at < 2:
                    yield f"simulate {name}: {arrival.nominal} at {arrival.clock}, not {at}"


def same_grid(expected: list[float], got: list[float]) -> bool:
    """Whether two lists have the same intervals; a class of the user has no grid in the past."""
    if abs(len(expected) - len(got)) > 1:
        return False
    steps = [[b - a for a, b in pairwise(one)] for one in (expected, got)]
    return all(abs(step - 5000) < OWN_TOLERANCE for one in steps for step in one)


def ledger(record: Record, name: str, since: datetime, until: datetime) -> list[float]:
    """Return the nominal instants of the messages of an entry in a span."""
    first, last = since.timestamp(), until.timestamp()
    return [
        arrival.nominal
        for arrival in record.arrivals
        if arrival.entry == name and first <= arrival.nominal < last
    ]


def differences(expected: Sequence[object], got: Sequence[object]) -> str:
    missing, more = Counter(expected) - Counter(got), Counter(got) - Counter(expected)
    return f"without {sorted(map(str, missing))}, but with {sorted(map(str, more))}"


def wrong_backfills(awake: Record, slept: Record) -> Iterator[str]:
    """Yield how the messages after a backfill differ from those of a beat that did not sleep."""
    for action in slept.actions:
        if action.outcome != "done":
            yield f"backfill {action.step.entry}: {action.outcome}"
    for name in awake.scenario.statics:
        if name in ("own class", "limit", "cron limit"):  # max_runs does not limit a backfill
            continue
        expected, got = (ids(record, name) for record in (awake, slept))
        if expected != got:
            yield f"backfill {name}: {differences([*expected.elements()], [*got.elements()])}"
    for name in ("limit", "cron limit"):
        twice = [key for key, count in ids(slept, name).items() if count > 1]
        if twice:
            yield f"backfill {name}: sent twice: {twice}"


def first_backfills(
    engines: dict[str, Engine], zone: str, day: tuple[int, int, int], short: bool = False
) -> list[str]:
    """Return how backfills of entries without a history differ from their schedules.

    Each run since the first one must be sent once, by the schedule or by the backfill. A crontab
    without a history also runs when it is added.
    """
    added, since = entries_without_history(short), int(BEGIN - MISSED)
    # The first request comes while a beat sends the run that it catches up, the second one later.
    steps = [
        Step(BEGIN + wait + number, what, who, name, fields=fields)
        for number, (name, entry) in enumerate(added.items())
        for who, wait, what, fields in (
            ("web-1", 0.0, "raw save", entry),
            ("web-1", 0.0, "backfill", {"since": since}),
            ("web-2", 60.0, "backfill", {"since": since}),
        )
    ]
    scenario = replace(scenario_of({}, day, 0.75 * HOUR, steps), embedded=False)
    record = LookBack(scenario, engines, None).run()
    wrong = defects(record)
    start, end = int(scenario.start), int(scenario.start + 0.6 * HOUR)
    for action in record.actions:
        name = action.step.entry
        if action.outcome != "done":
            wrong.append(f"{action.step.what} {name}: {action.outcome}")
        if action.step.what != "raw save":
            continue
        added_at = start + int(action.began)
        one_run = added_at + 1 - int(MISSED) if name.startswith("rule") else 600
        first = start + since + (one_run - start - since) % HOUR
        got = sorted(one.nominal for one in record.arrivals if one.entry == name)
        got = [at for at in got if at < end and not (at % 1 and added_at <= at <= added_at + 1)]
        expected = [*range(first, end, HOUR)]
        if got != expected:
            wrong.append(f"first backfill of {name}: {differences(expected, got)}")
    return [f"{zone} {day}: {line}" for line in wrong]


def ids(record: Record, name: str) -> Counter[tuple[float, str]]:
    """Return nominal instant and task id of each message of an entry."""
    return Counter(
        (arrival.nominal, arrival.task_id) for arrival in record.arrivals if arrival.entry == name
    )
