"""Serving the page."""

from __future__ import annotations

import signal
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
        # The headers of a proxy are for the app to believe or not; this server leaves them alone.
        self._server = create_server(
            app,
            host=host_in(access.host) or "0.0.0.0",
            port=port,
            threads=THREADS,
            ident=None,
            clear_untrusted_proxy_headers=not access.behind_proxy,
        )
        host = f"[{host_in(access.host)}]" if ":" in host_in(access.host) else access.host
        self.url = f"http://{host}:{self._port()}/"

    def _port(self) -> int:
        port: int = getattr(self._server, "effective_port", 0)
        return port or self._server.effective_listen[0][1]

    def run(self) -> None:
        """Serve until a signal says to end."""

        def end(_number: int, _frame: FrameType | None) -> NoReturn:
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, end)
        self._server.run()
        self._server.close()
