"""``python -m benchmarks.timing``: what the next run costs, beside Celery's own schedules."""

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
#: Where the instants asked about begin, and how far apart they are: no two days alike.
START = datetime(2026, 1, 5, 6, 0, 30, tzinfo=UTC)
APART = timedelta(hours=37, minutes=11, seconds=3)

#: How much faster than Celery this project wants to be.
AIM = 5.0

Ask = Callable[[datetime], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One schedule, made anew with the zone of its app and its clock for each side."""

    title: str
    make: Callable[..., Any]
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds for one call, the median of the rounds."""

    title: str
    ours: float
    celery: float

    @property
    def ratio(self) -> float:
        """How many times as long Celery takes."""
        return self.celery / self.ours


def cron(*fields: str) -> Callable[..., Any]:
    """Return what makes a crontab of five fields, in the order of crontab(5)."""
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


def sides(case: Case, now: datetime) -> Sequence[Ask]:
    """Return the same question for both: when does it run after an instant?

    Celery's answer is the time that is left, so that its schedule gets a clock that stands still.
    """
    app = Celery("timing", set_as_current=False, changes={"timezone": case.zone})
    ours, celerys = case.make(app=app), case.make(app=app, nowfun=lambda: now)
    zone = ZoneInfo(case.zone)
    return (lambda after: next_run(ours, after, zone), celerys.remaining_estimate)


def instants(calls: int) -> list[datetime]:
    """Return the instants that are asked about."""
    return [START + number * APART for number in range(calls)]


def each(ask: Ask, moments: Sequence[datetime]) -> float:
    """Return the seconds of CPU that one call takes."""
    began = time.process_time()
    for moment in moments:
        ask(moment)
    return (time.process_time() - began) / len(moments)


def measure(case: Case, rounds: int, calls: int) -> Result:
    """Ask both sides in turn, and return the medians."""
    both, moments = sides(case, START), instants(calls)
    found: dict[int, list[float]] = {0: [], 1: []}
    for side in (0, 1):
        each(both[side], moments[:10])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            found[side].append(each(both[side], moments))
    return Result(case.title, *(statistics.median(found[side]) for side in (0, 1)))


def as_text(results: Sequence[Result]) -> str:
    """Return the table."""
    lines = [f"{'schedule':<30} {'ours':>9} {'Celery':>9} {'ratio':>6}   aim {AIM:.0f}"]
    for result in results:
        ours, celery = (f"{value * 1e6:.1f} µs" for value in (result.ours, result.celery))
        met = "" if result.ratio >= AIM else "   below"
        lines.append(f"{result.title:<30} {ours:>9} {celery:>9} {result.ratio:>6.1f}{met}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Measure each case and print the table. Never fails on a number."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of which the median is taken")
    parser.add_argument("--calls", type=int, default=1000, help="for each side in each round")
    options = parser.parse_args(argv)
    print(as_text([measure(case, options.rounds, options.calls) for case in CASES]))


if __name__ == "__main__":
    main(sys.argv[1:])
