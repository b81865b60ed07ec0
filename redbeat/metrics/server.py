"""The HTTP server for ``/metrics`` and for the health checks ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery.utils.log import get_logger
from prometheus_client import ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector, CollectorRegistry

from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.storage.store import Store, store_of

from .counters import Counters
from .families import BeatCollector, RedisCollector
from .health import BeatHealth, ProbeResult
from .snapshot import Snapshot, take_snapshot

__all__ = (
    "Server",
    "serve_beat",
    "serve_exporter",
)

logger = get_logger("celery.beat")


#: Maximum delay of :meth:`Server.close`, in seconds.
POLL: Final = 0.1
#: Timeout of a client's connection, in seconds.
CLIENT_TIMEOUT: Final = 10.0

Probe = Callable[[], ProbeResult]


class Handler(WSGIRequestHandler):
    """Handles one connection, without logging requests."""

    timeout = CLIENT_TIMEOUT

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


class ThreadedServer(ThreadingMixIn, WSGIServer):
    """Handles each request in a daemon thread."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host's name, which can block."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class Server:
    """The metrics server of a process; it runs in its own thread until :meth:`close` is called.

    The constructor raises :exc:`ConfigurationError` if the server cannot listen on ``host`` and
    ``port``. The error message names ``setting``, the setting or option to change.
    """

    def __init__(
        self,
        host: str,
        port: int,
        collectors: Iterable[Collector],
        alive: Probe,
        ready: Probe,
        setting: str,
    ) -> None:
        registry = CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        self._server = _listen(host, port, setting)
        self._server.set_app(_routes(registry, {"/healthz": alive, "/readyz": ready}))
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._thread: Thread | None = Thread(
            target=self._server.serve_forever, args=(POLL,), name="redbeat-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def _listen(host: str, port: int, setting: str) -> ThreadedServer:
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = results[0]
        server_class = type("Server", (ThreadedServer,), {"address_family": family})
        server: ThreadedServer = server_class(address, Handler)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error}. Set {setting} to a free port: each "
            "beat and each exporter on a host needs its own"
        ) from error
    return server


def _routes(registry: CollectorRegistry, probes: dict[str, Probe]) -> Callable[..., Any]:
    metrics = make_wsgi_app(registry)

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


#: Maximum number of connections that a beat uses at once. If the pool had only these connections, a
#: scrape could use a connection that a tick needs, and the tick would fail.
CONNECTIONS_OF_A_BEAT: Final = 4


def serve_beat(conf: RedBeatConfig, store: Store, health: BeatHealth, counters: Counters) -> Server:
    """Serve the metrics and the health checks of one beat.

    :func:`redbeat.metrics.extra.serve_beat` calls this function.
    """
    assert conf.metrics_port is not None
    # The beat's store cannot be used here: it is for one thread, and counts the beat's round trips.
    scrape_store = Store(store.client, store.keys)

    def take() -> Snapshot | None:
        return take_snapshot(scrape_store, conf) if _has_spare(scrape_store.client) else None

    collectors = (BeatCollector(health, counters, take), ProcessCollector(registry=None))
    address = (conf.metrics_host, conf.metrics_port)
    server = Server(*address, collectors, health.alive, health.ready, "redbeat_metrics_port")
    logger.info("beat: Metrics are at %s", server.url)
    return server


def serve_exporter(app: Any, host: str, port: int) -> Server:
    """Serve the metrics in Redis, of all beats of a schedule.

    :func:`redbeat.metrics.extra.serve_exporter` calls this function.
    """
    conf, store = ensure_conf(app), store_of(app)
    collector = RedisCollector(lambda: take_snapshot(store, conf), conf.metrics_entries)
    return Server(host, port, [collector], _alive, collector.ready, "--port")


def _has_spare(client: Any) -> bool:
    """Return whether the connection pool allows more connections than the beat uses."""
    pool = getattr(client, "connection_pool", None)
    max_connections = getattr(pool, "max_connections", None)
    return max_connections is None or max_connections > CONNECTIONS_OF_A_BEAT


def _alive() -> ProbeResult:
    return ProbeResult(True, "the exporter is running")
