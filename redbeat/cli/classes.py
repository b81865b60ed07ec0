"""Classes of the user's own: which one the entries are of, and how one is saved."""

from __future__ import annotations

import inspect
from typing import Any

from celery.utils.imports import load_extension_class_names, symbol_by_name

from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("entry_class_of", "save_unchanged")


def entry_class_of(app: Any) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` of the scheduler in ``beat_scheduler``, where that is one of RedBeat.

    A scheduler that is only given as ``celery beat -S`` is not known here.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    try:
        found = getattr(symbol_by_name(app.conf.beat_scheduler, aliases=aliases), "Entry", None)
    except (ImportError, AttributeError):  # celery beat says so
        found = None
    if inspect.isclass(found) and issubclass(found, RedBeatSchedulerEntry):
        return found
    return RedBeatSchedulerEntry


def save_unchanged(entry: RedBeatSchedulerEntry) -> None:
    """Save an entry unless somebody else changed it: :exc:`ConflictError` then.

    A ``save()`` of a class that does not know this choice is passed over.
    """
    parameters = inspect.signature(entry.save).parameters
    if "if_unchanged" in parameters or "kwargs" in parameters:
        entry.save(if_unchanged=True)
    else:
        entry._save(if_unchanged=True)
