"""The commands ``celery redbeat web`` and ``exporter``, which serve until you stop them."""

from __future__ import annotations

import signal
from threading import Event
from typing import Any, Final

import click

from redbeat.metrics import prometheus_module

from .command import Console, Exit, command, failure
from .options import Parsed, flag, option, option_error

#: Minimum length of an access token, in characters.
MIN_TOKEN: Final = 16

#: The usual port of the exporter.
PORT: Final = 9541


def user_from(text: str) -> tuple[str, str]:
    """Return the name and the password in a text such as ``ann:secret``.

    Raises ValueError if there is none; the message doesn't repeat the password.
    """
    user, _, password = text.partition(":")
    if not (user and password):
        raise ValueError("must be USER:PASSWORD, and both parts must not be empty")
    return user, password


def checked_token(text: str) -> str:
    if len(text) < MIN_TOKEN:
        raise ValueError(f"must have at least {MIN_TOKEN} characters")
    return text


@command("web")
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on. An address that is not loopback needs --basic-auth or --token.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5556,
    help="Port to listen on; 0 selects a free port.",
)
@option(
    "--basic-auth",
    "users",
    type=Parsed("text", user_from),
    multiple=True,
    metavar="USER:PASSWORD",
    envvar="REDBEAT_WEB_BASIC_AUTH",
    show_envvar=True,
    example="ann:secret",
    help="User and password to sign in with. Repeat the option for several users. In "
    "REDBEAT_WEB_BASIC_AUTH, separate users by spaces.",
)
@option(
    "--token",
    "tokens",
    type=Parsed("text", checked_token),
    multiple=True,
    envvar="REDBEAT_WEB_TOKEN",
    show_envvar=True,
    example="b1946ac92492d2347c6235b4",
    help="Token to sign in with, or to send as a bearer token. At least 16 characters.",
)
@option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Host name that browsers may use, in addition to the names of this machine.",
)
@flag("--behind-proxy", "Trust the X-Forwarded headers of one proxy.")
@flag("--read-only", "Disable all changes in the dashboard.")
def web(
    console: Console,
    host: str,
    port: int,
    users: tuple[tuple[str, str], ...],
    tokens: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    **flags: Any,
) -> None:
    """Serve the web dashboard.

    The dashboard shows entries, upcoming runs and active beats. In the dashboard, users can also
    change entries.
    """
    try:
        # The help must work without the extra ``web``.
        from redbeat.web.auth import Access, host_in, is_loopback  # noqa: PLC0415
        from redbeat.web.site import Served  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("redbeat"):  # the missing module belongs to RedBeat
            raise
        problem = f"{error.name} is missing; install it with: pip install 'celery-redbeat[web]'"
        raise failure(problem, Exit.UNHEALTHY) from error
    if not is_loopback(host) and not (users or tokens):
        problem = f"{host!r} is not a loopback address: add --basic-auth or --token"
        raise option_error(console.ctx, "host", problem)
    host_names = frozenset(map(host_in, allowed_hosts))
    access = Access(host, users, tokens, host_names, **flags)
    if not is_loopback(host):
        console.warn(exposure_warning(access.behind_proxy))
    console.app.log.setup_logging_subsystem(loglevel="INFO")
    try:
        dashboard = Served(console.schedule, access, port)
    except OSError as error:
        problem = f"Cannot listen on {host}, port {port}: {error.strerror or error}"
        raise failure(problem, Exit.UNHEALTHY) from error
    text = f"The dashboard is at {dashboard.url}; press Ctrl-C to stop"
    console.result({"url": dashboard.url}, text)
    dashboard.run()


def exposure_warning(behind_proxy: bool) -> str:
    """Return why it is risky that the dashboard listens on a network address."""
    if behind_proxy:
        return (
            "Anyone who reaches this address without the proxy can forge the X-Forwarded "
            "headers; listen on 127.0.0.1, or let a firewall admit only the proxy"
        )
    return (
        "Passwords and tokens cross the network unencrypted, because the dashboard speaks "
        "plain HTTP; listen on 127.0.0.1 behind a proxy with TLS"
    )


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
    """Serve Prometheus metrics of the schedule.

    The exporter reads everything from Redis, so one exporter covers all beats. The exporter keeps
    running while Redis is unreachable.
    """
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: stop.set())
    server = prometheus_module("the exporter").serve_exporter(console.schedule.app, host, port)
    console.result({"url": server.url}, f"Metrics are at {server.url}")
    stop.wait()
    server.close()
