"""The command ``celery redbeat web``, which serves the dashboard."""

from __future__ import annotations

from typing import Any, Final, cast

import click

from redbeat.cli.command import EX_UNHEALTHY, Console, command, failure
from redbeat.cli.options import option, option_error

#: Minimum length of an access token, in characters.
MIN_TOKEN: Final = 16


@command("web")
@option(
    "--host",
    default="127.0.0.1",
    example="127.0.0.1",
    help="Address to listen on. An address that is not loopback needs --basic-auth or --token.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5556,
    example="5556",
    help="Port to listen on; 0 selects a free port.",
)
@option(
    "--basic-auth",
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
    example="schedule.example.com",
    help="Host name that browsers may use, in addition to the names of this machine.",
)
@option("--behind-proxy", is_flag=True, help="Trust the X-Forwarded headers of one proxy.")
@option("--read-only", is_flag=True, help="Disable all changes in the dashboard.")
def web(
    console: Console,
    host: str,
    port: int,
    basic_auth: tuple[str, ...],
    tokens: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    **flags: bool,
) -> None:
    """Serve the web dashboard.

    The dashboard shows entries, upcoming runs and active beats. In the dashboard, users can also
    change entries.
    """
    try:
        # Import inside the function, because the help must work without the extra ``web``.
        from redbeat.web.auth import Access, host_in, is_loopback, read_users  # noqa: PLC0415
        from redbeat.web.site import Served  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("redbeat"):  # the missing module belongs to RedBeat
            raise
        problem = f"{error.name} is missing; install it with: pip install 'celery-redbeat[web]'"
        raise failure(problem, EX_UNHEALTHY) from error
    try:
        users = read_users(basic_auth)
    except ValueError as error:
        raise option_error(console.ctx, "basic_auth", error) from None
    if any(len(token) < MIN_TOKEN for token in tokens):
        raise option_error(console.ctx, "tokens", f"must have at least {MIN_TOKEN} characters")
    if not is_loopback(host) and not (users or tokens):
        problem = f"{host!r} is not a loopback address: add --basic-auth or --token"
        raise option_error(console.ctx, "host", problem)
    host_names = frozenset(map(host_in, allowed_hosts))
    access = Access(host, users, tokens, host_names, **cast("dict[str, Any]", flags))
    if not is_loopback(host):
        console.warn(exposure_warning(access.behind_proxy))
    _serve(console, Served, access, port)


def _serve(console: Console, dashboard_class: Any, access: Any, port: int) -> None:
    console.app.log.setup_logging_subsystem(loglevel="INFO")
    try:
        dashboard = dashboard_class(console.schedule, access, port)
    except OSError as error:
        problem = f"Cannot listen on {access.host}, port {port}: {error.strerror or error}"
        raise failure(problem, EX_UNHEALTHY) from error
    console.note(f"The dashboard is at {dashboard.url}; press Ctrl-C to stop")
    dashboard.run()


def exposure_warning(behind_proxy: bool) -> str:
    """Return a warning about possible attacks if the dashboard listens on a network address."""
    if behind_proxy:
        return (
            "Anyone who reaches this address without the proxy can forge the X-Forwarded "
            "headers; listen on 127.0.0.1, or let a firewall admit only the proxy"
        )
    return (
        "Passwords and tokens cross the network unencrypted, because the dashboard speaks "
        "plain HTTP; listen on 127.0.0.1 behind a proxy with TLS"
    )
