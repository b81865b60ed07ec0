"""The metrics of a schedule as ``prometheus_client`` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from celery.utils.log import get_logger
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

import redbeat
from redbeat.entries.status import entries_of
from redbeat.storage.quarantine import printable

from .counters import KINDS, LATENESS, MICROSECONDS, ROUND_TRIPS, TICK, Counters, Steps, split
from .health import BeatHealth, ProbeResult
from .snapshot import Snapshot

__all__ = (
    "BeatCollector",
    "RedisCollector",
    "counted",
    "gauges",
    "histograms",
    "process",
    "schedule",
)

logger = get_logger("celery.beat")


#: What is counted of entries, in words.
HELP: Final = {
    "dispatched": "Messages that were sent",
    "failed": "Attempts to send a message that failed",
    "retried": "Attempts to send a message that failed and are repeated",
    "missed": "Runs that never were, nor will be",
    "skipped": "Runs left out because an earlier one of the entry went on",
    "quarantined": "Times that an entry was set aside because it cannot be read",
}

Gauge = tuple[str, str, float | None]


def counted(totals: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the counters of a mapping by fields of the stats."""
    of_entries = {
        kind: CounterMetricFamily(f"redbeat_entry_{kind}", f"{text}, by entry.", labels=["entry"])
        for kind, text in HELP.items()
    }
    for field, number in totals.items():
        found = split(field)
        if found is not None:
            of_entries[found[0]].add_metric([printable(found[1])], number)
    for kind in KINDS:
        yield CounterMetricFamily(f"redbeat_{kind}", f"{HELP[kind]}.", totals.get(kind, 0))
        yield of_entries[kind]
    trips = totals.get(ROUND_TRIPS, 0)
    yield CounterMetricFamily(
        "redbeat_redis_round_trips", "Round trips to Redis for the schedule.", trips
    )


def histograms(totals: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the histograms of a mapping by fields of the stats."""
    late = "Seconds from when an entry was due until its message was about to be sent."
    yield _histogram("redbeat_lateness_seconds", late, LATENESS, totals)
    ticks = "Seconds that a tick took, without the wait after it."
    yield _histogram("redbeat_tick_duration_seconds", ticks, TICK, totals)


def _histogram(name: str, text: str, steps: Steps, totals: Mapping[str, int]) -> Metric:
    sums = accumulate(totals.get(field, 0) for field in steps.fields)
    buckets = list(zip(map(_bound, steps.texts), sums, strict=True))
    return HistogramMetricFamily(name, text, buckets, totals.get(steps.sum, 0) / MICROSECONDS)


def _bound(text: str) -> str:
    return text if text == "+Inf" else str(float(text))


def schedule(found: Snapshot) -> Iterator[Metric]:
    """Yield what Redis knows of the schedule."""
    states = GaugeMetricFamily("redbeat_entries", "Entries by state.", labels=["state"])
    for state, number in entries_of(found.counts).items():
        states.add_metric([state], number)
    yield states
    counts = found.counts
    late = None if counts.first_due is None else max(counts.now - counts.first_due, 0.0)
    yield from gauges(
        ("redbeat_static_entries", "Entries that come from beat_schedule.", counts.statics),
        ("redbeat_due_entries", "Entries that are due and not yet claimed.", counts.due),
        ("redbeat_most_late_seconds", "Seconds since the first of these was due.", late or 0.0),
        ("redbeat_beats", "Beats that are known: the leader and those present.", len(found.beats)),
        ("redbeat_lock_age_seconds", "Seconds since the leader took the lock.", found.lock_age),
        ("redbeat_lock_ttl_seconds", "Seconds until the lock expires.", found.lock_left),
        (
            "redbeat_clock_offset_seconds",
            "Seconds by which the clock of this host is ahead of that of Redis.",
            found.clock_offset,
        ),
    )


def process(leads: bool | None, tick_age: float | None, redis_up: bool) -> Iterator[Metric]:
    """Yield what a beat knows of itself, and an exporter of the beats."""
    about = InfoMetricFamily("redbeat_build", "The version of RedBeat.")
    about.add_metric([], {"version": redbeat.__version__})
    yield about
    age = "Seconds since the last tick that Redis answered."
    leader = "Whether this beat leads (1) or stands by (0); in the exporter, whether any leads."
    yield from gauges(
        ("redbeat_redis_up", "Whether Redis answers.", float(redis_up)),
        ("redbeat_leader", leader, None if leads is None else float(leads)),
        ("redbeat_last_tick_age_seconds", age, tick_age),
    )


def gauges(*found: Gauge) -> Iterable[Metric]:
    """Yield gauges of (name, help, value); without a sample where that is None."""
    for name, text, value in found:
        family = GaugeMetricFamily(name, text)
        if value is not None:
            family.add_metric([], value)
        yield family


class BeatCollector(Collector):
    """One beat: what it counted itself, and what ``look`` says of the schedule, if anything.

    A Redis that did not answer the last tick is not asked.
    """

    def __init__(
        self, health: BeatHealth, counters: Counters, look: Callable[[], Snapshot | None]
    ) -> None:
        self._health = health
        self._counters = counters
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Three round trips, none while Redis is away."""
        health = self._health
        found = _seen(self._look) if health.redis_up else None
        yield from process(health.leads, health.tick_age, health.redis_up)
        totals = self._counters.totals()
        yield from counted(totals)
        yield from histograms(totals)
        if found is not None:
            yield from schedule(found)


class RedisCollector(Collector):
    """A schedule, as ``look`` says: whatever beats there are have told Redis.

    Entries are shown one by one while there are no more than ``most``.
    """

    def __init__(self, look: Callable[[], Snapshot], most: int) -> None:
        self._look = look
        self._most = most

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Three round trips."""
        found = _seen(self._look)
        if found is None:
            yield from process(None, None, False)
            return
        yield from process(found.leads, found.tick_age, True)
        totals = found.totals(self._most)
        yield from counted(totals)
        yield from histograms(totals)
        yield from schedule(found)

    def ready(self) -> ProbeResult:
        """Tell whether Redis answers. Three round trips."""
        up = _seen(self._look) is not None
        return ProbeResult(up, "Redis answers" if up else "Redis does not answer")


def _seen(look: Callable[[], Snapshot | None]) -> Snapshot | None:
    try:
        return look()
    except (RedisError, OSError) as error:
        logger.debug("metrics: Redis does not answer: %r", error)
        return None
