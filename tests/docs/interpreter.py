"""Runs the Python examples of one page, one after the other, in one namespace.

A program of its own, so that nothing of a page is left in the process of the tests: signals,
registered types, the current app. Standard input: JSON with ``before``, code that is not on the
page, and ``blocks``, pairs of place and code.

What an example assigns to the names of settings is the configuration of a project: a client is made
from it, which raises for anything that is impossible.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.schedulers import get_redis

SETTINGS = ("redbeat_", "broker_", "beat_")


def check_settings(settings: dict[str, Any]) -> None:
    """Raise unless a project with these settings has a schedule; nothing is connected."""
    app = Celery("settings", set_as_current=False, broker="redis://localhost")
    app.conf.update(settings)
    if not RedBeatConfig(app).cluster:  # its client asks the nodes at once
        get_redis(app)


def main() -> None:
    """Run what is told; a traceback names the page and the line."""
    told = json.load(sys.stdin)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(told["before"], "before", "exec"), names)
    for place, line, text in told["blocks"]:
        settings = {name for name in names if name.startswith(SETTINGS)}
        for name in settings:
            del names[name]
        exec(compile("\n" * line + text, place, "exec"), names)
        made = {name: names[name] for name in names if name.startswith(SETTINGS)}
        if made:
            check_settings(made)


if __name__ == "__main__":
    main()
