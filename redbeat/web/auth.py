"""Access control of the dashboard: credentials, allowed hosts, login, headers and audit log."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from celery.utils.log import get_logger
from flask import (
    Blueprint,
    Flask,
    Response,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue

__all__ = (
    "CSP",
    "Access",
    "SessionCookies",
    "add_headers",
    "audit",
    "auth",
    "current_user",
    "host_in",
    "is_loopback",
    "logger",
    "make_guard",
    "read_users",
)

logger = get_logger("redbeat.web")


def current_user() -> str | None:
    """Return the user name of this request, or None for an anonymous request."""
    user: str | None = g.get("user")
    return user


def audit(action: str, name: str) -> None:
    """Log an action on an entry, with the user and the client's address."""
    logger.info(
        "%s: %s %r, from %s", current_user() or "anonymous", action, name, request.remote_addr
    )


#: Host names that are always allowed when the dashboard listens on a loopback address.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of the dashboard.

    Attributes:
        host: the address that the dashboard listens on.
        users: pairs of user name and password, for basic authentication.
        tokens: secrets for ``Authorization: Bearer`` and for the login form.
        allowed_hosts: host names that browsers may use, in addition to the names of this machine.
        read_only: whether the dashboard refuses all actions that change something.
        behind_proxy: whether to trust the ``X-Forwarded-*`` headers of one proxy.
    """

    host: str = "127.0.0.1"
    users: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    read_only: bool = False
    behind_proxy: bool = False

    def __repr__(self) -> str:
        """Return a representation without passwords and tokens."""
        return f"<{type(self).__name__} {self.host} read_only={self.read_only}>"

    @property
    def required(self) -> bool:
        """Whether requests need credentials."""
        return bool(self.users or self.tokens)

    def user_with(self, name: str, password: str) -> str | None:
        """Return the user name if a user has this name and password, otherwise None."""
        # "&" always compares both, so the response time does not reveal which part is wrong.
        matches = [
            user
            for user, secret in self.users
            if _equal_secrets(user, name) & _equal_secrets(secret, password)
        ]
        return matches[0] if matches else None

    def has_token(self, token: str) -> bool:
        """Return whether a token is one of the configured tokens."""
        return any(_equal_secrets(known, token) for known in self.tokens)

    def admits_host(self, header: str) -> bool:
        """Return whether requests with this ``Host`` header are allowed.

        If the dashboard listens on a loopback address, a foreign host name is a sign of DNS
        rebinding: the host name of an attacker resolves to this machine, so the browser lets the
        attacker's page read the dashboard. On other addresses the dashboard requires credentials,
        so this method checks the host name only if ``allowed_hosts`` is set.
        """
        if not is_loopback(self.host) and not self.allowed_hosts:
            return True
        return host_in(header) in LOCAL_NAMES | self.allowed_hosts | {host_in(self.host)}


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
    """Return whether a server on this address is reachable only from this machine."""
    name = host_in(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_users(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return pairs of user name and password from strings such as ``ann:secret``.

    Raises ValueError for a malformed string. The message does not contain the string, because the
    string may contain a password.
    """
    pairs = []
    for text in texts:
        user, colon, password = text.partition(":")
        if not (user and colon and password):
            raise ValueError("must be USER:PASSWORD, and neither may be empty")
        pairs.append((user, password))
    return tuple(pairs)


auth = Blueprint("auth", __name__)


@auth.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """Show the login form, or start a session if the submitted token is valid."""
    if not g.access.tokens:
        return redirect(url_for("listing.index"), 303)
    if request.method == "GET":
        return render_template("login.html", next="")
    if not g.access.has_token(request.form.get("token", "")):
        logger.warning("Login failed: wrong token from %s", request.remote_addr)
        problem = "Wrong token. Use a token that the dashboard was started with (--token)."
        return render_template("login.html", next=_next(), problem=problem), 401
    session.clear()
    session["user"] = "token"
    logger.info("token: signed in, from %s", request.remote_addr)
    return redirect(_next() or url_for("listing.index"), 303)


@auth.post("/logout")
def logout() -> ResponseReturnValue:
    """End the session."""
    session.clear()
    return redirect(url_for("listing.index"), 303)


def _next() -> str:
    """Return the path to open after login, or "" for a path that leads to another site."""
    path = request.form.get("next", "")
    local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    if not local or any(ord(char) < 32 for char in path):
        return ""
    return request.script_root + path


CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Over TLS, Flask-WTF checks the referrer of a form, so "no-referrer" would break all forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: Endpoints that need no credentials: the login form and its style sheet.
PUBLIC_ENDPOINTS: Final = frozenset({"auth.login", "static"})

#: Endpoints that accept POST even if the dashboard is read-only.
READ_ONLY_POSTS: Final = frozenset({"auth.login", "auth.logout"})


class SessionCookies(SecureCookieSessionInterface):
    """A session interface that marks cookies as ``Secure`` if the request came over TLS."""

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Return whether the client used TLS to reach this server or the trusted proxy."""
        return request.is_secure


def make_guard(access: Access) -> Any:
    """Return a ``before_request`` function that checks access.

    The function returns None to accept a request, or the response to a refused request.
    """

    def check() -> ResponseReturnValue | None:
        g.access = access
        if not access.admits_host(request.host):
            text = "To allow this host name, start the dashboard with --allowed-host NAME."
            return _refusal(421, "Unknown host", text)
        g.user = _authenticated_user(access)
        if access.required and g.user is None and request.endpoint not in PUBLIC_ENDPOINTS:
            return _unauthorized(access)
        is_change = request.method == "POST" and request.endpoint not in READ_ONLY_POSTS
        if access.read_only and is_change:
            text = "This dashboard was started with --read-only, so it changes nothing."
            return _refusal(403, "Read-only", text)
        return None

    return check


def _authenticated_user(access: Access) -> str | None:
    """Return the user name of the request, or None without valid credentials."""
    credentials = request.authorization
    if not access.required:
        return request.headers.get("X-Forwarded-User") if access.behind_proxy else None
    if credentials is not None and credentials.type == "basic":
        return access.user_with(credentials.username or "", credentials.password or "")
    if credentials is not None and credentials.type == "bearer":
        return "token" if access.has_token(credentials.token or "") else None
    session_user = session.get("user")
    return session_user if isinstance(session_user, str) else None


def _unauthorized(access: Access) -> ResponseReturnValue:
    if request.authorization is not None:
        logger.warning("Wrong credentials from %s", request.remote_addr)
    page = render_template("login.html", next=request.full_path.rstrip("?"))
    response = Response(page, 401)
    if access.users:
        response.headers.add("WWW-Authenticate", 'Basic realm="RedBeat", charset="UTF-8"')
    else:
        response.headers.add("WWW-Authenticate", 'Bearer realm="RedBeat"')
    return response


def _refusal(code: int, title: str, text: str) -> ResponseReturnValue:
    return render_template("problem.html", title=title, text=text), code


def add_headers(response: Response) -> Response:
    """Add the security headers to a response."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    return response
