"""The HTTP server for ``/metrics`` and for the health checks ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from celery import Celery
from prometheus_client import ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector, CollectorRegistry
from waitress import wasyncore  # type: ignore[import-untyped]
from waitress.server import create_server  # type: ignore[import-untyped]

from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger
from redbeat.storage.store import store_of

from .extra import BEAT
from .families import BeatCollector, RedisCollector, Totals
from .health import BeatHealth, ProbeResult
from .snapshot import Snapshot, take_snapshot

logger = get_logger("celery.beat")

#: The limits of the server.
#: A connection without a complete request is closed after ``channel_timeout`` seconds without data.
#: While ``connection_limit`` connections are open, new connections wait.
LIMITS: Final[dict[str, Any]] = {
    "threads": 4,
    "connection_limit": 300,
    "channel_timeout": 10,
    "cleanup_interval": 1,
    "max_request_header_size": 16_384,
    "max_request_body_size": 1024,
}

#: The maximum age of a connection without a complete request, and of any connection, in seconds.
#: ``MAX_AGE`` applies while a request runs or a response is being sent.
IDLE_AGE: Final = 30.0
MAX_AGE: Final = 60.0

#: Maximum delay of :meth:`Server.close`, in seconds, if a request is still running.
CLOSE_TIMEOUT: Final = 0.5

Probe = Callable[[], ProbeResult]
WSGI = Callable[..., Any]


class Server:
    """Serves ``app`` in threads of its own until :meth:`close`.

    The constructor raises :exc:`ConfigurationError` if the server cannot listen on ``host`` and
    ``port``. The error message names ``setting``, the setting or option to change.
    """

    def __init__(self, host: str, port: int, app: WSGI, setting: str) -> None:
        #: The open sockets by file descriptor. Waitress updates this dict.
        self._sockets: dict[int, Any] = {}
        self._server = create_server(
            app,
            map=self._sockets,
            sockets=[_listen(host, port, setting)],
            ident=None,
            log_socket_errors=False,
            **LIMITS,
        )
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._closing = False
        self._thread = Thread(target=self._run, name="redbeat-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        if not self._closing:
            self._closing = True
            with suppress(OSError):  # the thread may have closed its sockets already
                self._server.pull_trigger()
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            wasyncore.loop(timeout=1.0, use_poll=True, map=self._sockets, count=1)
            _close_old(list(self._server.active_channels.values()), time.time())
        self._server.task_dispatcher.shutdown(timeout=CLOSE_TIMEOUT)
        wasyncore.close_all(self._sockets)


def _close_old(channels: Iterable[Any], now: float) -> None:
    """Close connections that are too old; ``now`` is in UNIX seconds, as in waitress."""
    for channel in channels:
        busy = channel.requests or channel.total_outbufs_len
        if now - channel.creation_time > (MAX_AGE if busy else IDLE_AGE):
            channel.handle_close()


def _listen(host: str, port: int, setting: str) -> socket.socket:
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = results[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error}. Set {setting} to a free port: each "
            "beat and each exporter on a host needs its own port"
        ) from error


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

    def take() -> Snapshot | None:
        return take_snapshot(store, conf) if _has_spare(client) else None

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


def _has_spare(client: Any) -> bool:
    """Return whether the connection pool allows more connections than the beat uses."""
    pool = getattr(client, "connection_pool", None)
    max_connections = getattr(pool, "max_connections", None)
    return max_connections is None or max_connections > CONNECTIONS_OF_A_BEAT
