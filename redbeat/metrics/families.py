"""The metrics by their names in Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

import redbeat
from redbeat.management.overview import entries_of
from redbeat.metrics.fields import KINDS, LATENESS, MICROSECONDS, ROUND_TRIPS, TICK, Steps, split
from redbeat.metrics.snapshot import Snapshot
from redbeat.storage.quarantine import shown

__all__ = ("counted", "gauges", "histograms", "process", "schedule")

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
            of_entries[found[0]].add_metric([shown(found[1])], number)
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
