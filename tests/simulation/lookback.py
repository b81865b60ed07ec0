"""Compares simulations and backfills of spans with beats that really ran through these spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, Final

from redbeat import RedBeatSchedulerEntry
from redbeat.management.forecast import simulate as simulated
from tests.simulation.engine import Engine
from tests.simulation.operations import PREFIX
from tests.simulation.record import Record
from tests.simulation.runner import Simulation
from tests.simulation.scenario import Scenario, Step

__all__ = ("SPANS", "violations")

DAY: Final = 86400.0

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

#: Nominal instants of a schedule class of the user differ by this number of seconds: its
#: ``is_due`` returns the time that is left, which a beat adds to the present.
OWN_TOLERANCE: Final = 0.5


def entries(zone: str, short: bool = False) -> dict[str, dict[str, Any]]:
    """Return an entry for each type of schedule, and for each policy that changes the runs."""
    cron = {"kind": "crontab", "timezone": zone}
    hours = ["2", "*/5"] if short else ["0", "1", "2", "*", "*/5", "2,3"]
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
        "own class": {"kind": "subclass", "seconds": 5000},
    }
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
        app, client = self.app_of("reader"), self.services["redis"].engine.client
        for name in self.scenario.statics:
            names = ("definition", "meta", "policy", "runtime", "identity")
            texts = [(text or b"").decode() for text in client.hmget(PREFIX + name, names)]
            definition, meta, policy, runtime, identity = texts
            yield RedBeatSchedulerEntry.from_texts(
                app, definition, meta, policy, runtime, identity.strip('"')
            )


def scenario_of(
    statics: dict[str, dict[str, Any]], day: tuple[int, int, int], steps: Sequence[Step] = ()
) -> Scenario:
    """Return four days with one beat."""
    return Scenario(
        seed=1,
        beats=1,
        locked=False,
        duration=4 * DAY,
        calm=DAY,
        start=datetime(*day, tzinfo=timezone.utc).timestamp(),
        statics=statics,
        settings={"redbeat_history_size": 10},
        embedded=True,
        steps=tuple(steps),
        profile="look back",
    )


def violations(
    engines: dict[str, Engine], zone: str, day: tuple[int, int, int], short: bool = False
) -> list[str]:
    """Return how simulations and backfills differ from what a beat sends; empty if they agree."""
    statics = entries(zone, short)
    ran = LookBack(scenario_of(statics, day), engines, None)
    record = ran.run()
    wrong = list(wrong_simulations(ran, record))
    since, until = 0.7 * DAY, 2.6 * DAY
    steps = [
        Step(until + 7200 + turn, "backfill", "web-1", name, fields={"since": since - 3600})
        for turn in (0, 900)  # the second request must add nothing
        for name in statics
        if name != "own class"
    ]
    slept = LookBack(scenario_of(statics, day, steps), engines, (since, until))
    wrong += wrong_backfills(record, slept.run())
    return [f"{zone} {day}: {line}" for line in wrong]


def wrong_simulations(ran: LookBack, record: Record) -> Iterator[str]:
    start = datetime.fromtimestamp(record.scenario.start, timezone.utc)
    stored, now = list(ran.entries()), start + timedelta(days=4)
    for begin, end in ((BEGIN, 4 * DAY - 1200), (1.4 * DAY, 3.1 * DAY)):
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


def ids(record: Record, name: str) -> Counter[tuple[float, str]]:
    """Return nominal instant and task id of each message of an entry."""
    return Counter(
        (arrival.nominal, arrival.task_id) for arrival in record.arrivals if arrival.entry == name
    )
