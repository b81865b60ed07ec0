"""A server for a beat, and one for the exporter; imported by way of :mod:`.extra` only."""

from __future__ import annotations

from typing import Any, Final

from celery.utils.log import get_logger
from prometheus_client import ProcessCollector

from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.entries.access import store_of
from redbeat.metrics.collectors import BeatCollector, RedisCollector
from redbeat.metrics.counters import Counters
from redbeat.metrics.pulse import Health, Pulse
from redbeat.metrics.server import Server
from redbeat.metrics.snapshot import Snapshot, take_snapshot
from redbeat.storage.store import Store

__all__ = ("serve_beat", "serve_exporter")

logger = get_logger("celery.beat")

#: Connections that a beat may want at once. Where a pool has no more of them, a scrape that took
#: one would make a tick fail.
CONNECTIONS_OF_A_BEAT: Final = 4


def serve_beat(conf: RedBeatConfig, store: Store, pulse: Pulse, counters: Counters) -> Server:
    """Serve metrics and health of one beat; see :func:`redbeat.metrics.extra.serve_beat`."""
    assert conf.metrics_port is not None
    own = Store(store.client, store.keys)  # one that does not count, and is for other threads

    def look() -> Snapshot | None:
        return take_snapshot(own, conf) if _to_spare(own.client) else None

    collectors = (BeatCollector(pulse, counters, look), ProcessCollector(registry=None))
    address = (conf.metrics_host, conf.metrics_port)
    server = Server(*address, collectors, pulse.alive, pulse.ready, "redbeat_metrics_port")
    logger.info("beat: Metrics are at %s", server.url)
    return server


def serve_exporter(app: Any, host: str, port: int) -> Server:
    """Serve what Redis knows; see :func:`redbeat.metrics.extra.serve_exporter`."""
    conf, store = ensure_conf(app), store_of(app)
    collector = RedisCollector(lambda: take_snapshot(store, conf), conf.metrics_entries)
    return Server(host, port, [collector], _alive, collector.ready, "--port")


def _to_spare(client: Any) -> bool:
    pool = getattr(client, "connection_pool", None)
    most = getattr(pool, "max_connections", None)
    return most is None or most > CONNECTIONS_OF_A_BEAT


def _alive() -> Health:
    return Health(True, "the exporter is there")
