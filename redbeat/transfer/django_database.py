"""Entries from the tables of django-celery-beat, read from the database of a Django project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from .django_rows import TABLES, TASK, Tables, converted
from .incoming import EntryType, Incoming, UnreadableSourceError

__all__ = ("DEFAULT_ALIAS", "read_database")

#: What Django calls the usual one of its databases.
DEFAULT_ALIAS: Final = "default"

#: Rows that are in memory at a time.
CHUNK: Final = 500


def read_database(app: Any, make: EntryType, alias: str = DEFAULT_ALIAS) -> Iterator[Incoming]:
    """Yield the entry of each task with its run history; ``alias`` is of Django's ``DATABASES``.

    Nothing is written there. Raises :exc:`UnreadableSourceError` where Django is not set up.
    """
    registry = _registry()
    errors: tuple[type[Exception], ...] = (
        import_module("django.db").Error,
        import_module("django.utils.connection").ConnectionDoesNotExist,
    )
    try:
        tables = _tables(registry, alias)
        for found in _rows(registry.get_model(TASK), alias):
            yield converted(app, make, found, tables)
    except errors as error:
        raise UnreadableSourceError(f"cannot be read: {error}") from error


def _registry() -> Any:
    """Return the applications of the Django project, with its settings loaded."""
    try:
        django = import_module("django")
        conf = import_module("django.conf")
    except ImportError as error:
        problem = "needs Django: install django-celery-beat here, or give a file of dumpdata"
        raise UnreadableSourceError(problem) from error
    if not (os.environ.get("DJANGO_SETTINGS_MODULE") or conf.settings.configured):
        problem = (
            "needs DJANGO_SETTINGS_MODULE: set it as manage.py does, or give a file of dumpdata"
        )
        raise UnreadableSourceError(problem)
    try:
        django.setup()
        registry = import_module("django.apps").apps
        registry.get_app_config(TASK.partition(".")[0])
    except LookupError as error:
        raise UnreadableSourceError("needs django_celery_beat in INSTALLED_APPS") from error
    except Exception as error:  # whatever the settings of a project may raise
        raise UnreadableSourceError(f"is of a project that cannot be set up: {error!r}") from error
    return registry


def _tables(registry: Any, alias: str) -> Tables:
    models = {label: registry.get_model(label) for label in TABLES.values()}
    return {
        (label, found["pk"]): found["fields"]
        for label, model in models.items()
        for found in _rows(model, alias)
    }


def _rows(model: Any, alias: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as ``dumpdata`` has them, but for times, which are datetimes."""
    serialize = import_module("django.core.serializers").serialize
    for row in model._base_manager.using(alias).order_by("pk").iterator(chunk_size=CHUNK):
        yield from serialize("python", [row])
