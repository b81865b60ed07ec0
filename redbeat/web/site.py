"""The Flask application of the page, and its server."""

from __future__ import annotations

import secrets
import signal
import socket
from types import FrameType
from typing import Any, NoReturn

from flask import Flask, current_app, render_template
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError, CSRFProtect  # type: ignore[import-untyped]
from redis.exceptions import RedisError
from waitress.server import create_server  # type: ignore[import-untyped]
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix

from redbeat.config import ensure_conf
from redbeat.schedule import Schedule
from redbeat.storage.client import safe_url

from .actions import changing
from .auth import Access, Cookies, guard, headers, host_in, logger, signing
from .beats import beats
from .entry import entries
from .list import listing
from .timeline import Forecasts, timeline
from .values import install

__all__ = (
    "Served",
    "create_app",
)

#: Bytes of a form, at most.
FORM_SIZE = 1 << 20


def create_app(schedule: Schedule, access: Access) -> Flask:
    """Return the page of a schedule, a WSGI application. No round trip."""
    app = Flask("redbeat.web")
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME="redbeat_web",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=FORM_SIZE,
        # A form is good for as long as the session: a page may be left open over night.
        WTF_CSRF_TIME_LIMIT=None,
    )
    app.session_interface = Cookies()
    app.extensions.update(
        celery=schedule.app, schedule=schedule, forecasts=Forecasts(schedule), access=access
    )
    app.before_request(guard(access))
    app.after_request(headers)
    CSRFProtect(app)
    install(app)
    for part in (listing, timeline, entries, changing, beats, signing):
        app.register_blueprint(part)
    app.register_error_handler(RedisError, redis_away)
    app.register_error_handler(CSRFError, expired)
    app.register_error_handler(HTTPException, refused)
    app.register_error_handler(Exception, broken)
    app.context_processor(lambda: {"access": access})
    if access.behind_proxy:
        proxied: Any = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_prefix=1)
        app.__dict__["wsgi_app"] = proxied
    return app


def redis_away(error: RedisError) -> ResponseReturnValue:
    """Say that Redis cannot be used; the page asks again by itself."""
    url = safe_url(ensure_conf(current_app.extensions["celery"]).redis_url)
    page = render_template("away.html", kind=type(error).__name__, url=url)
    return page, 503, {"Retry-After": "5"}


def expired(_error: CSRFError) -> ResponseReturnValue:
    """Refuse a form that this page did not hand out."""
    text = "Nothing was done: this form is from another session. Go back, reload, and try again."
    return render_template("problem.html", title="Not accepted", text=text), 400


def refused(error: HTTPException) -> ResponseReturnValue:
    """Say why there is no such page."""
    code = error.code or 500
    page = render_template("problem.html", title=error.name, text=error.description)
    return page, code, {name: value for name, value in error.get_headers() if name == "Allow"}


def broken(error: Exception) -> ResponseReturnValue:
    """Say that this is our fault, and nothing more; the log has it all."""
    logger.error("The page failed", exc_info=error)
    text = "This is a bug. What happened is in the log of the page."
    return render_template("problem.html", title="Something went wrong", text=text), 500


#: Requests that are answered at once.
THREADS = 8


class Served:
    """The page on an address; raises OSError for one that is not to be had."""

    def __init__(self, schedule: Schedule, access: Access, port: int) -> None:
        app = create_app(schedule, access)
        host = host_in(access.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Made here, since waitress leaves the socket open when the port is taken.
        listening = socket.create_server((host, port), family=family)
        self._server = create_server(
            app,
            sockets=[listening],
            threads=THREADS,
            ident=None,
            clear_untrusted_proxy_headers=not access.behind_proxy,
        )
        named = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{named}:{listening.getsockname()[1]}/"

    def run(self) -> None:
        """Serve until a signal says to end."""

        def end(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, end)
        self._server.run()
        self._server.close()
