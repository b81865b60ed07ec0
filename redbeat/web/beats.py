"""The beats page: leader and standbys, the Redis server, and quarantined entries."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from flask import Blueprint, current_app, render_template
from flask.typing import ResponseReturnValue

from redbeat.calendar.zones import UTC
from redbeat.entries.status import quarantine_note
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
    store = store_of(schedule.app)
    status, notes = schedule.status(), store.quarantined(MAX_QUARANTINED)
    keys = list(notes)
    names = [key.removeprefix(store.keys.prefix) for key in keys]
    rows = store.read(keys).rows if keys else []
    return render_template(
        "beats.html",
        status=status,
        notes={name: quarantine_note(notes[key]) for name, key in zip(names, keys, strict=True)},
        more=max(status.quarantined - len(names), 0),
        texts=dict(zip(names, map(texts_of, rows), strict=True)),
        now=datetime.now(UTC),
        poll=poll_after(time.monotonic() - started),
    )
