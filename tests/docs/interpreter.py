"""Runs the Python examples of one page, one after the other, in one namespace.

It needs its own process, so that a page leaves nothing in the process of the tests: signals,
registered types, the current app.

When an example assigns to names of settings, they form the configuration of a project. A client is
created from it, which raises an error for impossible values.
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
    """Raise an error unless a project with these settings has a schedule; nothing connects."""
    app = Celery("settings", set_as_current=False, broker="redis://localhost")
    app.conf.update(settings)
    if not RedBeatConfig(app).cluster:  # its client connects to the nodes at once
        get_redis(app)


def run_blocks(before: str, blocks: Sequence[Block]) -> None:
    """Run set-up code, then the examples."""
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
    """Return a traceback with page and line, or an empty string on success."""
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_blocks(before, blocks)
    except BaseException:
        return traceback.format_exc()
    return ""
