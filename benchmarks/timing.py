"""``python -m benchmarks.timing`` compares how fast RedBeat 3 and Celery compute a next run."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, schedule

from redbeat.schedules.next_run import next_run

__all__ = ("CASES", "Case", "Result", "as_text", "measure")

UTC = timezone.utc
#: The first measured instant, and the distance between two consecutive measured instants.
#: The distance is not a multiple of one hour, so the instants cover different times of the day.
START = datetime(2026, 1, 5, 6, 0, 30, tzinfo=UTC)
APART = timedelta(hours=37, minutes=11, seconds=3)

#: The target for Celery's time divided by the time of RedBeat 3.
AIM = 5.0

#: A function that computes the next run after an instant.
NextRun = Callable[[datetime], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule to measure.

    Attributes:
        title: the title in the table.
        make: a function of ``app`` and, optionally, ``nowfun`` that returns the schedule.
        zone: the time zone of the app.
    """

    title: str
    make: Callable[..., Any]
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Result:
    """The median times that RedBeat 3 and Celery need per call, in seconds."""

    title: str
    ours: float
    celery: float

    @property
    def ratio(self) -> float:
        """Celery's time divided by the time of RedBeat 3."""
        return self.celery / self.ours


def cron(*fields: str) -> Callable[..., Any]:
    """Return a function that returns a crontab; the fields are in the order of crontab(5)."""
    minute, hour, day, month, weekday = fields
    return lambda **kwargs: crontab(minute, hour, weekday, day, month, **kwargs)


CASES = (
    Case("*/5 * * * *", cron("*/5", "*", "*", "*", "*")),
    Case("0 9 * * 1-5, New York", cron("0", "9", "*", "*", "1-5"), "America/New_York"),
    Case("0 0 29 2 *", cron("0", "0", "29", "2", "*")),
    Case("15,45 8-18/2 1 */3 *, Paris", cron("15,45", "8-18/2", "1", "*/3", "*"), "Europe/Paris"),
    Case("every 10 s", lambda **kwargs: schedule(10.0, **kwargs)),
    Case("every 0.1 s", lambda **kwargs: schedule(0.1, **kwargs)),
)


def sides(case: Case, now: datetime) -> Sequence[NextRun]:
    """Return the functions of RedBeat 3 and of Celery that compute the next run.

    Celery computes the remaining time from the current time, so its schedule gets a clock that
    always returns ``now``.
    """
    app = Celery("timing", set_as_current=False, changes={"timezone": case.zone})
    ours, celerys = case.make(app=app), case.make(app=app, nowfun=lambda: now)
    zone = ZoneInfo(case.zone)
    return (lambda after: next_run(ours, after, zone), celerys.remaining_estimate)


def instants(calls: int) -> list[datetime]:
    """Return the instants to pass to the measured function, one for each call."""
    return [START + number * APART for number in range(calls)]


def seconds_per_call(next_run_after: NextRun, moments: Sequence[datetime]) -> float:
    """Return the mean CPU seconds of one call of ``next_run_after``."""
    started = time.process_time()
    for moment in moments:
        next_run_after(moment)
    return (time.process_time() - started) / len(moments)


def measure(case: Case, rounds: int, calls: int) -> Result:
    """Measure RedBeat 3 and Celery in turn, and return the medians."""
    both, moments = sides(case, START), instants(calls)
    samples: dict[int, list[float]] = {0: [], 1: []}
    for side in (0, 1):
        seconds_per_call(both[side], moments[:10])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            samples[side].append(seconds_per_call(both[side], moments))
    return Result(case.title, *(statistics.median(samples[side]) for side in (0, 1)))


def as_text(results: Sequence[Result]) -> str:
    """Return the results as a text table for a terminal."""
    lines = [f"{'schedule':<30} {'ours':>9} {'Celery':>9} {'ratio':>6}   target {AIM:.0f}"]
    for result in results:
        ours, celery = (f"{value * 1e6:.1f} µs" for value in (result.ours, result.celery))
        missed = "" if result.ratio >= AIM else "   below"
        lines.append(f"{result.title:<30} {ours:>9} {celery:>9} {result.ratio:>6.1f}{missed}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Measure each case and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=15, help="number of rounds; the table shows the medians"
    )
    parser.add_argument(
        "--calls", type=int, default=1000, help="calls of RedBeat 3 and of Celery in each round"
    )
    options = parser.parse_args(argv)
    print(as_text([measure(case, options.rounds, options.calls) for case in CASES]))


if __name__ == "__main__":
    main(sys.argv[1:])
