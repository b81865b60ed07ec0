"""Mounts the dashboard in a Flask application, behind the login of that application.

Start the example with ``python -m examples.mounted_flask``, and open
http://127.0.0.1:8000/schedule/.
"""

from __future__ import annotations

import os

from celery import Celery
from flask import Flask, Response, redirect, request, session, url_for
from flask.typing import ResponseReturnValue
from waitress import serve  # type: ignore[import-untyped]

from redbeat.web.site import dashboard, mounted

celery = Celery("proj", broker=os.environ.get("REDIS_URL", "redis://localhost"))

app = Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY", "change me")

#: The users of this example and their passwords; a real application has its own login.
USERS = {"ann": "secret of ann"}

schedule = dashboard(celery, secret_key=app.secret_key)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@app.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """Sign a user in."""
    name, password = request.form.get("name", ""), request.form.get("password")
    if name in USERS and USERS[name] == password:
        session["user"] = name
        return redirect("/schedule/")
    return '<form method="post"><input name="name"><input name="password"><button>Sign in</button>'


@app.route("/schedule/", defaults={"path": ""}, methods=METHODS)
@app.route("/schedule/<path:path>", methods=METHODS)
def serve_schedule(path: str) -> ResponseReturnValue:  # noqa: ARG001 - the URL has the path
    """Serve the dashboard to users who are signed in."""
    if "user" not in session:
        return redirect(url_for("login"))
    environ = mounted(request.environ, "/schedule", session["user"])
    return Response.from_app(schedule, environ, buffered=True)


if __name__ == "__main__":
    serve(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
