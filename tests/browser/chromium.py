"""Starts Chromium, and finds problems on a page that a user does not see."""

from __future__ import annotations

import os
import shutil
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request

__all__ = ("Watch", "inaccessible", "launched")

HINT = "Chromium was not found. Install it: apt-get install chromium"

#: Chromium can only resolve the loopback address, so it reaches no other host.
LOOPBACK_ONLY = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"

#: A script in a page that reports what the Content-Security-Policy blocks.
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} blocked ${event.blockedURI}`));
"""


def launched(playwright: Playwright) -> Browser:
    """Start the browser; raise RuntimeError with a hint if it is not installed."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if path is None:
        raise RuntimeError(HINT)
    # Chromium has no sandbox for root. Here it opens only pages of RedBeat.
    args = [LOOPBACK_ONLY, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    return playwright.chromium.launch(executable_path=path, args=args)


def inaccessible(page: Page) -> list[str]:
    """Return what axe finds on a page: for each element the rule, its selector and the reason."""
    # Without ``preload`` axe makes no requests, which the Content-Security-Policy would block.
    options = {"resultTypes": ["violations"], "preload": False}
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {' '.join(node['target'])}: {node['failureSummary']}"
        for rule in violations
        for node in rule["nodes"]
    ]


class Watch:
    """Records every problem on a page, one line each in ``problems``.

    Messages that contain the text ``expected`` are ignored.
    """

    def __init__(self, page: Page, expected: str = "") -> None:
        self.problems: list[str] = []
        self._expected = expected
        page.add_init_script(REPORT_VIOLATIONS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if self._expected and self._expected in message.text:
            return
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} {_where(message.location)}")

    def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.hostname != "127.0.0.1":
            self.problems.append(f"asked another host: {request.url}")


def _where(location: Any) -> str:
    return f"({location.get('url', '')}:{location.get('lineNumber', '')})"
