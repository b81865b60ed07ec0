"""Access control of the dashboard: credentials, allowed hosts, sign-in and audit log."""

from __future__ import annotations

import hmac
import ipaddress
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final
from urllib.parse import quote

import flask
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user  # type: ignore[import-untyped]
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from werkzeug.datastructures import Authorization
from werkzeug.exceptions import BadRequest
from werkzeug.local import LocalProxy
from werkzeug.sansio.utils import host_is_trusted

from redbeat.printing import get_logger, printable

logger = get_logger("redbeat.web")


def user_name() -> str | None:
    """Return the user name of the current request, or None for an anonymous request."""
    name: str | None = getattr(current_user, "name", None)
    return name


def audit(action: str, name: str) -> None:
    """Log an action on an entry, with the user and the client's address."""
    user = printable(user_name() or "anonymous")
    logger.info("%s: %.300s %.200r, from %s", user, action, name, client_address())


def client_address() -> str:
    """Return the client's address as safe text for the log, because a proxy may send any text."""
    return printable(flask.request.remote_addr or "unknown")


#: Host names that are always allowed when the dashboard listens on a loopback address.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of the dashboard.

    Attributes:
        host: the address that the dashboard listens on.

        users: pairs of user name and password, for basic authentication.

        tokens: secrets for bearer authentication and for the login form.

        allowed_hosts: host names that browsers may use, in addition to the names of this machine. A
            name that starts with a dot, such as ``.example.org``, also allows all its subdomains.

        read_only: whether the dashboard refuses all actions that change something.

        behind_proxy: whether the dashboard trusts the ``X-Forwarded-*`` headers of one proxy.

        user: if the dashboard is part of another application, the function that returns the name of
            the user from the WSGI environment, or None to refuse the request.
    """

    host: str = "127.0.0.1"
    users: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    read_only: bool = False
    behind_proxy: bool = False
    user: Callable[[dict[str, Any]], str | None] | None = None

    @property
    def required(self) -> bool:
        """Whether requests need credentials."""
        return bool(self.users or self.tokens or self.user)

    def user_with(self, name: str, password: str) -> str | None:
        """Return the user name if a user has this name and password, otherwise None."""
        # "&" always compares both texts, so the response time does not reveal which text is wrong.
        for user, secret in self.users:
            if _equal_secrets(user, name) & _equal_secrets(secret, password):
                return user
        return None

    def user_of(self, token: str) -> str | None:
        """Return the user name for a token if it is one of the configured tokens."""
        return TOKEN_USER if any(_equal_secrets(known, token) for known in self.tokens) else None

    def admits_host(self, header: str) -> bool:
        """Return whether requests with this ``Host`` header are allowed.

        If the dashboard listens on a loopback address, a foreign host name is a sign of DNS
        rebinding: the host name of an attacker resolves to this machine, so the browser lets the
        attacker's page read the dashboard. If the dashboard listens on a network address, it
        requires credentials, so the host name is checked only if ``allowed_hosts`` is set. If the
        dashboard is part of another application, that application checks the host name.
        """
        if self.user is not None or (not is_loopback(self.host) and not self.allowed_hosts):
            return True
        names = LOCAL_NAMES | self.allowed_hosts | {host_in(self.host)}
        if header.startswith("["):  # host_is_trusted() matches no IPv6 address
            return host_in(header) in names
        return host_is_trusted(header.lower(), [name for name in names if ":" not in name])


def _equal_secrets(expected: str, received: str) -> bool:
    """Return whether two secrets are equal; the comparison takes the same time for any content."""
    return hmac.compare_digest(
        expected.encode("utf-8", "surrogatepass"), received.encode("utf-8", "surrogatepass")
    )


def host_in(header: str) -> str:
    """Return the host of a ``Host`` header, without the port and without IPv6 brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on ``host`` is reachable only from its own machine."""
    name = host_in(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class User(UserMixin):
    """The user of a request; ``id`` is the id of the sign-in, or "" without a sign-in."""

    name: str
    id: str = ""


#: The access rules of the dashboard that handles the current request.
access: Access = LocalProxy(lambda: flask.current_app.extensions["access"])  # type: ignore[assignment]

#: The user name for all requests with a valid token.
TOKEN_USER: Final = "token"

#: Maximum number of users who are signed in. A further sign-in ends the oldest sign-in.
MAX_SIGN_INS: Final = 1000

#: Maximum number of wrong credentials from one client, and from all unknown clients together.
PER_CLIENT, IN_ALL = parse("10 per minute"), parse("100 per minute")


class Guesses:
    """Limits how often clients may send wrong credentials.

    A client is an IPv4 address, a /64 network of IPv6 addresses, or a known browser, which has sent
    correct credentials before. A known browser has its own limit, so an attacker with the same
    address, for example behind the same proxy, cannot lock out the browser.
    """

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._lock = Lock()

    def check(self, find: Callable[[], str | None]) -> tuple[str | None, int]:
        """Return the pair of the result of ``find`` and 0, or None and a number of seconds.

        ``find`` returns the user name for the credentials of the request, or None if the
        credentials are wrong. After too many wrong credentials, ``find`` is not called, and the
        method returns None and the number of seconds that the client must wait.
        """
        limits = _limits_of_client()
        with self._lock:
            waits = [self._wait(*limit) for limit in limits]
            if any(waits):
                return None, max(waits)
            name = find()
            if name is None:
                for limit in limits:
                    self._limiter.hit(*limit)
        return name, 0

    def _wait(self, limit: Any, client: str) -> int:
        reset_at, remaining = self._limiter.get_window_stats(limit, client)
        return 0 if remaining else max(math.ceil(reset_at - time.time()), 1)


def _limits_of_client() -> list[tuple[Any, str]]:
    if known := flask.session.get("known"):
        return [(PER_CLIENT, f"user {known}")]
    return [(PER_CLIENT, f"address {_network(flask.request.remote_addr or '')}"), (IN_ALL, "all")]


def _network(address: str) -> str:
    """Return the /64 network of an IPv6 address, or any other address unchanged.

    One client may use all addresses of a /64 network.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else address


auth = flask.Blueprint("auth", __name__)


@auth.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """Show the login form, or start a session if the submitted token is valid."""
    if not access.tokens:
        return flask.redirect(flask.url_for("listing.index"), 303)
    if flask.request.method == "GET":
        return _login_form("")
    token = flask.request.form.get("token", "")
    name, wait = flask.current_app.extensions["guesses"].check(lambda: access.user_of(token))
    if wait:
        return _too_many(wait)
    if name is None:
        logger.warning("Login failed: wrong token from %s", client_address())
        problem = "Wrong token. Use a token that the dashboard was started with (--token)."
        return _login_form(_next(), problem), 401
    flask.session.clear()
    flask.session["known"] = name
    user = User(name, secrets.token_urlsafe(16))
    flask.current_app.extensions["sign_ins"].append(user.id)
    login_user(user)
    logger.info("token: signed in, from %s", client_address())
    return flask.redirect(_next() or flask.url_for("listing.index"), 303)


@auth.post("/logout")
def logout() -> ResponseReturnValue:
    """End the session, so that copies of its cookie are not valid any more."""
    with suppress(ValueError):
        flask.current_app.extensions["sign_ins"].remove(flask.session.get("_user_id", ""))
    logout_user()
    flask.session.clear()
    return flask.redirect(flask.url_for("listing.index"), 303)


def _login_form(next_path: str, problem: str = "") -> str:
    """Return the login page, with a warning if others in the network can read the token."""
    exposed = not flask.request.is_secure and not is_loopback(flask.request.remote_addr or "")
    return flask.render_template("login.html", next=next_path, problem=problem, exposed=exposed)


def _next() -> str:
    """Return the path to open after login, or "" for a path that leads to another site."""
    path = flask.request.form.get("next", "")
    local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    if not local or any(ord(char) < 32 for char in path):
        return ""
    return flask.request.script_root + path


#: Endpoints that need no credentials: the login form, its style sheet, and the health checks.
PUBLIC_ENDPOINTS: Final = frozenset({"auth.login", "static", "health.alive", "health.ready"})

#: Endpoints that accept POST even if the dashboard is read-only.
READ_ONLY_POSTS: Final = frozenset({"auth.login", "auth.logout"})


#: The HTTP methods that change nothing.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def wants_json() -> bool:
    """Return whether the request is for the API, which returns errors as JSON."""
    return flask.request.path.startswith("/api/")


class SessionCookies(SecureCookieSessionInterface):
    """A session interface that marks cookies as ``Secure`` if the request came over TLS."""

    def get_cookie_secure(self, app: flask.Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Return whether the client used TLS to reach this server or the trusted proxy."""
        return flask.request.is_secure


def install_auth(app: flask.Flask, rules: Access) -> None:
    """Add access control by ``rules`` to an app that has no CSRF protection yet."""
    sign_ins: deque[str] = deque(maxlen=MAX_SIGN_INS)
    app.extensions.update(access=rules, guesses=Guesses(), sign_ins=sign_ins)
    # Addresses of clients may change, so a session is not bound to an address.
    app.config["SESSION_PROTECTION"] = None
    app.session_interface = SessionCookies()
    manager = LoginManager(app)
    manager.user_loader(lambda each: User(TOKEN_USER, each) if each in sign_ins else None)
    manager.request_loader(_user_of_request)
    app.before_request(_refusal)
    app.register_blueprint(auth)


def _refusal() -> ResponseReturnValue | None:
    """Return the response to a request that is not allowed, or None for an allowed request."""
    # Flask cannot build URLs for a malformed host name, so the response is text without links.
    malformed = isinstance(flask.request.routing_exception, BadRequest)
    if malformed or not access.admits_host(flask.request.host):
        text = "Unknown host. To allow this host, start the dashboard with --allowed-host NAME.\n"
        return flask.Response(text, 421, mimetype="text/plain")
    endpoint = flask.request.endpoint
    needs_user = access.required and endpoint not in PUBLIC_ENDPOINTS
    if needs_user and not current_user.is_authenticated:
        return _unauthorized()
    is_change = flask.request.method not in SAFE_METHODS and endpoint not in READ_ONLY_POSTS
    if access.read_only and is_change:
        text = "This dashboard was started with --read-only, so it changes nothing."
        return problem(403, text, "Read-only")
    return None


def _user_of_request(_request: Any) -> User | None:
    """Return the user of a request from its headers, or None without valid credentials.

    After too many wrong credentials, ``g.wait`` is the number of seconds that the client must wait.
    """
    credentials = flask.request.authorization
    if access.user is not None:
        name = access.user(flask.request.environ)
    elif not access.required:
        name = flask.request.headers.get("X-Forwarded-User") if access.behind_proxy else None
    elif credentials is None:
        name = None
    else:
        guesses = flask.current_app.extensions["guesses"]
        name, flask.g.wait = guesses.check(lambda: _name_in(credentials))
        if name and flask.session.get("known") != name:
            flask.session["known"] = name
    return User(name) if name else None


def _name_in(credentials: Authorization) -> str | None:
    """Return the user name in an ``Authorization`` header, or None for wrong credentials."""
    if credentials.type == "basic":
        return access.user_with(credentials.username or "", credentials.password or "")
    return access.user_of(credentials.token or "") if credentials.type == "bearer" else None


def _unauthorized() -> ResponseReturnValue:
    if access.user is not None:
        text = "You are not signed in to the application that contains this dashboard."
        return problem(403, text, "Not signed in")
    if wait := flask.g.get("wait"):
        return _too_many(wait)
    if flask.request.authorization is not None:
        logger.warning("Wrong credentials from %s", client_address())
    query = quote(flask.request.query_string, safe="%=&+-._~")
    if wants_json():
        response = flask.current_app.make_response(
            problem(401, "Credentials are missing or wrong.")
        )
    else:
        path = quote(flask.request.path) + (f"?{query}" if query else "")
        response = flask.Response(_login_form(path), 401)
    scheme = 'Basic realm="RedBeat", charset="UTF-8"' if access.users else 'Bearer realm="RedBeat"'
    response.headers.add("WWW-Authenticate", scheme)
    return response


def _too_many(seconds: int) -> ResponseReturnValue:
    logger.warning("Too many wrong credentials: refused %s", client_address())
    text = f"There were too many wrong credentials. Try again in {seconds} s."
    return *problem(429, text, "Too many attempts"), {"Retry-After": str(seconds)}


def problem(code: int, text: str, title: str = "", field: str | None = None) -> tuple[Any, int]:
    """Return the response to a failed request, as JSON for the API and as a page for browsers.

    Only JSON contains ``field``, the name of the invalid field; only a page contains ``title``.
    """
    if wants_json():
        return flask.jsonify(error={"field": field, "message": text}), code
    return flask.render_template("problem.html", title=title, text=text), code
