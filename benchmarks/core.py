"""What a run costs, in half a minute: ``python -m benchmarks core``.

Beats and a loop of ``send_task`` take turns in this process, so that a slow minute of the machine
slows both. RedBeat 2.4.2 runs in an environment of its own, which the first run downloads. Figures
for the documentation come from the long measurements: ``python -m benchmarks``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import redis
from celery import Celery

from examples.embedded import EmbeddedRedis
from redbeat import RedBeatScheduler

from .prepared import beat, emptied, make_app, seed_due, seed_spread
from .sides import install_peer, ours
from .suite import Case, in_turn, run_case

#: The messages of one measurement, and how many times it is repeated.
RUNS, ROUNDS = 1000, 6

#: In how many seconds the runs of one instant are due.
AHEAD = 2.0

#: The idle ticks of one measurement.
TICKS = 300


class Taken(NamedTuple):
    """What the runs of one round took: seconds of a beat, of Redis for it, and of the loop."""

    beat: float
    redis: float
    loop: float


class Scene:
    """A beat, its schedule and the broker, on one or two servers."""

    def __init__(self, schedule: str, broker: str) -> None:
        self.client = emptied(schedule)
        self.broker: Any = redis.Redis.from_url(broker)
        self.app = make_app(schedule, broker)

    @contextmanager
    def beat(self) -> Iterator[RedBeatScheduler]:
        """Start a beat, which publishes its messages."""
        with beat(self.app, RedBeatScheduler) as scheduler:
            gc.collect()
            gc.freeze()  # as a beat service does when it starts
            yield scheduler
            gc.unfreeze()

    def rounds(self, known: bool) -> list[Taken]:
        """Measure entries that are all due at once; ``known`` ones have run before."""
        found = []
        with self.beat() as scheduler:
            for number in range(ROUNDS + known):
                seed_due(self.client, RUNS, "crontab", 0 if known else number * RUNS)
                before = self._redis_cpu()
                taken = seconds_of(lambda: self._until_sent(scheduler))
                used = self._redis_cpu() - before
                loop = seconds_of(lambda: bare(self.app))
                if number or not known:
                    found.append(Taken(taken, used, loop))
        return found

    def instants(self) -> list[Taken]:
        """Measure how long after an instant all of its runs are in the queue."""
        found = []
        with self.beat() as scheduler:
            for _ in range(ROUNDS):
                loop = seconds_of(lambda: bare(self.app))
                self.broker.delete("celery")
                instant = time.time() + AHEAD
                seed_spread(self.client, RUNS, instant, every=3600.0)
                while self.broker.llen("celery") < RUNS:
                    time.sleep(min(scheduler.tick(), max(instant - time.time(), 0.0)))
                found.append(Taken(time.time() - instant, 0.0, loop))
        return found

    def _until_sent(self, scheduler: RedBeatScheduler) -> None:
        self.broker.delete("celery")
        while self.broker.llen("celery") < RUNS:
            scheduler.tick()

    def _redis_cpu(self) -> float:
        info = self.client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def idle(self) -> tuple[float, float]:
        """Return the seconds and the scripts of one idle tick."""
        self.client.flushdb()
        with self.beat() as scheduler:
            before = self.client.info("commandstats")
            seconds = seconds_of(lambda: [scheduler.tick() for _ in range(TICKS)])
            sent = scripts_in(self.client.info("commandstats")) - scripts_in(before)
        return seconds / TICKS, sent / TICKS


def seconds_of(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def scripts_in(stats: dict[str, Any]) -> int:
    """Return how many scripts a server has run: a turn is one, with commands inside."""
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


def bare(app: Celery) -> None:
    """Send as many messages with ``send_task`` and one connection."""
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection, auto_declare=False)
        for number in range(RUNS):
            app.send_task("unknown", [str(number)], {"three": 3}, producer=producer)


def median(values: list[float]) -> float:
    """Return the middle one."""
    return sorted(values)[len(values) // 2]


def print_runs(title: str, rounds: list[Taken]) -> None:
    """Print one line about runs that were all due at once."""
    ratio = median([each.beat / each.loop for each in rounds])
    taken, used = (median([each[place] for each in rounds]) for place in (0, 1))
    each = f"{taken / RUNS * 1e6:6.0f} us a run, of these Redis {used / RUNS * 1e6:3.0f}"
    print(f"{title:36}{each}; {taken * 1000:5.0f} ms for {RUNS:,}; {ratio:.2f} of the loop")


def print_with_peer(url: str, title: str, case: Case, name: str) -> None:
    """Print one line that compares a workload with RedBeat 2."""
    sides, taken = (ours(), install_peer()), dict[str, list[float]]()
    for number in range(3):
        for side in in_turn(sides, number):
            emptied(url).close()
            taken.setdefault(side.name, []).append(run_case(side, url, case)[name])
    mine, theirs = (median(taken[side.name]) for side in sides)
    print(
        f"{title:36}{mine * 1e6:6.0f} us; {theirs / mine:.2f} times as fast as {sides[1].version}"
    )


def main() -> None:
    """Measure and print."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(EmbeddedRedis()) for _ in range(2))
        for place, broker in (("one server", one.url), ("two servers", two.url)):
            scene = Scene(one.url, broker)
            print_runs(f"entries that are new, {place}", scene.rounds(known=False))
            print_runs(f"entries that ran before, {place}", scene.rounds(known=True))
        taken = Scene(one.url, one.url).instants()
        after = median([each.beat for each in taken])
        ratio = median([each.beat / each.loop for each in taken])
        title = "runs of one instant, one server"
        print(f"{title:36}{after * 1000:6.0f} ms for {RUNS:,}; {ratio:.2f} of the loop")
        seconds, scripts = Scene(one.url, two.url).idle()
        print(f"{'an idle tick':36}{seconds * 1e6:6.0f} us, {scripts:.0f} round trip")
        print_with_peer(one.url, "save() of a new entry", Case("save", 500), "new_each")
