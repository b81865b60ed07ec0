"""What stands before every page: host, credentials, read-only; and the headers after it."""

from __future__ import annotations

from typing import Any, Final

from flask import Flask, Response, g, render_template, request, session
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue

from .access import Access
from .audit import logger

__all__ = ("CSP", "Cookies", "guard", "headers")

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
