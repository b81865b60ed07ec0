"""Authentication of the page: credentials, hosts, signing in and out, headers, audit log."""

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
    "Cookies",
    "guard",
    "headers",
    "is_loopback",
    "logger",
    "read_users",
    "record",
    "signing",
    "who",
)

logger = get_logger("redbeat.web")


def who() -> str | None:
    """Return who makes this request, None where nobody has to say."""
    user: str | None = g.get("user")
    return user


def record(action: str, name: str) -> None:
    """Log an action that was done with an entry."""
    logger.info(
        "%s: %s %r, from %s", who() or "nobody in particular", action, name, request.remote_addr
    )


#: Names of this machine that a browser may use for a page on a loopback address.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the page, and what may be done there.

    Attributes:
        host: the address that the page is served on.
        users: names with their passwords.
        tokens: what a script sends as ``Authorization: Bearer``, and a person signs in with.
        allowed_hosts: names by which a browser may call the page, beside those of this machine.
        read_only: whether nothing can be changed.
        behind_proxy: whether the ``X-Forwarded-*`` headers of one proxy are believed.
    """

    host: str = "127.0.0.1"
    users: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    read_only: bool = False
    behind_proxy: bool = False

    def __repr__(self) -> str:
        """Tell nothing that is secret."""
        return f"<{type(self).__name__} {self.host} read_only={self.read_only}>"

    @property
    def required(self) -> bool:
        """Whether credentials are asked for."""
        return bool(self.users or self.tokens)

    def user_with(self, name: str, password: str) -> str | None:
        """Return the name of the user with this password, None for nobody."""
        matches = [
            user
            for user, secret in self.users
            if _same(user, name) & _same(secret, password)  # both, so that no time tells which
        ]
        return matches[0] if matches else None

    def has_token(self, token: str) -> bool:
        """Return whether a token is one of those that were given."""
        return any(_same(known, token) for known in self.tokens)

    def admits_host(self, header: str) -> bool:
        """Return whether a browser may call the page by the name in a ``Host`` header.

        On a loopback address a name that is not of this machine is that of an attacker, who has
        pointed it here to get past the browser's rules (DNS rebinding). Elsewhere credentials keep
        them out, so that names are checked only if some are given.
        """
        if not is_loopback(self.host) and not self.allowed_hosts:
            return True
        return host_in(header) in LOCAL_NAMES | self.allowed_hosts | {host_in(self.host)}


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(
        one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    )


def host_in(header: str) -> str:
    """Return the name in a ``Host`` header, without its port and its brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to serve on."""
    name = host_in(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_users(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return users and passwords in texts like ``ann:secret``; ValueError tells no password."""
    pairs = []
    for text in given:
        user, colon, password = text.partition(":")
        if not (user and colon and password):
            raise ValueError("must be USER:PASSWORD, and neither may be empty")
        pairs.append((user, password))
    return tuple(pairs)


signing = Blueprint("signing", __name__)


@signing.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """Show the form; a right token is remembered in the session."""
    if not g.access.tokens:
        return redirect(url_for("listing.index"), 303)
    if request.method == "GET":
        return render_template("login.html", next="")
    if not g.access.has_token(request.form.get("token", "")):
        logger.warning("Wrong token from %s", request.remote_addr)
        problem = "This is not the token that the page was started with."
        return render_template("login.html", next=_next(), problem=problem), 401
    session.clear()
    session["user"] = "token"
    logger.info("token: signed in, from %s", request.remote_addr)
    return redirect(_next() or url_for("listing.index"), 303)


@signing.post("/logout")
def logout() -> ResponseReturnValue:
    """Forget who was signed in."""
    session.clear()
    return redirect(url_for("listing.index"), 303)


def _next() -> str:
    """Return the page that was asked for first, "" unless it is one of ours."""
    path = request.form.get("next", "")
    ours = path.startswith("/") and not path.startswith("//") and "\\" not in path
    if not ours or any(ord(char) < 32 for char in path):
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
    # With "no-referrer" the CSRF protection could not check the origin of a form under TLS.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: What is there for those who have not signed in: the form, and how it looks.
OPEN: Final = frozenset({"signing.login", "static"})

#: What a read-only page still takes by POST.
HARMLESS: Final = frozenset({"signing.login", "signing.logout"})


class Cookies(SecureCookieSessionInterface):
    """Cookies that are for TLS only where the page was asked for by TLS."""

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Return whether the request came by TLS, as far as the proxy says so."""
        return request.is_secure


def guard(access: Access) -> Any:
    """Return what Flask calls before each request: None to go on, else the answer."""

    def check() -> ResponseReturnValue | None:
        g.access = access
        if not access.admits_host(request.host):
            return _refusal(421, "Unknown host", "Name it with --allowed-host to allow it.")
        g.user = _user(access)
        if access.required and g.user is None and request.endpoint not in OPEN:
            return _unauthorized(access)
        if access.read_only and request.method == "POST" and request.endpoint not in HARMLESS:
            return _refusal(403, "Read-only", "This page was started with --read-only.")
        return None

    return check


def _user(access: Access) -> str | None:
    """Return who asks, None for nobody who is known."""
    given = request.authorization
    if not access.required:
        return request.headers.get("X-Forwarded-User") if access.behind_proxy else None
    if given is not None and given.type == "basic":
        return access.user_with(given.username or "", given.password or "")
    if given is not None and given.type == "bearer":
        return "token" if access.has_token(given.token or "") else None
    signed_in = session.get("user")
    return signed_in if isinstance(signed_in, str) else None


def _unauthorized(access: Access) -> ResponseReturnValue:
    if request.authorization is not None:
        logger.warning("Wrong credentials from %s", request.remote_addr)
    page = render_template("login.html", next=request.full_path.rstrip("?"))
    answer = Response(page, 401)
    if access.users:
        answer.headers.add("WWW-Authenticate", 'Basic realm="RedBeat", charset="UTF-8"')
    else:
        answer.headers.add("WWW-Authenticate", 'Bearer realm="RedBeat"')
    return answer


def _refusal(code: int, title: str, text: str) -> ResponseReturnValue:
    return render_template("problem.html", title=title, text=text), code


def headers(answer: Response) -> Response:
    """Add the headers that every answer has."""
    for name, value in HEADERS.items():
        answer.headers[name] = value
    if request.endpoint != "static":
        answer.headers["Cache-Control"] = "no-store"
    return answer
