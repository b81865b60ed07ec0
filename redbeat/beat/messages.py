"""The message of an occurrence: its task id, its headers and what is computed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redbeat.entries.lazy import evaluated
from redbeat.entries.nominal import Nominal
from redbeat.entries.occurrences import Run
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
    #: Whether the task id is the one that anybody can compute.
    own_id: bool


def addressed(entry: RedBeatSchedulerEntry, instant: Nominal, run: Run | None = None) -> Message:
    """Return the message of ``entry``, whose options carry what identifies the occurrence.

    ``instant`` is when that is due, ``run`` what else is known of it. The ``task_id`` is derived
    from the occurrence, so that sending it again does not make a new task; headers ``scheduled_at``
    (ISO 8601, UTC) and ``periodic_task_name`` tell the task what it was sent for, and
    ``celery_beat_task`` that a beat has sent it. ``coalesced`` is there when the run makes up for
    occurrences that were missed: it tells how many; ``triggered`` when the run is beside the
    schedule. Options of the user's own win, but that what is sent at most once is not retried.

    Functions among the arguments are called; :exc:`LazyArgumentError` where one of them raises.
    """
    given = sendable_options(entry.options or {})
    options = retry_options(given, run is not None and run.at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant.iso, "periodic_task_name": entry.name}
    occurrence = instant.iso
    if run is not None and run.trigger is not None:
        headers["triggered"] = True
        occurrence = f"trigger {run.trigger.id}"
    elif run is not None and run.verdict is not None and run.verdict.missed:
        headers["coalesced"] = run.verdict.missed
    if entry.policy_field("overlap") != "allow":
        headers[OVERLAP_HEADER] = entry.key
    if given.get("headers"):
        headers.update(given["headers"])
    headers["celery_beat_task"] = True
    options["headers"] = headers
    task_id = given.get("task_id")
    options["task_id"] = task_id or entry.derived_id(occurrence)
    args, kwargs = evaluated(entry.args, entry.kwargs)
    return Message(entry.name, entry.task, args, kwargs, options, not task_id)
