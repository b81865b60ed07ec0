"""Entries from the tables of django-celery-beat, as ``manage.py dumpdata`` writes them.

The file is what ``manage.py dumpdata django_celery_beat`` prints, as JSON or as JSON lines. Neither
Django nor its database is needed to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from .django_rows import TASK, converted
from .incoming import EntryType, Incoming, UnreadableSourceError

__all__ = ("read_fixture",)


def read_fixture(app: Any, make: EntryType, file: IO[bytes]) -> Iterator[Incoming]:
    """Yield the entry of each task with its run history.

    Times without a zone are in the zone of the app. Raises :exc:`UnreadableSourceError`.
    """
    objects = _objects(file)
    tables = {
        (str(found.get("model")), found.get("pk")): found.get("fields", {}) for found in objects
    }
    tasks = [found for found in objects if found.get("model") == TASK]
    if not tasks:
        raise UnreadableSourceError(
            f"has no {TASK}: make it with manage.py dumpdata django_celery_beat"
        )
    for found in tasks:
        yield converted(app, make, found, tables)


def _objects(file: IO[bytes]) -> list[dict[str, Any]]:
    try:
        text = file.read().decode("utf-8-sig")
        whole = text.lstrip().startswith("[")
        lines = (line for line in text.splitlines() if line.strip())
        found = json.loads(text) if whole else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise UnreadableSourceError(f"cannot be read as JSON: {error}") from error
    if not all(isinstance(item, dict) for item in found):
        raise UnreadableSourceError("is no fixture: make it with manage.py dumpdata")
    return list(found)
