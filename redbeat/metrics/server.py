"""The HTTP server for Prometheus and for probes: ``/metrics``, ``/healthz`` and ``/readyz``."""

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


#: Seconds in which :meth:`Server.close` is heeded; and those that a client may be silent.
POLL: Final = 0.1
PATIENCE: Final = 10.0

Probe = Callable[[], ProbeResult]


class Handler(WSGIRequestHandler):
    """One connection; requests are not logged."""

    timeout = PATIENCE

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


class Threaded(ThreadingMixIn, WSGIServer):
    """A thread for each request, none of which keeps the process alive."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking the name service what this host is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class Server:
    """Serves in a thread of its own until it is closed.

    ``setting`` is what to change when ``host`` and ``port`` cannot be listened on: that raises
    :exc:`ConfigurationError`.
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


def _listen(host: str, port: int, setting: str) -> Threaded:
    try:
        asked = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = asked[0]
        of_family = type("Server", (Threaded,), {"address_family": family})
        server: Threaded = of_family(address, Handler)
    except OSError as error:
        raise ConfigurationError(
            f"{setting} is {port}, but {host} port {port} cannot be listened on: {error}. Each "
            "beat and exporter of a host needs a port of its own"
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
            status, why = "404 Not Found", "look at /metrics, /healthz or /readyz"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{why}\n".encode()]

    return serve


#: Connections that a beat may want at once. Where a pool has no more of them, a scrape that took
#: one would make a tick fail.
CONNECTIONS_OF_A_BEAT: Final = 4


def serve_beat(conf: RedBeatConfig, store: Store, health: BeatHealth, counters: Counters) -> Server:
    """Serve metrics and health of one beat; see :func:`redbeat.metrics.extra.serve_beat`."""
    assert conf.metrics_port is not None
    own = Store(store.client, store.keys)  # one that does not count, and is for other threads

    def look() -> Snapshot | None:
        return take_snapshot(own, conf) if _to_spare(own.client) else None

    collectors = (BeatCollector(health, counters, look), ProcessCollector(registry=None))
    address = (conf.metrics_host, conf.metrics_port)
    server = Server(*address, collectors, health.alive, health.ready, "redbeat_metrics_port")
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


def _alive() -> ProbeResult:
    return ProbeResult(True, "the exporter is there")
