"""The Flask application of the dashboard, and its HTTP server."""

from __future__ import annotations

import secrets
import signal
import socket
from types import FrameType
from typing import Any, NoReturn

from flask import Flask, current_app, render_template, request
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError, CSRFProtect  # type: ignore[import-untyped]
from redis.exceptions import RedisError
from waitress.server import create_server  # type: ignore[import-untyped]
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix

from redbeat.config import ensure_conf
from redbeat.schedule import Schedule
from redbeat.storage.client import safe_url

from .actions import actions
from .auth import Access, SessionCookies, add_headers, auth, host_in, logger, make_guard
from .beats import beats
from .entry import entries
from .list import listing
from .timeline import Forecasts, timeline
from .values import install

__all__ = (
    "Served",
    "create_app",
)

#: Maximum size of a submitted form, in bytes.
MAX_FORM_BYTES = 1 << 20


def create_app(schedule: Schedule, access: Access) -> Flask:
    """Return the dashboard of a schedule as a WSGI application. Takes no round trip."""
    app = Flask("redbeat.web")
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME="redbeat_web",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=MAX_FORM_BYTES,
        # A form stays valid as long as the session, because users leave pages open overnight.
        WTF_CSRF_TIME_LIMIT=None,
    )
    app.session_interface = SessionCookies()
    app.extensions.update(
        celery=schedule.app, schedule=schedule, forecasts=Forecasts(schedule), access=access
    )
    app.before_request(make_guard(access))
    app.after_request(add_headers)
    CSRFProtect(app)
    install(app)
    for part in (listing, timeline, entries, actions, beats, auth):
        app.register_blueprint(part)
    app.register_error_handler(RedisError, redis_unavailable)
    app.register_error_handler(CSRFError, csrf_failed)
    app.register_error_handler(HTTPException, http_error)
    app.register_error_handler(Exception, internal_error)
    app.context_processor(lambda: {"access": access})
    if access.behind_proxy:
        proxied: Any = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_prefix=1)
        app.__dict__["wsgi_app"] = proxied
    return app


def redis_unavailable(error: RedisError) -> ResponseReturnValue:
    """Return a page with status 503 that reloads every 5 seconds until Redis answers."""
    url = safe_url(ensure_conf(current_app.extensions["celery"]).redis_url)
    page = render_template("redis_unavailable.html", kind=type(error).__name__, url=url)
    return page, 503, {"Retry-After": "5"}


def csrf_failed(_error: CSRFError) -> ResponseReturnValue:
    """Return status 400 for a form without a valid CSRF token."""
    text = (
        "Nothing was changed: this form belongs to another session. Go back, reload the page and "
        "try again."
    )
    return render_template("problem.html", title="Not accepted", text=text), 400


def http_error(error: HTTPException) -> ResponseReturnValue:
    """Return an error page with the status code of the HTTP error."""
    code = error.code or 500
    page = render_template("problem.html", title=error.name, text=error.description)
    return page, code, {name: value for name, value in error.get_headers() if name == "Allow"}


def internal_error(error: Exception) -> ResponseReturnValue:
    """Return a page with status 500; the traceback goes to the log, not to the browser."""
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    text = "This is a bug in the dashboard. The log of the dashboard has the traceback."
    return render_template("problem.html", title="Something went wrong", text=text), 500


#: Number of requests that the server handles in parallel.
THREADS = 8


class Served:
    """The dashboard and its server socket; raises OSError if the address is not available."""

    def __init__(self, schedule: Schedule, access: Access, port: int) -> None:
        app = create_app(schedule, access)
        host = host_in(access.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Waitress leaks its socket if the port is in use, so this method creates the socket.
        listener = socket.create_server((host, port), family=family)
        self._server = create_server(
            app,
            sockets=[listener],
            threads=THREADS,
            ident=None,
            clear_untrusted_proxy_headers=not access.behind_proxy,
        )
        url_host = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{url_host}:{listener.getsockname()[1]}/"

    def run(self) -> None:
        """Serve requests until SIGTERM or SIGINT."""

        def stop(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, stop)
        self._server.run()
        self._server.close()
