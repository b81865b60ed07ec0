"""Serves the metrics for Prometheus, and the health checks ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from celery import Celery
from prometheus_client import ProcessCollector, core, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString
from redis.exceptions import RedisError

import redbeat
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError, described, reason_of
from redbeat.printing import get_logger, printable
from redbeat.storage.store import store_of
from redbeat.storage.words import NO_BROKER

from . import BEAT, counters
from .counters import BeatHealth, ProbeResult
from .snapshot import Snapshot, entries_of, take_snapshot

logger = get_logger("celery.beat")

#: Maximum length of a label, in characters.
MAX_LABEL: Final = 200

#: Maximum number of overdue entries in the metrics.
MAX_OVERDUE: Final = 100

#: The gauges without labels, with their help texts.
GAUGES: Final = {
    "redis_up": "1 if Redis answers, else 0.",
    "leader": "1 for the leader, 0 for a standby. In the exporter: 1 if any beat leads.",
    "last_tick_age_seconds": "Seconds since the last tick that Redis answered.",
    "broker_up": "0 if a beat cannot send messages to the broker, else 1.",
    "static_entries": "Entries that come from beat_schedule.",
    "due_entries": "Entries that are due and that no beat holds, or whose run could not be sent.",
    "most_late_seconds": (
        "Lateness of the run that has waited longest and was not sent yet, in seconds."
    ),
    "failed_entries": "Entries whose last runs failed, also those that are paused for it.",
    "beats": "Beats that are running, including standbys.",
    "lock_age_seconds": "Seconds since the leader took the lock.",
    "lock_ttl_seconds": "Seconds until the lock expires.",
    "clock_offset_seconds": "Clock of this host minus clock of Redis, in seconds.",
}

#: Returns the counts since the start of a beat, by field.
Totals = Callable[[], Mapping[str, int]]
Probe = Callable[[], ProbeResult]
WSGI = Callable[..., Any]


# -- metrics ---------------------------------------------------------------------------------------


def counters_of(totals: Mapping[str, int]) -> Iterator[core.Metric]:
    by_label = _counts_by_label(totals)
    for kind, text in counters.KINDS.items():
        yield core.CounterMetricFamily(f"redbeat_{kind}", f"{text}.", totals.get(kind, 0))
        entries = core.CounterMetricFamily(
            f"redbeat_entry_{kind}", f"{text}, by entry.", labels=["entry"]
        )
        yield _with_samples(entries, by_label[kind])
    runs = "Runs that ended, by the result that workers reported."
    results = core.CounterMetricFamily("redbeat_runs", runs, labels=["result"])
    ended = {result: totals.get(field, 0) for result, field in counters.RESULTS.items()}
    yield _with_samples(results, ended)
    trips = totals.get(counters.ROUND_TRIPS, 0)
    yield core.CounterMetricFamily(
        "redbeat_redis_round_trips", "Round trips to Redis made by ticks.", trips
    )
    different = "Rendered messages that differed from Celery's, which were sent instead."
    mismatches = totals.get(counters.MISMATCHES, 0)
    yield core.CounterMetricFamily("redbeat_render_mismatch", different, mismatches)
    lateness = "Lateness of runs: seconds from the due time until the message was published."
    yield _histogram("redbeat_lateness_seconds", lateness, counters.LATENESS, totals)
    ticks = "Duration of ticks in seconds, without the wait between ticks."
    yield _histogram("redbeat_tick_duration_seconds", ticks, counters.TICK, totals)


def _with_samples(metric: Any, numbers: Mapping[str, float]) -> Any:
    for value, number in numbers.items():
        metric.add_metric([value], number)
    return metric


def _counts_by_label(totals: Mapping[str, int]) -> dict[str, Counter[str]]:
    """Entries with equal printable names share a label."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for field, number in totals.items():
        if found := counters.split(field):
            kind, name = found
            counts[kind][printable(name, MAX_LABEL)] += number
    return counts


def _histogram(
    name: str, text: str, buckets: counters.Buckets, totals: Mapping[str, int]
) -> core.Metric:
    sums = accumulate(totals.get(field, 0) for field in buckets.fields)
    cumulative = list(zip(map(floatToGoString, buckets.texts), sums, strict=True))
    total = totals.get(buckets.sum, 0) / counters.MICROSECONDS
    return core.HistogramMetricFamily(name, text, cumulative, total)


def schedule_gauges(snapshot: Snapshot) -> Iterator[core.Metric]:
    states = core.GaugeMetricFamily("redbeat_entries", "Entries by state.", labels=["state"])
    yield _with_samples(states, entries_of(snapshot.counts))
    yield overdue_gauge(snapshot)
    kinds = "1 for each kind of problem that celery redbeat status names."
    problems = core.GaugeMetricFamily("redbeat_problem", kinds, labels=["kind", "severity"])
    for kind, severity in {one.kind: one.severity for one in snapshot.problems}.items():
        problems.add_metric([kind, severity], 1)
    yield problems
    counts = snapshot.counts
    yield from _gauges(
        broker_up=None if snapshot.leads is False else not counts.problem.startswith(NO_BROKER),
        static_entries=counts.statics,
        due_entries=counts.due,
        most_late_seconds=max(counts.now - (counts.first_due or counts.now), 0.0),
        failed_entries=counts.failed,
        beats=len(snapshot.beats),
        lock_age_seconds=snapshot.lock_age,
        lock_ttl_seconds=snapshot.lock_left,
        clock_offset_seconds=snapshot.clock_offset,
    )


def _gauges(**values: float | None) -> Iterator[core.Metric]:
    """A gauge without a value has no sample."""
    for name, value in values.items():
        number = None if value is None else float(value)
        yield core.GaugeMetricFamily(f"redbeat_{name}", GAUGES[name], number)


def overdue_gauge(snapshot: Snapshot) -> core.Metric:
    """Return a gauge of at most :data:`MAX_OVERDUE` entries, the most overdue first."""
    text = "Seconds without a success, for entries that had no success within expect_within."
    overdue = core.GaugeMetricFamily("redbeat_overdue_entry_seconds", text, labels=["entry"])
    for item in snapshot.overdue[:MAX_OVERDUE]:
        overdue.add_metric([item.name], item.seconds)
    return overdue


def health_gauges(
    leads: bool | None, tick_age: float | None, redis_up: bool
) -> Iterator[core.Metric]:
    about = "The version of RedBeat."
    yield core.InfoMetricFamily("redbeat_build", about, {"version": redbeat.__version__})
    yield from _gauges(redis_up=redis_up, leader=leads, last_tick_age_seconds=tick_age)


class BeatCollector(Collector):
    """Collects the metrics of one beat, and a snapshot of the schedule.

    There is no snapshot if Redis did not answer the last tick; there is one if it only refused to
    write.
    """

    def __init__(
        self, health: BeatHealth, totals: Totals, take: Callable[[], Snapshot | None]
    ) -> None:
        self._health, self._totals, self._take_snapshot = health, totals, take

    def collect(self) -> Iterator[core.Metric]:
        """Takes four round trips, or none while Redis is unavailable."""
        health = self._health
        snapshot = _snapshot_or_none(self._take_snapshot) if health.may_answer else None
        redis_up = health.redis_up or snapshot is not None
        yield from health_gauges(health.leads, health.tick_age, redis_up)
        yield from counters_of(self._totals())
        if snapshot is not None:
            yield from schedule_gauges(snapshot)


class RedisCollector(Collector):
    """Collects the metrics of a schedule and all its beats from Redis.

    Single entries are counted only if the schedule has at most ``max_entries``.
    """

    def __init__(self, take: Callable[[], Snapshot], max_entries: int) -> None:
        self._take_snapshot, self._max_entries = take, max_entries

    def collect(self) -> Iterator[core.Metric]:
        """Takes four round trips."""
        snapshot = _snapshot_or_none(self._take_snapshot)
        if snapshot is None:
            yield from health_gauges(None, None, False)
            return
        yield from health_gauges(snapshot.leads, snapshot.tick_age, True)
        yield from counters_of(snapshot.totals(self._max_entries))
        yield from schedule_gauges(snapshot)

    def ready(self) -> ProbeResult:
        """Return whether Redis answers, and else why not. Takes four round trips."""
        try:
            self._take_snapshot()
        except (RedisError, OSError) as error:
            return ProbeResult(False, f"Redis cannot be used: {reason_of(error)}")
        return ProbeResult(True, "Redis answers")


def _snapshot_or_none(take: Callable[[], Snapshot | None]) -> Snapshot | None:
    try:
        return take()
    except (RedisError, OSError) as error:
        logger.debug("metrics: Redis does not answer: %s", described(error))
        return None


# -- the server ------------------------------------------------------------------------------------


class Handler(WSGIRequestHandler):
    #: Seconds after which a silent connection is closed.
    timeout = 10.0

    def log_message(self, *_args: Any) -> None:
        """Log nothing: a collector asks every few seconds."""


class Server(ThreadingWSGIServer):
    """Serves ``app`` in threads of its own until :meth:`close`.

    The constructor raises :exc:`ConfigurationError` if it cannot listen on ``host`` and ``port``;
    the message names ``setting``, which is to be changed.
    """

    #: How many connections may wait to be accepted.
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: WSGI, setting: str) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family, *_, address = found[0]
            super().__init__((str(address[0]), port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}, port {port}: {error}. Set {setting} to a free port: "
                "each beat and each exporter on a host needs its own port"
            ) from error
        self.set_app(app)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        Thread(target=self.serve_forever, name="redbeat-metrics", daemon=True).start()

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log why a connection was closed, such as its silence."""
        logger.debug(
            "metrics: The connection of %s was closed: %r", client_address, sys.exc_info()[1]
        )

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        self.shutdown()
        self.server_close()


def _app(collectors: Iterable[Collector], alive: Probe, ready: Probe) -> WSGI:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    metrics, probes = make_wsgi_app(registry), {"/healthz": alive, "/readyz": ready}

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        if path in probes:
            ok, why = probes[path]()
            status = "200 OK" if ok else "503 Service Unavailable"
        else:
            status, why = "404 Not Found", "not found; try /metrics, /healthz or /readyz"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{why}\n".encode()]

    return serve


#: How many connections to Redis a beat uses at once. If its pool has no more, a scrape could make a
#: tick fail.
CONNECTIONS_OF_A_BEAT: Final = 4


def serve_beat(conf: RedBeatConfig, client: Any, health: BeatHealth, totals: Totals) -> Server:
    """Serve one beat's metrics; raise :exc:`ConfigurationError` if the port is in use."""
    assert conf.metrics_port is not None
    # The beat's own store is not thread-safe, and counts the beat's round trips.
    store = store_of(conf.app, client)
    most = getattr(getattr(client, "connection_pool", None), "max_connections", None)
    has_spare = most is None or most > CONNECTIONS_OF_A_BEAT

    def take() -> Snapshot | None:
        return take_snapshot(store, conf) if has_spare else None

    collectors = (BeatCollector(health, totals, take), ProcessCollector(registry=None))
    app = _app(collectors, health.alive, health.ready)
    server = Server(conf.metrics_host, conf.metrics_port, app, BEAT)
    logger.info("beat: Metrics are at %s", server.url)
    return server


def serve_exporter(app: Celery, host: str, port: int) -> Server:
    """Serve the metrics that Redis has; raise :exc:`ConfigurationError` if the port is in use."""
    conf, store = ensure_conf(app), store_of(app)
    collector = RedisCollector(lambda: take_snapshot(store, conf), conf.metrics_entries)
    alive = ProbeResult(True, "the exporter is running")
    return Server(host, port, _app([collector], lambda: alive, collector.ready), "--port")
