"""The beats page: leader and standbys, the Redis server, and quarantined entries."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from flask import Blueprint, current_app, render_template
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.storage.store import store_of

from .list import poll_after
from .values import texts_of

__all__ = ("beats",)

beats = Blueprint("beats", __name__)

#: Maximum number of quarantined entries on the page.
MAX_QUARANTINED: Final = 50


@beats.get("/beats")
def show() -> ResponseReturnValue:
    """Show the beats page. Takes at most five round trips."""
    started = time.monotonic()
    schedule = current_app.extensions["schedule"]
    status, notes = schedule.status(), schedule.quarantine()
    names = list(notes)[:MAX_QUARANTINED]
    keys = [schedule._key(name) for name in names]
    rows = store_of(schedule.app).read(keys).rows if keys else []
    return render_template(
        "beats.html",
        status=status,
        notes={name: notes[name] for name in names},
        more=len(notes) - len(names),
        texts=dict(zip(names, map(texts_of, rows), strict=True)),
        now=datetime.now(UTC),
        poll=poll_after(time.monotonic() - started),
    )
