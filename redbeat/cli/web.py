"""``celery redbeat web``."""

from __future__ import annotations

from typing import Any, Final

import click

from redbeat.cli.command import EX_UNHEALTHY, command, failure
from redbeat.cli.console import Console
from redbeat.cli.options import bad, option
from redbeat.web.auth import Access, host_in, is_loopback, read_users

__all__ = ("web",)

#: What the extra brings, by the names under which it is imported.
EXTRA: Final = ("flask", "flask_wtf", "jinja2", "markupsafe", "waitress", "werkzeug", "wtforms")

#: Letters of a token, at least.
TOKEN: Final = 16


@command("web")
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    example="127.0.0.1",
    help="Address to serve on; one that others can reach needs --basic-auth or --token.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5556,
    show_default=True,
    example="5556",
    help="Port to serve on; 0 for any that is free.",
)
@option(
    "--basic-auth",
    multiple=True,
    metavar="USER:PASSWORD",
    envvar="REDBEAT_WEB_BASIC_AUTH",
    show_envvar=True,
    example="ann:secret",
    help="Who may see the page; may be given several times, in the variable with spaces between.",
)
@option(
    "--token",
    "tokens",
    multiple=True,
    envvar="REDBEAT_WEB_TOKEN",
    show_envvar=True,
    example="b1946ac92492d2347c6235b4",
    help="What to sign in with, or to send as 'Authorization: Bearer'; 16 letters or more.",
)
@option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    example="schedule.example.com",
    help="A name by which browsers may call the page, beside those of this machine.",
)
@option("--behind-proxy", is_flag=True, help="Believe the X-Forwarded headers of one proxy.")
@option("--read-only", is_flag=True, help="Nothing can be changed.")
def web(
    console: Console,
    host: str,
    port: int,
    basic_auth: tuple[str, ...],
    tokens: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    **flags: bool,
) -> None:
    """Serve a page that shows the schedule, and lets people look after it."""
    try:
        from redbeat.web.site import Served  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        problem = f"{error.name} is missing; the page needs: pip install 'celery-redbeat[web]'"
        raise failure(problem, EX_UNHEALTHY) from error
    try:
        users = read_users(basic_auth)
    except ValueError as error:
        raise bad(console.ctx, "basic_auth", error) from None
    if any(len(token) < TOKEN for token in tokens):
        raise bad(console.ctx, "tokens", f"must have {TOKEN} letters or more")
    if not is_loopback(host) and not (users or tokens):
        problem = f"{host!r} can be reached from elsewhere: give --basic-auth or --token as well"
        raise bad(console.ctx, "host", problem)
    names = frozenset(map(host_in, allowed_hosts))
    access = Access(host, users, tokens, names, **flags)
    _serve(console, Served, access, port)


def _serve(console: Console, served: Any, access: Any, port: int) -> None:
    console.app.log.setup_logging_subsystem(loglevel="INFO")
    try:
        page = served(console.schedule, access, port)
    except OSError as error:
        problem = f"{access.host}, port {port}, cannot be served on: {error.strerror or error}"
        raise failure(problem, EX_UNHEALTHY) from error
    console.note(f"The schedule is at {page.url}, until Ctrl-C")
    page.run()
