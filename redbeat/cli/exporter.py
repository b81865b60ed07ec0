"""``celery redbeat exporter``: metrics of the schedule for Prometheus, from Redis alone."""

from __future__ import annotations

import signal
from threading import Event
from typing import Any, Final

import click

from redbeat.cli.command import command
from redbeat.cli.console import Console
from redbeat.cli.options import option
from redbeat.metrics.extra import serve_exporter

__all__ = ("exporter",)

PORT: Final = 9541


@command("exporter")
@option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    show_default=True,
    example=str(PORT),
    help="The port to listen on.",
)
def exporter(console: Console, host: str, port: int) -> None:
    """Serve metrics of the schedule for Prometheus, until it is stopped.

    Everything comes from Redis, so one exporter tells about all beats. It goes on when Redis is
    away.
    """
    stop = Event()

    def end(*_args: Any) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server = serve_exporter(console.schedule.app, host, port)
    if console.as_json:
        console.emit({"url": server.url})
    else:
        console.note(f"Metrics are at {server.url}")
    stop.wait()
    server.close()
