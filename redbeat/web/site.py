"""The Flask application of the dashboard, and its HTTP server."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn

from flask import Flask, current_app, render_template, request
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError, CSRFProtect  # type: ignore[import-untyped]
from redis.exceptions import NoPermissionError, RedisError
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix

from redbeat.config import App, ensure_conf
from redbeat.schedule import Schedule
from redbeat.storage.checks import explained
from redbeat.storage.client import safe_url
from redbeat.storage.store import store_of

from .actions import actions
from .api import api, health, problem
from .auth import Access, host_in, install_auth, logger, wants_json
from .beats import beats
from .entry import entries
from .form import forms
from .http import MAX_BODY, Request, Response, add_headers, make_server
from .list import listing
from .simulate import simulate
from .timeline import Forecasts, timeline
from .values import install

__all__ = (
    "Served",
    "create_app",
    "dashboard",
    "mounted",
)


def remote_user(environ: dict[str, Any]) -> str | None:
    """Return the user in ``REMOTE_USER``, where WSGI servers and applications put it."""
    return environ.get("REMOTE_USER") or None


def dashboard(
    app: App,
    secret_key: str | bytes,
    read_only: bool = False,
    user: Callable[[dict[str, Any]], str | None] | None = None,
) -> Flask:
    """Return the dashboard as a WSGI application, to be mounted in an application of your own.

    Your application decides who may use the dashboard. It passes the name of the user in
    ``REMOTE_USER``, see :func:`mounted`; a request without a user gets 403. Takes no round trip.

    Arguments:
        app: the Celery app.
        secret_key: signs the sessions; all processes of your application need the same key.
        read_only: whether the dashboard refuses all actions that change something.
        user: returns the name of the user from the WSGI environment, or None to refuse the request.
            By default the user is in ``REMOTE_USER``.
    """
    site = create_app(Schedule(app), Access(read_only=read_only, user=user or remote_user))
    site.config["SECRET_KEY"] = secret_key
    return site


def mounted(environ: Mapping[str, Any], prefix: str, user: str) -> dict[str, Any]:
    """Return the WSGI environment for a dashboard at ``prefix``, such as ``/schedule``.

    ``environ`` is the environment of the request to your application, whose path starts with
    ``prefix``. ``user`` is the name of the user, for the log.
    """
    return {
        **environ,
        "SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '')}{prefix}",
        "PATH_INFO": environ.get("PATH_INFO", "").removeprefix(prefix),
        "REMOTE_USER": user,
    }


def create_app(schedule: Schedule, access: Access) -> Flask:
    """Return the dashboard of a schedule as a WSGI application. Takes no round trip."""
    app = Flask("redbeat.web")
    app.request_class, app.response_class = Request, Response
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME="redbeat_web",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=MAX_BODY,
        # A form stays valid as long as the session, because users leave pages open overnight.
        WTF_CSRF_TIME_LIMIT=None,
    )
    app.extensions.update(celery=schedule.app, schedule=schedule, forecasts=Forecasts(schedule))
    install_auth(app, access)
    app.after_request(add_headers)
    csrf = CSRFProtect(app)
    csrf.exempt(api)  # it accepts only what no other site can send
    install(app)
    for part in (listing, timeline, entries, forms, simulate, actions, beats, api, health):
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
    celery = current_app.extensions["celery"]
    url = safe_url(ensure_conf(celery).redis_url)
    cause = explained(error, store_of(celery))
    right = str(cause) if isinstance(cause, NoPermissionError) else ""
    kind = type(error).__name__
    page = render_template("redis_unavailable.html", kind=kind, right=right, url=url)
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
    if wants_json():  # an unknown URL of the API belongs to no blueprint
        return problem(code, error.description or error.name)
    page = render_template("problem.html", title=error.name, text=error.description)
    return page, code, {name: value for name, value in error.get_headers() if name == "Allow"}


def internal_error(error: Exception) -> ResponseReturnValue:
    """Return a page with status 500; the traceback goes to the log, not to the browser."""
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    text = "This is a bug in the dashboard. The log of the dashboard has the traceback."
    if wants_json():
        return problem(500, text)
    return render_template("problem.html", title="Something went wrong", text=text), 500


class Served:
    """The dashboard and its server socket; raises OSError if the address is not available."""

    def __init__(self, schedule: Schedule, access: Access, port: int) -> None:
        app = create_app(schedule, access)
        host = host_in(access.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Waitress leaks its socket if the port is in use, so this method creates the socket.
        listener = socket.create_server((host, port), family=family)
        self._server = make_server(app, listener, access.behind_proxy)
        url_host = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{url_host}:{listener.getsockname()[1]}/"

    def run(self) -> None:
        """Serve requests until SIGTERM or SIGINT."""

        def stop(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, stop)
        self._server.run()
        self._server.close()
