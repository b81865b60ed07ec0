"""Serving the page."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import NoReturn

from waitress.server import create_server  # type: ignore[import-untyped]

from redbeat.schedule import Schedule

from .access import Access, host_in
from .site import create_app

__all__ = ("Served",)

#: Requests that are answered at once.
THREADS = 8


class Served:
    """The page on an address; raises OSError for one that is not to be had."""

    def __init__(self, schedule: Schedule, access: Access, port: int) -> None:
        app = create_app(schedule, access)
        host = host_in(access.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Made here, since waitress leaves the socket open when the port is taken.
        listening = socket.create_server((host, port), family=family)
        self._server = create_server(
            app,
            sockets=[listening],
            threads=THREADS,
            ident=None,
            clear_untrusted_proxy_headers=not access.behind_proxy,
        )
        named = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{named}:{listening.getsockname()[1]}/"

    def run(self) -> None:
        """Serve until a signal says to end."""

        def end(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, end)
        self._server.run()
        self._server.close()
