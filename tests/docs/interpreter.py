"""Runs the Python examples of one page, one after the other, in one namespace.

Meant for a process of its own, so that nothing of a page is left in the process of the tests:
signals, registered types, the current app.

What an example assigns to the names of settings is the configuration of a project: a client is made
from it, which raises for anything that is impossible.
"""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from redbeat.config import RedBeatConfig
from redbeat.schedulers import get_redis
from tests.docs.blocks import Block

__all__ = ("run_page",)

SETTINGS = ("redbeat_", "broker_", "beat_")


def check_settings(settings: dict[str, Any]) -> None:
    """Raise unless a project with these settings has a schedule; nothing is connected."""
    app = Celery("settings", set_as_current=False, broker="redis://localhost")
    app.conf.update(settings)
    if not RedBeatConfig(app).cluster:  # its client asks the nodes at once
        get_redis(app)


def run_blocks(before: str, blocks: Sequence[Block]) -> None:
    """Run code that is not on the page, then the examples."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(before, "before", "exec"), names)
    for block in blocks:
        for name in [name for name in names if name.startswith(SETTINGS)]:
            del names[name]
        exec(compile("\n" * (block.line + 1) + block.text, block.page, "exec"), names)
        made = {name: names[name] for name in names if name.startswith(SETTINGS)}
        if made:
            check_settings(made)


def run_page(environment: Mapping[str, str], before: str, blocks: Sequence[Block]) -> str:
    """Return a traceback that names the page and the line, empty when all went well."""
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_blocks(before, blocks)
    except BaseException:
        return traceback.format_exc()
    return ""
