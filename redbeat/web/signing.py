"""Signing in with a token, and out."""

from __future__ import annotations

from flask import Blueprint, g, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from .audit import logger

__all__ = ("signing",)

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
