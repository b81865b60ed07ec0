"""The message of an occurrence: its task id, its headers and what is computed for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redbeat.entries.lazy import evaluated
from redbeat.entries.nominal import nominal
from redbeat.entries.occurrences import Trigger
from redbeat.entries.task_options import sendable_options
from redbeat.entry import RedBeatSchedulerEntry

from .broker import retry_options

__all__ = ("OVERLAP_HEADER", "Message", "addressed")

#: The header with the key of an entry whose runs must not overlap.
OVERLAP_HEADER = "redbeat_overlap"


@dataclass(slots=True)
class Message:
    """What Celery needs of an entry to send its task."""

    name: str
    task: str
    args: Any
    kwargs: Any
    options: dict[str, Any]


def addressed(
    entry: RedBeatSchedulerEntry,
    scheduled_at: datetime,
    missed: int = 0,
    at_most_once: bool = False,
    trigger: Trigger | None = None,
) -> Message:
    """Return the message of ``entry``, whose options carry what identifies the occurrence.

    The ``task_id`` is derived from the occurrence, so that sending it again does not make a new
    task; headers ``scheduled_at`` (ISO 8601, UTC) and ``periodic_task_name`` tell the task what it
    was sent for, and ``celery_beat_task`` that a beat has sent it. ``coalesced`` is there when the
    run makes up for occurrences that were missed: it tells how many; ``triggered`` when the run is
    beside the schedule. Options of the user's own win, but that what is sent at most once is not
    retried.

    Functions among the arguments are called; :exc:`LazyArgumentError` where one of them raises.
    """
    instant = nominal(scheduled_at).iso
    given = sendable_options(entry.options or {})
    options = retry_options(given, at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant, "periodic_task_name": entry.name}
    if missed:
        headers["coalesced"] = missed
    if trigger is not None:
        headers["triggered"] = True
    if entry.overlap != "allow":
        headers[OVERLAP_HEADER] = entry.key
    if given.get("headers"):
        headers.update(given["headers"])
    headers["celery_beat_task"] = True
    options["headers"] = headers
    options["task_id"] = given.get("task_id") or entry.derived_id(
        instant if trigger is None else f"trigger {trigger.id}"
    )
    args, kwargs = evaluated(entry.args, entry.kwargs)
    return Message(entry.name, entry.task, args, kwargs, options)
