"""Classes of the user's own: which one the entries are of, and how one is saved."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final

from celery.utils.imports import load_extension_class_names, symbol_by_name

from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("entry_class_of", "save_unchanged")

#: A scheduler whose entries are none of ours, and which cannot be imported without its project.
DJANGO: Final = "django_celery_beat."


def entry_class_of(app: Any) -> type[RedBeatSchedulerEntry]:
    """Return the ``Entry`` of the scheduler in ``beat_scheduler``, where that is one of RedBeat.

    A scheduler that is only given as ``celery beat -S`` is not known here.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    if str(aliases.get(name, name)).startswith(DJANGO):
        return RedBeatSchedulerEntry
    try:
        found = getattr(_imported(name, aliases), "Entry", None)
    except (ImportError, AttributeError):  # celery beat reports it
        found = None
    if inspect.isclass(found) and issubclass(found, RedBeatSchedulerEntry):
        return found
    return RedBeatSchedulerEntry


def _imported(name: Any, aliases: dict[str, str]) -> Any:
    """Import a scheduler; one that imports models of Django has the project set up, as in beat."""
    try:
        return symbol_by_name(name, aliases=aliases)
    except Exception as error:
        if type(error).__name__ != "AppRegistryNotReady":
            raise
        import_module("django").setup()
        return symbol_by_name(name, aliases=aliases)


def save_unchanged(entry: RedBeatSchedulerEntry) -> None:
    """Save an entry unless somebody else changed it: :exc:`ConflictError` then.

    A ``save()`` of a class that does not know this choice is passed over.
    """
    parameters = inspect.signature(entry.save).parameters
    if "if_unchanged" in parameters or "kwargs" in parameters:
        entry.save(if_unchanged=True)
    else:
        entry._save(if_unchanged=True)
