"""The command ``celery redbeat exporter``, which serves Prometheus metrics of the schedule."""

from __future__ import annotations

import signal
from threading import Event
from typing import Any, Final

import click

from redbeat.cli.command import Console, command
from redbeat.cli.options import option
from redbeat.metrics.extra import server_module

PORT: Final = 9541


@command("exporter")
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    example=str(PORT),
    help="Port to listen on.",
)
def exporter(console: Console, host: str, port: int) -> None:
    """Serve Prometheus metrics of the schedule until you stop the command.

    The exporter reads everything from Redis, so one exporter covers all beats. The exporter keeps
    running while Redis is unreachable.
    """
    stop = Event()

    def on_signal(*_args: Any) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    server = server_module("the exporter").serve_exporter(console.schedule.app, host, port)
    console.result({"url": server.url}, f"Metrics are at {server.url}")
    stop.wait()
    server.close()
