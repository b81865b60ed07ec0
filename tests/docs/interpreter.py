"""Runs the Python examples of one page, one after the other, in one namespace.

Each page runs in its own process, so that its signals, registered types and current app do not
affect other tests.

An example may assign to the names of settings. These values then configure an app, and creating the
app's client raises an error for impossible values.
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
    """Raise an error if an app with these settings cannot create its client."""
    app = Celery("settings", set_as_current=False, broker="redis://localhost")
    app.conf.update(settings)
    if not RedBeatConfig(app).cluster:  # a Cluster client would connect to the nodes immediately
        get_redis(app)


def run_blocks(before: str, blocks: Sequence[Block]) -> None:
    """Run the set-up code, then the examples."""
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
    """Run a page; return an empty string, or a traceback with page and line."""
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_blocks(before, blocks)
    except BaseException:
        return traceback.format_exc()
    return ""
