"""Requests, responses, security headers and the HTTP server of the dashboard."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import flask
from secure import (
    CacheControl,
    ContentSecurityPolicy,
    CrossOriginOpenerPolicy,
    CrossOriginResourcePolicy,
    PermissionsPolicy,
    ReferrerPolicy,
    Secure,
    XContentTypeOptions,
    XFrameOptions,
)
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.server import create_server  # type: ignore[import-untyped]
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.exceptions import BadRequest
from werkzeug.utils import cached_property

from redbeat.printing import encodable

__all__ = ("MAX_BODY", "Limits", "Request", "Response", "add_headers", "make_server")

#: Maximum size of the body of a request, in bytes.
MAX_BODY: Final = 1 << 20

#: Maximum number of fields in a query string.
MAX_FIELDS: Final = 50

#: The security headers of each response. ``Strict-Transport-Security`` is up to the proxy, because
#: this header is about all ports of the host.
HEADERS: Final = Secure(
    csp=ContentSecurityPolicy()
    .default_src("'none'")
    .script_src("'self'")
    .style_src("'self'")
    .img_src("'self'", "data:")
    .connect_src("'self'")
    .form_action("'self'")
    .frame_ancestors("'none'")
    .base_uri("'none'"),
    coop=CrossOriginOpenerPolicy().same_origin(),
    corp=CrossOriginResourcePolicy().same_origin(),
    permissions=PermissionsPolicy().camera().geolocation().microphone(),
    # Over TLS, Flask-WTF checks the referrer of a form, so "no-referrer" would break all forms.
    referrer=ReferrerPolicy().same_origin(),
    xcto=XContentTypeOptions().nosniff(),
    xfo=XFrameOptions().deny(),
)
NO_STORE: Final = Secure(cache=CacheControl().no_store())


def add_headers(response: flask.Response) -> flask.Response:
    """Add the security headers to a response."""
    HEADERS.set_headers(response)
    if flask.request.endpoint != "static":
        NO_STORE.set_headers(response)
    return response


class Request(flask.Request):
    """A request whose query may contain bytes that are not UTF-8, as names of entries may.

    Such bytes become surrogates, as in all strings that the storage returns.
    """

    @cached_property
    def args(self) -> ImmutableMultiDict[str, str]:
        """The fields of the query string; raises :exc:`BadRequest` for too many fields."""
        try:
            fields = parse_qsl(
                self.query_string.decode("utf-8", "surrogateescape"),
                keep_blank_values=True,
                errors="surrogateescape",
                max_num_fields=MAX_FIELDS,
            )
        except ValueError:
            raise BadRequest(f"The URL has more than {MAX_FIELDS} fields.") from None
        return ImmutableMultiDict(fields)


class Response(flask.Response):
    """A response whose text may contain surrogates: stored texts may, and no page fails then."""

    def set_data(self, value: bytes | str) -> None:
        """Set the body of the response."""
        super().set_data(encodable(value) if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server.

    Attributes:
        header, body: maximum sizes of a request, in bytes.
        seconds: a client must send a whole request within this time. An idle connection is closed
            after the same time.
        check_seconds: time between two checks for connections that took too long.
        connections: maximum number of open connections, of all clients together. The default leaves
            other files to a process that may open 1,024.
        threads: number of requests that the server handles in parallel.
    """

    header: int = 32 << 10
    body: int = MAX_BODY
    seconds: int = 15
    check_seconds: int = 2
    connections: int = 500
    threads: int = 8


class Channel(HTTPChannel):
    """A connection that is closed if a request takes longer than ``Limits.seconds`` to arrive.

    Waitress closes only connections that are silent for that time: a client that sends a byte now
    and then would keep its connection for ever.
    """

    last_activity: float

    def handle_read(self) -> None:
        """Read from the socket; only the start and the end of a request count as activity."""
        request: Any = self.request
        active_at = self.last_activity
        super().handle_read()
        if request is not None and self.request is request:
            self.last_activity = active_at


def make_server(
    app: Any, listener: socket.socket, behind_proxy: bool, limits: Limits | None = None
) -> Any:
    """Return a server for a WSGI application on a listening socket."""
    limits = limits or Limits()
    server = create_server(
        app,
        sockets=[listener],
        threads=limits.threads,
        ident=None,
        clear_untrusted_proxy_headers=not behind_proxy,
        max_request_header_size=limits.header,
        max_request_body_size=limits.body,
        channel_timeout=limits.seconds,
        cleanup_interval=limits.check_seconds,
        connection_limit=limits.connections,
        # select() fails for file numbers above 1,023.
        asyncore_use_poll=True,
    )
    server.channel_class = Channel
    return server
