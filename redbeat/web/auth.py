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
from typing import Any, Final
from urllib.parse import quote

import flask
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from werkzeug.datastructures import Authorization
from werkzeug.exceptions import BadRequest
from werkzeug.local import LocalProxy
from werkzeug.sansio.utils import host_is_trusted

from redbeat.printing import get_logger, printable

logger = get_logger("redbeat.web")


def audit(action: str, name: str) -> None:
    user = printable(user_name() or "anonymous")
    logger.info("%s: %.300s %.200r, from %s", user, action, name, client_address())


def client_address() -> str:
    """Return the client's address, made safe for the log: a proxy may send any text."""
    return printable(flask.request.remote_addr or "unknown")


#: Always allowed on a loopback address.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of the dashboard.

    Attributes:
        host: the address that the dashboard listens on.
        users: pairs of user name and password, for basic authentication.
        tokens: secrets for bearer authentication and for the login form.
        allowed_hosts: host names that browsers may use besides those of this machine. A name that
            starts with a dot, such as ``.example.org``, includes its subdomains.
        read_only: whether all changes are refused.
        behind_proxy: whether to trust the ``X-Forwarded-*`` headers of one proxy.
        user: in another application, returns the user's name from the WSGI environment, or None to
            refuse the request.
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
        return bool(self.users or self.tokens or self.user)

    def user_with(self, name: str, password: str) -> str | None:
        """Return the name if a user has this name and password, otherwise None."""
        # "&" always compares both, so the response time doesn't reveal which one is wrong.
        for user, secret in self.users:
            if _equal_secrets(user, name) & _equal_secrets(secret, password):
                return user
        return None

    def user_of(self, token: str, shortest: int = 0) -> str | None:
        """Return the name of a token's user, or None.

        Configured tokens of fewer than ``shortest`` characters don't count.
        """
        known = [one for one in self.tokens if len(one) >= shortest]
        return TOKEN_USER if any(_equal_secrets(one, token) for one in known) else None

    def admits_host(self, header: str) -> bool:
        """Return whether requests with this ``Host`` header are allowed.

        On a loopback address, a foreign host name is a sign of DNS rebinding: an attacker's host
        name resolves to this machine, so the browser lets the attacker's page read the dashboard.
        On a network address, the dashboard requires credentials, so the name matters only with
        ``allowed_hosts``. Inside another application, that application checks it.
        """
        if self.user is not None or (not is_loopback(self.host) and not self.allowed_hosts):
            return True
        names = LOCAL_NAMES | self.allowed_hosts | {host_in(self.host)}
        if header.startswith("["):  # host_is_trusted() matches no IPv6 address
            return host_in(header) in names
        return host_is_trusted(header.lower(), [name for name in names if ":" not in name])


def _equal_secrets(expected: str, received: str) -> bool:
    """Takes the same time for any content."""
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
    """Return whether a server on ``host`` is reachable only from its own machine."""
    name = host_in(host)
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


#: The access rules of the dashboard that handles the current request.
access: Access = LocalProxy(lambda: flask.current_app.extensions["access"])  # type: ignore[assignment]

#: The user name for all requests with a valid token.
TOKEN_USER: Final = "token"

#: Maximum number of users who are signed in. One more ends the oldest sign-in.
MAX_SIGN_INS: Final = 1000

#: A token of this length, in characters, cannot be guessed, so wrong ones before it don't matter.
LONG_TOKEN: Final = 20

#: Maximum number of wrong credentials from one client, and from all unknown clients together.
PER_CLIENT, IN_ALL = parse("10 per minute"), parse("100 per minute")


def _checked(credentials: Authorization) -> str | None:
    """Return the name of the user with these credentials, None if they are wrong.

    After too many wrong ones, credentials are not compared any more, and ``g.wait`` is how many
    seconds the client must wait. A right token that is too long to be guessed is right even then.

    A client is an IPv4 address, a /64 network of IPv6 addresses, or a known browser: one that has
    sent right credentials before. A known browser has its own limit, so that an attacker with the
    same address, for example behind the same proxy, cannot lock it out.
    """
    token = (credentials.token or "") if credentials.type == "bearer" else ""
    if access.user_of(token, LONG_TOKEN):
        return TOKEN_USER
    limiter, limits = flask.current_app.extensions["limiter"], _limits_of_client()
    windows = [limiter.get_window_stats(*limit) for limit in limits]
    resets = [reset_at for reset_at, remaining in windows if not remaining]
    if resets:
        flask.g.wait = max(math.ceil(max(resets) - time.time()), 1)
        return None
    name = access.user_of(token)
    if credentials.type == "basic":
        name = access.user_with(credentials.username or "", credentials.password or "")
    if name is None:
        for limit in limits:
            limiter.hit(*limit)
    return name


def _limits_of_client() -> list[tuple[Any, str]]:
    if known := flask.session.get("known"):
        return [(PER_CLIENT, f"user {known}")]
    return [(PER_CLIENT, f"address {_network(flask.request.remote_addr or '')}"), (IN_ALL, "all")]


def _network(address: str) -> str:
    """Return the /64 network of an IPv6 address, all of which may belong to one client."""
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address


auth = flask.Blueprint("auth", __name__)


@auth.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """Show the login form, or start a session if the token in it is valid."""
    if not access.tokens:
        return flask.redirect(flask.url_for("listing.index"), 303)
    if flask.request.method == "GET":
        return _login_form("")
    name = _checked(Authorization("bearer", token=flask.request.form.get("token", "")))
    if "wait" in flask.g:
        return _too_many()
    if name is None:
        logger.warning("Login failed: wrong token from %s", client_address())
        problem = "Wrong token. Use a token that the dashboard was started with (--token)."
        return _login_form(_next(), problem), 401
    flask.session.clear()
    flask.session.update(known=name, sign_in=secrets.token_urlsafe(16))
    flask.current_app.extensions["sign_ins"].append(flask.session["sign_in"])
    logger.info("token: signed in, from %s", client_address())
    return flask.redirect(_next() or flask.url_for("listing.index"), 303)


@auth.post("/logout")
def logout() -> ResponseReturnValue:
    """End the session, so that copies of its cookie aren't valid any more."""
    with suppress(ValueError):
        flask.current_app.extensions["sign_ins"].remove(flask.session.get("sign_in"))
    flask.session.clear()
    return flask.redirect(flask.url_for("listing.index"), 303)


def _login_form(next_path: str, problem: str = "") -> str:
    """Return the login page, with a warning if others in the network can read the token."""
    exposed = not flask.request.is_secure and not is_loopback(flask.request.remote_addr or "")
    return flask.render_template("login.html", next=next_path, problem=problem, exposed=exposed)


def _next() -> str:
    """Return where to go after login, "" for a path that leads to another site."""
    path = flask.request.form.get("next", "")
    local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    if not local or any(ord(char) < 32 for char in path):
        return ""
    return flask.request.script_root + path


#: Endpoints without credentials: the login form, its style sheet, and the health checks.
PUBLIC_ENDPOINTS: Final = frozenset({"auth.login", "static", "health.alive", "health.ready"})

#: Endpoints that accept POST even on a read-only dashboard.
READ_ONLY_POSTS: Final = frozenset({"auth.login", "auth.logout"})


#: The HTTP methods that change nothing.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def wants_json() -> bool:
    """Whether this is a request for the API, which returns errors as JSON."""
    return flask.request.path.startswith("/api/")


class SessionCookies(SecureCookieSessionInterface):
    """Marks cookies as ``Secure`` if the request came over TLS."""

    def get_cookie_secure(self, app: flask.Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Whether the client used TLS to reach this server or the trusted proxy."""
        return flask.request.is_secure


def install_auth(app: flask.Flask, rules: Access) -> None:
    """Add access control to an app. It must come before the CSRF protection."""
    sign_ins: deque[str] = deque(maxlen=MAX_SIGN_INS)
    limiter = MovingWindowRateLimiter(MemoryStorage())
    app.extensions.update(access=rules, limiter=limiter, sign_ins=sign_ins)
    app.session_interface = SessionCookies()
    app.context_processor(lambda: {"access": rules, "user": user_name(), "signed_in": signed_in()})
    app.before_request(_refusal)
    app.register_blueprint(auth)


def _refusal() -> ResponseReturnValue | None:
    """Return the response to a request that is not allowed, else None."""
    # Flask cannot build URLs for a malformed host name, so this is text without links.
    malformed = isinstance(flask.request.routing_exception, BadRequest)
    if malformed or not access.admits_host(flask.request.host):
        text = "Unknown host. To allow this host, start the dashboard with --allowed-host NAME.\n"
        return flask.Response(text, 421, mimetype="text/plain")
    endpoint = flask.request.endpoint
    needs_user = access.required and endpoint not in PUBLIC_ENDPOINTS
    if needs_user and user_name() is None:
        return _unauthorized()
    is_change = flask.request.method not in SAFE_METHODS and endpoint not in READ_ONLY_POSTS
    if access.read_only and is_change:
        text = "This dashboard was started with --read-only, so it changes nothing."
        if access.user is not None:
            text = "You may look at the schedule, but not change it."
        return problem(403, text, "Read-only")
    return None


def signed_in() -> bool:
    """Whether the request's session began with the login form, and has not ended."""
    return flask.session.get("sign_in") in flask.current_app.extensions["sign_ins"]


def user_name() -> str | None:
    """Return the user of the request, None if it is anonymous."""
    if "user" not in flask.g:
        flask.g.user = TOKEN_USER if signed_in() else _user_in_headers()
    name: str | None = flask.g.user
    return name


def _user_in_headers() -> str | None:
    credentials = flask.request.authorization
    if access.user is not None:
        return access.user(flask.request.environ)
    if not access.required:
        return flask.request.headers.get("X-Forwarded-User") if access.behind_proxy else None
    if credentials is None:
        return None
    name = _checked(credentials)
    if name and flask.session.get("known") != name:
        flask.session["known"] = name
    return name


def _unauthorized() -> ResponseReturnValue:
    if access.user is not None:
        text = (
            "You are not signed in to the application that contains this dashboard, or it does not "
            "let you look at the schedule."
        )
        return problem(403, text, "Not allowed")
    if "wait" in flask.g:
        return _too_many()
    if flask.request.authorization is not None:
        logger.warning("Wrong credentials from %s", client_address())
    scheme = 'Basic realm="RedBeat", charset="UTF-8"' if access.users else 'Bearer realm="RedBeat"'
    headers = {"WWW-Authenticate": scheme}
    if wants_json():
        return *problem(401, "Credentials are missing or wrong."), headers
    query = quote(flask.request.query_string, safe="%=&+-._~")
    return _login_form(quote(flask.request.path) + (query and f"?{query}")), 401, headers


def _too_many() -> ResponseReturnValue:
    logger.warning("Too many wrong credentials: refused %s", client_address())
    text = f"There were too many wrong credentials. Try again in {flask.g.wait} s."
    return *problem(429, text, "Too many attempts"), {"Retry-After": str(flask.g.wait)}


def problem(code: int, text: str, title: str = "", field: str | None = None) -> tuple[Any, int]:
    """Return the response to a failed request: JSON for the API, a page for browsers.

    Only JSON has ``field``, the name of the invalid field, and only a page has a ``title``.
    """
    if wants_json():
        return flask.jsonify(error={"field": field, "message": text}), code
    return flask.render_template("problem.html", title=title, text=text), code
