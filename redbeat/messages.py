"""The message of an occurrence: its task id, its headers and what is computed for it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from .broker import retry_options
from .config import ensure_conf
from .entry import RedBeatSchedulerEntry
from .lazy import evaluated
from .occurrences import aware, task_id_of
from .task_options import sendable_options

__all__ = ("OVERLAP_HEADER", "addressed", "id_of")

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

    Functions among the arguments are called; :exc:`LazyArgumentError` where one of them raises.
    """
    instant = aware(scheduled_at).isoformat()
    options = retry_options(sendable_options(entry.options or {}), at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant, "periodic_task_name": entry.name}
    if missed:
        headers["coalesced"] = missed
    if entry.overlap != "allow":
        headers[OVERLAP_HEADER] = entry.key
    options["headers"] = {**headers, **(options.get("headers") or {})}
    options["task_id"] = id_of(entry, scheduled_at)
    message = entry.__copy__()
    message.options = options
    message.args, message.kwargs = evaluated(entry.args, entry.kwargs)
    return message


def id_of(entry: RedBeatSchedulerEntry, scheduled_at: datetime) -> str:
    """Return the task id of the run that is due at ``scheduled_at``."""
    given = (entry.options or {}).get("task_id")
    if given:
        return str(given)
    prefix = ensure_conf(entry.app).key_prefix
    return task_id_of(prefix, str(entry.name), aware(scheduled_at).isoformat())
