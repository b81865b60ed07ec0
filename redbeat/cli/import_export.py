"""The kinds of files that can be imported, by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

import click

from redbeat.storage.store import store_of
from redbeat.transfer.crontab_file import read_crontab
from redbeat.transfer.django import DEFAULT_ALIAS, read_database, read_fixture
from redbeat.transfer.importing import (
    ON_CONFLICT,
    Checked,
    EntryType,
    Importer,
    Incoming,
    Problem,
    UnreadableSourceError,
    Written,
)
from redbeat.transfer.jsonlines import export_lines, read_lines
from redbeat.transfer.shelve_file import read_shelve

from .command import EX_CONFLICT, command, failure
from .console import Console, progress
from .options import bad, option

__all__ = (
    "DJANGO",
    "FORMATS",
    "SHELVE",
    "export",
    "import_",
    "read_source",
)

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


#: Exit code when something could not be read.
EX_BAD: Final = 1

#: Problems that are printed, at most.
SHOWN: Final = 20

#: Lines between two movements of the bar.
STEP: Final = 500


@command("export")
@click.argument("file", default="-")
@option("--history", is_flag=True, help="With the last run and the number of runs.")
def export(console: Console, file: str, history: bool) -> None:
    """Write all entries to FILE as JSON lines, to the standard output by default.

    Entries that cannot be read are left out and named, and the exit code is 1. FILE is replaced at
    the end, when all is written.
    """
    schedule, store = console.schedule, store_of(console.app)
    lines = export_lines(console.app, schedule.entry_class, store, history)
    count, unreadable = 0, []
    with _output(file) as out, progress(console, "Exporting", len(schedule)) as done:
        for found in lines:
            if found.problem:
                unreadable.append(found)
                continue
            out.write(found.line + "\n")
            count += 1
            if count % STEP == 0:
                done(STEP)
    for found in unreadable[:SHOWN]:
        console.warn(f"{console.name(found.key)} is left out: {found.problem}")
    if console.as_json and file != "-":
        console.emit({"exported": count, "unreadable": [found.key for found in unreadable]})
    else:
        console.note(f"Exported {count} entries")
    if unreadable:
        raise failure(f"{len(unreadable)} entries cannot be read and were left out", EX_BAD)


@contextmanager
def _output(file: str) -> Iterator[IO[str]]:
    """Give the file to write to; it takes its name once all is written."""
    if file == "-":
        yield sys.stdout
        return
    part = Path(f"{file}.part")
    try:
        with part.open("w", encoding="ascii") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except OSError as error:
        raise failure(f"{file} cannot be written: {error.strerror}", EX_BAD) from error
    finally:
        part.unlink(missing_ok=True)


@command("import")
@click.argument("file", required=False)
@option(
    "--from",
    "kind",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="What the file is.",
)
@option(
    "--database",
    metavar="[ALIAS]",
    is_flag=False,
    flag_value=DEFAULT_ALIAS,
    example="default",
    help="In place of FILE: which database of the Django project to read.",
)
@option(
    "--on-conflict",
    type=click.Choice(ON_CONFLICT),
    default=ON_CONFLICT[0],
    show_default=True,
    help="What to do about an entry that is stored already and differs.",
)
@option("--prune", is_flag=True, help="Remove dynamic entries that are not in the file.")
@option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
def import_(
    console: Console,
    file: str | None,
    kind: str,
    database: str | None,
    on_conflict: str,
    prune: bool,
    dry_run: bool,
) -> None:
    """Store the entries of FILE, ``-`` for the standard input.

    All of them are checked first; with anything wrong nothing is written and the exit code is 1.

    \b
    jsonlines           what `export` writes
    crontab             lines of: minute hour day month weekday TASK [KWARGS as JSON]
    django-celery-beat  what `manage.py dumpdata django_celery_beat` prints; without FILE, the
                        database of the project that DJANGO_SETTINGS_MODULE names
    celery-shelve       `celerybeat-schedule`, the file of Celery's own scheduler
    """
    where, found = _source(console, file, kind, database)
    make = console.schedule.entry_class
    with Importer(console.app, store_of(console.app), make, on_conflict) as importer:
        try:
            with progress(console, "Checking", None) as done:
                checked = importer.check(found, done)
        except UnreadableSourceError as error:
            raise failure(f"{where}: {error}", EX_BAD) from error
        _end_if_wrong(console, checked)
        if not dry_run:
            with progress(console, "Importing", importer.written.to_write) as done:
                importer.write(done)
        if prune:
            importer.prune(checked.names, dry_run)
    _report(console, importer.written, dry_run)


def _source(
    console: Console, file: str | None, kind: str, database: str | None
) -> tuple[str, Iterator[Incoming]]:
    """Return what a source is called, and what it gives."""
    make = console.schedule.entry_class
    if database is not None and (kind != DJANGO or file is not None):
        problem = f"is for --from {DJANGO} without a FILE"
        raise bad(console.ctx, "database", problem)
    if file is not None:
        return file, read_source(kind, console.app, make, file, sys.stdin.buffer)
    if kind != DJANGO:
        problem = f"Missing argument 'FILE'; only --from {DJANGO} goes without"
        raise click.UsageError(problem, console.ctx)
    alias = database or DEFAULT_ALIAS
    return f"database {alias}", read_database(console.app, make, alias)


def _end_if_wrong(console: Console, checked: Checked) -> None:
    """End the command when a check found anything wrong; nothing is written then."""
    if checked.problem_count:
        _show(console, checked.problems)
        message = f"Nothing was written: {_entries(checked.problem_count)} wrong"
        raise failure(message, EX_BAD)
    if checked.conflict_count:
        _show(console, checked.conflicts)
        message = (
            f"Nothing was written: {_entries(checked.conflict_count)} stored already with other "
            "content; choose --on-conflict keep or --on-conflict replace"
        )
        raise failure(message, EX_CONFLICT)


def _entries(count: int) -> str:
    return f"{count} entries are" if count > 1 else "1 entry is"


def _show(console: Console, problems: list[Problem]) -> None:
    for problem in problems if console.as_json else problems[:SHOWN]:
        if console.as_json:
            console.emit({"where": problem.where, "problem": problem.text})
        else:
            console.ctx.obj.error(console.name(f"{problem.where}: {problem.text}"))


def _report(console: Console, written: Written, dry_run: bool) -> None:
    counts: dict[str, Any] = asdict(written)
    if console.as_json:
        console.emit({**counts, "dry_run": dry_run})
        return
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    console.note(f"Dry run, nothing was written: {said}" if dry_run else f"Imported: {said}")
