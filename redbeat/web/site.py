"""The Flask application of the dashboard: requests, security headers, errors and HTTP server."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

import flask
from flask import Flask, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError, CSRFProtect  # type: ignore[import-untyped]
from redis.exceptions import NoPermissionError, RedisError
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.server import create_server  # type: ignore[import-untyped]
from waitress.task import ThreadedTaskDispatcher  # type: ignore[import-untyped]
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.exceptions import HTTPException, InternalServerError
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.utils import cached_property

from redbeat.config import App, ensure_conf
from redbeat.connection.urls import safe_url
from redbeat.management.schedule import Schedule
from redbeat.printing import encodable
from redbeat.storage import checks

from . import auth, form, pages, values
from .api import api, health
from .timeline import forecasts_of, timeline

#: Maximum size of the body of a request, in bytes.
MAX_BODY: Final = 1 << 20

#: Strict-Transport-Security is up to the proxy, because it affects all ports of a host.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Over TLS, Flask-WTF checks the referrer of a form, so "no-referrer" would break all forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def add_headers(response: flask.Response) -> flask.Response:
    response.headers.update(HEADERS)
    if request.endpoint != "static":
        response.cache_control.no_store = True
    return response


class Request(flask.Request):
    """A request whose query may have bytes that are not UTF-8, as some entry names do.

    They become surrogates, as in all strings from Redis.
    """

    @cached_property
    def args(self) -> ImmutableMultiDict[str, str]:
        text = self.query_string.decode("utf-8", "surrogateescape")
        return ImmutableMultiDict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


class Response(flask.Response):
    """A response whose text may have surrogates, as stored texts do."""

    def set_data(self, value: bytes | str) -> None:
        super().set_data(encodable(value) if isinstance(value, str) else value)


def dashboard(
    app: App,
    secret_key: str | bytes,
    read_only: bool = False,
    user: Callable[[dict[str, Any]], str | None] | None = None,
) -> Flask:
    """Return the dashboard as a WSGI application, to be mounted in an application of your own.

    Your application decides who may use the dashboard. It passes the user's name in
    ``REMOTE_USER``, see :func:`mounted`; a request without a user gets 403. Takes no round trip.

    Arguments:
        app: the Celery app.

        secret_key: the key that signs the sessions, the same in all processes of your application.

        read_only: whether the dashboard refuses all changes.

        user: returns the user's name from the WSGI environment, or None to refuse the request. By
            default the name is in ``REMOTE_USER``.
    """
    user = user or (lambda environ: environ.get("REMOTE_USER") or None)
    site = create_app(Schedule(app), auth.Access(read_only=read_only, user=user))
    site.config["SECRET_KEY"] = secret_key
    return site


def mounted(environ: Mapping[str, Any], prefix: str, user: str) -> dict[str, Any]:
    """Return the WSGI environment for a dashboard at ``prefix``, such as ``/schedule``.

    ``environ`` is that of a request to your application, whose path starts with ``prefix``.
    ``user`` is the name of the user, for the log.
    """
    return {
        **environ,
        "SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '')}{prefix}",
        "PATH_INFO": environ.get("PATH_INFO", "").removeprefix(prefix),
        "REMOTE_USER": user,
    }


def create_app(schedule: Schedule, access: auth.Access) -> Flask:
    """Return the dashboard as a WSGI application. Takes no round trip."""
    app = Flask("redbeat.web")
    app.request_class, app.response_class = Request, Response
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME="redbeat_web",
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=MAX_BODY,
        # A form stays valid as long as the session, because users leave pages open overnight.
        WTF_CSRF_TIME_LIMIT=None,
    )
    app.extensions.update(schedule=schedule, forecasts=forecasts_of(schedule))
    auth.install_auth(app, access)
    app.after_request(add_headers)
    csrf = CSRFProtect(app)
    csrf.exempt(api)  # the API itself refuses requests from other sites
    values.install(app)
    for part in (pages.listing, pages.entries, timeline, form.forms, pages.actions, api, health):
        app.register_blueprint(part)
    app.register_error_handler(RedisError, redis_unavailable)
    app.register_error_handler(HTTPException, http_error)
    if access.behind_proxy:
        proxied: Any = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_prefix=1)
        app.__dict__["wsgi_app"] = proxied
    return app


def redis_unavailable(error: RedisError) -> ResponseReturnValue:
    """Return a page that reloads every 5 seconds until Redis answers."""
    url = safe_url(ensure_conf(values.schedule.app).redis_url)
    cause = checks.explained(error, values.store)
    right = str(cause) if isinstance(cause, NoPermissionError) else ""
    kind = type(error).__name__
    page = render_template("redis_unavailable.html", kind=kind, right=right, url=url)
    return page, 503, {"Retry-After": "5"}


#: What error pages say instead of Werkzeug's texts.
TEXTS: Final = {
    CSRFError: "Nothing was changed: the form belongs to another session. Reload it and try again.",
    InternalServerError: "This is a bug in the dashboard, whose log has the traceback.",
}


def http_error(error: HTTPException) -> ResponseReturnValue:
    """Return an error page; redirect a GET request for the URL of an action."""
    if error.code == 405 and request.method in auth.SAFE_METHODS and not auth.wants_json():
        name = request.args.get("name")
        return redirect(values.entry_url(name) if name else url_for("listing.index"), 303)
    text = TEXTS.get(type(error)) or error.description or error.name
    headers = {name: value for name, value in error.get_headers() if name == "Allow"}
    return *auth.problem(error.code or 500, text, error.name), headers


#: The limits of the server, as arguments of waitress. The connection limit leaves some files for
#: other purposes in a process that may open only 1,024.
LIMITS: Final[dict[str, Any]] = {
    "threads": 8,
    "connection_limit": 500,
    "channel_timeout": 15,
    "cleanup_interval": 2,
    "max_request_header_size": 32 << 10,
    "max_request_body_size": MAX_BODY,
}


class Channel(HTTPChannel):
    """A connection that is closed if a request takes longer than ``channel_timeout`` to arrive.

    Waitress only closes connections without any activity for that time, so a client could keep one
    open for ever by sending a byte now and then.
    """

    last_activity: float

    def handle_read(self) -> None:
        """Count only the start and the end of a request as activity."""
        request: Any = self.request
        active_at = self.last_activity
        super().handle_read()
        if request is not None and self.request is request:
            self.last_activity = active_at


class Threads(ThreadedTaskDispatcher):
    """The threads that answer requests, with one of its own for the check that the process lives.

    While Redis is slow, pages take all other threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aside = ThreadedTaskDispatcher()
        self._aside.set_thread_count(1)

    def add_task(self, task: HTTPChannel) -> None:
        is_check = task.requests[0].path.endswith("/healthz")
        (self._aside.add_task if is_check else super().add_task)(task)


class Served:
    """The dashboard and its server socket; raises OSError if the address is not available."""

    def __init__(self, schedule: Schedule, access: auth.Access, port: int, **limits: int) -> None:
        app = create_app(schedule, access)
        host = auth.host_in(access.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Waitress leaks its own socket if the port is in use.
        listener = socket.create_server((host, port), family=family)
        limits = {**LIMITS, **limits}
        threads = Threads()
        threads.set_thread_count(limits["threads"])
        self.server = create_server(
            app,
            _dispatcher=threads,
            sockets=[listener],
            ident=None,
            clear_untrusted_proxy_headers=not access.behind_proxy,
            # select() fails for file numbers above 1,023, but poll() doesn't.
            asyncore_use_poll=True,
            **limits,
        )
        self.server.channel_class = Channel
        url_host = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{url_host}:{listener.getsockname()[1]}/"

    def run(self) -> None:
        """Serve requests until SIGTERM or SIGINT."""

        def stop(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, stop)
        self.server.run()
        self.server.close()
