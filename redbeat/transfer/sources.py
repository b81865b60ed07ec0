"""The kinds of files that can be imported, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from .crontab_file import read_crontab
from .django_fixture import read_fixture
from .incoming import EntryType, Incoming, UnreadableSourceError
from .jsonlines import read_lines
from .shelve_file import read_shelve

__all__ = ("DJANGO", "FORMATS", "SHELVE", "read_source")

SHELVE: Final = "celery-shelve"
DJANGO: Final = "django-celery-beat"

#: The kinds of files that are read as a stream of bytes.
READERS: Final[dict[str, Callable[[Any, EntryType, IO[bytes]], Iterator[Incoming]]]] = {
    "jsonlines": read_lines,
    "crontab": read_crontab,
    DJANGO: read_fixture,
}

#: The kinds of files, the default first.
FORMATS: Final = (*READERS, SHELVE)


def read_source(
    kind: str, app: Any, make: EntryType, path: str, stdin: IO[bytes]
) -> Iterator[Incoming]:
    """Yield the entries of a file, ``-`` for ``stdin``; raises :exc:`UnreadableSourceError`."""
    if kind == SHELVE:
        if path == "-":
            raise UnreadableSourceError("a database has a name of its own: give the path of it")
        yield from read_shelve(app, make, path)
    elif path == "-":
        yield from READERS[kind](app, make, stdin)
    else:
        with _opened(path) as file:
            yield from READERS[kind](app, make, file)


def _opened(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UnreadableSourceError(f"cannot be read: {error.strerror}") from error
