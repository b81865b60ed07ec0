"""The message of an occurrence: its task id and its headers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from .broker import retry_options
from .config import ensure_conf
from .entry import RedBeatSchedulerEntry
from .occurrences import aware, task_id_of

__all__ = ("OVERLAP_HEADER", "addressed")

#: The header with the key of an entry whose runs must not overlap.
OVERLAP_HEADER = "redbeat_overlap"


def addressed(
    entry: RedBeatSchedulerEntry,
    scheduled_at: datetime,
    missed: int = 0,
    at_most_once: bool = False,
) -> RedBeatSchedulerEntry:
    """Return a copy of ``entry`` whose options carry what identifies the occurrence.

    The ``task_id`` is derived from the occurrence, so that sending it again does not make a new
    task; headers ``scheduled_at`` (ISO 8601, UTC) and ``periodic_task_name`` tell the task what it
    was sent for. ``coalesced`` is there when the run makes up for occurrences that were missed: it
    tells how many. Options of the user's own win, but that what is sent at most once is not
    retried.
    """
    instant = aware(scheduled_at).isoformat()
    options = retry_options(dict(entry.options or {}), at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant, "periodic_task_name": entry.name}
    if missed:
        headers["coalesced"] = missed
    if entry.overlap != "allow":
        headers[OVERLAP_HEADER] = entry.key
    options["headers"] = {**headers, **(options.get("headers") or {})}
    if not options.get("task_id"):
        prefix = ensure_conf(entry.app).key_prefix
        options["task_id"] = task_id_of(prefix, str(entry.name), instant)
    message = entry.__copy__()
    message.options = options
    return message
