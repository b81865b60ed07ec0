"""Mounts the dashboard behind the login of an ASGI application, such as Starlette or FastAPI.

Run ``pip install a2wsgi starlette uvicorn``, start the example with
``uvicorn examples.mounted_asgi:app``, and open http://127.0.0.1:8000/schedule/.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, cast

from a2wsgi import WSGIMiddleware
from celery import Celery
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from redbeat.web.site import dashboard

celery = Celery("proj", broker=os.environ.get("REDIS_URL", "redis://localhost"))

#: The users of this example and their passwords; a real application has its own login.
USERS = {"ann": "secret of ann"}


class Passwords(AuthenticationBackend):
    """Basic authentication."""

    async def authenticate(
        self, connection: HTTPConnection
    ) -> tuple[AuthCredentials, SimpleUser] | None:
        """Return the user if the request has a correct name and password, otherwise None."""
        kind, _, text = connection.headers.get("Authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(text).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if kind.lower() != "basic" or USERS.get(name) != password:
            return None
        return AuthCredentials(["authenticated"]), SimpleUser(name)


def user_of(environ: dict[str, Any]) -> str | None:
    """Return the user that the middleware found; for None, the dashboard refuses the request."""
    user = environ["asgi.scope"]["user"]
    return user.username if user.is_authenticated else None


schedule = dashboard(celery, secret_key=os.environ.get("SECRET_KEY", "change me"), user=user_of)

bridge: Any = WSGIMiddleware(cast("Any", schedule))

app = Starlette(
    routes=[Mount("/schedule", bridge)],
    middleware=[Middleware(AuthenticationMiddleware, backend=Passwords())],
)
