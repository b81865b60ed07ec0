"""The HTTP server for ``/metrics`` and for the health checks ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from celery import Celery
from prometheus_client import ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector, CollectorRegistry

from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger
from redbeat.storage.store import store_of

from . import BEAT
from .families import BeatCollector, RedisCollector, Totals
from .health import BeatHealth, ProbeResult
from .snapshot import Snapshot, take_snapshot

logger = get_logger("celery.beat")

Probe = Callable[[], ProbeResult]
WSGI = Callable[..., Any]


class Handler(WSGIRequestHandler):
    """Answers a request, without a line in the log."""

    #: Seconds after which a silent connection is closed.
    timeout = 10.0

    def log_message(self, *_args: Any) -> None:
        """Log nothing: a collector asks every few seconds."""


class Server(ThreadingWSGIServer):
    """Serves ``app`` in threads of its own until :meth:`close`.

    The constructor raises :exc:`ConfigurationError` if the server cannot listen on ``host`` and
    ``port``. The error message names ``setting``, the setting or option to change.
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
        """Note why a connection was closed, such as its silence."""
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


#: The maximum number of Redis connections that a beat uses at once.
#: In a pool with only ``CONNECTIONS_OF_A_BEAT`` connections, a scrape could make a tick fail.
CONNECTIONS_OF_A_BEAT: Final = 4


def serve_beat(conf: RedBeatConfig, client: Any, health: BeatHealth, totals: Totals) -> Server:
    """Serve the metrics and the health checks of one beat on ``conf.metrics_port``.

    Raises :exc:`ConfigurationError` if the port is in use.
    """
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
    """Serve the metrics of all beats of a schedule, which the server reads from Redis.

    Raises :exc:`ConfigurationError` if the port is in use.
    """
    conf, store = ensure_conf(app), store_of(app)
    collector = RedisCollector(lambda: take_snapshot(store, conf), conf.metrics_entries)
    alive = ProbeResult(True, "the exporter is running")
    return Server(host, port, _app([collector], lambda: alive, collector.ready), "--port")
